/* loss_figures.c - finds what a layout loses at least to gathers and reductions beside its passes.
 *
 * The loss of a virtual stage rests on the least number of positions that it holds, on the fastest
 * blocks that can stand there, and on the least gradients that they reduce. If the caller's numbers
 * add up to all positions, this file knows which position stands where and uses its own figures.
 */
#include "planner/bound/overlap_loss.h"
#include "planner/partition/partition.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <string.h>

/* The least figures of any layer that can stand on a virtual stage, and those of the embedding and
 * the head, which have to stand on the first and the last one. */
typedef struct least {
    double part_s[MF_ORDER_PARTS]; /* of a layer; INFINITY: no layer can stand there */
    double mean_s[MF_ORDER_PARTS]; /* mean over the layers that are known to stand there */
    double end_s[MF_ORDER_PARTS];  /* embedding and head together */
    double head_s[MF_ORDER_PARTS];
    double rate[MF_ORDER_W + 1];     /* highest speed of reductions beside F, B, W there */
    double slowest_s, slowest_end_s; /* the most that a layer and the embedding add to the last
                                      * backward pass, with what OWN_LOST counts */
    bool first, last;                /* holds the embedding, the head */
} least;

static mf_position_kind kind_of(const mf_partition *in, int slot) {
    return mf_position_kind_of(in->model, in->slot[slot].first);
}

/* How many of n positions are layers, without embedding and head. */
static int layers_of(const least *x, int n) {
    int layers = n - x->first - x->last;
    return layers > 0 ? layers : 0;
}

/* The least time of a part in any micro-batch: the first one computes its weight gradients faster,
 * since it adds them to nothing. */
static double least_part_s(const mf_partition *in, const mf_partition_class *c, int part) {
    const bool weights = part == (in->split ? MF_ORDER_W : MF_ORDER_B);
    return c->least_s[part] - (weights ? c->anew_s : 0.0);
}

/* Takes a slot into account that can stand there. layers: how many of its layers do, if that is
 * known; else 0. */
static void add_slot(const mf_partition *in, least *x, const mf_partition_class *c,
                     mf_position_kind kind, int layers) {
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        const double part_s = least_part_s(in, c, p);
        if (kind ==
            MF_POS_EMBEDDING) { /* it stands on the first stage alone, the head on the last */
            x->end_s[p] += x->first ? part_s : 0.0;
        } else if (kind == MF_POS_HEAD) {
            x->end_s[p] += part_s;
            x->head_s[p] = part_s;
        } else {
            x->part_s[p] = fmin(x->part_s[p], part_s);
            x->mean_s[p] += layers * part_s;
        }
    }
}

/* The most that a path charges for a position's part of a last backward pass. */
static double slowest_s(const mf_partition *in, const mf_partition_class *c) {
    double most_s = 0.0;
    for (int m = 0; m < c->choices; m++) {
        const mf_block_cost *q = &c->choice[m].cost;
        const double more_s = fmax(c->choice[m].end_b_s, c->choice[m].inside_b_s);
        most_s = fmax(most_s, (in->split ? q->w.time_s : q->b.time_s) + fmax(more_s, 0.0));
    }
    return most_s + c->own_lost_s;
}

/* The least figures of virtual stage v. It holds positions from .. to - 1; from < 0: unknown. */
static least least_of(const mf_partition *in, int v, int from, int to) {
    least x;
    memset(&x, 0, sizeof x);
    x.first = v == 0;
    x.last = v == in->vstages - 1;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        x.part_s[p] = HUGE_VAL;
    }
    for (int s = 0; s < in->slots; s++) {
        int count = 0;
        for (int i = from; i >= 0 && i < to; i++) {
            count += in->slot_at[i] == s;
        }
        if (v < in->slot[s].v_lo || v > in->slot[s].v_hi || (from >= 0 && count == 0)) {
            continue;
        }
        add_slot(in, &x, mf_partition_class_at(in, v, s), kind_of(in, s), count);
        if (kind_of(in, s) != MF_POS_HEAD) { /* the head is the first block of its backward pass */
            double *most = kind_of(in, s) == MF_POS_EMBEDDING ? &x.slowest_end_s : &x.slowest_s;
            *most = fmax(*most, slowest_s(in, mf_partition_class_at(in, v, s)));
        }
        for (int p = MF_ORDER_F; p <= MF_ORDER_W; p++) {
            x.rate[p] = fmax(x.rate[p], mf_partition_class_at(in, v, s)->rate[p]);
        }
    }
    int layers = layers_of(&x, to - from);
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        x.mean_s[p] = from < 0 ? x.part_s[p] : layers > 0 ? x.mean_s[p] / layers : HUGE_VAL;
    }
    return x;
}

static double layer_s(const least *x, mf_order_part part) {
    return isinf(x->part_s[part]) ? 0.0 : x->part_s[part];
}

static double pass_s(const least *x, int n, mf_order_part part) {
    double layer_s = isinf(x->mean_s[part]) ? 0.0 : x->mean_s[part];
    return layers_of(x, n) * layer_s + x->end_s[part];
}

/* --- reductions ------------------------------------------------------------------------------- */

/* A backward pass ends with the first position of the stage, so its block is reduced last. */
static double reduced_last_s(const least *x, int n) {
    if (x->first) {
        return x->end_s[MF_ORDER_REDUCE] - x->head_s[MF_ORDER_REDUCE];
    }
    double layer = layer_s(x, MF_ORDER_REDUCE);
    return x->last && n < 2 ? x->head_s[MF_ORDER_REDUCE] : layer;
}

/* The least time that reductions still need when the last backward pass of n known positions has
 * ended. A block queues its reduction when it ends, so nothing is reduced before the first block of
 * the pass has ended. From then on, a path counts at most the time of the other blocks, with what
 * OWN_LOST adds. Reductions advance at `rate` at most beside a block, so by the end of the pass
 * they have done no more than `rate` times that time; the rest is left. In a merged pair, forward
 * blocks run in between as well, so only the reduction of the last block counts there. */
static double all_left_s(const mf_partition *in, const least *x, int n) {
    const int layers = layers_of(x, n);
    const double last_s = reduced_last_s(x, n), each_s = x->mean_s[MF_ORDER_REDUCE];
    const bool paired = in->merged && (in->order.paired_end || !mf_order_end_known(&in->layout));
    if (paired || layers == 0 || (x->first && x->last) || isinf(each_s)) {
        return last_s;
    }
    const int behind = x->last ? layers : layers - 1; /* layers that run after the first block */
    const double done_s = behind * x->slowest_s + (x->first ? x->slowest_end_s : 0.0);
    const double all_s = layers * each_s + x->end_s[MF_ORDER_REDUCE];
    return fmax(last_s, all_s - x->rate[in->split ? MF_ORDER_W : MF_ORDER_B] * done_s);
}

/* How much OWN_LOST may count too much. It counts a loss for the first block of the last backward
 * pass, beside which nothing is reduced. On the last virtual stage the head is that block, and the
 * block after it loses no more than what the head's reduction takes from it. */
static double own_most_s(const mf_partition *in, int v, double head_s) {
    if (v == in->vstages - 1) {
        double own_s = mf_partition_class_at(in, v, in->slot_at[in->positions - 2])->own_lost_s;
        return fmax(own_s - in->lost * head_s, 0.0);
    }
    double most_s = 0.0;
    for (int s = 0; s < in->slots; s++) {
        bool stands = v >= in->slot[s].v_lo && v <= in->slot[s].v_hi;
        most_s = stands ? fmax(most_s, mf_partition_class_at(in, v, s)->own_lost_s) : most_s;
    }
    return most_s;
}

/* Time of the first block of a backward pass. */
static double first_s(const least *x, int n, mf_order_part back) {
    if (x->last) {
        return x->head_s[back];
    }
    return x->first && n < 2 ? 0.0 : layer_s(x, back);
}

/* Time of the last block of a forward pass. */
static double last_s(const least *x, int n) {
    if (x->last) {
        return x->head_s[MF_ORDER_F];
    }
    const double layer = layer_s(x, MF_ORDER_F);
    return x->first && n < 2 ? fmin(x->end_s[MF_ORDER_F], layer) : layer;
}

/* --- all -------------------------------------------------------------------------------------- */

/* Counts layers and MTP depths, and finds the least time of any of them. */
static void add_layers(const mf_partition *in, mf_loss_figures *x) {
    x->layers = 0;
    x->layer_s = x->layer_gather_s = HUGE_VAL;
    for (int s = 0; s < in->slots; s++) {
        if (kind_of(in, s) == MF_POS_EMBEDDING || kind_of(in, s) == MF_POS_HEAD) {
            continue;
        }
        x->layers += in->slot[s].count;
        for (int v = in->slot[s].v_lo; v <= in->slot[s].v_hi; v++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, s);
            const double anew_s =
                c->anew_s / (double)in->layout.micro_batches; /* spread over all */
            const double *y = c->least_s;
            double alone_s = y[MF_ORDER_F] + y[MF_ORDER_B] + y[MF_ORDER_W];
            double pair_s = fmax(y[MF_ORDER_F_PAIR] + y[MF_ORDER_B_PAIR],
                                 y[MF_ORDER_PAIR_PORTION_F] + y[MF_ORDER_PAIR_PORTION_B]);
            /* a portion may be negative, the time of a pass is not */
            pair_s = fmax(pair_s, MF_PAIRED_LEAST * y[MF_ORDER_B]);
            x->layer_s = fmin(x->layer_s, (in->merged ? fmin(pair_s, alone_s) : alone_s) - anew_s);
            x->layer_gather_s = fmin(x->layer_gather_s, y[MF_ORDER_GATHER]);
        }
    }
}

static mf_loss_stage figures_of(const mf_partition *in, int v, const least *x, int n) {
    return (mf_loss_stage){.f_s = pass_s(x, n, MF_ORDER_F),
                           .b_s = pass_s(x, n, MF_ORDER_B),
                           .w_s = pass_s(x, n, MF_ORDER_W),
                           .gather_s = pass_s(x, n, MF_ORDER_GATHER),
                           .first_s = first_s(x, n, in->split ? MF_ORDER_W : MF_ORDER_B),
                           .last_s = last_s(x, n),
                           .reduce_s = reduced_last_s(x, n),
                           .own_most_s = own_most_s(in, v, x->head_s[MF_ORDER_REDUCE]),
                           .f_rate = x->rate[MF_ORDER_F],
                           .b_rate = x->rate[MF_ORDER_B],
                           .w_rate = x->rate[MF_ORDER_W],
                           .layer = layers_of(x, n) > 0};
}

void mf_partition_losses(mf_partition *in, const int *positions, double cutoff_s) {
    mf_loss_stage stage[MF_MAX_VSTAGES];
    mf_loss_figures x = {.l = &in->layout,
                         .order = &in->order,
                         .send_s = in->send_s,
                         .hold_s = in->hold_s,
                         .lost = in->lost,
                         .cutoff_s = cutoff_s,
                         .stage = stage};
    int known = 0;
    for (int v = 0; v < in->vstages && positions; v++) {
        known += positions[v];
    }
    bool all = known == in->positions; /* then it is known which stand where */
    for (int v = 0, from = 0; v < in->vstages && in->lost > 0.0; v++) {
        int n = positions ? positions[v] : 1;
        const least at = least_of(in, v, all ? from : -1, all ? from + n : 0);
        stage[v] = figures_of(in, v, &at, n);
        stage[v].reduce_s = all ? all_left_s(in, &at, n) : stage[v].reduce_s;
        from += n;
    }
    add_layers(in, &x);
    mf_overlap_losses(&x, &in->losses);
}

double mf_partition_path_fixed_s(const mf_partition *in, const mf_order_path *c) {
    return mf_order_path_fixed_s(c, in->step_end.fixed_s, in->send_s, in->hold_s, in->lost,
                                 &in->losses);
}
