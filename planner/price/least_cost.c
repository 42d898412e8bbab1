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
    least->compute_B = fmax(least->compute_B, q->compute_B);
    least->summed_B = fmin(least->summed_B, q->summed_B);
    least->local_f_B = fmin(least->local_f_B, q->local_f_B);
    least->local_b_B = fmin(least->local_b_B, q->local_b_B);
    least->local_w_B = fmin(least->local_w_B, q->local_w_B);
    least->alive_B = fmin(least->alive_B, q->alive_B);
}

/* Blocks that a key may mean: at every depth where it may stand, there inside a virtual stage and
 * as its last. */
enum { DEPTHS = 3, PLACES = 2 * DEPTHS };
/* Forward passes that one of a pair may mean, at each place. */
enum { FORWARDS = 3 };

/* The block at every depth where it may stand, the first one at first; returns their number. */
static int depths_of(const mf_block_costs *q, const mf_block_key *key, mf_block_key *out) {
    const int64_t all = mf_block_costs_evaluator(q)->model->mtp_layers;
    const int64_t depths = key->kind == MF_POS_MTP && all > 1 ? all : 1;
    int kinds = depths < DEPTHS ? (int)depths : DEPTHS; /* between first and last all are alike */
    for (int i = 0; i < kinds; i++) {
        out[i] = *key;
        out[i].after_depth = i > 0;
        out[i].before_depth = i + 1 < kinds;
    }
    return kinds;
}

/* The same, also as the last block of a virtual stage where it has other times there. */
static int places_of(const mf_block_costs *q, const mf_block_key *key, mf_block_key out[PLACES]) {
    mf_block_key end = *key;
    int n = depths_of(q, key, out);
    end.at_end = true;
    if (mf_block_costs_evaluator(q)->ends_differ && key->memory.offload != 0 && !key->at_end) {
        n += depths_of(q, &end, out + n);
    }
    return n;
}

/* Does context parallelism send keys and values in a ring, over more than one step? */
static bool passes_keys_on(const mf_layout *l) {
    return l->cp > 2 && (l->cp_type == MF_CP_RING || l->cp_type == MF_CP_HIERARCHICAL);
}

/* Forward passes that a key may mean, wherever it stands. That of a layer which keeps everything
 * stands for those that keep less, since these run the same ops. But a ring's message waits until
 * attention has read the keys whose place it takes, where these are not kept: keys that are made
 * by a norm, or all. */
static int forwards_of(const mf_block_costs *q, const mf_layout *l, const mf_block_key *key,
                       mf_block_key out[FORWARDS * PLACES]) {
    static const uint16_t unkept[FORWARDS - 1] = {MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT,
                                                  MF_RECOMPUTE_LAYER};
    const bool layer = key->kind == MF_POS_LAYER || key->kind == MF_POS_MTP;
    const bool keeps_all = key->memory.recompute == 0 && key->memory.offload == 0;
    int n = places_of(q, key, out);
    if (layer && keeps_all && passes_keys_on(l)) {
        for (int i = 0; i < FORWARDS - 1; i++) {
            mf_block_key less = *key;
            less.memory.recompute = unkept[i];
            n += places_of(q, &less, out + n);
        }
    }
    return n;
}

static mf_status least_cost(mf_block_costs *q, const mf_layout *l, const mf_block_key *key, int n,
                            bool exact, mf_block_cost *out, mf_err *e) {
    for (int i = 0; i < n; i++) {
        mf_block_cost x;
        mf_status status = mf_block_costs_get(q, l, &key[i], exact, &x, e);
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

mf_status mf_block_costs_least(mf_block_costs *q, const mf_layout *l, const mf_block_key *key,
                               bool exact, mf_block_cost *out, mf_err *e) {
    mf_block_key keys[DEPTHS];
    return least_cost(q, l, keys, depths_of(q, key, keys), exact, out, e);
}

mf_status mf_block_costs_least_anywhere(mf_block_costs *q, const mf_layout *l,
                                        const mf_block_key *key, mf_block_cost *out, mf_err *e) {
    mf_block_key keys[PLACES];
    return least_cost(q, l, keys, places_of(q, key, keys), true, out, e);
}

/* Of nf forward and nb backward blocks. */
static mf_status least_pair(mf_block_costs *q, const mf_layout *l, const mf_block_key *f, int nf,
                            const mf_block_key *b, int nb, double *time_s, mf_err *e) {
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

mf_status mf_block_costs_least_pair(mf_block_costs *q, const mf_layout *l,
                                    const mf_block_key *forward, const mf_block_key *backward,
                                    double *time_s, mf_err *e) {
    mf_block_key f[DEPTHS], b[DEPTHS];
    const int nf = depths_of(q, forward, f), nb = depths_of(q, backward, b);
    return least_pair(q, l, f, nf, b, nb, time_s, e);
}

mf_status mf_block_costs_least_pair_anywhere(mf_block_costs *q, const mf_layout *l,
                                             const mf_block_key *forward,
                                             const mf_block_key *backward, double *time_s,
                                             mf_err *e) {
    mf_block_key f[FORWARDS * PLACES], b[PLACES];
    const int nf = forwards_of(q, l, forward, f), nb = places_of(q, backward, b);
    return least_pair(q, l, f, nf, b, nb, time_s, e);
}
