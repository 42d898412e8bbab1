/* memory_place.c - lifetimes of what is allocated and freed within a step; core/memory/arrange.c
 * finds the addresses. */
#include "core/memory/memory_place.h"

#include "core/memory/arrange.h"
#include "core/memory/memory.h"
#include "core/program/pairing.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- lifetimes ---------------------------------------------------------------------------------
 */

/* Times are moments of steps; in a step one block runs, or a pair of them. Where blocks offload, a
 * step has three moments: copies out of the staging buffer, the work itself, during which other
 * blocks' tensors are copied, and copies into the staging buffer. Else it has one.
 */
enum { MOMENTS = 3 };

/* The memory that a block has of its own, by kind. */
typedef enum allocation_kind {
    SAVED,
    KEPT,
    MADE,
    ARRIVED,
    ON_HOST,
    WORK_F,
    WORK_B,
    WORK_W,
    GRADIENTS,
    LEAVING,
    COMING,
    ALLOCATION_KINDS
} allocation_kind;

typedef struct pass_events {
    int64_t f, b, w; /* event of each pass; -1 */
} pass_events;

typedef struct placer {
    const mf_program *p;
    const mf_schedule *s;
    int64_t stage;
    mf_places *x;
    bool tables;                 /* write addresses, not only sizes: of everything, */
    bool host_only, device_only; /* or of one area */
    mf_place_instance no_instance;
    mf_place_work no_work; /* receives addresses that nobody reads */
    int64_t *step;         /* [events + 1] first step of an event */
    int16_t *lag; /* merged: [chunks][chunks][2][longest] step of a block of either side in its
                   * event (core/program/pairing.h); NULL: step k is block k */
    int64_t longest;
    int64_t moments;   /* of a step */
    pass_events *when; /* [chunks][micro_batches] */
    mf_lifetimes device, host;
} placer;

static int length(const placer *g, int64_t chunk) {
    return g->x->first[chunk + 1] - g->x->first[chunk];
}

static const mf_block *block_of(const placer *g, int64_t chunk, int64_t k) {
    int64_t v = mf_layout_vstage(&g->p->layout, g->stage, chunk);
    return g->p->blocks[g->p->block_of[g->p->assignment.first[v] + k]];
}

static int64_t beginning(const placer *g, int64_t step) {
    return step * g->moments;
}

static int64_t middle(const placer *g, int64_t step) {
    return step * g->moments + g->moments / 2;
}

static int64_t ending(const placer *g, int64_t step) {
    return (step + 1) * g->moments - 1;
}

static pass_events *pass_events_of(const placer *g, int64_t chunk, int64_t mb) {
    return &g->when[chunk * g->s->micro_batches + mb];
}

/* Step in which block k of a side (1: the backward side of a merged pair) runs. */
static int64_t step_of(const placer *g, int64_t event, int side, int64_t k) {
    const mf_event *ev = &g->s->events[g->stage][event];
    if (ev->pass != MF_EVENT_FB) {
        return g->step[event] + k;
    }
    assert(g->lag != NULL);
    int64_t pair = (ev->chunk * g->s->chunks + ev->chunk2) * 2 + side;
    return g->step[event] + g->lag[pair * g->longest + k];
}

/* Pairs the blocks of every two chunks. *most: steps that an event takes at most. */
static bool find_lags(placer *g, int64_t *most) {
    int64_t chunks = g->s->chunks;
    size_t n = (size_t)(chunks * chunks * 2 * g->longest);
    mf_pairing order;
    g->lag = calloc(n + 1, sizeof *g->lag);
    *most = g->longest;
    if (g->lag == NULL || mf_pairing_init(&order, (int)g->longest, NULL) != MF_OK) {
        return false;
    }
    for (int64_t i = 0; i < chunks * chunks; i++) {
        int64_t vf = mf_layout_vstage(&g->p->layout, g->stage, i / chunks);
        int64_t vb = mf_layout_vstage(&g->p->layout, g->stage, i % chunks);
        mf_pairing_make(&order, &g->p->model, &g->p->layout, g->p->assignment.first, vf, vb);
        for (int k = 0; k < order.count; k++) {
            const mf_pairing_step *s = &order.step[k];
            if (s->f >= 0) {
                g->lag[2 * i * g->longest + s->f] = (int16_t)k;
            }
            if (s->b >= 0) {
                g->lag[(2 * i + 1) * g->longest + s->b] = (int16_t)k;
            }
        }
        *most = order.count > *most ? order.count : *most;
    }
    mf_pairing_clear(&order);
    return true;
}

/* Steps of an event: the last block of either side ends it. */
static int64_t steps_of(const placer *g, int64_t event) {
    const mf_event *ev = &g->s->events[g->stage][event];
    int64_t f = step_of(g, event, 0, length(g, ev->chunk) - 1), b = f;
    if (ev->pass == MF_EVENT_FB) {
        b = step_of(g, event, 1, length(g, ev->chunk2) - 1);
    }
    return (f > b ? f : b) + 1 - g->step[event];
}

static void find_events(placer *g) {
    int64_t step = 0;
    for (int64_t i = 0; i < g->s->count[g->stage]; i++) {
        const mf_event *ev = &g->s->events[g->stage][i];
        pass_events *w = pass_events_of(g, ev->chunk, ev->micro_batch);
        g->step[i] = step;
        if (ev->pass == MF_EVENT_FB) {
            pass_events_of(g, ev->chunk2, ev->micro_batch2)->b = i;
        }
        *(ev->pass == MF_EVENT_B ? &w->b : ev->pass == MF_EVENT_W ? &w->w : &w->f) = i;
        g->x->event[i] = 2 * step;
        step += steps_of(g, i);
    }
    g->step[g->s->count[g->stage]] = step;
    g->x->event[g->s->count[g->stage]] = 2 * step;
}

static int32_t group_of(const placer *g, int64_t chunk, int64_t k, allocation_kind what) {
    return (int32_t)((chunk * g->longest + k) * ALLOCATION_KINDS + (int64_t)what);
}

/* Adds an allocation in one piece, from one moment to another. */
static void add_lifetime_between(placer *g, int64_t chunk, int64_t k, allocation_kind what,
                                 int64_t first, int64_t last, int64_t mb, int64_t size_B,
                                 int64_t *out) {
    if (out != NULL) {
        *out = -1;
    }
    if (what == ON_HOST ? g->device_only : g->host_only) {
        return;
    }
    mf_lifetimes_add(what == ON_HOST ? &g->host : &g->device,
                     (mf_lifetime){.first = first,
                                   .last = last,
                                   .size = size_B,
                                   .group = group_of(g, chunk, k, what),
                                   .turn = (int32_t)mb,
                                   .transient = what >= WORK_F,
                                   .out = out});
}

/* The same for whole steps. */
static void add_lifetime(placer *g, int64_t chunk, int64_t k, allocation_kind what, int64_t first,
                         int64_t last, int64_t mb, int64_t size_B, int64_t *out) {
    add_lifetime_between(g, chunk, k, what, beginning(g, first), ending(g, last), mb, size_B, out);
}

/* Adds an allocation in runs, for whole steps; out: [MF_RUNS]. */
static void add_lifetime_in_runs(placer *g, int64_t chunk, int64_t k, allocation_kind what,
                                 int64_t first, int64_t last, int64_t mb, int64_t *out) {
    static const mf_run_kind kinds[] = {
        [SAVED] = MF_RUN_SAVED,   [KEPT] = MF_RUN_KEPT,     [MADE] = MF_RUN_MADE,
        [WORK_F] = MF_RUN_WORK_F, [WORK_B] = MF_RUN_WORK_B, [WORK_W] = MF_RUN_WORK_W};
    const mf_runs *r = &block_of(g, chunk, k)->runs.of[kinds[what]];
    mf_lifetimes_add(&g->device, (mf_lifetime){.first = beginning(g, first),
                                               .last = ending(g, last),
                                               .size = r->start[r->count],
                                               .part = r->size,
                                               .parts = r->count,
                                               .group = group_of(g, chunk, k, what),
                                               .turn = (int32_t)mb,
                                               .transient = what >= WORK_F,
                                               .out = out});
}

static mf_place_instance *instance_at(placer *g, int64_t chunk, int64_t k, int64_t mb) {
    int64_t block = g->x->first[chunk] + k;
    return g->tables ? &g->x->instance[block * g->s->micro_batches + mb] : &g->no_instance;
}

/* The i-th block at work in an event. */
static mf_place_work *work_at(placer *g, int64_t event, int64_t i, int side) {
    return g->tables ? &g->x->work[g->x->event[event] + 2 * i + side] : &g->no_work;
}

/* Adds the tensors that a micro-batch keeps of each block between its passes. */
static void instances(placer *g, int64_t chunk, int64_t mb) {
    const pass_events *w = pass_events_of(g, chunk, mb);
    int64_t n = length(g, chunk);
    for (int64_t k = 0; k < n; k++) {
        const mf_block *b = block_of(g, chunk, k);
        mf_place_instance *x = instance_at(g, chunk, k, mb);
        int side = g->s->events[g->stage][w->b].pass == MF_EVENT_FB;
        int64_t f = step_of(g, w->f, 0, k), back = step_of(g, w->b, side, n - 1 - k);
        int64_t done = w->w >= 0 ? step_of(g, w->w, 0, n - 1 - k) : back;
        add_lifetime_between(g, chunk, k, ON_HOST, w->f, w->b, mb, b->offload_B,
                             &x->host); /* events */
        if (!g->host_only) {
            add_lifetime_in_runs(g, chunk, k, SAVED, f, back, mb, x->saved);
            add_lifetime_in_runs(g, chunk, k, KEPT, f, done, mb, x->kept);
            add_lifetime_in_runs(g, chunk, k, MADE, back, done, mb, x->made);
            add_lifetime(g, chunk, k, ARRIVED, back + 1, done, mb,
                         b->held_B - b->kept_B - b->made_B, &x->arrived);
        }
    }
}

/* Adds what a running block needs: workspace; staging of its tensors that are copied to the host
 * during the next block, or from it during the block before; gradients not yet reduced (during the
 * next block, if that overlaps). */
static void forward_work(placer *g, int64_t chunk, int64_t event) {
    int64_t n = length(g, chunk);
    for (int64_t k = 0; k < n; k++) {
        mf_place_work *w = work_at(g, event, k, 0);
        int64_t now = step_of(g, event, 0, k);
        w->gradients = w->leaving = w->coming = -1;
        add_lifetime_in_runs(g, chunk, k, WORK_F, now, now, 0, w->local);
        if (k + 1 < n) {
            int64_t left = middle(g, step_of(g, event, 0, k + 1));
            add_lifetime_between(g, chunk, k, LEAVING, ending(g, now), left, 0,
                                 block_of(g, chunk, k)->offload_B, &w->leaving);
        }
    }
}

static void backward_work(placer *g, int64_t chunk, int64_t event, int side, mf_event_pass pass) {
    const mf_layout *l = &g->p->layout;
    int64_t n = length(g, chunk);
    bool beside = (l->overlap & MF_OVERLAP_DP) != 0;
    bool reduces = pass == MF_EVENT_W || !g->p->split;
    for (int64_t i = 0; i < n; i++) {
        mf_place_work *w = work_at(g, event, i, side);
        const mf_block *b = block_of(g, chunk, n - 1 - i);
        int64_t now = step_of(g, event, side, i);
        int64_t next = i + 1 < n ? step_of(g, event, side, i + 1) : now;
        int64_t k = n - 1 - i;
        w->leaving = w->coming = -1;
        add_lifetime_in_runs(g, chunk, k, pass == MF_EVENT_W ? WORK_W : WORK_B, now, now, 0,
                             w->local);
        if (pass == MF_EVENT_B && i > 0) {
            int64_t starts = middle(g, step_of(g, event, side, i - 1));
            add_lifetime_between(g, chunk, k, COMING, starts, beginning(g, now), 0, b->offload_B,
                                 &w->coming);
        }
        add_lifetime(g, chunk, k, GRADIENTS, now, beside ? next : now, 0,
                     reduces ? (int64_t)mf_memory_unreduced_B(l, b) : 0, &w->gradients);
    }
}

static void find_items(placer *g) {
    for (int64_t chunk = 0; chunk < g->s->chunks; chunk++) {
        for (int64_t mb = 0; mb < g->s->micro_batches; mb++) {
            instances(g, chunk, mb);
        }
    }
    for (int64_t i = 0; i < g->s->count[g->stage] && !g->host_only; i++) {
        const mf_event *ev = &g->s->events[g->stage][i];
        if (ev->pass == MF_EVENT_F || ev->pass == MF_EVENT_FB) {
            forward_work(g, ev->chunk, i);
        }
        if (ev->pass == MF_EVENT_FB) {
            backward_work(g, ev->chunk2, i, 1, MF_EVENT_B);
        } else if (ev->pass != MF_EVENT_F) {
            backward_work(g, ev->chunk, i, 0, (mf_event_pass)ev->pass);
        }
    }
}

/* --- a stage -----------------------------------------------------------------------------------
 */

static bool allocate(placer *g) {
    mf_places *x = g->x;
    size_t chunks = (size_t)g->s->chunks, mbs = (size_t)g->s->micro_batches;
    size_t events = (size_t)g->s->count[g->stage];
    int64_t steps;
    x->first = calloc(chunks + 1, sizeof *x->first);
    if (x->first == NULL) {
        return false;
    }
    for (size_t c = 0; c < chunks; c++) {
        int64_t v = mf_layout_vstage(&g->p->layout, g->stage, (int64_t)c);
        int n = g->p->assignment.first[v + 1] - g->p->assignment.first[v];
        x->first[c + 1] = x->first[c] + n;
        g->longest = n > g->longest ? n : g->longest;
    }
    steps = g->longest;
    if (mf_layout_merges(&g->p->layout) && !find_lags(g, &steps)) {
        return false;
    }
    x->blocks = x->first[chunks];
    x->micro_batches = g->s->micro_batches;
    x->event = calloc(events + 1, sizeof *x->event);
    if (g->tables) {
        x->instance = calloc((size_t)x->blocks * mbs + 1, sizeof *x->instance);
        x->work = calloc(2 * events * (size_t)steps + 1, sizeof *x->work);
    }
    g->step = calloc(events + 1, sizeof *g->step);
    g->when = malloc((chunks * mbs + 1) * sizeof *g->when);
    for (size_t i = 0; g->when != NULL && i < chunks * mbs; i++) {
        g->when[i] = (pass_events){-1, -1, -1};
    }
    bool tables = !g->tables || (x->instance != NULL && x->work != NULL);
    return tables && x->event != NULL && g->step != NULL && g->when != NULL;
}

static bool offloads(const mf_program *p) {
    bool any = false;
    for (int i = 0; i < p->nblocks; i++) {
        any |= p->blocks[i]->offload_B > 0;
    }
    return any;
}

/* Makes everything but the arrangement; g->x is the caller's. */
static mf_status prepare(placer *g, mf_err *e) {
    g->moments = offloads(g->p) ? MOMENTS : 1;
    g->x = calloc(1, sizeof *g->x);
    if (g->x == NULL || !allocate(g)) {
        return mf_err_set(e, MF_NOMEM, "places of the step: out of memory");
    }
    find_events(g);
    find_items(g);
    return MF_OK;
}

static void forget(placer *g) {
    free(g->step);
    free(g->lag);
    free(g->when);
    mf_lifetimes_clear(&g->device);
    mf_lifetimes_clear(&g->host);
}

/* Gives a long schedule the same addresses as a short one of the same layout, whose steps it
 * repeats: planner/fit/fit_judge.c judges layouts by a short schedule. */
static mf_status arrange(placer *g, mf_lifetimes *x, int64_t gaps_B, mf_place_size *out,
                         mf_err *e) {
    bool alone = g->s->micro_batches < 2 * g->s->stages * g->s->chunks;
    const mf_status status = mf_arrange_within(x, alone, gaps_B, &out->size_B, &out->bound_B, e);
    out->looks = x->looks;
    return status;
}

mf_status mf_memory_place(const mf_program *p, const mf_schedule *s, int64_t stage, mf_places **out,
                          mf_err *e) {
    placer g = {.p = p, .s = s, .stage = stage, .tables = true};
    mf_status status = prepare(&g, e);
    if (status == MF_OK) {
        status = arrange(&g, &g.device, 0, &g.x->device, e);
    }
    if (status == MF_OK) {
        status = arrange(&g, &g.host, 0, &g.x->host, e);
    }
    forget(&g);
    *out = status == MF_OK ? g.x : NULL;
    if (status != MF_OK) {
        mf_places_destroy(g.x);
    }
    return status;
}

mf_status mf_memory_place_size(const mf_program *p, const mf_schedule *s, int64_t stage, bool host,
                               int64_t gaps_B, mf_place_size *out, mf_err *e) {
    placer g = {.p = p, .s = s, .stage = stage, .host_only = host, .device_only = !host};
    mf_status status = prepare(&g, e);
    if (status == MF_OK) {
        status = arrange(&g, host ? &g.host : &g.device, gaps_B, out, e);
    }
    forget(&g);
    mf_places_destroy(g.x);
    return status;
}

void mf_places_destroy(mf_places *x) {
    if (x == NULL) {
        return;
    }
    free(x->first);
    free(x->instance);
    free(x->event);
    free(x->work);
    free(x);
}
