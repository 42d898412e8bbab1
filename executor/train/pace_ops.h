/* pace_ops.h - seconds that a rank works at each op of each layer, over the last steps, so that the
 * line about a slow rank says what it is slow at. For a GPU: seconds from each op after a wait to
 * the next wait, by its own clock. */
#ifndef MF_EXECUTOR_PACE_OPS_H
#define MF_EXECUTOR_PACE_OPS_H

#include "core/program/lower.h"
#include "executor/comm/comm.h"

#include <stdbool.h>

typedef struct mf_pace_ops mf_pace_ops;

/* Sums over about the last `window` steps, older ones counting less. `p` has to outlive it. NULL:
 * no memory. */
mf_pace_ops *mf_pace_ops_create(const mf_program *p, int window);
void mf_pace_ops_destroy(mf_pace_ops *o);

/* Call them before and after each op, and after each step; a step that does not count clears the
 * sums. NULL is fine. b: NULL outside blocks. */
void mf_pace_ops_before(mf_pace_ops *o);
void mf_pace_ops_after(mf_pace_ops *o, int position, const mf_block *b, const mf_op *op);
void mf_pace_ops_step(mf_pace_ops *o, bool counts);
/* For a GPU, instead of the calls around ops: adds mf_exec_result.span_ns of one executor, before
 * the step's end. */
void mf_pace_ops_spans(mf_pace_ops *o, const int64_t *span_ns);

/* Collective: ", most at expert_fc1 (forward) of layer 3: 0.2 s a step, 0.1 s where it is
 * quickest", the op at which `rank` loses most; "" where no other rank has an op of this one. */
mf_status mf_pace_ops_text(mf_pace_ops *o, mf_comm *c, int64_t rank, char *text, size_t size,
                           mf_err *e);

#endif
