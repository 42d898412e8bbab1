/* block_build.c - the passes of one block (or of a merged pair) as ops with prices and what each
 * waits for. */
#include "simulator/block_build.h"

#include "core/base/scratch.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* --- the sequence ----------------------------------------------------------------------------- */

static bool detached(const mf_block_play *b, const mf_op *op) {
    const bool own =
        (b->own_out && op->stream == MF_STREAM_D2H) || (b->own_in && op->stream == MF_STREAM_H2D);
    return !own && mf_sim_detached(b->l, op);
}

static bool split_alike(const mf_op *a, const mf_op *b) {
    return mf_op_split_axis(a) == mf_op_split_axis(b) && a->pieces == b->pieces;
}

/* The op that makes tensor t for `op`. A piece waits for the same piece of what is split alike,
 * every other op for the last writer: pieces are in order on one stream. */
static int maker_of(const mf_block_play *b, uint8_t side, int16_t t, const mf_op *op) {
    assert(b->writer[side] != NULL);
    int last = b->writer[side][t], i = mf_op_split_axis(op) == MF_SPLIT_NONE ? -1 : last;
    while (i >= 0 &&
           !(split_alike(b->play.ops[i].op, op) && b->play.ops[i].op->piece == op->piece)) {
        i = b->before[i];
    }
    return i >= 0 ? i : last;
}

/* The op of another stream that wrote t before and that this one adds to; -1: pieces write slices
 * of their own, and a stream keeps its order. */
static int note_writer(mf_block_play *b, uint8_t side, int16_t t, int i, const mf_op *op) {
    assert(b->writer[side] != NULL);
    int at = b->writer[side][t];
    const mf_op *last = at >= 0 ? b->play.ops[at].op : NULL;
    bool goes_on = last != NULL && mf_op_split_axis(op) != MF_SPLIT_NONE && split_alike(last, op) &&
                   last->kind == op->kind && last->pass == op->pass;
    b->before[i] = goes_on ? at : -1;
    b->writer[side][t] = i;
    return last != NULL && !goes_on && last->stream != op->stream ? at : -1;
}

/* As mf_block_price, of an op with this price. */
static void take_price(const mf_cost *cost, const mf_op *op, double load, mf_price p,
                       mf_play_op *q) {
    const double signal_s = mf_cost_signal_s(cost, op, &p);
    q->alone_s = p.time_s + signal_s;
    q->low_s = p.low_s + signal_s;
    q->high_s = p.high_s + signal_s;
    q->link = p.link;
    q->link_share = p.link_share;
    q->sm_share = p.sm_share;
    q->memory_Bps = 0;
    memset(q->loss, 0, sizeof q->loss);
    if (op->stream != MF_STREAM_COMPUTE && p.time_s > 0) {
        /* A message is read once and written once in device memory; a copy to or from the host does
         * one of the two. */
        double bytes = op->bytes * (op->flags & MF_OPF_ROUTED ? load : 1.0);
        bool copy = op->stream == MF_STREAM_D2H || op->stream == MF_STREAM_H2D;
        q->memory_Bps = (copy ? 1.0 : 2.0) * bytes / p.time_s;
    }
    for (int w = 0; w < MF_PLAY_WORKS; w++) {
        q->loss[w] = (mf_play_loss){0, 0};
        /* Measured inside a domain; over the network the network is what communication waits for.
         */
        if (p.link == MF_LINK_SCALEUP) {
            mf_cost_comm_slowdown(cost, op, w == MF_PLAY_MEMORY, &q->loss[w].factor,
                                  &q->loss[w].wait_s);
        }
    }
    if (op->stream == MF_STREAM_COMPUTE) {
        if ((op->flags & MF_OPF_ROUTED) && (load < 1 || load > 1)) {
            mf_cost_op(cost, op, 1, &p);
        }
        q->memory_share = mf_cost_memory_share(cost, op, p.time_s);
        q->work = mf_op_kind_class((mf_op_kind)op->kind) == MF_CLASS_MEMORY ? MF_PLAY_MEMORY
                                                                            : MF_PLAY_PRODUCT;
    }
}

void mf_block_price(const mf_cost *cost, const mf_op *op, double load, mf_play_op *q) {
    mf_price p;
    mf_cost_op(cost, op, load, &p);
    take_price(cost, op, load, p, q);
}

double mf_block_staged_s(const mf_cost *cost, const mf_op *op, double load) {
    const bool copy = op->stream == MF_STREAM_D2H || op->stream == MF_STREAM_H2D;
    if (!copy || !(mf_cost_software(cost)->copies_in_pass > 0) ||
        mf_cluster_is_cpu(mf_cost_cluster(cost))) {
        return 0;
    }
    const mf_op both = {.kind = MF_OP_SPLIT,
                        .stream = MF_STREAM_COMPUTE,
                        .flags = (op->flags & MF_OPF_ROUTED),
                        .bytes = 2 * op->bytes};
    mf_price p;
    mf_cost_op(cost, &both, load, &p);
    return p.time_s;
}

static void add_op(mf_block_play *b, const mf_block *block, uint8_t side, int16_t index) {
    const mf_op *op = &block->ops[index];
    int i = b->play.n++;
    bool apart = detached(b, op);
    mf_play_op *q = &b->play.ops[i];
    take_price(b->cost, op, b->load, b->price[side][index], q);
    const double slowed = mf_cost_slowed(b->cost, op, b->stretch[side]);
    q->alone_s *= slowed;
    q->low_s *= slowed;
    q->high_s *= slowed;
    q->op = op;
    q->stream = op->stream;
    q->pass = op->pass;
    q->first_dep = b->ndeps;
    q->issue_s = 0;
    b->order[i] = (mf_merged_op){side, index};
    for (int k = 0; k < op->nin && !apart; k++) {
        int maker = maker_of(b, side, op->in[k], op);
        if (maker >= 0) {
            b->deps[b->ndeps++] = maker;
        }
    }
    for (int k = 0; k < op->nout && !apart; k++) {
        int before = note_writer(b, side, op->out[k], i, op);
        if (before >= 0) {
            b->deps[b->ndeps++] = before;
        }
    }
    q->ndeps = b->ndeps - q->first_dep;
}

void mf_block_play_clear(mf_block_play *b) {
    mf_scratch_give(b->play.ops);
    mf_scratch_give(b->play.next_of);
    mf_scratch_give(b->deps);
    mf_scratch_give(b->before);
    mf_scratch_give(b->order);
    mf_scratch_give(b->writer[0]);
    mf_scratch_give(b->writer[1]);
    mf_scratch_give(b->price[0]);
    mf_scratch_give(b->price[1]);
}

/* Prices of all ops, and the clock that the block holds under the power cap. Its passes hold the
 * same clock, so ops of all passes count. False: out of memory. */
static bool price_ops(mf_block_play *b, const mf_block *block, int side) {
    const size_t n = (size_t)block->nops + 1;
    mf_price *price = mf_scratch_take(n * sizeof *price);
    double *op_s = mf_scratch_take(n * sizeof *op_s);
    b->price[side] = price;
    if (price && op_s) {
        mf_cost_ops(b->cost, block->ops, block->nops, b->load, price);
        for (int i = 0; i < block->nops; i++) {
            op_s[i] = price[i].time_s;
        }
        b->stretch[side] = mf_cost_stretch(b->cost, block, b->load, op_s);
    }
    mf_scratch_give(op_s);
    return price && op_s;
}

mf_status mf_block_play_init(mf_block_play *b, const mf_block *block, const mf_block *beside,
                             mf_err *e) {
    size_t most = (size_t)block->nops + (beside ? (size_t)beside->nops : 0) + 1;
    b->play.ops = mf_scratch_take(most * sizeof *b->play.ops);
    b->play.next_of = mf_scratch_take(most * sizeof *b->play.next_of);
    b->deps = mf_scratch_take(most * (MF_OP_MAX_IN + MF_OP_MAX_OUT) * sizeof *b->deps);
    b->before = mf_scratch_take(most * sizeof *b->before);
    b->order = mf_scratch_take(most * sizeof *b->order);
    bool ok = b->play.ops && b->play.next_of && b->deps && b->before && b->order;
    for (int s = 0; s < (beside ? 2 : 1) && ok; s++) {
        size_t tensors = (size_t)(s ? beside : block)->ntensors + 1;
        b->writer[s] = mf_scratch_take(tensors * sizeof *b->writer[s]);
        ok = b->writer[s] != NULL;
        for (size_t t = 0; t < tensors && ok; t++) {
            b->writer[s][t] = -1;
        }
    }
    for (int s = 0; s < (beside ? 2 : 1) && ok; s++) {
        ok = price_ops(b, s ? beside : block, s);
    }
    return ok ? MF_OK : mf_err_set(e, MF_NOMEM, "simulation: out of memory");
}

static double slowdown(void *user, int i, double sm_share, double memory_Bps) {
    const mf_block_play *b = user;
    return mf_cost_slowdown(b->cost, b->play.ops[i].memory_share, fmin(sm_share, 0.9), memory_Bps);
}

void mf_block_exposed(const mf_cost *cost, double exposed[MF_STREAM_COUNT], double *inside) {
    static const struct {
        mf_stream stream;
        int overlap; /* place in mf_software.overlap_exposed */
    } streams[] = {{MF_STREAM_EP, 0},
                   {MF_STREAM_TP, 1},
                   {MF_STREAM_DP, 2},
                   {MF_STREAM_PP, 3},
                   {MF_STREAM_CP, 4}};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        exposed[streams[i].stream] = mf_cost_software(cost)->overlap_exposed[streams[i].overlap];
    }
    /* Inside a block data parallelism is ZeRO-3's, or a reduction per micro-batch. */
    const mf_software *s = mf_cost_software(cost);
    if (s->prefetch_exposed > 0) {
        exposed[MF_STREAM_DP] = s->prefetch_exposed;
    }
    *inside = s->prefetch_inside > 0 ? s->prefetch_inside : exposed[MF_STREAM_DP];
}

int mf_block_play_add(mf_block_play *b, const mf_block *block, unsigned passes) {
    int n = b->play.n;
    for (int t = 0; t < block->ntensors; t++) {
        b->writer[0][t] = -1;
    }
    for (int16_t i = 0; i < block->nops; i++) {
        if (block->ops[i].pass & passes) {
            add_op(b, block, 0, i);
        }
    }
    return b->play.n - n;
}

mf_status mf_block_play_build(mf_block_play *b, const mf_block *block, unsigned passes,
                              const mf_block *beside, mf_err *e) {
    mf_status status = mf_block_play_init(b, block, beside, e);
    if (status != MF_OK) {
        return status;
    }
    b->own_out = (passes & MF_SIM_LAST) != 0;
    b->own_in = (passes & MF_SIM_FIRST) != 0;
    if (beside != NULL) {
        int n = mf_block_merge(block, beside, b->order);
        for (int i = 0; i < n; i++) {
            mf_merged_op m = b->order[i];
            add_op(b, m.side ? beside : block, m.side, m.op);
        }
    } else {
        mf_block_play_add(b, block, passes);
    }
    b->play.deps = b->deps;
    b->play.slowdown = slowdown;
    b->play.user = b;
    mf_block_exposed(b->cost, b->play.exposed, &b->play.exposed_inside);
    return MF_OK;
}
