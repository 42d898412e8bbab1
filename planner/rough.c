/* rough.c - bounds of families of layouts. */
#include "planner/rough.h"

#include "core/memory.h"

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
    double time_s, plain_s, f_s, b_s, w_s;
    double used_B; /* persistent */
    double work_B; /* least workspace of these and layers */
} stage_ends;

/* Persistent bytes, shards not rounded up. */
static double persistent_B(const mf_layout *l, const mf_param_count *params) {
    mf_stage_memory s = mf_param_memory(l, *params);
    double rounding_B = 32.0; /* a shard's last element: four figures of eight bytes at most */
    double bytes = s.weights_B + s.gradients_B + s.optimizer_B;
    return bytes > rounding_B ? bytes - rounding_B : 0.0;
}

static void add_end(stage_ends *x, const mf_rough_pass *p, mf_floor_mode mode) {
    x->time_s += p->time_s[mode];
    x->plain_s += p->time_s[MF_FLOOR_PLAIN];
    x->f_s += p->f_s;
    x->b_s += p->b_s;
    x->w_s += p->w_s;
}

static stage_ends ends_of(const mf_rates *r, const mf_layout *l, int64_t p) {
    stage_ends x = {.work_B = r->work_B};
    mf_floor_mode mode = mf_floor_mode_of(l->schedule);
    bool first = p == 0, last = p == mf_layout_stage_of(l, l->pp * l->vpp - 1);
    mf_param_count params = {0, 0, 0};
    if (first) {
        add_end(&x, &r->embedding, mode);
        mf_rough_add_params(&params, &r->embedding_params, 1);
        x.work_B = mf_smaller(x.work_B, r->end_work_B[0]);
    }
    if (last) {
        add_end(&x, &r->head, mode);
        mf_rough_add_params(&params, &r->head_params, 1);
        x.work_B = mf_smaller(x.work_B, r->end_work_B[1]);
    }
    x.used_B = first || last ? persistent_B(l, &params) : 0.0;
    return x;
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

/* A layout that is bounded. */
typedef struct bounding {
    const mf_rates *r;
    const mf_layout *l;
    const mf_order_summary *o;
    const mf_rough_fixed *f;
    mf_floor_mode mode;
    double layer_B; /* persistent, of a main layer */
    double room_B;  /* of a stage that holds one, buffers aside */
} bounding;

static bounding bounding_of(const mf_rates *r, const mf_layout *l, const mf_order_summary *o,
                            const mf_rough_fixed *f) {
    double buffers_B =
        r->layer_comm_B + 2.0 * r->layer_gather_B + mf_memory_boundaries(l) * r->layer_boundary_B;
    return (bounding){r,
                      l,
                      o,
                      f,
                      mf_floor_mode_of(l->schedule),
                      persistent_B(l, &r->layer_params),
                      f->usable_B - f->fixed_B - buffers_B};
}

/* What activations of k main layers of a stage may take. */
static double room_B(const bounding *b, const stage_ends *ends, int k) {
    return b->room_B - ends->used_B - ends->work_B - k * b->layer_B;
}

/* Split, a micro-batch's way back through the stages behind p at the least. What stands before them
 * sends it on while p is at its weight gradients, which is why only the first stage, with nothing
 * before it, knows that all other positions (the whole model's but its own b_s) stand behind. */
static double way_back_s(const bounding *b, int64_t p, double b_s) {
    const mf_rates *r = b->r;
    double behind = (double)(b->l->pp - 1 - p);
    if (p == 0) {
        return r->all.b_s - b_s + behind * b->f->send_s;
    }
    return behind > 0.0 ? r->head.b_s + (behind - 1.0) * r->b_least_s + behind * b->f->send_s : 0.0;
}

/* Least step when stage p holds k layers of the main class, of which each may keep saved_B, and the
 * ends that it must. */
static double stage_step_s(const bounding *b, const stage_ends *ends, int64_t p, int k,
                           double saved_B) {
    const mf_rates *r = b->r;
    const mf_layout *l = b->l;
    const mf_order_summary *o = b->o;
    const mf_rough_fixed *f = b->f;
    double sends_s = (double)p * f->send_s;
    mf_stage_sums x = {
        .time_s =
            k * mf_larger(r->layer.time_s[b->mode], hull_at(&r->hull[0], saved_B)) + ends->time_s,
        .f_s = k * r->layer.f_s + ends->f_s,
        .b_s = k * r->layer.b_s + ends->b_s,
        .w_s = k * r->layer.w_s + ends->w_s,
        .hold_s = f->hold_s * (double)((p > 0) + (p + 1 < l->pp)),
        .gather_s = k * r->layer_gather_s,
        .reduce_s = k * r->layer_reduce_s,
        .once_s = f->tail.fixed_s,
        .layers = k,
    };
    if (b->mode == MF_FLOOR_MERGED) { /* no other mode asks */
        x.plain_s = k * mf_larger(r->layer.time_s[MF_FLOOR_PLAIN], hull_at(&r->hull[1], saved_B)) +
                    ends->plain_s;
    }
    if (p > 0) {
        x.in_s = r->embedding.f_s + (double)(p - 1) * r->f_least_s + sends_s;
        x.out_s = r->embedding.b_s + (double)(p - 1) * r->b_least_s + sends_s;
    }
    double left_s = mf_larger(x.gather_s - x.in_s, 0.0); /* gathers run on the way in */
    x.exposed_s =
        mf_stage_exposed_s(f->tail.exposed, left_s, o->chunks * r->layer_gather_s, x.f_s) +
        mf_stage_exposed_s(f->tail.exposed, x.reduce_s, o->chunks * r->layer_reduce_s, x.b_s);
    if (b->mode == MF_FLOOR_SPLIT && !(r->layer.w_s > 0.0)) {
        /* quoted in one go: what of a backward pass is its weight gradient is not known */
        x.b_s = x.w_s = 0.0;
        x.behind_s = r->all.f_s - (o->chunks == 1 ? x.in_s + x.f_s : 0.0);
        x.behind_s += (double)(l->pp - 1) * f->send_s;
    } else if (b->mode == MF_FLOOR_SPLIT && o->chunks == 1) {
        x.behind_s =
            r->all.f_s - x.in_s - x.f_s + (double)(l->pp - 1) * f->send_s + way_back_s(b, p, x.b_s);
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

/* Least step of stage p if it took a k-th layer; INFINITY when that does not fit, or there are no
 * more. */
static double next_step(const bounding *b, const stage_ends *ends, int64_t p, int k) {
    if (k > b->o->layers) {
        return HUGE_VAL;
    }
    double flight = (double)b->o->flight[(size_t)p * (size_t)(b->o->layers + 1) + (size_t)k];
    double left_B = room_B(b, ends, k);
    double saved_B = flight > 0.0 ? left_B / (flight * k) : HUGE_VAL;
    return left_B < 0.0 ? HUGE_VAL : stage_step_s(b, ends, p, k, saved_B);
}

/* A stage that takes layers. */
typedef struct taker {
    stage_ends ends;
    int held;
    double step_s; /* if it took one more */
} taker;

double mf_rough_layout_s(const mf_rates *r, const mf_layout *l, const mf_order_summary *o,
                         const mf_rough_fixed *f, double enough_s) {
    /* the n-th smallest of all stage_step_s(p, k): layer by layer to the stage that bears it best
     */
    const bounding b = bounding_of(r, l, o, f);
    taker stage[MAX_STAGES];
    if (l->pp < 1 || l->pp > MAX_STAGES) {
        return 0.0;
    }
    double worst_s = (double)l->micro_batches * r->all.time_s[b.mode] / (double)l->pp +
                     f->tail.fixed_s; /* if work were shared evenly */
    if (worst_s >= enough_s) {
        return worst_s;
    }
    for (int64_t p = 0; p < l->pp; p++) {
        stage[p] = (taker){ends_of(r, l, p), 0, 0.0};
        stage[p].step_s = next_step(&b, &stage[p].ends, p, 1);
    }
    for (int n = 0; n < r->layers && worst_s < enough_s; n++) {
        taker *best = &stage[0];
        for (int64_t p = 1; p < l->pp; p++) {
            best = stage[p].step_s < best->step_s ? &stage[p] : best;
        }
        worst_s = mf_larger(worst_s, best->step_s);
        best->held++;
        best->step_s = next_step(&b, &best->ends, best - stage, best->held + 1);
    }
    return worst_s;
}

/* --- by a mean of chains ---------------------------------------------------------------------- */

enum { MEAN_PARTS = 11 };
static const mf_order_part mean_part[MEAN_PARTS] = {
    MF_ORDER_F,      MF_ORDER_B,      MF_ORDER_W,     MF_ORDER_F_PAIR,
    MF_ORDER_B_PAIR, MF_ORDER_F_EP,   MF_ORDER_B_EP,  MF_ORDER_GATHER,
    MF_ORDER_REDUCE, MF_ORDER_F_KEEP, MF_ORDER_B_GIVE};

/* Split, but quoted in one go, neither B nor W is known alone. */
static void mean_parts(const mf_rough_pass *p, mf_floor_mode mode, double gather_s, double reduce_s,
                       double out[MEAN_PARTS]) {
    bool merged = mode == MF_FLOOR_MERGED;
    out[0] = p->f_s;
    out[1] = mode == MF_FLOOR_SPLIT && !(p->w_s > 0.0) ? 0.0 : p->b_s;
    out[2] = p->w_s;
    out[3] = p->pair_f_s;
    out[4] = p->pair_b_s;
    out[5] = merged ? p->ep_f_s : 0.0;
    out[6] = merged ? p->ep_b_s : 0.0;
    out[7] = gather_s;
    out[8] = reduce_s;
    out[9] = p->keep_f_s;
    out[10] = p->give_b_s;
}

/* What a position with these parts adds on virtual stage v. */
static double visit_s(const mf_chains *c, int v, const double parts[MEAN_PARTS]) {
    double sum_s = 0.0;
    for (int i = 0; i < MEAN_PARTS; i++) {
        sum_s += c->part[mean_part[i]][v] * parts[i];
    }
    return sum_s;
}

/* What a main layer adds on the least visited virtual stage of every stage. */
static void visits(const mf_rates *r, const mf_layout *l, const mf_chains *c, double *stage_s) {
    double parts[MEAN_PARTS];
    mean_parts(&r->layer, mf_floor_mode_of(l->schedule), r->layer_gather_s, r->layer_reduce_s,
               parts);
    for (int64_t p = 0; p < l->pp; p++) {
        stage_s[p] = HUGE_VAL;
    }
    for (int v = 0; v < c->vstages; v++) {
        double *at = &stage_s[mf_layout_stage_of(l, v)];
        *at = mf_smaller(*at, visit_s(c, v, parts));
    }
}

/* What another position adds where it adds least. */
static double other_s(const mf_rough_other *other, mf_floor_mode mode, const mf_chains *c) {
    double parts[MEAN_PARTS], least_s = HUGE_VAL;
    int from = other->place == MF_PLACE_LAST ? c->vstages - 1 : 0;
    int to = other->place == MF_PLACE_FIRST ? 1 : c->vstages;
    mean_parts(&other->pass, mode, 0.0, 0.0, parts);
    for (int v = from; v < to; v++) {
        least_s = mf_smaller(least_s, visit_s(c, v, parts));
    }
    return isinf(least_s) ? 0.0 : other->count * mf_larger(least_s, 0.0);
}

/* What k main layers of a stage take more by micro-batch for want of memory. */
static double extra_s(const bounding *b, const stage_ends *ends, int64_t p, int k) {
    if (k > b->o->layers) { /* there are no more */
        return HUGE_VAL;
    }
    double flight = (double)b->o->flight[(size_t)p * (size_t)(b->o->layers + 1) + (size_t)k];
    double left_B = room_B(b, ends, k);
    const mf_rough_hull *h = &b->r->hull[0];
    if (left_B < 0.0) {
        return HUGE_VAL;
    }
    if (h->points == 0 || !(flight > 0.0)) {
        return 0.0;
    }
    return k * mf_larger(0.0, hull_at(h, left_B / (flight * k)) - h->time_s[0]);
}

/* A stage that layers go to. */
typedef struct mean_stage {
    double stage_s;
    stage_ends ends;
    double next_s, had_s; /* for want of memory, with one layer more and now */
    int held;
} mean_stage;

/* What one more layer adds to the mean. */
static double more_s(const mean_stage *x, double extra) {
    return x->stage_s + extra * (x->next_s - x->had_s);
}

double mf_rough_mean_s(const mf_rates *r, const mf_layout *l, const mf_order_summary *o,
                       const mf_rough_fixed *f, const mf_chains *c) {
    mean_stage stage[MAX_STAGES];
    double stage_s[MAX_STAGES], add_s[MAX_STAGES];
    if (l->pp > MAX_STAGES || !c->part[0]) {
        return 0.0;
    }
    const bounding b = bounding_of(r, l, o, f);
    visits(r, l, c, stage_s);
    double sum_s = f->tail.fixed_s + c->sends * f->send_s + c->holds * f->hold_s;
    for (int i = 0; i < r->others; i++) {
        sum_s += other_s(&r->other[i], b.mode, c);
    }
    for (int64_t p = 0; p < l->pp; p++) {
        mean_stage *x = &stage[p];
        *x = (mean_stage){.stage_s = stage_s[p], .ends = ends_of(r, l, p)};
        x->next_s = extra_s(&b, &x->ends, p, 1);
        add_s[p] = more_s(x, c->extra[p]);
    }
    for (int n = 0; n < r->layers; n++) {
        double best_s = HUGE_VAL;
        int64_t best = -1;
        for (int64_t p = 0; p < l->pp; p++) {
            if (add_s[p] < best_s) {
                best_s = add_s[p];
                best = p;
            }
        }
        if (best < 0) {
            return HUGE_VAL;
        }
        mean_stage *x = &stage[best];
        sum_s += best_s;
        x->had_s = x->next_s;
        x->next_s = extra_s(&b, &x->ends, best, ++x->held + 1);
        add_s[best] = more_s(x, c->extra[best]);
    }
    return sum_s * MF_BOUND_SAFETY;
}
