/* family_mean.c - bounds by the mean of an order's chains, from rates of layers.
 *
 * As mean_bound.c has it: positions other than main layers stand where they add least, main layers
 * go layer by layer to the stage that bears them best, and since no virtual stage is empty, what
 * they add there beyond the least of its stage counts once.
 */
#include "planner/bound/family_stage.h"

#include <math.h>
#include <string.h>

enum { PASSES = 9, ONCE = 6, MOST_VSTAGES = 1024 };
static const mf_order_part pass_part[PASSES] = {
    MF_ORDER_F,           MF_ORDER_B,    MF_ORDER_W,    MF_ORDER_F_PAIR,
    MF_ORDER_B_PAIR,      MF_ORDER_F_EP, MF_ORDER_B_EP, MF_ORDER_PAIR_SHARE_F,
    MF_ORDER_PAIR_SHARE_B};
static const mf_order_part once_part[ONCE] = {MF_ORDER_GATHER,      MF_ORDER_REDUCE,
                                              MF_ORDER_GATHER_LOST, MF_ORDER_REDUCE_LOST,
                                              MF_ORDER_NORM,        MF_ORDER_UPDATE};

/* Parts that the mean counts anywhere. */
typedef struct counted {
    int n, at[PASSES];
    const double *part[PASSES];
} counted;

/* A mean that is evaluated. */
typedef struct means {
    mf_family_bound_bounding b;
    const mf_chains *c;
    counted passes, once;
    int stage_of[MOST_VSTAGES];
    double once_s[MOST_VSTAGES];   /* what a main layer adds there besides its passes, */
    double at_s[MOST_VSTAGES];     /* and with them, the fastest ones */
    double beyond_s[MOST_VSTAGES]; /* beyond the least of the stage, whatever its way */
} means;

/* Split, but priced in one go, neither B nor W is known alone. */
static void passes_of(const mf_family_bound_pass *p, mf_floor_mode mode, double out[PASSES]) {
    bool merged = mode == MF_FLOOR_MERGED;
    out[0] = p->f_s;
    out[1] = mode == MF_FLOOR_SPLIT && !(p->w_s > 0.0) ? 0.0 : p->b_s;
    out[2] = p->w_s;
    out[3] = p->pair_f_s;
    out[4] = p->pair_b_s;
    out[5] = merged ? p->ep_f_s : 0.0;
    out[6] = merged ? p->ep_b_s : 0.0;
    out[7] = p->keep_f_s;
    out[8] = p->give_b_s;
}

static void once_of(const means *m, const mf_param_count *params, double gather_s, double reduce_s,
                    double out[ONCE]) {
    out[0] = gather_s;
    out[1] = reduce_s;
    out[2] = m->b.r->lost * gather_s;
    out[3] = m->b.r->lost * reduce_s;
    out[4] = mf_family_bound_norm_s(&m->b.f->tail, params);
    out[5] = mf_family_bound_update_s(&m->b.f->tail, params);
}

static counted counted_of(const mf_chains *c, const mf_order_part *part, int n) {
    counted x = {0};
    for (int i = 0; i < n; i++) {
        if ((c->counted >> part[i]) & 1u) {
            x.part[x.n] = c->part[part[i]];
            x.at[x.n++] = i;
        }
    }
    return x;
}

/* What a position with these parts adds on virtual stage v. */
static double visit_s(const counted *c, const double *part_s, int v) {
    double sum_s = 0.0;
    for (int i = 0; i < c->n; i++) {
        sum_s += c->part[i][v] * part_s[c->at[i]];
    }
    return sum_s;
}

/* --- others ----------------------------------------------------------------------------------- */

void mf_family_bound_other_range(const mf_layer_times *r, const mf_family_bound_other *x,
                                 int vstages, int *lo, int *hi) {
    int spare = r->positions - vstages;
    *lo = x->first > spare ? x->first - spare : 0;
    *hi = x->last < vstages - 1 ? x->last : vstages - 1;
    if (x->first == r->positions - 1) { /* the head */
        *lo = vstages - 1;
    }
}

/* What another position adds where it adds least. */
static double other_s(const means *m, const mf_family_bound_other *x) {
    double pass_s[PASSES], once_s[ONCE], least_s = HUGE_VAL;
    int lo, hi;
    passes_of(&x->pass, m->b.mode, pass_s);
    once_of(m, &x->params, x->gather_s, x->reduce_s, once_s);
    mf_family_bound_other_range(m->b.r, x, m->c->vstages, &lo, &hi);
    for (int v = lo; v <= hi; v++) {
        least_s =
            mf_smaller(least_s, visit_s(&m->passes, pass_s, v) + visit_s(&m->once, once_s, v));
    }
    return isinf(least_s) ? 0.0 : x->count * mf_larger(least_s, 0.0);
}

/* --- main layers ------------------------------------------------------------------------------ */

static void visits(means *m) {
    double pass_s[PASSES], once_s[ONCE];
    const mf_layer_times *r = m->b.r;
    passes_of(&r->layer, m->b.mode, pass_s);
    once_of(m, &r->layer_params, r->layer_gather_s, r->layer_reduce_s, once_s);
    for (int v = 0; v < m->c->vstages; v++) {
        m->stage_of[v] = (int)mf_layout_stage_of(m->b.l, v);
        m->once_s[v] = visit_s(&m->once, once_s, v);
        m->at_s[v] = m->once_s[v] + visit_s(&m->passes, pass_s, v);
    }
}

/* What k main layers of a stage take more by micro-batch for want of memory. */
static double extra_s(const mf_family_bound_bounding *b, const mf_family_bound_ends *ends,
                      int64_t p, int k) {
    if (k > b->o->layers) { /* there are no more */
        return HUGE_VAL;
    }
    double flight = (double)b->o->flight[(size_t)p * (size_t)(b->o->layers + 1) + (size_t)k];
    double left_B = mf_family_bound_room_B(b, ends, k);
    const mf_family_bound_hull *h = &b->r->hull[0];
    if (left_B < 0.0) {
        return HUGE_VAL;
    }
    if (h->points == 0 || !(flight > 0.0)) {
        return 0.0;
    }
    return k *
           mf_larger(0.0, mf_family_bound_hull_at(h, left_B / (flight * k)) - h->point[0].time_s);
}

/* A stage that layers go to. */
typedef struct mean_stage {
    double stage_s, extra;
    mf_family_bound_ends ends;
    double next_s, had_s; /* for want of memory, with one layer more and now */
    double add_s;         /* what one more layer adds to the mean */
    int held;
} mean_stage;

static void look_ahead(const means *m, mean_stage *x, int64_t p) {
    x->next_s = extra_s(&m->b, &x->ends, p, x->held + 1);
    double more_s = x->extra > 0.0 ? x->extra * (x->next_s - x->had_s) : 0.0;
    x->add_s = isinf(x->next_s) ? HUGE_VAL : x->stage_s + more_s;
}

/* Main layers of which only the sums of passes are known, by what they save. */
static double by_hull(means *m) {
    mean_stage stage[MF_FAMILY_STAGES];
    double sum_s = 0.0;
    if (m->b.l->pp < 1) {
        return 0.0;
    }
    for (int64_t p = 0; p < m->b.l->pp; p++) {
        stage[p] = (mean_stage){.stage_s = HUGE_VAL,
                                .extra = m->c->extra[p],
                                .ends = mf_family_bound_ends_of(m->b.r, m->b.l, p)};
    }
    for (int v = 0; v < m->c->vstages; v++) {
        double *least_s = &stage[m->stage_of[v]].stage_s;
        *least_s = mf_smaller(*least_s, m->at_s[v]);
    }
    for (int v = 0; v < m->c->vstages; v++) {
        m->beyond_s[v] = m->at_s[v] - stage[m->stage_of[v]].stage_s;
    }
    for (int64_t p = 0; p < m->b.l->pp; p++) {
        look_ahead(m, &stage[p], p);
    }
    for (int n = 0; n < m->b.r->layers; n++) {
        mean_stage *best = &stage[0];
        for (int64_t p = 1; p < m->b.l->pp; p++) {
            best = stage[p].add_s < best->add_s ? &stage[p] : best;
        }
        if (isinf(best->add_s)) {
            return HUGE_VAL;
        }
        sum_s += best->add_s;
        best->had_s = best->next_s;
        best->held++;
        look_ahead(m, best, best - stage);
    }
    return sum_s;
}

/* Ways of stage p; and what each of its virtual stages adds beyond them, whatever the way. */
static int ways_of(means *m, int p, mf_time_memory_point *w) {
    const mf_family_bound_ways *ways = m->b.r->ways;
    int chunks = (int)m->b.l->vpp;
    for (int i = 0; i < ways->count; i++) {
        double pass_s[PASSES], at_s[MOST_VSTAGES], least_s = HUGE_VAL;
        passes_of(&ways->pass[i], m->b.mode, pass_s);
        for (int x = 0; x < chunks; x++) {
            int v = (int)mf_layout_vstage(m->b.l, p, x);
            at_s[x] = m->once_s[v] + visit_s(&m->passes, pass_s, v);
            least_s = mf_smaller(least_s, at_s[x]);
        }
        for (int x = 0; x < chunks; x++) {
            double *beyond_s = &m->beyond_s[mf_layout_vstage(m->b.l, p, x)];
            *beyond_s = i == 0 ? at_s[x] - least_s : mf_smaller(*beyond_s, at_s[x] - least_s);
        }
        w[i] = (mf_time_memory_point){ways->saved_B[i], least_s};
    }
    return mf_lower_hull_make(w, ways->count);
}

enum { MOST_CELLS = 32768 };

/* Main layers of which every choice is known. */
static double by_ways(means *m) {
    double curve_s[MOST_CELLS];
    int held[MF_FAMILY_STAGES] = {0}, layers = m->b.r->layers, stages = (int)m->b.l->pp;
    for (int p = 0; p < stages; p++) {
        mf_time_memory_point w[MF_FAMILY_POINTS];
        mf_family_bound_ends ends = mf_family_bound_ends_of(m->b.r, m->b.l, p);
        double *at_s = curve_s + (size_t)p * (size_t)(layers + 1);
        int n = ways_of(m, p, w), most = 0;
        at_s[0] = 0.0;
        for (int k = 1; k <= layers; k++) {
            double flight = (double)m->b.o->flight[p * (m->b.o->layers + 1) + k];
            double room_B = mf_family_bound_room_B(&m->b, &ends, k);
            double saved_B = flight > 0.0 ? room_B / (flight * k) : HUGE_VAL;
            bool fits = room_B >= 0.0 && most == k - 1;
            at_s[k] = fits ? k * mf_lower_hull_time_s(w, n, saved_B) : HUGE_VAL;
            most = isinf(at_s[k]) ? most : k;
        }
        mf_make_convex(at_s, most);
    }
    return mf_place_layers(curve_s, stages, layers, held);
}

double mf_family_bound_mean_s(const mf_layer_times *r, const mf_layout *l,
                              const mf_order_summary *o, const mf_family_bound_fixed *f,
                              const mf_chains *c, double cutoff_s) {
    means m;
    if (l->pp > MF_FAMILY_STAGES || c->vstages > MOST_VSTAGES || !c->part[0] || r->lost > c->lost) {
        return 0.0;
    }
    m.b = mf_family_bound_bounding_of(r, l, o, f);
    m.c = c;
    m.passes = counted_of(c, pass_part, PASSES);
    m.once = counted_of(c, once_part, ONCE);
    visits(&m);
    double sum_s = f->tail.fixed_s + c->sends * f->send_s;
    sum_s += (c->holds - c->beside * r->lost) * f->hold_s;
    sum_s += mf_family_bound_lost_s(r, l, o, f, c, cutoff_s);
    for (int i = 0; i < r->others; i++) {
        sum_s += other_s(&m, &r->other[i]);
    }
    bool small = (int64_t)(r->layers + 1) * l->pp <= MOST_CELLS && r->layers <= o->layers;
    sum_s += r->ways && small ? by_ways(&m) : by_hull(&m);
    if (isinf(sum_s)) {
        return HUGE_VAL;
    }
    sum_s += mf_least_beyond_s(m.beyond_s, c->vstages, r->positions - r->layers);
    return sum_s * MF_BOUND_SAFETY;
}
