/* family_hulls.c - what memory costs a main layer: its choices, and how long each of them takes. */
#include "planner/bound/family_blocks.h"

#include "planner/price/least_cost.h"
#include "planner/space/catalogue.h"

#include <math.h>
#include <stdint.h>

/* --- hulls ------------------------------------------------------------------------------------ */

static void hull_point(mf_family_bound_hull *h, double saved_B, double time_s) {
    if (h->points < MF_FAMILY_POINTS) {
        h->point[h->points++] = (mf_time_memory_point){saved_B, time_s};
    }
}

static void add_point(mf_family_bound_hull hull[2], mf_layer_times *r, const mf_block_cost *x,
                      mf_pass_mode mode, double merged_s) {
    mf_family_bound_pass p = mf_family_bound_pass_of(x);
    double time_s = p.time_s[mode];
    if (mode == MF_PASS_MODE_MERGED) {
        time_s = mf_larger(time_s, mf_smaller(merged_s, p.f_s + p.b_s));
        mf_family_bound_hide(r, time_s - p.compute_s, p.f_s + p.b_s - time_s);
    }
    hull_point(&hull[0], x->saved_B, time_s);
    hull_point(&hull[1], x->saved_B, p.time_s[MF_PASS_MODE_PLAIN]);
}

/* Beside forward passes of main layers that keep everything a backward pass takes so much at least,
 * and so much more than the portion of the forward pass, by set. */
typedef struct beside_mains {
    double time_s, left_s[2];
} beside_mains;

/* Are portions of pairs known? */
static bool is_divided(const mf_layer_times *r) {
    return r->kinds > 0 ? r->divided : r->pair_more_s > 0.0;
}

/* What others give to main layers' portions of pairs, a choice may count beyond its compute, too.
 */
static mf_family_bound_pass portion_choice(const mf_layer_times *r, mf_family_bound_pass own,
                                           int kind, const beside_mains *beside) {
    const mf_family_bound_pass *x = r->kinds > 0 ? &r->other[r->others + kind].pass : &r->layer;
    if (!is_divided(r)) {
        return own;
    }
    double pair_s = mf_smaller(beside->left_s[0], own.pair_b_s + r->pair_excess_s);
    double rest_s = mf_smaller(beside->left_s[1], own.rest_b_s + r->full_excess_s);
    own.pair_b_s = mf_smaller(mf_larger(own.pair_b_s, pair_s), own.b_s);
    own.rest_b_s = mf_larger(0.0, mf_smaller(rest_s, own.b_s));
    own.pair_f_s = x->pair_f_s;
    own.full_f_s = x->full_f_s;
    return own;
}

static void add_family_choice(mf_family_bound_choices *w, const mf_layer_times *r,
                              const mf_block_cost *x, int kind, const beside_mains *beside) {
    if (w->count >= 0 && w->count < MF_FAMILY_POINTS) {
        w->held_B = w->count == 0 ? x->held_B : mf_smaller(w->held_B, x->held_B);
        w->saved_B[w->count] = x->saved_B;
        w->kind[w->count] = (uint8_t)kind;
        w->pass[w->count++] = portion_choice(r, mf_family_bound_pass_of(x), kind, beside);
    } else {
        w->count = -1; /* too many to know them all */
    }
}

static void hulls_start(mf_family_bound_hull hull[2]) {
    hull[0].points = hull[1].points = 0;
}

static void hulls_end(mf_family_bound_hull hull[2], mf_layer_times *r) {
    for (int i = 0; i < 2; i++) {
        hull[i].points = mf_lower_hull_make(hull[i].point, hull[i].points);
    }
    r->hull = hull;
}

/* Beside the forward pass of a main layer that keeps everything, backward passes with a choice take
 * so much; of that no more than pairs of those that keep everything take beyond their figures. */
static mf_status merged_time_s(mf_block_costs *q, const mf_layout *l, const mf_layer_times *r,
                               int class, mf_memory_choice choice, const mf_block_cost *x,
                               beside_mains *out, mf_err *e) {
    const mf_model *m = mf_block_costs_evaluator(q)->model;
    mf_block_key b = mf_block_key_layer((uint8_t) class, choice, false);
    double most_s = mf_family_bound_pass_of(x).time_s[MF_PASS_MODE_MERGED] + r->pair_more_s;
    out->time_s = out->left_s[0] = out->left_s[1] = most_s;
    if (r->kinds == 0) {
        out->left_s[0] -= r->layer.pair_f_s;
        out->left_s[1] -= r->layer.full_f_s;
    }
    for (int f = 0; f < m->classes; f++) {
        double time_s;
        mf_block_key a = mf_block_key_layer((uint8_t)f, (mf_memory_choice){0, 0}, false);
        if (!mf_family_bound_is_main(m, f) || mf_family_bound_layers_of(m, f) == 0) {
            continue;
        }
        mf_status status = mf_block_costs_least_pair_anywhere(q, l, &a, &b, &time_s, e);
        if (status != MF_OK) {
            return status;
        }
        const mf_family_bound_pass *forward =
            r->kinds > 0 ? &r->other[r->others + mf_family_bound_kind_of(m, f)].pass : &r->layer;
        out->time_s = mf_smaller(out->time_s, time_s);
        out->left_s[0] = mf_smaller(out->left_s[0], time_s - forward->pair_f_s);
        out->left_s[1] = mf_smaller(out->left_s[1], time_s - forward->full_f_s);
    }
    return MF_OK;
}

/* All choices of a class of main layers. */
static mf_status exact_choices(mf_block_costs *q, const mf_layout *l, uint32_t pinned, int class,
                               mf_layer_times *r, mf_family_bound_hull hull[2],
                               mf_family_bound_choices *choices, mf_err *e) {
    const mf_model *m = mf_block_costs_evaluator(q)->model;
    mf_pass_mode mode = mf_pass_mode_of(l->schedule);
    mf_memory_choice choice[MF_CATALOGUE_MAX];
    mf_block_cost cost[MF_CATALOGUE_MAX];
    beside_mains beside[MF_CATALOGUE_MAX];
    const int kind = mf_family_bound_kind_of(m, class);
    int n = mf_catalogue(m, (uint8_t) class, pinned, l->memory, choice);
    for (int i = 0; i < n; i++) {
        mf_status status =
            mf_family_bound_cost(q, l, MF_POS_LAYER, class, MF_HALF_BOTH,
                                 mode == MF_PASS_MODE_SPLIT, true, choice[i], &cost[i], e);
        beside[i] = (beside_mains){0};
        if (status == MF_OK && (r->pair_more_s > 0.0 || is_divided(r))) {
            status = merged_time_s(q, l, r, class, choice[i], &cost[i], &beside[i], e);
        }
        if (status != MF_OK) {
            return status;
        }
    }
    for (int i = 0; i < n; i++) {
        r->work_B =
            mf_smaller(r->work_B, mf_block_sure_work_B(&cost[i], mode == MF_PASS_MODE_SPLIT));
        add_point(hull, r, &cost[i], mode, beside[i].time_s);
        add_family_choice(choices, r, &cost[i], kind, &beside[i]);
    }
    return MF_OK;
}

/* Is the workspace of such a block at least least_B, whatever it recomputes? The block that keeps
 * everything, whose price is known, has a lower bound of it (alive_B): of its backward pass. */
static mf_status needs_more(mf_block_costs *q, const mf_layout *l, const mf_block_key *key,
                            double least_B, bool *more, mf_err *e) {
    mf_block_key all = *key;
    mf_block_cost x;
    all.memory = (mf_memory_choice){0, 0};
    mf_status status = mf_block_costs_least(q, l, &all, true, &x, e);
    *more = status == MF_OK && !key->split && x.alive_B >= least_B;
    return status;
}

/* Of other layers and depths only the least workspace is asked for, which needs no play, and which
 * ZeRO does not change: what it gathers and reduces is counted apart. */
static mf_status least_work(mf_block_costs *q, const mf_layout *l, uint32_t pinned,
                            mf_position_kind kind, int class, mf_layer_times *r, mf_err *e) {
    const mf_model *m = mf_block_costs_evaluator(q)->model;
    mf_memory_choice choice[MF_CATALOGUE_MAX];
    mf_layout plain = *l;
    plain.zero = plain.expert_zero = 0;
    int n = mf_catalogue(m, (uint8_t) class, pinned, l->memory, choice);
    mf_block_key key = {.kind = kind,
                        .layer_class = (uint8_t) class,
                        .parts = MF_HALF_BOTH,
                        .split = mf_pass_mode_of(l->schedule) == MF_PASS_MODE_SPLIT};
    bool more;
    mf_status status = needs_more(q, &plain, &key, r->work_B, &more, e);
    for (int k = 0; k < n && status == MF_OK && !more; k++) {
        mf_block_cost x;
        key.memory = choice[k];
        status = mf_block_costs_least(q, &plain, &key, false, &x, e);
        if (status == MF_OK) {
            r->work_B = mf_smaller(r->work_B, mf_block_sure_work_B(&x, key.split));
        }
    }
    return status;
}

mf_status mf_layer_times_exact_hull(mf_block_costs *q, const mf_layout *l, uint32_t pinned,
                                    mf_layer_times *r, mf_family_bound_hull hull[2],
                                    mf_family_bound_choices *choices, mf_err *e) {
    const mf_model *m = mf_block_costs_evaluator(q)->model;
    mf_status status = MF_OK;
    hulls_start(hull);
    choices->count = 0;
    r->work_B = HUGE_VAL;
    for (int c = 0; c < m->classes && status == MF_OK; c++) {
        if (mf_family_bound_layers_of(m, c) > 0) {
            status = mf_family_bound_is_main(m, c)
                         ? exact_choices(q, l, pinned, c, r, hull, choices, e)
                         : least_work(q, l, pinned, MF_POS_LAYER, c, r, e);
        }
    }
    if (status == MF_OK && m->mtp_layers > 0) {
        status = least_work(q, l, pinned, MF_POS_MTP, m->mtp_class, r, e);
    }
    hulls_end(hull, r);
    r->choices = choices->count > 0 ? choices : NULL;
    for (int i = 0; i < choices->count; i++) { /* beside gathers inside blocks one that recomputes
                                                * may play shorter than one that keeps all */
        mf_family_bound_least_alone(&r->layer, &choices->pass[i]);
        if (r->kinds > 0) {
            mf_family_bound_least_alone(&mf_family_bound_kind(r, choices->kind[i])->pass,
                                        &choices->pass[i]);
        }
    }
    return status;
}
