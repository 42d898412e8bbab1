/* rows.c - the partition problem's integer program: columns, and rows that are there from the
 * start. integer_program.c has the whole in words.
 */
#include "planner/splits/rows.h"
#include "planner/bound/family_bound.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- columns ---------------------------------------------------------------------------------- */

/* Most layers of a cell that one stage can hold, as a real number: by memory with the least in
 * flight, and by time when only steps below the cutoff count. */
static double most_layers(const mf_rows *b, int v, int slot, int m, double cutoff_s) {
    const mf_partition *in = b->in;
    const mf_partition_class *class = mf_partition_class_at(in, v, slot);
    const mf_partition_choice *c = &class->choice[m];
    int64_t stage = mf_layout_stage_of(&in->layout, v), chunk = mf_layout_chunk_of(&in->layout, v);
    double most = in->slot[slot].count;
    double own_s =
        (b->hull ? c->f_rounded_s : c->cost.f.time_s) + c->cost.b.time_s + c->cost.w.time_s;
    for (int i = 0; in->merged && i < MF_PORTIONS; i++) {
        double pair_s = c->f_pair_s[i] + c->b_pair_s[i];
        own_s = i == 0 ? pair_s : fmax(own_s, pair_s);
    }
    double each_s = (double)in->layout.micro_batches * own_s - class->anew_s;
    if (each_s > 0.0) {
        most = fmin(most, cutoff_s / MF_BOUND_SAFETY / each_s * (1.0 + 1e-9));
    }
    for (int k = 0; k < in->order.rows[stage]; k++) {
        double flight = mf_order_in_flight(&in->order, (int)stage, k, (int)chunk);
        double each_B = class->persistent_B + flight * c->cost.saved_B;
        most = fmin(most, (in->usable_B - in->fixed_B) / each_B * (1.0 + 1e-9));
    }
    return fmax(most, 0.0);
}

/* Choices that have columns. */
int mf_rows_choices(const mf_rows *b, const mf_partition_class *c) {
    return b->coarse ? 1 : c->choices;
}

/* Choices that have a column for slot s on v, a bit each. whole: choices of which the virtual stage
 * may hold a whole layer. The hull stands for all of those; if it contains other choices, the hull
 * of `whole` alone is taken. */
static uint32_t columns_of(const mf_rows *b, int v, int s, uint32_t whole) {
    const mf_partition_class *c = mf_partition_class_at(b->in, v, s);
    uint32_t hull = 0;
    if (b->coarse || b->memory_ample) {
        return UINT32_C(1) << (b->memory_ample ? mf_rows_fastest(c) : 0);
    }
    for (int m = 0; m < c->choices; m++) {
        hull |= (uint32_t)c->choice[m].hull << m;
    }
    if (!b->hull) {
        return whole;
    }
    return (hull & ~whole) == 0 ? hull : mf_partition_hull(c, b->in->merged, whole);
}

/* One of the hull stands for others by parts of layers, so that it is not limited to whole ones. */
static void add_slot_cells(mf_rows *b, int v, int s, double cutoff_s) {
    const mf_partition_class *c = mf_partition_class_at(b->in, v, s);
    double most[MF_CATALOGUE_MAX], any = 0.0;
    uint32_t whole = 0;
    for (int m = 0; m < c->choices; m++) {
        most[m] = most_layers(b, v, s, m, cutoff_s);
        any = fmax(any, most[m]);
        whole |= (uint32_t)(most[m] >= 1.0) << m;
    }
    const uint32_t columns = columns_of(b, v, s, whole);
    for (int m = 0; m < c->choices; m++) {
        const size_t cell = mf_partition_cell(b->in, v, s, m);
        /* coarse, no choice is known: whatever any of them allows */
        const double top = b->coarse || b->memory_ample ? floor(any)
                           : b->hull                    ? most[m]
                                                        : floor(most[m]);
        if ((columns >> m & 1) != 0 && top > 0.0) {
            b->top[cell] = top;
            b->col[cell] = mf_milp_add_col(&b->milp, 0, top, 0, !b->splits);
        }
    }
}

void mf_rows_add_cells(mf_rows *b, double cutoff_s) {
    const mf_partition *in = b->in;
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            for (int m = 0; m < MF_CATALOGUE_MAX; m++) {
                const size_t cell = mf_partition_cell(in, v, s, m);
                b->col[cell] = -1;
                b->top[cell] = 0.0;
            }
            if (v >= in->slot[s].v_lo && v <= in->slot[s].v_hi) {
                add_slot_cells(b, v, s, cutoff_s);
            }
        }
    }
}

/* value[v][s] of every cell of a slot into a row, times `by`. */
void mf_rows_add_slot(mf_rows *b, int row, int v, int s, double by) {
    const mf_partition_class *c = mf_partition_class_at(b->in, v, s);
    for (int m = 0; m < mf_rows_choices(b, c); m++) {
        int col = b->col[mf_partition_cell(b->in, v, s, m)];
        if (col >= 0) {
            mf_milp_add_entry(&b->milp, row, col, by);
        }
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

static void add_placement(mf_rows *b) {
    const mf_partition *in = b->in;
    for (int s = 0; s < in->slots; s++) {
        double n = in->slot[s].count;
        int row = mf_milp_add_row(&b->milp, n, n);
        for (int v = 0; v < in->vstages; v++) {
            mf_rows_add_slot(b, row, v, s, 1.0);
        }
    }
    for (int v = 0; v < in->vstages; v++) {
        int row = mf_milp_add_row(&b->milp, 1, INFINITY);
        for (int s = 0; s < in->slots; s++) {
            mf_rows_add_slot(b, row, v, s, 1.0);
        }
    }
}

/* All of segment s up to v, into a row. */
static void add_segment_until(mf_rows *b, int row, int segment, int v, double by) {
    for (int s = 0; s < b->in->slots; s++) {
        for (int u = 0; u <= v && b->in->slot[s].segment == segment; u++) {
            mf_rows_add_slot(b, row, u, s, by);
        }
    }
}

static int segment_end(const mf_partition *in, int segment, bool last) {
    int end = last ? -1 : in->vstages;
    for (int s = 0; s < in->slots; s++) {
        if (in->slot[s].segment == segment) {
            end = last ? (in->slot[s].v_hi > end ? in->slot[s].v_hi : end)
                       : (in->slot[s].v_lo < end ? in->slot[s].v_lo : end);
        }
    }
    return end;
}

/* Between one segment and the next: up to v there is none of the next unless all of this one. */
static void add_order(mf_rows *b) {
    const mf_partition *in = b->in;
    for (int s = 0; s + 1 < in->segments; s++) {
        int lo = segment_end(in, s + 1, false), hi = segment_end(in, s, true);
        double here = in->segment[s].repeats * in->segment[s].period;
        double next = in->segment[s + 1].repeats * in->segment[s + 1].period;
        int before = -1;
        for (int v = lo; v < hi; v++) {
            int z = mf_milp_add_col(&b->milp, 0, 1, 0, true);
            int row = mf_milp_add_row(&b->milp, 0, INFINITY);
            add_segment_until(b, row, s, v, 1.0);
            mf_milp_add_entry(&b->milp, row, z, -here);
            row = mf_milp_add_row(&b->milp, -INFINITY, 0);
            add_segment_until(b, row, s + 1, v, 1.0);
            mf_milp_add_entry(&b->milp, row, z, -next);
            if (before >= 0) { /* complete at v: complete ever after */
                row = mf_milp_add_row(&b->milp, 0, INFINITY);
                mf_milp_add_entry(&b->milp, row, z, 1);
                mf_milp_add_entry(&b->milp, row, before, -1);
            }
            before = z;
        }
    }
}

/* Places of a pattern come in turn: up to v, place k stands as often as place k+1 or one time more.
 */
static void add_patterns(mf_rows *b) {
    const mf_partition *in = b->in;
    for (int s = 0; s + 1 < in->slots; s++) {
        if (in->slot[s].segment != in->slot[s + 1].segment) {
            continue;
        }
        int first = s - in->slot[s].place, last = first;
        while (last + 1 < in->slots && in->slot[last + 1].segment == in->slot[s].segment) {
            last++;
        }
        for (int v = 0; v + 1 < in->vstages; v++) {
            int row = mf_milp_add_row(&b->milp, 0, 1);
            for (int u = 0; u <= v; u++) {
                mf_rows_add_slot(b, row, u, s, 1.0);
                mf_rows_add_slot(b, row, u, s + 1, -1.0);
            }
            if (s == first && last > first + 1) {
                row = mf_milp_add_row(&b->milp, 0, 1);
                for (int u = 0; u <= v; u++) {
                    mf_rows_add_slot(b, row, u, first, 1.0);
                    mf_rows_add_slot(b, row, u, last, -1.0);
                }
            }
        }
    }
}

static void add_memory(mf_rows *b) {
    const mf_partition *in = b->in;
    for (int p = 0; p < in->stages; p++) {
        double free_B = in->usable_B - in->fixed_B - mf_rows_least_beside_B(in, &b->ranges, p);
        const mf_guest guest = mf_rows_guest(in, &b->ranges, p);
        for (int k = 0; k < in->order.rows[p]; k++) {
            int row = mf_milp_add_row(&b->milp, -INFINITY, free_B / MF_ROWS_BYTES);
            for (int c = 0; c < in->chunks; c++) {
                int v = (int)mf_layout_vstage(&in->layout, p, c);
                double flight = mf_order_in_flight(&in->order, p, k, c);
                double held = mf_order_held(&in->order, p, k, c);
                for (int s = 0; s < in->slots; s++) {
                    const mf_partition_class *cl = mf_partition_class_at(in, v, s);
                    const double stands_B =
                        cl->persistent_B + (s == guest.slot ? guest.more_B : 0.0);
                    for (int m = 0; m < cl->choices; m++) {
                        int col = b->col[mf_partition_cell(in, v, s, m)];
                        const mf_partition_choice *ch = &cl->choice[m];
                        double bytes =
                            stands_B + flight * ch->cost.saved_B + held * ch->cost.held_B;
                        if (col >= 0) {
                            mf_milp_add_entry(&b->milp, row, col, bytes / MF_ROWS_BYTES);
                        }
                    }
                }
            }
        }
    }
}

/* Coarse: extra[p] >= every line through neighbouring points of its curve; main layers end where
 * nothing fits. */
static void add_extras(mf_rows *b) {
    const mf_partition *in = b->in;
    int layers = mf_family_bound_layers(in->model);
    mf_partition_extras(in, b->curves_s);
    for (int p = 0; p < in->stages; p++) {
        const double *curve_s = b->curves_s + (size_t)p * (size_t)(layers + 1);
        b->extra[p] = mf_milp_add_col(&b->milp, 0, MF_ROWS_MOST_EXTRA, 0, false);
        double slope_s = 0.0;
        for (int k = 0; k < layers; k++) {
            double more_s = curve_s[k + 1] - curve_s[k];
            bool last = isinf(curve_s[k + 1]);
            if (!last && more_s <= slope_s * (1.0 + 1e-6) + 1e-9) {
                continue;
            }
            /* last: sum of layers <= k; else extra - more * layers >= extra(k) - more * k */
            int row =
                last ? mf_milp_add_row(&b->milp, -INFINITY, k)
                     : mf_milp_add_row(&b->milp, (curve_s[k] - more_s * k) / b->unit_s, INFINITY);
            for (int c = 0; c < in->chunks; c++) {
                int v = (int)mf_layout_vstage(&in->layout, p, c);
                for (int s = 0; s < in->slots; s++) {
                    if (in->slot[s].main) {
                        mf_rows_add_slot(b, row, v, s, last ? 1.0 : -more_s / b->unit_s);
                    }
                }
            }
            if (last) {
                break;
            }
            mf_milp_add_entry(&b->milp, row, b->extra[p], 1.0);
            slope_s = more_s;
        }
    }
}

/* Entries up to this are rounding errors of differences of equal times, in units of time (a step is
 * about 100). GLPK reported a program with such an entry as infeasible. */
static const double rounding = 1e-12;

/* The sum of a part's seconds over the layers of v as a column: a path's row, which would have an
 * entry for every choice on every virtual stage, has one for each part that it passes through. */
static void add_part(mf_rows *b, int v, mf_order_part part) {
    const mf_partition *in = b->in;
    int *at = &b->figure_col[v * MF_FIGURES + (int)part], row = -1;
    *at = -1;
    for (int s = 0; s < in->slots; s++) {
        const mf_partition_class *c = mf_partition_class_at(in, v, s);
        for (int m = 0; m < c->choices; m++) {
            const int col = b->col[mf_partition_cell(in, v, s, m)];
            const double each_s =
                col >= 0 ? mf_partition_part_s(in, c, m, part, b->hull) / b->unit_s : 0.0;
            if (!(fabs(each_s) > rounding)) {
                continue;
            }
            if (*at < 0) {
                *at = mf_milp_add_col(&b->milp, -INFINITY, INFINITY, 0, false);
                row = mf_milp_add_row(&b->milp, 0, 0);
                mf_milp_define(&b->milp, *at, row);
                mf_milp_add_entry(&b->milp, row, *at, -1.0);
            }
            mf_milp_add_entry(&b->milp, row, col, each_s);
        }
    }
}

static mf_status add_parts(mf_rows *b) {
    b->figure_col = malloc((size_t)b->in->vstages * MF_FIGURES * sizeof *b->figure_col);
    if (!b->figure_col) {
        return mf_err_set(b->e, MF_NOMEM, "out of memory");
    }
    for (int v = 0; v < b->in->vstages; v++) {
        for (int p = 0; p < MF_ORDER_PARTS; p++) {
            add_part(b, v, (mf_order_part)p);
        }
    }
    return MF_OK;
}

/* At least one layer fewer, of those that stand there, on the stage. */
static void add_tried(mf_rows *b, const mf_partition_tried *tried) {
    const mf_partition *in = b->in;
    size_t cells = mf_partition_cells(in);
    for (int i = 0; tried && i < tried->sets; i++) {
        const int32_t *count = tried->count + (size_t)i * cells;
        int any = mf_milp_add_row(&b->milp, 1, INFINITY);
        for (int v = 0; v < in->vstages; v++) {
            int64_t stage = mf_layout_stage_of(&in->layout, v);
            size_t from = mf_partition_cell(in, v, 0, 0), to = mf_partition_cell(in, v + 1, 0, 0);
            for (size_t cell = from; cell < to; cell++) {
                if (count[cell] == 0 || tried->stage[i] != stage) {
                    continue;
                }
                if (b->col[cell] < 0 || b->top[cell] < count[cell]) {
                    b->milp.row[any].lo = 0; /* cannot be repeated anyway */
                    continue;
                }
                /* fewer = 1 implies x <= count - 1 */
                int fewer = mf_milp_add_col(&b->milp, 0, 1, 0, true);
                int row = mf_milp_add_row(&b->milp, -INFINITY, b->top[cell]);
                mf_milp_add_entry(&b->milp, row, b->col[cell], 1.0);
                mf_milp_add_entry(&b->milp, row, fewer, b->top[cell] - count[cell] + 1);
                mf_milp_add_entry(&b->milp, any, fewer, 1.0);
            }
        }
    }
}

mf_status mf_rows_add_fixed(mf_rows *b, const mf_partition_tried *tried) {
    if (b->splits) {
        return mf_rows_add_splits(b);
    }
    if (b->in->gathered && !b->coarse) {
        return mf_err_set(b->e, MF_INTERNAL, "gathered slots have no order");
    }
    add_placement(b);
    if (!b->in->gathered) {
        add_order(b);
        add_patterns(b);
    }
    if (b->coarse) {
        add_extras(b);
        return MF_OK;
    }
    add_memory(b);
    add_tried(b, tried);
    mf_rows_add_ends(b);
    return add_parts(b);
}

/* --- the whole -------------------------------------------------------------------------------- */

void mf_rows_clear(mf_rows *b) {
    mf_milp_clear(&b->milp);
    mf_order_path_clear(&b->path);
    for (int i = 0; i < MF_ROWS_FOUND; i++) {
        mf_order_path_clear(&b->found[i]);
    }
    for (int i = 0; i < b->path_rows; i++) {
        free(b->path_row[i].path.loss[0]);
    }
    free(b->path_row);
    for (int i = 0; i < b->pooled; i++) {
        mf_order_path_clear(&b->pool[i]);
    }
    free(b->pool);
    free(b->col);
    free(b->top);
    free(b->extra);
    free(b->until);
    free(b->figure);
    free(b->figure_col);
    free(b->end_col);
    free(b->sum);
    free(b->curves_s);
    free(b->count);
    free(b->best_count);
    free(b->point);
}

mf_status mf_rows_make(mf_rows *b, mf_partition *in, const mf_partition_tried *tried,
                       const mf_partition_options *o, const mf_path_set *known, mf_path_set *kept,
                       mf_err *e) {
    size_t cells = mf_partition_cells(in), point = cells + (size_t)in->stages;
    memset(b, 0, sizeof *b);
    b->in = in;
    b->coarse = o->coarse;
    b->hull = o->hull;
    b->splits = o->splits;
    b->memory_ample = o->memory_ample;
    b->lossy = o->lossy;
    b->pools = o->pools;
    b->e = e;
    b->kept = kept;
    mf_milp_init(&b->milp);
    b->best_count_s = INFINITY;
    mf_status status = mf_order_path_init(&b->path, in->vstages, e);
    if (status != MF_OK) {
        return status;
    }
    for (int i = 0; i < MF_ROWS_FOUND && (o->splits || o->coarse); i++) {
        status = mf_order_path_init(&b->found[i], in->vstages, e);
        if (status != MF_OK) {
            goto out;
        }
    }
    b->point = malloc(point * sizeof *b->point);
    b->best_count = malloc(point * sizeof *b->best_count);
    b->col = malloc(cells * sizeof *b->col);
    b->top = malloc(cells * sizeof *b->top);
    b->count = malloc(point * sizeof *b->count);
    b->extra = malloc((size_t)in->stages * sizeof *b->extra);
    b->until = malloc((size_t)in->vstages * (size_t)in->slots * sizeof *b->until);
    b->end_col = malloc((size_t)in->vstages * sizeof *b->end_col);
    b->curves_s = malloc((size_t)in->stages * (size_t)(in->positions + 1) * sizeof *b->curves_s);
    if (!b->col || !b->top || !b->count || !b->extra || !b->until || !b->curves_s ||
        !b->best_count || !b->point || !b->end_col) {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
        goto out;
    }
    /* a unit of time in which steps are about a hundred */
    double all_s = 0.0;
    for (int s = 0; s < in->slots; s++) {
        const mf_block_cost *q = &mf_partition_class_at(in, in->slot[s].v_lo, s)->choice[0].cost;
        all_s += in->slot[s].count * (q->f.time_s + q->b.time_s);
    }
    b->unit_s = all_s * (double)in->layout.micro_batches / (double)in->stages / 100.0;
    b->unit_s = b->unit_s > 0.0 ? b->unit_s : 1.0;
    /* elsewhere it is not known whose last block runs (beside.c), and trees gain nothing */
    mf_split_ranges_by_time(in, in->chunks == 1 && !in->split ? o->cutoff_s : HUGE_VAL, &b->ranges);
    mf_rows_add_cells(b, o->cutoff_s);
    status = mf_rows_add_fixed(b, tried);
    if (status != MF_OK) {
        goto out;
    }
    b->step =
        mf_milp_add_col(&b->milp, o->proven_s / b->unit_s, o->cutoff_s / b->unit_s, 1.0, false);
    status = mf_rows_add_paths(b, known);
    *in->effort_ns += MF_ROWS_ENTRY_NS * (int64_t)b->milp.entries;
out:
    if (status != MF_OK) {
        mf_rows_clear(b);
    }
    return status;
}
