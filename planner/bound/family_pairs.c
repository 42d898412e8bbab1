/* family_pairs.c - merged schedules: what a pair of main layers takes, and what is sure of other
 * positions beside their passes. */
#include "planner/bound/family_blocks.h"

#include "planner/price/least_cost.h"

#include <math.h>

/* --- pairs of main layers --------------------------------------------------------------------- */

static const mf_memory_choice keep_all = {0, 0};

enum { KINDS = MF_MODEL_MAX_CLASSES };

/* Least time of a merged pair of main layers, both with the choice that keeps everything; of[][] by
 * their kinds. */
static mf_status least_pair(mf_block_costs *q, const mf_layout *l, double of[KINDS][KINDS],
                            double *out, mf_err *e) {
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
            of[mf_family_bound_kind_of(m, f)][mf_family_bound_kind_of(m, b)] = time_s;
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

/* --- kinds of main layers --------------------------------------------------------------------- */

/* Kinds by their number of layers, most first. */
static void order_kinds(mf_layer_times *r, int *kind) {
    for (int i = 0; i < r->kinds; i++) {
        int at = i;
        for (; at > 0 &&
               mf_family_bound_kind(r, kind[at - 1])->count < mf_family_bound_kind(r, i)->count;
             at--) {
            kind[at] = kind[at - 1];
        }
        kind[at] = i;
    }
}

/* Portions f_s[i] of forward, b_s[k] of backward passes, such that f_s[i] + b_s[k] is no more than
 * pair_s[i][k], kind by kind (pair_portions.c): pairs of the most common kind are met exactly.
 * f_full: its forward passes keep their time, else its backward passes do. */
static void portion_kinds(mf_layer_times *r, double pair_s[KINDS][KINDS], bool f_full, double *f_s,
                          double *b_s) {
    int kind[KINDS];
    order_kinds(r, kind);
    for (int at = 0; at < r->kinds; at++) {
        const int own = kind[at];
        const mf_family_bound_pass *p = &mf_family_bound_kind(r, own)->pass;
        f_s[own] = p->f_s;
        b_s[own] = p->b_s;
        for (int i = 0; f_full && i < at; i++) {
            f_s[own] = mf_smaller(f_s[own], pair_s[own][kind[i]] - b_s[kind[i]]);
        }
        for (int i = 0; i < (f_full ? at + 1 : at); i++) {
            b_s[own] = mf_smaller(b_s[own], pair_s[kind[i]][own] - f_s[kind[i]]);
        }
        for (int i = 0; !f_full && i <= at; i++) {
            f_s[own] = mf_smaller(f_s[own], pair_s[own][kind[i]] - b_s[kind[i]]);
        }
    }
}

/* One set of portions. What they count beyond compute others give, whose compute alone is sure
 * beside them. Returns what forward passes of others give. */
static double divide_set(mf_layer_times *r, double pair_s[KINDS][KINDS], bool f_full) {
    double f_s[KINDS] = {0.0}, b_s[KINDS] = {0.0}, f_gives_s = 0.0, b_gives_s = 0.0;
    portion_kinds(r, pair_s, f_full, f_s, b_s);
    mf_family_bound_pass *least = &r->layer;
    for (int i = 0; i < r->kinds; i++) {
        mf_family_bound_pass *p = &mf_family_bound_kind(r, i)->pass;
        double *f = f_full ? &p->full_f_s : &p->pair_f_s, *b = f_full ? &p->rest_b_s : &p->pair_b_s;
        f_gives_s = mf_larger(f_gives_s, b_s[i] - *b);
        b_gives_s = mf_larger(b_gives_s, f_s[i] - *f);
        *f = f_s[i];
        *b = b_s[i];
        double *least_f = f_full ? &least->full_f_s : &least->pair_f_s;
        double *least_b = f_full ? &least->rest_b_s : &least->pair_b_s;
        *least_f = i == 0 ? *f : mf_smaller(*least_f, *f);
        *least_b = i == 0 ? *b : mf_smaller(*least_b, *b);
    }
    for (int i = 0; i < r->others; i++) {
        mf_family_bound_pass *y = &r->other[i].pass;
        double *f = f_full ? &y->full_f_s : &y->pair_f_s, *b = f_full ? &y->rest_b_s : &y->pair_b_s;
        *f = mf_larger(0.0, *f - f_gives_s);
        *b = mf_larger(0.0, *b - b_gives_s);
    }
    /* a position that breaks a pair of main layers in two: what their portions count beyond
     * compute, and what passes alone take beyond portions */
    double alone_f_s = HUGE_VAL, alone_b_s = HUGE_VAL;
    for (int i = 0; i < r->kinds; i++) {
        const mf_family_bound_pass *p = &mf_family_bound_kind(r, i)->pass;
        alone_f_s = mf_smaller(alone_f_s, p->f_s - f_s[i]);
        alone_b_s = mf_smaller(alone_b_s, p->b_s - b_s[i]);
    }
    r->hidden_s = mf_larger(r->hidden_s, f_gives_s + b_gives_s);
    r->spare_s = mf_smaller(r->spare_s, alone_f_s + alone_b_s);
    return f_gives_s;
}

static void divide_kinds(mf_layer_times *r, double pair_s[KINDS][KINDS]) {
    r->pair_excess_s = divide_set(r, pair_s, false);
    r->full_excess_s = divide_set(r, pair_s, true);
    r->divided = true;
}

/* The least that all main layers take together in pairs, whichever meet: of each kind a pair of its
 * own is no bound, since a pair of two kinds may hide what neither hides alone. */
static double all_kinds_s(const mf_layer_times *r) {
    double compute_s = 0.0, ep_s = 0.0, portions_s[2] = {0.0, 0.0};
    for (int i = r->others; i < r->others + r->kinds; i++) {
        const mf_family_bound_pass *p = &r->other[i].pass;
        const double n = r->other[i].count, merged_s = p->time_s[MF_PASS_MODE_MERGED];
        const double stream_s = mf_larger(p->compute_s, p->ep_f_s + p->ep_b_s);
        const bool waits = merged_s > mf_larger(p->f_s, p->b_s) && merged_s > stream_s;
        compute_s += n * (p->compute_s + (waits ? merged_s - stream_s : 0.0));
        ep_s += n * (p->ep_f_s + p->ep_b_s + (waits ? merged_s - stream_s : 0.0));
        portions_s[0] += n * (p->pair_f_s + p->pair_b_s);
        portions_s[1] += n * (p->full_f_s + p->rest_b_s);
    }
    const double least_s = r->layers * r->layer.time_s[MF_PASS_MODE_MERGED];
    const double all_s = mf_larger(mf_larger(compute_s, ep_s), least_s);
    return mf_larger(all_s, mf_larger(portions_s[0], portions_s[1]));
}

mf_status mf_family_bound_merge(mf_block_costs *q, const mf_layout *l, mf_layer_times *r,
                                mf_err *e) {
    double pair_s, of[KINDS][KINDS] = {{0.0}}, *main_s = &r->layer.time_s[MF_PASS_MODE_MERGED];
    mf_status status = least_pair(q, l, of, &pair_s, e);
    if (status == MF_OK && r->kinds > 0) {
        divide_kinds(r, of);
    }
    pair_s = mf_smaller(pair_s, r->layer.f_s + r->layer.b_s);
    if (status != MF_OK || pair_s <= *main_s) {
        return status;
    }
    r->pair_more_s = pair_s - *main_s;
    r->all.time_s[MF_PASS_MODE_MERGED] += r->layers * r->pair_more_s;
    *main_s = pair_s;
    if (r->kinds == 0) {
        divide_pair(r, pair_s);
        divide_pair_forward(r, pair_s);
    }
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
    if (r->kinds > 0) {
        *all_s = all_kinds_s(r);
        for (int i = 0; i < r->others; i++) {
            *all_s += r->other[i].count * r->other[i].pass.time_s[MF_PASS_MODE_MERGED];
        }
    }
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
