/* give_away.c - takes positions from stages that no memory choice makes fit. */
#include "planner/assign/assign.h"
#include "planner/tuning/limits.h"

#include <stdlib.h>
#include <string.h>

/* A split that some stages are too small for. */
typedef struct tight_split {
    mf_partition *in;
    int64_t until_ns;  /* in->effort_ns at which it is given up */
    int *first, *next; /* [vstages + 1] */
    bool *full;        /* [stages] too small for what stands there */
    int32_t *count;    /* [cells] */
} tight_split;

static bool tight_init(tight_split *t, mf_partition *in, const int *first) {
    const size_t n = (size_t)in->vstages + 1;
    *t = (tight_split){.in = in,
                       .until_ns = *in->effort_ns + 1000 * MF_TIGHT_SPLIT_US,
                       .first = malloc(n * sizeof *first),
                       .next = malloc(n * sizeof *first),
                       .full = calloc((size_t)in->stages, sizeof *t->full),
                       .count = calloc(mf_partition_cells(in), sizeof *t->count)};
    const bool good = t->first && t->next && t->full && t->count;
    if (good) {
        memcpy(t->first, first, n * sizeof *first);
    }
    return good;
}

static void tight_clear(tight_split *t) {
    free(t->first);
    free(t->next);
    free(t->full);
    free(t->count);
}

static bool fits_on(const tight_split *t, const int *first, int stage) {
    return mf_partition_fill_stage(t->in, first, stage, t->in->usable_B, t->count);
}

/* A position went from virtual stage v to u: do the stages of u and of the virtual stages between
 * fit? The stage of v is not asked. */
static bool fits_beyond(const tight_split *t, int v, int u) {
    const mf_layout *l = &t->in->layout;
    const int from = (int)mf_layout_stage_of(l, v), step = u > v ? 1 : -1;
    bool fits = true;
    for (int x = v + step; x != u + step && fits; x += step) {
        const int stage = (int)mf_layout_stage_of(l, x);
        fits = stage == from || fits_on(t, t->next, stage);
    }
    return fits;
}

/* Gives a position of virtual stage v to u, if it fits there. */
static bool give(tight_split *t, int v, int u) {
    const mf_partition *in = t->in;
    if (u < 0 || u >= in->vstages || t->full[mf_layout_stage_of(&in->layout, u)] ||
        t->first[v + 1] - t->first[v] < 2) {
        return false;
    }
    memcpy(t->next, t->first, ((size_t)in->vstages + 1) * sizeof *t->next);
    mf_partition_shift(t->next, v, u);
    if (!mf_partition_is_split(in, t->next) || !fits_beyond(t, v, u)) {
        return false;
    }
    int *was = t->first;
    t->first = t->next;
    t->next = was;
    return true;
}

/* Gives one position of the stage to the nearest virtual stage that has memory for it. */
static bool give_one(tight_split *t, int stage) {
    const mf_partition *in = t->in;
    bool given = false;
    for (int far = 1; far < in->vstages && !given && *in->effort_ns < t->until_ns; far++) {
        for (int c = 0; c < in->chunks && !given; c++) {
            const int v = (int)mf_layout_vstage(&in->layout, stage, c);
            given = give(t, v, v - far) || give(t, v, v + far);
        }
    }
    return given;
}

mf_status mf_partition_give_away(mf_partition *in, int *first, mf_err *e) {
    tight_split t;
    if (!tight_init(&t, in, first)) {
        tight_clear(&t);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    bool fits = true;
    for (int p = 0; p < in->stages && fits; p++) {
        t.full[p] = !fits_on(&t, t.first, p);
    }
    for (int p = 0; p < in->stages && fits; p++) {
        while (fits && t.full[p]) {
            fits = give_one(&t, p);
            t.full[p] = fits && !fits_on(&t, t.first, p);
        }
    }
    if (fits) {
        memcpy(first, t.first, ((size_t)in->vstages + 1) * sizeof *first);
    }
    tight_clear(&t);
    return fits ? MF_OK : MF_INFEASIBLE;
}
