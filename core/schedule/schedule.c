/* schedule.c - schedules as lists of events: storage, the table of generators, checks, in-flight
 * vectors. The generators are in schedule_kinds.c. */
#include "core/schedule/schedule.h"

#include "core/schedule/schedule_kinds.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

void mf_schedule_push(mf_event_list *list, mf_event event) {
    if (list->failed) {
        return;
    }
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 64;
        mf_event *events = realloc(list->events, (size_t)capacity * sizeof *events);
        if (events == NULL) {
            list->failed = true;
            return;
        }
        list->events = events;
        list->capacity = capacity;
    }
    list->events[list->count++] = event;
}

mf_status mf_schedule_create(const mf_layout *l, mf_schedule **out, mf_err *e) {
    *out = NULL;
    mf_schedule_generate *generate = mf_schedule_generator(l->schedule);
    if (generate == NULL) {
        return mf_err_set(e, MF_LAYOUT, "unknown schedule %d", (int)l->schedule);
    }
    const mf_schedule_rule *rule = &mf_schedule_rules[l->schedule];
    const char *name = mf_schedule_text(l->schedule);
    if (rule->most_vpp != 0 && l->vpp != rule->most_vpp) {
        return mf_err_set(e, MF_LAYOUT, "schedule %s takes VPP %lld, got %lld", name,
                          LL(rule->most_vpp), LL(l->vpp));
    }
    if ((rule->does & MF_SCHEDULE_GROUPS) != 0 && l->vpp > 1 && l->micro_batches % l->pp != 0) {
        return mf_err_set(e, MF_LAYOUT, "PP %lld does not divide the %lld micro-batches (%s)",
                          LL(l->pp), LL(l->micro_batches), name);
    }
    mf_schedule *s = calloc(1, sizeof *s);
    mf_event_list *lists = calloc((size_t)l->pp, sizeof *lists);
    bool failed = s == NULL || lists == NULL;
    if (!failed) {
        *s = (mf_schedule){.stages = l->pp,
                           .chunks = l->vpp,
                           .micro_batches = l->micro_batches,
                           .split = mf_layout_splits(l)};
        s->count = calloc((size_t)l->pp, sizeof *s->count);
        s->events = calloc((size_t)l->pp, sizeof *s->events);
        failed = s->count == NULL || s->events == NULL || !generate(l, lists);
    }
    for (int64_t p = 0; p < l->pp && lists != NULL; p++) {
        failed |= lists[p].failed;
        if (failed) {
            free(lists[p].events);
        } else {
            s->count[p] = lists[p].count;
            s->events[p] = lists[p].events;
        }
    }
    free(lists);
    if (failed) {
        mf_schedule_destroy(s);
        return mf_err_set(e, MF_NOMEM, "schedule %s: out of memory", name);
    }
    *out = s;
    return MF_OK;
}

void mf_schedule_destroy(mf_schedule *s) {
    if (s == NULL) {
        return;
    }
    for (int64_t p = 0; p < s->stages && s->events != NULL; p++) {
        free(s->events[p]);
    }
    free(s->events);
    free(s->count);
    free(s);
}

/* --- checks ----------------------------------------------------------------------------------- */

enum { F_DONE = 1, B_DONE = 2, W_DONE = 4 };

typedef struct progress {
    const mf_layout *l;
    int64_t vstages, micro_batches;
    uint8_t *done; /* [vstage][micro_batch] */
} progress;

static uint8_t *cell(const progress *g, int64_t vstage, int64_t micro_batch) {
    return &g->done[vstage * g->micro_batches + micro_batch];
}

static bool forward_ready(const progress *g, int64_t v, int64_t mb) {
    return v == 0 || (*cell(g, v - 1, mb) & F_DONE);
}

static bool backward_ready(const progress *g, int64_t v, int64_t mb) {
    return (*cell(g, v, mb) & F_DONE) && (v == g->vstages - 1 || (*cell(g, v + 1, mb) & B_DONE));
}

static bool in_range(const mf_schedule *s, int64_t chunk, int64_t mb) {
    return chunk >= 0 && chunk < s->chunks && mb >= 0 && mb < s->micro_batches;
}

/* Plays one event if the passes that it waits for are done. Sets *twice at a second play of a pass.
 */
static bool play(const progress *g, const mf_schedule *s, int64_t stage, const mf_event *ev,
                 bool *twice) {
    if (!in_range(s, ev->chunk, ev->micro_batch) ||
        (ev->pass == MF_EVENT_FB && !in_range(s, ev->chunk2, ev->micro_batch2))) {
        *twice = true;
        return false;
    }
    int64_t v = mf_layout_vstage(g->l, stage, ev->chunk);
    uint8_t *at = cell(g, v, ev->micro_batch);
    switch ((mf_event_pass)ev->pass) {
    case MF_EVENT_F:
        *twice |= (*at & F_DONE) != 0;
        if (!forward_ready(g, v, ev->micro_batch)) {
            return false;
        }
        *at |= F_DONE;
        return true;
    case MF_EVENT_B:
        *twice |= (*at & B_DONE) != 0;
        if (!backward_ready(g, v, ev->micro_batch)) {
            return false;
        }
        *at |= B_DONE;
        return true;
    case MF_EVENT_W:
        *twice |= (*at & W_DONE) != 0;
        if (!(*at & B_DONE)) {
            return false;
        }
        *at |= W_DONE;
        return true;
    case MF_EVENT_FB: {
        int64_t v2 = mf_layout_vstage(g->l, stage, ev->chunk2);
        uint8_t *at2 = cell(g, v2, ev->micro_batch2);
        *twice |= (*at & F_DONE) != 0 || (*at2 & B_DONE) != 0;
        /* Both inputs are there before either starts. */
        if (!forward_ready(g, v, ev->micro_batch) || !backward_ready(g, v2, ev->micro_batch2)) {
            return false;
        }
        *at |= F_DONE;
        *at2 |= B_DONE;
        return true;
    }
    }
    return false;
}

mf_status mf_schedule_check(const mf_layout *l, const mf_schedule *s, mf_err *e) {
    progress g = {l, l->pp * l->vpp, s->micro_batches, NULL};
    int64_t *next = calloc((size_t)s->stages, sizeof *next);
    g.done = calloc((size_t)(g.vstages * g.micro_batches), 1);
    mf_status status = MF_OK;
    if (next == NULL || g.done == NULL) {
        status = mf_err_set(e, MF_NOMEM, "schedule check: out of memory");
        goto out;
    }
    bool moved = true;
    while (moved) {
        moved = false;
        for (int64_t p = 0; p < s->stages; p++) {
            while (next[p] < s->count[p]) {
                bool twice = false;
                bool played = play(&g, s, p, &s->events[p][next[p]], &twice);
                if (twice) {
                    status = mf_err_set(e, MF_LAYOUT, "stage %lld event %lld plays a pass twice",
                                        LL(p), LL(next[p]));
                    goto out;
                }
                if (!played) {
                    break;
                }
                next[p]++;
                moved = true;
            }
        }
    }
    uint8_t all = (uint8_t)(F_DONE | B_DONE | (s->split ? W_DONE : 0));
    for (int64_t p = 0; p < s->stages; p++) {
        if (next[p] < s->count[p]) {
            status = mf_err_set(e, MF_LAYOUT, "stage %lld waits for ever at event %lld", LL(p),
                                LL(next[p]));
            goto out;
        }
    }
    for (int64_t i = 0; i < g.vstages * g.micro_batches; i++) {
        if (g.done[i] != all) {
            status = mf_err_set(e, MF_LAYOUT, "virtual stage %lld micro-batch %lld is incomplete",
                                LL(i / g.micro_batches), LL(i % g.micro_batches));
            goto out;
        }
    }
out:
    free(next);
    free(g.done);
    return status;
}

/* --- messages ----------------------------------------------------------------------------------
 */

int mf_schedule_sending(const mf_layout *l) {
    return l->pp == 1 ? 0 : mf_layout_turns(l) ? 2 : 1;
}

int mf_schedule_messages(const mf_layout *l) {
    /* Neighbouring chunks on one rank: at the turns of a V, or of a pipeline of one stage. */
    bool turns = mf_layout_turns(l) || (l->pp == 1 && l->vpp > 1);
    return 2 * mf_schedule_sending(l) + (turns ? 2 : 0);
}

int mf_schedule_slot(const mf_layout *l, int64_t from, int direction) {
    int sending = mf_schedule_sending(l);
    assert(sending > 0); /* one stage sends nothing */
    return direction * sending + (int)(mf_layout_chunk_of(l, from) % sending);
}

/* --- in flight -------------------------------------------------------------------------------- */

static bool dominates(const int32_t *a, const int32_t *a_held, const int32_t *b,
                      const int32_t *b_held, int64_t n) {
    for (int64_t c = 0; c < n; c++) {
        if (a[c] < b[c] || a_held[c] < b_held[c]) {
            return false;
        }
    }
    return true;
}

/* Adds a vector unless one that is there covers it; drops those that it covers. */
static int keep_vector(const int32_t *now, const int32_t *now_held, int64_t n, int rows,
                       int max_rows, int32_t *in_flight, int32_t *held) {
    int kept = 0;
    for (int k = 0; k < rows; k++) {
        int32_t *row = &in_flight[k * n], *row_held = &held[k * n];
        if (dominates(row, row_held, now, now_held, n)) {
            return rows;
        }
        if (!dominates(now, now_held, row, row_held, n)) {
            memmove(&in_flight[kept * n], row, (size_t)n * sizeof *row);
            memmove(&held[kept * n], row_held, (size_t)n * sizeof *row_held);
            kept++;
        }
    }
    if (kept == max_rows) {
        return kept; /* the array is full: each row kept is still a moment of the schedule */
    }
    memcpy(&in_flight[kept * n], now, (size_t)n * sizeof *now);
    memcpy(&held[kept * n], now_held, (size_t)n * sizeof *now_held);
    return kept + 1;
}

int mf_schedule_in_flight(const mf_schedule *s, int64_t stage, int max_rows, int32_t *in_flight,
                          int32_t *held) {
    enum { MAX_CHUNKS = 256 };
    int32_t now[MAX_CHUNKS] = {0}, now_held[MAX_CHUNKS] = {0};
    int rows = 0;
    int64_t n = s->chunks;
    if (n > MAX_CHUNKS || max_rows < 1) {
        return 0;
    }
    for (int64_t i = 0; i < s->count[stage]; i++) {
        const mf_event *ev = &s->events[stage][i];
        if (ev->pass == MF_EVENT_B || ev->pass == MF_EVENT_FB) {
            /* of a pair, the one goes block by block as the other comes */
            int16_t chunk = ev->pass == MF_EVENT_FB ? ev->chunk2 : ev->chunk;
            now[chunk]--;
            if (s->split) {
                now_held[chunk]++;
                rows = keep_vector(now, now_held, n, rows, max_rows, in_flight, held);
            }
        } else if (ev->pass == MF_EVENT_W) {
            now_held[ev->chunk]--;
        }
        if (ev->pass == MF_EVENT_F || ev->pass == MF_EVENT_FB) {
            now[ev->chunk]++;
            rows = keep_vector(now, now_held, n, rows, max_rows, in_flight, held);
        }
    }
    return rows;
}
