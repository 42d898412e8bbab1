/* family_losses.c - what a mean of chains loses at least to gathers and reductions beside passes,
 * from rates of layers; overlap_loss.c says how. One position stands on every virtual stage at
 * least.
 */
#include "planner/bound/family_stage.h"

#include <math.h>

enum { F, B, W, GATHER, REDUCE, FIGURES };

/* What the one position of a virtual stage takes at least, and of a layer there. */
typedef struct least {
    double s[FIGURES];
} least;

typedef struct losing {
    const mf_layer_times *r;
    const mf_layout *l;
    const mf_order_summary *o;
    const mf_family_bound_fixed *f;
    int vstages;
    mf_order_part back;
    least layer, embedding, head;
    double mb_s; /* a layer's passes of a micro-batch */
} losing;

static least figures(const mf_family_bound_pass *p, double gather_s, double reduce_s) {
    return (least){{p->f_s, p->b_s, p->w_s, gather_s, reduce_s}};
}

static double alone_or_pair_s(const mf_family_bound_pass *p, mf_floor_mode mode) {
    double alone_s = p->f_s + p->b_s + p->w_s;
    return mode == MF_FLOOR_MERGED ? mf_smaller(alone_s, p->pair_f_s + p->pair_b_s) : alone_s;
}

/* The least of all layers and depths; the ends. */
static void find_least(losing *x) {
    const mf_layer_times *r = x->r;
    mf_floor_mode mode = mf_floor_mode_of(x->l->schedule);
    x->layer = figures(&r->layer, r->layer_gather_s, r->layer_reduce_s);
    x->mb_s = alone_or_pair_s(&r->layer, mode);
    for (int i = 0; i < r->others; i++) {
        const mf_family_bound_other *y = &r->other[i];
        least of = figures(&y->pass, y->gather_s, y->reduce_s);
        if (y->first == 0) {
            x->embedding = of;
        } else if (y->first == r->positions - 1) {
            x->head = of;
        } else {
            x->mb_s = mf_smaller(x->mb_s, alone_or_pair_s(&y->pass, mode));
            for (int k = 0; k < FIGURES; k++) {
                x->layer.s[k] = mf_smaller(x->layer.s[k], of.s[k]);
            }
        }
    }
}

/* The one position of virtual stage v. */
static double pass_s(const losing *x, int v, int figure) {
    if (v == 0) {
        return x->embedding.s[figure];
    }
    return v == x->vstages - 1 ? x->head.s[figure] : x->layer.s[figure];
}

/* What virtual stage v's events behind its last backward pass lose, under the mean of chains. */
static double behind_s(const losing *x, const mf_chains *c, int v) {
    const mf_order_follow *f = x->o->follow + (size_t)v * MF_ORDER_BEHIND;
    double e = x->r->lost, after_s = 0.0, sum_s = 0.0;
    double left_s = mf_larger(pass_s(x, v, REDUCE) - 2.0 * x->f->hold_s, 0.0);
    for (int k = 0; k < MF_ORDER_BEHIND && f[k].v >= 0 && left_s > 0.0; k++) {
        int figure = f[k].pass == MF_EVENT_F ? F : f[k].pass == MF_EVENT_W ? W : B;
        double time_s = (f[k].pass == MF_EVENT_FB ? 0.95 : 1.0) * pass_s(x, f[k].v, figure);
        double lost_s = e * mf_smaller(mf_larger(left_s - after_s, 0.0), time_s / (1.0 - e));
        double share = c->share[k], count = c->loss[MF_LOSS_BEHIND + k][v];
        sum_s += count * mf_smaller(lost_s + share * after_s, share * left_s);
        after_s += time_s + lost_s;
    }
    return sum_s;
}

/* The least over a stage. */
static double stage_least_s(const losing *x, int p, int figure) {
    double least_s = x->l->vpp > 1 || (p > 0 && p + 1 < x->l->pp) ? x->layer.s[figure] : HUGE_VAL;
    if (p == (int)mf_layout_stage_of(x->l, 0)) {
        least_s = mf_smaller(least_s, x->embedding.s[figure]);
    }
    if (p == (int)mf_layout_stage_of(x->l, x->vstages - 1)) {
        least_s = mf_smaller(least_s, x->head.s[figure]);
    }
    return least_s;
}

static double gathered_s(const losing *x, double cutoff_s) {
    int all = x->r->positions - 2;
    double most = cutoff_s / ((double)x->l->micro_batches * x->mb_s), least_s = HUGE_VAL;
    double left = most < all ? all - (double)(x->l->pp - 1) * floor(most + 1e-6) : 0.0;
    double layers = left > 0.0 ? floor(left) : 0.0;
    for (int p = 0; p < x->l->pp; p++) {
        double sum_s = 0.0;
        for (int c = 0; c < x->l->vpp; c++) {
            sum_s += pass_s(x, (int)mf_layout_vstage(x->l, p, c), GATHER);
        }
        least_s = mf_smaller(least_s, sum_s);
    }
    return mf_larger(least_s, layers * x->layer.s[GATHER]);
}

static double before_last_s(const losing *x) {
    int stage = (int)mf_layout_stage_of(x->l, x->vstages - 1);
    double m = (double)x->l->micro_batches, back = m * (double)x->l->vpp;
    for (int c = 0; c < x->l->vpp; c++) {
        back -= x->o->warm_up[stage * (int)x->l->vpp + c];
    }
    return (m - 1.0) * x->head.s[F] + mf_larger(back - 1.0, 0.0) * stage_least_s(x, stage, B);
}

/* Every chain from the start of the step. */
static double start_s(const losing *x, double cutoff_s) {
    double e = x->r->lost, sends_s = x->f->send_s + x->f->hold_s;
    double pass = mf_smaller(x->layer.s[F], x->layer.s[B]);
    double window_s = mf_smaller(gathered_s(x, cutoff_s), before_last_s(x)) - 4.0 * sends_s;
    if (x->vstages < 3 || !(pass > 0.0) ||
        !(window_s > 0.0)) { /* no layer is sure to stand between */
        return 0.0;
    }
    return e * pass / (pass + 2.0 * sends_s * (1.0 - e)) * window_s;
}

double mf_family_bound_lost_s(const mf_layer_times *r, const mf_layout *l,
                              const mf_order_summary *o, const mf_family_bound_fixed *f,
                              const mf_chains *c, double cutoff_s) {
    double e = r->lost;
    losing x = {.r = r, .l = l, .o = o, .f = f, .vstages = c->vstages};
    bool split = mf_floor_mode_of(l->schedule) == MF_FLOOR_SPLIT;
    if (!(l->overlap & MF_OVERLAP_DP) || !(e > 0.0) || e > 0.95 || c->vstages < 2 ||
        r->others == MF_FAMILY_OTHERS || (split && !(r->layer.w_s > 0.0))) {
        return 0.0;
    }
    find_least(&x);
    double sum_s = c->starts > 0.0 ? c->starts * start_s(&x, cutoff_s) : 0.0;
    int back = split ? W : B;
    bool ends = l->micro_batches <= 8 * l->pp || l->micro_batches % l->pp == 0;
    for (int v = 0; v < c->vstages; v++) {
        if (c->loss[MF_LOSS_FIRST][v] > 0.0 && v > 0) { /* an embedding's pass is the last block */
            sum_s += c->loss[MF_LOSS_FIRST][v] * pass_s(&x, v, back);
        }
        sum_s += ends ? behind_s(&x, c, v) : 0.0;
    }
    return sum_s;
}
