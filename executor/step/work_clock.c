/* work_clock.c - how long a device of several works in a step, by its own clock: the time in which
 * the queue of compute does ops of blocks, and waits neither for other queues nor for other ranks.
 *
 * On a device that works behind the host the host's clock does not tell: the ranks of a slow one
 * wait inside their collectives. The clock is turned by small kernels between ops (also in a
 * graph), where compute begins to wait and where it goes on: a few for each block.
 */
#include "executor/step/exec.h"

#include <string.h>

int mf_exec_span_ops(const mf_program *p) {
    int most = 0;
    for (int i = 0; i < p->nblocks; i++) {
        most = p->blocks[i]->nops > most ? p->blocks[i]->nops : most;
    }
    return most;
}

int64_t mf_exec_spans(const mf_program *p) {
    return (int64_t)p->assignment.positions * mf_exec_span_ops(p);
}

mf_status mf_exec_work_init(mf_exec *x, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    const int64_t size_B = mf_exec_spans(x->p) * (int64_t)sizeof(int64_t);
    void *memory = NULL;
    if (device->on_host || x->p->layout.gpus == 1) {
        return MF_OK;
    }
    mf_status status = device->allocate(x->device, size_B, &memory, e);
    x->work.span_ns = status == MF_OK ? memory : NULL;
    for (int64_t i = 0; i < mf_exec_ahead(x) && status == MF_OK; i++) {
        status = device->allocate_host(x->device, size_B, &memory, e);
        x->buffers[i].spans = status == MF_OK ? memory : NULL;
    }
    if (status == MF_OK) {
        memset(x->buffers[0].spans, 0, (size_t)size_B);
        status = mf_exec_put(x, x->work.span_ns, x->buffers[0].spans, (size_t)size_B, e);
    }
    return status;
}

void mf_exec_work_clear(mf_exec *x) {
    for (int i = 0; i < MF_DEVICE_POINTS; i++) {
        mf_exec_device(x)->release_host(x->device, x->buffers[i].spans);
    }
    mf_exec_device(x)->release(x->device, x->work.span_ns);
}

static mf_status turn(mf_exec *x, bool begins, const progress_place *here, mf_err *e) {
    mf_kernel_work_clock one = {.begins = begins, .state = x->update};
    if (x->work.span_ns == NULL || x->preparing || x->work.runs == begins) {
        return MF_OK;
    }
    if (begins) {
        x->work.span = (int64_t)here->position * mf_exec_span_ops(x->p) + here->op;
    }
    if (here != NULL && mf_exec_progress_next(x, here, &one.place)) {
        one.word = x->progress.word;
    }
    one.span_ns = x->work.span_ns + x->work.span;
    x->work.runs = begins;
    return mf_exec_device(x)->work_clock(x->queue, &one, e);
}

mf_status mf_exec_work_end(mf_exec *x, mf_err *e) {
    return turn(x, false, NULL, e);
}

mf_status mf_exec_work_awaits(mf_exec *x, const block_at *at, int op, const mf_queue *q,
                              mf_err *e) {
    const mf_op *one = &x->positions[at->position].block->ops[op];
    const bool waits =
        one->group != MF_GROUP_NONE || (at->streams != NULL && at->streams->order[op].awaits > 0);
    const progress_place here = {at->position, at->micro_batch, 0, op, PROGRESS_WAITS};
    return q == x->queue && waits ? turn(x, false, &here, e) : MF_OK;
}

mf_status mf_exec_work_on(mf_exec *x, const block_at *at, int op, const mf_queue *q, mf_err *e) {
    const mf_op *one = &x->positions[at->position].block->ops[op];
    const progress_place here = {at->position, at->micro_batch, 0, op, PROGRESS_WORKS};
    if (q != x->queue || one->group != MF_GROUP_NONE) {
        return MF_OK;
    }
    const mf_status status = turn(x, true, &here, e);
    return status == MF_OK ? mf_exec_progress_op(x, &here, e) : status;
}
