/* dual_simplex.c - the dual simplex method with flips of bounds (see dual_simplex.h). */
#include "planner/lp/dual_simplex.h"

#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A bound is kept when it is missed by no more than this, times one and its size. Rows are scaled
 * so that their largest entry is about one. */
#define FEASIBLE 1e-7
/* Pivots no smaller than this; ratios that differ by less are taken for ties. */
#define SMALLEST_PIVOT 1e-7
#define TIE 1e-11

/* --- broken rows ------------------------------------------------------------------------------ */

static double broken_by(const mf_dual *d, int v, double value) {
    double lo = d->lo[v], hi = d->hi[v];
    if (value < lo) {
        return value < lo - FEASIBLE * (1.0 + fabs(lo)) ? lo - value : 0.0;
    }
    return value > hi + FEASIBLE * (1.0 + fabs(hi)) ? value - hi : 0.0;
}

static void read_point(mf_dual *d) {
    for (int j = 0; j < d->cols; j++) {
        d->x[j] = d->where[j] >= 0 ? d->at[d->where[j]] : d->value[-d->where[j]];
    }
}

/* At the point, of `count` rows that are out, of at most four. */
static void find_sums(mf_dual *d, const int row[4], int count, double sum[4]) {
    const double *a[4], *x[4];
    int from = d->stride, to = 0, entries = 0;
    for (int k = 0; k < count; k++) {
        from = d->from[row[k]] < from ? d->from[row[k]] : from;
        to = d->to[row[k]] > to ? d->to[row[k]] : to;
        entries += d->to[row[k]] - d->from[row[k]];
    }
    d->entries += entries;
    if (count == 4 && to - from <= entries) { /* no longer than one after the other */
        for (int k = 0; k < 4; k++) {
            a[k] = d->a + (size_t)row[k] * (size_t)d->stride + from;
            x[k] = d->x + from;
        }
        mf_dual_four_products(a, x, to - from, sum);
        return;
    }
    for (int k = 0; k < count; k++) {
        from = d->from[row[k]];
        to = d->to[row[k]];
        sum[k] = to > from ? mf_dual_product(d->a + (size_t)row[k] * (size_t)d->stride + from,
                                             d->x + from, to - from)
                           : 0.0;
    }
}

/* The rows that are broken most, the worst first. */
typedef struct worst {
    int row[MF_LP_ROWS_TOGETHER], count;
    double by[MF_LP_ROWS_TOGETHER];
} worst;

static void note_broken(mf_dual *d, const int row[4], int count, worst *w) {
    double sum[4];
    find_sums(d, row, count, sum);
    for (int i = 0; i < count; i++) {
        const double off = broken_by(d, d->cols + row[i], sum[i]);
        if (!(off > 0.0) || (w->count == MF_LP_ROWS_TOGETHER && off <= w->by[w->count - 1])) {
            continue;
        }
        int k = w->count < MF_LP_ROWS_TOGETHER ? w->count++ : w->count - 1;
        for (; k > 0 && w->by[k - 1] < off; k--) {
            w->by[k] = w->by[k - 1];
            w->row[k] = w->row[k - 1];
        }
        w->by[k] = off;
        w->row[k] = row[i];
    }
}

/* Of the rows that are out, those in use lately or the idle ones, the ones that the point breaks
 * most. */
static void find_broken(mf_dual *d, bool idle, worst *w) {
    int row[4], count = 0;
    w->count = 0;
    for (int i = 0; i < d->rows; i++) {
        if (d->where[d->cols + i] == MF_DUAL_OUT &&
            (d->solves - d->in_use[i] > MF_LP_IDLE_SOLVES) == idle) {
            row[count++] = i;
            if (count == 4) {
                note_broken(d, row, count, w);
                count = 0;
            }
        }
    }
    note_broken(d, row, count, w);
}

/* Puts the rows into the tableau that the point breaks most; returns how many. */
static int enter_broken(mf_dual *d) {
    worst w;
    read_point(d);
    find_broken(d, false, &w);
    if (w.count == 0) {
        find_broken(d, true, &w);
    }
    for (int k = 0; k < w.count; k++) {
        if (!mf_dual_enter_row(d, w.row[k])) {
            return -1;
        }
    }
    return w.count;
}

/* --- one step --------------------------------------------------------------------------------- */

/* Norms of `count` tableau rows, of at most four. */
static void find_norms(mf_dual *d, const int row[4], int count) {
    const double *t[4];
    double norm[4];
    for (int i = 0; i < 4; i++) {
        t[i] = d->t + (size_t)(row[i < count ? i : 0] + 1) * (size_t)d->stride;
    }
    d->entries += (int64_t)count * d->stride;
    if (count == 1) {
        norm[0] = mf_dual_product(t[0], t[0], d->stride);
    } else if (count > 1) {
        mf_dual_four_products(t, t, d->stride, norm);
    }
    for (int i = 0; i < count; i++) {
        d->norm[row[i] + 1] = norm[i];
    }
}

static double missed_by(const mf_dual *d, int r) {
    const int v = d->basic[r];
    return d->stuck[v] ? 0.0 : broken_by(d, v, d->value[r + 1]);
}

/* The basic variable that is furthest from its bounds, as seen along its row; -1: none is off. */
static int choose_row(mf_dual *d) {
    int best = -1, row[4] = {0}, count = 0;
    double most = 0.0;
    for (int r = 0; r < d->basics; r++) {
        if (d->norm[r + 1] < 0.0 && missed_by(d, r) > 0.0) {
            row[count++] = r;
            if (count == 4) {
                find_norms(d, row, count);
                count = 0;
            }
        }
    }
    find_norms(d, row, count);
    for (int r = 0; r < d->basics; r++) {
        const double off = missed_by(d, r);
        if (off > 0.0) {
            const double score = off * off / (1e-6 + d->norm[r + 1]);
            if (score > most) {
                most = score;
                best = r;
            }
        }
    }
    return best;
}

static bool comes_before(const mf_dual_candidate *x, const mf_dual_candidate *y) {
    return x->ratio < y->ratio || (!(x->ratio > y->ratio) && x->place < y->place);
}

/* Of the candidates [from, count) the first by ratio comes to `from`. */
static void select_first(mf_dual_candidate *c, int from, int count) {
    int first = from;
    for (int k = from + 1; k < count; k++) {
        first = comes_before(&c[k], &c[first]) ? k : first;
    }
    mf_dual_candidate x = c[from];
    c[from] = c[first];
    c[first] = x;
}

/* Places that can bring tableau row r's variable back: by how much the cost rises with each. */
static int find_candidates(const mf_dual *d, int r, mf_dual_candidate *out) {
    const double *t = d->t + (size_t)(r + 1) * (size_t)d->stride;
    const double sign = d->value[r + 1] < d->lo[d->basic[r]] ? 1.0 : -1.0;
    int moves = 0, count = 0;
    for (int p = 0; p < d->cols; p++) { /* signs are as good as random: no branch */
        const double entry = sign * t[p];
        d->place[moves] = p;
        moves += (d->up[p] ? -entry : entry) > SMALLEST_PIVOT;
    }
    for (int k = 0; k < moves; k++) {
        const int p = d->place[k], v = d->nonbasic[p];
        if (d->lo[v] < d->hi[v]) {
            const double entry = fabs(t[p]), rise = d->up[p] ? -d->t[p] : d->t[p];
            out[count++] = (mf_dual_candidate){(rise > 0.0 ? rise : 0.0) / entry, entry,
                                               d->hi[v] - d->lo[v], p};
        }
    }
    return count;
}

/* How many candidates the variable passes by before it is back, each of them going to its other
 * bound: they come first, and then the one that stops it. `count` when none does. */
static int bound_flip_ratio_test(mf_dual_candidate *c, int count, double off) {
    int at = 0;
    for (; at < count; at++) {
        select_first(c, at, count);
        off -= c[at].entry * c[at].width;
        if (off <= FEASIBLE) { /* all of it, and no further, is far enough */
            break;
        }
    }
    return at;
}

/* Of those that tie with candidate `at` the one with the largest entry: it becomes basic. */
static int choose_place(const mf_dual_candidate *c, int count, int at) {
    int best = at;
    double near = TIE * (1.0 + c[at].ratio);
    for (int k = at - 1; k >= 0 && c[k].ratio >= c[at].ratio - near; k--) {
        best = c[k].entry > c[best].entry ? k : best;
    }
    for (int k = at + 1; k < count; k++) {
        bool ties = c[k].ratio <= c[at].ratio + near;
        best = ties && c[k].entry > c[best].entry ? k : best;
    }
    return best;
}

static void move_to(mf_dual *d, int p, double value) {
    double by = value - d->at[p];
    d->at[p] = value;
    d->entries += MF_LP_COLUMN_ENTRIES * (int64_t)(d->basics + 1);
    for (int r = 0; r <= d->basics; r++) {
        d->value[r] += by * d->t[(size_t)r * (size_t)d->stride + (size_t)p];
    }
}

/* Tableau row r's variable to the bound that it breaks; c[0 ... passed - 1] flip, but for `best`.
 */
static void step(mf_dual *d, int r, const mf_dual_candidate *c, int passed, int best) {
    int v = d->basic[r], q = c[best].place;
    bool low = d->value[r + 1] < d->lo[v];
    for (int k = 0; k < passed; k++) {
        int p = c[k].place, u = d->nonbasic[p];
        if (k == best) {
            continue;
        }
        d->up[p] = !d->up[p];
        move_to(d, p, d->up[p] ? d->hi[u] : d->lo[u]);
    }
    double bound = low ? d->lo[v] : d->hi[v];
    double entry = d->t[(size_t)(r + 1) * (size_t)d->stride + (size_t)q];
    move_to(d, q, d->at[q] + (bound - d->value[r + 1]) / entry);
    double entered = d->at[q];
    mf_dual_pivot(d, r, q);
    d->value[r + 1] = entered;
    d->at[q] = bound;
    d->up[q] = !low;
}

/* --- solving ---------------------------------------------------------------------------------- */

static void forget_stuck(mf_dual *d) {
    memset(d->stuck, 0, (size_t)(d->cols + d->rows) * sizeof *d->stuck);
}

/* The tableau is made anew where it is old or was found wrong. Of a basis that rounding has led
 * astray none can be made: then all starts again without one. */
static void renew(mf_dual *d) {
    if (!mf_dual_renew(d)) {
        mf_dual_reset(d);
    }
    forget_stuck(d);
    mf_dual_values(d);
}

/* Nothing brings tableau row r's variable back: false when that is proven. Else the tableau is
 * wrong, or the variable off by no more than rounding. */
static bool is_possible(mf_dual *d, int r) {
    if (mf_dual_proves_empty(d, r)) {
        return false;
    }
    if (d->since > 0) {
        renew(d);
    } else {
        d->stuck[d->basic[r]] = true;
    }
    return true;
}

/* Is what the tableau says of the cost proven, up to little? Made anew when not. */
static bool verify_bound(mf_dual *d, double *proven) {
    *proven = mf_dual_proven(d);
    if (fabs(*proven - d->value[0]) <= 1e-6 * (1.0 + fabs(*proven)) || d->since == 0) {
        return true;
    }
    renew(d);
    return false;
}

/* All bounds are kept, as far as the tableau knows: broken rows are put in. True when there are
 * none and the cost is proven. */
static bool is_done(mf_dual *d, bool *fresh, double *proven) {
    if (!*fresh) {
        mf_dual_values(d);
        *fresh = true;
        return false;
    }
    int broken = enter_broken(d);
    d->failed = d->failed || broken < 0;
    return broken == 0 && verify_bound(d, proven);
}

/* One pivot. False when the rows are proven to leave nothing. */
static bool iterate(mf_dual *d, int r) {
    mf_dual_candidate *c = d->candidate;
    int count = find_candidates(d, r, c);
    d->entries += 4 * (int64_t)d->cols + 2 * (int64_t)d->basics;
    double lo = d->lo[d->basic[r]], hi = d->hi[d->basic[r]], value = d->value[r + 1];
    int passed = bound_flip_ratio_test(c, count, value < lo ? lo - value : value - hi);
    d->entries += 2 * (int64_t)count * (passed + 1) - (int64_t)passed * passed;
    if (passed == count) {
        return is_possible(d, r);
    }
    step(d, r, c, passed, choose_place(c, count, passed));
    return true;
}

static mf_dual_outcome solve(mf_dual *d, double cutoff, int64_t most_pivots, double *bound) {
    int64_t from = d->pivots;
    bool fresh = true;
    mf_dual_values(d);
    while (!d->failed && d->pivots - from < MF_LP_MOST_PIVOTS) {
        double proven;
        if (d->value[0] >= cutoff && verify_bound(d, &proven) && proven >= cutoff) {
            *bound = cutoff;
            return MF_DUAL_OPTIMAL;
        }
        if ((most_pivots > 0 && d->pivots - from >= most_pivots) ||
            (d->most_entries > 0 && d->entries >= d->most_entries)) {
            *bound = fmin(mf_dual_proven(d), cutoff);
            return MF_DUAL_LIMIT;
        }
        if (d->since >= MF_LP_RENEW_PIVOTS) {
            renew(d);
        }
        int r = choose_row(d);
        if (r < 0) {
            if (is_done(d, &fresh, &proven)) {
                *bound = fmin(proven, cutoff);
                return MF_DUAL_OPTIMAL;
            }
            continue;
        }
        fresh = false;
        if (!iterate(d, r)) {
            *bound = INFINITY;
            return MF_DUAL_INFEASIBLE;
        }
    }
    return MF_DUAL_FAILED;
}

mf_dual_outcome mf_dual_solve(mf_dual *d, double cutoff, int64_t most_pivots, double *bound) {
    *bound = -INFINITY;
    d->solves++;
    forget_stuck(d);
    mf_dual_outcome outcome = solve(d, cutoff, most_pivots, bound);
    mf_dual_drop_basic_rows(d);
    for (int p = 0; p < d->cols; p++) {
        if (d->nonbasic[p] >= d->cols) {
            d->in_use[d->nonbasic[p] - d->cols] = d->solves;
        }
    }
    return outcome;
}

double mf_dual_multiplier(const mf_dual *d, int var) {
    int p = d->where[var];
    return p >= 0 ? d->t[p] * (var < d->cols ? 1.0 : d->scale[var - d->cols]) : 0.0;
}
