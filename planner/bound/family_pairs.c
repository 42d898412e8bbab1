/* family_pairs.c - merged schedules: what a pair of main layers takes, and what is sure of other
 * positions beside their passes. */
#include "planner/bound/family_blocks.h"

#include "planner/price/least_cost.h"

#include <math.h>

/* --- pairs of main layers --------------------------------------------------------------------- */

static const mf_memory_choice keep_all = {0, 0};

/* Least time of a merged pair of main layers, both with the choice that keeps everything. */
static mf_status least_pair(mf_block_costs *q, const mf_layout *l, double *out, mf_err *e) {
    const mf_model *m = mf_block_costs_evaluator(q)->model;
    *out = HUGE_VAL;
    for (int f = 0; f < m->classes; f++) {
        for (int b = 0; b < m->classes; b++) {
            double time_s;
            mf_block_key fk = mf_block_key_layer((uint8_t)f, keep_all, false);
            mf_block_key bk = mf_block_key_layer((uint8_t)b, keep_all, false);
            if (!mf_family_bound_is_main(m, f) || !mf_family_bound_is_main(m, b) ||
                mf_family_bound_layers_of(m, f) == 0 || mf_family_bound_layers_of(m, b) == 0) {
                continue;
            }
            mf_status status = mf_block_costs_least_pair_anywhere(q, l, &fk, &bk, &time_s, e);
            if (status != MF_OK) {
                return status;
            }
            *out = mf_smaller(*out, time_s);
        }
    }
    return MF_OK;
}

/* Divides pair_s, the time of a pair of main layers: the forward portion is its compute, the
 * backward portion the rest. Beside any other position only compute is sure, so the forward passes
 * of others are charged less by what the backward portion has beyond its compute. */
static void divide_pair(mf_layer_times *r, double pair_s) {
    mf_family_bound_pass *x = &r->layer;
    double compute_s = x->pair_b_s;
    x->pair_b_s = mf_smaller(mf_larger(compute_s, pair_s - x->pair_f_s), x->b_s);
    r->pair_excess_s = x->pair_b_s - compute_s;
    for (int i = 0; i < r->others; i++) {
        mf_family_bound_pass *y = &r->other[i].pass;
        y->pair_f_s = mf_larger(0.0, y->pair_f_s - r->pair_excess_s);
    }
}

/* The same, the forward's portion all of its time: what it counts beyond its compute others'
 * backward passes give away, and their forward passes may count what the backward pass does not. */
static void divide_pair_forward(mf_layer_times *r, double pair_s) {
    mf_family_bound_pass *x = &r->layer;
    double above_s = mf_larger(0.0, x->f_s - x->full_f_s);
    double rest_s = mf_larger(0.0, mf_smaller(pair_s - x->f_s, x->b_s));
    double below_s = x->rest_b_s - rest_s, most_s = above_s; /* below 0: they give that, too */
    x->full_f_s = x->f_s;
    r->full_excess_s = -below_s;
    for (int i = 0; i < r->others; i++) {
        mf_family_bound_pass *y = &r->other[i].pass;
        double f_s = mf_larger(0.0, mf_smaller(y->f_s, y->full_f_s + below_s));
        most_s = mf_larger(most_s, f_s - y->full_f_s);
        y->full_f_s = f_s;
    }
    x->rest_b_s = rest_s;
    for (int i = 0; i < r->others; i++) {
        mf_family_bound_pass *y = &r->other[i].pass;
        y->rest_b_s = mf_larger(0.0, y->rest_b_s - most_s);
    }
}

mf_status mf_family_bound_merge(mf_block_costs *q, const mf_layout *l, mf_layer_times *r,
                                mf_err *e) {
    double pair_s, *main_s = &r->layer.time_s[MF_PASS_MODE_MERGED];
    mf_status status = least_pair(q, l, &pair_s, e);
    pair_s = mf_smaller(pair_s, r->layer.f_s + r->layer.b_s);
    if (status != MF_OK || pair_s <= *main_s) {
        return status;
    }
    r->pair_more_s = pair_s - *main_s;
    r->all.time_s[MF_PASS_MODE_MERGED] += r->layers * r->pair_more_s;
    *main_s = pair_s;
    divide_pair(r, pair_s);
    divide_pair_forward(r, pair_s);
    return MF_OK;
}

/* --- other positions -------------------------------------------------------------------------- */

/* What is sure of a position that stands beside passes of main layers, which then are no pair.
 * Either the compute of all three counts: what the pair took beyond its own is lost. Or each main
 * layer counts its time alone, together spare_s more than the pair, and the other position nothing.
 * Several others in a row break one pair only: between its two passes stand the forward pass of one
 * of them and the backward pass of another. Each may be all that this position computes, hence
 * twice its compute. */
static double left_s(const mf_family_bound_pass *p, double hidden_s, double spare_s) {
    const double lost_s = mf_smaller(hidden_s, mf_larger(0.0, 2.0 * p->compute_s - spare_s));
    return mf_larger(0.0, p->compute_s - lost_s);
}

static void hide(mf_family_bound_pass *p, double hidden_s, double spare_s) {
    double *merged_s = &p->time_s[MF_PASS_MODE_MERGED];
    *merged_s = mf_smaller(*merged_s, left_s(p, hidden_s, spare_s));
}

void mf_family_bound_hide(mf_layer_times *r, double hidden_s, double spare_s) {
    const double left[2] = {left_s(&r->embedding, hidden_s, spare_s),
                            left_s(&r->head, hidden_s, spare_s)};
    for (int i = 0; i < 2; i++) {
        r->end_least_s[i] = mf_smaller(r->end_least_s[i], left[i]);
    }
}

void mf_family_bound_charge_others(mf_layer_times *r) {
    const double hidden_s = r->hidden_s + r->pair_more_s, spare_s = r->spare_s - r->pair_more_s;
    double *all_s = &r->all.time_s[MF_PASS_MODE_MERGED];
    for (int i = 0; i < r->others; i++) {
        const mf_family_bound_other *x = &r->other[i];
        *all_s -= x->count * x->pass.time_s[MF_PASS_MODE_MERGED];
        hide(&r->other[i].pass, hidden_s, spare_s);
        *all_s += x->count * x->pass.time_s[MF_PASS_MODE_MERGED];
    }
    if (r->others == MF_FAMILY_OTHERS) { /* there may be more */
        *all_s = r->layers * r->layer.time_s[MF_PASS_MODE_MERGED];
    }
    *all_s = mf_larger(*all_s, r->all.compute_s);
    hide(&r->embedding, hidden_s, spare_s);
    hide(&r->head, hidden_s, spare_s);
    r->end_least_s[0] = r->embedding.time_s[MF_PASS_MODE_MERGED];
    r->end_least_s[1] = r->head.time_s[MF_PASS_MODE_MERGED];
}
