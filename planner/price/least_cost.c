/* least_cost.c - the least of the costs of several blocks. */
#include "planner/price/least_cost.h"

#include <math.h>

static void least_pass(mf_pass_cost *least, const mf_pass_cost *p) {
    least->time_s = fmin(least->time_s, p->time_s);
    least->path_s = fmin(least->path_s, p->path_s);
    least->bound_s = fmin(least->bound_s, p->bound_s);
    least->host_s = fmin(least->host_s, p->host_s);
    least->sync_s = fmin(least->sync_s, p->sync_s);
    least->compute_s = fmin(least->compute_s, p->compute_s);
    least->ep_s = fmin(least->ep_s, p->ep_s);
    least->network = fmin(least->network, p->network);
}

static void least_of(mf_block_cost *least, const mf_block_cost *q) {
    least_pass(&least->f, &q->f);
    least_pass(&least->b, &q->b);
    least_pass(&least->w, &q->w);
    least->anew_s[0] = fmax(least->anew_s[0], q->anew_s[0]);
    least->anew_s[1] = fmax(least->anew_s[1], q->anew_s[1]);
    least->flops = fmin(least->flops, q->flops);
    least->saved_B = fmin(least->saved_B, q->saved_B);
    least->held_B = fmin(least->held_B, q->held_B);
    least->offload_B = fmin(least->offload_B, q->offload_B);
    least->boundary_B = fmin(least->boundary_B, q->boundary_B);
    least->gather_B = fmin(least->gather_B, q->gather_B);
    least->comm_B = fmin(least->comm_B, q->comm_B);
    least->local_f_B = fmin(least->local_f_B, q->local_f_B);
    least->local_b_B = fmin(least->local_b_B, q->local_b_B);
    least->local_w_B = fmin(least->local_w_B, q->local_w_B);
}

enum { DEPTHS = 3 };

/* The block at every depth where it may stand, the first one at first; returns their number. */
static int keys_of(const mf_model *m, const mf_block_key *key, mf_block_key out[DEPTHS]) {
    const int64_t depths = key->kind == MF_POS_MTP && m->mtp_layers > 1 ? m->mtp_layers : 1;
    int kinds = depths < DEPTHS ? (int)depths : DEPTHS; /* between first and last all are alike */
    for (int i = 0; i < kinds; i++) {
        out[i] = *key;
        out[i].after_depth = i > 0;
        out[i].before_depth = i + 1 < kinds;
    }
    return kinds;
}

mf_status mf_block_costs_least(mf_block_costs *q, const mf_layout *l, const mf_block_key *key,
                               bool exact, mf_block_cost *out, mf_err *e) {
    mf_block_key keys[DEPTHS];
    int n = keys_of(mf_block_costs_evaluator(q)->model, key, keys);
    for (int i = 0; i < n; i++) {
        mf_block_cost x;
        mf_status status = mf_block_costs_get(q, l, &keys[i], exact, &x, e);
        if (status != MF_OK) {
            return status;
        }
        if (i == 0) {
            *out = x;
        } else {
            least_of(out, &x);
        }
    }
    return MF_OK;
}

/* May the block stand where it has other times than the key says? *end: the key there. */
static bool differs_at_end(const mf_block_costs *q, const mf_block_key *key, mf_block_key *end) {
    *end = *key;
    end->at_end = true;
    return mf_block_costs_evaluator(q)->ends_differ && key->memory.offload != 0 && !key->at_end;
}

mf_status mf_block_costs_least_anywhere(mf_block_costs *q, const mf_layout *l,
                                        const mf_block_key *key, mf_block_cost *out, mf_err *e) {
    mf_block_key end;
    mf_block_cost last;
    mf_status status = mf_block_costs_least(q, l, key, true, out, e);
    if (status == MF_OK && differs_at_end(q, key, &end)) {
        status = mf_block_costs_least(q, l, &end, true, &last, e);
        if (status == MF_OK) {
            least_of(out, &last);
        }
    }
    return status;
}

mf_status mf_block_costs_least_pair(mf_block_costs *q, const mf_layout *l,
                                    const mf_block_key *forward, const mf_block_key *backward,
                                    double *time_s, mf_err *e) {
    const mf_model *m = mf_block_costs_evaluator(q)->model;
    mf_block_key f[DEPTHS], b[DEPTHS];
    int nf = keys_of(m, forward, f), nb = keys_of(m, backward, b);
    *time_s = INFINITY;
    for (int i = 0; i < nf * nb; i++) {
        double x_s;
        mf_status status = mf_block_costs_pair(q, l, &f[i / nb], &b[i % nb], &x_s, e);
        if (status != MF_OK) {
            return status;
        }
        *time_s = fmin(*time_s, x_s);
    }
    return MF_OK;
}

mf_status mf_block_costs_least_pair_anywhere(mf_block_costs *q, const mf_layout *l,
                                             const mf_block_key *forward,
                                             const mf_block_key *backward, double *time_s,
                                             mf_err *e) {
    mf_block_key f[2] = {*forward}, b[2] = {*backward};
    const int nf = differs_at_end(q, forward, &f[1]) ? 2 : 1;
    const int nb = differs_at_end(q, backward, &b[1]) ? 2 : 1;
    *time_s = INFINITY;
    for (int i = 0; i < nf * nb; i++) {
        double x_s;
        mf_status status = mf_block_costs_least_pair(q, l, &f[i / nb], &b[i % nb], &x_s, e);
        if (status != MF_OK) {
            return status;
        }
        *time_s = fmin(*time_s, x_s);
    }
    return MF_OK;
}
