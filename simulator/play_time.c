/* play_time.c - how long ops take that are played on streams. */
#include "simulator/play_time.h"

#include <assert.h>
#include <math.h>

enum { LINKS = MF_LINK_HOST + 1, COMPUTE_BIT = 1 << MF_STREAM_COMPUTE };

/* The state of a stream. */
typedef struct lane {
    int next;         /* its next op; n = none */
    const bool *open; /* input that this op was last seen waiting for; NULL = none yet */
    const mf_timed_op *running;
    double left, rate, takes; /* of what runs, as in play.c */
} lane;

typedef struct timer {
    const mf_timing *t;
    double now, compute_start_s;
    unsigned waiting, running; /* bits by stream: with ops to come, with one that runs */
    lane lane[MF_STREAM_COUNT];
} timer;

mf_timed_work mf_timed_work_of(const mf_play_op *op) {
    mf_timed_work x = {.stream = op->stream,
                       .link = op->link,
                       .work = op->work,
                       .ndeps = (uint8_t)op->ndeps,
                       .first_dep = op->first_dep,
                       .alone_s = op->alone_s,
                       .sm_share = op->sm_share,
                       .link_share = op->link_share,
                       .memory_Bps = op->memory_Bps,
                       .memory_share = op->memory_share};
    assert(op->ndeps >= 0 && op->ndeps <= UINT8_MAX);
    for (int w = 0; w < MF_PLAY_WORKS; w++) {
        x.loss[w] = op->loss[w];
    }
    return x;
}

static int first_of(unsigned streams) {
    return __builtin_ctz(streams);
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double smaller(double a, double b) {
    return a < b ? a : b;
}

static bool ready(lane *x, const mf_timed_op *op) {
    if (x->open && !*x->open) {
        return false;
    }
    for (int k = 0; k < op->op->ndeps; k++) {
        const bool *done = &op->done[op->deps[k]];
        if (!*done) {
            x->open = done;
            return false;
        }
    }
    x->open = NULL;
    return true;
}

/* What starts together with a kernel does not wait for a multiprocessor (play.c). */
static double sm_wait_s(const timer *g, const mf_timed_op *op) {
    const lane *compute = &g->lane[MF_STREAM_COMPUTE];
    if (!(g->running & COMPUTE_BIT) || !(g->compute_start_s < g->now)) {
        return 0;
    }
    return smaller(op->op->loss[compute->running->op->work].wait_s,
                   compute->rate > 0 ? compute->left / compute->rate : 0);
}

static void start_ready(timer *g) {
    for (unsigned left = g->waiting & ~g->running; left != 0; left &= left - 1) {
        int s = first_of(left);
        lane *x = &g->lane[s];
        const mf_timed_op *op = &g->t->ops[x->next];
        if (!ready(x, op)) {
            continue;
        }
        x->left = op->op->alone_s;
        if (s != MF_STREAM_COMPUTE) {
            x->left += sm_wait_s(g, op);
        } else {
            g->compute_start_s = g->now;
        }
        x->running = op;
        g->running |= 1u << s;
        x->next = op->next;
        if (x->next >= g->t->n) {
            g->waiting &= ~(1u << s);
        }
    }
}

static void end(timer *g, int s) {
    const mf_timed_op *op = g->lane[s].running;
    op->done[op->at] = true;
    g->running &= ~(1u << s);
}

/* Rates as play.c finds them; at least one stream beside compute runs. */
static void find_rates(timer *g) {
    double used[LINKS] = {0}, sm = 0, memory = 0, exposed = 0;
    const unsigned beside = g->running & ~(unsigned)COMPUTE_BIT;
    const mf_timed_work *compute =
        g->running & COMPUTE_BIT ? g->lane[MF_STREAM_COMPUTE].running->op : NULL;
    for (unsigned left = beside; left != 0; left &= left - 1) {
        int s = first_of(left);
        const mf_timed_work *op = g->lane[s].running->op;
        used[op->link] += op->link_share;
        sm += op->sm_share;
        memory += op->memory_Bps;
        exposed =
            larger(exposed, mf_play_exposed(g->t->exposed, g->t->exposed_inside, s, op->link));
    }
    for (unsigned left = beside; left != 0; left &= left - 1) {
        lane *x = &g->lane[first_of(left)];
        const mf_timed_work *op = x->running->op;
        x->rate = op->link != MF_LINK_NONE && used[op->link] > 1 ? 1 / used[op->link] : 1;
        if (compute) {
            x->rate /= larger(op->loss[compute->work].factor, 1.0);
        }
    }
    if (compute) {
        double slow = 1.0 / (1.0 - (exposed < 0.95 ? exposed : 0.95));
        if (g->t->slowdown && (sm > 0 || memory > 0)) {
            slow = larger(slow, g->t->slowdown(g->t->user, compute->memory_share, sm, memory));
        }
        g->lane[MF_STREAM_COMPUTE].rate = 1.0 / larger(slow, 1.0);
    }
}

static bool is_over(const timer *g, const lane *x) {
    return x->left <= 1e-15 * g->now && g->now + x->left / x->rate <= g->now;
}

/* Moves on to the next end; something runs. */
static void advance(timer *g) {
    if (g->running == COMPUTE_BIT) { /* at its own pace */
        g->lane[MF_STREAM_COMPUTE].rate = 1.0;
        g->now += g->lane[MF_STREAM_COMPUTE].left;
        end(g, MF_STREAM_COMPUTE);
        return;
    }
    find_rates(g);
    double step = HUGE_VAL;
    for (unsigned left = g->running; left != 0; left &= left - 1) {
        lane *x = &g->lane[first_of(left)];
        x->takes = x->left / x->rate;
        step = smaller(x->takes, step);
    }
    g->now += step;
    for (unsigned left = g->running; left != 0; left &= left - 1) {
        int s = first_of(left);
        lane *x = &g->lane[s];
        x->left -= step * x->rate;
        if (x->takes <= step || is_over(g, x)) {
            end(g, s);
        }
    }
}

double mf_play_time_s(const mf_timing *t) {
    timer g = {.t = t};
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        g.lane[s].next = t->n;
    }
    for (int i = t->n - 1; i >= 0; i--) {
        mf_timed_op *op = &t->ops[i];
        lane *x = &g.lane[op->op->stream];
        op->next = x->next;
        x->next = i;
        g.waiting |= 1u << op->op->stream;
    }
    for (start_ready(&g); g.running != 0; start_ready(&g)) {
        advance(&g);
    }
    return g.now;
}
