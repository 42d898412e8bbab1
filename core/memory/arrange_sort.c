/* arrange_sort.c - sorts things by birth and by death.
 *
 * Steps are small numbers with a few things each, so it is a counting sort; sorting by comparison
 * took a tenth of an arrangement.
 */
#include "core/memory/arrange_group.h"

#include <stdlib.h>
#include <string.h>

static int compare(int64_t a, int64_t b) {
    return a < b ? -1 : a > b;
}

static int by_birth(const mf_lifetime *x, const mf_lifetime *y) {
    int c = compare(x->first, y->first);
    c = c != 0 ? c : compare(x->transient, y->transient);
    c = c != 0 ? c : compare(x->group, y->group);
    return c != 0 ? c : compare(x->last, y->last);
}

typedef struct keyed {
    int64_t key;
    int thing;
} keyed;

static int by_key(const void *a, const void *b) {
    const keyed *x = a, *y = b;
    int c = compare(x->key, y->key);
    return c != 0 ? c : x->thing - y->thing;
}

static int64_t step_of(const mf_lifetime *s, bool death) {
    return death ? s->last : s->first;
}

/* Sorts by comparison, when steps are too far apart to count. */
static bool sort_far(const mf_lifetimes *x, bool death, int *order) {
    keyed *k = malloc(((size_t)x->count + 1) * sizeof *k);
    if (k == NULL) {
        return false;
    }
    for (int i = 0; i < x->count; i++) {
        k[i] = (keyed){step_of(&x->list[i], death), i};
    }
    qsort(k, (size_t)x->count, sizeof *k, by_key);
    for (int i = 0; i < x->count; i++) {
        order[i] = k[i].thing;
    }
    free(k);
    return true;
}

/* order[count]: things by the step of their birth or death; a stable sort. */
static bool sort_steps(const mf_lifetimes *x, bool death, int *order) {
    int64_t low = x->count > 0 ? step_of(&x->list[0], death) : 0, high = low;
    for (int i = 0; i < x->count; i++) {
        int64_t step = step_of(&x->list[i], death);
        low = step < low ? step : low;
        high = step > high ? step : high;
    }
    if (high - low > 8 * (int64_t)x->count + 64) {
        return sort_far(x, death, order);
    }
    int *before = calloc((size_t)(high - low) + 2, sizeof *before); /* of a step */
    if (before == NULL) {
        return false;
    }
    for (int i = 0; i < x->count; i++) {
        before[step_of(&x->list[i], death) - low + 1]++;
    }
    for (int64_t s = 0; s < high - low; s++) {
        before[s + 1] += before[s];
    }
    for (int i = 0; i < x->count; i++) {
        order[before[step_of(&x->list[i], death) - low]++] = i;
    }
    free(before);
    return true;
}

bool mf_grouping_by_birth(mf_lifetimes *x, int *order) {
    mf_lifetime *sorted = malloc(((size_t)x->count + 1) * sizeof *sorted);
    if (sorted == NULL || !sort_steps(x, false, order)) {
        free(sorted);
        return false;
    }
    for (int i = 0; i < x->count; i++) {
        mf_lifetime s = x->list[order[i]];
        int at = i;
        for (; at > 0 && by_birth(&sorted[at - 1], &s) > 0; at--) { /* among those of its step */
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = s;
    }
    memcpy(x->list, sorted, (size_t)x->count * sizeof *sorted);
    free(sorted);
    return true;
}

bool mf_grouping_by_death(const mf_lifetimes *x, int *order) {
    return sort_steps(x, true, order);
}
