/* inspect.h - finds the first bad value of a step: runs the step again and checks what each op of a
 * rank reads and writes.
 *
 * A value is bad when it is NaN or infinite, or when its square overflows FP32. The host waits for
 * an asynchronous device after every op.
 */
#ifndef MF_EXECUTOR_INSPECT_H
#define MF_EXECUTOR_INSPECT_H

#include "executor/step/program_run.h"

typedef struct mf_inspect mf_inspect;

/* Where a rank's first bad value came from. When ranks differ, the largest of these is the cause.
 */
typedef enum mf_inspect_origin {
    MF_INSPECT_NOTHING,  /* no bad value */
    MF_INSPECT_SUMMED,   /* found in a gradient after the step: a sum over ranks made it */
    MF_INSPECT_RECEIVED, /* another rank sent it */
    MF_INSPECT_MADE      /* an op of this rank made it from good values, or from a bad weight */
} mf_inspect_origin;

/* Attaches to `x`, which runs op by op on one queue until mf_inspect_destroy. Errors: MF_NOMEM. */
mf_status mf_inspect_create(mf_exec *x, const mf_model *m, mf_device *d, mf_inspect **out,
                            mf_err *e);
void mf_inspect_destroy(mf_inspect *s);
/* Around each op of the step. */
void mf_inspect_before(mf_inspect *s, const mf_exec_op *op);
void mf_inspect_after(mf_inspect *s, const mf_exec_op *op);
/* Call it after the step: where the first bad value came from, and a text such as "layer 3 (moe),
 * forward, op expert_fc1: its output expert_hidden is inf at row 12, column 5; so is its weight
 * w1". Errors: those of the device. */
mf_status mf_inspect_end(mf_inspect *s, mf_inspect_origin *origin, char *text, size_t size,
                         mf_err *e);

#endif
