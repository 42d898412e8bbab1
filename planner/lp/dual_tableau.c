/* dual_tableau.c - the tableau of dual_simplex.h: rows into it and out, pivots, proofs. */
#include "planner/lp/dual_simplex.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *tableau_row(const mf_dual *d, int r) {
    return d->t + (size_t)(r + 1) * (size_t)d->stride;
}

static double *original_row(const mf_dual *d, int row) {
    return d->a + (size_t)row * (size_t)d->stride;
}

/* Multipliers of less may have either sign. */
#define WRONG 1e-10

/* --- values -----------------------------------------------------------------------------------
 */

/* Bounds that were given since may have left a variable on the wrong side: one that was fixed, or
 * that stood at a bound which is none now. */
static void choose_side(mf_dual *d, int p) {
    int v = d->nonbasic[p];
    bool up = d->t[p] < -WRONG || (d->up[p] && !(d->t[p] > WRONG));
    d->up[p] = isinf(d->hi[v]) ? false : isinf(d->lo[v]) ? true : up;
}

void mf_dual_values(mf_dual *d) {
    for (int p = 0; p < d->cols; p++) {
        int v = d->nonbasic[p];
        choose_side(d, p);
        d->at[p] = d->up[p] ? d->hi[v] : d->lo[v];
    }
    d->entries += (int64_t)(d->basics + 1) * d->stride;
    const double *const at[4] = {d->at, d->at, d->at, d->at};
    int r = -1;
    for (; r + 4 <= d->basics; r += 4) {
        const double *const t[4] = {tableau_row(d, r), tableau_row(d, r + 1), tableau_row(d, r + 2),
                                    tableau_row(d, r + 3)};
        mf_dual_four_products(t, at, d->stride, &d->value[r + 1]);
    }
    for (; r < d->basics; r++) {
        d->value[r + 1] = mf_dual_product(tableau_row(d, r), d->at, d->stride);
    }
}

/* --- rows in and out -------------------------------------------------------------------------- */

static bool allocate_more(mf_dual *d) {
    if (d->basics < d->basics_allocated) {
        return true;
    }
    size_t allocated = 2 * (size_t)d->basics_allocated + 32;
    void *grown = NULL;
    if (!MF_DUAL_MORE(d->basic, allocated) || !MF_DUAL_MORE(d->value, allocated + 1) ||
        !MF_DUAL_MORE(d->norm, allocated + 1) ||
        !mf_dual_lines(&d->t, (size_t)(d->basics + 1) * (size_t)d->stride,
                       (allocated + 1) * (size_t)d->stride)) {
        return false;
    }
    d->basics_allocated = (int)allocated;
    return true;
}

bool mf_dual_enter_row(mf_dual *d, int row) {
    if (!allocate_more(d)) {
        d->failed = true;
        return false;
    }
    int r = d->basics++, v = d->cols + row;
    const double *a = original_row(d, row);
    double *t = tableau_row(d, r), sum = 0.0;
    memset(t, 0, (size_t)d->stride * sizeof *t);
    for (int j = d->from[row]; j < d->to[row]; j++) {
        if (a[j] > 0.0 || a[j] < 0.0) {
            if (d->where[j] >= 0) {
                t[d->where[j]] += a[j];
                sum += a[j] * d->at[d->where[j]];
            } else {
                int from = -1 - d->where[j];
                d->entries += d->stride;
                mf_dual_add_times(t, tableau_row(d, from), a[j], d->stride);
                sum += a[j] * d->value[from + 1];
            }
        }
    }
    d->basic[r] = v;
    d->where[v] = -1 - r;
    d->value[r + 1] = sum;
    d->norm[r + 1] = -1.0;
    return true;
}

void mf_dual_drop_basic_rows(mf_dual *d) {
    int kept = 0;
    for (int r = 0; r < d->basics; r++) {
        int v = d->basic[r];
        if (v >= d->cols) {
            d->where[v] = MF_DUAL_OUT;
            d->in_use[v - d->cols] = d->solves;
            continue;
        }
        if (kept < r) {
            memcpy(tableau_row(d, kept), tableau_row(d, r), (size_t)d->stride * sizeof *d->t);
            d->value[kept + 1] = d->value[r + 1];
            d->norm[kept + 1] = d->norm[r + 1];
            d->basic[kept] = v;
            d->where[v] = -1 - kept;
        }
        kept++;
    }
    d->basics = kept;
}

/* --- pivots ----------------------------------------------------------------------------------- */

/* Smaller entries of the tableau are taken for rounding errors. */
#define NOTHING 1e-12

void mf_dual_pivot(mf_dual *d, int r, int q) {
    double *row = tableau_row(d, r), by = 1.0 / row[q];
    int leaves = d->basic[r], enters = d->nonbasic[q];
    for (int p = 0; p < d->cols; p++) {
        row[p] = fabs(row[p]) < NOTHING ? 0.0 : -by * row[p];
    }
    row[q] = by;
    d->norm[r + 1] = -1.0;
    d->entries += d->stride;
    for (int i = -1; i < d->basics; i++) {
        double *t = tableau_row(d, i), f = t[q];
        if (i != r && (f > 0.0 || f < 0.0)) {
            t[q] = 0.0;
            d->entries += d->stride;
            mf_dual_add_times(t, row, f, d->stride);
            d->norm[i + 1] = -1.0;
        }
    }
    d->basic[r] = enters;
    d->nonbasic[q] = leaves;
    d->where[enters] = -1 - r;
    d->where[leaves] = q;
    d->pivots++;
    d->since++;
}

/* The place of a basic variable's row with the largest entry among rows' sums that shall bind. */
static int largest_entry(const mf_dual *d, int r, const bool *free_place) {
    const double *t = tableau_row(d, r);
    int best = -1;
    for (int p = 0; p < d->cols; p++) {
        if (free_place[p] && (best < 0 || fabs(t[p]) > fabs(t[best]))) {
            best = p;
        }
    }
    return best;
}

/* All columns out of the basis, the rows that bind in the tableau; then these change places with
 * the columns that were basic. */
bool mf_dual_renew(mf_dual *d) {
    int n = d->cols, binding = 0;
    bool *wanted = calloc((size_t)n, sizeof *wanted), *was_up = calloc((size_t)n, sizeof *was_up);
    int *row = malloc((size_t)n * sizeof *row);
    bool *row_up = calloc((size_t)n, sizeof *row_up);
    bool ok = wanted && was_up && row && row_up;
    for (int p = 0; p < n && ok; p++) {
        int v = d->nonbasic[p];
        if (v >= n) {
            row_up[binding] = d->up[p];
            row[binding++] = v - n;
        } else {
            was_up[v] = d->up[p];
        }
    }
    for (int r = 0; r < d->basics && ok; r++) {
        int v = d->basic[r];
        if (v < n) {
            wanted[v] = true;
        } else {
            d->where[v] = MF_DUAL_OUT;
        }
    }
    for (int p = 0; p < n && ok; p++) {
        d->nonbasic[p] = p;
        d->where[p] = p;
        d->up[p] = was_up[p];
        d->t[p] = d->tilted[p];
    }
    d->basics = 0;
    for (int i = 0; i < binding && ok; i++) {
        ok = mf_dual_enter_row(d, row[i]);
    }
    for (int i = 0; i < binding && ok; i++) { /* wanted[p]: the column there is still out */
        int q = largest_entry(d, i, wanted);
        ok = q >= 0 && fabs(tableau_row(d, i)[q]) > 1e-9;
        if (ok) {
            wanted[q] = false;
            mf_dual_pivot(d, i, q);
            d->up[q] = row_up[i];
        }
    }
    free(wanted);
    free(was_up);
    free(row);
    free(row_up);
    d->since = 0;
    return ok;
}

void mf_dual_reset(mf_dual *d) {
    for (int v = 0; v < d->cols + d->rows; v++) {
        d->where[v] = v < d->cols ? v : MF_DUAL_OUT;
    }
    for (int p = 0; p < d->cols; p++) {
        d->nonbasic[p] = p;
        d->t[p] = d->tilted[p];
    }
    d->basics = 0;
    d->since = 0;
}

/* --- proofs -----------------------------------------------------------------------------------
 */

/* What multipliers prove: the least of left . x + the sum over rows of multiplier x their sums,
 * where left[] is what the rows leave of a form. -INFINITY when a bound that it needs is none. */
static double least_of(const mf_dual *d, const double *left, int skip) {
    double sum = 0.0;
    for (int j = 0; j < d->cols; j++) {
        if (j != skip && (left[j] > 0.0 || left[j] < 0.0)) {
            sum += left[j] * (left[j] > 0.0 ? d->lo[j] : d->hi[j]);
        }
    }
    return sum;
}

/* The one column that costs, and costs 1; -1 when it is otherwise. */
static int only_cost(const mf_dual *d) {
    int at = -1;
    for (int j = 0; j < d->cols; j++) {
        if (d->cost[j] > 0.0 || d->cost[j] < 0.0) {
            if (at >= 0 || d->cost[j] > 1.0 || d->cost[j] < 1.0) {
                return -1;
            }
            at = j;
        }
    }
    return at;
}

/* Takes the rows that bind, with multipliers t[] by place, from the form left[]. */
static double take_rows(mf_dual *d, const double *t, double *left) {
    double sum = 0.0;
    for (int p = 0; p < d->cols; p++) {
        int v = d->nonbasic[p];
        double bound = t[p] > 0.0 ? d->lo[v] : d->hi[v];
        if (v < d->cols || !(t[p] > 0.0 || t[p] < 0.0) || isinf(bound)) {
            continue; /* a multiplier of the wrong sign is left out */
        }
        sum += t[p] * bound;
        d->entries += d->stride;
        mf_dual_add_times(left, original_row(d, v - d->cols), -t[p], d->stride);
    }
    return sum;
}

static double proven_by(mf_dual *d, const double *t) {
    double *left = d->work;
    memset(left, 0, (size_t)d->stride * sizeof *left);
    memcpy(left, d->cost, (size_t)d->cols * sizeof *left);
    double sum = take_rows(d, t, left);
    int only = only_cost(d);
    if (only >= 0 && left[only] < 0.5) { /* of the cost that is left over so much less is proven */
        sum += least_of(d, left, only);
        return sum / (1.0 - left[only]);
    }
    return sum + least_of(d, left, -1);
}

/* Multipliers of costs that are not tilted. */
static void true_multipliers(const mf_dual *d, double *t) {
    memset(t, 0, (size_t)d->stride * sizeof *t);
    for (int j = 0; j < d->cols; j++) {
        if (!(d->cost[j] > 0.0 || d->cost[j] < 0.0)) {
            continue;
        }
        if (d->where[j] >= 0) {
            t[d->where[j]] += d->cost[j];
        } else {
            mf_dual_add_times(t, tableau_row(d, -1 - d->where[j]), d->cost[j], d->stride);
        }
    }
}

double mf_dual_proven(mf_dual *d) {
    double *t = d->work + d->stride;
    true_multipliers(d, t);
    return fmax(proven_by(d, t), proven_by(d, d->t));
}

bool mf_dual_proves_empty(mf_dual *d, int r) {
    double *left = d->work;
    int v = d->basic[r];
    bool low = d->value[r + 1] < d->lo[v];
    /* the variable itself as a form over columns, its sign such that it is too small */
    double sign = low ? -1.0 : 1.0;
    memset(left, 0, (size_t)d->stride * sizeof *left);
    if (v < d->cols) {
        left[v] = 1.0;
    } else {
        memcpy(left, original_row(d, v - d->cols), (size_t)d->stride * sizeof *left);
    }
    double *t = tableau_row(d, r);
    for (int p = 0; p < d->cols; p++) {
        t[p] *= sign;
        left[p] *= sign;
    }
    double least = take_rows(d, t, left);
    least += least_of(d, left, -1);
    for (int p = 0; p < d->cols; p++) {
        t[p] *= sign;
    }
    double most = low ? -d->lo[v] : d->hi[v];
    return least > most + 1e-9 * (1.0 + fabs(most));
}
