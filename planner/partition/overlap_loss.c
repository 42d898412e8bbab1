/* overlap_loss.c - what passes lose at least to parameter gathers and gradient reductions.
 *
 * simulator/step_chunk.c: while the once-a-step stream is busy for `left` more seconds, a block
 * that takes t loses e x min(left, t / (1 - e)), e being in->lost at least. Chains need figures
 * that hold for every assignment, so these rest on the positions that a virtual stage holds at
 * least, the fastest of what can stand there and the least that is reduced.
 *
 * Where positions[] are all there are, it is known which of them stand where.
 *
 * Gathers: from the start of the step on, all stages gather for as long as `window` at least. A
 * chain is passes and sends without a wait between. Passes in the window take 1 / (1 - e) of their
 * time, and what they do not fill of it are sends: no more than two between passes through layers.
 */
#include "planner/partition/partition.h"

#include <math.h>
#include <string.h>

/* Least figures of a layer that can stand on a virtual stage, and of the ends that must. */
typedef struct least {
    double part_s[MF_ORDER_PARTS]; /* of a layer; INFINITY: none can */
    double mean_s[MF_ORDER_PARTS]; /* the same over all layers that stand there at least */
    double end_s[MF_ORDER_PARTS];  /* embedding and head together */
    double head_s[MF_ORDER_PARTS];
    bool first, last; /* holds the embedding, the head */
} least;

static mf_position_kind kind_of(const mf_partition *in, int slot) {
    const mf_segment *g = &in->segment[in->slot[slot].segment];
    return mf_position_kind_of(in->model, g->first + in->slot[slot].place);
}

/* Layers, ends left out, of n positions. */
static int layers_of(const least *x, int n) {
    int layers = n - x->first - x->last;
    return layers > 0 ? layers : 0;
}

/* A slot that can stand there; layers: so many of it do, where that is known. */
static void add_slot(least *x, const mf_partition_class *c, mf_position_kind kind, int layers) {
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        if (kind == MF_POS_EMBEDDING) { /* stands on the first alone, the head on the last */
            x->end_s[p] += x->first ? c->least_s[p] : 0.0;
        } else if (kind == MF_POS_HEAD) {
            x->end_s[p] += c->least_s[p];
            x->head_s[p] = c->least_s[p];
        } else {
            x->part_s[p] = fmin(x->part_s[p], c->least_s[p]);
            x->mean_s[p] += layers * c->least_s[p];
        }
    }
}

/* from, to: the positions that stand there; from < 0: not known. */
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
        add_slot(&x, mf_partition_class_at(in, v, s), kind_of(in, s), count);
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

/* The block that is reduced last: the first position's. */
static double reduced_last_s(const least *x, int n) {
    if (x->first) {
        return x->end_s[MF_ORDER_REDUCE] - x->head_s[MF_ORDER_REDUCE];
    }
    double layer = layer_s(x, MF_ORDER_REDUCE);
    return x->last && n < 2 ? x->head_s[MF_ORDER_REDUCE] : layer;
}

/* Most that OWN_LOST counts for the first block of the last backward pass: none for the head. */
static double own_most_s(const mf_partition *in, int v) {
    double most_s = 0.0;
    for (int s = 0; s < in->slots && v < in->vstages - 1; s++) {
        const mf_partition_class *c = mf_partition_class_at(in, v, s);
        for (int m = 0; v >= in->slot[s].v_lo && v <= in->slot[s].v_hi && m < c->choices; m++) {
            most_s = fmax(most_s, mf_partition_part_s(in, c, m, MF_ORDER_OWN_LOST, false));
        }
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

/* --- gathers ---------------------------------------------------------------------------------- */

/* Layers on any stage at least when no other holds more than fit below the cutoff. */
static int least_layers(const mf_partition *in, double cutoff_s, double *gather_s) {
    double mb_s = HUGE_VAL;
    int layers = 0;
    *gather_s = HUGE_VAL;
    for (int s = 0; s < in->slots; s++) {
        if (kind_of(in, s) == MF_POS_EMBEDDING || kind_of(in, s) == MF_POS_HEAD) {
            continue;
        }
        layers += in->segment[in->slot[s].segment].repeats;
        for (int v = in->slot[s].v_lo; v <= in->slot[s].v_hi; v++) {
            const double *x = mf_partition_class_at(in, v, s)->least_s;
            double alone_s = x[MF_ORDER_F] + x[MF_ORDER_B] + x[MF_ORDER_W];
            double pair_s = fmax(x[MF_ORDER_F_PAIR] + x[MF_ORDER_B_PAIR],
                                 x[MF_ORDER_PAIR_SHARE_F] + x[MF_ORDER_PAIR_SHARE_B]);
            /* shares may be below nothing, passes not; beside another one a pass may be a hair
             * quicker */
            pair_s = fmax(pair_s, 0.95 * x[MF_ORDER_B]);
            mb_s = fmin(mb_s, in->merged ? fmin(pair_s, alone_s) : alone_s);
            *gather_s = fmin(*gather_s, x[MF_ORDER_GATHER]);
        }
    }
    if (!(mb_s > 0.0)) {
        return 0;
    }
    double most = cutoff_s / ((double)in->layout.micro_batches * mb_s);
    double left = most < layers ? layers - (in->stages - 1) * floor(most + 1e-6) : 0.0;
    return left > 0.0 ? (int)left : 0;
}

/* Every stage gathers from the start of the step until then at least. */
static double gathered_s(const mf_partition *in, const least *x, const int *positions,
                         double cutoff_s) {
    double least_s = HUGE_VAL, gather_s;
    int layers = least_layers(in, cutoff_s, &gather_s);
    for (int p = 0; p < in->stages; p++) {
        double sum_s = 0.0;
        for (int c = 0; c < in->chunks; c++) {
            int v = (int)mf_layout_vstage(&in->layout, p, c);
            sum_s += pass_s(&x[v], positions ? positions[v] : 1, MF_ORDER_GATHER);
        }
        least_s = fmin(least_s, fmax(sum_s, layers > 0 ? layers * gather_s : 0.0));
    }
    return least_s;
}

/* No reduction starts earlier: before the last micro-batch has gone through the last virtual stage
 * its stage has done all other forward passes of it and, but for the warm-up, a backward pass for
 * every forward one. */
static double before_last_s(const mf_partition *in, const least *x, const int *positions) {
    int last = in->vstages - 1, stage = (int)mf_layout_stage_of(&in->layout, last);
    double m = (double)in->layout.micro_batches, back = m * in->chunks, back_s = HUGE_VAL;
    for (int c = 0; c < in->chunks; c++) {
        int v = (int)mf_layout_vstage(&in->layout, stage, c);
        back -= in->order.warm_up[stage * in->chunks + c];
        back_s = fmin(back_s, pass_s(&x[v], positions ? positions[v] : 1, MF_ORDER_B));
    }
    return (m - 1.0) * pass_s(&x[last], positions ? positions[last] : 1, MF_ORDER_F) +
           fmax(back - 1.0, 0.0) * back_s;
}

/* Share of the window that passes fill at least: a send and its hold at most between two of them,
 * hence two between passes through layers, all of which stand between the ends. */
static double filled(const mf_partition *in, const least *x, const int *positions, double e) {
    double layers_s = HUGE_VAL, any_s = HUGE_VAL;
    double send_s = (in->send_s + in->hold_s) * (1.0 - e);
    for (int v = 0; v < in->vstages; v++) {
        int n = positions ? positions[v] : 1;
        double one_s = fmin(pass_s(&x[v], n, MF_ORDER_F), pass_s(&x[v], n, MF_ORDER_B));
        any_s = fmin(any_s, one_s);
        if (layers_of(&x[v], n) > 0 || !(x[v].first || x[v].last)) {
            layers_s = fmin(layers_s, one_s);
        }
    }
    double twice =
        isinf(layers_s) || !(layers_s > 0.0) ? 0.0 : layers_s / (layers_s + 2.0 * send_s);
    double once = isinf(any_s) || !(any_s > 0.0) ? 0.0 : any_s / (any_s + send_s);
    return fmax(once, twice);
}

double mf_partition_chain_fixed_s(const mf_partition *in, const mf_order_chain *c) {
    return in->tail.fixed_s + c->sends * in->send_s +
           (c->holds - c->beside * in->lost) * in->hold_s +
           mf_order_lost_s(&in->losses, c->loss, c->starts, c->share, in->vstages);
}

/* --- all -------------------------------------------------------------------------------------- */

/* Events behind the last backward pass of virtual stage v, as if nothing were waited for: the later
 * each starts, the less is left of the reductions. */
static void behind(mf_partition *in, const least *x, const int *positions, int v) {
    const mf_order_follow *f = in->order.follow + (size_t)v * MF_ORDER_BEHIND;
    mf_order_losses *out = &in->losses;
    mf_order_part back = in->split ? MF_ORDER_W : MF_ORDER_B;
    double e = in->lost, after_s = 0.0;
    for (int k = 0; k < MF_ORDER_BEHIND && f[k].v >= 0; k++) {
        const least *y = &x[f[k].v];
        int n = positions ? positions[f[k].v] : 1;
        mf_order_part part = f[k].pass == MF_EVENT_F   ? MF_ORDER_F
                             : f[k].pass == MF_EVENT_W ? MF_ORDER_W
                                                       : MF_ORDER_B;
        /* beside another pass a block may be a hair quicker than alone */
        double time_s = pass_s(y, n, part);
        if (f[k].last) { /* its later blocks have reductions of their own beside them */
            time_s = fmin(time_s, first_s(y, n, back));
        }
        time_s *= f[k].pass == MF_EVENT_FB ? 0.95 : 1.0;
        double left = fmax(out->left_s[v] - after_s, 0.0);
        double lost_s = e * fmin(left, time_s / (1.0 - e));
        out->kind_s[MF_LOSS_BEHIND + k][v] = lost_s;
        out->after_s[k][v] = after_s;
        after_s += time_s + lost_s;
    }
}

/* Shares at which most virtual stages lose what they do: one for all, so that chains hold for all
 * layouts of an order. */
static void set_shares(const mf_partition *in, mf_order_losses *out) {
    for (int k = 0; k < MF_ORDER_BEHIND; k++) {
        double lost_s = 0.0, left_s = 0.0;
        for (int v = 0; v < in->vstages; v++) {
            lost_s += out->kind_s[MF_LOSS_BEHIND + k][v];
            left_s += fmax(out->left_s[v] - out->after_s[k][v], 0.0);
        }
        out->share[k] = lost_s > 0.0 ? lost_s / left_s : 0.0;
    }
}

/* Does the summary tell how the order ends? It may be that of fewer micro-batches. */
static bool ends_known(const mf_partition *in) {
    return in->layout.micro_batches <= 8 * in->layout.pp ||
           in->layout.micro_batches % in->layout.pp == 0;
}

void mf_partition_losses(mf_partition *in, const int *positions, double cutoff_s) {
    mf_order_losses *out = &in->losses;
    mf_order_part back = in->split ? MF_ORDER_W : MF_ORDER_B;
    double e = in->lost;
    least x[MF_MAX_VSTAGES];
    out->start_s = 0.0;
    memset(out->share, 0, sizeof out->share);
    memset(out->left_s, 0, MF_ORDER_LOSS_ROOM(in->vstages) * sizeof *out->left_s);
    if (!(in->layout.overlap & MF_OVERLAP_DP) || !(e > 0.0) || e > 0.95) {
        return;
    }
    int known = 0;
    for (int v = 0; v < in->vstages && positions; v++) {
        known += positions[v];
    }
    bool all = known == in->positions; /* then it is known which stand where */
    for (int v = 0, from = 0; v < in->vstages; v++) {
        int n = positions ? positions[v] : 1;
        x[v] = least_of(in, v, all ? from : -1, all ? from + n : 0);
        from += n;
    }
    for (int v = 0; v < in->vstages; v++) {
        int n = positions ? positions[v] : 1;
        out->left_s[v] = fmax(reduced_last_s(&x[v], n) - 2.0 * in->hold_s, 0.0);
        out->kind_s[MF_LOSS_OWN][v] = own_most_s(in, v);
        out->kind_s[MF_LOSS_FIRST][v] = first_s(&x[v], n, back);
        if (ends_known(in)) {
            behind(in, x, positions, v);
        }
    }
    set_shares(in, out);
    double window_s = fmin(gathered_s(in, x, positions, cutoff_s), before_last_s(in, x, positions));
    window_s -= 4.0 * (in->send_s + in->hold_s);
    out->start_s = fmax(0.0, e * filled(in, x, positions, e) * window_s);
}
