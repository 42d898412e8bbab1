/* dual_program.c - programs of dual_simplex.h: columns, rows, bases that are kept. */
#include "planner/lp/dual_simplex.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* By how much costs are tilted so that few ratios tie: pivots that gain nothing may run in circles.
 * Bounds are proven by the costs as given. */
#define TILT 4e-9

/* --- making ----------------------------------------------------------------------------------- */

bool mf_dual_lines(double **row, size_t had, size_t count) {
    enum { LINE = 8 };
    double *made =
        aligned_alloc(LINE * sizeof *made, (count + LINE - 1) / LINE * LINE * sizeof *made);
    if (made == NULL) {
        return false;
    }
    if (had > 0) {
        memcpy(made, *row, had * sizeof *made);
    }
    free(*row);
    *row = made;
    return true;
}

static bool more_rows(mf_dual *d) {
    if (d->rows < d->rows_allocated) {
        return true;
    }
    size_t allocated = 2 * (size_t)d->rows_allocated + 64, vars = (size_t)d->cols + allocated;
    void *grown = NULL;
    if (!MF_DUAL_MORE(d->where, vars) || !MF_DUAL_MORE(d->stuck, vars) ||
        !MF_DUAL_MORE(d->lo, vars) || !MF_DUAL_MORE(d->hi, vars) ||
        !MF_DUAL_MORE(d->from, allocated) || !MF_DUAL_MORE(d->to, allocated) ||
        !MF_DUAL_MORE(d->in_use, allocated) || !MF_DUAL_MORE(d->scale, allocated) ||
        !mf_dual_lines(&d->a, (size_t)d->rows * (size_t)d->stride, allocated * (size_t)d->stride)) {
        return false;
    }
    d->rows_allocated = (int)allocated;
    return true;
}

void mf_dual_free(mf_dual *d) {
    if (!d) {
        return;
    }
    free(d->stuck);
    free(d->cost);
    free(d->lo);
    free(d->hi);
    free(d->a);
    free(d->scale);
    free(d->from);
    free(d->to);
    free(d->in_use);
    free(d->where);
    free(d->candidate);
    free(d->nonbasic);
    free(d->up);
    free(d->basic);
    free(d->t);
    free(d->value);
    free(d->norm);
    free(d);
}

/* In [0, 1), different for columns that are near each other. */
static double spread(int j) {
    double x = 0.6180339887498949 * (j + 1);
    return x - floor(x);
}

mf_dual *mf_dual_create(int cols, const double *lo, const double *hi, const double *cost) {
    mf_dual *d = calloc(1, sizeof *d);
    if (!d) {
        return NULL;
    }
    d->cols = cols;
    d->stride = (cols + 4) / 4 * 4;
    size_t n = (size_t)d->stride;
    bool ok = mf_dual_lines(&d->cost, 0, 6 * n) && mf_dual_lines(&d->t, 0, n);
    d->nonbasic = malloc(2 * n * sizeof *d->nonbasic);
    d->up = calloc(n, sizeof *d->up);
    d->basic = malloc(sizeof *d->basic); /* none yet */
    d->value = calloc(1, sizeof *d->value);
    d->norm = calloc(1, sizeof *d->norm);
    d->candidate = malloc(n * sizeof *d->candidate);
    ok = ok && d->nonbasic && d->up && d->basic && d->value && d->norm && d->candidate &&
         more_rows(d);
    if (ok) {
        memset(d->cost, 0, 6 * n * sizeof *d->cost);
        memset(d->t, 0, n * sizeof *d->t);
        d->tilted = d->cost + n;
        d->at = d->tilted + n;
        d->x = d->at + n;
        d->work = d->x + n;
        d->place = d->nonbasic + n;
    }
    for (int j = 0; j < cols && ok; j++) {
        d->cost[j] = cost[j];
        d->lo[j] = lo[j];
        d->hi[j] = hi[j];
        d->nonbasic[j] = d->where[j] = j;
        d->up[j] = cost[j] < 0.0 || (!(cost[j] > 0.0) && isinf(lo[j]));
        d->tilted[j] = d->t[j] = cost[j] + (d->up[j] ? -TILT : TILT) * (1.0 + spread(j));
        ok = isfinite(d->up[j] ? hi[j] : lo[j]);
    }
    if (!ok) {
        mf_dual_free(d);
        return NULL;
    }
    return d;
}

int mf_dual_add_row(mf_dual *d, const double *a, double lo, double hi) {
    if (!more_rows(d)) {
        return -1;
    }
    int row = d->rows++, v = d->cols + row, exponent = 0;
    double *to = d->a + (size_t)row * (size_t)d->stride, most = 0.0;
    for (int j = 0; j < d->cols; j++) {
        most = fmax(most, fabs(a[j]));
    }
    (void)frexp(most, &exponent);
    d->scale[row] = most > 0.0 ? ldexp(1.0, -exponent) : 1.0;
    memset(to, 0, (size_t)d->stride * sizeof *to);
    d->from[row] = d->stride;
    d->to[row] = 0;
    for (int j = 0; j < d->cols; j++) {
        to[j] = a[j] * d->scale[row];
        if (a[j] > 0.0 || a[j] < 0.0) {
            d->from[row] = d->to[row] > 0 ? d->from[row] : j / 4 * 4;
            d->to[row] = j / 4 * 4 + 4;
        }
    }
    d->entries += 4 * (int64_t)d->stride;
    d->where[v] = MF_DUAL_OUT;
    d->in_use[row] = d->solves;
    mf_dual_set(d, v, lo, hi);
    return v;
}

void mf_dual_set(mf_dual *d, int var, double lo, double hi) {
    double scale = var < d->cols ? 1.0 : d->scale[var - d->cols];
    d->lo[var] = lo * scale;
    d->hi[var] = hi * scale;
}

/* --- bases ------------------------------------------------------------------------------------ */

bool mf_dual_save(const mf_dual *d, bool tableau, mf_dual_basis *b) {
    size_t n = (size_t)d->cols, stride = (size_t)d->stride;
    if (!b->nonbasic) {
        b->nonbasic = malloc(2 * n * sizeof *b->nonbasic);
        b->basic = b->nonbasic ? b->nonbasic + n : NULL;
        b->up = malloc(n * sizeof *b->up);
    }
    if (tableau && d->basics >= b->allocated) {
        free(b->t);
        size_t allocated = (size_t)d->basics + (size_t)d->basics / 4 + 8;
        b->t = malloc((allocated + 1) * stride * sizeof *b->t);
        b->allocated = b->t ? (int)allocated : 0;
    }
    b->basics = -1;
    if (!b->nonbasic || !b->up || (tableau && !b->t) || d->basics > d->cols) {
        return false;
    }
    b->basics = d->basics;
    memcpy(b->nonbasic, d->nonbasic, n * sizeof *b->nonbasic);
    memcpy(b->up, d->up, n * sizeof *b->up);
    memcpy(b->basic, d->basic, (size_t)d->basics * sizeof *b->basic);
    if (tableau) {
        memcpy(b->t, d->t, ((size_t)d->basics + 1) * stride * sizeof *b->t);
    }
    return true;
}

void mf_dual_restore(mf_dual *d, const mf_dual_basis *b) {
    if (b->basics < 0 || b->basics > d->basics_allocated) {
        return; /* where it stands is as good a start */
    }
    for (int v = 0; v < d->cols + d->rows; v++) {
        d->where[v] = MF_DUAL_OUT;
    }
    d->basics = b->basics;
    d->entries += d->cols + d->rows;
    memcpy(d->nonbasic, b->nonbasic, (size_t)d->cols * sizeof *b->nonbasic);
    memcpy(d->up, b->up, (size_t)d->cols * sizeof *b->up);
    memcpy(d->basic, b->basic, (size_t)b->basics * sizeof *b->basic);
    if (!b->t) {
        if (!mf_dual_renew(d)) {
            mf_dual_reset(d);
        }
        return;
    }
    d->entries += (int64_t)(b->basics + 1) * d->stride;
    memcpy(d->t, b->t, ((size_t)b->basics + 1) * (size_t)d->stride * sizeof *b->t);
    for (int r = 0; r < d->basics; r++) {
        d->norm[r + 1] = -1.0;
    }
    for (int p = 0; p < d->cols; p++) {
        d->where[d->nonbasic[p]] = p;
    }
    for (int r = 0; r < d->basics; r++) {
        d->where[d->basic[r]] = -1 - r;
    }
}

void mf_dual_basis_clear(mf_dual_basis *b) {
    free(b->nonbasic);
    free(b->up);
    free(b->t);
    *b = (mf_dual_basis){0};
}
