/* block.c - the passes of one block (or of a merged pair) as ops with prices, played on streams.
 *
 * Ops that belong to the neighbouring block in time (prefetched ZeRO-3 gathers, offload copies,
 * gradient reductions of ZeRO-2/3 when data-parallel communication may overlap) play beside the
 * block from its start, wait for nothing and are waited for only by its end: in a run of equal
 * blocks each carries its neighbour's.
 */
#include "simulator/play.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDES = 2, PASSES = 4 };

/* Who writes a tensor: the last op, and how many pieces of one overlapped op before and with it. */
typedef struct writer {
    int op;     /* -1 = outside, or a neighbour's op */
    int pieces; /* 1, or the length of a run of overlapped writers that nothing has read yet */
    int taken[PASSES]; /* pieces that overlapped readers of a pass have taken */
    bool read;
} writer;

typedef struct block_play {
    mf_play play;
    const mf_cost *cost;
    const mf_layout *l;
    double load;
    int *deps, ndeps;
    int *before;           /* [n] of a piece: the piece before it; -1 */
    mf_merged_op *order;   /* [n] side and index of each op */
    writer *writer[SIDES]; /* [tensors] */
} block_play;

/* --- the sequence ----------------------------------------------------------------------------- */

static bool detached(const mf_layout *l, const mf_op *op) {
    if (op->stream == MF_STREAM_DP) {
        return (l->overlap & MF_OVERLAP_DP) != 0;
    }
    return op->stream == MF_STREAM_D2H || (op->flags & MF_OPF_PREFETCH) != 0;
}

static int pass_index(uint8_t pass) {
    return pass == MF_PASS_F ? 0 : pass == MF_PASS_R ? 1 : pass == MF_PASS_B ? 2 : 3;
}

/* The op that makes tensor t for `op`. Piece i of an overlapped op waits for piece i of what it
 * reads, every other op for all pieces: they are in order on one stream. */
static int maker_of(block_play *b, uint8_t side, int16_t t, const mf_op *op) {
    assert(b->writer[side] != NULL);
    writer *w = &b->writer[side][t];
    int i = w->op;
    w->read = true;
    if (i >= 0 && w->pieces > 1 && (op->flags & MF_OPF_OVERLAPPED)) {
        int piece = w->taken[pass_index(op->pass)]++;
        for (int back = w->pieces - 1 - piece; back > 0; back--) {
            i = b->before[i];
        }
    }
    return i;
}

static void note_writer(block_play *b, uint8_t side, int16_t t, int i, const mf_op *op) {
    assert(b->writer[side] != NULL);
    writer *w = &b->writer[side][t];
    bool piece = (op->flags & MF_OPF_OVERLAPPED) != 0;
    const mf_op *last = w->op >= 0 ? b->play.ops[w->op].op : NULL;
    bool goes_on = piece && last != NULL && !w->read && (last->flags & MF_OPF_OVERLAPPED) &&
                   last->kind == op->kind && last->pass == op->pass;
    b->before[i] = goes_on ? w->op : -1;
    *w = (writer){.op = i, .pieces = goes_on ? w->pieces + 1 : 1};
}

static void price(block_play *b, mf_play_op *q) {
    const mf_op *op = q->op;
    mf_price p;
    mf_cost_op(b->cost, op, b->load, &p);
    q->alone_s = p.time_s;
    q->low_s = p.low_s;
    q->high_s = p.high_s;
    q->link = p.link;
    q->link_share = p.link_share;
    q->sm_share = p.sm_share;
    if (op->stream != MF_STREAM_COMPUTE && p.time_s > 0) {
        /* What travels is read and written once in device memory; copies to or from the host only
         * one of both. */
        double bytes = op->bytes * (op->flags & MF_OPF_ROUTED ? b->load : 1.0);
        bool copy = op->stream == MF_STREAM_D2H || op->stream == MF_STREAM_H2D;
        q->memory_Bps = (copy ? 1.0 : 2.0) * bytes / p.time_s;
    }
}

static void add_op(block_play *b, const mf_block *block, uint8_t side, int16_t index) {
    const mf_op *op = &block->ops[index];
    int i = b->play.n++;
    bool apart = detached(b->l, op);
    mf_play_op *q = &b->play.ops[i];
    *q = (mf_play_op){
        .op = op, .stream = op->stream, .pass = op->pass, .first_dep = b->ndeps, .issue_s = 0};
    price(b, q);
    b->order[i] = (mf_merged_op){side, index};
    for (int k = 0; k < op->nin && !apart; k++) {
        int maker = maker_of(b, side, op->in[k], op);
        if (maker >= 0) {
            b->deps[b->ndeps++] = maker;
        }
    }
    q->ndeps = b->ndeps - q->first_dep;
    for (int k = 0; k < op->nout && !apart; k++) {
        note_writer(b, side, op->out[k], i, op);
    }
}

static void block_play_clear(block_play *b) {
    free(b->play.ops);
    free(b->play.next_of);
    free(b->deps);
    free(b->before);
    free(b->order);
    free(b->writer[0]);
    free(b->writer[1]);
}

static mf_status allocate(block_play *b, const mf_block *block, const mf_block *beside, mf_err *e) {
    size_t most = (size_t)block->nops + (beside ? (size_t)beside->nops : 0) + 1;
    b->play.ops = malloc(most * sizeof *b->play.ops);
    b->play.next_of = malloc(most * sizeof *b->play.next_of);
    b->deps = malloc(most * MF_OP_MAX_IN * sizeof *b->deps);
    b->before = malloc(most * sizeof *b->before);
    b->order = malloc(most * sizeof *b->order);
    bool ok = b->play.ops && b->play.next_of && b->deps && b->before && b->order;
    for (int s = 0; s < (beside ? 2 : 1) && ok; s++) {
        size_t tensors = (size_t)(s ? beside : block)->ntensors + 1;
        b->writer[s] = calloc(tensors, sizeof *b->writer[s]);
        ok = b->writer[s] != NULL;
        for (size_t t = 0; t < tensors && ok; t++) {
            b->writer[s][t].op = -1;
        }
    }
    return ok ? MF_OK : mf_err_set(e, MF_NOMEM, "simulation: out of memory");
}

static double slowdown(void *user, int i, double sm_share, double memory_Bps) {
    const block_play *b = user;
    return mf_cost_compute_slowdown(b->cost, b->play.ops[i].op, fmin(sm_share, 0.9), memory_Bps);
}

static void set_exposed(block_play *b) {
    static const struct {
        mf_stream stream;
        int overlap; /* place in mf_software.overlap_exposed */
    } share[] = {{MF_STREAM_EP, 0},
                 {MF_STREAM_TP, 1},
                 {MF_STREAM_DP, 2},
                 {MF_STREAM_PP, 3},
                 {MF_STREAM_CP, 4}};
    for (size_t i = 0; i < sizeof share / sizeof share[0]; i++) {
        b->play.exposed[share[i].stream] =
            mf_cost_software(b->cost)->overlap_exposed[share[i].overlap];
    }
    /* Inside a block data parallelism is ZeRO-3's, or a reduction per micro-batch. */
    double prefetch = mf_cost_software(b->cost)->prefetch_exposed;
    if (prefetch > 0) {
        b->play.exposed[MF_STREAM_DP] = prefetch;
    }
}

static mf_status build(block_play *b, const mf_block *block, unsigned passes,
                       const mf_block *beside, mf_err *e) {
    mf_status status = allocate(b, block, beside, e);
    if (status != MF_OK) {
        return status;
    }
    if (beside != NULL) {
        int n = mf_block_merge(block, beside, b->order);
        for (int i = 0; i < n; i++) {
            mf_merged_op m = b->order[i];
            add_op(b, m.side ? beside : block, m.side, m.op);
        }
    } else {
        for (int16_t i = 0; i < block->nops; i++) {
            if (block->ops[i].pass & passes) {
                add_op(b, block, 0, i);
            }
        }
    }
    b->play.deps = b->deps;
    b->play.slowdown = slowdown;
    b->play.user = b;
    set_exposed(b);
    return MF_OK;
}

/* --- results ---------------------------------------------------------------------------------- */

static mf_status keep(const block_play *b, mf_block_time *out, mf_err *e) {
    out->op = malloc(((size_t)b->play.n + 1) * sizeof *out->op);
    if (out->op == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    for (int i = 0; i < b->play.n; i++) {
        const mf_play_op *q = &b->play.ops[i];
        out->op[i] = (mf_op_time){b->order[i].side, b->order[i].op, q->start_s, q->end_s, 0};
    }
    return MF_OK;
}

/* Issue times from the start of the block; returns when the last op is issued. */
static double issue(block_play *b, bool pair) {
    double host = 0;
    if (b->play.n > 0) { /* the embedding has no input gradient */
        host = mf_cost_host_block_s(b->cost, b->l->graph) * (pair ? 2.0 : 1.0);
    }
    for (int i = 0; i < b->play.n; i++) {
        host += mf_cost_host_s(b->cost, b->play.ops[i].op, b->l->graph);
        b->play.ops[i].issue_s = host;
    }
    return host;
}

/* Where the host has to see what the device made, the device idles until the host catches up. */
static void add_syncs(const block_play *b, mf_block_time *out) {
    double sync = 0;
    for (int i = 0; i < b->play.n; i++) {
        sync += mf_cost_host_sync_s(b->cost, b->play.ops[i].op, b->l->graph);
    }
    out->gpu_time_s += sync;
    out->time_s += sync;
    out->low_s += sync;
    out->high_s += sync;
    out->class_s[MF_BD_HOST] += sync;
}

mf_status mf_sim_block(const mf_cost *cost, const mf_layout *l, const mf_block *b, unsigned passes,
                       const mf_block *beside, double load, bool keep_ops, mf_block_time *out,
                       mf_err *e) {
    memset(out, 0, sizeof *out);
    block_play p = {.cost = cost, .l = l, .load = load};
    mf_status status = build(&p, b, passes, beside, e);
    if (status != MF_OK) {
        goto done;
    }
    mf_play_run(&p.play); /* the host far ahead */
    out->gpu_time_s = p.play.time_s;
    out->compute_s = p.play.compute_s;
    out->low_s = p.play.low_s;
    out->high_s = p.play.high_s;
    memcpy(out->class_s, p.play.class_s, sizeof out->class_s);
    out->nops = p.play.n;
    for (int i = 0; i < p.play.n; i++) {
        out->link_s[p.play.ops[i].link] += p.play.ops[i].alone_s * p.play.ops[i].link_share;
    }
    if (keep_ops && (status = keep(&p, out, e)) != MF_OK) {
        goto done;
    }
    out->host_s = issue(&p, beside != NULL);
    for (int i = 0; i < p.play.n && keep_ops; i++) {
        out->op[i].host_s = p.play.ops[i].issue_s;
    }
    out->time_s = out->gpu_time_s;
    if (out->host_s > 0) { /* again, the host starting with the block */
        mf_play_run(&p.play);
        /* A late issue may keep communication from running beside compute, to the gain of both. */
        out->time_s = fmax(out->gpu_time_s, p.play.time_s);
    }
    add_syncs(&p, out);
done:
    block_play_clear(&p);
    if (status != MF_OK) {
        mf_block_time_clear(out);
    }
    return status;
}

mf_status mf_sim_block_gpu_s(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                             unsigned passes, const mf_block *beside, double load, double *out,
                             mf_err *e) {
    block_play p = {.cost = cost, .l = l, .load = load};
    mf_block_time t = {.gpu_time_s = 0};
    mf_status status = build(&p, b, passes, beside, e);
    if (status == MF_OK) {
        mf_play_run(&p.play);
        t.gpu_time_s = p.play.time_s;
        add_syncs(&p, &t);
        *out = t.gpu_time_s;
    }
    block_play_clear(&p);
    return status;
}

void mf_block_time_clear(mf_block_time *t) {
    free(t->op);
    t->op = NULL;
}

double mf_sim_block_bound(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                          unsigned passes, double load) {
    block_play p = {.cost = cost, .l = l, .load = load};
    double bound = 0;
    if (build(&p, b, passes, NULL, NULL) == MF_OK) {
        double *end = malloc(((size_t)p.play.n + 1) * sizeof *end);
        bound = end != NULL ? mf_play_bound(&p.play, end) : 0;
        free(end);
    }
    block_play_clear(&p);
    return bound;
}
