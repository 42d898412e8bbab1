/* work_clock.c - how long a device of several works in a step, by its own clock: the time in which
 * the queue of compute does ops of blocks, and waits neither for other queues nor for other ranks.
 *
 * On a device that works behind the host the host's clock does not tell: the ranks of a slow one
 * wait inside their collectives. The clock is turned by small kernels between ops (also in a
 * graph), where compute begins to wait and where it goes on: a few for each block.
 */
#include "executor/step/exec.h"

static bool is_timed(const mf_exec *x) {
    return !x->preparing && !mf_exec_device(x)->on_host && x->p->layout.gpus > 1;
}

mf_status mf_exec_work(mf_exec *x, bool works, mf_err *e) {
    const mf_kernel_work_clock turn = {.begins = works, .state = x->update};
    if (!is_timed(x) || x->works == works) {
        return MF_OK;
    }
    x->works = works;
    return mf_exec_device(x)->work_clock(x->queue, &turn, e);
}

mf_status mf_exec_work_awaits(mf_exec *x, const block_at *at, int op, const mf_queue *q,
                              mf_err *e) {
    const mf_op *one = &x->positions[at->position].block->ops[op];
    const bool waits =
        one->group != MF_GROUP_NONE || (at->streams != NULL && at->streams->order[op].awaits > 0);
    return q == x->queue && waits ? mf_exec_work(x, false, e) : MF_OK;
}

mf_status mf_exec_work_on(mf_exec *x, const mf_op *op, const mf_queue *q, mf_err *e) {
    return q == x->queue && op->group == MF_GROUP_NONE ? mf_exec_work(x, true, e) : MF_OK;
}
