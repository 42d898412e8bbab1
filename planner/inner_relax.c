/* inner_relax.c - the lean program's relaxation, and bounds by means of chains.
 *
 * The relaxation is solved once for an order; its multipliers say at which weights the chains bound
 * together. A mean of chains visits every virtual stage about equally often, so that it hardly
 * matters where layers stand: what is left to decide is how many main layers each stage takes, and
 * there a stage's want of memory grows ever faster (mf_inner_extras). Layer by layer to where it
 * adds least is therefore optimal.
 */
#include "planner/floor.h"
#include "planner/inner_floors.h"
#include "planner/inner_rows.h"
#include "planner/rough.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAZY = 60 };

void mf_rows_weigh(const mf_rows *b, const double *dual, mf_chains *chains) {
    int stage_of[MF_MAX_VSTAGES];
    const mf_inner *in = b->in;
    for (int i = 0; i < chains->count; i++) {
        double w = -dual[i];
        chains->weight[i] = w > 0.0 ? w : 0.0;
    }
    for (int v = 0; v < in->vstages; v++) {
        stage_of[v] = (int)mf_layout_stage_of(&in->layout, v);
    }
    mf_chains_weigh(chains, stage_of);
}

/* The split of the positions nearest to the program's point. */
static void read_split(const mf_rows *b, int *first) {
    const mf_inner *in = b->in;
    double until = 0.0;
    first[0] = 0;
    for (int v = 0; v < in->vstages; v++) {
        for (size_t i = mf_inner_cell(in, v, 0, 0); i < mf_inner_cell(in, v + 1, 0, 0); i++) {
            until += b->col[i] >= 0 ? b->count[i] : 0.0;
        }
        int at = (int)lround(until), most = in->positions - (in->vstages - 1 - v);
        at = at > first[v] ? at : first[v] + 1; /* none is empty */
        first[v + 1] = at < most ? at : most;
    }
    first[in->vstages] = in->positions;
}

mf_status mf_inner_relax(mf_inner *in, const mf_chains *known, double enough_s, mf_milp_fault fault,
                         mf_chains *chains, int *first, mf_milp_outcome *outcome, double *bound_s,
                         mf_err *e) {
    mf_rows b;
    mf_milp_result r = {.outcome = MF_MILP_FAILED};
    double *dual = NULL;
    const mf_inner_options o = {.lean = true, .cutoff_s = HUGE_VAL};
    mf_chains_init(chains, in->stages, in->chunks);
    *bound_s = 0.0;
    *outcome = MF_MILP_FAILED;
    mf_status status = mf_rows_make(&b, in, NULL, &o, known, chains, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_milp_options mo = {.cutoff = HUGE_VAL,
                                .target = enough_s / b.unit_s / MF_BOUND_SAFETY,
                                .lazy = mf_rows_lazy_chain,
                                .lazy_user = &b,
                                .fault = fault};
    dual = calloc((size_t)b.milp.rows + MAX_LAZY, sizeof *dual);
    status = dual ? mf_milp_relax(&b.milp, &mo, MAX_LAZY, dual, &r, e)
                  : mf_err_set(e, MF_NOMEM, "out of memory");
    status = status == MF_OK ? b.status : status;
    if (status == MF_OK) {
        *outcome = r.outcome;
        *bound_s = r.outcome == MF_MILP_OPTIMAL      ? r.bound * b.unit_s * MF_BOUND_SAFETY
                   : r.outcome == MF_MILP_INFEASIBLE ? HUGE_VAL
                                                     : 0.0;
        if (r.outcome == MF_MILP_OPTIMAL) {
            mf_rows_weigh(&b, dual + b.first_chain_row, chains);
            if (first) {
                read_split(&b, first);
            }
        }
    }
    free(dual);
    mf_rows_clear(&b);
    return status;
}

/* --- bounds by a mean ------------------------------------------------------------------------- */

/* Seconds that a layer of a class with choice m adds to the mean on virtual stage v. */
static double visit_s(const mf_inner *in, const mf_chains *c, int v, const mf_inner_class *class,
                      int m) {
    double sum_s = 0.0;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        double n = c->part[p][v];
        bool counts = n > 0.0 || n < 0.0;
        sum_s += counts ? n * mf_inner_part_s(in, class, m, (mf_order_part)p, false) : 0.0;
    }
    return sum_s;
}

/* What positions other than main layers add at least, each where it counts least. */
static double others_s(const mf_inner *in, const mf_chains *c, int *others) {
    double sum_s = 0.0;
    *others = 0;
    for (int s = 0; s < in->slots; s++) {
        if (mf_inner_is_main(in, s)) {
            continue;
        }
        int n = in->segment[in->slot[s].segment].repeats;
        double least_s = HUGE_VAL;
        for (int v = in->slot[s].v_lo; v <= in->slot[s].v_hi; v++) {
            const mf_inner_class *class = mf_inner_class_at(in, v, s);
            for (int m = 0; m < class->choices; m++) {
                least_s = mf_smaller(least_s, visit_s(in, c, v, class, m));
            }
        }
        sum_s += n * least_s;
        *others += n;
    }
    return sum_s;
}

/* A way to keep a main layer on a stage: what it saves, and what it adds to the mean on that one of
 * the stage's virtual stages where it adds least. */
typedef struct way {
    double saved_B, time_s;
} way;

enum { MAX_WAYS = 4 * MF_INNER_MAX_CHOICES };

static int by_time(const void *x, const void *y) {
    const way *a = x, *b = y;
    if (a->time_s < b->time_s || a->time_s > b->time_s) {
        return a->time_s < b->time_s ? -1 : 1;
    }
    return (a->saved_B > b->saved_B) - (a->saved_B < b->saved_B);
}

/* Leaves the lower hull of the ways, fastest first; returns their number. */
static int hull_of(way *w, int n) {
    int kept = 0;
    qsort(w, (size_t)n, sizeof *w, by_time);
    for (int i = 0; i < n; i++) {
        if (kept > 0 && w[i].saved_B >= w[kept - 1].saved_B) {
            continue;
        }
        while (kept >= 2) { /* is the last one above the line from the one before to this? */
            const way *a = &w[kept - 2], *b = &w[kept - 1];
            double share = (a->saved_B - b->saved_B) / (a->saved_B - w[i].saved_B);
            if (b->time_s < a->time_s + share * (w[i].time_s - a->time_s)) {
                break;
            }
            kept--;
        }
        w[kept++] = w[i];
    }
    return kept;
}

/* Least time of a layer that may keep so much; INFINITY when no way keeps so little. */
static double hull_at(const way *w, int n, double saved_B) {
    if (n == 0 || saved_B >= w[0].saved_B) {
        return n > 0 ? w[0].time_s : HUGE_VAL;
    }
    for (int i = 1; i < n; i++) {
        if (saved_B >= w[i].saved_B) {
            double share = (saved_B - w[i].saved_B) / (w[i - 1].saved_B - w[i].saved_B);
            return w[i].time_s + share * (w[i - 1].time_s - w[i].time_s);
        }
    }
    return HUGE_VAL;
}

/* Ways of a main layer on stage p, and for each of its virtual stages what any layer there adds
 * beyond them at least (into beyond_s[v]). */
static int ways_of(const mf_inner *in, const mf_chains *c, int p, way *w, double *beyond_s) {
    int n = 0;
    for (int x = 0; x < in->chunks; x++) {
        beyond_s[mf_layout_vstage(&in->layout, p, x)] = HUGE_VAL;
    }
    for (int s = 0; s < in->slots; s++) {
        const mf_inner_class *class = NULL;
        for (int x = 0; x < in->chunks && mf_inner_is_main(in, s); x++) {
            int v = (int)mf_layout_vstage(&in->layout, p, x);
            if (v >= in->slot[s].v_lo && v <= in->slot[s].v_hi) {
                class = mf_inner_class_at(in, v, s); /* the same on all of a stage */
            }
        }
        for (int m = 0; class && m < class->choices && n < MAX_WAYS; m++) {
            double at_s[256], least_s = HUGE_VAL;
            for (int x = 0; x < in->chunks && x < 256; x++) {
                int v = (int)mf_layout_vstage(&in->layout, p, x);
                bool stands = v >= in->slot[s].v_lo && v <= in->slot[s].v_hi;
                at_s[x] = stands ? visit_s(in, c, v, class, m) : HUGE_VAL;
                least_s = mf_smaller(least_s, at_s[x]);
            }
            for (int x = 0; x < in->chunks && x < 256; x++) {
                double *beyond = &beyond_s[mf_layout_vstage(&in->layout, p, x)];
                *beyond = mf_smaller(*beyond, at_s[x] - least_s);
            }
            w[n++] = (way){class->choice[m].quote.saved_B, least_s};
        }
    }
    return hull_of(w, n);
}

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* No virtual stage is empty: all but `others` of them hold a main layer, and add what is beyond. */
static double least_beyond_s(double *beyond_s, int vstages, int others) {
    double sum_s = 0.0;
    for (int v = 0; v < vstages; v++) {
        beyond_s[v] = isinf(beyond_s[v]) ? 0.0 : beyond_s[v];
    }
    qsort(beyond_s, (size_t)vstages, sizeof *beyond_s, descending);
    for (int v = others; v < vstages; v++) {
        sum_s += beyond_s[v];
    }
    return sum_s;
}

/* What k main layers on stage p add together, by their number: curve[layers + 1], convex. */
static void stage_curve(const mf_floors *fl, int p, const way *w, int ways, int layers,
                        double *curve_s) {
    const mf_inner *in = fl->in;
    mf_load x;
    memset(&x, 0, sizeof x);
    curve_s[0] = 0.0;
    int most = 0;
    for (int k = 1; k <= layers; k++) {
        mf_load_add(fl, &x, fl->main_class);
        double flight = (double)in->order.flight[p * (in->order.layers + 1) + k];
        double room_B = mf_load_room_B(fl, &x, 1.0);
        double saved_B = flight > 0.0 ? room_B / (flight * k) : HUGE_VAL;
        curve_s[k] = room_B < 0.0 || most < k - 1 ? HUGE_VAL : k * hull_at(w, ways, saved_B);
        most = isinf(curve_s[k]) ? most : k;
    }
    mf_make_convex(curve_s, most);
}

/* Layer by layer to the stage that bears it best: the curves are convex. */
static double place_layers(const double *curve_s, int stages, int layers, int *held) {
    double sum_s = 0.0;
    for (int n = 0; n < layers; n++) {
        double best_s = HUGE_VAL;
        int best = 0;
        for (int p = 0; p < stages; p++) {
            const double *at = curve_s + (size_t)p * (size_t)(layers + 1) + held[p];
            if (isfinite(at[1]) && at[1] - at[0] < best_s) {
                best_s = at[1] - at[0];
                best = p;
            }
        }
        held[best] += isfinite(best_s);
        sum_s += best_s; /* infinite: no stage has room for one more */
    }
    return sum_s;
}

mf_status mf_inner_mean_s(const mf_inner *in, const mf_chains *c, double *bound_s, mf_err *e) {
    int layers = mf_rough_layers(in->model), others;
    mf_floors fl;
    way w[MAX_WAYS];
    *bound_s = 0.0;
    if (in->classes >= MF_FLOORS_MAX_CLASSES || in->chunks > 256) {
        return MF_OK;
    }
    mf_status status = mf_floors_make(in, &fl, e);
    if (status != MF_OK) {
        return status;
    }
    double *curve_s = calloc((size_t)in->stages * (size_t)(layers + 1), sizeof *curve_s);
    double *beyond_s = calloc((size_t)in->vstages, sizeof *beyond_s);
    int *held = calloc((size_t)in->stages, sizeof *held);
    if (curve_s && beyond_s && held) {
        mf_order_chain mean = {.sends = c->sends,
                               .holds = c->holds,
                               .beside = c->beside,
                               .starts = c->starts,
                               .share = c->share};
        memcpy(mean.loss, c->loss, sizeof mean.loss);
        double sum_s = others_s(in, c, &others) + mf_inner_chain_fixed_s(in, &mean);
        for (int p = 0; p < in->stages; p++) {
            int ways = ways_of(in, c, p, w, beyond_s);
            stage_curve(&fl, p, w, ways, layers, curve_s + (size_t)p * (size_t)(layers + 1));
        }
        sum_s += place_layers(curve_s, in->stages, layers, held);
        sum_s += least_beyond_s(beyond_s, in->vstages, others);
        *bound_s = sum_s * MF_BOUND_SAFETY;
    } else {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
    }
    free(curve_s);
    free(beyond_s);
    free(held);
    mf_floors_clear(&fl);
    return status;
}
