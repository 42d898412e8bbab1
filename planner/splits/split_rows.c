/* split_rows.c - rows of the linear programs of the tree over splits (split_tree.c).
 *
 * Choices may mix there, so that paths and memory see nothing of a virtual stage but sums: its
 * layers of each slot, and for each figure that differs between choices (seconds of a part, bytes)
 * its sum over them. Both have columns: y[v, slot], layers of the slot up to v, and one for each
 * such sum, which one short row defines. Rows of paths, which would have an entry for every choice
 * on every virtual stage, have a few for each virtual stage this way; before a program is solved
 * its defined columns are put in wherever they stand (lp_session.c).
 */
#include "planner/splits/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- figures ---------------------------------------------------------------------------------- */

static double figure_of(const mf_rows *b, const mf_partition_class *c, int m, int figure) {
    if (figure >= MF_ORDER_PARTS) {
        const mf_block_cost *q = &c->choice[m].cost;
        return (figure == MF_FIGURE_SAVED ? q->saved_B : q->held_B) / MF_ROWS_BYTES;
    }
    return mf_partition_part_s(b->in, c, m, (mf_order_part)figure, b->hull) / b->unit_s;
}

/* Choices of the class that have a column anywhere, a bit each. */
static uint32_t columns_of(const mf_rows *b, const mf_partition_class *c) {
    const mf_partition *in = b->in;
    uint32_t columns = 0;
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            const int *col = &b->col[mf_partition_cell(in, v, s, 0)];
            for (int m = 0; mf_partition_class_at(in, v, s) == c && m < c->choices; m++) {
                columns |= (uint32_t)(col[m] >= 0) << m;
            }
        }
    }
    return columns;
}

static mf_layer_figures figures_of(const mf_rows *b, const mf_partition_class *c) {
    mf_layer_figures f;
    memset(&f, 0, sizeof f);
    const uint32_t columns = columns_of(b, c);
    for (int k = 0; b->memory_ample && k < MF_ORDER_PARTS; k++) {
        f.value[k] = mf_partition_part_s(b->in, c, -1, (mf_order_part)k, true) / b->unit_s;
    }
    for (int k = 0; !b->memory_ample && k < MF_FIGURES; k++) {
        bool first = true;
        for (int m = 0; m < c->choices; m++) {
            if ((columns >> m & 1) == 0) {
                continue;
            }
            double value = figure_of(b, c, m, k);
            if (first) {
                f.value[k] = value;
            } else if (value < f.value[k] || value > f.value[k]) {
                f.mixed[k] = true;
            }
            first = false;
        }
    }
    return f;
}

static const mf_layer_figures *figures_at(const mf_rows *b, int v, int s) {
    return &b->figure[mf_partition_class_at(b->in, v, s) - b->in->class];
}

static bool may_hold(const mf_partition *in, int v, int s) {
    return v >= in->slot[s].v_lo && v <= in->slot[s].v_hi;
}

/* --- sums ------------------------------------------------------------------------------------- */

/* Layers of slot s on v, times `by`, into the row that is being made. */
static void sum_layers(mf_rows *b, int v, int s, double by) {
    const mf_partition *in = b->in;
    b->sum[b->until[v * in->slots + s]] += by;
    if (v > in->slot[s].v_lo) {
        b->sum[b->until[(v - 1) * in->slots + s]] -= by;
    }
}

/* A figure of virtual stage v, times `by`, into the row that is being made. */
static void sum_figure(mf_rows *b, int v, int figure, double by) {
    int col = b->figure_col[v * MF_FIGURES + figure];
    if (col >= 0) {
        b->sum[col] += by;
    }
    for (int s = 0; s < b->in->slots; s++) {
        if (may_hold(b->in, v, s) && !figures_at(b, v, s)->mixed[figure]) {
            sum_layers(b, v, s, by * figures_at(b, v, s)->value[figure]);
        }
    }
}

/* What sums leave where all of it cancels: nothing beside steps of about a hundred units, and
 * not worth an entry. */
#define NOTHING 1e-11

static double take(mf_rows *b, int col) {
    double value = b->sum[col];
    b->sum[col] = 0.0;
    return fabs(value) < NOTHING ? 0.0 : value;
}

/* The row that was made, and nothing in the sums of the next one. */
static void take_sum(mf_rows *b, int row) {
    for (int j = 0; j < b->sums; j++) {
        mf_milp_add_entry(&b->milp, row, j, take(b, j));
    }
}

/* The row that was made, as entries. */
static void take_entries(mf_rows *b, mf_milp_lazy_row *row) {
    for (int j = 0; j < b->sums; j++) {
        double value = take(b, j);
        if (value > 0.0 || value < 0.0) {
            row->col[row->count] = j;
            row->value[row->count++] = value;
        }
    }
}

void mf_rows_split_path(mf_rows *b, const mf_order_path *path, mf_milp_lazy_row *row) {
    for (int v = 0; v < b->in->vstages; v++) {
        for (int p = 0; p < MF_ORDER_PARTS; p++) {
            double n = path->count[p][v];
            if (n > 0.0 || n < 0.0) {
                sum_figure(b, v, p, n);
            }
        }
    }
    for (int v = 0; v < b->in->vstages; v++) {
        if (b->end_col[v] >= 0) {
            b->sum[b->end_col[v]] += mf_rows_end_s(b, path, v) / b->unit_s;
        }
    }
    take_entries(b, row);
}

/* --- columns ---------------------------------------------------------------------------------- */

/* y[v, s]: layers of the slot up to v. */
static void add_until(mf_rows *b) {
    const mf_partition *in = b->in;
    for (int s = 0; s < in->slots; s++) {
        double all = in->slot[s].count;
        int before = -1;
        for (int v = 0; v < in->vstages; v++) {
            int *col = &b->until[v * in->slots + s];
            *col = -1;
            if (!may_hold(in, v, s)) {
                continue;
            }
            *col = mf_milp_add_col(&b->milp, v == in->slot[s].v_hi ? all : 0, all, 0, false);
            int row = mf_milp_add_row(&b->milp, 0, 0);
            mf_milp_define(&b->milp, *col, row);
            mf_milp_add_entry(&b->milp, row, *col, -1.0);
            if (before >= 0) {
                mf_milp_add_entry(&b->milp, row, before, 1.0);
            }
            mf_rows_add_slot(b, row, v, s, 1.0);
            before = *col;
        }
    }
}

/* The sum of a figure over the layers of v whose choices differ in it. */
static void add_figure(mf_rows *b, int v, int figure) {
    const mf_partition *in = b->in;
    int *at = &b->figure_col[v * MF_FIGURES + figure], row = -1;
    *at = -1;
    for (int s = 0; s < in->slots; s++) {
        const mf_partition_class *c = mf_partition_class_at(in, v, s);
        if (!may_hold(in, v, s) || !figures_at(b, v, s)->mixed[figure]) {
            continue;
        }
        if (*at < 0) {
            *at = mf_milp_add_col(&b->milp, -INFINITY, INFINITY, 0, false);
            row = mf_milp_add_row(&b->milp, 0, 0);
            mf_milp_define(&b->milp, *at, row);
            mf_milp_add_entry(&b->milp, row, *at, -1.0);
        }
        for (int m = 0; m < c->choices; m++) {
            int col = b->col[mf_partition_cell(in, v, s, m)];
            if (col >= 0) {
                mf_milp_add_entry(&b->milp, row, col, figure_of(b, c, m, figure));
            }
        }
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

static void sum_positions(mf_rows *b, int v) {
    for (int s = 0; s < b->in->slots; s++) {
        if (may_hold(b->in, v, s)) {
            sum_layers(b, v, s, 1.0);
        }
    }
}

/* Positions of virtual stages and of stages, a row each. */
static void add_sizes(mf_rows *b) {
    const mf_partition *in = b->in;
    b->first_size_row = b->milp.rows;
    for (int v = 0; v < in->vstages; v++) {
        sum_positions(b, v);
        take_sum(b, mf_milp_add_row(&b->milp, 1, in->positions));
    }
    for (int p = 0; p < in->stages && in->chunks > 1; p++) {
        for (int c = 0; c < in->chunks; c++) {
            sum_positions(b, (int)mf_layout_vstage(&in->layout, p, c));
        }
        take_sum(b, mf_milp_add_row(&b->milp, in->chunks, in->positions));
    }
}

static void add_memory(mf_rows *b) {
    const mf_partition *in = b->in;
    for (int p = 0; p < in->stages; p++) {
        double free_B = in->usable_B - in->fixed_B - mf_rows_least_beside_B(in, &b->ranges, p);
        const mf_guest guest = mf_rows_guest(in, &b->ranges, p);
        for (int k = 0; k < in->order.rows[p]; k++) {
            for (int c = 0; c < in->chunks; c++) {
                int v = (int)mf_layout_vstage(&in->layout, p, c);
                sum_figure(b, v, MF_FIGURE_SAVED, mf_order_in_flight(&in->order, p, k, c));
                sum_figure(b, v, MF_FIGURE_HELD, mf_order_held(&in->order, p, k, c));
                for (int s = 0; s < in->slots; s++) {
                    if (may_hold(in, v, s)) {
                        double own_B = mf_partition_class_at(in, v, s)->persistent_B +
                                       (s == guest.slot ? guest.more_B : 0.0);
                        sum_layers(b, v, s, own_B / MF_ROWS_BYTES);
                    }
                }
            }
            take_sum(b, mf_milp_add_row(&b->milp, -INFINITY, free_B / MF_ROWS_BYTES));
        }
    }
}

/* --- without memory ---------------------------------------------------------------------------
 */

int mf_rows_fastest(const mf_partition_class *c) {
    int best = 0;
    double least_s = HUGE_VAL;
    for (int m = 0; m < c->choices; m++) {
        const mf_block_cost *q = &c->choice[m].cost;
        const double time_s = q->f.time_s + q->b.time_s + q->w.time_s;
        if (time_s < least_s) {
            least_s = time_s;
            best = m;
        }
    }
    return best;
}

/* Bytes of `layers` positions of slot s on a stage at one of its moments, spread over the chunks
 * where they can stand. */
static double spread_B(const mf_partition *in, int stage, int row, int s, double layers) {
    double sum_B = 0.0;
    int chunks = 0;
    for (int c = 0; c < in->chunks; c++) {
        const int v = (int)mf_layout_vstage(&in->layout, stage, c);
        if (may_hold(in, v, s)) {
            const mf_partition_class *class = mf_partition_class_at(in, v, s);
            const mf_block_cost *q = &class->choice[mf_rows_fastest(class)].cost;
            sum_B += class->persistent_B +
                     mf_order_in_flight(&in->order, stage, row, c) * q->saved_B +
                     mf_order_held(&in->order, stage, row, c) * q->held_B;
            chunks++;
        }
    }
    return chunks > 0 ? sum_B * layers / chunks : 0.0;
}

/* Bytes of a stage at one of its moments: `each` main layers of the kind that takes most, or all
 * other positions that can stand there if these take more. */
static double likely_B(const mf_partition *in, int stage, int row, int each) {
    double main_B = 0.0, others_B = 0.0;
    for (int s = 0; s < in->slots; s++) {
        const int all = in->slot[s].count;
        if (in->slot[s].main) {
            main_B = fmax(main_B, spread_B(in, stage, row, s, each));
        } else {
            others_B += spread_B(in, stage, row, s, all < each ? all : each);
        }
    }
    return fmax(main_B, others_B);
}

bool mf_rows_memory_is_ample(const mf_partition *in) {
    const int each = (in->positions + in->stages - 1) / in->stages + 1;
    mf_split_ranges any;
    mf_split_ranges_by_time(in, INFINITY, &any);
    for (int p = 0; p < in->stages; p++) {
        const double free_B = in->usable_B - in->fixed_B - mf_rows_least_beside_B(in, &any, p);
        for (int k = 0; k < in->order.rows[p]; k++) {
            if (likely_B(in, p, k, each) > free_B) {
                return false;
            }
        }
    }
    return true;
}

mf_status mf_rows_add_splits(mf_rows *b) {
    const mf_partition *in = b->in;
    size_t vstages = (size_t)in->vstages;
    b->figure = calloc((size_t)in->classes, sizeof *b->figure);
    b->figure_col = malloc(vstages * MF_FIGURES * sizeof *b->figure_col);
    if (!b->figure || !b->figure_col) {
        return mf_err_set(b->e, MF_NOMEM, "out of memory");
    }
    for (int c = 0; c < in->classes; c++) {
        b->figure[c] = figures_of(b, &in->class[c]);
    }
    add_until(b);
    for (int v = 0; v < in->vstages; v++) {
        for (int k = 0; k < MF_FIGURES; k++) {
            add_figure(b, v, k);
        }
    }
    for (int v = 0; v < in->vstages; v++) {
        b->end_col[v] = -1;
    }
    if (!b->memory_ample) { /* else no choice is known, a dear one neither */
        mf_rows_add_ends(b);
    }
    b->sums = b->milp.cols;
    b->sum = calloc((size_t)b->sums + 1, sizeof *b->sum);
    if (!b->sum || b->milp.failed) {
        return mf_err_set(b->e, MF_NOMEM, "out of memory");
    }
    add_sizes(b);
    if (!b->memory_ample) {
        add_memory(b);
    }
    return MF_OK;
}
