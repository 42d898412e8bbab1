/* rough.c - bounds of families of layouts. */
#include "planner/rough.h"

#include <math.h>
#include <string.h>

/* --- bounds ----------------------------------------------------------------------------------- */

static double least_time_s(const mf_rough_pass *p, unsigned modes) {
    double least_s = INFINITY;
    for (int m = 0; m < MF_FLOOR_MODES; m++) {
        if ((modes >> m) & 1u) {
            least_s = mf_smaller(least_s, p->time_s[m]);
        }
    }
    return least_s;
}

double mf_rough_work_s(const mf_rates *r, unsigned modes, double rounds, double fixed_s) {
    return rounds * least_time_s(&r->all, modes) + fixed_s;
}

double mf_rough_stages_s(const mf_rates *r, unsigned modes, int64_t pp, int64_t micro_batches,
                         double fixed_s) {
    double share = ceil((double)r->layers / (double)pp);
    double most_s = mf_larger(share * least_time_s(&r->layer, modes),
                              least_time_s(&r->all, modes) / (double)pp);
    return (double)micro_batches * most_s + fixed_s;
}

/* What a stage holds besides layers of the main class. */
typedef struct stage_ends {
    mf_rough_pass pass;
    mf_param_count params;
} stage_ends;

static stage_ends ends_of(const mf_rates *r, const mf_layout *l, int64_t p) {
    stage_ends x;
    memset(&x, 0, sizeof x);
    if (p == 0) {
        mf_rough_add_pass(&x.pass, &r->embedding, 1.0);
        mf_rough_add_params(&x.params, &r->embedding_params, 1);
    }
    if (p == mf_layout_stage_of(l, l->pp * l->vpp - 1)) {
        mf_rough_add_pass(&x.pass, &r->head, 1.0);
        mf_rough_add_params(&x.params, &r->head_params, 1);
    }
    return x;
}

/* Persistent bytes, shards not rounded up. */
static double persistent_B(const mf_layout *l, const mf_param_count *params) {
    mf_stage_memory s = mf_param_memory(l, *params);
    double rounding_B = 32.0; /* a shard's last element: four figures of eight bytes at most */
    double bytes = s.weights_B + s.gradients_B + s.optimizer_B;
    return bytes > rounding_B ? bytes - rounding_B : 0.0;
}

/* Time of a layer that may keep so much of each micro-batch; INFINITY when none keeps so little. */
static double hull_at(const mf_rough_hull *h, double saved_B) {
    if (h->points == 0 || saved_B >= h->saved_B[0]) {
        return h->points > 0 ? h->time_s[0] : 0.0;
    }
    for (int i = 1; i < h->points; i++) {
        if (saved_B >= h->saved_B[i]) {
            double share = (saved_B - h->saved_B[i]) / (h->saved_B[i - 1] - h->saved_B[i]);
            return h->time_s[i] + share * (h->time_s[i - 1] - h->time_s[i]);
        }
    }
    return HUGE_VAL;
}

/* Least step when stage p holds k layers of the main class, of which each may keep saved_B, and the
 * ends that it must. */
static double stage_step_s(const mf_rates *r, const mf_layout *l, const mf_order_summary *o,
                           const mf_rough_fixed *f, const stage_ends *ends, int64_t p, int k,
                           double saved_B) {
    mf_floor_mode mode = mf_floor_mode_of(l->schedule);
    double sends_s = (double)p * f->send_s;
    mf_stage_sums x = {
        .time_s = k * mf_larger(r->layer.time_s[mode], hull_at(&r->hull[0], saved_B)) +
                  ends->pass.time_s[mode],
        .plain_s = k * mf_larger(r->layer.time_s[MF_FLOOR_PLAIN], hull_at(&r->hull[1], saved_B)) +
                   ends->pass.time_s[MF_FLOOR_PLAIN],
        .f_s = k * r->layer.f_s + ends->pass.f_s,
        .b_s = k * r->layer.b_s + ends->pass.b_s,
        .w_s = k * r->layer.w_s + ends->pass.w_s,
        .hold_s = f->hold_s * (double)((p > 0) + (p + 1 < l->pp)),
        .gather_s = k * r->layer_gather_s,
        .reduce_s = k * r->layer_reduce_s,
        .once_s = f->tail.fixed_s,
        .layers = k,
    };
    if (p > 0) {
        x.in_s = r->embedding.f_s + (double)(p - 1) * r->f_least_s + sends_s;
        x.out_s = r->embedding.b_s + (double)(p - 1) * r->b_least_s + sends_s;
    }
    double left_s = mf_larger(x.gather_s - x.in_s, 0.0); /* gathers run on the way in */
    x.exposed_s =
        mf_stage_exposed_s(f->tail.exposed, left_s, o->chunks * r->layer_gather_s, x.f_s) +
        mf_stage_exposed_s(f->tail.exposed, x.reduce_s, o->chunks * r->layer_reduce_s, x.b_s);
    if (mode == MF_FLOOR_SPLIT && !(r->layer.w_s > 0.0)) {
        /* quoted in one go: what of a backward pass is its weight gradient is not known */
        x.b_s = x.w_s = 0.0;
        x.behind_s = r->all.f_s - (o->chunks == 1 ? x.in_s + x.f_s : 0.0);
        x.behind_s += (double)(l->pp - 1) * f->send_s;
    } else if (o->chunks == 1) { /* all positions but those of this stage; those before at the
                                  * least */
        x.behind_s = r->all.f_s + r->all.b_s - x.in_s - x.out_s - x.f_s - x.b_s +
                     2.0 * (double)(l->pp - 1) * f->send_s;
    } else {
        x.behind_s = r->all.f_s;
    }
    x.behind_s = x.behind_s > 0.0 ? x.behind_s : 0.0;
    return mf_stage_floor_s(l, o, p, &x);
}

enum { MAX_STAGES = 512 };

/* Least step of every stage if it took one more layer; INFINITY when that does not fit. */
typedef struct stage_next {
    stage_ends ends;
    double step_s, used_B;
    int held;
} stage_next;

static void next_step(const mf_rates *r, const mf_layout *l, const mf_order_summary *o,
                      const mf_rough_fixed *f, double layer_B, int64_t p, stage_next *s) {
    int k = s->held + 1;
    if (k > o->layers) { /* there are no more */
        s->step_s = HUGE_VAL;
        return;
    }
    double flight = (double)o->flight[(size_t)p * (size_t)(o->layers + 1) + (size_t)k];
    double room_B = f->usable_B - f->fixed_B - s->used_B - r->layer_fixed_B - k * layer_B;
    double saved_B = flight > 0.0 ? room_B / (flight * k) : HUGE_VAL;
    s->step_s = room_B < 0.0 ? HUGE_VAL : stage_step_s(r, l, o, f, &s->ends, p, k, saved_B);
}

double mf_rough_layout_s(const mf_rates *r, const mf_layout *l, const mf_order_summary *o,
                         const mf_rough_fixed *f) {
    /* the n-th smallest of all stage_step_s(p, k): layer by layer to the stage that bears it best
     */
    stage_next stage[MAX_STAGES];
    double worst_s = 0.0, layer_B = persistent_B(l, &r->layer_params);
    if (l->pp < 1 || l->pp > MAX_STAGES) {
        return 0.0;
    }
    for (int64_t p = 0; p < l->pp; p++) {
        stage_next *s = &stage[p];
        s->ends = ends_of(r, l, p);
        s->used_B = persistent_B(l, &s->ends.params);
        s->held = 0;
        next_step(r, l, o, f, layer_B, p, s);
    }
    for (int n = 0; n < r->layers; n++) {
        int64_t best = 0;
        for (int64_t p = 1; p < l->pp; p++) {
            best = stage[p].step_s < stage[best].step_s ? p : best;
        }
        worst_s = mf_larger(worst_s, stage[best].step_s);
        if (isinf(worst_s)) {
            return worst_s;
        }
        stage[best].held++;
        next_step(r, l, o, f, layer_B, best, &stage[best]);
    }
    double even_s =
        (double)l->micro_batches * r->all.time_s[mf_floor_mode_of(l->schedule)] / (double)l->pp +
        f->tail.fixed_s;
    return mf_larger(worst_s, even_s);
}

/* --- by a mean of chains ---------------------------------------------------------------------- */

enum { MEAN_PARTS = 5 };

/* Split, but quoted in one go, neither B nor W is known alone. */
static void mean_parts(const mf_rough_pass *p, bool split, double out[MEAN_PARTS]) {
    out[0] = p->f_s;
    out[1] = split && !(p->w_s > 0.0) ? 0.0 : p->b_s;
    out[2] = p->w_s;
    out[3] = p->pair_f_s;
    out[4] = p->pair_b_s;
}

/* Main layers as which a position counts at least, wherever it stands. */
static double share_of_main(const mf_rough_pass *main, const mf_rough_pass *other, bool split) {
    double x[MEAN_PARTS], y[MEAN_PARTS], least = HUGE_VAL;
    mean_parts(main, split, x);
    mean_parts(other, split, y);
    for (int i = 0; i < MEAN_PARTS; i++) {
        if (x[i] > 0.0) {
            least = mf_smaller(least, y[i] / x[i]);
        }
    }
    return isinf(least) ? 0.0 : mf_larger(least, 0.0);
}

/* Seconds of a main layer on its least visited virtual stage, by stage. */
static double visits(const mf_rates *r, const mf_layout *l, const mf_chains *c, double *stage_s) {
    static const mf_order_part part[MEAN_PARTS] = {MF_ORDER_F, MF_ORDER_B, MF_ORDER_W,
                                                   MF_ORDER_F_PAIR, MF_ORDER_B_PAIR};
    double x[MEAN_PARTS], least_s = HUGE_VAL;
    mean_parts(&r->layer, mf_floor_mode_of(l->schedule) == MF_FLOOR_SPLIT, x);
    for (int64_t p = 0; p < l->pp; p++) {
        stage_s[p] = HUGE_VAL;
    }
    for (int v = 0; v < c->vstages; v++) {
        double sum_s = 0.0;
        for (int i = 0; i < MEAN_PARTS; i++) {
            sum_s += c->part[part[i]][v] * x[i];
        }
        double *at = &stage_s[mf_layout_stage_of(l, v)];
        *at = mf_smaller(*at, sum_s);
        least_s = mf_smaller(least_s, sum_s);
    }
    return least_s;
}

/* What k main layers of a stage take more by micro-batch for want of memory. */
static double extra_s(const mf_rates *r, const mf_layout *l, const mf_order_summary *o,
                      const mf_rough_fixed *f, double used_B, double layer_B, int64_t p, int k) {
    if (k > o->layers) { /* there are no more */
        return HUGE_VAL;
    }
    double flight = (double)o->flight[(size_t)p * (size_t)(o->layers + 1) + (size_t)k];
    double room_B = f->usable_B - f->fixed_B - used_B - r->layer_fixed_B - k * layer_B;
    const mf_rough_hull *h = &r->hull[0];
    (void)l;
    if (room_B < 0.0) {
        return HUGE_VAL;
    }
    if (h->points == 0 || !(flight > 0.0)) {
        return 0.0;
    }
    return k * mf_larger(0.0, hull_at(h, room_B / (flight * k)) - h->time_s[0]);
}

double mf_rough_mean_s(const mf_rates *r, const mf_layout *l, const mf_order_summary *o,
                       const mf_rough_fixed *f, const mf_chains *c) {
    double stage_s[MAX_STAGES], next_s[MAX_STAGES], had_s[MAX_STAGES], used_B[MAX_STAGES];
    int held[MAX_STAGES];
    double layer_B = persistent_B(l, &r->layer_params);
    if (l->pp > MAX_STAGES || !c->part[0]) {
        return 0.0;
    }
    bool split = mf_floor_mode_of(l->schedule) == MF_FLOOR_SPLIT;
    double least_s = visits(r, l, c, stage_s);
    double sum_s = f->tail.fixed_s + c->sends * f->send_s + c->holds * f->hold_s;
    for (int i = 0; i < r->others; i++) {
        sum_s += r->other[i].count * share_of_main(&r->layer, &r->other[i].pass, split) * least_s;
    }
    for (int64_t p = 0; p < l->pp; p++) {
        stage_ends ends = ends_of(r, l, p);
        used_B[p] = persistent_B(l, &ends.params);
        held[p] = 0;
        had_s[p] = 0.0;
        next_s[p] = extra_s(r, l, o, f, used_B[p], layer_B, p, 1);
    }
    for (int n = 0; n < r->layers; n++) {
        double best_s = HUGE_VAL;
        int64_t best = -1;
        for (int64_t p = 0; p < l->pp; p++) {
            double more_s = stage_s[p] + c->extra[p] * (next_s[p] - had_s[p]);
            if (more_s < best_s) {
                best_s = more_s;
                best = p;
            }
        }
        if (best < 0) {
            return HUGE_VAL;
        }
        sum_s += best_s;
        held[best]++;
        had_s[best] = next_s[best];
        next_s[best] = extra_s(r, l, o, f, used_B[best], layer_B, best, held[best] + 1);
    }
    return sum_s * MF_BOUND_SAFETY;
}
