/* path_mean.c - a list of chains and their weighted mean. */
#include "planner/order/path_mean.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void mf_chains_init(mf_chains *c, int stages, int chunks) {
    memset(c, 0, sizeof *c);
    c->stages = stages;
    c->chunks = chunks;
    c->vstages = stages * chunks;
}

void mf_chains_clear(mf_chains *c) {
    for (int i = 0; i < c->count; i++) {
        mf_order_chain_clear(&c->chain[i]);
    }
    free(c->part[0]);
    free(c->extra);
    memset(c, 0, sizeof *c);
}

mf_status mf_chains_add(mf_chains *c, const mf_order_chain *chain, mf_err *e) {
    if (c->count == MF_CHAINS_MAX) {
        return MF_OK;
    }
    mf_order_chain *copy = &c->chain[c->count];
    mf_status status = mf_order_chain_copy(copy, chain, e);
    if (status == MF_OK) {
        c->weight[c->count++] = 0.0;
    }
    return status;
}

double mf_chain_visits(const mf_order_chain *chain, int v) {
    double f = (double)chain->count[MF_ORDER_F][v] + chain->count[MF_ORDER_F_PAIR][v] +
               chain->count[MF_ORDER_PAIR_SHARE_F][v];
    double b = (double)chain->count[MF_ORDER_B][v] + chain->count[MF_ORDER_B_PAIR][v] +
               chain->count[MF_ORDER_PAIR_SHARE_B][v];
    return f < b ? f : b;
}

static void drop_weightless(mf_chains *c) {
    int kept = 0;
    for (int i = 0; i < c->count; i++) {
        if (c->weight[i] > 1e-9) {
            c->chain[kept] = c->chain[i];
            c->weight[kept++] = c->weight[i];
        } else {
            mf_order_chain_clear(&c->chain[i]);
        }
    }
    c->count = kept;
}

static void mean_of(mf_chains *c, const int *stage_of, double *least) {
    size_t cells = MF_ORDER_CHAIN_ROOM(c->vstages);
    for (int i = 0; i < c->count; i++) {
        const mf_order_chain *x = &c->chain[i];
        for (size_t k = 0; k < cells; k++) {
            c->part[0][k] += c->weight[i] * x->count[0][k];
        }
        c->sends += c->weight[i] * x->sends;
        c->holds += c->weight[i] * x->holds;
        c->beside += c->weight[i] * x->beside;
        c->starts += c->weight[i] * x->starts;
        c->lost = i == 0 || x->lost < c->lost ? x->lost : c->lost;
        for (int k = 0; k < MF_ORDER_BEHIND; k++) {
            bool less = i == 0 || x->share[k] < c->share[k];
            c->share[k] = less ? x->share[k] : c->share[k];
        }
        for (int p = 0; p < c->stages; p++) {
            least[p] = HUGE_VAL;
        }
        for (int v = 0; v < c->vstages; v++) {
            double n = mf_chain_visits(x, v);
            least[stage_of[v]] = n < least[stage_of[v]] ? n : least[stage_of[v]];
        }
        for (int p = 0; p < c->stages; p++) {
            c->extra[p] += c->weight[i] * least[p];
        }
    }
}

bool mf_chains_weigh(mf_chains *c, const int *stage_of) {
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
    size_t n = (size_t)c->vstages;
    double *least = calloc((size_t)c->stages, sizeof *least);
    double *part = calloc(MF_ORDER_CHAIN_ROOM(n), sizeof *part);
    c->extra = calloc((size_t)c->stages, sizeof *c->extra);
    if (!least || !part || !c->extra) {
        free(least);
        free(part);
        return false;
    }
    for (size_t p = 0; p < MF_ORDER_PARTS; p++) {
        c->part[p] = part + p * n;
    }
    for (size_t k = 0; k < MF_LOSS_KINDS; k++) {
        c->loss[k] = part + (MF_ORDER_PARTS + k) * n;
    }
    mean_of(c, stage_of, least);
    for (size_t k = 0; k < MF_ORDER_PARTS * n; k++) {
        c->counted |= part[k] != 0.0 ? 1u << (k / n) : 0u;
    }
    free(least);
    return true;
}
