/* zero_beside.c - ZeRO-2 and -3 beside the neighbouring block: weights of the next block of a pass
 * are gathered while this one is at work, and gradients of this one are reduced beside the next.
 *
 * Both go on the queue of the DP stream. Gathered weights alternate between two buffers: a gather
 * waits for what compute has done when the block at work began, and so for the last reader of its
 * buffer. Gradients that wait to be reduced stand until the next block of the pass has ended
 * (core/memory/memory_place.c), where compute waits for their reduction. A pass ends with all of
 * its own done; its first block gathers for itself. */
#include "executor/step/exec.h"

/* Signals behind those of ops: of what was put off, of what was gathered ahead. */
static int deferred_slot(const mf_exec *x, int side) {
    return 1 + 2 * x->slots + side;
}

static int ahead_slot(const mf_exec *x, int side) {
    return 3 + 2 * x->slots + side;
}

bool mf_exec_is_gather(const mf_op *op, unsigned passes) {
    return mf_exec_is_zero_op(op) && op->kind == MF_OP_ALL_GATHER && (op->pass & passes) != 0;
}

bool mf_exec_defers_reductions(const mf_exec *x, const block_at *at, bool ends) {
    return at->streams != NULL && at->streams->reduces && !ends &&
           (x->p->layout.overlap & MF_OVERLAP_DP) != 0;
}

mf_status mf_exec_join_reductions(mf_exec *x, const block_at *at, bool deferred, mf_err *e) {
    bool *waits = &x->deferred[at->side];
    mf_status status = MF_OK;
    if (*waits) {
        *waits = false;
        status = mf_exec_device(x)->await(x->queue, deferred_slot(x, at->side), e);
    }
    if (deferred && status == MF_OK) {
        *waits = true;
        status = mf_exec_device(x)->signal(x->queues[MF_STREAM_DP], deferred_slot(x, at->side), e);
    }
    return status;
}

/* The weights of `position` into the buffer that its block will have, as one of its gathers. */
mf_status mf_exec_gather_ahead(mf_exec *x, const block_at *now, int position, unsigned passes,
                               mf_exec_run_fn run, mf_err *e) {
    const mf_block *b = x->positions[position].block;
    mf_queue *q = x->queues[MF_STREAM_DP];
    const int side = now->side;
    block_at next = {.position = position, .micro_batch = now->micro_batch, .side = side};
    bool any = false;
    mf_status status = MF_OK;
    next.gathered = x->gathered + (2 * side + x->gathers[side] % 2) * x->gathered_B;
    for (int i = 0; i < b->nops && now->streams != NULL && status == MF_OK; i++) {
        if (mf_exec_is_gather(&b->ops[i], passes)) {
            status = any ? MF_OK : mf_exec_device(x)->order(x->queue, q, e);
            status = status == MF_OK ? run(x, &next, i, q, e) : status;
            any = true;
        }
    }
    x->fetched[side] = any;
    return any && status == MF_OK ? mf_exec_device(x)->signal(q, ahead_slot(x, side), e) : status;
}

mf_status mf_exec_take_gathered(mf_exec *x, block_at *at, mf_err *e) {
    at->gathered_ahead = x->fetched[at->side];
    x->fetched[at->side] = false;
    return at->gathered_ahead ? mf_exec_device(x)->await(x->queue, ahead_slot(x, at->side), e)
                              : MF_OK;
}
