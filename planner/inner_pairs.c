/* inner_pairs.c - merged pairs: what they take, and what of that each of the two blocks takes at
 * least.
 *
 * A pair takes at least the sum of a share of its forward and a share of its backward pass,
 * whatever the partner, and a block alone at least its share: that makes chains through merged
 * events linear. Shares are given to the classes that stages hold most of first, so that their
 * pairs are met exactly.
 */
#include "planner/inner.h"

#include <math.h>
#include <stdlib.h>

mf_status mf_inner_pair_s(mf_inner *in, int f, int m, int b, int k, double *time_s, mf_err *e) {
    mf_block_key fk = in->class[f].key, bk = in->class[b].key;
    fk.memory = in->class[f].choice[m].memory;
    bk.memory = in->class[b].choice[k].memory;
    return mf_quotes_pair(in->quotes, &in->layout, &fk, &bk, time_s, e);
}

/* Backward passes within this factor of the fastest are usual: what recomputes much more is rarely
 * chosen, and takes the smaller share where not both can be large. */
#define USUAL 1.2

/* Choices that pairs are asked for. A forward pass that offloads is never quicker than one that
 * does not, so the first choice stands for all, unless it offloads itself (offloading is pinned).
 * Of backward passes that do not exchange, too: the others take as much more than it as their
 * share. */
static int forward_choices(const mf_inner_class *c) {
    return c->choice[0].memory.offload ? c->choices : 1;
}
static int backward_choices(const mf_inner_class *c) {
    return c->exchanges || c->choice[0].memory.offload ? c->choices : 1;
}

/* Quickest pair of the forward passes of class f with a backward pass. */
static mf_status quickest_pair(mf_inner *in, int f, int b, int k, double *time_s, mf_err *e) {
    *time_s = INFINITY;
    for (int m = 0; m < forward_choices(&in->class[f]); m++) {
        double one_s = 0.0;
        mf_status status = mf_inner_pair_s(in, f, m, b, k, &one_s, e);
        if (status != MF_OK) {
            return status;
        }
        *time_s = fmin(*time_s, one_s);
    }
    return MF_OK;
}

/* Share of a class's forward passes: least (pair - w) over the backward passes that have theirs
 * already, at most its compute. Unusual ones give way. */
static mf_status share_forward(mf_inner *in, const bool *done, int f, mf_err *e) {
    mf_inner_class *c = &in->class[f];
    double u_s = c->choice[0].quote.f.compute_s;
    for (int round = 0; round < 2; round++) {
        for (int j = 0; j < in->classes; j++) {
            mf_inner_class *d = &in->class[j];
            for (int k = 0; done[j] && k < backward_choices(d); k++) {
                double time_s = 0.0;
                mf_status status = quickest_pair(in, f, j, k, &time_s, e);
                bool usual = d->choice[k].quote.b.time_s <= USUAL * d->choice[0].quote.b.time_s;
                if (status != MF_OK) {
                    return status;
                }
                if (round == 0 && usual) {
                    u_s = fmin(u_s, time_s - d->choice[k].b_pair_s);
                } else if (round == 1) {
                    d->choice[k].b_pair_s = fmin(d->choice[k].b_pair_s, time_s - u_s);
                }
            }
        }
    }
    for (int m = 0; m < c->choices; m++) {
        c->choice[m].f_pair_s = u_s;
    }
    return MF_OK;
}

/* Share of a class's backward passes: least (pair - u) over the forward passes that have theirs. */
static mf_status share_backward(mf_inner *in, const bool *done, int b, mf_err *e) {
    mf_inner_class *c = &in->class[b];
    for (int m = 0; m < c->choices; m++) {
        double w_s = INFINITY;
        if (m >= backward_choices(c)) {
            c->choice[m].b_pair_s = fmax(c->choice[0].b_pair_s, c->choice[m].quote.b.compute_s);
            continue;
        }
        for (int f = 0; f < in->classes; f++) {
            double time_s = 0.0;
            if (!done[f] && f != b) {
                continue;
            }
            mf_status status = quickest_pair(in, f, b, m, &time_s, e);
            if (status != MF_OK) {
                return status;
            }
            w_s = fmin(w_s, time_s - in->class[f].choice[0].f_pair_s);
        }
        c->choice[m].b_pair_s = w_s;
    }
    return MF_OK;
}

/* Order of giving shares: what stages hold most of first, single blocks last. */
static int share_rank(const mf_inner_class *c) {
    static const int rank[] = {
        [MF_POS_EMBEDDING] = 4, [MF_POS_LAYER] = 1, [MF_POS_MTP] = 2, [MF_POS_HEAD] = 3};
    return c->exchanges ? 0 : rank[c->key.kind];
}

/* Shares u of forward and w of backward passes such that every pair takes at least u + w, and every
 * block that a longer chunk leaves alone at least its share. */
mf_status mf_inner_share_pairs(mf_inner *in, mf_err *e) {
    mf_status status = MF_OK;
    bool *done = calloc((size_t)in->classes, sizeof *done);
    if (!done) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int rank = 0; rank <= 4; rank++) {
        for (int i = 0; i < in->classes && status == MF_OK; i++) {
            if (share_rank(&in->class[i]) == rank) {
                status = share_forward(in, done, i, e);
                if (status == MF_OK) {
                    status = share_backward(in, done, i, e);
                }
                done[i] = true;
            }
        }
    }
    for (int i = 0; i < in->classes; i++) { /* alone, a block takes its time */
        for (int m = 0; m < in->class[i].choices; m++) {
            mf_inner_choice *c = &in->class[i].choice[m];
            c->f_pair_s = fmin(c->f_pair_s, c->quote.f.time_s);
            c->b_pair_s = fmin(c->b_pair_s, c->quote.b.time_s);
        }
    }
    free(done);
    return status;
}

mf_status mf_inner_own_pairs(mf_inner *in, mf_err *e) {
    mf_status status = MF_OK;
    if (in->own_pairs || !in->merged) {
        return MF_OK;
    }
    for (int i = 0; i < in->classes; i++) {
        for (int m = 0; m < in->class[i].choices && status == MF_OK; m++) {
            status = mf_inner_pair_s(in, i, m, i, m, &in->class[i].choice[m].pair_s, e);
        }
    }
    in->own_pairs = status == MF_OK;
    return status;
}
