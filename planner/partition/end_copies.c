/* end_copies.c - what the last block of a virtual stage takes more for copies to and from the host.
 *
 * Where copies stay in their pass, those of a block travel beside its neighbour. The last block of
 * a virtual stage has none behind it in the forward pass, nor before it in the backward pass: there
 * its copies are waited for (simulator/step_chunk.c). A layer that copies little, put there, takes
 * little more; where all layers copy much, one of them does.
 *
 * Counts do not tell which layer is last. Some choices take much more there than the others: with
 * n layers of the others on a virtual stage, at least 1 - n of the last position takes what the
 * least of the dear ones does (nothing where n is 1 or more). That is convex in the counts: a
 * column of a program says so (end_rows.c), and a play adds it.
 */
#include "planner/partition/partition.h"

#include "planner/tuning/limits.h"

#include <math.h>
#include <string.h>

/* What a choice adds to a part of its virtual stage where it is the last. */
static double more_s(const mf_partition_choice *c, mf_order_part part) {
    switch ((int)part) {
    case MF_ORDER_F:
        return c->end_f_s;
    case MF_ORDER_B:
        return c->end_b_s;
    case MF_ORDER_B_PAIR:
        return c->end_pair_s[MF_PORTIONS_B_FULL];
    case MF_ORDER_PAIR_PORTION_B:
        return c->end_pair_s[MF_PORTIONS_F_FULL];
    default:
        return 0.0;
    }
}

/* Extra time of a last block by which its choice counts as dear: in the most frequent passes. */
static double decides_s(const mf_partition *in, const mf_partition_choice *c) {
    return in->merged ? c->end_pair_s[MF_PORTIONS_B_FULL] : c->end_f_s + c->end_b_s;
}

/* Which choices of a class end dearly, and what all of them take more. */
static void find_dear(const mf_partition *in, mf_partition_class *c) {
    const double little_s =
        MF_END_COPY_LEAST * (c->choice[0].cost.f.time_s + c->choice[0].cost.b.time_s);
    double most_s = 0.0;
    for (int m = 0; m < c->choices; m++) {
        most_s = fmax(most_s, decides_s(in, &c->choice[m]));
    }
    c->dear_last = most_s > little_s;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        c->dear_last_s[p] = HUGE_VAL;
    }
    for (int m = 0; m < c->choices; m++) {
        mf_partition_choice *x = &c->choice[m];
        x->dear_last = decides_s(in, x) > fmax(little_s, MF_END_COPY_DEAR * most_s);
        for (int p = 0; p < MF_ORDER_PARTS && x->dear_last; p++) {
            c->dear_last_s[p] = fmin(c->dear_last_s[p], more_s(x, (mf_order_part)p));
        }
    }
}

/* Of the classes that can stand on v. */
static void find_more(const mf_partition *in, int v, mf_last_block_cost *out) {
    out->any = false;
    for (int s = 0; s < in->slots; s++) {
        const mf_partition_class *c = mf_partition_class_at(in, v, s);
        const bool stands = v >= in->slot[s].v_lo && v <= in->slot[s].v_hi;
        if (!stands || !c->dear_last) {
            continue;
        }
        for (int p = 0; p < MF_ORDER_PARTS; p++) {
            const double more_s = c->dear_last_s[p];
            out->more_s[p] = out->any ? fmin(out->more_s[p], more_s) : more_s;
        }
        out->any = true;
    }
}

void mf_partition_find_ends(mf_partition *in) {
    in->dear_last = false;
    for (int i = 0; i < in->classes; i++) {
        find_dear(in, &in->class[i]);
        in->dear_last |= in->class[i].dear_last;
    }
    for (int v = 0; v < in->vstages && in->dear_last; v++) {
        find_more(in, v, &in->last_cost[v]);
    }
}

const double *mf_partition_end_more_s(const mf_partition *in, int v) {
    return in->dear_last && in->last_cost[v].any ? in->last_cost[v].more_s : NULL;
}

double mf_partition_end_share(const mf_partition *in, const double *count, int v) {
    double share = 1.0;
    for (int s = 0; s < in->slots && share > 0.0; s++) {
        const mf_partition_class *c = mf_partition_class_at(in, v, s);
        const bool stands = v >= in->slot[s].v_lo && v <= in->slot[s].v_hi;
        for (int m = 0; m < c->choices && stands; m++) {
            share -= c->choice[m].dear_last ? 0.0 : count[mf_partition_cell(in, v, s, m)];
        }
    }
    return fmax(share, 0.0);
}
