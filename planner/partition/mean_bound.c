/* mean_bound.c - bounds by means of chains.
 *
 * A mean of chains visits every virtual stage about equally often, so that it hardly matters where
 * layers stand: what is left to decide is how many main layers each stage takes, and there a
 * stage's want of memory grows ever faster. Layer by layer to where it adds least is therefore
 * optimal.
 *
 * Want of memory: for every moment of the schedule (a row of in-flight micro-batches by chunk) and
 * every price of a byte, layers that pay for what they keep beyond the room that there is add no
 * more than they do indeed. Both where a layer stands among a stage's chunks and what it keeps is
 * then a choice of its own, so that each price bounds what k layers add by a line in k; the curve
 * of a stage is the highest of these lines.
 */
#include "planner/bound/family_bound.h"
#include "planner/bound/lower_hull.h"
#include "planner/bound/stage_bound.h"
#include "planner/order/path_mean.h"
#include "planner/partition/class_bounds.h"
#include "planner/partition/rows.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The parts that a mean counts anywhere, and what they take with every choice. */
typedef struct counted {
    int parts;
    const double *count[MF_ORDER_PARTS]; /* [vstages] of each */
    double *part_s;                      /* [classes][MF_CATALOGUE_MAX][MF_ORDER_PARTS] */
} counted;

static bool count_parts(const mf_partition *in, const mf_chains *c, counted *out) {
    mf_order_part at[MF_ORDER_PARTS];
    out->parts = 0;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        if ((c->counted >> p) & 1u) {
            at[out->parts] = (mf_order_part)p;
            out->count[out->parts++] = c->part[p];
        }
    }
    size_t choices = (size_t)in->classes * MF_CATALOGUE_MAX;
    out->part_s = malloc(choices * MF_ORDER_PARTS * sizeof *out->part_s);
    for (int i = 0; out->part_s && i < in->classes; i++) {
        double *to = out->part_s + (size_t)i * MF_CATALOGUE_MAX * MF_ORDER_PARTS;
        for (int m = 0; m < in->class[i].choices; m++, to += MF_ORDER_PARTS) {
            for (int p = 0; p < out->parts; p++) {
                to[p] = mf_partition_part_s(in, &in->class[i], m, at[p], false);
            }
        }
    }
    return out->part_s != NULL;
}

/* Seconds that a layer of a class with choice m adds to the mean on virtual stage v. */
static double visit_s(const counted *c, int v, int class, int m) {
    size_t choice = (size_t) class * MF_CATALOGUE_MAX + (size_t)m;
    const double *part_s = c->part_s + choice * MF_ORDER_PARTS;
    double sum_s = 0.0;
    for (int p = 0; p < c->parts; p++) {
        sum_s += c->count[p][v] * part_s[p];
    }
    return sum_s;
}

/* What positions other than main layers add at least, each where it counts least. */
static double others_s(const mf_partition *in, const counted *c) {
    double sum_s = 0.0;
    for (int s = 0; s < in->slots; s++) {
        if (in->slot[s].main) {
            continue;
        }
        double least_s = HUGE_VAL;
        for (int v = in->slot[s].v_lo; v <= in->slot[s].v_hi; v++) {
            int class = in->slot[s].class_of[in->variant[v]];
            for (int m = 0; m < in->class[class].choices; m++) {
                least_s = mf_smaller(least_s, visit_s(c, v, class, m));
            }
        }
        sum_s += in->segment[in->slot[s].segment].repeats * least_s;
    }
    return sum_s;
}

/* --- ways to keep a main layer ---------------------------------------------------------------- */

enum { MAX_WAYS = MF_MODEL_MAX_CLASSES * MF_CATALOGUE_MAX, MAX_CHUNKS = 256, MAX_PRICES = 12 };

/* Ways of a virtual stage. */
typedef struct place {
    int ways;
    bool sure;     /* some main layer stands here, whatever the split */
    double held_B; /* between backward and weight gradient, the least that any way holds */
    mf_time_memory_point way[MAX_WAYS];
} place;

/* One stage of the layout that is bounded. */
typedef struct stage {
    const mf_partition *in;
    const mf_floors *floors;
    int p, chunks, layers, sure;
    double room_B, persistent_B; /* for what layers keep, and each layer's own */
    place *place;                /* [chunks] */
    mf_time_memory_point *any;   /* [any_ways] of all chunks */
    int any_ways;
    double *curve_s; /* [layers + 1] */
} stage;

/* Positions that virtual stage v can hold are v and on, as many as leave one for each other: is
 * there none among them but main layers? */
static bool is_sure(const mf_partition *in, int v) {
    for (int i = v; i <= in->positions - in->vstages + v; i++) {
        if (!in->slot[in->slot_at[i]].main) {
            return false;
        }
    }
    return true;
}

static void find_ways(const mf_partition *in, const counted *c, int v, place *x) {
    bool seen[MF_FLOORS_MAX_CLASSES] = {false};
    x->ways = 0;
    x->held_B = HUGE_VAL;
    for (int s = 0; s < in->slots; s++) {
        int class = in->slot[s].class_of[in->variant[v]];
        if (!in->slot[s].main || v < in->slot[s].v_lo || v > in->slot[s].v_hi || seen[class]) {
            continue;
        }
        seen[class] = true;
        for (int m = 0; m < in->class[class].choices; m++) {
            const mf_block_cost *q = &in->class[class].choice[m].cost;
            x->way[x->ways++] = (mf_time_memory_point){q->saved_B, visit_s(c, v, class, m)};
            x->held_B = mf_smaller(x->held_B, q->held_B);
        }
    }
    x->ways = mf_lower_hull_make(x->way, x->ways);
    x->sure = x->ways > 0 && is_sure(in, v);
}

static void stage_ways(stage *x, const counted *c) {
    x->any_ways = x->sure = 0;
    for (int k = 0; k < x->chunks; k++) {
        place *at = &x->place[k];
        find_ways(x->in, c, (int)mf_layout_vstage(&x->in->layout, x->p, k), at);
        memcpy(x->any + x->any_ways, at->way, (size_t)at->ways * sizeof *at->way);
        x->any_ways += at->ways;
        x->sure += at->sure;
    }
    x->any_ways = mf_lower_hull_make(x->any, x->any_ways);
}

/* --- what the layers of a stage add together, by their number --------------------------------- */

/* With the least in flight that any distribution over the chunks has. */
static void curve_of_least_flight(stage *x) {
    const mf_partition *in = x->in;
    int most = 0;
    x->curve_s[0] = 0.0;
    x->persistent_B = x->floors->main.persistent_B;
    x->room_B = mf_main_room_B(x->floors, 0);
    for (int k = 1; k <= x->layers; k++) {
        double flight = (double)in->order.flight[x->p * (in->order.layers + 1) + k];
        double room_B = mf_main_room_B(x->floors, k);
        double saved_B = flight > 0.0 ? room_B / (flight * k) : HUGE_VAL;
        bool fits = room_B >= 0.0 && most == k - 1;
        x->curve_s[k] = fits ? k * mf_lower_hull_time_s(x->any, x->any_ways, saved_B) : HUGE_VAL;
        most = isinf(x->curve_s[k]) ? most : k;
    }
    mf_make_convex(x->curve_s, most);
}

/* Raises the curve to the line of a price (seconds by byte) at one moment of the schedule. */
static void raise_curve(stage *x, int row, double price) {
    double at_s[MAX_CHUNKS], least_s = HUGE_VAL, beyond_s = 0.0;
    for (int k = 0; k < x->chunks; k++) {
        const place *at = &x->place[k];
        double flight = price * mf_partition_in_flight(x->in, x->p, row, k);
        at_s[k] = HUGE_VAL;
        for (int i = 0; i < at->ways; i++) {
            at_s[k] = mf_smaller(at_s[k], at->way[i].time_s + flight * at->way[i].saved_B);
        }
        if (at->ways > 0) {
            at_s[k] += price * mf_partition_held(x->in, x->p, row, k) * at->held_B;
        }
        least_s = mf_smaller(least_s, at_s[k]);
    }
    for (int k = 0; k < x->chunks; k++) {
        beyond_s += x->place[k].sure ? at_s[k] - least_s : 0.0;
    }
    double each_s = least_s + price * x->persistent_B, free_s = beyond_s - price * x->room_B;
    for (int k = x->sure; k <= x->layers && isfinite(least_s); k++) {
        x->curve_s[k] = mf_larger(x->curve_s[k], k * each_s + free_s);
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

/* Prices at which a layer changes its way, evenly thinned out, and none. */
static int find_prices(const stage *x, int row, double *room, double price[MAX_PRICES]) {
    int n = 0, count = 0;
    for (int k = 0; k < x->chunks; k++) {
        double flight = mf_partition_in_flight(x->in, x->p, row, k);
        const mf_time_memory_point *w = x->place[k].way;
        for (int i = 0; flight > 0.0 && i + 1 < x->place[k].ways; i++) {
            room[n++] =
                (w[i + 1].time_s - w[i].time_s) / (flight * (w[i].saved_B - w[i + 1].saved_B));
        }
    }
    sort_prices(room, n);
    price[count++] = 0.0;
    int take = n < MAX_PRICES - 1 ? n : MAX_PRICES - 1;
    for (int i = 0; i < take; i++) {
        price[count++] = room[(size_t)i * (size_t)n / (size_t)take];
    }
    return count;
}

static void stage_curve(stage *x, double *room) {
    double price[MAX_PRICES];
    curve_of_least_flight(x);
    for (int row = 0; row < x->in->order.rows[x->p]; row++) {
        int prices = find_prices(x, row, room, price);
        *x->in->effort_ns += MF_PRICE_NS * (int64_t)prices * (x->chunks + x->layers / 8);
        for (int i = 0; i < prices; i++) {
            raise_curve(x, row, price[i]);
        }
    }
}

/* What comes once, whatever layers stand where. */
static double fixed_s(const mf_partition *in, const mf_chains *c) {
    mf_order_chain mean = {
        .sends = c->sends, .holds = c->holds, .beside = c->beside, .starts = c->starts};
    memcpy(mean.share, c->share, sizeof mean.share);
    memcpy(mean.loss, c->loss, sizeof mean.loss);
    return mf_partition_chain_fixed_s(in, &mean);
}

mf_status mf_partition_mean_s(const mf_partition *in, const mf_chains *c, double *bound_s,
                              mf_err *e) {
    int layers = mf_family_bound_layers(in->model);
    size_t chunks = (size_t)in->chunks, curve = (size_t)layers + 1;
    mf_floors fl;
    *bound_s = 0.0;
    if (in->classes > MF_FLOORS_MAX_CLASSES || in->chunks > MAX_CHUNKS || in->lost > c->lost) {
        return MF_OK;
    }
    mf_status status = MF_OK;
    mf_floors_make(in, &fl);
    stage x = {.in = in, .floors = &fl, .chunks = in->chunks, .layers = layers};
    counted visits;
    bool good = count_parts(in, c, &visits);
    x.place = malloc(chunks * sizeof *x.place);
    x.any = malloc(chunks * MAX_WAYS * sizeof *x.any);
    double *room = malloc(chunks * MAX_WAYS * sizeof *room);
    double *curve_s = calloc((size_t)in->stages * curve, sizeof *curve_s);
    int *held = calloc((size_t)in->stages, sizeof *held);
    if (good && x.place && x.any && room && curve_s && held) {
        double sum_s = others_s(in, &visits) + fixed_s(in, c);
        for (x.p = 0; x.p < in->stages; x.p++) {
            x.curve_s = curve_s + (size_t)x.p * curve;
            stage_ways(&x, &visits);
            stage_curve(&x, room);
            held[x.p] = x.sure < layers ? x.sure : layers;
        }
        sum_s += mf_place_layers(curve_s, in->stages, layers, held);
        *bound_s = sum_s * MF_BOUND_SAFETY;
    } else {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
    }
    free(visits.part_s);
    free(x.place);
    free(x.any);
    free(room);
    free(curve_s);
    free(held);
    return status;
}
