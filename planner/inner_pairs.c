/* inner_pairs.c - merged pairs: what they take, and what of that each of the two blocks takes at
 * least.
 *
 * A pair takes at least the sum of a share of its forward and a share of its backward pass,
 * whatever the partner, and a block alone at least its share: that makes chains through merged
 * events linear. What two passes hide of each other has to be missing in one of the shares, and so
 * it is missing too where that pass has a partner with which it hides nothing. Hence two sets, of
 * which chains take the better for every event: in one backward passes keep their time, which is
 * exact where forward passes that exchange are the fewer, in the other forward passes do.
 *
 * Shares are given to the classes that stages hold most of first, so that their pairs are met
 * exactly.
 */
#include "planner/inner.h"

#include "planner/least_quote.h"

#include <math.h>
#include <stdlib.h>

mf_status mf_inner_pair_s(mf_inner *in, int f, int m, int b, int k, double *time_s, mf_err *e) {
    mf_block_key fk = in->class[f].key, bk = in->class[b].key;
    fk.memory = in->class[f].choice[m].memory;
    bk.memory = in->class[b].choice[k].memory;
    return mf_quotes_least_pair(in->quotes, &in->layout, &fk, in->class[f].any_tables, &bk,
                                in->class[b].any_tables, time_s, e);
}

/* Backward passes within this factor of the fastest are usual: what recomputes much more is rarely
 * chosen, and takes the smaller share where not both can be large. */
#define USUAL 1.08

/* Choices that pairs are asked for. A forward pass that offloads is no quicker than one that does
 * not, so the first choice stands for all, unless it offloads itself (offloading is pinned). Of
 * backward passes that do not exchange, too. */
static int forward_choices(const mf_inner_class *c) {
    return c->choice[0].memory.offload ? c->choices : 1;
}
static int backward_choices(const mf_inner_class *c) {
    return c->exchanges || c->choice[0].memory.offload ? c->choices : 1;
}

/* Where both copy, one copy more may delay what would have been in the way of others, and the pair
 * is done a little sooner: seen up to 3e-4 of its time. So much is given away of pairs that were
 * not asked for. */
#define COPIES 1e-3

/* --- pairs that are asked for ----------------------------------------------------------------- */

/* Forward passes of a class, or one of its backward passes. */
typedef struct side {
    int class, choice;
    double alone_s, share_s;
    bool usual;
} side;

typedef struct sharing {
    mf_inner *in;
    int rows, cols;
    side *row, *col; /* forward, backward; by rank */
    double *pair_s;  /* [rows][cols] the quickest */
} sharing;

/* Order of giving shares: what stages hold most of first, single blocks last. */
static int share_rank(const mf_inner_class *c) {
    static const int rank[] = {
        [MF_POS_EMBEDDING] = 4, [MF_POS_LAYER] = 1, [MF_POS_MTP] = 2, [MF_POS_HEAD] = 3};
    return c->exchanges ? 0 : rank[c->key.kind];
}

static void list_class(sharing *x, int class) {
    const mf_inner_class *c = &x->in->class[class];
    side f = {.class = class, .alone_s = INFINITY, .usual = true};
    for (int m = 0; m < forward_choices(c); m++) {
        f.alone_s = fmin(f.alone_s, c->choice[m].quote.f.time_s);
    }
    x->row[x->rows++] = f;
    for (int k = 0; k < backward_choices(c); k++) {
        double b_s = c->choice[k].quote.b.time_s;
        bool usual = b_s <= USUAL * c->choice[0].quote.b.time_s;
        x->col[x->cols++] = (side){class, k, b_s, 0.0, usual};
    }
}

static bool offloads(const mf_inner_class *c, int from) {
    for (int m = from; m < c->choices; m++) {
        if (c->choice[m].memory.offload) {
            return true;
        }
    }
    return false;
}

/* Quickest pair of the forward passes of class f with a backward pass that was asked for. */
static mf_status quickest_pair(mf_inner *in, int f, int b, int k, double *time_s, mf_err *e) {
    const mf_inner_class *fc = &in->class[f], *bc = &in->class[b];
    bool copies = offloads(fc, forward_choices(fc)) &&
                  (bc->choice[k].memory.offload || offloads(bc, backward_choices(bc)));
    *time_s = INFINITY;
    for (int m = 0; m < forward_choices(&in->class[f]); m++) {
        double one_s = 0.0;
        mf_status status = mf_inner_pair_s(in, f, m, b, k, &one_s, e);
        if (status != MF_OK) {
            return status;
        }
        *time_s = fmin(*time_s, copies ? (1.0 - COPIES) * one_s : one_s);
    }
    return MF_OK;
}

static mf_status ask_pairs(sharing *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->rows; i++) {
        for (int j = 0; j < x->cols && status == MF_OK; j++) {
            status = quickest_pair(x->in, x->row[i].class, x->col[j].class, x->col[j].choice,
                                   &x->pair_s[i * x->cols + j], e);
        }
    }
    return status;
}

/* --- shares ----------------------------------------------------------------------------------- */

/* The largest share of forward row i beside the usual ones of the backward passes up to `until`;
 * unusual ones give way. */
static void share_forward(sharing *x, int i, int until) {
    const double *pair_s = x->pair_s + (size_t)i * (size_t)x->cols;
    double u_s = x->row[i].alone_s;
    for (int j = 0; j < until; j++) {
        u_s = x->col[j].usual ? fmin(u_s, pair_s[j] - x->col[j].share_s) : u_s;
    }
    for (int j = 0; j < until; j++) {
        x->col[j].share_s = fmin(x->col[j].share_s, pair_s[j] - u_s);
    }
    x->row[i].share_s = u_s;
}

/* The largest share of backward column j beside those of the forward passes up to `until`. */
static void share_backward(sharing *x, int j, int until) {
    double w_s = x->col[j].alone_s;
    for (int i = 0; i < until; i++) {
        w_s = fmin(w_s, x->pair_s[i * x->cols + j] - x->row[i].share_s);
    }
    x->col[j].share_s = w_s;
}

/* Class by class, those first that keep their time. Every row is a class. */
static void share(sharing *x, mf_shares set) {
    for (int i = 0, from = 0; i < x->rows; i++) {
        int to = from;
        while (to < x->cols && x->col[to].class == x->row[i].class) {
            to++;
        }
        if (set == MF_SHARES_F_KEEPS) {
            share_forward(x, i, from);
        }
        for (int j = from; j < to; j++) {
            share_backward(x, j, set == MF_SHARES_F_KEEPS ? i + 1 : i);
        }
        if (set == MF_SHARES_B_KEEPS) {
            share_forward(x, i, to);
        }
        from = to;
    }
}

/* Backward passes that were not asked for take at least the share of the class's first, and what
 * compute leaves beside every forward pass. */
static void write_shares(const sharing *x, mf_shares set) {
    double above_s = 0.0; /* compute, the most that a forward share has */
    for (int i = 0; i < x->rows; i++) {
        mf_inner_class *c = &x->in->class[x->row[i].class];
        for (int m = 0; m < c->choices; m++) {
            c->choice[m].f_pair_s[set] = x->row[i].share_s;
            above_s = fmax(above_s, x->row[i].share_s - c->choice[m].quote.f.compute_s);
        }
    }
    for (int j = 0; j < x->cols; j++) {
        mf_inner_class *c = &x->in->class[x->col[j].class];
        c->choice[x->col[j].choice].b_pair_s[set] = x->col[j].share_s;
        for (int k = backward_choices(c); k < c->choices; k++) {
            mf_inner_choice *other = &c->choice[k];
            double compute_s = other->quote.b.compute_s - above_s;
            other->b_pair_s[set] = fmin(fmax(x->col[j].share_s, compute_s), other->quote.b.time_s);
        }
    }
}

mf_status mf_inner_share_pairs(mf_inner *in, mf_err *e) {
    size_t rows = (size_t)in->classes, cols = 0;
    for (int i = 0; i < in->classes; i++) {
        cols += (size_t)backward_choices(&in->class[i]);
    }
    sharing x = {.in = in,
                 .row = calloc(rows, sizeof *x.row),
                 .col = calloc(cols, sizeof *x.col),
                 .pair_s = calloc(rows * cols, sizeof *x.pair_s)};
    mf_status status = MF_OK;
    if (!x.row || !x.col || !x.pair_s) {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
        goto out;
    }
    for (int rank = 0; rank <= 4; rank++) {
        for (int i = 0; i < in->classes; i++) {
            if (share_rank(&in->class[i]) == rank) {
                list_class(&x, i);
            }
        }
    }
    status = ask_pairs(&x, e);
    for (int set = 0; set < MF_SHARES && status == MF_OK; set++) {
        share(&x, (mf_shares)set);
        write_shares(&x, (mf_shares)set);
    }
out:
    free(x.row);
    free(x.col);
    free(x.pair_s);
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
