/* shadow_races.c - races by overlap of addresses, from what a shadow has recorded. */
#include "tests/support/shadow_races.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what comes before what ---------------------------------------------------------------------
 */

/* Work of one queue follows in a chain; where the next of a queue does not wait for the last (a
 * graph's, beside other work) it begins another. So one number a chain says what is past. */
enum { CHAINS = 128 };

typedef struct past {
    int64_t count, chains;
    int64_t end[CHAINS];   /* the last work of each */
    int32_t *chain, *rank; /* [count] of each work: its chain, and its place in it from 1 on */
    int32_t *clock;        /* [count][CHAINS] how much of each chain it waits for */
} past;

static void *must(void *p) {
    if (p == NULL) {
        fprintf(stderr, "races: out of memory\n");
        abort();
    }
    return p;
}

static int32_t *clock_of(const past *p, int64_t i) {
    return p->clock + i * CHAINS;
}

static bool is_past(const past *p, int64_t first, int64_t second) {
    return clock_of(p, second)[p->chain[first]] >= p->rank[first];
}

static void join_chain(const shadow_work *w, int64_t i, past *p) {
    int64_t c = 0;
    while (c < p->chains && !(w[p->end[c]].queue == w[i].queue && is_past(p, p->end[c], i))) {
        c++;
    }
    if (c == CHAINS) {
        fprintf(stderr, "races: more than %d chains\n", CHAINS);
        abort();
    }
    p->rank[i] = c < p->chains ? p->rank[p->end[c]] + 1 : 1;
    p->chains += c == p->chains;
    p->chain[i] = (int32_t)c;
    p->end[c] = i;
    clock_of(p, i)[c] = p->rank[i];
}

static bool ordered(const past *p, const shadow_work *w, int64_t first, int64_t second) {
    return w[first].epoch != w[second].epoch || is_past(p, first, second);
}

static void past_find(const shadow_work *w, int64_t n, past *p) {
    p->count = n;
    p->chains = 0;
    p->chain = must(calloc((size_t)n + 1, sizeof *p->chain));
    p->rank = must(calloc((size_t)n + 1, sizeof *p->rank));
    p->clock = must(calloc((size_t)n * CHAINS + 1, sizeof *p->clock));
    for (int64_t i = 0; i < n; i++) {
        int32_t *mine = clock_of(p, i);
        for (int k = 0; k < w[i].waits; k++) {
            const int32_t *other = clock_of(p, w[i].wait[k]);
            for (int64_t c = 0; c < p->chains; c++) {
                mine[c] = other[c] > mine[c] ? other[c] : mine[c];
            }
        }
        join_chain(w, i, p);
    }
}

static void past_clear(past *p) {
    free(p->chain);
    free(p->rank);
    free(p->clock);
}

/* --- pairs --------------------------------------------------------------------------------------
 */

typedef struct touch {
    const char *begin, *end;
    int64_t work;
    const shadow_span *span;
} touch;

static int by_begin(const void *a, const void *b) {
    const touch *x = a, *y = b;
    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1)
                                : (x->work > y->work) - (x->work < y->work);
}

static touch *touches_of(const shadow_work *w, int64_t n, int64_t *count) {
    int64_t all = 0;
    for (int64_t i = 0; i < n; i++) {
        all += w[i].spans.count;
    }
    touch *t = must(calloc((size_t)all + 1, sizeof *t));
    *count = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < w[i].spans.count; k++) {
            const shadow_span *s = &w[i].spans.span[k];
            t[(*count)++] = (touch){s->begin, shadow_span_end(s), i, s};
        }
    }
    qsort(t, (size_t)all, sizeof *t, by_begin);
    return t;
}

/* One report a pair of work. */
static bool known(const shadow_race *out, int64_t count, int64_t first, int64_t second) {
    for (int64_t i = count; i-- > 0;) {
        if (out[i].first == first && out[i].second == second) {
            return true;
        }
    }
    return false;
}

static void compare(const past *p, const shadow_work *w, const touch *a, const touch *b,
                    shadow_race *out, int64_t most, int64_t *count) {
    const touch *first = a->work < b->work ? a : b, *second = a->work < b->work ? b : a;
    const char *at;
    int64_t bytes;
    if (a->work == b->work || !(a->span->writes || b->span->writes) ||
        (a->span->raises && b->span->raises) || ordered(p, w, first->work, second->work) ||
        !shadow_spans_meet(first->span, second->span, &at, &bytes) ||
        known(out, *count < most ? *count : most, first->work, second->work)) {
        return;
    }
    if (*count < most) {
        out[*count] = (shadow_race){.first = first->work,
                                    .second = second->work,
                                    .at = at,
                                    .bytes = bytes,
                                    .first_writes = first->span->writes,
                                    .second_writes = second->span->writes};
    }
    (*count)++;
}

int64_t shadow_find_races(const mf_device *d, shadow_race *out, int64_t most) {
    const shadow_work *w;
    const int64_t n = shadow_recorded(d, &w);
    int64_t touches, open = 0, count = 0;
    touch *t = touches_of(w, n, &touches);
    const touch **active = must(calloc((size_t)touches + 1, sizeof *active));
    past p;
    past_find(w, n, &p);
    for (int64_t i = 0; i < touches; i++) {
        int64_t kept = 0;
        for (int64_t k = 0; k < open; k++) {
            if (active[k]->end > t[i].begin) {
                compare(&p, w, active[k], &t[i], out, most, &count);
                active[kept++] = active[k];
            }
        }
        active[kept] = &t[i];
        open = kept + 1;
    }
    past_clear(&p);
    free(active);
    free(t);
    return count;
}

bool shadow_ordered(const mf_device *d, int64_t first, int64_t second) {
    const shadow_work *w;
    past p;
    (void)shadow_recorded(d, &w);
    past_find(w, second + 1, &p);
    bool is = ordered(&p, w, first, second);
    past_clear(&p);
    return is;
}

void shadow_race_text(const mf_device *d, const shadow_race *r, char *text, size_t size) {
    const shadow_work *w;
    int64_t offset;
    (void)shadow_recorded(d, &w);
    int64_t most = shadow_place(d, r->at, &offset);
    const shadow_work *a = &w[r->first], *b = &w[r->second];
    snprintf(text, size,
             "%s (%s) on queue %d %s and %s (%s) on queue %d %s %lld bytes from byte %lld of "
             "allocation %lld on, and neither waits for the other",
             a->name, a->label, a->queue, r->first_writes ? "writes" : "reads", b->name, b->label,
             b->queue, r->second_writes ? "writes" : "reads", (long long)r->bytes,
             (long long)offset, (long long)most);
}
