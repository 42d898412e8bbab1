/* offload_beside.c - activations that wait in host memory travel beside the neighbouring block of a
 * pass: to the host while the next block's forward is at work, back while the block in front of
 * theirs is, in the order of the backward pass.
 *
 * Their own memory is the block's workspace, which the neighbour takes over. So at the end of a
 * forward block compute copies them to a place of their own, from where they leave on the queue of
 * D2H; and they come on the queue of H2D to such a place, from where compute copies them when their
 * block begins (core/memory/memory_place.c). Compute waits for what leaves at the next block's end,
 * before it may copy to the same place again, and for what comes where its block begins; what comes
 * waits for compute at the beginning of the block that it comes beside, and so for the last copy
 * out of its place.
 *
 * A pass ends with all of its own done: its last block's tensors leave as they are made, and the
 * first block of a backward pass fetches for itself, before it fetches for the next. */
#include "executor/step/exec.h"

/* The signal of a block's own copies from the host, behind those of positions (reduce_beside.c). */
static int fetch_own_slot(const mf_exec *x, int side) {
    return 5 + 2 * x->slots + x->p->assignment.positions + side;
}

static bool is_copy(const mf_op *op) {
    return op->kind == MF_OP_COPY_D2H || op->kind == MF_OP_COPY_H2D;
}

static bool comes(const block_at *at) {
    return at->work->coming >= 0;
}

bool mf_exec_is_fetch(const mf_op *op) {
    return op->kind == MF_OP_COPY_H2D;
}

bool mf_exec_copied_beside(const block_at *at, const mf_op *op) {
    return is_copy(op) && (at->staging != NULL || (mf_exec_is_fetch(op) && at->fetches_own));
}

/* Compute copies between the block's own tensors and their place on the way. */
static mf_status stage(const mf_exec *x, const block_at *at, mf_op_kind kind, mf_err *e) {
    const position_bind *q = &x->positions[at->position];
    const bool out = kind == MF_OP_COPY_D2H;
    mf_status status = MF_OK;
    for (int i = 0; i < q->block->nops && status == MF_OK; i++) {
        const mf_op *op = &q->block->ops[i];
        if (op->kind == kind) {
            const int16_t t = out ? op->in[0] : op->out[0];
            void *own = mf_exec_address(x, at, t, op->pass);
            char *place = at->staging + q->bind->host_at[i];
            status = mf_exec_copy(x, out ? place : own, out ? own : place,
                                  (size_t)q->block->tensors[t].bytes, e);
        }
    }
    return status;
}

/* All copies of a block in one direction; q NULL: on the queue that the block has for them. */
static mf_status run_copies(mf_exec *x, const block_at *at, mf_op_kind kind, mf_queue *q,
                            mf_exec_run_fn run, mf_err *e) {
    const mf_block *b = x->positions[at->position].block;
    mf_status status = MF_OK;
    for (int i = 0; i < b->nops && status == MF_OK; i++) {
        status = b->ops[i].kind == kind ? run(x, at, i, q, e) : MF_OK;
    }
    return status;
}

mf_status mf_exec_take_copies(mf_exec *x, const block_at *at, mf_err *e) {
    if (at->staging == NULL || !comes(at)) {
        return MF_OK;
    }
    mf_status status = mf_exec_device(x)->order(x->queues[MF_STREAM_H2D], x->queue, e);
    return status == MF_OK ? stage(x, at, MF_OP_COPY_H2D, e) : status;
}

mf_status mf_exec_fetch_own(mf_exec *x, block_at *at, unsigned passes, mf_exec_run_fn run,
                            mf_err *e) {
    if (at->streams == NULL || at->staging != NULL || (passes & MF_PASS_B) == 0 ||
        x->positions[at->position].block->offload_B == 0) {
        return MF_OK;
    }
    mf_status status = run_copies(x, at, MF_OP_COPY_H2D, NULL, run, e);
    at->fetches_own = true;
    if (status == MF_OK && (at->streams->joins >> MF_STREAM_H2D & 1) != 0) {
        status =
            mf_exec_device(x)->signal(x->queues[MF_STREAM_H2D], fetch_own_slot(x, at->side), e);
    }
    return status;
}

mf_status mf_exec_fetch_ahead(mf_exec *x, const block_at *next, mf_exec_run_fn run, mf_err *e) {
    mf_queue *q = x->queues[MF_STREAM_H2D];
    if (next->staging == NULL || !comes(next)) {
        return MF_OK;
    }
    mf_status status = mf_exec_device(x)->order(x->queue, q, e);
    return status == MF_OK ? run_copies(x, next, MF_OP_COPY_H2D, q, run, e) : status;
}

mf_status mf_exec_join_copies(mf_exec *x, const block_at *at, mf_err *e) {
    mf_status status = MF_OK;
    for (int s = MF_STREAM_D2H; s <= MF_STREAM_H2D && status == MF_OK; s++) {
        if ((at->streams->joins >> s & 1) == 0 || at->staging != NULL) {
            continue;
        }
        if (s == MF_STREAM_H2D && at->fetches_own) {
            status = mf_exec_device(x)->await(x->queue, fetch_own_slot(x, at->side), e);
        } else if (s != MF_STREAM_D2H || !x->leaving) { /* mf_exec_start_offload waits for it */
            status = mf_exec_device(x)->order(x->queues[s], x->queue, e);
        }
    }
    return status;
}

mf_status mf_exec_start_offload(mf_exec *x, const block_at *at, mf_exec_run_fn run, mf_err *e) {
    mf_queue *q = x->queues[MF_STREAM_D2H];
    mf_status status = x->leaving ? mf_exec_device(x)->order(q, x->queue, e) : MF_OK;
    x->leaving = at->staging != NULL && !comes(at);
    if (x->leaving && status == MF_OK) {
        status = stage(x, at, MF_OP_COPY_D2H, e);
        status = status == MF_OK ? mf_exec_device(x)->order(x->queue, q, e) : status;
        status = status == MF_OK ? run_copies(x, at, MF_OP_COPY_D2H, q, run, e) : status;
    }
    return status;
}
