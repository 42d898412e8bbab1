/* family_mean.c - the bound by means of paths (mean_bound.h) from figures of families: what a
 * layer takes with its fastest choice and a hull of what others take more, or with every choice.
 */
#include "planner/bound/family_stage.h"
#include "planner/bound/mean_bound.h"
#include "planner/bound/overlap_loss.h"
#include "planner/order/path_mean.h"
#include "planner/tuning/limits.h"

#include <math.h>

/* A mean that is evaluated. */
typedef struct means {
    mf_family_bound_layout b;
    const mf_path_set *c;
    bool loses; /* what passes lose is known */
    mf_mean_parts parts;
    double layer_s[MF_ORDER_PARTS];                  /* a main layer's, in these parts */
    double kind_s[MF_FAMILY_OTHERS][MF_ORDER_PARTS]; /* of each kind, where there are several */
    double way_s[MF_FAMILY_POINTS][MF_ORDER_PARTS];
} means;

/* A position's seconds in the parts that count. Split, but priced in one go, neither B nor W is
 * known alone. */
static void parts_of(const means *m, const mf_family_bound_pass *p, const mf_param_count *params,
                     double gather_s, double reduce_s, double anew_s, double *out) {
    const bool merged = m->b.mode == MF_PASS_MODE_MERGED;
    const bool known = m->b.mode != MF_PASS_MODE_SPLIT || p->w_s > 0.0;
    const double all_s[MF_ORDER_PARTS] = {
        [MF_ORDER_F] = p->f_s,
        [MF_ORDER_B] = known ? p->b_s : 0.0,
        [MF_ORDER_W] = p->w_s,
        [MF_ORDER_F_PAIR] = p->pair_f_s,
        [MF_ORDER_B_PAIR] = p->pair_b_s,
        [MF_ORDER_PAIR_PORTION_F] = p->full_f_s,
        [MF_ORDER_PAIR_PORTION_B] = p->rest_b_s,
        [MF_ORDER_F_EP] = merged ? p->ep_f_s : 0.0,
        [MF_ORDER_B_EP] = merged ? p->ep_b_s : 0.0,
        [MF_ORDER_GATHER] = gather_s,
        [MF_ORDER_REDUCE] = reduce_s,
        [MF_ORDER_GATHER_LOST] = m->b.r->lost * gather_s,
        [MF_ORDER_REDUCE_LOST] = m->b.r->lost * reduce_s,
        [MF_ORDER_ANEW] = anew_s,
        [MF_ORDER_NORM] = mf_family_bound_norm_s(&m->b.f->step_end, params),
        [MF_ORDER_UPDATE] = mf_family_bound_update_s(&m->b.f->step_end, params)};
    for (int i = 0; i < m->parts.count; i++) {
        out[i] = all_s[m->parts.part[i]];
    }
}

/* What a main layer's block loses in the last backward pass to the reduction of the one before it,
 * with the fastest choice. */
static double own_lost_s(const mf_family_bound_layout *b) {
    const double e = b->r->lost;
    double least_s = b->mode == MF_PASS_MODE_SPLIT ? b->r->layer.w_s : b->r->layer.b_s;
    least_s *= b->mode == MF_PASS_MODE_MERGED ? MF_PAIRED_LEAST : 1.0;
    least_s -= b->l->micro_batches == 1 ? b->r->layer_anew_s[1] : 0.0;
    return e <= MF_LOST_MOST ? e * mf_smaller(b->r->beside_s, least_s / (1.0 - e)) : 0.0;
}

static void layer_parts(const means *m, const mf_family_bound_pass *p, double *out) {
    const mf_layer_times *r = m->b.r;
    parts_of(m, p, &r->layer_params, r->layer_gather_s, r->layer_reduce_s, r->layer_anew_s[0], out);
    for (int i = 0; i < m->parts.count; i++) {
        out[i] = m->loses && m->parts.part[i] == MF_ORDER_OWN_LOST ? own_lost_s(&m->b) : out[i];
    }
}

/* --- positions -------------------------------------------------------------------------------- */

/* Virtual stages that the others of a kind can stand on: none is empty. */
static void range_of(const mf_layer_times *r, const mf_family_bound_other *x, int vstages, int *lo,
                     int *hi) {
    int spare = r->positions - vstages;
    *lo = x->first > spare ? x->first - spare : 0;
    *hi = x->last < vstages - 1 ? x->last : vstages - 1;
    if (x->first == r->positions - 1) { /* the head */
        *lo = vstages - 1;
    }
}

/* What another position adds where it adds least. */
static double other_s(const means *m, const mf_family_bound_other *x) {
    double part_s[MF_ORDER_PARTS], least_s = HUGE_VAL;
    int lo, hi;
    parts_of(m, &x->pass, &x->params, x->gather_s, x->reduce_s, x->anew_s, part_s);
    range_of(m->b.r, x, m->c->vstages, &lo, &hi);
    for (int v = lo; v <= hi; v++) {
        least_s = mf_smaller(least_s, mf_mean_visit_s(&m->parts, part_s, v));
    }
    return isinf(least_s) ? 0.0 : x->count * mf_larger(least_s, 0.0);
}

/* mf_mean_layers.points: by every choice, or by what others than the fastest take more. */
static int points_on(const void *self, int v, int kind, mf_time_memory_point *point,
                     double *held_B) {
    const means *m = self;
    const mf_layer_times *r = m->b.r;
    const mf_family_bound_hull *h = &r->hull[0];
    int points = 0;
    *held_B = r->choices ? r->choices->held_B : 0.0;
    for (int i = 0; r->choices && i < r->choices->count; i++) {
        if (r->kinds == 0 || r->choices->kind[i] == kind) {
            point[points++] = (mf_time_memory_point){r->choices->saved_B[i],
                                                     mf_mean_visit_s(&m->parts, m->way_s[i], v)};
        }
    }
    if (r->choices) {
        return points;
    }
    if (r->kinds > 0) {
        point[0] = (mf_time_memory_point){0.0, mf_mean_visit_s(&m->parts, m->kind_s[kind], v)};
        return 1;
    }
    const double fastest_s = mf_mean_visit_s(&m->parts, m->layer_s, v);
    const double extra = mf_larger(m->c->extra[mf_layout_stage_of(m->b.l, v)], 0.0);
    point[0] = (mf_time_memory_point){0.0, fastest_s};
    for (int i = 0; i < h->points; i++) {
        const double more_s = h->point[i].time_s - h->point[0].time_s;
        point[i] = (mf_time_memory_point){h->point[i].saved_B, fastest_s + extra * more_s};
    }
    return h->points > 0 ? h->points : 1;
}

/* --- losses ----------------------------------------------------------------------------------- */

/* Least times in any micro-batch: weight gradients of the first take anew_s less. */
static mf_loss_stage loss_of(const mf_family_bound_pass *p, bool split, double gather_s,
                             double reduce_s, double anew_s) {
    const double b_s = split ? p->b_s : p->b_s - anew_s, w_s = split ? p->w_s - anew_s : p->w_s;
    return (mf_loss_stage){.f_s = p->f_s,
                           .b_s = b_s,
                           .w_s = w_s,
                           .gather_s = gather_s,
                           .first_s = split ? w_s : b_s,
                           .last_s = p->f_s,
                           .reduce_s = reduce_s,
                           .f_rate = 1.0,
                           .b_rate = 1.0,
                           .w_rate = 1.0};
}

static void least_loss(mf_loss_stage *least, const mf_loss_stage *x) {
    least->f_s = mf_smaller(least->f_s, x->f_s);
    least->b_s = mf_smaller(least->b_s, x->b_s);
    least->w_s = mf_smaller(least->w_s, x->w_s);
    least->gather_s = mf_smaller(least->gather_s, x->gather_s);
    least->first_s = mf_smaller(least->first_s, x->first_s);
    least->last_s = mf_smaller(least->last_s, x->last_s);
    least->reduce_s = mf_smaller(least->reduce_s, x->reduce_s);
}

static double alone_or_pair_s(const mf_family_bound_pass *p, mf_pass_mode mode) {
    double alone_s = p->f_s + p->b_s + p->w_s;
    return mode == MF_PASS_MODE_MERGED ? mf_smaller(alone_s, p->pair_f_s + p->pair_b_s) : alone_s;
}

/* One position stands on every virtual stage at least: the ends, and any layer or depth. */
static void find_losses(const mf_family_bound_layout *b, double cutoff_s, mf_order_losses *out) {
    const mf_layer_times *r = b->r;
    const bool split = b->mode == MF_PASS_MODE_SPLIT;
    const int vstages = (int)(b->l->pp * b->l->vpp);
    bool main_last = true;     /* a main layer stands before the head */
    double head_s = 0.0;       /* reduction */
    double table_s = HUGE_VAL; /* forward pass of the embedding, which is last where it is alone */
    mf_loss_stage stage[MF_MAX_VSTAGES];
    mf_loss_stage layer =
        loss_of(&r->layer, split, r->layer_gather_s, r->layer_reduce_s, r->layer_anew_s[1]);
    const double m = (double)b->l->micro_batches;
    mf_loss_figures x = {.l = b->l,
                         .order = b->o,
                         .send_s = b->f->send_s,
                         .hold_s = b->f->hold_s,
                         .lost = r->lost,
                         .cutoff_s = cutoff_s,
                         .layers = r->positions - 2,
                         .layer_s = alone_or_pair_s(&r->layer, b->mode) - r->layer_anew_s[1] / m,
                         .stage = stage};
    for (int i = 0; i < r->others; i++) {
        const mf_family_bound_other *y = &r->other[i];
        const mf_loss_stage of = loss_of(&y->pass, split, y->gather_s, y->reduce_s, y->anew_s);
        main_last = main_last && y->last != r->positions - 2;
        if (y->first == 0) {
            stage[0] = of;
            stage[0].first_s = 0.0; /* its pass is the last block */
            table_s = of.last_s;
        } else if (y->first == r->positions - 1) {
            stage[vstages - 1] = of;
            head_s = of.reduce_s;
        } else {
            x.layer_s = mf_smaller(x.layer_s, alone_or_pair_s(&y->pass, b->mode) - y->anew_s / m);
            least_loss(&layer, &of);
        }
    }
    x.layer_gather_s = layer.gather_s;
    stage[0].last_s = mf_smaller(table_s, layer.last_s);
    layer.layer = true;
    for (int v = 1; v + 1 < vstages; v++) {
        stage[v] = layer;
    }
    const double own_s = own_lost_s(b);
    for (int v = 0; v + 1 < vstages; v++) {
        stage[v].own_most_s = own_s;
    }
    /* on the last the head is first, and reduced beside one */
    stage[vstages - 1].own_most_s = main_last ? mf_larger(own_s - r->lost * head_s, 0.0) : 0.0;
    mf_overlap_losses(&x, out);
}

/* --- all -------------------------------------------------------------------------------------- */

static double mean_s(means *m, const mf_mean_layers *x, const mf_order_losses *losses,
                     int64_t *effort_ns) {
    const mf_layer_times *r = m->b.r;
    const mf_family_bound_fixed *f = m->b.f;
    m->parts = mf_mean_parts_of(m->c);
    layer_parts(m, &r->layer, m->layer_s);
    for (int i = 0; i < r->kinds; i++) {
        layer_parts(m, &r->other[r->others + i].pass, m->kind_s[i]);
    }
    for (int i = 0; r->choices && i < r->choices->count; i++) {
        layer_parts(m, &r->choices->pass[i], m->way_s[i]);
    }
    double sum_s = mf_order_path_fixed_s(&m->c->mean, f->step_end.fixed_s - r->anew_s, f->send_s,
                                         f->hold_s, r->lost, losses);
    for (int i = 0; i < r->others; i++) {
        sum_s += other_s(m, &r->other[i]);
    }
    return (sum_s + mf_mean_layers_s(x, effort_ns)) * MF_BOUND_SAFETY;
}

double mf_family_bound_mean_s(const mf_layer_times *r, const mf_layout *l,
                              const mf_order_summary *o, const mf_family_bound_fixed *f,
                              const mf_path_set *const *set, int sets, double enough_s,
                              double cutoff_s, int64_t *effort_ns) {
    means m;
    mf_order_losses losses = {0};
    double free_B[MF_MEAN_STAGES], lost_s[MF_ORDER_LOSS_DOUBLES(MF_MAX_VSTAGES)], most_s = 0.0;
    if (sets == 0 || l->pp > MF_MEAN_STAGES) {
        return 0.0;
    }
    m.b = mf_family_bound_layout_of(r, l, o, f);
    for (int p = 0; p < l->pp; p++) {
        const mf_family_bound_ends ends = mf_family_bound_ends_of(r, l, p);
        free_B[p] = mf_family_bound_free_B(&m.b, &ends, 0);
    }
    m.loses = r->lost > 0.0 && l->pp * l->vpp > 1 && r->others < MF_FAMILY_OTHERS &&
              (m.b.mode != MF_PASS_MODE_SPLIT || r->layer.w_s > 0.0);
    if (m.loses) {
        mf_order_losses_init(&losses, lost_s, (int)(l->pp * l->vpp));
        find_losses(&m.b, cutoff_s, &losses);
    }
    mf_mean_kind kind[MF_FAMILY_OTHERS];
    for (int i = 0; i < r->kinds; i++) {
        const mf_family_bound_other *y = &r->other[r->others + i];
        kind[i] = (mf_mean_kind){y->count, mf_persistent_B(l, y->params)};
    }
    const mf_mean_layers x = {.l = l,
                              .order = o,
                              .layers = r->layers,
                              .positions = r->positions,
                              .first = r->first,
                              .last = r->last,
                              .layer_B = m.b.layer_B,
                              .free_B = free_B,
                              .priced = r->choices != NULL,
                              .kinds = r->kinds,
                              .kind = kind,
                              .points = points_on,
                              .self = &m};
    for (int i = 0; i < sets && most_s < enough_s; i++) {
        m.c = set[i];
        if (m.c->mean.count[0] && !(r->lost > m.c->mean.lost)) { /* else it does not hold here */
            most_s = mf_larger(most_s, mean_s(&m, &x, &losses, effort_ns));
        }
    }
    return most_s;
}
