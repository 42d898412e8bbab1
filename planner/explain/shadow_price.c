/* shadow_price.c - the price of memory: multipliers of memory rows, layers held in place. */
#include "planner/explain/shadow_price.h"

#include "planner/partition/partition.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_PER_UNIT 1e9
#define UNITS_PER_STEP 100.0 /* times are scaled so that the step is about this */

typedef struct shadow {
    const mf_plan_prediction *predicted;
    mf_partition *in;
    double *count; /* [cells] the plan's layers; later those of a point */
    int *col;      /* [cells] or -1 */
    int *stage_of; /* [memory rows from first_row on] */
    mf_milp milp;  /* as it is solved: paths are added by the solver */
    mf_milp with;  /* the same with the paths that were added, for the multipliers */
    mf_order_path path;
    int first_row, rows, step;
    double unit_s;
    bool given_up; /* more paths than are worth a price */
    mf_status status;
    mf_err *e;
} shadow;

static void shadow_clear(shadow *x) {
    mf_milp_clear(&x->milp);
    mf_milp_clear(&x->with);
    mf_order_path_clear(&x->path);
    mf_partition_destroy(x->in);
    free(x->count);
    free(x->col);
    free(x->stage_of);
}

/* Where the layers of the plan stand; false when one has a choice that its class does not know. */
static bool count_layers(shadow *x, const mf_assignment *a) {
    const mf_partition *in = x->in;
    for (int v = 0; v < a->vstages; v++) {
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, in->slot_at[i]);
            bool keeps = c->key.kind == MF_POS_LAYER || c->key.kind == MF_POS_MTP;
            const int m = keeps ? mf_partition_choice_of(c, a->memory[i]) : 0;
            if (m < 0) {
                return false;
            }
            x->count[mf_partition_cell(in, v, in->slot_at[i], m)] += 1.0;
        }
    }
    return true;
}

/* --- columns and rows --------------------------------------------------------------------------
 */

static void add_placement(shadow *x) {
    const mf_partition *in = x->in;
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, s);
            double layers = 0.0;
            for (int m = 0; m < c->choices; m++) {
                layers += x->count[mf_partition_cell(in, v, s, m)];
            }
            int row = layers > 0.0 ? mf_milp_add_row(&x->milp, layers, layers) : -1;
            for (int m = 0; m < MF_CATALOGUE_MAX; m++) {
                size_t cell = mf_partition_cell(in, v, s, m);
                x->col[cell] = -1;
                if (row >= 0 && m < c->choices) {
                    x->col[cell] = mf_milp_add_col(&x->milp, 0, layers, 0, false);
                    mf_milp_add_entry(&x->milp, row, x->col[cell], 1.0);
                }
            }
        }
    }
}

/* What a stage's layers keep at one moment, in the program's terms, may grow by what the stage has
 * left in the memory plan's. */
static void add_memory_row(shadow *x, int stage, int k) {
    const mf_partition *in = x->in;
    int row = mf_milp_add_row(&x->milp, -INFINITY, 0);
    double now_B = 0.0;
    for (int chunk = 0; chunk < in->chunks; chunk++) {
        int v = (int)mf_layout_vstage(&in->layout, stage, chunk);
        double flight = mf_order_in_flight(&in->order, stage, k, chunk);
        double held = mf_order_held(&in->order, stage, k, chunk);
        for (int s = 0; s < in->slots; s++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, s);
            for (int m = 0; m < c->choices; m++) {
                size_t cell = mf_partition_cell(in, v, s, m);
                const mf_block_cost *q = &c->choice[m].cost;
                double bytes = flight * q->saved_B + held * q->held_B;
                now_B += x->count[cell] * bytes;
                if (x->col[cell] >= 0) {
                    mf_milp_add_entry(&x->milp, row, x->col[cell], bytes / BYTES_PER_UNIT);
                }
            }
        }
    }
    double left_B = x->predicted->usable_B - x->predicted->stage[stage].peak_B;
    if (!x->milp.failed) {
        x->milp.row[row].hi = (now_B + fmax(left_B, 0.0)) / BYTES_PER_UNIT;
    }
    x->stage_of[row - x->first_row] = stage;
}

static double path_s(const shadow *x, int v, int slot, int m) {
    const mf_partition_class *c = mf_partition_class_at(x->in, v, slot);
    double sum_s = 0.0;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        double n = x->path.count[p][v];
        bool counts = n > 0.0 || n < 0.0;
        sum_s += counts ? n * mf_partition_part_s(x->in, c, m, (mf_order_part)p, false) : 0.0;
    }
    return sum_s;
}

/* The longest path at a point becomes a row when it is longer than the point's step. */
static bool longer_path(void *user, const double *point, mf_milp_lazy_row *row) {
    shadow *x = user;
    const mf_partition *in = x->in;
    size_t cells = mf_partition_cells(in);
    x->given_up = x->with.entries - x->milp.entries > MF_SHADOW_ENTRIES;
    if (x->given_up) {
        return false;
    }
    for (size_t i = 0; i < cells; i++) {
        x->count[i] = x->col[i] >= 0 ? point[x->col[i]] : 0.0;
    }
    x->status = mf_partition_play(x->in, x->count, false, NULL, &x->path, x->e);
    if (x->status != MF_OK || x->path.time_s <= point[x->step] * x->unit_s * (1.0 + 1e-7)) {
        return false;
    }
    row->count = 0;
    row->lo = -INFINITY;
    row->hi = -mf_partition_path_fixed_s(in, &x->path) / x->unit_s;
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            for (int m = 0; m < mf_partition_class_at(in, v, s)->choices; m++) {
                int col = x->col[mf_partition_cell(in, v, s, m)];
                double each_s = col >= 0 ? path_s(x, v, s, m) : 0.0;
                if (each_s > 0.0 || each_s < 0.0) {
                    row->col[row->count] = col;
                    row->value[row->count++] = each_s / x->unit_s;
                }
            }
        }
    }
    row->col[row->count] = x->step;
    row->value[row->count++] = -1.0;
    int at = mf_milp_add_row(&x->with, row->lo, row->hi);
    for (int i = 0; i < row->count; i++) {
        mf_milp_add_entry(&x->with, at, row->col[i], row->value[i]);
    }
    return true;
}

/* Columns and rows so far, copied. */
static void copy_program(const mf_milp *from, mf_milp *to) {
    for (int i = 0; i < from->cols; i++) {
        const mf_milp_col *c = &from->col[i];
        mf_milp_add_col(to, c->lo, c->hi, c->cost, c->integer);
    }
    for (int i = 0; i < from->rows; i++) {
        mf_milp_add_row(to, from->row[i].lo, from->row[i].hi);
    }
    for (int i = 0; i < from->entries; i++) {
        const mf_milp_entry *n = &from->entry[i];
        mf_milp_add_entry(to, n->row, n->col, n->value);
    }
}

static mf_status build(shadow *x, mf_err *e) {
    const mf_partition *in = x->in;
    add_placement(x);
    x->first_row = x->milp.rows;
    for (int p = 0; p < in->stages; p++) {
        x->rows += in->order.rows[p];
    }
    x->stage_of = calloc((size_t)x->rows + 1, sizeof *x->stage_of);
    if (!x->stage_of || x->milp.failed) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int p = 0; p < in->stages; p++) {
        for (int k = 0; k < in->order.rows[p]; k++) {
            add_memory_row(x, p, k);
        }
    }
    x->step = mf_milp_add_col(&x->milp, 0, INFINITY, 1.0, false);
    copy_program(&x->milp, &x->with);
    return MF_OK;
}

/* --- the price ---------------------------------------------------------------------------------
 */

static mf_status price(shadow *x, mf_shadow *out, mf_err *e) {
    const mf_milp_options o = {.cutoff = INFINITY, .lazy = longer_path, .lazy_user = x};
    mf_milp_result r = {.outcome = MF_MILP_FAILED};
    double *dual = NULL, *point = calloc((size_t)x->milp.cols, sizeof *point);
    mf_status status = mf_err_set(e, MF_NOMEM, "out of memory");
    if (!point) {
        goto out;
    }
    status = mf_milp_solve(&x->milp, &o, point, &r, e);
    if (status == MF_OK) {
        status = x->status;
    }
    if (status != MF_OK || r.outcome != MF_MILP_OPTIMAL || x->given_up) {
        goto out;
    }
    dual = calloc((size_t)x->with.rows + 1, sizeof *dual);
    if (!dual) {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
        goto out;
    }
    status = mf_milp_duals(&x->with, point, dual, &r, e);
    if (status != MF_OK || r.outcome != MF_MILP_OPTIMAL) {
        goto out;
    }
    /* a stage's rows are moments of the same memory: more of it widens them all */
    for (int p = 0; p < x->in->stages; p++) {
        double sum = 0.0;
        for (int k = 0; k < x->rows; k++) {
            sum -= x->stage_of[k] == p ? dual[x->first_row + k] : 0.0;
        }
        sum *= x->unit_s / BYTES_PER_UNIT;
        if (sum > out->seconds_per_B) {
            *out = (mf_shadow){p, sum};
        }
    }
out:
    free(dual);
    free(point);
    return status;
}

static mf_status price_plan(shadow *x, const mf_assignment *a, mf_shadow *out, mf_err *e) {
    size_t cells = mf_partition_cells(x->in);
    x->count = calloc(cells, sizeof *x->count);
    x->col = calloc(cells, sizeof *x->col);
    x->unit_s = x->predicted->step_time_s / UNITS_PER_STEP;
    if (!x->count || !x->col) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status status = mf_order_path_init(&x->path, x->in->vstages, e);
    if (status != MF_OK || !count_layers(x, a)) {
        return status;
    }
    status = build(x, e);
    return status == MF_OK ? price(x, out, e) : status;
}

mf_status mf_shadow_memory(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                           const mf_plan_prediction *predicted, mf_shadow *out, mf_err *e) {
    mf_evaluator_real real = {.model = p->model, .cost = p->cost, .routing = p->routing};
    mf_evaluator evaluator = mf_evaluator_init(&real);
    mf_block_costs *costs = NULL;
    shadow x = {.predicted = predicted, .e = e};
    *out = (mf_shadow){-1, 0.0};
    mf_milp_init(&x.milp);
    mf_milp_init(&x.with);
    mf_status status = mf_block_costs_create(&evaluator, &costs, e);
    if (status == MF_OK) {
        status = mf_partition_create(costs, l, 0, NULL, &x.in, e);
    }
    if (status == MF_OK) {
        status = price_plan(&x, a, out, e);
    }
    shadow_clear(&x);
    mf_block_costs_destroy(costs);
    mf_milp_thread_end();
    return status;
}
