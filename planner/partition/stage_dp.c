/* stage_dp.c - the least step over all assignments of a layout, without playing its schedule.
 *
 * What a stage allows follows from sums over its positions (stage_bound.h), with memory choices
 * mixed in any proportion (class_bounds.h); ways in and out are counted at the least that the
 * positions before can take.
 *
 * VPP 1: stages hold runs of positions, so the least T is a path through (stage, position) whose
 * worst stage is best: one pass of dynamic programming. VPP > 1: chunks share a stage; there only
 * the number of main layers is counted: the n-th smallest of all c_p(k), the least step that stage
 * p allows when it holds k of them and the single positions that it must.
 */
#include "planner/partition/class_bounds.h"
#include "planner/tuning/limits.h"

#include "planner/bound/family_bound.h"
#include "planner/bound/lower_hull.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- stages with one chunk -------------------------------------------------------------------- */

/* The table of the minimax path. */
typedef struct paths {
    const mf_floors *fl;
    bool split_only; /* virtual stages as if each had a stage's share: a split, not a bound */
    double cutoff_s;
    double *best_s; /* [vstages + 1][positions + 1] least worst stage up to there */
    double *even;   /* the same: of those, least sum of squares */
    int *from;      /* where the last virtual stage of the best path starts */
} paths;

/* Least step when virtual stage v holds positions [from, to). */
static double run_cost_s(const paths *t, const mf_load *x, int v, int from, int to) {
    const mf_floors *fl = t->fl;
    const mf_partition *in = fl->in;
    int p = (int)mf_layout_stage_of(&in->layout, v);
    double flight = mf_order_most_in_flight(&in->order, p, mf_layout_chunk_of(&in->layout, v));
    double time_s[MF_WAYS_PLAYED];
    for (int way = 0; way < MF_WAYS_PLAYED; way++) {
        time_s[way] = mf_load_time_s(fl, x, way, flight, 1.0 / in->chunks);
    }
    if (t->split_only) {
        return (double)in->layout.micro_batches * in->chunks * time_s[MF_WAY_MODE];
    }
    double sends_s = p * in->send_s;
    double behind_s = fl->f_until[in->positions] - fl->f_until[to] + fl->b_until[in->positions] -
                      fl->b_until[to] + 2.0 * (in->stages - 1 - p) * in->send_s;
    return mf_load_step_s(fl, x, time_s, p, fl->f_until[from] + sends_s,
                          fl->b_until[from] + sends_s, behind_s, 0);
}

/* Too long, or too large even without a workspace: so is every longer run. */
static bool is_hopeless(const paths *t, const mf_load *x, int v) {
    const mf_partition *in = t->fl->in;
    double flight = mf_order_most_in_flight(&in->order, mf_layout_stage_of(&in->layout, v),
                                            mf_layout_chunk_of(&in->layout, v));
    mf_load bare = *x;
    bare.workspace_B = 0.0;
    return (double)in->layout.micro_batches * x->time_s[MF_WAY_MODE] > t->cutoff_s ||
           isinf(mf_load_time_s(t->fl, &bare, MF_WAY_MODE, flight, 1.0 / in->chunks));
}

static size_t node(const mf_partition *in, int v, int position) {
    return (size_t)v * (size_t)(in->positions + 1) + (size_t)position;
}

/* All runs that virtual stage v can hold when it starts at `from`. worst_s >= 0: only those no
 * worse, for the evenest path; else for the least worst. */
static void extend(paths *t, int v, int from, double worst_s) {
    const mf_floors *fl = t->fl;
    const mf_partition *in = fl->in;
    int variant = mf_partition_variant(&in->layout, v);
    bool second = worst_s >= 0.0, last = v == in->vstages - 1;
    double before_s = t->best_s[node(in, v, from)];
    mf_load x;
    memset(&x, 0, sizeof x);
    for (int to = from + 1; to <= in->positions - (in->vstages - 1 - v); to++) {
        mf_load_add(fl, &x, in->slot[in->slot_at[to - 1]].class_of[variant]);
        if (last && to < in->positions) {
            continue;
        }
        double cost_s = run_cost_s(t, &x, v, from, to);
        *in->effort_ns += MF_RUN_NS;
        if (cost_s > (second ? worst_s : t->cutoff_s) || isinf(cost_s)) {
            if (is_hopeless(t, &x, v)) {
                return;
            }
            continue;
        }
        size_t at = node(in, v + 1, to);
        double path_s = mf_larger(before_s, cost_s);
        if (!second && path_s < t->best_s[at]) {
            t->best_s[at] = path_s;
            t->from[at] = from;
        }
        double time_s = x.time_s[MF_WAY_MODE];
        double even = t->even[node(in, v, from)] + time_s * time_s;
        if (second && even < t->even[at]) {
            t->even[at] = even;
            t->from[at] = from;
        }
    }
}

/* First the least worst stage; then, where a split is asked for, the evenest of those that keep to
 * it. */
static void find_paths(paths *t, bool split) {
    const mf_partition *in = t->fl->in;
    size_t nodes = node(in, in->vstages, in->positions) + 1;
    for (size_t i = 0; i < nodes; i++) {
        t->best_s[i] = t->even[i] = MF_NEVER_S;
        t->from[i] = -1;
    }
    t->best_s[0] = 0.0;
    for (int v = 0; v < in->vstages; v++) {
        for (int from = v; from < in->positions; from++) {
            if (t->best_s[node(in, v, from)] < MF_NEVER_S) {
                extend(t, v, from, -1.0);
            }
        }
    }
    double worst_s = t->best_s[nodes - 1] * (1.0 + 1e-3);
    t->even[0] = 0.0;
    for (int v = 0; v < in->vstages && worst_s < MF_NEVER_S && split; v++) {
        for (int from = v; from < in->positions; from++) {
            if (t->even[node(in, v, from)] < MF_NEVER_S) {
                extend(t, v, from, worst_s);
            }
        }
    }
}

/* The split that the best path stands for, if there is one. */
static void follow_path(const paths *t, bool have, int *first) {
    const mf_partition *in = t->fl->in;
    int at = in->positions;
    for (int v = in->vstages; have && v > 0; v--) {
        first[v] = at;
        at = t->from[node(in, v, at)];
    }
    first[0] = 0;
}

/* first, have: NULL, no split is asked for. */
static mf_status best_split(const mf_floors *fl, bool split_only, double cutoff_s, double *bound_s,
                            int *first, bool *have, mf_err *e) {
    const mf_partition *in = fl->in;
    size_t nodes = node(in, in->vstages, in->positions) + 1;
    paths t = {.fl = fl, .split_only = split_only, .cutoff_s = cutoff_s};
    t.best_s = calloc(nodes, sizeof *t.best_s);
    t.even = calloc(nodes, sizeof *t.even);
    t.from = calloc(nodes, sizeof *t.from);
    mf_status status = MF_OK;
    if (t.best_s && t.even && t.from) {
        find_paths(&t, first != NULL);
        *bound_s = t.best_s[nodes - 1];
        if (first && have) {
            *have = *bound_s < MF_NEVER_S;
            follow_path(&t, *have, first);
        }
    } else {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
    }
    free(t.best_s);
    free(t.even);
    free(t.from);
    return status;
}

/* --- stages with several chunks --------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What a stage holds in any case: the ends, and the first MTP depth when it stands on mtp_v. */
static mf_load singles_of(const mf_floors *fl, int p, int mtp_v) {
    const mf_partition *in = fl->in;
    const int position[3] = {0, in->positions - 1, (int)in->model->layers + 1};
    const int vstage[3] = {0, in->vstages - 1, mtp_v};
    mf_load x;
    memset(&x, 0, sizeof x);
    for (int i = 0; i < 3; i++) {
        if (vstage[i] >= 0 && mf_layout_stage_of(&in->layout, vstage[i]) == p) {
            int variant = mf_partition_variant(&in->layout, vstage[i]);
            mf_load_add(fl, &x, in->slot[in->slot_at[position[i]]].class_of[variant]);
        }
    }
    return x;
}

/* Least steps of stage p by the main layers it holds, appended to cost_s up to the cutoff. */
static size_t stage_costs(const mf_floors *fl, int p, int mtp_v, double cutoff_s, double *cost_s) {
    const mf_partition *in = fl->in;
    int layers = mf_family_bound_layers(in->model);
    mf_load x = singles_of(fl, p, mtp_v);
    double single_B = x.workspace_B, in_s = 0.0, out_s = 0.0;
    bool single = x.time_s[MF_WAY_MODE] > 0.0 || single_B > 0.0;
    size_t n = 0;
    if (p > 0) { /* the stages before hold a position each in their first chunk, the first of all
                  * the embedding */
        in_s = fl->f_until[1] + (p - 1) * fl->f_least_s + p * in->send_s;
        out_s = fl->b_until[1] + (p - 1) * fl->b_least_s + p * in->send_s;
    }
    for (int k = 1; k <= layers; k++) {
        mf_load_add(fl, &x, fl->main_class);
        *in->effort_ns += MF_RUN_NS;
        x.workspace_B = single ? mf_smaller(x.workspace_B, single_B) : x.workspace_B;
        double flight = (double)in->order.flight[p * (in->order.layers + 1) + k];
        double time_s[MF_WAYS_PLAYED];
        for (int way = 0; way < MF_WAYS_PLAYED; way++) {
            time_s[way] = mf_load_time_s(fl, &x, way, flight, 1.0);
        }
        double step_s =
            mf_load_step_s(fl, &x, time_s, p, in_s, out_s, fl->f_until[in->positions], k);
        if (step_s > cutoff_s || isinf(step_s)) {
            break;
        }
        cost_s[n++] = step_s;
    }
    return n;
}

static mf_status share_bound(const mf_floors *fl, double cutoff_s, double *bound_s, mf_err *e) {
    const mf_partition *in = fl->in;
    int layers = mf_family_bound_layers(in->model);
    bool mtp = in->model->mtp_layers > 0;
    const mf_partition_slot *slot = &in->slot[in->slot_at[in->model->layers + 1]];
    double *cost_s = malloc((size_t)in->stages * (size_t)(layers + 1) * sizeof *cost_s);
    if (!cost_s) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    *bound_s = MF_NEVER_S;
    int lo = mtp ? slot->v_lo : -1, hi = mtp ? slot->v_hi : -1;
    if (hi - lo > 4) { /* it may stand almost anywhere: not worth telling apart */
        lo = hi = -1;
    }
    for (int v = lo; v <= hi; v++) {
        size_t n = 0;
        for (int p = 0; p < in->stages; p++) {
            n += stage_costs(fl, p, v, cutoff_s, cost_s + n);
        }
        qsort(cost_s, n, sizeof *cost_s, by_value);
        double least_s = n < (size_t)layers ? MF_NEVER_S : layers > 0 ? cost_s[layers - 1] : 0.0;
        *bound_s = mf_smaller(*bound_s, least_s);
    }
    free(cost_s);
    return MF_OK;
}

/* --- a split for several chunks --------------------------------------------------------------- */

/* Seconds of each stage by micro-batch, fastest choices and what memory costs main layers. */
static void stage_times(const mf_floors *fl, const int *first, const double *extra_s,
                        double *stage_s) {
    const mf_partition *in = fl->in;
    int layers = mf_family_bound_layers(in->model);
    for (int p = 0; p < in->stages; p++) {
        int held = 0;
        stage_s[p] = 0.0;
        for (int c = 0; c < in->chunks; c++) {
            int v = (int)mf_layout_vstage(&in->layout, p, c);
            int variant = mf_partition_variant(&in->layout, v);
            for (int i = first[v]; i < first[v + 1]; i++) {
                int class = in->slot[in->slot_at[i]].class_of[variant];
                stage_s[p] += fl->of[class].time_s[MF_WAY_MODE];
                held += class == fl->main_class;
            }
        }
        stage_s[p] += extra_s[p * (layers + 1) + held];
    }
}

static double worst_of(const double *x, int n, int *at) {
    *at = 0;
    for (int i = 1; i < n; i++) {
        *at = x[i] > x[*at] ? i : *at;
    }
    return x[*at];
}

/* Takes positions from the worst stage while that makes the worst better: from its longest chunk to
 * the shortest chunk of some other stage. */
static void even_out(const mf_floors *fl, const double *extra_s, int *first, double *stage_s) {
    const mf_partition *in = fl->in;
    for (int round = 0; round < 4 * in->stages; round++) {
        int worst, long_v = -1, best_v = -1, now;
        stage_times(fl, first, extra_s, stage_s);
        double best_s = worst_of(stage_s, in->stages, &worst);
        for (int c = 0; c < in->chunks; c++) {
            int v = (int)mf_layout_vstage(&in->layout, worst, c);
            bool longer = long_v < 0 || first[v + 1] - first[v] > first[long_v + 1] - first[long_v];
            long_v = longer ? v : long_v;
        }
        if (first[long_v + 1] - first[long_v] <= 1) {
            return;
        }
        for (int p = 0; p < in->stages; p++) {
            int short_v = -1;
            for (int c = 0; c < in->chunks && p != worst; c++) {
                int v = (int)mf_layout_vstage(&in->layout, p, c);
                bool shorter =
                    short_v < 0 || first[v + 1] - first[v] < first[short_v + 1] - first[short_v];
                short_v = shorter ? v : short_v;
            }
            if (short_v >= 0) {
                mf_partition_shift(first, long_v, short_v);
                stage_times(fl, first, extra_s, stage_s);
                double then_s = worst_of(stage_s, in->stages, &now);
                mf_partition_shift(first, short_v, long_v);
                if (then_s < best_s * (1.0 - 1e-9)) {
                    best_s = then_s;
                    best_v = short_v;
                }
            }
        }
        if (best_v < 0) {
            return;
        }
        mf_partition_shift(first, long_v, best_v);
    }
}

static mf_status chunk_split(const mf_floors *fl, int *first, bool *have, mf_err *e) {
    const mf_partition *in = fl->in;
    size_t points = (size_t)mf_family_bound_layers(in->model) + 1, stages = (size_t)in->stages;
    double unused_s, *extra_s = malloc((points + 1) * stages * sizeof *extra_s);
    assert(first && have);
    if (!extra_s) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status status = best_split(fl, true, MF_NEVER_S, &unused_s, first, have, e);
    if (status == MF_OK &&
        !*have) { /* shares of memory are too strict a split: as even as it gets */
        assert(in->vstages > 0);
        for (int v = 0; v <= in->vstages; v++) {
            first[v] = (int)((int64_t)in->positions * v / in->vstages);
        }
        *have = true;
    }
    if (status == MF_OK) {
        status = mf_partition_extras(in, extra_s, e);
    }
    if (status == MF_OK) {
        even_out(fl, extra_s, first, extra_s + points * stages);
    }
    free(extra_s);
    return status;
}

/* --- the whole -------------------------------------------------------------------------------- */

mf_status mf_partition_bound(const mf_partition *in, double cutoff_s, double *bound_s, int *first,
                             bool *have, mf_err *e) {
    mf_floors fl;
    *bound_s = 0.0;
    if (have) {
        *have = false;
    }
    if (in->classes >= MF_FLOORS_MAX_CLASSES) {
        return MF_OK; /* no model has so many; nothing is claimed then */
    }
    mf_status status = mf_floors_make(in, &fl, e);
    if (status != MF_OK) {
        return status;
    }
    if (in->chunks == 1) {
        status = best_split(&fl, false, cutoff_s, bound_s, first, have, e);
    } else {
        status = share_bound(&fl, cutoff_s, bound_s, e);
        if (status == MF_OK && *bound_s < cutoff_s && first) {
            status = chunk_split(&fl, first, have, e);
        }
    }
    if (*bound_s < cutoff_s) { /* sums here and times played differ in their last digits */
        *bound_s *= 1.0 - 1e-8;
    }
    mf_floors_clear(&fl);
    return status;
}

/* One stage's curve. */
static void extra_of(const mf_floors *fl, int stage, int layers, double *extra_s) {
    const mf_partition *in = fl->in;
    int most = 0;
    mf_load x;
    memset(&x, 0, sizeof x);
    for (int k = 1; k <= layers; k++) {
        mf_load_add(fl, &x, fl->main_class);
        double flight = (double)in->order.flight[stage * (in->order.layers + 1) + k];
        double time_s =
            isinf(extra_s[k - 1]) ? MF_NEVER_S : mf_load_time_s(fl, &x, MF_WAY_MORE, flight, 1.0);
        extra_s[k] = time_s - x.time_s[MF_WAY_MORE];
    }
    while (most < layers && !isinf(extra_s[most + 1])) {
        most++;
    }
    mf_make_convex(extra_s, most);
}

mf_status mf_partition_extras(const mf_partition *in, double *extra_s, mf_err *e) {
    mf_floors fl;
    int layers = mf_family_bound_layers(in->model);
    size_t points = (size_t)layers + 1;
    memset(extra_s, 0, (size_t)in->stages * points * sizeof *extra_s);
    if (in->classes >= MF_FLOORS_MAX_CLASSES) {
        return MF_OK;
    }
    mf_status status = mf_floors_make(in, &fl, e);
    if (status != MF_OK) {
        return status;
    }
    for (int p = 0; p < in->stages; p++) {
        extra_of(&fl, p, layers, extra_s + (size_t)p * points);
    }
    mf_floors_clear(&fl);
    return MF_OK;
}
