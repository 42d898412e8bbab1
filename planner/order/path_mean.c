/* path_mean.c - a list of paths and their weighted mean. */
#include "planner/order/path_mean.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void mf_path_set_init(mf_path_set *c, int stages, int chunks) {
    memset(c, 0, sizeof *c);
    c->stages = stages;
    c->chunks = chunks;
    c->vstages = stages * chunks;
}

void mf_path_set_clear(mf_path_set *c) {
    for (int i = 0; i < c->count; i++) {
        mf_order_path_clear(&c->path[i]);
    }
    mf_order_path_clear(&c->mean);
    free(c->extra);
    memset(c, 0, sizeof *c);
}

mf_status mf_path_set_add(mf_path_set *c, const mf_order_path *path, mf_err *e) {
    if (c->count == MF_PATH_SET_MAX) {
        return MF_OK;
    }
    mf_order_path *copy = &c->path[c->count];
    mf_status status = mf_order_path_copy(copy, path, e);
    if (status == MF_OK) {
        c->weight[c->count++] = 0.0;
    }
    return status;
}

double mf_path_visits(const mf_order_path *path, int v) {
    double f = (double)path->count[MF_ORDER_F][v] + path->count[MF_ORDER_F_PAIR][v] +
               path->count[MF_ORDER_PAIR_PORTION_F][v];
    double b = (double)path->count[MF_ORDER_B][v] + path->count[MF_ORDER_B_PAIR][v] +
               path->count[MF_ORDER_PAIR_PORTION_B][v];
    return f < b ? f : b;
}

static void drop_weightless(mf_path_set *c) {
    int kept = 0;
    for (int i = 0; i < c->count; i++) {
        if (c->weight[i] > 1e-9) {
            c->path[kept] = c->path[i];
            c->weight[kept++] = c->weight[i];
        } else {
            mf_order_path_clear(&c->path[i]);
        }
    }
    c->count = kept;
}

void mf_path_mean_add(mf_order_path *mean, const mf_order_path *x, double w, bool first) {
    const size_t cells = MF_ORDER_PATH_SUMS(x->vstages);
    for (size_t k = 0; k < cells; k++) {
        mean->count[0][k] += w * x->count[0][k];
    }
    mean->sends += w * x->sends;
    mean->holds += w * x->holds;
    mean->beside += w * x->beside;
    mean->starts += w * x->starts;
    mean->early = mean->early || x->early;
    mean->lost = first || x->lost < mean->lost ? x->lost : mean->lost;
    for (int k = 0; k < MF_ORDER_BEHIND; k++) {
        bool less = first || x->share[k] < mean->share[k];
        mean->share[k] = less ? x->share[k] : mean->share[k];
    }
    for (size_t k = 0; k < MF_ORDER_AHEAD * (size_t)x->vstages; k++) {
        const double share = x->ahead_share[0][k];
        const bool counts = x->loss[MF_LOSS_AHEAD][k] > 0.0;
        double *lowest = &mean->ahead_share[0][k];
        *lowest = counts && (*lowest <= 0.0 || share < *lowest) ? share : *lowest;
    }
}

static void mean_of(mf_path_set *c, const int *stage_of, double *least) {
    for (int i = 0; i < c->count; i++) {
        const mf_order_path *x = &c->path[i];
        const double w = c->weight[i];
        mf_path_mean_add(&c->mean, x, w, i == 0);
        for (int p = 0; p < c->stages; p++) {
            least[p] = HUGE_VAL;
        }
        for (int v = 0; v < c->vstages; v++) {
            double n = mf_path_visits(x, v);
            least[stage_of[v]] = n < least[stage_of[v]] ? n : least[stage_of[v]];
        }
        for (int p = 0; p < c->stages; p++) {
            c->extra[p] += w * least[p];
        }
    }
}

bool mf_path_set_weigh(mf_path_set *c, const int *stage_of) {
    double sum = 0.0;
    for (int i = 0; i < c->count; i++) {
        sum += c->weight[i];
    }
    if (!(sum > 0.5)) { /* no multipliers: the relaxation was bound by something else */
        return false;
    }
    drop_weightless(c);
    for (int i = 0; i < c->count; i++) {
        c->weight[i] /= sum;
    }
    const size_t n = (size_t)c->vstages;
    double *least = calloc((size_t)c->stages, sizeof *least);
    c->extra = calloc((size_t)c->stages, sizeof *c->extra);
    if (!least || !c->extra || mf_order_path_init(&c->mean, c->vstages, NULL) != MF_OK) {
        free(least);
        return false;
    }
    mean_of(c, stage_of, least);
    for (size_t k = 0; k < MF_ORDER_PARTS * n; k++) {
        c->counted |= c->mean.count[0][k] != 0.0 ? 1u << (k / n) : 0u;
    }
    free(least);
    return true;
}
