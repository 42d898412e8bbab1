/* zero.c - ZeRO-2 and ZeRO-3 inside a block: weights gathered for it, gradients reduced after it.
 */
#include "executor/step/exec.h"

bool mf_exec_is_zero_op(const mf_op *op) {
    return op->stream == MF_STREAM_DP && op->pass != MF_PASS_O &&
           (op->kind == MF_OP_ALL_GATHER || op->kind == MF_OP_REDUCE_SCATTER);
}

static int side_of(const mf_op *op) {
    return op->group == MF_GROUP_EDP;
}

/* Runs of a half that a block computes with: its own, and tables of other positions. */
typedef struct run_of_half {
    int position;
    int64_t begin, end; /* in the half */
    int64_t inner;      /* among the block's */
} run_of_half;

enum { RUNS = 8 };

static int runs_of(const mf_exec *x, int position, int side, run_of_half run[RUNS]) {
    const position_bind *q = &x->positions[position];
    int n = 0;
    if (mf_exec_range(x, position, side, &run[0].begin, &run[0].end)) {
        run[n].position = position;
        run[n++].inner = 0;
    }
    for (int16_t t = 0; t < q->block->ntensors && side == 0; t++) {
        const mf_tensor *w = &q->block->tensors[t];
        if (w->class == MF_TENSOR_WEIGHT && w->part == UINT8_MAX && q->param[t] >= 0 && n < RUNS) {
            const mf_param *p = &x->params.list[q->param[t]];
            run[n++] =
                (run_of_half){p->position, p->offset, p->offset + p->rows * p->cols, q->inner[t]};
        }
    }
    return n;
}

/* The part of a block's gathered weights or full gradients that belongs to a side. */
static char *side_part(const mf_exec *x, const block_at *at, char *from, int side, bool dense,
                       int64_t element_B) {
    const position_bind *q = &x->positions[at->position];
    int64_t dense_B = dense ? mf_align_B(element_B * (q->own[0] + q->block->shared)) : 0;
    return from + (side == 1 ? dense_B : 0);
}

static mf_status gather(mf_exec *x, const block_at *at, int side, mf_queue *q, mf_err *e) {
    run_of_half run[RUNS];
    int n = runs_of(x, at->position, side, run);
    int64_t counts[MF_COMM_MAX_GROUP] = {0};
    mf_group_kind group = mf_exec_zero_group(side);
    int64_t me = mf_comm_group_rank(x->comm, group);
    int64_t weight_B = mf_exec_weight_B(x);
    mf_comm_type type = x->weight_type == MF_KERNEL_BF16 ? MF_COMM_BF16 : MF_COMM_F32;
    char *to = side_part(x, at, at->gathered, side, mf_exec_shards_weights(x, 0), weight_B);
    mf_status status = MF_OK;
    for (int i = 0; i < n && status == MF_OK; i++) {
        char *all = to + weight_B * run[i].inner;
        int64_t before = 0;
        mf_exec_shares(x, run[i].position, side, run[i].begin, run[i].end, counts);
        for (int64_t k = 0; k < me; k++) {
            before += counts[k];
        }
        if (counts[me] > 0) {
            int64_t from = mf_exec_in_shard(x, run[i].position, side, run[i].begin + before);
            status = mf_exec_device(x)->copy(q, all + weight_B * before,
                                             mf_exec_weight_at(x, side, from),
                                             (size_t)(weight_B * counts[me]), e);
        }
        status =
            status == MF_OK ? mf_comm_all_gather_v(x->wire, group, type, all, counts, e) : status;
    }
    return status;
}

/* Do other positions add to some of this one's gradients, too? */
static bool has_shared(const mf_exec *x, int position, int side) {
    bool shared = false;
    for (int i = x->params.first[position]; i < x->params.first[position + 1]; i++) {
        const mf_param *p = &x->params.list[i];
        shared = shared || (p->expert == (side == 1) && p->shared);
    }
    return shared;
}

mf_status mf_exec_zero_clear(mf_exec *x, int side, mf_err *e) {
    const int positions = x->p->assignment.positions;
    mf_status status = MF_OK;
    memset(x->reduced[side], 0, (size_t)positions * sizeof *x->reduced[side]);
    for (int i = 0; i < positions && status == MF_OK; i++) {
        const owned_part *own = &x->positions[i].owned[side];
        if (own->end > own->begin && has_shared(x, i, side)) {
            status = mf_exec_zero_out(x, x->gradients[side] + own->at,
                                      (size_t)(own->end - own->begin) * sizeof(float), e);
            x->reduced[side][i] = true;
        }
    }
    return status;
}

/* The first micro-batch's sums go to the shard itself, those of others are added to it. */
static mf_status reduce(mf_exec *x, const block_at *at, int side, mf_queue *q, mf_err *e) {
    run_of_half run[RUNS];
    int n = runs_of(x, at->position, side, run);
    int64_t counts[MF_COMM_MAX_GROUP] = {0};
    mf_group_kind group = mf_exec_zero_group(side);
    int64_t me = mf_comm_group_rank(x->comm, group);
    bool dense = mf_exec_shards_gradients(x, 0);
    float *from = (float *)(void *)side_part(x, at, at->gradients, side, dense, 4);
    mf_status status = MF_OK;
    for (int i = 0; i < n && status == MF_OK; i++) {
        int64_t before = 0;
        mf_exec_shares(x, run[i].position, side, run[i].begin, run[i].end, counts);
        for (int64_t k = 0; k < me; k++) {
            before += counts[k];
        }
        float *own =
            x->gradients[side] + mf_exec_in_shard(x, run[i].position, side, run[i].begin + before);
        bool *stands = &x->reduced[side][run[i].position];
        float *sums = *stands ? x->env.scratch : own;
        status = mf_comm_reduce_scatter(x->wire, group, MF_COMM_F32, from + run[i].inner, sums,
                                        counts, e);
        const mf_kernel_cast add = {
            .count = counts[me], .alpha = 1.0f, .accumulate = true, .src = sums, .dst = own};
        if (status == MF_OK && *stands && counts[me] > 0) {
            status = mf_exec_device(x)->cast(q, &add, e);
        }
        *stands = true;
    }
    return status;
}

mf_status mf_exec_zero_op(mf_exec *x, const block_at *at, const mf_op *op, mf_queue *q, mf_err *e) {
    return op->kind == MF_OP_ALL_GATHER ? gather(x, at, side_of(op), q, e)
                                        : reduce(x, at, side_of(op), q, e);
}

/* Weight gradients that B produces and a separate W reduces: clears their holding buffer before B
 * (begin), or moves them from it to where W reduces. */
static mf_status early_gradients(mf_exec *x, const block_at *at, bool begin, mf_err *e) {
    const mf_block *b = x->positions[at->position].block;
    mf_status status = MF_OK;
    for (int16_t t = 0; t < b->ntensors && status == MF_OK; t++) {
        if (b->tensors[t].class != MF_TENSOR_GRADIENT || !b->tensors[t].for_w) {
            continue;
        }
        void *waits = mf_exec_address(x, at, t, MF_PASS_B);
        size_t size_B = (size_t)(b->tensors[t].rows * b->tensors[t].cols) * sizeof(float);
        status = begin ? mf_exec_zero_out(x, waits, size_B, e)
                       : mf_exec_copy(x, mf_exec_address(x, at, t, MF_PASS_W), waits, size_B, e);
    }
    return status;
}

/* What a block's ops add to begins at zero, all but the gradients that the first op of each writes
 * whole. */
static mf_status clear_unreduced(mf_exec *x, const block_at *at, mf_err *e) {
    const mf_block *b = x->positions[at->position].block;
    char *from = at->gradients;
    char *const end = from + (int64_t)mf_memory_unreduced_B(&x->p->layout, b);
    mf_status status = MF_OK;
    while (from < end && status == MF_OK) {
        char *written = end; /* the first such gradient from here on */
        int64_t written_B = 0;
        for (int16_t t = 0; t < b->ntensors; t++) {
            const mf_tensor *g = &b->tensors[t];
            char *const place =
                g->class == MF_TENSOR_GRADIENT && mf_exec_overwrites(x, at->position, t)
                    ? mf_exec_address(x, at, t, MF_PASS_W)
                    : NULL;
            if (place != NULL && place >= from && place < written) {
                written = place;
                written_B = g->rows * g->cols * (int64_t)sizeof(float);
            }
        }
        status = written > from ? mf_exec_zero_out(x, from, (size_t)(written - from), e) : MF_OK;
        from = written + written_B;
    }
    return status;
}

mf_status mf_exec_zero_begin(mf_exec *x, const block_at *at, unsigned passes, mf_err *e) {
    mf_status status = MF_OK;
    if ((passes & MF_PASS_W) != 0 && at->gradients != NULL) {
        status = clear_unreduced(x, at, e);
    }
    bool split = (passes & (MF_PASS_B | MF_PASS_W)) != (MF_PASS_B | MF_PASS_W);
    return status == MF_OK && split ? early_gradients(x, at, (passes & MF_PASS_B) != 0, e) : status;
}
