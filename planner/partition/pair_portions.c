/* pair_portions.c - divides the time of merged pairs into a portion for each of the two blocks.
 *
 * A pair takes at least the portion of its forward pass plus the portion of its backward pass,
 * whichever two blocks meet, and a block that runs alone takes at least its portion. So a path
 * through merged events is a sum over blocks. The time that two passes hide from each other has to
 * be missing in one of the two portions. It is then also missing where that pass meets a partner
 * from which it hides nothing. Therefore there are two sets of portions, and a path takes the
 * better one for every event. In one set backward passes keep their whole time, which is exact if
 * fewer forward passes exchange rows; in the other set forward passes keep theirs.
 *
 * The classes that stages hold most of get their portions first, so that their pairs are exact.
 */
#include "planner/partition/partition.h"

#include "planner/price/least_cost.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>

static mf_block_key key_of(const mf_partition *in, int class, int choice, bool ends) {
    mf_block_key key = in->class[class].key;
    key.memory = in->class[class].choice[choice].memory;
    key.at_end = ends;
    return key;
}

mf_status mf_partition_pair_s(mf_partition *in, int f, int m, int b, int k, double *time_s,
                              mf_err *e) {
    return mf_partition_end_pair_s(in, f, m, false, b, k, false, time_s, e);
}

mf_status mf_partition_end_pair_s(mf_partition *in, int f, int m, bool f_ends, int b, int k,
                                  bool b_ends, double *time_s, mf_err *e) {
    const mf_block_key fk = key_of(in, f, m, f_ends), bk = key_of(in, b, k, b_ends);
    return mf_block_costs_least_pair(in->costs, &in->layout, &fk, &bk, time_s, e);
}

/* The least time wherever the two blocks stand. b_ends: the backward block is the last one of its
 * virtual stage. */
static mf_status pair_anywhere_s(mf_partition *in, int f, int m, int b, int k, bool b_ends,
                                 double *time_s, mf_err *e) {
    const mf_block_key fk = key_of(in, f, m, false), bk = key_of(in, b, k, b_ends);
    return mf_block_costs_least_pair_anywhere(in->costs, &in->layout, &fk, &bk, time_s, e);
}

/* --- pairs that are asked for ----------------------------------------------------------------- */

/* A forward or a backward pass whose pairs are priced. The first forward pass of a class also
 * stands for those of the class that are not priced. */
typedef struct side {
    int class, choice;
    double alone_s, portion_s;
    bool usual;
} side;

typedef struct dividing {
    mf_partition *in;
    bool all; /* pairs of all choices of main classes are priced */
    int rows, cols;
    side *row, *col; /* forward and backward passes, class by class in portion_order */
    double *pair_s;  /* [rows][cols] the least time of each pair */
} dividing;

/* In which order classes get their portions: those that stages hold most of first, single blocks
 * last. */
static int portion_order(const mf_partition_class *c) {
    static const int rank[] = {
        [MF_POS_EMBEDDING] = 4, [MF_POS_LAYER] = 1, [MF_POS_MTP] = 2, [MF_POS_HEAD] = 3};
    return c->exchanges ? 0 : rank[c->key.kind];
}

static bool pinned(const mf_partition_class *c) {
    return c->choice[0].memory.offload != 0;
}

/* Is a pass quicker than another in any respect? Then the other cannot represent it. */
static bool is_quicker(const mf_pass_cost *p, const mf_pass_cost *than) {
    return p->time_s < than->time_s || p->compute_s < than->compute_s || p->ep_s < than->ep_s;
}

/* Is a row made for this choice? The forward pass of the first choice stands for all that are no
 * quicker: a choice that keeps less runs the same ops (in a ring they may wait in another order:
 * least_cost.h), and copies only add time. It also stands for those that offload, unless all pairs
 * are priced. If offloading is pinned, the quickest choice stands for all. */
static bool has_row(const dividing *x, const mf_partition_class *c, int m) {
    bool quicker = is_quicker(&c->choice[m].cost.f, &c->choice[0].cost.f);
    bool copies = x->all && c->exchanges && c->choice[m].memory.offload;
    return m == 0 || (!pinned(c) && (quicker || copies));
}

/* Is a column made for this choice? A backward pass without one gets its portion from its own costs
 * (assumed_portion_s). */
static bool has_col(const dividing *x, const mf_partition_class *c, int k) {
    bool layer = x->all && c->key.kind == MF_POS_LAYER;
    return k == 0 || c->exchanges || pinned(c) || layer;
}

static void list_class(dividing *x, int class) {
    const mf_partition_class *c = &x->in->class[class];
    for (int m = 0; m < c->choices; m++) {
        double f_s = c->choice[m].cost.f.time_s, b_s = c->choice[m].cost.b.time_s;
        bool usual = b_s <= MF_USUAL_BACKWARD * c->choice[0].cost.b.time_s;
        if (has_row(x, c, m)) {
            x->row[x->rows++] = (side){class, m, f_s, 0.0, true};
        } else if (pinned(c)) {
            side *first = &x->row[x->rows - 1];
            first->alone_s = fmin(first->alone_s, f_s);
        }
        if (has_col(x, c, m)) {
            x->col[x->cols++] = (side){class, m, b_s, 0.0, usual};
        }
    }
}

/* Does the class have a choice that offloads and whose pairs are not priced? */
static bool offloads_unasked(const dividing *x, const mf_partition_class *c, bool forward) {
    for (int m = 0; m < c->choices; m++) {
        bool asked = forward ? has_row(x, c, m) || pinned(c) : has_col(x, c, m);
        if (c->choice[m].memory.offload && !asked) {
            return true;
        }
    }
    return false;
}

/* By which share of its time a pair may be quicker if it is one of those that this one stands for.
 */
static double given_away(const dividing *x, const side *row, const side *col) {
    const mf_partition_class *f = &x->in->class[row->class], *b = &x->in->class[col->class];
    bool f_unasked = offloads_unasked(x, f, true), b_unasked = offloads_unasked(x, b, false);
    bool f_copies = f->choice[row->choice].memory.offload || f_unasked;
    bool b_copies = b->choice[col->choice].memory.offload || b_unasked;
    if (!f_unasked && !b_unasked) {
        return 0.0;
    }
    return f_copies && b_copies ? MF_BOTH_COPY_SAFETY : MF_ONE_COPIES_SAFETY;
}

/* The least time of a column's backward pass with any of the forward passes that a row stands for.
 */
static mf_status quickest_pair(const dividing *x, const side *row, const side *col, double *time_s,
                               mf_err *e) {
    const mf_partition_class *f = &x->in->class[row->class];
    double less = 1.0 - given_away(x, row, col);
    *time_s = INFINITY;
    for (int m = row->choice; m < (pinned(f) ? f->choices : row->choice + 1); m++) {
        double one_s = 0.0;
        mf_status status =
            pair_anywhere_s(x->in, row->class, m, col->class, col->choice, false, &one_s, e);
        if (status != MF_OK) {
            return status;
        }
        *time_s = fmin(*time_s, less * one_s);
    }
    return MF_OK;
}

static mf_status ask_pairs(dividing *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->rows; i++) {
        for (int j = 0; j < x->cols && status == MF_OK; j++) {
            status = quickest_pair(x, &x->row[i], &x->col[j], &x->pair_s[i * x->cols + j], e);
        }
    }
    return status;
}

/* --- portions -----------------------------------------------------------------------------------
 */

/* Lowers the portions of backward passes before `until` so that row i has its portion in each pair.
 */
static void reduce_backward_portions(dividing *x, int i, int until) {
    const double *pair_s = x->pair_s + (size_t)i * (size_t)x->cols;
    for (int j = 0; j < until; j++) {
        x->col[j].portion_s = fmin(x->col[j].portion_s, pair_s[j] - x->row[i].portion_s);
    }
}

/* Gives forward row i the largest portion that the usual backward passes before `until` leave it.
 * Unusual ones are lowered instead. */
static void portion_forward(dividing *x, int i, int until) {
    const double *pair_s = x->pair_s + (size_t)i * (size_t)x->cols;
    double u_s = x->row[i].alone_s;
    for (int j = 0; j < until; j++) {
        u_s = x->col[j].usual ? fmin(u_s, pair_s[j] - x->col[j].portion_s) : u_s;
    }
    x->row[i].portion_s = u_s;
    reduce_backward_portions(x, i, until);
}

/* What the backward passes before `until` leave to forward row i. */
static double left_forward_s(const dividing *x, int i, int until) {
    double u_s = x->row[i].alone_s;
    for (int j = 0; j < until; j++) {
        u_s = fmin(u_s, x->pair_s[i * x->cols + j] - x->col[j].portion_s);
    }
    return u_s;
}

/* Gives backward column j the largest portion that the forward passes before `until` leave it. */
static void portion_backward(dividing *x, int j, int until) {
    double w_s = x->col[j].alone_s;
    for (int i = 0; i < until; i++) {
        w_s = fmin(w_s, x->pair_s[i * x->cols + j] - x->row[i].portion_s);
    }
    x->col[j].portion_s = w_s;
}

/* Divides pairs class by class, and begins with the passes that keep their time. Beside a usual
 * backward pass, copies add almost nothing to a forward pass. So all choices of a class get the
 * same portion, and dominated choices can be dropped (mf_partition_choice.hull). */
static void divide(dividing *x, mf_portions set) {
    for (int i = 0, j = 0; i < x->rows;) {
        int class = x->row[i].class, first = i++, from = j;
        while (j < x->cols && x->col[j].class == class) {
            j++;
        }
        if (set == MF_PORTIONS_F_FULL) {
            portion_forward(x, first, from);
        }
        for (int k = from; k < j; k++) {
            portion_backward(x, k, set == MF_PORTIONS_F_FULL ? i : first);
        }
        if (set == MF_PORTIONS_B_FULL) {
            portion_forward(x, first, j);
        }
        for (; i < x->rows && x->row[i].class == class; i++) {
            x->row[i].portion_s = fmin(x->row[first].portion_s, x->row[i].alone_s);
            reduce_backward_portions(x, i, j);
            if (set == MF_PORTIONS_B_FULL && x->all) {
                x->row[i].portion_s = left_forward_s(x, i, j);
            }
        }
    }
}

/* A lower bound of the portion of a backward pass whose pairs are not priced. A pair takes at least
 * the compute time of both passes, and at least the time of either pass (less MF_BOTH_COPY_SAFETY,
 * since some ops run earlier in the order of a pair). */
static double assumed_portion_s(const dividing *x, const mf_pass_cost *b) {
    double portion_s = b->time_s;
    for (int i = 0; i < x->rows; i++) {
        const mf_partition_class *c = &x->in->class[x->row[i].class];
        double compute_s = c->choice[x->row[i].choice].cost.f.compute_s + b->compute_s;
        double either_s = fmax(x->row[i].alone_s, b->time_s);
        double pair_s = fmax(compute_s, (1.0 - MF_BOTH_COPY_SAFETY) * either_s);
        portion_s = fmin(portion_s, pair_s - x->row[i].portion_s);
    }
    return portion_s;
}

static void write_backward(const dividing *x, mf_portions set) {
    for (int j = 0; j < x->cols; j++) {
        mf_partition_class *c = &x->in->class[x->col[j].class];
        int k = x->col[j].choice;
        c->choice[k].b_pair_s[set] = x->col[j].portion_s;
        for (k++; k < c->choices && !has_col(x, c, k); k++) {
            c->choice[k].b_pair_s[set] = assumed_portion_s(x, &c->choice[k].cost.b);
        }
    }
}

static void write_portions(const dividing *x, mf_portions set) {
    double first_s = 0.0;
    for (int i = 0; i < x->rows; i++) {
        mf_partition_class *c = &x->in->class[x->row[i].class];
        int from = x->row[i].choice;
        first_s = from == 0 ? x->row[i].portion_s : first_s;
        for (int m = from; m < c->choices && (m == from || !has_row(x, c, m)); m++) {
            c->choice[m].f_pair_s[set] = m == from ? x->row[i].portion_s : first_s;
        }
    }
    write_backward(x, set);
}

/* --- last blocks ------------------------------------------------------------------------------ */

/* Portions of a backward block that is the last of its virtual stage, beside any forward pass. A
 * forward pass whose pairs are not priced makes the pair quicker by MF_BOTH_COPY_SAFETY at most. */
static mf_status portion_end(const dividing *x, int class, int k, mf_err *e) {
    mf_partition_choice *c = &x->in->class[class].choice[k];
    double portion_s[MF_PORTIONS];
    for (int set = 0; set < MF_PORTIONS; set++) {
        portion_s[set] = c->cost.b.time_s + c->end_b_s;
    }
    for (int i = 0; i < x->rows; i++) {
        const side *row = &x->row[i];
        double pair_s;
        mf_status status =
            pair_anywhere_s(x->in, row->class, row->choice, class, k, true, &pair_s, e);
        if (status != MF_OK) {
            return status;
        }
        pair_s *= 1.0 - 2 * MF_BOTH_COPY_SAFETY;
        const mf_partition_choice *f = &x->in->class[row->class].choice[row->choice];
        for (int set = 0; set < MF_PORTIONS; set++) {
            portion_s[set] = fmin(portion_s[set], pair_s - f->f_pair_s[set]);
        }
    }
    for (int set = 0; set < MF_PORTIONS; set++) {
        c->end_pair_s[set] = fmax(0.0, portion_s[set] - c->b_pair_s[set]);
    }
    return MF_OK;
}

/* Not done if offloading is pinned: a row then stands for choices that are not priced here. */
static mf_status portion_ends(const dividing *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->in->classes; i++) {
        if (pinned(&x->in->class[i])) {
            return MF_OK;
        }
    }
    for (int i = 0; i < x->in->classes; i++) {
        const mf_partition_class *c = &x->in->class[i];
        for (int k = 0; k < c->choices && status == MF_OK; k++) {
            if (c->choice[k].end_b_s > 0.0 && has_col(x, c, k)) {
                *x->in->effort_ns += MF_PAIR_NS * (int64_t)x->rows;
                status = portion_end(x, i, k, e);
            }
        }
    }
    return status;
}

static int rank_of(const mf_partition *in, int rank, int after) {
    for (int i = after + 1; i < in->classes; i++) {
        if (portion_order(&in->class[i]) == rank) {
            return i;
        }
    }
    return -1;
}

mf_status mf_partition_portion_pairs(mf_partition *in, bool all, mf_err *e) {
    size_t most = 1;
    for (int i = 0; i < in->classes; i++) {
        most += (size_t)in->class[i].choices;
    }
    dividing x = {.in = in,
                  .all = all,
                  .row = calloc(most, sizeof *x.row),
                  .col = calloc(most, sizeof *x.col)};
    mf_status status = MF_OK;
    if (!x.row || !x.col) {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
        goto out;
    }
    for (int rank = 0; rank <= 4; rank++) {
        for (int i = rank_of(in, rank, -1); i >= 0; i = rank_of(in, rank, i)) {
            list_class(&x, i);
        }
    }
    x.pair_s = calloc((size_t)x.rows * (size_t)x.cols, sizeof *x.pair_s);
    *in->effort_ns += MF_PAIR_NS * (int64_t)x.rows * x.cols;
    status = x.pair_s ? ask_pairs(&x, e) : mf_err_set(e, MF_NOMEM, "out of memory");
    for (int set = 0; set < MF_PORTIONS && status == MF_OK; set++) {
        divide(&x, (mf_portions)set);
        write_portions(&x, (mf_portions)set);
    }
    status = status == MF_OK && all ? portion_ends(&x, e) : status;
out:
    free(x.row);
    free(x.col);
    free(x.pair_s);
    return status;
}

/* Prices the pair of a choice with its own kind, and its pairs with the first choice. */
static mf_status own_pair(mf_partition *in, int class, int m, mf_err *e) {
    mf_partition_choice *c = &in->class[class].choice[m];
    const double first_s = in->class[class].choice[0].pair_s;
    double forward_s = 0.0, backward_s = 0.0;
    mf_status status = mf_partition_pair_s(in, class, m, class, m, &c->pair_s, e);
    c->apart_s = c->pair_s;
    if (status != MF_OK || c->memory.offload == 0 || m == 0) {
        return status;
    }
    status = mf_partition_pair_s(in, class, m, class, 0, &forward_s, e);
    status = status == MF_OK ? mf_partition_pair_s(in, class, 0, class, m, &backward_s, e) : status;
    c->apart_s = forward_s + backward_s - first_s;
    return status;
}

mf_status mf_partition_own_pairs(mf_partition *in, mf_err *e) {
    mf_status status = MF_OK;
    if (in->own_pairs || !in->merged) {
        return MF_OK;
    }
    for (int i = 0; i < in->classes; i++) {
        for (int m = 0; m < in->class[i].choices && status == MF_OK; m++) {
            mf_partition_choice *c = &in->class[i].choice[m];
            double end_s = 0.0;
            status = own_pair(in, i, m, e);
            if (status == MF_OK && c->end_b_s > 0.0) {
                status = mf_partition_end_pair_s(in, i, m, true, i, m, true, &end_s, e);
                c->end_own_s = fmax(0.0, end_s - c->pair_s);
            }
        }
    }
    in->own_pairs = status == MF_OK;
    return status;
}
