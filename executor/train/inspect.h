/* inspect.h - finds the first bad value of a step: what the ops of a rank read and write is looked
 * at op by op, while the step is run once more for that.
 *
 * Bad is what is no number, or so large that its square is none in FP32. A device that works behind
 * the host is waited for after every op.
 */
#ifndef MF_EXECUTOR_INSPECT_H
#define MF_EXECUTOR_INSPECT_H

#include "executor/step/program_run.h"

typedef struct mf_inspect mf_inspect;

/* Where a rank's first bad value came from; of several ranks the one that speaks of the largest of
 * these is right. */
typedef enum mf_inspect_origin {
    MF_INSPECT_NOTHING, /* all is well */
    MF_INSPECT_SUMMED, /* it stands in a gradient once the step is over, and nobody saw it before */
    MF_INSPECT_RECEIVED, /* another rank sent it */
    MF_INSPECT_MADE      /* by an op of this rank, of values that are well, or of a weight */
} mf_inspect_origin;

/* For `x`, whose ops go on one queue meanwhile, op by op. To be destroyed. Errors: MF_NOMEM. */
mf_status mf_inspect_create(mf_exec *x, const mf_model *m, mf_device *d, mf_inspect **out,
                            mf_err *e);
void mf_inspect_destroy(mf_inspect *s);
/* Around each op of the step. */
void mf_inspect_before(mf_inspect *s, const mf_exec_op *op);
void mf_inspect_after(mf_inspect *s, const mf_exec_op *op);
/* Behind it: what was found first, and of it in words, "layer 3 (moe), forward, op expert_fc1: its
 * output expert_hidden is inf at row 12, column 5; so is its weight w1". Errors: of the device. */
mf_status mf_inspect_end(mf_inspect *s, mf_inspect_origin *origin, char *text, size_t size,
                         mf_err *e);

#endif
