/* mean_bound.c - main layers under a mean of paths. */
#include "planner/bound/mean_bound.h"

#include "planner/bound/stage_bound.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <string.h>

enum { MAX_CELLS = 32768, MAX_CHUNKS = 256, MAX_POINTS = 4096 };

mf_mean_parts mf_mean_parts_of(const mf_path_set *c) {
    mf_mean_parts x = {0};
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        if ((c->counted >> p) & 1u) {
            x.part[x.count] = (mf_order_part)p;
            x.visits[x.count++] = c->mean.count[p];
        }
    }
    return x;
}

/* Ways of a virtual stage. */
typedef struct place {
    const mf_time_memory_point *point; /* their lower hull */
    int points;
    bool sure; /* a main layer stands here, whatever the split */
    double held_B;
} place;

/* One stage. */
typedef struct stage {
    const mf_mean_layers *x;
    int p, chunks, sure;
    place place[MAX_CHUNKS];
    mf_time_memory_point point[MAX_POINTS], any[MAX_POINTS]; /* of its places; the hull of all */
    int any_points;
    double *curve_s; /* [layers + 1] what so many of its layers add together */
} stage;

/* Virtual stage v can hold positions v and on, as many as leave one for each other. */
static bool is_sure(const mf_mean_layers *x, int v) {
    const int last = x->positions - (int)(x->l->pp * x->l->vpp) + v;
    return v >= x->first && last <= x->last;
}

/* False: it has too many points. */
static bool find_places(stage *s) {
    const mf_mean_layers *x = s->x;
    int points = 0;
    s->sure = 0;
    for (int k = 0; k < s->chunks; k++) {
        const int v = (int)mf_layout_vstage(x->l, s->p, k);
        place *at = &s->place[k];
        at->point = s->point + points;
        if (points + MF_MEAN_POINTS > MAX_POINTS) {
            return false;
        }
        at->points = x->points(x->self, v, s->point + points, &at->held_B);
        at->points = mf_lower_hull_make(s->point + points, at->points);
        points += at->points;
        at->sure = at->points > 0 && is_sure(x, v);
        s->sure += at->sure;
    }
    memcpy(s->any, s->point, (size_t)points * sizeof *s->any);
    s->any_points = s->chunks > 1 ? mf_lower_hull_make(s->any, points) : points;
    return true;
}

/* Raises the curve to the line of a price (seconds by byte) at one moment of the schedule. What is
 * free counts the buffers of a main layer: of a stage that holds none it says nothing. */
static void raise_curve(stage *s, int row, double price) {
    const mf_mean_layers *x = s->x;
    double at_s[MAX_CHUNKS], least_s = HUGE_VAL, beyond_s = 0.0;
    for (int k = 0; k < s->chunks; k++) {
        const place *at = &s->place[k];
        const double flight = price * mf_order_in_flight(x->order, s->p, row, k);
        at_s[k] = HUGE_VAL;
        for (int i = 0; i < at->points; i++) {
            at_s[k] = mf_smaller(at_s[k], at->point[i].time_s + flight * at->point[i].saved_B);
        }
        if (at->points > 0) {
            at_s[k] += price * mf_order_held(x->order, s->p, row, k) * at->held_B;
        }
        least_s = mf_smaller(least_s, at_s[k]);
    }
    for (int k = 0; k < s->chunks; k++) {
        beyond_s += s->place[k].sure ? at_s[k] - least_s : 0.0;
    }
    const double each_s = least_s + price * x->layer_B;
    const double free_s = beyond_s - price * x->free_B[s->p];
    for (int k = s->sure > 0 ? s->sure : 1; k <= x->layers && isfinite(least_s); k++) {
        s->curve_s[k] = mf_larger(s->curve_s[k], k * each_s + free_s);
    }
}

/* Ascending. They come in runs that ascend, few and short ones as a rule. */
static void sort_prices(double *price, int n) {
    for (int i = 1; i < n; i++) {
        const double x = price[i];
        int at = i;
        for (; at > 0 && price[at - 1] > x; at--) {
            price[at] = price[at - 1];
        }
        price[at] = x;
    }
}

/* Prices at which a layer changes its point, evenly thinned out. */
static int find_prices(const stage *s, int row, double price[MF_MEAN_PRICES]) {
    double all[MAX_POINTS];
    int n = 0, take;
    for (int k = 0; k < s->chunks; k++) {
        const double flight = mf_order_in_flight(s->x->order, s->p, row, k);
        const mf_time_memory_point *w = s->place[k].point;
        for (int i = 0; flight > 0.0 && i + 1 < s->place[k].points; i++) {
            all[n++] =
                (w[i + 1].time_s - w[i].time_s) / (flight * (w[i].saved_B - w[i + 1].saved_B));
        }
    }
    sort_prices(all, n);
    take = n < MF_MEAN_PRICES - 1 ? n : MF_MEAN_PRICES - 1;
    for (int i = 0; i < take; i++) {
        price[i] = all[(size_t)i * (size_t)n / (size_t)take];
    }
    return take;
}

static void find_curve(stage *s, int64_t *effort_ns) {
    const mf_mean_layers *x = s->x;
    double price[MF_MEAN_PRICES];
    mf_layers_curve(x->order, s->p, x->layers, x->free_B[s->p], x->layer_B, s->any, s->any_points,
                    s->curve_s);
    raise_curve(s, 0, 0.0);
    for (int row = 0; x->priced && row < x->order->rows[s->p]; row++) {
        const int prices = find_prices(s, row, price);
        *effort_ns += MF_PRICE_NS * (int64_t)(prices + 1) * (s->chunks + x->layers / 8);
        for (int i = 0; i < prices; i++) {
            raise_curve(s, row, price[i]);
        }
    }
}

double mf_mean_layers_s(const mf_mean_layers *x, int64_t *effort_ns) {
    double curve_s[MAX_CELLS];
    int held[MF_MEAN_STAGES];
    const int stages = (int)x->l->pp, cells = x->layers + 1;
    stage s;
    s.x = x;
    s.chunks = (int)x->l->vpp;
    if (stages > MF_MEAN_STAGES || s.chunks > MAX_CHUNKS || stages * cells > MAX_CELLS) {
        return -HUGE_VAL;
    }
    *effort_ns += MF_MEAN_LAYERS_NS;
    for (s.p = 0; s.p < stages; s.p++) {
        s.curve_s = curve_s + (size_t)s.p * (size_t)cells;
        if (!find_places(&s)) {
            return -HUGE_VAL;
        }
        find_curve(&s, effort_ns);
        held[s.p] = s.sure < x->layers ? s.sure : x->layers;
    }
    return mf_place_layers(curve_s, stages, x->layers, held);
}
