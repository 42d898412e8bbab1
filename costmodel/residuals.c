/* residuals.c - residuals of a formula, interpolated between measured points.
 *
 * Modified Shepard weights over the nearest points, 1/d^2 - 1/R^2 with R the distance of the
 * first point left out, so that the value is continuous; plus the weight of one point of residual 0
 * at one reach, so that it fades back to the formula. At a point the value is that point's. Where
 * size is the only coordinate, the line through the two neighbours takes the place of the weights.
 * The band grows from the point's own spread to the spread of all residuals as distance grows, and
 * is scaled so that nine in ten points, left out one by one, fall into it.
 */
#include "core/base/sort.h"
#include "costmodel/cost_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NEIGHBOURS = 8, STACK_MAX = 64, JUDGED_MAX = 160 };
static const double reach_efolds = 1.2; /* distance at which a residual counts half */
static const double doubt_efolds = 0.7; /* distance at which its spread counts in full, nearly */
static const double reach_max = 3.0;    /* and where it says nothing at all */
static const double z90 = 1.645;
static const double same_point = 1e-9;

typedef struct candidate {
    double d2;
    int i;
} candidate;

/* Sorted list of the NEIGHBOURS + 1 nearest. */
typedef struct nearest_set {
    candidate c[NEIGHBOURS + 1];
    int n;
} nearest_set;

static double worst_of(const nearest_set *s) {
    return s->n < NEIGHBOURS + 1 ? reach_max * reach_max : s->c[s->n - 1].d2;
}

static void offer(nearest_set *s, int i, double d2) {
    int at = s->n < NEIGHBOURS + 1 ? s->n++ : s->n - 1;
    while (at > 0 && s->c[at - 1].d2 > d2) {
        s->c[at] = s->c[at - 1];
        at--;
    }
    s->c[at] = (candidate){d2, i};
}

static void find(const mf_residuals *f, const double *x, int skip, nearest_set *s) {
    struct span {
        int lo, hi;
        double d2;
    } stack[STACK_MAX];
    int top = 0;
    stack[top++] = (struct span){0, f->n, 0};
    while (top > 0) {
        struct span v = stack[--top];
        if (v.lo >= v.hi || v.d2 > worst_of(s)) {
            continue;
        }
        int mid = v.lo + (v.hi - v.lo) / 2;
        const mf_residual_node *node = &f->node[mid];
        double d2 = 0;
        for (int k = 0; k < f->dims; k++) {
            double d = node->x[k] - x[k];
            d2 += d * d;
        }
        if (mid != skip && d2 < worst_of(s)) {
            offer(s, mid, d2);
        }
        double side = x[node->axis] - node->x[node->axis];
        struct span left = {v.lo, mid, side < 0 ? 0 : side * side};
        struct span right = {mid + 1, v.hi, side < 0 ? side * side : 0};
        stack[top++] = side < 0 ? right : left; /* the far one first: the near one is next */
        stack[top++] = side < 0 ? left : right;
    }
}

static double half_width(const mf_residuals *f, double spread, double d) {
    double fade = 1 - exp(-(d / doubt_efolds) * (d / doubt_efolds));
    return z90 * sqrt(spread * spread + f->sigma * f->sigma * fade);
}

/* Sizes alone: straight between the two neighbours, beyond the last one fading to the formula. */
static void along_line(const mf_residuals *f, double x, int skip, mf_residual_value *out) {
    const mf_residual_node *below = NULL, *above = NULL;
    for (int i = 0; i < f->n; i++) {
        const mf_residual_node *node = &f->node[i];
        if (i == skip) {
            continue;
        }
        if (node->x[0] <= x && (below == NULL || node->x[0] > below->x[0])) {
            below = node;
        }
        if (node->x[0] >= x && (above == NULL || node->x[0] < above->x[0])) {
            above = node;
        }
    }
    if (below == NULL && above == NULL) {
        return;
    }
    const mf_residual_node *first =
        below == NULL || (above != NULL && above->x[0] - x < x - below->x[0]) ? above : below;
    double d = fabs(first->x[0] - x),
           gap = below != NULL && above != NULL ? above->x[0] - below->x[0] : 0;
    if (d < same_point) {
        *out = (mf_residual_value){first->residual, z90 * first->spread, 0, first->time_s,
                                   first->restated};
        return;
    }
    double spread = first->spread;
    if (gap > 0) {
        double w = (x - below->x[0]) / gap;
        out->residual = (1 - w) * below->residual + w * above->residual;
        spread = fmax(below->spread, above->spread);
    } else {
        out->residual = first->residual / (1 + d * d / (reach_efolds * reach_efolds));
    }
    out->half = f->reach * half_width(f, spread, d);
    out->nearest = fmin(d, reach_max);
    out->restated = first->restated;
}

void mf_residuals_at(const mf_residuals *f, const double *x, int skip, mf_residual_value *out) {
    nearest_set s = {.n = 0};
    *out = (mf_residual_value){0, f->reach * half_width(f, 0, reach_max), reach_max, 0, false};
    if (f->dims == 1) {
        along_line(f, x[0], skip, out);
        return;
    }
    find(f, x, skip, &s);
    if (s.n == 0) {
        return;
    }
    const mf_residual_node *first = &f->node[s.c[0].i];
    double d0 = sqrt(s.c[0].d2);
    if (d0 < same_point) {
        *out = (mf_residual_value){first->residual, z90 * first->spread, 0, first->time_s,
                                   first->restated};
        return;
    }
    double reach_d2 = worst_of(&s), sum = 0, weights = 1 / (reach_efolds * reach_efolds),
           spread = 0;
    for (int i = 0; i < s.n && i < NEIGHBOURS; i++) {
        const mf_residual_node *node = &f->node[s.c[i].i];
        double w = fmax(0, 1 / s.c[i].d2 - 1 / reach_d2);
        sum += w * node->residual;
        spread = fmax(spread, node->spread);
        weights += w;
    }
    out->residual = sum / weights;
    out->half = f->reach * half_width(f, spread, d0);
    out->nearest = d0;
}

/* --- building --------------------------------------------------------------------------------- */

static int order_on(const void *a, const void *b, int axis) {
    const mf_residual_node *p = a, *q = b;
    for (int k = 0; k < MF_FIELD_DIMS; k++) { /* ties by the other axes: deterministic */
        int at = (axis + k) % MF_FIELD_DIMS;
        if (p->x[at] < q->x[at]) {
            return -1;
        }
        if (p->x[at] > q->x[at]) {
            return 1;
        }
    }
    return 0;
}
static int order_0(const void *a, const void *b) {
    return order_on(a, b, 0);
}
static int order_1(const void *a, const void *b) {
    return order_on(a, b, 1);
}
static int order_2(const void *a, const void *b) {
    return order_on(a, b, 2);
}
static int order_3(const void *a, const void *b) {
    return order_on(a, b, 3);
}
static int order_4(const void *a, const void *b) {
    return order_on(a, b, 4);
}
static int order_5(const void *a, const void *b) {
    return order_on(a, b, 5);
}
static int order_6(const void *a, const void *b) {
    return order_on(a, b, 6);
}
static int (*const orders[MF_FIELD_DIMS])(const void *, const void *) = {
    order_0, order_1, order_2, order_3, order_4, order_5, order_6};

static void plant(mf_residuals *f, int lo, int hi) {
    if (lo >= hi) {
        return;
    }
    int axis = 0;
    double widest = -1;
    for (int k = 0; k < f->dims; k++) {
        double least = f->node[lo].x[k], most = least;
        for (int i = lo + 1; i < hi; i++) {
            least = fmin(least, f->node[i].x[k]);
            most = fmax(most, f->node[i].x[k]);
        }
        if (most - least > widest) {
            widest = most - least;
            axis = k;
        }
    }
    qsort(f->node + lo, (size_t)(hi - lo), sizeof *f->node, orders[axis]);
    int mid = lo + (hi - lo) / 2;
    f->node[mid].axis = axis;
    plant(f, lo, mid);
    plant(f, mid + 1, hi);
}

/* Points of equal coordinates become one, with the geometric mean of their times. */
static void merge_equal(mf_residuals *f) {
    qsort(f->node, (size_t)f->n, sizeof *f->node, order_0);
    int kept = 0;
    for (int i = 0; i < f->n;) {
        mf_residual_node one = f->node[i];
        double log_time = 0, residual = 0;
        int j = i;
        for (; j < f->n && order_0(&f->node[j], &one) == 0; j++) {
            log_time += log(f->node[j].time_s);
            residual += f->node[j].residual;
            one.spread = fmax(one.spread, f->node[j].spread);
        }
        if (j - i > 1) {
            one.time_s = exp(log_time / (j - i));
            one.residual = residual / (j - i);
            for (int m = i; m < j; m++) {
                one.spread = fmax(one.spread, fabs(f->node[m].residual - one.residual));
            }
        }
        f->node[kept++] = one;
        i = j;
    }
    f->n = kept;
}

static mf_status calibrate(mf_residuals *f, double noise, mf_err *e) {
    double *v = calloc(2 * (size_t)f->n + 1, sizeof *v);
    if (v == NULL) {
        return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    for (int i = 0; i < f->n; i++) {
        v[i] = fabs(f->node[i].residual);
    }
    mf_sort_doubles(v, (size_t)f->n);
    f->sigma = fmax(1.4826 * v[f->n / 2], noise);
    f->reach = 1;
    /* Calibrates on a sample of the points, since each one costs a search among the others. */
    const int step = 1 + f->n / (JUDGED_MAX + 1);
    int judged = 0;
    for (int i = 0; i < f->n; i += step, judged++) {
        mf_residual_value at;
        mf_residuals_at(f, f->node[i].x, i, &at);
        v[judged] = fabs(exp(f->node[i].residual - at.residual) - 1);
        v[f->n + judged] = v[judged] / at.half;
    }
    mf_sort_doubles(v, (size_t)judged);
    f->loo_median = v[judged / 2];
    v += f->n;
    mf_sort_doubles(v, (size_t)judged);
    int nine_in_ten = (int)ceil(0.9 * (judged + 1)) - 1;
    double few = f->n < 9 ? 1.5 : 0.6; /* few points cannot calibrate their own band */
    f->reach = fmax(few, fmin(4.0, v[nine_in_ten < judged ? nine_in_ten : judged - 1]));
    free(v - f->n);
    return MF_OK;
}

mf_status mf_residuals_build(mf_residuals *f, const mf_residual_node *nodes, int n, int dims,
                             double noise, mf_err *e) {
    *f = (mf_residuals){.dims = dims, .sigma = noise, .reach = 1.5};
    if (n == 0) {
        return MF_OK;
    }
    f->node = malloc((size_t)n * sizeof *nodes);
    if (f->node == NULL) {
        return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    memcpy(f->node, nodes, (size_t)n * sizeof *nodes);
    f->n = n;
    merge_equal(f);
    plant(f, 0, f->n);
    return calibrate(f, noise, e);
}

void mf_residuals_clear(mf_residuals *f) {
    free(f->node);
    *f = (mf_residuals){0};
}
