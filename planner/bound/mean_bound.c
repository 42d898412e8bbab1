/* mean_bound.c - main layers under a mean of paths. */
#include "planner/bound/mean_bound.h"

#include "planner/bound/stage_bound.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <string.h>

enum { MAX_CELLS = 32768, MAX_CHUNKS = 256, MAX_POINTS = 8192 };
enum { MAX_KINDS = MF_MODEL_MAX_CLASSES };

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

/* Ways of a kind of layers on a virtual stage. */
typedef struct ways {
    const mf_time_memory_point *point; /* their lower hull */
    int points;
    double held_B;
} ways;

/* One stage. */
typedef struct stage {
    const mf_mean_layers *x;
    int p, chunks, kinds, sure;
    double less_s[MAX_KINDS];        /* that a layer of each kind is charged less, */
    double price;                    /* about alike at this price of a byte */
    ways of[MAX_CHUNKS * MAX_KINDS]; /* [chunks][kinds] */
    bool is_sure[MAX_CHUNKS];        /* a layer stands here, whatever the split */
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
        const int v = (int)mf_layout_vstage(x->l, s->p, k), before = points;
        for (int i = 0; i < s->kinds; i++) {
            ways *at = &s->of[k * s->kinds + i];
            at->point = s->point + points;
            if (points + MF_MEAN_POINTS > MAX_POINTS) {
                return false;
            }
            at->points = x->points(x->self, v, i, s->point + points, &at->held_B);
            at->points = mf_lower_hull_make(s->point + points, at->points);
            points += at->points;
        }
        s->is_sure[k] = points > before && is_sure(x, v);
        s->sure += s->is_sure[k];
    }
    s->any_points = 0;
    if (s->kinds == 1) {
        memcpy(s->any, s->point, (size_t)points * sizeof *s->any);
        s->any_points = s->chunks > 1 ? mf_lower_hull_make(s->any, points) : points;
    }
    return true;
}

/* What a layer of a kind adds on a chunk at one moment of the schedule, at a price of a byte. */
static double priced_s(const stage *s, int row, double price, int chunk, int kind) {
    const mf_mean_layers *x = s->x;
    const ways *at = &s->of[chunk * s->kinds + kind];
    const double flight = price * mf_order_in_flight(x->order, s->p, row, chunk);
    double least_s = HUGE_VAL;
    for (int i = 0; i < at->points; i++) {
        least_s = mf_smaller(least_s, at->point[i].time_s + flight * at->point[i].saved_B);
    }
    if (at->points > 0) {
        least_s += price * mf_order_held(x->order, s->p, row, chunk) * at->held_B;
    }
    return least_s + price * (s->kinds > 1 ? x->kind[kind].layer_B : x->layer_B);
}

/* Raises the curve to the line of a price (seconds by byte) at one moment of the schedule. What is
 * free counts the buffers of a main layer: of a stage that holds none it says nothing. */
static void raise_curve(stage *s, int row, double price) {
    const mf_mean_layers *x = s->x;
    double at_s[MAX_CHUNKS], least_s = HUGE_VAL, beyond_s = 0.0;
    for (int k = 0; k < s->chunks; k++) {
        at_s[k] = HUGE_VAL;
        for (int i = 0; i < s->kinds; i++) {
            at_s[k] = mf_smaller(at_s[k], priced_s(s, row, price, k, i) - s->less_s[i]);
        }
        least_s = mf_smaller(least_s, at_s[k]);
    }
    for (int k = 0; k < s->chunks; k++) {
        beyond_s += s->is_sure[k] ? at_s[k] - least_s : 0.0;
    }
    const double free_s = beyond_s - price * x->free_B[s->p];
    for (int k = s->sure > 0 ? s->sure : 1; k <= x->layers && isfinite(least_s); k++) {
        s->curve_s[k] = mf_larger(s->curve_s[k], k * least_s + free_s);
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
        for (int kind = 0; flight > 0.0 && kind < s->kinds; kind++) {
            const ways *at = &s->of[k * s->kinds + kind];
            for (int i = 0; i + 1 < at->points; i++) {
                const mf_time_memory_point *w = &at->point[i];
                all[n++] = (w[1].time_s - w[0].time_s) / (flight * (w[0].saved_B - w[1].saved_B));
            }
        }
    }
    sort_prices(all, n);
    take = n < MF_MEAN_PRICES - 1 ? n : MF_MEAN_PRICES - 1;
    for (int i = 0; i < take; i++) {
        price[i] = all[(size_t)i * (size_t)n / (size_t)take];
    }
    return take;
}

/* Kinds told apart: from nothing, which lines raise; INFINITY where no layer can stand. */
static void find_line(stage *s) {
    bool any = false;
    for (int i = 0; i < s->chunks * s->kinds; i++) {
        any = any || s->of[i].points > 0;
    }
    s->curve_s[0] = 0.0;
    for (int k = 1; k <= s->x->layers; k++) {
        s->curve_s[k] = any ? -HUGE_VAL : HUGE_VAL;
    }
}

static void find_curve(stage *s, int64_t *effort_ns) {
    const mf_mean_layers *x = s->x;
    double price[MF_MEAN_PRICES];
    if (s->kinds == 1) {
        mf_layers_curve(x->order, s->p, x->layers, x->free_B[s->p], x->layer_B, s->any,
                        s->any_points, s->curve_s);
    } else {
        find_line(s);
    }
    raise_curve(s, 0, 0.0);
    for (int row = 0; x->priced && row < x->order->rows[s->p]; row++) {
        const int prices = find_prices(s, row, price);
        *effort_ns += MF_PRICE_NS * (int64_t)(prices + 1) * (s->chunks * s->kinds + x->layers / 8);
        for (int i = 0; i < prices; i++) {
            raise_curve(s, row, price[i]);
        }
        if (s->price > 0.0) {
            raise_curve(s, row, s->price);
        }
    }
}

/* --- kinds ------------------------------------------------------------------------------------ */

/* The moment at which most is in flight. */
static int fullest_row(const stage *s) {
    int best = 0;
    int64_t most = -1;
    for (int row = 0; row < s->x->order->rows[s->p]; row++) {
        int64_t sum = 0;
        for (int k = 0; k < s->chunks; k++) {
            sum += mf_order_in_flight(s->x->order, s->p, row, k);
        }
        best = sum > most ? row : best;
        most = sum > most ? sum : most;
    }
    return best;
}

/* Prices that are tried on all stages: those of a stage in the middle, nothing, and more than any.
 */
static int common_prices(stage *s, double price[MF_MEAN_PRICES + 1]) {
    int prices = 1;
    price[0] = 0.0;
    s->p = (int)s->x->l->pp / 2;
    if (s->x->priced && find_places(s)) {
        prices += find_prices(s, fullest_row(s), price + 1);
        price[prices] = MF_MEAN_DEAR * price[prices - 1];
        prices++;
    }
    return prices;
}

/* What a layer of each kind takes in the mean over all virtual stages, at the price at which all
 * take most if stages take alike of each: there memory is as scarce as it is in the model as a
 * whole, and where it does not suffice at all the dearest price makes the bound as high as that.
 * False: too many points. */
static bool find_means(stage *s, double mean_s[MAX_KINDS], int64_t *effort_ns) {
    const mf_mean_layers *x = s->x;
    double price[MF_MEAN_PRICES + 1], sum_s[MF_MEAN_PRICES + 1][MAX_KINDS] = {{0}};
    int places[MAX_KINDS] = {0}, best = 0;
    const int prices = common_prices(s, price);
    double free_B = 0.0, most_s = -HUGE_VAL;
    for (s->p = 0; s->p < (int)x->l->pp; s->p++) {
        if (!find_places(s)) {
            return false;
        }
        const int row = fullest_row(s);
        for (int k = 0; k < s->chunks; k++) {
            for (int kind = 0; kind < s->kinds; kind++) {
                const bool stands = s->of[k * s->kinds + kind].points > 0;
                places[kind] += stands;
                for (int i = 0; i < prices && stands; i++) {
                    sum_s[i][kind] += priced_s(s, row, price[i], k, kind);
                }
            }
        }
        free_B += x->free_B[s->p];
        *effort_ns += MF_PRICE_NS * (int64_t)prices * s->chunks * s->kinds;
    }
    for (int i = 0; i < prices; i++) {
        double all_s = -price[i] * free_B;
        for (int k = 0; k < s->kinds; k++) {
            sum_s[i][k] = places[k] > 0 ? sum_s[i][k] / places[k] : 0.0;
            all_s += x->kind[k].count * sum_s[i][k];
        }
        best = all_s > most_s ? i : best;
        most_s = mf_larger(most_s, all_s);
    }
    memcpy(mean_s, sum_s[best], (size_t)s->kinds * sizeof *mean_s);
    s->price = price[best];
    return true;
}

/* Charges each kind as much less as it takes more than the mean layer. */
static bool find_less(stage *s, int64_t *effort_ns) {
    const mf_mean_layers *x = s->x;
    double mean_s[MAX_KINDS], all_s = 0.0;
    if (!find_means(s, mean_s, effort_ns)) {
        return false;
    }
    for (int k = 0; k < s->kinds; k++) {
        all_s += x->kind[k].count * mean_s[k];
    }
    for (int k = 0; k < s->kinds; k++) {
        s->less_s[k] = mean_s[k] - all_s / x->layers;
    }
    return true;
}

/* What the model as a whole is charged more. */
static double more_s(const stage *s) {
    double sum_s = 0.0;
    for (int k = 0; k < s->kinds && s->kinds > 1; k++) {
        sum_s += s->x->kind[k].count * s->less_s[k];
    }
    return sum_s;
}

/* --- all -------------------------------------------------------------------------------------- */

double mf_mean_layers_s(const mf_mean_layers *x, int64_t *effort_ns) {
    double curve_s[MAX_CELLS];
    int held[MF_MEAN_STAGES];
    const int stages = (int)x->l->pp, cells = x->layers + 1;
    stage s;
    s.x = x;
    s.chunks = (int)x->l->vpp;
    s.kinds = x->kinds > 1 ? x->kinds : 1;
    s.less_s[0] = s.price = 0.0;
    if (stages > MF_MEAN_STAGES || s.chunks > MAX_CHUNKS || stages * cells > MAX_CELLS ||
        (s.kinds > 1 && !find_less(&s, effort_ns))) {
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
    return mf_place_layers(curve_s, stages, x->layers, held) + more_s(&s);
}
