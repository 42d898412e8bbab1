/* play.c - ops played on streams against time: order, shared links, compute beside communication.
 */
#include "simulator/play.h"

#include <assert.h>
#include <math.h>

enum { LINKS = MF_LINK_HOST + 1 };

typedef struct player {
    mf_play *p;
    double now;
    int next[MF_STREAM_COUNT];    /* next op of each stream; p->n = none */
    int open[MF_STREAM_COUNT];    /* input that this op was last seen waiting for; -1 = none yet */
    int last[MF_STREAM_COUNT];    /* op that ended last on it; -1 = none */
    int running[MF_STREAM_COUNT]; /* -1 = none */
    double left[MF_STREAM_COUNT]; /* work left of the running op, in seconds at full speed */
    double rate[MF_STREAM_COUNT]; /* speed of the running op, 1 = as if alone */
    bool changed;                 /* the set of running ops has changed since rates were found */
    int streams[MF_STREAM_COUNT]; /* those that have ops */
    int nstreams;
} player;

mf_breakdown_kind mf_play_stream_class(mf_stream s) {
    static const uint8_t class_of[MF_STREAM_COUNT] = {
        [MF_STREAM_COMPUTE] = MF_BD_COMPUTE, [MF_STREAM_TP] = MF_BD_TP,
        [MF_STREAM_CP] = MF_BD_CP,           [MF_STREAM_EP] = MF_BD_EP,
        [MF_STREAM_DP] = MF_BD_DP,           [MF_STREAM_PP] = MF_BD_PP,
        [MF_STREAM_D2H] = MF_BD_OFFLOAD,     [MF_STREAM_H2D] = MF_BD_OFFLOAD,
    };
    return (mf_breakdown_kind)class_of[s];
}

/* --- starting --------------------------------------------------------------------------------- */

/* The next op of a stream. */
static bool ready(player *g, int s) {
    const mf_play_op *op = &g->p->ops[g->next[s]];
    if (op->issue_s > g->now || (g->open[s] >= 0 && g->p->ops[g->open[s]].end_s < 0)) {
        return false;
    }
    for (int k = 0; k < op->ndeps; k++) {
        int dep = g->p->deps[op->first_dep + k];
        if (g->p->ops[dep].end_s < 0) {
            g->open[s] = dep;
            return false;
        }
    }
    g->open[s] = -1;
    return true;
}

/* The op whose end let op i start just now; -1: the host, or the beginning. */
static int cause_of(const player *g, int i) {
    const mf_play_op *op = &g->p->ops[i];
    for (int k = 0; k < op->ndeps; k++) {
        int dep = g->p->deps[op->first_dep + k];
        if (g->p->ops[dep].end_s >= g->now) {
            return dep;
        }
    }
    int before = g->last[op->stream];
    return before >= 0 && g->p->ops[before].end_s >= g->now ? before : -1;
}

/* Communication that starts while a kernel runs waits until a multiprocessor is free: at the latest
 * until that kernel ends, since urgent work is placed first. Ops that start at the same moment are
 * placed together and do not wait. */
static double sm_wait_s(const player *g, int i) {
    const int j = g->running[MF_STREAM_COMPUTE];
    if (j < 0 || !(g->p->ops[j].start_s < g->now)) {
        return 0;
    }
    const double rate = g->rate[MF_STREAM_COMPUTE];
    return fmin(g->p->ops[i].loss[g->p->ops[j].work].wait_s,
                rate > 0 ? g->left[MF_STREAM_COMPUTE] / rate : 0);
}

static void start_ready(player *g) {
    for (int k = 0; k < g->nstreams; k++) {
        int s = g->streams[k], i = g->next[s];
        if (g->running[s] < 0 && i < g->p->n && ready(g, s)) {
            mf_play_op *op = &g->p->ops[i];
            op->start_s = g->now;
            op->cause = cause_of(g, i);
            g->running[s] = i;
            g->left[s] = op->alone_s + (s != MF_STREAM_COMPUTE ? sm_wait_s(g, i) : 0);
            g->next[s] = g->p->next_of[i];
            g->changed = true;
        }
    }
}

/* --- sharing ---------------------------------------------------------------------------------- */

/* fmax of numbers that are no NaN, without a call into libm. */
static double larger(double a, double b) {
    return a > b ? a : b;
}

static void find_rates(player *g) {
    double used[LINKS] = {0}, sm = 0, memory = 0, exposed = 0;
    bool beside = false;
    for (int k = 0; k < g->nstreams; k++) {
        int s = g->streams[k];
        if (g->running[s] >= 0 && s != MF_STREAM_COMPUTE) {
            const mf_play_op *op = &g->p->ops[g->running[s]];
            used[op->link] += op->link_share;
            sm += op->sm_share;
            memory += op->memory_Bps;
            exposed =
                larger(exposed, mf_play_exposed(g->p->exposed, g->p->exposed_inside, s, op->link));
            beside = true;
        }
    }
    for (int k = 0; k < g->nstreams; k++) {
        int s = g->streams[k];
        if (g->running[s] < 0) {
            continue;
        }
        const mf_play_op *op = &g->p->ops[g->running[s]];
        g->rate[s] = 1.0;
        if (s != MF_STREAM_COMPUTE) {
            g->rate[s] = op->link != MF_LINK_NONE && used[op->link] > 1 ? 1 / used[op->link] : 1;
            if (g->running[MF_STREAM_COMPUTE] >= 0) {
                const mf_play_op *compute = &g->p->ops[g->running[MF_STREAM_COMPUTE]];
                g->rate[s] /= larger(op->loss[compute->work].factor, 1.0);
            }
        } else if (beside) {
            double slow = 1.0 / (1.0 - (exposed < 0.95 ? exposed : 0.95));
            if (g->p->slowdown != NULL && (sm > 0 || memory > 0)) {
                slow = larger(slow, g->p->slowdown(g->p->user, g->running[s], sm, memory));
            }
            g->rate[s] = 1.0 / larger(slow, 1.0);
        }
    }
    g->changed = false;
}

/* --- what an instant is spent on -------------------------------------------------------------- */

/* From the next op of an idle compute stream, follows inputs back to an op that runs or that nobody
 * has issued. */
static mf_breakdown_kind waits_for(const player *g, int i) {
    for (;;) {
        const mf_play_op *op = &g->p->ops[i];
        if (op->start_s >= 0 || op->issue_s > g->now) {
            return op->start_s >= 0 ? mf_play_stream_class((mf_stream)op->stream) : MF_BD_HOST;
        }
        int waits = -1;
        for (int k = 0; k < op->ndeps && waits < 0; k++) {
            int dep = g->p->deps[op->first_dep + k];
            waits = g->p->ops[dep].end_s < 0 ? dep : -1;
        }
        if (waits < 0) { /* ready, but its stream is busy, or waits for an earlier op */
            waits = g->running[op->stream] >= 0 ? g->running[op->stream] : g->next[op->stream];
        }
        if (waits == i) {
            return mf_play_stream_class((mf_stream)op->stream);
        }
        i = waits;
    }
}

static mf_breakdown_kind class_now(const player *g) {
    int i = g->running[MF_STREAM_COMPUTE];
    if (i >= 0) {
        return g->p->ops[i].pass == MF_PASS_R ? MF_BD_RECOMPUTE : MF_BD_COMPUTE;
    }
    if (g->next[MF_STREAM_COMPUTE] < g->p->n) {
        return waits_for(g, g->next[MF_STREAM_COMPUTE]);
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) { /* compute is done: what is left of the rest */
        if (g->running[s] >= 0) {
            return mf_play_stream_class((mf_stream)s);
        }
    }
    return MF_BD_HOST;
}

/* --- playing ---------------------------------------------------------------------------------- */

/* Is so little left that adding it would not move the clock? Rates are at most 1, so a remainder
 * well above the clock's last place needs no division. */
static bool is_over(const player *g, int s) {
    return g->left[s] <= 1e-15 * g->now && g->now + g->left[s] / g->rate[s] <= g->now;
}

/* Moves on to the next end or issue. False when nothing is left. */
static bool advance(player *g) {
    double step = HUGE_VAL, takes[MF_STREAM_COUNT] = {0};
    if (g->changed) {
        find_rates(g);
    }
    for (int k = 0; k < g->nstreams; k++) {
        int s = g->streams[k];
        if (g->running[s] >= 0) {
            takes[s] = g->left[s] / g->rate[s];
            step = takes[s] < step ? takes[s] : step;
        } else if (g->next[s] < g->p->n && g->p->ops[g->next[s]].issue_s > g->now) {
            step = fmin(step, g->p->ops[g->next[s]].issue_s - g->now);
        }
    }
    if (!(step < HUGE_VAL)) {
        return false;
    }
    g->p->class_s[class_now(g)] += step;
    g->p->compute_s += g->running[MF_STREAM_COMPUTE] >= 0 ? step : 0;
    double before = g->now;
    g->now += step;
    for (int k = 0; k < g->nstreams; k++) {
        int s = g->streams[k], i = g->running[s];
        if (i >= 0) {
            g->left[s] -= step * g->rate[s];
            /* Ends now, or so soon that the clock would not move. */
            if (takes[s] <= step || is_over(g, s)) {
                g->p->ops[i].end_s = g->now;
                g->running[s] = -1;
                g->last[s] = i;
                g->changed = true;
            }
        } else if (g->next[s] < g->p->n) { /* rounding must not leave an issue in the future */
            mf_play_op *op = &g->p->ops[g->next[s]];
            if (op->issue_s > before && op->issue_s - before <= step) {
                g->now = fmax(g->now, op->issue_s);
            }
        }
    }
    return true;
}

/* Sums the bands of the ops on the critical path, from the op that ended last back from cause to
 * cause. Host time has no band. */
static void find_band(mf_play *p) {
    int i = -1;
    for (int k = 0; k < p->n; k++) {
        i = i < 0 || p->ops[k].end_s > p->ops[i].end_s ? k : i;
    }
    p->low_s = p->high_s = 0;
    for (; i >= 0; i = p->ops[i].cause) {
        const mf_play_op *op = &p->ops[i];
        double took = op->end_s - op->start_s, scale = op->alone_s > 0 ? took / op->alone_s : 0;
        p->low_s += op->low_s * scale;
        p->high_s += op->high_s * scale;
        if (op->cause < 0) {
            p->low_s += op->start_s;
            p->high_s += op->start_s;
        }
    }
}

void mf_play_run(mf_play *p) {
    player g = {.p = p};
    for (int k = 0; k < MF_BD_COUNT; k++) {
        p->class_s[k] = 0;
    }
    p->compute_s = 0;
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        g.running[s] = g.last[s] = g.open[s] = -1;
        g.next[s] = p->n;
    }
    for (int i = p->n - 1; i >= 0; i--) {
        mf_play_op *op = &p->ops[i];
        for (int k = 0; k < op->ndeps; k++) {
            assert(p->deps[op->first_dep + k] < i);
        }
        op->start_s = op->end_s = op->cause = -1;
        p->next_of[i] = g.next[op->stream];
        g.next[op->stream] = i;
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        if (g.next[s] < p->n) {
            g.streams[g.nstreams++] = s;
        }
    }
    do {
        start_ready(&g);
    } while (advance(&g));
    p->time_s = g.now;
    find_band(p);
}

double mf_play_bound(const mf_play *p, double *end) {
    double stream[MF_STREAM_COUNT] = {0}, most = 0;
    for (int i = 0; i < p->n; i++) {
        const mf_play_op *op = &p->ops[i];
        double start = stream[op->stream];
        for (int k = 0; k < op->ndeps; k++) {
            start = fmax(start, end[p->deps[op->first_dep + k]]);
        }
        end[i] = stream[op->stream] = start + op->alone_s;
        most = fmax(most, end[i]);
    }
    return most;
}
