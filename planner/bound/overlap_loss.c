/* overlap_loss.c - what passes lose at least to parameter gathers and gradient reductions. */
#include "planner/bound/overlap_loss.h"

#include "planner/bound/stage_bound.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <string.h>

void mf_order_losses_init(mf_order_losses *x, double *figures, int vstages) {
    const size_t n = (size_t)vstages;
    x->left_s = figures;
    for (size_t k = 0; k < MF_LOSS_KINDS; k++) {
        x->kind_s[k] = figures + (k + 1) * n;
    }
    for (size_t k = 0; k < MF_ORDER_BEHIND; k++) {
        x->after_s[k] = figures + (k + 1 + MF_LOSS_KINDS) * n;
        x->late_s[k] = figures + (k + 1 + MF_LOSS_KINDS + MF_ORDER_BEHIND) * n;
    }
    figures += (1 + MF_LOSS_KINDS + 2 * MF_ORDER_BEHIND) * n;
    for (size_t k = 0; k < MF_ORDER_AHEAD; k++) {
        x->early_s[k] = figures + k * n;
        x->gathered_s[k] = figures + (k + MF_ORDER_AHEAD) * n;
        x->ahead_share[k] = figures + (k + 2 * MF_ORDER_AHEAD) * n;
    }
}

/* --- gathers ---------------------------------------------------------------------------------- */

/* Layers on any stage at least when no other holds more than fit below the cutoff. */
static int least_layers(const mf_loss_figures *x) {
    if (!(x->layer_s > 0.0)) {
        return 0;
    }
    double most = x->cutoff_s / ((double)x->l->micro_batches * x->layer_s);
    double left = most < x->layers ? x->layers - (double)(x->l->pp - 1) * floor(most + 1e-6) : 0.0;
    return left > 0.0 ? (int)left : 0;
}

/* A stage gathers from the start of the step until then at least. */
static double stage_gathered_s(const mf_loss_figures *x, int stage) {
    double sum_s = 0.0;
    for (int c = 0; c < x->l->vpp; c++) {
        sum_s += x->stage[mf_layout_vstage(x->l, stage, c)].gather_s;
    }
    const int layers = least_layers(x);
    return layers > 0 ? mf_larger(sum_s, layers * x->layer_gather_s) : sum_s;
}

/* Every stage does. */
static double gathered_s(const mf_loss_figures *x) {
    double least_s = HUGE_VAL;
    for (int p = 0; p < x->l->pp; p++) {
        least_s = mf_smaller(least_s, stage_gathered_s(x, p));
    }
    return least_s;
}

/* Writes what a stage's first forward passes lose. All go through virtual stage v; the first starts
 * no earlier than start_s. A pass that starts later by some time loses less, but never by more than
 * that time, so the earliest end of each follows from that of the pass before. Beside passes
 * gathers run at f_rate at most. While a pass waits they run at full speed; its later end makes up
 * for that as long as the rate is no less than e. Returns the earliest end of the first pass. */
static double write_first_losses(const mf_loss_figures *x, int v, double start_s,
                                 mf_order_losses *out) {
    const mf_loss_stage *y = &x->stage[v];
    const double e = x->lost, rate = mf_larger(y->f_rate, e);
    const bool sends = v + 1 < (int)(x->l->pp * x->l->vpp) &&
                       mf_layout_stage_of(x->l, v + 1) != mf_layout_stage_of(x->l, v);
    double gathered_s = stage_gathered_s(x, (int)mf_layout_stage_of(x->l, v)), first_end_s = 0.0;
    for (int k = 0; k < MF_ORDER_AHEAD; k++) {
        const double left_s = mf_larger(gathered_s - start_s, 0.0);
        const double lost_s = e * mf_smaller(left_s / rate, y->f_s / (1.0 - e));
        out->kind_s[MF_LOSS_AHEAD + k][v] = lost_s;
        out->early_s[k][v] = start_s;
        out->gathered_s[k][v] = gathered_s;
        out->ahead_share[k][v] = left_s > 0.0 ? lost_s / left_s : 0.0;
        double end_s = start_s + y->f_s + lost_s;
        if (k == 0) { /* its last block waits for the virtual stage's parameters */
            end_s = mf_larger(end_s, y->gather_s + y->last_s);
            first_end_s = end_s;
        }
        gathered_s += (1.0 - rate) * y->f_s;
        start_s = end_s + (sends ? x->hold_s : 0.0);
    }
    return first_end_s;
}

/* Stage after stage: the first forward pass of each follows that of the one before. */
static void write_start_losses(const mf_loss_figures *x, mf_order_losses *out) {
    double start_s = 0.0;
    for (int p = 0; p < x->l->pp; p++) {
        start_s = write_first_losses(x, p, start_s, out) + x->send_s;
    }
}

/* No reduction starts earlier: before the last micro-batch has gone through the last virtual stage
 * its stage has done all other forward passes of it and, but for the warm-up, a backward pass for
 * every forward one. */
static double before_last_s(const mf_loss_figures *x) {
    const int last = (int)(x->l->pp * x->l->vpp) - 1, chunks = (int)x->l->vpp;
    const int stage = (int)mf_layout_stage_of(x->l, last);
    double m = (double)x->l->micro_batches, back = m * chunks, back_s = HUGE_VAL;
    for (int c = 0; c < chunks; c++) {
        back -= x->order->warm_up[stage * chunks + c];
        back_s = mf_smaller(back_s, x->stage[mf_layout_vstage(x->l, stage, c)].b_s);
    }
    return (m - 1.0) * x->stage[last].f_s + mf_larger(back - 1.0, 0.0) * back_s;
}

/* Least share of the window in which passes run: between two passes lies at most one send and its
 * hold, so at most two lie between passes through layers, since the ends have no layer. */
static double busy_share(const mf_loss_figures *x) {
    const int vstages = (int)(x->l->pp * x->l->vpp);
    const double send_s = (x->send_s + x->hold_s) * (1.0 - x->lost);
    double layers_s = HUGE_VAL, any_s = HUGE_VAL;
    for (int v = 0; v < vstages; v++) {
        double one_s = mf_smaller(x->stage[v].f_s, x->stage[v].b_s);
        any_s = mf_smaller(any_s, one_s);
        if (x->stage[v].layer || (v > 0 && v + 1 < vstages)) {
            layers_s = mf_smaller(layers_s, one_s);
        }
    }
    double two_sends =
        isinf(layers_s) || !(layers_s > 0.0) ? 0.0 : layers_s / (layers_s + 2.0 * send_s);
    double one_send = isinf(any_s) || !(any_s > 0.0) ? 0.0 : any_s / (any_s + send_s);
    return mf_larger(one_send, two_sends);
}

/* --- reductions ------------------------------------------------------------------------------- */

/* Losses of the events after the last backward pass of virtual stage v, as if none waited: the
 * later an event starts, the less is left of the reductions. */
static void write_event_losses(const mf_loss_figures *x, int v, mf_order_losses *out) {
    const mf_order_follow *f = x->order->follow + (size_t)v * MF_ORDER_BEHIND;
    const double e = x->lost;
    double after_s = 0.0, late_s = out->left_s[v];
    for (int k = 0; k < MF_ORDER_BEHIND && f[k].v >= 0; k++) {
        const mf_loss_stage *y = &x->stage[f[k].v];
        double time_s = f[k].pass == MF_EVENT_F   ? y->f_s
                        : f[k].pass == MF_EVENT_W ? y->w_s
                                                  : y->b_s;
        double rate = f[k].pass == MF_EVENT_F    ? y->f_rate
                      : f[k].pass == MF_EVENT_W  ? y->w_rate
                      : f[k].pass == MF_EVENT_FB ? 1.0 /* whatever is beside it */
                                                 : y->b_rate;
        if (f[k].last) { /* its later blocks have reductions of their own beside them */
            time_s = mf_smaller(time_s, y->first_s);
        }
        time_s *= f[k].pass == MF_EVENT_FB ? MF_PAIRED_LEAST : 1.0;
        double left_s = mf_larger(late_s - after_s, 0.0);
        double lost_s = e * mf_smaller(left_s / rate, time_s / (1.0 - e));
        out->kind_s[MF_LOSS_BEHIND + k][v] = lost_s;
        out->after_s[k][v] = after_s;
        out->late_s[k][v] = late_s;
        after_s += time_s + lost_s;
        late_s += (1.0 - rate) * (time_s + lost_s);
    }
}

/* Shares at which most virtual stages lose what they do: one for all, so that paths hold for all
 * layouts of an order. */
static void set_shares(int vstages, mf_order_losses *out) {
    for (int k = 0; k < MF_ORDER_BEHIND; k++) {
        double lost_s = 0.0, left_s = 0.0;
        for (int v = 0; v < vstages; v++) {
            lost_s += out->kind_s[MF_LOSS_BEHIND + k][v];
            left_s += mf_larger(out->late_s[k][v] - out->after_s[k][v], 0.0);
        }
        out->share[k] = lost_s > 0.0 ? lost_s / left_s : 0.0;
    }
}

bool mf_order_end_known(const mf_layout *l) {
    return l->micro_batches <= 8 * l->pp || l->micro_batches % l->pp == 0;
}

void mf_overlap_losses(const mf_loss_figures *x, mf_order_losses *out) {
    const int vstages = (int)(x->l->pp * x->l->vpp);
    out->start_s = 0.0;
    memset(out->share, 0, sizeof out->share);
    memset(out->left_s, 0, MF_ORDER_LOSS_DOUBLES(vstages) * sizeof *out->left_s);
    if (!(x->l->overlap & MF_OVERLAP_DP) || !(x->lost > 0.0) || x->lost > MF_LOST_MOST) {
        return;
    }
    for (int v = 0; v < vstages; v++) {
        out->left_s[v] = mf_larger(x->stage[v].reduce_s - 2.0 * x->hold_s, 0.0);
        out->kind_s[MF_LOSS_OWN][v] = x->stage[v].own_most_s;
        out->kind_s[MF_LOSS_FIRST][v] = x->stage[v].first_s;
        out->kind_s[MF_LOSS_LAST][v] = x->stage[v].last_s;
        if (mf_order_end_known(x->l)) {
            write_event_losses(x, v, out);
        }
    }
    set_shares(vstages, out);
    write_start_losses(x, out);
    double window_s = mf_smaller(gathered_s(x), before_last_s(x)) - 4.0 * (x->send_s + x->hold_s);
    out->start_s = mf_larger(0.0, x->lost * busy_share(x) * window_s);
}
