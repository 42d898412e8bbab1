/* family_bound.c - bounds of families of layouts. */
#include "planner/bound/family_stage.h"

#include "core/memory/memory.h"

#include <math.h>
#include <string.h>

/* --- bounds ----------------------------------------------------------------------------------- */

static double least_time_s(const mf_family_bound_pass *p, unsigned modes) {
    double least_s = INFINITY;
    for (int m = 0; m < MF_PASS_MODES; m++) {
        if ((modes >> m) & 1u) {
            least_s = mf_smaller(least_s, p->time_s[m]);
        }
    }
    return least_s;
}

double mf_family_bound_work_s(const mf_layer_times *r, unsigned modes, double rounds,
                              double fixed_s) {
    return rounds * least_time_s(&r->all, modes) - r->anew_s + fixed_s;
}

double mf_family_bound_stages_s(const mf_layer_times *r, unsigned modes, int64_t pp,
                                int64_t micro_batches, double fixed_s) {
    double even = ceil((double)r->layers / (double)pp), m = (double)micro_batches;
    double layers_s = even * (m * least_time_s(&r->layer, modes) - r->layer_anew_s[1]);
    double all_s = (m * least_time_s(&r->all, modes) - r->anew_s) / (double)pp;
    return mf_larger(layers_s, all_s) + fixed_s;
}

static void add_end(mf_family_bound_ends *x, const mf_family_bound_pass *p, mf_pass_mode mode) {
    x->time_s += p->time_s[mode];
    x->plain_s += p->time_s[MF_PASS_MODE_PLAIN];
    x->f_s += p->f_s;
    x->b_s += p->b_s;
    x->w_s += p->w_s;
}

mf_family_bound_ends mf_family_bound_ends_of(const mf_layer_times *r, const mf_layout *l,
                                             int64_t p) {
    mf_family_bound_ends x = {.work_B = r->work_B};
    mf_pass_mode mode = mf_pass_mode_of(l->schedule);
    bool first = p == 0, last = p == mf_layout_stage_of(l, l->pp * l->vpp - 1);
    if (!first && !last) {
        return x;
    }
    x.tables = first != last;
    mf_param_count params = {0, 0, 0};
    if (first) {
        add_end(&x, &r->embedding, mode);
        x.least_s += r->end_least_s[0];
        mf_family_bound_add_params(&params, &r->embedding_params, 1);
        x.work_B = mf_smaller(x.work_B, r->end_work_B[0]);
    }
    if (last) {
        add_end(&x, &r->head, mode);
        x.least_s += r->end_least_s[1];
        x.anew_s = r->head_anew_s;
        mf_family_bound_add_params(&params, &r->head_params, 1);
        x.work_B = mf_smaller(x.work_B, r->end_work_B[1]);
    }
    x.used_B = mf_persistent_B(l, params);
    return x;
}

/* Time of a layer that may keep so much of each micro-batch; INFINITY when none keeps so little. */
double mf_family_bound_hull_at(const mf_family_bound_hull *h, double saved_B) {
    return h->points > 0 ? mf_lower_hull_time_s(h->point, h->points, saved_B) : 0.0;
}

double mf_family_bound_norm_s(const mf_step_end_cost *t, const mf_param_count *params) {
    return t->norm_dense_s * (double)params->dense + t->norm_expert_s * (double)params->expert;
}

double mf_family_bound_update_s(const mf_step_end_cost *t, const mf_param_count *params) {
    return t->update_dense_s * (double)params->dense + t->update_expert_s * (double)params->expert +
           t->update_matrix_s * (double)params->dense_matrices;
}

mf_family_bound_layout mf_family_bound_layout_of(const mf_layer_times *r, const mf_layout *l,
                                                 const mf_order_summary *o,
                                                 const mf_family_bound_fixed *f) {
    double buffers_B = r->layer_comm_B + mf_memory_gathers(l) * r->layer_gather_B +
                       mf_memory_boundaries(l) * r->layer_boundary_B;
    return (mf_family_bound_layout){
        .r = r,
        .l = l,
        .o = o,
        .f = f,
        .mode = mf_pass_mode_of(l->schedule),
        .layer_B = mf_persistent_B(l, r->layer_params),
        .free_B = f->usable_B - f->fixed_B - buffers_B,
        .norm_s = mf_family_bound_norm_s(&f->step_end, &r->layer_params),
        .update_s = mf_family_bound_update_s(&f->step_end, &r->layer_params)};
}

/* What activations of k main layers of a stage may take. */
double mf_family_bound_free_B(const mf_family_bound_layout *b, const mf_family_bound_ends *ends,
                              int k) {
    const double more_B = ends->tables ? b->f->tables_B - b->r->layer_comm_B : 0.0;
    const double comm_B = ends->tables ? b->f->tables_comm_B : 0.0;
    return b->free_B - mf_larger(more_B, 0.0) - comm_B - ends->used_B - ends->work_B -
           k * b->layer_B;
}

/* Least time for a micro-batch to return through the stages after p when weight gradients are split
 * off. Only the first stage may assume that all positions but its own (b_s) come after it; other
 * stages charge the head and, for each stage between, the cheapest position. */
static double way_back_s(const mf_family_bound_layout *b, int64_t p, double b_s) {
    const mf_layer_times *r = b->r;
    double behind = (double)(b->l->pp - 1 - p);
    if (p == 0) {
        return r->all.b_s - b_s + behind * b->f->send_s;
    }
    return behind > 0.0 ? r->head.b_s + (behind - 1.0) * r->b_least_s + behind * b->f->send_s : 0.0;
}

/* Least step when stage p holds k layers of the main class, of which each may keep saved_B, and the
 * ends that it must. */
static double stage_step_s(const mf_family_bound_layout *b, const mf_family_bound_ends *ends,
                           int64_t p, int k, double saved_B) {
    const mf_layer_times *r = b->r;
    const mf_layout *l = b->l;
    const mf_order_summary *o = b->o;
    const mf_family_bound_fixed *f = b->f;
    double sends_s = (double)p * f->send_s;
    mf_stage_sums x = {
        .time_s =
            k * mf_larger(r->layer.time_s[b->mode], mf_family_bound_hull_at(&r->hull[0], saved_B)) +
            ends->time_s,
        .f_s = k * r->layer.f_s + ends->f_s,
        .b_s = k * r->layer.b_s + ends->b_s,
        .w_s = k * r->layer.w_s + ends->w_s,
        .hold_s = f->hold_s * (double)((p > 0) + (p + 1 < l->pp)),
        .gather_s = k * r->layer_gather_s,
        .reduce_s = k * r->layer_reduce_s,
        .norm_s = k * b->norm_s,
        .step_end_s = f->step_end.fixed_s + k * b->update_s,
        .anew_s = k * r->layer_anew_s[1] + ends->anew_s,
        .all_anew_s = r->anew_s,
        .layers = k,
    };
    if (b->mode == MF_PASS_MODE_MERGED) { /* no other mode asks */
        /* with the fastest pairs, or with those of choices that keep so little: the slower they
         * are, the more of the ends they may hide, but no more than they are slower */
        const double fastest_s = r->hull[0].points > 0 ? r->hull[0].point[0].time_s : 0.0;
        x.time_s = mf_larger(x.time_s - ends->time_s + ends->least_s,
                             k * mf_larger(r->layer.time_s[b->mode], fastest_s) + ends->time_s);
        x.plain_s = k * mf_larger(r->layer.time_s[MF_PASS_MODE_PLAIN],
                                  mf_family_bound_hull_at(&r->hull[1], saved_B)) +
                    ends->plain_s;
    }
    if (p > 0) {
        x.in_s = r->embedding.f_s + (double)(p - 1) * r->f_least_s + sends_s;
        x.out_s = r->embedding.b_s + (double)(p - 1) * r->b_least_s + sends_s;
    }
    double left_s = mf_larger(x.gather_s - x.in_s, 0.0); /* gathers run on the way in */
    x.exposed_s =
        mf_stage_exposed_s(f->step_end.exposed, left_s, o->chunks * r->layer_gather_s, x.f_s) +
        mf_stage_exposed_s(f->step_end.exposed, x.reduce_s, o->chunks * r->layer_reduce_s,
                           x.b_s - (l->micro_batches == 1 ? x.anew_s : 0.0));
    if (b->mode == MF_PASS_MODE_SPLIT && !(r->layer.w_s > 0.0)) {
        /* priced in one go: what of a backward pass is its weight gradient is not known */
        x.b_s = x.w_s = 0.0;
        x.behind_s = r->all.f_s - (o->chunks == 1 ? x.in_s + x.f_s : 0.0);
        x.behind_s += (double)(l->pp - 1) * f->send_s;
    } else if (b->mode == MF_PASS_MODE_SPLIT && o->chunks == 1) {
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
    return mf_stage_bound_s(l, o, p, &x);
}

/* Least step of stage p if it took a k-th layer; INFINITY when that does not fit, or there are no
 * more. */
static double next_step(const mf_family_bound_layout *b, const mf_family_bound_ends *ends,
                        int64_t p, int k) {
    if (k > b->o->layers) {
        return HUGE_VAL;
    }
    double flight = (double)b->o->flight[(size_t)p * (size_t)(b->o->layers + 1) + (size_t)k];
    double left_B = mf_family_bound_free_B(b, ends, k);
    double saved_B = flight > 0.0 ? left_B / (flight * k) : HUGE_VAL;
    return left_B < 0.0 ? HUGE_VAL : stage_step_s(b, ends, p, k, saved_B);
}

/* A stage that takes layers. */
typedef struct taker {
    mf_family_bound_ends ends;
    int held;
    double step_s; /* if it took one more */
} taker;

/* Takes, or leaves, layers until one more would be above limit_s; a stage's steps grow with them.
 */
static void take_up_to(const mf_family_bound_layout *b, taker *x, int64_t p, double limit_s) {
    bool more = x->step_s <= limit_s;
    while (x->step_s <= limit_s) {
        x->held++;
        x->step_s = next_step(b, &x->ends, p, x->held + 1);
    }
    while (!more && x->held > 0) {
        double now_s = next_step(b, &x->ends, p, x->held);
        if (now_s <= limit_s) {
            return;
        }
        x->held--;
        x->step_s = now_s;
    }
}

/* Do parameters and states of main layers of several kinds fit on all stages together? Bounds of
 * stages take each layer for the smallest. */
static bool kinds_fit(const mf_family_bound_layout *b, const taker *stage) {
    const mf_layer_times *r = b->r;
    double all_B = 0.0, free_B = 0.0;
    for (int i = r->others; i < r->others + r->kinds; i++) {
        all_B += r->other[i].count * mf_persistent_B(b->l, r->other[i].params);
    }
    for (int64_t p = 0; p < b->l->pp; p++) {
        free_B += mf_larger(0.0, mf_family_bound_free_B(b, &stage[p].ends, 0));
    }
    return all_B <= free_B;
}

double mf_family_bound_layout_s(const mf_layer_times *r, const mf_layout *l,
                                const mf_order_summary *o, const mf_family_bound_fixed *f,
                                double enough_s) {
    /* the n-th smallest of all stage_step_s(p, k): some stage holds the mean of the layers, so
     * that it is no less than the least of these; all below are taken, then layer by layer to the
     * stage that bears it best */
    taker stage[MF_FAMILY_STAGES];
    if (l->pp < 1 || l->pp > MF_FAMILY_STAGES) {
        return 0.0;
    }
    double all_s = r->all.time_s[mf_pass_mode_of(l->schedule)];
    double worst_s = ((double)l->micro_batches * all_s - r->anew_s) / (double)l->pp +
                     f->step_end.fixed_s; /* if work were spread evenly */
    if (worst_s >= enough_s || r->layers < 1) {
        return worst_s;
    }
    const mf_family_bound_layout b = mf_family_bound_layout_of(r, l, o, f);
    int even = (int)((r->layers + l->pp - 1) / l->pp), held = 0;
    double least_s = HUGE_VAL;
    for (int64_t p = 0; p < l->pp; p++) {
        stage[p] = (taker){mf_family_bound_ends_of(r, l, p), even - 1, 0.0};
        stage[p].step_s = next_step(&b, &stage[p].ends, p, even);
        least_s = mf_smaller(least_s, stage[p].step_s);
    }
    if (r->kinds > 0 && !kinds_fit(&b, stage)) {
        return HUGE_VAL;
    }
    worst_s = mf_larger(worst_s, least_s);
    for (int64_t p = 0; p < l->pp && worst_s < enough_s; p++) {
        take_up_to(&b, &stage[p], p, least_s);
        held += stage[p].held;
    }
    for (; held < r->layers && worst_s < enough_s; held++) {
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
