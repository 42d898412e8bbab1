/* split_orders.c - orders of a pipeline degree and layouts of an order: swept together, since what
 * bounds them is shared, and single layouts bounded anew. */
#include "planner/search/search.h"
#include "planner/tuning/limits.h"

#include <math.h>

/* --- paths -----------------------------------------------------------------------------------
 */

/* Paths that were found for an order, if any. */
typedef struct known {
    const mf_path_set *set[MF_PATH_SETS];
    int sets;
} known;

static known known_of(mf_search_context *w, const mf_layout *l, int64_t from, int64_t seen) {
    known k;
    k.sets = mf_uses(w->evaluator->without, MF_MECHANISM_FAMILY_MEAN)
                 ? mf_search_path_sets_of(w, l, from, seen, k.set)
                 : 0;
    return k;
}

/* How far bounds are of use: the search leaves nodes at or above enough_s until it has a better
 * plan, and drops those at or above best_s. */
typedef struct cutoffs {
    double best_s, enough_s;
} cutoffs;

static cutoffs cutoffs_of(const mf_search_aim *aim) {
    return (cutoffs){aim->best_s, fmin(aim->best_s, aim->target_s)};
}

/* Raises bound_s by the paths; HUGE_VAL if it reaches best_s, however far. */
static double paths_bound_s(const known *k, const mf_layer_times *r, const mf_layout *l,
                            const mf_order_summary *order, const mf_family_bound_fixed *fixed,
                            double bound_s, cutoffs to, mf_search_outcome *out) {
    int64_t effort_ns = 0;
    if (bound_s < to.enough_s) {
        double mean_s = mf_family_bound_mean_s(r, l, order, fixed, k->set, k->sets, to.enough_s,
                                               to.best_s, &effort_ns);
        bound_s = mf_larger(bound_s, mean_s);
    }
    out->work_ns += effort_ns;
    return bound_s < to.best_s ? bound_s : HUGE_VAL;
}

/* The stage bound; 0 where the mechanism is switched off. */
static double stage_bound_s(const mf_search_context *w, const mf_layer_times *r, const mf_layout *l,
                            const mf_order_summary *order, const mf_family_bound_fixed *fixed,
                            double enough_s, mf_search_outcome *out) {
    if (!mf_uses(w->evaluator->without, MF_MECHANISM_STAGE_BOUNDS)) {
        return 0.0;
    }
    out->work_ns += MF_STAGE_BOUND_NS * l->pp;
    return mf_family_bound_layout_s(r, l, order, fixed, enough_s);
}

/* The larger of the stage bound and the bound by paths. */
static double order_bound_s(mf_search_context *w, const mf_layer_times *r, const mf_layout *l,
                            const mf_order_summary *order, const mf_family_bound_fixed *fixed,
                            cutoffs to, mf_search_outcome *out) {
    double bound_s = stage_bound_s(w, r, l, order, fixed, to.enough_s, out);
    if (bound_s < to.enough_s) {
        const known k = known_of(w, l, 0, out->seen);
        bound_s = paths_bound_s(&k, r, l, order, fixed, bound_s, to, out);
    }
    return bound_s < to.best_s ? bound_s : HUGE_VAL;
}

/* Rates of whole layers of the plain layout of the order (ZeRO 0): levels above 1 add communication
 * to passes, and are priced only where that is needed. */
static mf_status order_layer_times(mf_search_context *w, const mf_layout *l, mf_search_times *r,
                                   mf_search_stages *stages, mf_err *e) {
    mf_layout plain = *l;
    plain.zero = plain.expert_zero = 0;
    mf_status status = mf_search_times_of(w, &plain, false, r, e);
    if (status == MF_OK) {
        mf_search_stages_of(w, &plain, &r->times.layer_params, stages);
    }
    return status;
}

static const mf_family_bound_fixed *fixed_of(const mf_search_stages *s, const mf_layout *l) {
    return &s->fixed[mf_layout_merges(l)];
}

/* --- orders ----------------------------------------------------------------------------------- */

/* Reductions and gathers at the end of a step, at the ZeRO levels where they take least. */
static void least_step_end(const mf_search_stages *s, mf_layer_times *r) {
    r->layer_reduce_s = r->layer_gather_s = HUGE_VAL;
    for (int i = 0; i < s->zeros; i++) {
        r->layer_reduce_s = mf_smaller(r->layer_reduce_s, s->reduce_s[i]);
        r->layer_gather_s = mf_smaller(r->layer_gather_s, s->gather_s[i]);
    }
}

/* The orders of a pipeline degree with both sides. They are bounded with the ZeRO levels that shard
 * most, at no price. */
typedef struct sweep {
    mf_search_context *w;
    const mf_search_node *n;
    cutoffs to;
    mf_search_outcome *out;
    mf_layout l;
    mf_search_listed *order;
    int orders;
} sweep;

static void sweep_start(sweep *s, mf_search_context *w, const mf_search_node *n,
                        const mf_search_aim *aim, mf_search_outcome *out) {
    mf_zero_point zeros[MF_SEARCH_ZEROS];
    s->w = w;
    s->n = n;
    s->to = cutoffs_of(aim);
    s->out = out;
    s->l = mf_search_layout(w, n);
    int64_t pairs = mf_space_zeros(&w->space, s->l.dp * s->l.cp, s->l.edp, zeros, MF_SEARCH_ZEROS);
    s->l.zero = zeros[pairs - 1].zero; /* levels ascend */
    s->l.expert_zero = zeros[pairs - 1].expert_zero;
    s->orders = 0;
    out->status = mf_search_orders_of(w, &s->l, &s->order, &s->orders, &out->err);
}

static const mf_order_summary *summary_of(sweep *s, int i) {
    const mf_order_summary *order =
        atomic_load_explicit(&s->order[i].summary, memory_order_acquire);
    if (!order) {
        s->out->status = mf_search_order(s->w, &s->l, &order, &s->out->err);
        atomic_store_explicit(&s->order[i].summary, order, memory_order_release);
    }
    return order;
}

/* The bound of the i-th order; HUGE_VAL at or above best_s. */
static double sweep_bound_s(sweep *s, int i, const mf_layer_times *r,
                            const mf_family_bound_fixed *fixed) {
    s->l.schedule = (mf_schedule_kind)s->order[i].point.schedule;
    s->l.vpp = s->order[i].point.vpp;
    s->out->work_ns += MF_BOUND_NS;
    double bound_s = mf_family_bound_stages_s(r, 1u << mf_pass_mode_of(s->l.schedule), s->l.pp,
                                              s->l.micro_batches, fixed->step_end.fixed_s);
    if (!(bound_s < s->to.enough_s)) {
        return bound_s;
    }
    const mf_order_summary *order = summary_of(s, i);
    if (s->out->status != MF_OK) {
        return HUGE_VAL;
    }
    return mf_larger(bound_s, order_bound_s(s->w, r, &s->l, order, fixed, s->to, s->out));
}

/* Figures at the ZeRO levels that shard most, except for memory: communicators may take less
 * without ZeRO. */
static mf_family_bound_fixed sweep_fixed(const sweep *s) {
    mf_layout none = s->l;
    none.zero = none.expert_zero = 0;
    const mf_family_bound_fixed plain = mf_search_fixed(s->w, &none);
    mf_family_bound_fixed fixed = mf_search_fixed(s->w, &s->l);
    fixed.fixed_B = mf_smaller(fixed.fixed_B, plain.fixed_B);
    fixed.tables_B = mf_smaller(fixed.tables_B, plain.tables_B);
    fixed.tables_comm_B = mf_smaller(fixed.tables_comm_B, plain.tables_comm_B);
    return fixed;
}

/* Bounds orders by halves of layers. Orders with the same pass mode stay one family, keyed by the
 * least of their bounds: whole layers close all of them, or few. */
void mf_search_split_pipeline(mf_search_context *w, const mf_search_node *n,
                              const mf_search_aim *aim, mf_search_outcome *out) {
    mf_layer_times halves;
    double least_s[MF_PASS_MODES];
    sweep s;
    sweep_start(&s, w, n, aim, out);
    const mf_family_bound_fixed fixed = sweep_fixed(&s);
    const bool bounded = mf_uses(w->evaluator->without, MF_MECHANISM_HALVES);
    if (out->status == MF_OK && bounded) {
        out->status = mf_layer_times_halves(w->costs, &s.l, &halves, &out->err);
    }
    out->work_ns += MF_PIPELINE_FIGURES_NS;
    const double enough_s = s.to.enough_s;
    for (int mode = 0; mode < MF_PASS_MODES; mode++) {
        least_s[mode] = HUGE_VAL;
    }
    /* most virtual stages first: their bounds are usually the least, and work on the others stops
     * when they reach it */
    for (int i = s.orders - 1; i >= 0 && out->status == MF_OK; i--) {
        double *mode_s = &least_s[mf_pass_mode_of((mf_schedule_kind)s.order[i].point.schedule)];
        if (*mode_s > n->key_s) {
            s.to.enough_s = mf_smaller(enough_s, *mode_s);
            *mode_s = mf_smaller(*mode_s, bounded ? sweep_bound_s(&s, i, &halves, &fixed) : 0.0);
        }
    }
    for (int mode = 0; mode < MF_PASS_MODES && out->status == MF_OK; mode++) {
        mf_search_node child = *n;
        child.level = MF_LEVEL_PASS_MODE;
        child.mode = (uint8_t)mode;
        mf_search_push(out, &child, n, least_s[mode], aim->best_s);
    }
}

/* Bounds orders by whole layers. */
void mf_search_split_pass_mode(mf_search_context *w, const mf_search_node *n,
                               const mf_search_aim *aim, mf_search_outcome *out) {
    mf_search_times r;
    mf_search_stages stages;
    bool found = false;
    sweep s;
    sweep_start(&s, w, n, aim, out);
    for (int i = 0; i < s.orders && out->status == MF_OK; i++) {
        mf_search_node child = *n;
        child.level = MF_LEVEL_ORDER;
        child.schedule = s.order[i].point.schedule;
        child.vpp = (int16_t)s.order[i].point.vpp;
        s.l.schedule = (mf_schedule_kind)child.schedule;
        if (mf_pass_mode_of(s.l.schedule) != (mf_pass_mode)n->mode) {
            continue;
        }
        if (!found) {
            out->status = order_layer_times(w, &s.l, &r, &stages, &out->err);
            if (out->status != MF_OK) {
                return;
            }
            found = true;
            out->work_ns += MF_WHOLE_FIGURES_NS;
            least_step_end(&stages, &r.times);
        }
        double bound_s = sweep_bound_s(&s, i, &r.times, fixed_of(&stages, &s.l));
        if (out->status == MF_OK && bound_s < aim->best_s) {
            mf_search_push(out, &child, n, bound_s, aim->best_s);
        }
    }
}

/* --- layouts ---------------------------------------------------------------------------------- */

/* The layouts of an order. */
typedef struct ordered {
    mf_search_context *w;
    mf_layout l;
    const mf_order_summary *order;
    known known;
    mf_layer_times *r; /* of the order's own blocks */
    mf_search_stages *stages;
    cutoffs to;
    double work_s[4][4]; /* by ZeRO levels: what their blocks allow at least, as far as known */
    mf_search_outcome *out;
} ordered;

/* A higher ZeRO level only adds to blocks, so a level already asked about bounds all above it. */
static double least_work_s(const ordered *o) {
    double most_s = 0.0;
    for (int z = 0; z <= (int)o->l.zero; z++) {
        for (int x = 0; x <= (int)o->l.expert_zero; x++) {
            most_s = mf_larger(most_s, o->work_s[z][x]);
        }
    }
    return most_s;
}

/* Raises a bound by what ZeRO levels from 2 on add to blocks; *own gets the layer times with that,
 * where they are of use. */
static double levels_bound_s(ordered *o, const mf_search_node *n, mf_search_times *own) {
    double bound_s = least_work_s(o);
    if (bound_s < o->to.enough_s) {
        o->out->work_ns += MF_BOUND_NS;
        o->out->status = mf_search_times_of(o->w, &o->l, false, own, &o->out->err);
    }
    if (bound_s < o->to.enough_s && o->out->status == MF_OK) {
        bound_s = mf_family_bound_stages_s(&own->times, 1u << n->mode, o->l.pp, o->l.micro_batches,
                                           fixed_of(o->stages, &o->l)->step_end.fixed_s);
        o->work_s[o->l.zero][o->l.expert_zero] = bound_s;
    }
    return bound_s;
}

/* The bound of a layout by plain blocks, with what its own ZeRO levels add to them: from level 2 on
 * that is asked for only where the order's own blocks do not close it. */
static double layout_bound_s(ordered *o, const mf_search_node *n, int zero) {
    const mf_family_bound_fixed *fixed = fixed_of(o->stages, &o->l);
    mf_search_times own;
    mf_layer_times more;
    mf_layer_times *r = o->r;
    r->layer_reduce_s = o->stages->reduce_s[zero];
    r->layer_gather_s = o->stages->gather_s[zero];
    o->out->work_ns += MF_BOUND_NS;
    double bound_s = stage_bound_s(o->w, r, &o->l, o->order, fixed, o->to.enough_s, o->out);
    if (bound_s < o->to.enough_s && (o->l.zero >= 2 || o->l.expert_zero >= 2)) {
        bound_s = mf_larger(bound_s, levels_bound_s(o, n, &own));
        if (o->out->status != MF_OK) {
            return HUGE_VAL;
        }
        if (bound_s < o->to.enough_s) {
            mf_layer_times_copy(&more, r);
            r = &more;
            mf_layer_times_larger(r, &own.times, NULL);
            bound_s = mf_larger(
                bound_s, stage_bound_s(o->w, r, &o->l, o->order, fixed, o->to.enough_s, o->out));
        }
    }
    if (bound_s < o->to.enough_s && o->known.sets > 0) {
        mf_search_add_own(o->w, &o->l, r);
        o->out->work_ns += MF_BOUND_NS;
    }
    return paths_bound_s(&o->known, r, &o->l, o->order, fixed, bound_s, o->to, o->out);
}

void mf_search_split_order(mf_search_context *w, const mf_search_node *n, const mf_search_aim *aim,
                           mf_search_outcome *out) {
    ordered o = {.w = w, .l = mf_search_layout(w, n), .to = cutoffs_of(aim), .out = out};
    mf_search_times r;
    mf_search_stages stages;
    out->status = mf_search_order(w, &o.l, &o.order, &out->err);
    if (out->status == MF_OK) {
        out->status = order_layer_times(w, &o.l, &r, &stages, &out->err);
    }
    if (out->status != MF_OK) {
        return;
    }
    o.known = known_of(w, &o.l, 0, out->seen);
    o.r = &r.times;
    o.stages = &stages;
    out->work_ns += MF_ORDER_FIGURES_NS;
    for (int i = 0; i < o.stages->zeros && out->status == MF_OK; i++) {
        mf_search_node child = *n;
        child.level = MF_LEVEL_LAYOUT;
        child.zero = o.l.zero = o.stages->zero[i].zero;
        child.expert_zero = o.l.expert_zero = o.stages->zero[i].expert_zero;
        child.seen = out->seen;
        double bound_s = layout_bound_s(&o, &child, i);
        if (out->status == MF_OK && bound_s < aim->best_s) {
            mf_search_push(out, &child, n, bound_s, aim->best_s);
        }
        out->priced++;
    }
}

/* A layout's figures beside its layer times. */
typedef struct bounding {
    mf_search_context *w;
    const mf_search_node *n;
    const mf_layout *l;
    const mf_order_summary *order;
    cutoffs to;
    mf_search_outcome *out;
} bounding;

/* Whole layers that gather and reduce nothing, raised to the paths of what the layout's own ZeRO
 * levels add. choices: with every choice as simulated. */
static mf_status raised_times(const bounding *b, bool choices, mf_search_times *r) {
    mf_search_times own;
    mf_layout plain = *b->l;
    mf_search_outcome *out = b->out;
    plain.zero = plain.expert_zero = 0;
    mf_status status = mf_search_times_of(b->w, &plain, choices, r, &out->err);
    if (status == MF_OK) {
        status = mf_search_times_of(b->w, b->l, false, &own, &out->err);
    }
    if (status == MF_OK) {
        mf_layer_times_larger(&r->times, &own.times, &r->choices);
    }
    return status;
}

/* The layout's bound, as it was bounded with its order: by plain blocks and the paths of its own
 * ZeRO levels, which only add to these, under means that have been found since. */
static double plain_bound_s(const bounding *b) {
    mf_search_times r;
    mf_search_stages stages;
    mf_layout plain = *b->l;
    plain.zero = plain.expert_zero = 0;
    b->out->status = raised_times(b, false, &r);
    if (b->out->status != MF_OK) {
        return 0.0;
    }
    mf_search_stages_of(b->w, &plain, &r.times.layer_params, &stages);
    mf_search_add_own(b->w, b->l, &r.times);
    const known since = known_of(b->w, b->l, b->n->seen, b->out->seen);
    return paths_bound_s(&since, &r.times, b->l, b->order, fixed_of(&stages, b->l), 0.0, b->to,
                         b->out);
}

static double choices_bound_s(const bounding *b, mf_search_times *r) {
    mf_search_add_own(b->w, b->l, &r->times);
    const mf_family_bound_fixed fixed = mf_search_fixed_of(b->w, b->l, &r->times);
    return order_bound_s(b->w, &r->times, b->l, b->order, &fixed, b->to, b->out);
}

static bool is_raised(const mf_search_node *n, double bound_s) {
    return bound_s > n->key_s * (1.0 + MF_RAISED);
}

/* By every choice as simulated: where ZeRO adds to blocks, only if their choices without that leave
 * the layout open. */
static double own_bound_s(const bounding *b) {
    mf_search_times r;
    double bound_s = 0.0;
    const bool adds = b->l->zero >= 2 || b->l->expert_zero >= 2;
    if (adds && b->n->tries == 0 && mf_uses(b->w->evaluator->without, MF_MECHANISM_PLAIN_CHOICES)) {
        b->out->status = raised_times(b, true, &r);
        bound_s = b->out->status == MF_OK ? choices_bound_s(b, &r) * MF_LEVELS_SAFETY : 0.0;
    }
    if (b->out->status == MF_OK && bound_s < b->to.enough_s) {
        b->out->status = mf_search_times_of(b->w, b->l, true, &r, &b->out->err);
        bound_s = b->out->status == MF_OK ? mf_larger(bound_s, choices_bound_s(b, &r)) : 0.0;
    }
    return bound_s;
}

double mf_search_bound_again(mf_search_context *w, const mf_search_node *n,
                             const mf_search_aim *aim, mf_search_outcome *out) {
    mf_layout l = mf_search_layout(w, n);
    bounding b = {.w = w, .n = n, .l = &l, .to = cutoffs_of(aim), .out = out};
    const mf_path_set *paths[MF_PATH_SETS];
    double bound_s = n->key_s;
    out->status = mf_search_order(w, &l, &b.order, &out->err);
    if (out->status == MF_OK && n->tries == 0 &&
        mf_search_path_sets_of(w, &l, n->seen, out->seen, paths) > 0) {
        bound_s = mf_larger(bound_s, plain_bound_s(&b));
        out->work_ns += MF_LAYOUT_FIGURES_NS;
    }
    /* what its choices take is asked for the layout anyway, unless it is closed by that; paths may
     * have been found since it was asked last */
    if (out->status == MF_OK && !is_raised(n, bound_s) &&
        mf_uses(w->evaluator->without, MF_MECHANISM_OWN_CHOICES)) {
        bound_s = mf_larger(bound_s, own_bound_s(&b));
        out->work_ns += MF_LAYOUT_FIGURES_NS;
    }
    return bound_s;
}
