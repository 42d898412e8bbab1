/* whole_choices.c - what one split takes at least with whole memory choices.
 *
 * The linear program of a split mixes choices, so that every stage is exactly full. Its multipliers
 * weigh paths, and under a weighted mean of paths stages no longer depend on each other: each takes
 * the choices that cost least there and fit, in whole layers. That bound is never below the
 * program's: the same weights, and fewer choices for each stage.
 *
 * Layers of a virtual stage count alike in memory, by what they keep, so of all ways to choose for
 * them only those matter that no other one beats in cost and bytes.
 */
#include "planner/partition/rows.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A way to choose for the layers of a virtual stage: their cost under the mean of paths, in
 * seconds, and their bytes, in flight and held. */
typedef struct option {
    double cost_s, saved_B, held_B;
} option;

typedef struct option_list {
    int count;
    option option[MF_WHOLE_OPTIONS]; /* by cost */
} option_list;

typedef struct whole {
    mf_partition *in;
    const mf_room *room;
    const int *first;
    double *weight; /* [parts][vstages] of the mean of paths */
    option *all;    /* [MF_CATALOGUE_MAX * MF_WHOLE_OPTIONS] */
    /* Of the stage that is worked on: */
    int stage;
    option_list *chunk; /* [chunks] */
    double *rest_s;     /* [chunks + 1] least cost of this chunk and those behind it, */
    double *rest_B;     /* [chunks + 1][rows] and their least bytes */
    double *used_B;     /* [chunks + 1][rows] bytes of the chunks before */
    double least_s;     /* found so far */
    int64_t looks;
} whole;

/* --- options of a virtual stage --------------------------------------------------------------- */

static int by_cost(const void *x, const void *y) {
    const option *a = x, *b = y;
    if (a->cost_s < b->cost_s || a->cost_s > b->cost_s) {
        return a->cost_s < b->cost_s ? -1 : 1;
    }
    if (a->saved_B < b->saved_B || a->saved_B > b->saved_B) {
        return a->saved_B < b->saved_B ? -1 : 1;
    }
    return a->held_B < b->held_B ? -1 : a->held_B > b->held_B;
}

/* Keeps those of n options that none beats. False: too many. */
static bool keep_best(option *all, size_t n, option_list *out) {
    qsort(all, n, sizeof *all, by_cost);
    out->count = 0;
    for (size_t i = 0; i < n; i++) {
        bool beaten = false;
        for (int k = 0; k < out->count && !beaten; k++) {
            beaten =
                out->option[k].saved_B <= all[i].saved_B && out->option[k].held_B <= all[i].held_B;
        }
        if (!beaten && out->count == MF_WHOLE_OPTIONS) {
            return false;
        }
        if (!beaten) {
            out->option[out->count++] = all[i];
        }
    }
    return true;
}

/* One more layer of the class stands on v. False: too many options. */
static bool add_layer(whole *x, const mf_partition_class *c, int v, option_list *list) {
    const mf_partition *in = x->in;
    size_t n = 0;
    for (int m = 0; m < c->choices; m++) {
        const mf_block_cost *q = &c->choice[m].cost;
        double cost_s = 0.0;
        for (int p = 0; p < MF_ORDER_PARTS; p++) {
            const double w = x->weight[p * in->vstages + v];
            if (w > 0.0 || w < 0.0) {
                cost_s += w * mf_partition_part_s(in, c, m, (mf_order_part)p, false);
            }
        }
        for (int k = 0; k < list->count; k++) {
            const option *o = &list->option[k];
            x->all[n++] =
                (option){o->cost_s + cost_s, o->saved_B + q->saved_B, o->held_B + q->held_B};
        }
    }
    *in->effort_ns += MF_WHOLE_LOOK_NS * (int64_t)n;
    return keep_best(x->all, n, list);
}

/* --- a stage ---------------------------------------------------------------------------------- */

static double row_B(const whole *x, const option *o, int row, int chunk) {
    const mf_order_summary *order = &x->in->order;
    return mf_order_in_flight(order, x->stage, row, chunk) * o->saved_B +
           mf_order_held(order, x->stage, row, chunk) * o->held_B;
}

/* Least cost of a chunk and those behind it, and their least bytes. */
static void find_rest(whole *x) {
    const int chunks = x->in->chunks, rows = x->in->order.rows[x->stage];
    x->rest_s[chunks] = 0.0;
    memset(x->rest_B + chunks * rows, 0, (size_t)rows * sizeof *x->rest_B);
    for (int c = chunks - 1; c >= 0; c--) {
        x->rest_s[c] = x->rest_s[c + 1] + x->chunk[c].option[0].cost_s;
        for (int k = 0; k < rows; k++) {
            double least_B = HUGE_VAL;
            for (int i = 0; i < x->chunk[c].count; i++) {
                least_B = fmin(least_B, row_B(x, &x->chunk[c].option[i], k, c));
            }
            x->rest_B[c * rows + k] = x->rest_B[(c + 1) * rows + k] + least_B;
        }
    }
}

/* Tries the options of a chunk behind others that cost cost_s. */
static void choose(whole *x, int c, double cost_s, double free_B) {
    const int rows = x->in->order.rows[x->stage];
    if (c == x->in->chunks) {
        x->least_s = cost_s;
        return;
    }
    for (int i = 0; i < x->chunk[c].count && x->looks < MF_WHOLE_LOOKS; i++) {
        const option *o = &x->chunk[c].option[i];
        if (cost_s + o->cost_s + x->rest_s[c + 1] >= x->least_s) {
            return;
        }
        x->looks++;
        bool fits = true;
        for (int k = 0; k < rows && fits; k++) {
            const double now_B = x->used_B[c * rows + k] + row_B(x, o, k, c);
            x->used_B[(c + 1) * rows + k] = now_B;
            fits = now_B + x->rest_B[(c + 1) * rows + k] <= free_B;
        }
        if (fits) {
            choose(x, c + 1, cost_s + o->cost_s, free_B);
        }
    }
}

/* Bytes that the choices of a stage may take. */
static double free_B(const whole *x) {
    const mf_partition *in = x->in;
    const mf_guest guest = mf_rows_guest(in, x->room, x->stage);
    double sum_B = in->usable_B - in->fixed_B - mf_rows_least_beside_B(in, x->room, x->stage);
    for (int c = 0; c < in->chunks; c++) {
        const int v = (int)mf_layout_vstage(&in->layout, x->stage, c);
        for (int i = x->first[v]; i < x->first[v + 1]; i++) {
            const int s = in->slot_at[i];
            sum_B -= mf_partition_class_at(in, v, s)->persistent_B +
                     (s == guest.slot ? guest.more_B : 0.0);
        }
    }
    return sum_B;
}

/* The least cost of the stage; INFINITY: nothing fits; -INFINITY: not known. */
static double stage_s(whole *x) {
    const mf_partition *in = x->in;
    for (int c = 0; c < in->chunks; c++) {
        const int v = (int)mf_layout_vstage(&in->layout, x->stage, c);
        x->chunk[c].count = 1;
        x->chunk[c].option[0] = (option){.cost_s = 0.0};
        for (int i = x->first[v]; i < x->first[v + 1]; i++) {
            if (!add_layer(x, mf_partition_class_at(in, v, in->slot_at[i]), v, &x->chunk[c])) {
                return -HUGE_VAL;
            }
        }
    }
    find_rest(x);
    memset(x->used_B, 0, (size_t)in->order.rows[x->stage] * sizeof *x->used_B);
    x->least_s = HUGE_VAL;
    x->looks = 0;
    choose(x, 0, 0.0, free_B(x) + MF_WHOLE_SLACK_B);
    *in->effort_ns += MF_WHOLE_LOOK_NS * x->looks;
    return x->looks < MF_WHOLE_LOOKS ? x->least_s : -HUGE_VAL;
}

/* --- a mean of paths -------------------------------------------------------------------------- */

/* Sums of the paths by their weights, into weight. Returns what no layer adds. */
static double weigh(whole *x, const mf_path_set *paths, const double *by) {
    const mf_partition *in = x->in;
    double fixed_s = 0.0;
    memset(x->weight, 0, MF_ORDER_PARTS * (size_t)in->vstages * sizeof *x->weight);
    for (int i = 0; i < paths->count; i++) {
        const mf_order_path *path = &paths->path[i];
        if (!(by[i] > 0.0)) {
            continue;
        }
        fixed_s += by[i] * mf_partition_path_fixed_s(in, path);
        for (int k = 0; k < MF_ORDER_PARTS * in->vstages; k++) {
            x->weight[k] += by[i] * path->count[0][k];
        }
    }
    *in->effort_ns += MF_WHOLE_LOOK_NS * (int64_t)paths->count * in->vstages;
    return fixed_s;
}

/* Last blocks that are dear take more there, and in a part perhaps less: what that takes away. */
static double less_at_ends_s(const whole *x) {
    const mf_partition *in = x->in;
    double sum_s = 0.0;
    for (int v = 0; v < in->vstages; v++) {
        const double *more = mf_partition_end_more_s(in, v);
        double end_s = 0.0;
        for (int p = 0; p < MF_ORDER_PARTS && more != NULL; p++) {
            end_s += x->weight[p * in->vstages + v] * more[p];
        }
        sum_s += fmin(end_s, 0.0);
    }
    return sum_s;
}

/* The least step under the mean; INFINITY: nothing fits; 0 or less: not known. */
static double least_s(whole *x, const mf_path_set *paths, const double *by) {
    const mf_partition *in = x->in;
    double sum_s = weigh(x, paths, by);
    sum_s += less_at_ends_s(x);
    for (x->stage = 0; x->stage < in->stages && isfinite(sum_s); x->stage++) {
        sum_s += stage_s(x);
    }
    return sum_s;
}

/* --- all -------------------------------------------------------------------------------------- */

static void clear(whole *x) {
    free(x->weight);
    free(x->all);
    free(x->chunk);
    free(x->rest_s);
}

static bool make(whole *x) {
    const mf_partition *in = x->in;
    size_t rows = 1, chunks = (size_t)in->chunks;
    for (int p = 0; p < in->stages; p++) {
        rows = (size_t)in->order.rows[p] > rows ? (size_t)in->order.rows[p] : rows;
    }
    x->weight = malloc(MF_ORDER_PARTS * (size_t)in->vstages * sizeof *x->weight);
    x->all = malloc((size_t)MF_CATALOGUE_MAX * MF_WHOLE_OPTIONS * sizeof *x->all);
    x->chunk = malloc(chunks * sizeof *x->chunk);
    x->rest_s = malloc((chunks + 1) * (1 + 2 * rows) * sizeof *x->rest_s);
    if (!x->weight || !x->all || !x->chunk || !x->rest_s) {
        return false;
    }
    x->rest_B = x->rest_s + chunks + 1;
    x->used_B = x->rest_B + (chunks + 1) * rows;
    return true;
}

mf_status mf_rows_whole_choices_s(mf_partition *in, const mf_room *room, const int *first,
                                  const mf_path_set *paths, const double *by, double *bound_s,
                                  mf_err *e) {
    whole x = {.in = in, .room = room, .first = first};
    const mf_status status = make(&x) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    *bound_s = status == MF_OK ? fmax(least_s(&x, paths, by), 0.0) * MF_BOUND_SAFETY : 0.0;
    clear(&x);
    return status;
}
