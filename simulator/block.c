/* block.c - one block played op by op on its streams.
 *
 * Each stream runs its ops in issue order, one at a time; an op starts when its inputs are made and
 * the host has issued it. What runs together shares: communication on one kind of link divides it
 * in proportion to what each op would use, and compute beside communication slows down by what the
 * cost model says (SMs, memory bandwidth), at least by the software profile's exposed share.
 *
 * Ops that belong to the neighbouring block in time (prefetched ZeRO-3 gathers, offload copies,
 * gradient reductions of ZeRO-2/3 when data-parallel communication may overlap) play beside the
 * block from its start, wait for nothing and are waited for only by its end: in a run of equal
 * blocks each carries its neighbour's.
 */
#include "simulator/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct play_op {
    const mf_op *op;
    uint8_t side;
    int16_t index;
    bool detached;
    int ndeps;
    int deps[MF_OP_MAX_IN + 1]; /* places in the sequence */
    double alone_s, sm_share, link_share, memory_Bps;
    uint8_t link;
    double host_s;         /* issued at */
    double left;           /* work left, in seconds alone */
    double start_s, end_s; /* < 0 until it happens */
} play_op;

typedef struct player {
    const mf_cost *cost;
    const mf_layout *l;
    const mf_software *software;
    play_op *ops;
    int n;
    int next[MF_STREAM_COUNT];    /* place of each stream's next op; n = none */
    int running[MF_STREAM_COUNT]; /* place; -1 = none */
    int *after;                   /* [n] next op of the same stream */
    double now;
    double class_s[MF_BD_COUNT];
} player;

/* --- the sequence ----------------------------------------------------------------------------- */

static bool detached(const mf_layout *l, const mf_op *op) {
    if (op->stream == MF_STREAM_DP) {
        return (l->overlap & MF_OVERLAP_DP) != 0;
    }
    return op->stream == MF_STREAM_D2H || (op->flags & MF_OPF_PREFETCH) != 0;
}

static void price(player *pl, play_op *q, double load) {
    mf_price p;
    mf_cost_op(pl->cost, q->op, load, &p);
    q->alone_s = p.time_s;
    q->sm_share = p.sm_share;
    q->link_share = p.link_share;
    q->link = p.link;
    bool communicates = q->op->stream != MF_STREAM_COMPUTE;
    /* Communication reads and writes device memory once for each byte on the wire. */
    q->memory_Bps = communicates && p.time_s > 0 ? 2.0 * q->op->bytes / p.time_s : 0.0;
}

/* Place of the last op before `at` on the same side that makes tensor t (for a piece: the same
 * piece of it); -1 = from outside. */
static int producer_of(const player *pl, int at, uint8_t side, int16_t t) {
    const mf_op *reader = pl->ops[at].op;
    for (int i = at - 1; i >= 0; i--) {
        const play_op *q = &pl->ops[i];
        bool other_piece =
            reader->pieces > 1 && q->op->pieces == reader->pieces && q->op->piece != reader->piece;
        for (int k = 0; q->side == side && !other_piece && k < q->op->nout; k++) {
            if (q->op->out[k] == t) {
                return q->detached ? -1 : i;
            }
        }
    }
    return -1;
}

static void add_op(player *pl, const mf_block *b, uint8_t side, int16_t index, double load) {
    play_op *q = &pl->ops[pl->n];
    *q = (play_op){.op = &b->ops[index],
                   .side = side,
                   .index = index,
                   .detached = detached(pl->l, &b->ops[index]),
                   .start_s = -1,
                   .end_s = -1};
    price(pl, q, load);
    for (int k = 0; k < q->op->nin && !q->detached; k++) {
        int dep = producer_of(pl, pl->n, side, q->op->in[k]);
        if (dep >= 0) {
            q->deps[q->ndeps++] = dep;
        }
    }
    pl->n++;
}

static mf_status build(player *pl, const mf_block *b, unsigned passes, const mf_block *beside,
                       double load, mf_err *e) {
    size_t most = (size_t)b->nops + (beside ? (size_t)beside->nops : 0) + 1;
    pl->ops = calloc(most, sizeof *pl->ops);
    pl->after = calloc(most, sizeof *pl->after);
    mf_merged_op *order = calloc(most, sizeof *order);
    if (pl->ops == NULL || pl->after == NULL || order == NULL) {
        free(order);
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    if (beside != NULL) {
        int n = mf_block_merge(b, beside, order);
        for (int i = 0; i < n; i++) {
            add_op(pl, order[i].side ? beside : b, order[i].side, order[i].op, load);
        }
    } else {
        for (int16_t i = 0; i < b->nops; i++) {
            if (b->ops[i].pass & passes) {
                add_op(pl, b, 0, i, load);
            }
        }
    }
    free(order);
    int last[MF_STREAM_COUNT];
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        pl->next[s] = pl->n;
        last[s] = -1;
    }
    for (int i = 0; i < pl->n; i++) {
        int s = pl->ops[i].op->stream;
        pl->after[i] = pl->n;
        if (last[s] < 0) {
            pl->next[s] = i;
        } else {
            pl->after[last[s]] = i;
        }
        last[s] = i;
    }
    return MF_OK;
}

/* --- playing ---------------------------------------------------------------------------------- */

static bool ready(const player *pl, int i) {
    const play_op *q = &pl->ops[i];
    if (q->host_s > pl->now) {
        return false;
    }
    for (int k = 0; k < q->ndeps; k++) {
        if (pl->ops[q->deps[k]].end_s < 0) {
            return false;
        }
    }
    return true;
}

static void start_ready(player *pl) {
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        int i = pl->next[s];
        if (pl->running[s] < 0 && i < pl->n && ready(pl, i)) {
            pl->running[s] = i;
            pl->next[s] = pl->after[i];
            pl->ops[i].start_s = pl->now;
            pl->ops[i].left = pl->ops[i].alone_s;
        }
    }
}

static double exposed_share(const player *pl, mf_stream s) {
    const double *x = pl->software->overlap_exposed;
    switch (s) {
    case MF_STREAM_EP:
        return x[0];
    case MF_STREAM_TP:
        return x[1];
    case MF_STREAM_DP:
        return x[2];
    case MF_STREAM_PP:
        return x[3];
    case MF_STREAM_CP:
        return x[4];
    case MF_STREAM_COMPUTE:
    case MF_STREAM_D2H:
    case MF_STREAM_H2D:
    case MF_STREAM_COUNT:
        break;
    }
    return 0.0;
}

/* How fast each running op progresses, 1 = as if alone. */
static void rates(const player *pl, double rate[MF_STREAM_COUNT]) {
    double used[4] = {0, 0, 0, 0}, sm = 0, memory = 0, exposed = 0;
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        if (pl->running[s] >= 0 && s != MF_STREAM_COMPUTE) {
            const play_op *q = &pl->ops[pl->running[s]];
            used[q->link & 3] += q->link != MF_LINK_NONE ? q->link_share : 0;
            sm += q->sm_share;
            memory += q->memory_Bps;
            exposed = fmax(exposed, exposed_share(pl, (mf_stream)s));
        }
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        rate[s] = 0;
        if (pl->running[s] < 0) {
            continue;
        }
        const play_op *q = &pl->ops[pl->running[s]];
        if (s == MF_STREAM_COMPUTE) {
            double slow = 1.0;
            if (sm > 0 || memory > 0) {
                slow = mf_cost_compute_slowdown(pl->cost, q->op, fmin(sm, 0.9), memory);
                slow = fmax(slow, 1.0 / (1.0 - fmin(exposed, 0.95)));
            }
            rate[s] = 1.0 / fmax(slow, 1.0);
        } else {
            double load = q->link != MF_LINK_NONE ? used[q->link & 3] : 0;
            rate[s] = load > 1.0 ? 1.0 / load : 1.0;
        }
    }
}

static mf_breakdown_kind stream_class(mf_stream s) {
    switch (s) {
    case MF_STREAM_TP:
        return MF_BD_TP;
    case MF_STREAM_CP:
        return MF_BD_CP;
    case MF_STREAM_EP:
        return MF_BD_EP;
    case MF_STREAM_PP:
        return MF_BD_PP;
    case MF_STREAM_DP:
        return MF_BD_DP;
    case MF_STREAM_D2H:
    case MF_STREAM_H2D:
        return MF_BD_OFFLOAD;
    case MF_STREAM_COMPUTE:
    case MF_STREAM_COUNT:
        break;
    }
    return MF_BD_COMPUTE;
}

/* What this instant is spent on: the running compute op, else what the next compute op waits for,
 * else the communication that the block still waits for. */
static mf_breakdown_kind class_now(const player *pl) {
    int i = pl->running[MF_STREAM_COMPUTE];
    if (i >= 0) {
        return pl->ops[i].op->pass == MF_PASS_R ? MF_BD_RECOMPUTE : MF_BD_COMPUTE;
    }
    i = pl->next[MF_STREAM_COMPUTE];
    if (i < pl->n) {
        /* Follow unfinished inputs to one that runs or that the host has not issued. */
        for (int steps = 0; steps < pl->n; steps++) {
            const play_op *q = &pl->ops[i];
            int waits = -1;
            for (int k = 0; k < q->ndeps && waits < 0; k++) {
                waits = pl->ops[q->deps[k]].end_s < 0 ? q->deps[k] : -1;
            }
            if (waits < 0) {
                if (q->start_s >= 0) {
                    return stream_class((mf_stream)q->op->stream);
                }
                if (q->host_s > pl->now) {
                    return MF_BD_HOST;
                }
                /* Ready, but its stream is busy with another op. */
                return stream_class((mf_stream)q->op->stream);
            }
            i = waits;
        }
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        if (pl->running[s] >= 0) {
            return stream_class((mf_stream)s);
        }
    }
    return MF_BD_HOST;
}

/* Until the next op ends or the host issues one. */
static bool advance(player *pl) {
    double rate[MF_STREAM_COUNT], step = -1;
    rates(pl, rate);
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        if (pl->running[s] >= 0) {
            double t = pl->ops[pl->running[s]].left / rate[s];
            step = step < 0 || t < step ? t : step;
        }
        int i = pl->next[s];
        if (pl->running[s] < 0 && i < pl->n && pl->ops[i].host_s > pl->now) {
            double t = pl->ops[i].host_s - pl->now;
            step = step < 0 || t < step ? t : step;
        }
    }
    if (step < 0) {
        return false;
    }
    pl->class_s[class_now(pl)] += step;
    pl->now += step;
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        int i = pl->running[s];
        if (i < 0) {
            continue;
        }
        pl->ops[i].left -= step * rate[s];
        if (pl->ops[i].left <= 1e-15 + 1e-12 * pl->ops[i].alone_s) {
            pl->ops[i].end_s = pl->now;
            pl->running[s] = -1;
        }
    }
    return true;
}

static void reset(player *pl) {
    pl->now = 0;
    memset(pl->class_s, 0, sizeof pl->class_s);
    for (int i = 0; i < pl->n; i++) {
        pl->ops[i].start_s = pl->ops[i].end_s = -1;
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        pl->running[s] = -1;
        pl->next[s] = pl->n;
    }
    for (int i = pl->n - 1; i >= 0; i--) {
        pl->next[pl->ops[i].op->stream] = i;
    }
}

static mf_status run(player *pl, mf_err *e) {
    reset(pl);
    do {
        start_ready(pl);
    } while (advance(pl));
    for (int i = 0; i < pl->n; i++) {
        if (pl->ops[i].end_s < 0) {
            return mf_err_set(e, MF_INTERNAL, "simulation: op %s never starts",
                              pl->ops[i].op->name);
        }
    }
    return MF_OK;
}

/* Bands: those of compute weigh as long as compute runs, those of communication as long as it is
 * exposed. */
static void bands(const player *pl, double load, mf_block_time *out) {
    double t[2] = {0, 0}, low[2] = {0, 0}, high[2] = {0, 0};
    for (int i = 0; i < pl->n; i++) {
        mf_price p;
        int side = pl->ops[i].op->stream != MF_STREAM_COMPUTE;
        mf_cost_op(pl->cost, pl->ops[i].op, load, &p);
        t[side] += p.time_s;
        low[side] += p.low_s;
        high[side] += p.high_s;
    }
    double on = out->class_s[MF_BD_COMPUTE] + out->class_s[MF_BD_RECOMPUTE];
    double off = out->gpu_time_s - on;
    out->low_s = (t[0] > 0 ? low[0] / t[0] : 1) * on + (t[1] > 0 ? low[1] / t[1] : 1) * off;
    out->high_s = (t[0] > 0 ? high[0] / t[0] : 1) * on + (t[1] > 0 ? high[1] / t[1] : 1) * off;
}

static mf_status keep(const player *pl, mf_block_time *out, mf_err *e) {
    out->op = calloc((size_t)pl->n + 1, sizeof *out->op);
    if (out->op == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    out->nops = pl->n;
    for (int i = 0; i < pl->n; i++) {
        const play_op *q = &pl->ops[i];
        out->op[i] = (mf_op_time){q->side, q->index, q->start_s, q->end_s, q->host_s};
    }
    return MF_OK;
}

mf_status mf_sim_block(const mf_cost *cost, const mf_layout *l, const mf_block *b, unsigned passes,
                       const mf_block *beside, double load, bool keep_ops, mf_block_time *out,
                       mf_err *e) {
    memset(out, 0, sizeof *out);
    player pl = {.cost = cost, .l = l, .software = mf_cost_software(cost)};
    mf_status status = build(&pl, b, passes, beside, load, e);
    if (status != MF_OK) {
        goto done;
    }
    if ((status = run(&pl, e)) != MF_OK) { /* the host infinitely ahead */
        goto done;
    }
    out->gpu_time_s = pl.now;
    memcpy(out->class_s, pl.class_s, sizeof out->class_s);
    bands(&pl, load, out);
    if (keep_ops && (status = keep(&pl, out, e)) != MF_OK) {
        goto done;
    }
    double host = mf_cost_host_block_s(cost, l->graph) * (beside ? 2.0 : 1.0);
    for (int i = 0; i < pl.n; i++) {
        out->compute_s += pl.ops[i].op->stream == MF_STREAM_COMPUTE ? pl.ops[i].alone_s : 0;
        host += mf_cost_host_s(cost, pl.ops[i].op, l->graph);
        pl.ops[i].host_s = host;
        if (keep_ops) {
            out->op[i].host_s = host;
        }
    }
    out->host_s = host;
    status = run(&pl, e);
    out->time_s = pl.now;
done:
    free(pl.ops);
    free(pl.after);
    if (status != MF_OK) {
        mf_block_time_clear(out);
    }
    return status;
}

void mf_block_time_clear(mf_block_time *t) {
    free(t->op);
    t->op = NULL;
    t->nops = 0;
}

double mf_sim_block_bound(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                          unsigned passes, double load) {
    double stream[MF_STREAM_COUNT] = {0}, most = 0;
    (void)l;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        if (op->pass & passes) {
            mf_price p;
            mf_cost_op(cost, op, load, &p);
            stream[op->stream] += p.time_s;
            most = fmax(most, stream[op->stream]);
        }
    }
    return most;
}
