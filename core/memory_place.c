/* memory_place.c - lifetimes of what comes and goes in a step, and a place for each. */
#include "core/memory_place.h"

#include "core/memory.h"
#include "core/pairing.h"

#include <stdlib.h>
#include <string.h>

/* --- lifetimes ---------------------------------------------------------------------------------
 */

/* Stands during steps [first, last]; a step is one block at work, or a pair of them. */
typedef struct item {
    int64_t first, last, size, at;
    int64_t *out; /* where the place is written */
} item;

typedef struct items {
    int count, room;
    item *list;
    bool failed;
} items;

static void add(items *x, int64_t first, int64_t last, int64_t size, int64_t *out) {
    if (out != NULL) {
        *out = -1;
    }
    if (size <= 0 || x->failed) {
        return;
    }
    if (x->count == x->room) {
        int room = x->room ? 2 * x->room : 256;
        item *list = realloc(x->list, (size_t)room * sizeof *list);
        if (list == NULL) {
            x->failed = true;
            return;
        }
        x->list = list;
        x->room = room;
    }
    x->list[x->count++] = (item){first, last, size, 0, out};
}

typedef struct when {
    int64_t f, b, w; /* event of each pass; -1 */
} when;

typedef struct placer {
    const mf_program *p;
    const mf_schedule *s;
    int64_t stage;
    mf_places *x;
    int64_t *step; /* [events + 1] first step of an event */
    int16_t *lag;  /* merged: [chunks][chunks][2][longest] step of a block of either side in its
                    * event (core/pairing.h); NULL: step k is block k */
    int64_t longest;
    when *when; /* [chunks][micro_batches] */
    items device, host;
} placer;

static int length(const placer *g, int64_t chunk) {
    return g->x->first[chunk + 1] - g->x->first[chunk];
}

static const mf_block *block_of(const placer *g, int64_t chunk, int64_t k) {
    int64_t v = mf_layout_vstage(&g->p->layout, g->stage, chunk);
    return g->p->blocks[g->p->block_of[g->p->assignment.first[v] + k]];
}

static when *when_of(const placer *g, int64_t chunk, int64_t mb) {
    return &g->when[chunk * g->s->micro_batches + mb];
}

/* Step at which block k of a side (1: the backward side of a merged pair) is at work. */
static int64_t step_of(const placer *g, int64_t event, int side, int64_t k) {
    const mf_event *ev = &g->s->events[g->stage][event];
    if (ev->pass != MF_EVENT_FB) {
        return g->step[event] + k;
    }
    int64_t pair = (ev->chunk * g->s->chunks + ev->chunk2) * 2 + side;
    return g->step[event] + g->lag[pair * g->longest + k];
}

/* Lays every two chunks against each other. *most: steps that an event takes at most. */
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
        when *w = when_of(g, ev->chunk, ev->micro_batch);
        g->step[i] = step;
        if (ev->pass == MF_EVENT_FB) {
            when_of(g, ev->chunk2, ev->micro_batch2)->b = i;
        }
        *(ev->pass == MF_EVENT_B ? &w->b : ev->pass == MF_EVENT_W ? &w->w : &w->f) = i;
        g->x->event[i] = 2 * step;
        step += steps_of(g, i);
    }
    g->step[g->s->count[g->stage]] = step;
    g->x->event[g->s->count[g->stage]] = 2 * step;
}

/* What a micro-batch leaves of a block between its passes. */
static void instances(placer *g, int64_t chunk, int64_t mb) {
    const when *w = when_of(g, chunk, mb);
    int64_t n = length(g, chunk);
    for (int64_t k = 0; k < n; k++) {
        const mf_block *b = block_of(g, chunk, k);
        mf_place_instance *x = &g->x->instance[(g->x->first[chunk] + k) * g->s->micro_batches + mb];
        int side = g->s->events[g->stage][w->b].pass == MF_EVENT_FB;
        int64_t f = step_of(g, w->f, 0, k), back = step_of(g, w->b, side, n - 1 - k);
        int64_t done = w->w >= 0 ? step_of(g, w->w, 0, n - 1 - k) : back;
        add(&g->device, f, back, b->saved_B - b->kept_B, &x->saved);
        add(&g->device, f, done, b->kept_B, &x->kept);
        add(&g->device, back, done, b->made_B, &x->made);
        add(&g->device, back + 1, done, b->held_B - b->kept_B - b->made_B, &x->arrived);
        add(&g->host, w->f, w->b, b->offload_B, &x->host);
    }
}

/* A block at work: workspace, staging for what leaves for the host or comes from it, gradients that
 * wait to be reduced (beside the next block, where that overlaps). */
static void forward_work(placer *g, int64_t chunk, int64_t event, mf_place_work *w) {
    for (int64_t k = 0; k < length(g, chunk); k++, w += 2) {
        int64_t now = step_of(g, event, 0, k);
        add(&g->device, now, now, block_of(g, chunk, k)->local_f_B, &w->local);
        if (k > 0) {
            int64_t left = step_of(g, event, 0, k - 1) + 1;
            add(&g->device, left, now, block_of(g, chunk, k - 1)->offload_B, NULL);
        }
    }
}

static void backward_work(placer *g, int64_t chunk, int64_t event, int side, mf_event_pass pass,
                          mf_place_work *w) {
    const mf_layout *l = &g->p->layout;
    int64_t n = length(g, chunk);
    bool beside = (l->overlap & MF_OVERLAP_DP) != 0;
    bool reduces = pass == MF_EVENT_W || !g->p->split;
    for (int64_t i = 0; i < n; i++, w += 2) {
        const mf_block *b = block_of(g, chunk, n - 1 - i);
        int64_t now = step_of(g, event, side, i);
        int64_t next = i + 1 < n ? step_of(g, event, side, i + 1) : now;
        int64_t local = pass == MF_EVENT_W ? b->local_w_B
                        : g->p->split      ? b->local_bs_B
                                           : b->local_b_B;
        add(&g->device, now, now, local, &w->local);
        if (pass == MF_EVENT_B && i + 1 < n) {
            add(&g->device, now, next - 1, block_of(g, chunk, n - 2 - i)->offload_B, NULL);
        }
        add(&g->device, now, beside ? next : now,
            reduces ? (int64_t)mf_memory_unreduced_B(l, b) : 0, &w->gradients);
    }
}

static void find_items(placer *g) {
    for (int64_t chunk = 0; chunk < g->s->chunks; chunk++) {
        for (int64_t mb = 0; mb < g->s->micro_batches; mb++) {
            instances(g, chunk, mb);
        }
    }
    for (int64_t i = 0; i < g->s->count[g->stage]; i++) {
        const mf_event *ev = &g->s->events[g->stage][i];
        mf_place_work *w = &g->x->work[g->x->event[i]];
        if (ev->pass == MF_EVENT_F || ev->pass == MF_EVENT_FB) {
            forward_work(g, ev->chunk, i, w);
        }
        if (ev->pass == MF_EVENT_FB) {
            backward_work(g, ev->chunk2, i, 1, MF_EVENT_B, w + 1);
        } else if (ev->pass != MF_EVENT_F) {
            backward_work(g, ev->chunk, i, 0, (mf_event_pass)ev->pass, w);
        }
    }
}

/* --- places ------------------------------------------------------------------------------------
 */

static int64_t lifetime(const item *x) {
    return x->last - x->first;
}

static int compare(int64_t a, int64_t b) {
    return a < b ? -1 : a > b;
}

static int by_birth(const void *a, const void *b) {
    const item *x = a, *y = b;
    int c = compare(x->first, y->first);
    c = c != 0 ? c : compare(lifetime(y), lifetime(x));
    return c != 0 ? c : compare(y->size, x->size);
}

static int by_size(const void *a, const void *b) {
    const item *x = a, *y = b;
    int c = compare(y->size, x->size);
    return c != 0 ? c : by_birth(a, b);
}

static int by_lifetime(const void *a, const void *b) {
    const item *x = a, *y = b;
    int c = compare(lifetime(y), lifetime(x));
    return c != 0 ? c : by_birth(a, b);
}

static int by_area(const void *a, const void *b) {
    const item *x = a, *y = b;
    double p = (double)x->size * (double)(lifetime(x) + 1);
    double q = (double)y->size * (double)(lifetime(y) + 1);
    return p > q ? -1 : p < q ? 1 : by_birth(a, b);
}

/* Puts item n into the list of those placed, which is sorted by place. */
static void settle(items *x, int *placed, int n, int count, int64_t at) {
    int slot = count;
    x->list[n].at = at;
    for (; slot > 0 && x->list[placed[slot - 1]].at > at; slot--) {
        placed[slot] = placed[slot - 1];
    }
    placed[slot] = n;
}

/* What is at work hangs from the bound, so that what stays has the floor to itself. top: [steps].
 */
static int hang(items *x, int *placed, int64_t bound_B, int64_t steps, int64_t *top) {
    int count = 0;
    for (int64_t i = 0; i < steps; i++) {
        top[i] = bound_B;
    }
    for (int n = 0; n < x->count; n++) {
        const item *own = &x->list[n];
        if (lifetime(own) > 1) {
            continue;
        }
        int64_t at = top[own->first] < top[own->last] ? top[own->first] : top[own->last];
        at -= own->size;
        top[own->first] = top[own->last] = at;
        if (at >= 0) { /* else it is treated like the others */
            settle(x, placed, n, count++, at);
        }
    }
    return count;
}

/* Lowest gap for each item in the order of the list; `placed` (by place) has room for all, and
 * holds the first `count` already (done[n]). */
static int64_t first_fit(items *x, int *placed, int count, const bool *done, int64_t bound_B) {
    int64_t high = count > 0 ? bound_B : 0;
    for (int n = 0; n < x->count; n++) {
        const item *own = &x->list[n];
        int64_t at = 0;
        for (int k = 0; k < count && !done[n]; k++) {
            const item *other = &x->list[placed[k]];
            if (other->last < own->first || other->first > own->last) {
                continue;
            }
            if (other->at >= at + own->size) {
                break;
            }
            at = other->at + other->size > at ? other->at + other->size : at;
        }
        if (!done[n]) {
            settle(x, placed, n, count++, at);
            high = at + own->size > high ? at + own->size : high;
        }
    }
    return high;
}

/* Most that stands at once. */
static int64_t most_at_once(const items *x, int64_t steps, int64_t *change) {
    int64_t now = 0, most = 0;
    for (int64_t i = 0; i <= steps; i++) {
        change[i] = 0;
    }
    for (int i = 0; i < x->count; i++) {
        change[x->list[i].first] += x->list[i].size;
        change[x->list[i].last + 1] -= x->list[i].size;
    }
    for (int64_t i = 0; i < steps; i++) {
        now += change[i];
        most = now > most ? now : most;
    }
    return most;
}

/* Those that stuck out over the bound come first next time, in the order that they had. */
static void promote(items *x, int64_t bound_B, item *room) {
    int n = 0;
    for (int out = 1; out >= 0; out--) {
        for (int i = 0; i < x->count; i++) {
            if ((x->list[i].at + x->list[i].size > bound_B) == (out == 1)) {
                room[n++] = x->list[i];
            }
        }
    }
    if (n > 0) {
        memcpy(x->list, room, (size_t)n * sizeof *room);
    }
}

/* What trying to arrange takes. */
typedef struct desk {
    int *placed;
    item *room;
    bool *done;
    int64_t *step;
} desk;

static int64_t try_order(items *x, const desk *d, int64_t steps, int64_t bound_B, bool hanging) {
    int count = hanging ? hang(x, d->placed, bound_B, steps, d->step) : 0;
    for (int k = 0; k < x->count; k++) {
        d->done[k] = false;
    }
    for (int k = 0; k < count; k++) {
        d->done[d->placed[k]] = true;
    }
    return first_fit(x, d->placed, count, d->done, bound_B);
}

enum { ROUNDS = 16 }; /* of each order */

/* Tries orders until one needs no more than what stands at once; keeps the best. */
static mf_status arrange(items *x, int64_t steps, int64_t *size_B, int64_t *bound_B, mf_err *e) {
    static int (*const order[])(const void *, const void *) = {by_birth, by_lifetime, by_area,
                                                               by_size};
    const int tries = 2 * (int)(sizeof order / sizeof order[0]) * ROUNDS;
    if (x->count == 0 && !x->failed) {
        *size_B = *bound_B = 0;
        return MF_OK;
    }
    desk d = {calloc((size_t)x->count + 1, sizeof *d.placed),
              calloc((size_t)x->count + 1, sizeof *d.room),
              calloc((size_t)x->count + 1, sizeof *d.done),
              calloc((size_t)steps + 2, sizeof *d.step)};
    mf_status status = MF_OK;
    *size_B = INT64_MAX;
    if (!d.placed || !d.room || !d.done || !d.step || x->failed) {
        status = mf_err_set(e, MF_NOMEM, "places of the step: out of memory");
        goto out;
    }
    *bound_B = most_at_once(x, steps, d.step);
    for (int i = 0; i < tries; i++) {
        if (*size_B <= *bound_B) {
            break;
        }
        if (i % ROUNDS == 0) {
            qsort(x->list, (size_t)x->count, sizeof *x->list, order[i / ROUNDS / 2]);
        } else {
            promote(x, *bound_B, d.room);
        }
        int64_t high = try_order(x, &d, steps, *bound_B, i / ROUNDS % 2 == 1);
        for (int k = 0; k < x->count && high < *size_B; k++) {
            if (x->list[k].out != NULL) {
                *x->list[k].out = x->list[k].at;
            }
        }
        *size_B = high < *size_B ? high : *size_B;
    }
out:
    free(d.placed);
    free(d.room);
    free(d.done);
    free(d.step);
    return status;
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
    if (g->p->layout.schedule == MF_SCHED_MERGED && !find_lags(g, &steps)) {
        return false;
    }
    x->blocks = x->first[chunks];
    x->micro_batches = g->s->micro_batches;
    x->instance = calloc((size_t)x->blocks * mbs + 1, sizeof *x->instance);
    x->event = calloc(events + 1, sizeof *x->event);
    x->work = calloc(2 * events * (size_t)steps + 1, sizeof *x->work);
    g->step = calloc(events + 1, sizeof *g->step);
    g->when = malloc((chunks * mbs + 1) * sizeof *g->when);
    for (size_t i = 0; g->when != NULL && i < chunks * mbs; i++) {
        g->when[i] = (when){-1, -1, -1};
    }
    return x->instance && x->event && x->work && g->step && g->when;
}

mf_status mf_memory_place(const mf_program *p, const mf_schedule *s, int64_t stage, mf_places **out,
                          mf_err *e) {
    placer g = {.p = p, .s = s, .stage = stage};
    mf_status status = MF_OK;
    *out = NULL;
    g.x = calloc(1, sizeof *g.x);
    if (g.x == NULL || !allocate(&g)) {
        status = mf_err_set(e, MF_NOMEM, "places of the step: out of memory");
        goto out;
    }
    find_events(&g);
    find_items(&g);
    int64_t events = s->count[stage];
    status = arrange(&g.device, g.step[events], &g.x->size_B, &g.x->bound_B, e);
    if (status == MF_OK) {
        status = arrange(&g.host, events, &g.x->host_B, &g.x->host_bound_B, e);
    }
out:
    free(g.step);
    free(g.lag);
    free(g.when);
    free(g.device.list);
    free(g.host.list);
    if (status != MF_OK) {
        mf_places_destroy(g.x);
        return status;
    }
    *out = g.x;
    return MF_OK;
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
