/* inner_milp.c - the inner problem as an integer program.
 *
 *   minimise    T
 *   over        x[v, slot, m]   integer: layers of the slot on virtual stage v with choice m
 *               z[v, s]         binary: segment s is complete up to and including v
 *   subject to  every layer is placed; no virtual stage is empty
 *               order: segment s+1 stands on v only when z[v, s]; patterns come out in turn
 *               memory: for every undominated in-flight vector of every stage,
 *                       persistent + fixed + sum in_flight * saved + held * held_B <= usable
 *               chains: T >= sum x * (passes of the chain through v * time of the layer)
 *                            + sends * send_s + ...      for the chains found so far
 *
 * Chains are added when a relaxation's point has a longer one (order.h): the optimum is the least
 * over all assignments of the longest of all chains. Memory rows leave out most of the workspaces,
 * so the program is a relaxation in that respect; what the memory plan refuses is cut off
 * afterwards.
 *
 * Lean, choices are left out: x[v, slot] layers take the least of all choices, and each stage takes
 * extra[p] seconds more by micro-batch, a convex function of its main layers (mf_inner_extra). That
 * is enough for a bound and for a split of the layers; choices then follow by mf_inner_fill.
 */
#include "planner/inner.h"
#include "planner/rough.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_PER_UNIT 1e9
#define CHAIN_TOLERANCE 1e-4
#define MAX_CHAINS 200

typedef struct build {
    mf_inner *in;
    bool lean;
    mf_milp milp;
    int *col;        /* [cells] column of x, -1 = cannot be */
    int32_t *top;    /* [cells] its upper bound */
    int *extra;      /* lean: [stages] column of what a stage takes more */
    double *extra_s; /* lean: [stages] at a relaxation's point */
    double *curve_s; /* lean: [main layers + 1] one stage's extra by its main layers */
    int step;        /* column of T */
    double unit_s;
    /* chains */
    mf_order_chain chain;
    double *count; /* [cells] of a relaxation's point */
    int64_t chains;
    mf_err *e;
    mf_status status;
} build;

/* --- columns ---------------------------------------------------------------------------------- */

/* Most layers of a cell that one stage can hold: by memory with the least in flight, and by time
 * when only steps below the cutoff count. */
static int32_t most_layers(const mf_inner *in, int v, int slot, int m, double cutoff_s) {
    const mf_inner_class *class = mf_inner_class_at(in, v, slot);
    const mf_inner_choice *c = &class->choice[m];
    int64_t stage = mf_layout_stage_of(&in->layout, v), chunk = mf_layout_chunk_of(&in->layout, v);
    int most = in->segment[in->slot[slot].segment].repeats;
    double each_s = (double)in->layout.micro_batches *
                    (in->merged ? c->f_pair_s + c->b_pair_s
                                : c->quote.f.time_s + c->quote.b.time_s + c->quote.w.time_s);
    each_s = each_s > 0.0 ? each_s : 1e-30;
    double by_time = floor(cutoff_s / each_s * (1.0 + 1e-9));
    most = by_time < most ? (int)by_time : most;
    for (int k = 0; k < in->order.rows[stage]; k++) {
        double flight = mf_inner_in_flight(in, (int)stage, k, (int)chunk);
        double each_B = class->persistent_B + flight * c->quote.saved_B;
        double by_memory = floor((in->usable_B - in->fixed_B) / each_B * (1.0 + 1e-9));
        most = by_memory < most ? (int)by_memory : most;
    }
    return most > 0 ? most : 0;
}

/* Choices that have columns. */
static int columns_of(const build *b, const mf_inner_class *c) {
    return b->lean ? 1 : c->choices;
}

/* Lean, no choice is known: whatever any of them allows. */
static int32_t most_layers_of_any(const mf_inner *in, int v, int slot, double cutoff_s) {
    int32_t most = 0;
    for (int m = 0; m < mf_inner_class_at(in, v, slot)->choices; m++) {
        int32_t n = most_layers(in, v, slot, m, cutoff_s);
        most = n > most ? n : most;
    }
    return most;
}

static void add_cells(build *b, double cutoff_s) {
    const mf_inner *in = b->in;
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            const mf_inner_class *c = mf_inner_class_at(in, v, s);
            for (int m = 0; m < MF_INNER_MAX_CHOICES; m++) {
                size_t cell = mf_inner_cell(in, v, s, m);
                b->col[cell] = -1;
                b->top[cell] = 0;
                bool stands = v >= in->slot[s].v_lo && v <= in->slot[s].v_hi;
                if (!stands || m >= columns_of(b, c)) {
                    continue;
                }
                b->top[cell] = b->lean ? most_layers_of_any(in, v, s, cutoff_s)
                                       : most_layers(in, v, s, m, cutoff_s);
                if (b->top[cell] > 0) {
                    b->col[cell] = mf_milp_add_col(&b->milp, 0, b->top[cell], 0, true);
                }
            }
        }
    }
}

/* value[v][s] of every cell of a slot into a row, times `by`. */
static void add_slot(build *b, int row, int v, int s, double by) {
    const mf_inner_class *c = mf_inner_class_at(b->in, v, s);
    for (int m = 0; m < columns_of(b, c); m++) {
        int col = b->col[mf_inner_cell(b->in, v, s, m)];
        if (col >= 0) {
            mf_milp_add_entry(&b->milp, row, col, by);
        }
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

static void add_placement(build *b) {
    const mf_inner *in = b->in;
    for (int s = 0; s < in->slots; s++) {
        double n = in->segment[in->slot[s].segment].repeats;
        int row = mf_milp_add_row(&b->milp, n, n);
        for (int v = 0; v < in->vstages; v++) {
            add_slot(b, row, v, s, 1.0);
        }
    }
    for (int v = 0; v < in->vstages; v++) {
        int row = mf_milp_add_row(&b->milp, 1, INFINITY);
        for (int s = 0; s < in->slots; s++) {
            add_slot(b, row, v, s, 1.0);
        }
    }
}

/* All of segment s up to v, into a row. */
static void add_segment_until(build *b, int row, int segment, int v, double by) {
    for (int s = 0; s < b->in->slots; s++) {
        for (int u = 0; u <= v && b->in->slot[s].segment == segment; u++) {
            add_slot(b, row, u, s, by);
        }
    }
}

static int segment_end(const mf_inner *in, int segment, bool last) {
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
static void add_order(build *b) {
    const mf_inner *in = b->in;
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
            if (before >= 0) { /* once complete, always complete */
                row = mf_milp_add_row(&b->milp, 0, INFINITY);
                mf_milp_add_entry(&b->milp, row, z, 1);
                mf_milp_add_entry(&b->milp, row, before, -1);
            }
            before = z;
        }
    }
}

/* Places of a pattern come in turn: up to v, place k stands as often as place k+1 or once more. */
static void add_patterns(build *b) {
    const mf_inner *in = b->in;
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
                add_slot(b, row, u, s, 1.0);
                add_slot(b, row, u, s + 1, -1.0);
            }
            if (s == first && last > first + 1) {
                row = mf_milp_add_row(&b->milp, 0, 1);
                for (int u = 0; u <= v; u++) {
                    add_slot(b, row, u, first, 1.0);
                    add_slot(b, row, u, last, -1.0);
                }
            }
        }
    }
}

/* Least workspace that the last block of a pass needs, whichever it is. */
static double least_workspace(const mf_inner *in) {
    double least_B = INFINITY;
    for (int s = 0; s < in->slots; s++) {
        for (int v = in->slot[s].v_lo; v <= in->slot[s].v_hi; v++) {
            const mf_inner_class *c = mf_inner_class_at(in, v, s);
            for (int m = 0; m < c->choices; m++) {
                const mf_quote *q = &c->choice[m].quote;
                least_B = fmin(least_B, fmax(q->local_f_B, q->local_b_B));
            }
        }
    }
    return least_B;
}

static void add_memory(build *b) {
    const mf_inner *in = b->in;
    double room_B = in->usable_B - in->fixed_B - least_workspace(in);
    for (int p = 0; p < in->stages; p++) {
        for (int k = 0; k < in->order.rows[p]; k++) {
            int row = mf_milp_add_row(&b->milp, -INFINITY, room_B / BYTES_PER_UNIT);
            for (int c = 0; c < in->chunks; c++) {
                int v = (int)mf_layout_vstage(&in->layout, p, c);
                double flight = mf_inner_in_flight(in, p, k, c);
                double held = mf_inner_held(in, p, k, c);
                for (int s = 0; s < in->slots; s++) {
                    const mf_inner_class *cl = mf_inner_class_at(in, v, s);
                    for (int m = 0; m < cl->choices; m++) {
                        int col = b->col[mf_inner_cell(in, v, s, m)];
                        const mf_inner_choice *ch = &cl->choice[m];
                        double bytes =
                            cl->persistent_B + flight * ch->quote.saved_B + held * ch->quote.held_B;
                        if (col >= 0) {
                            mf_milp_add_entry(&b->milp, row, col, bytes / BYTES_PER_UNIT);
                        }
                    }
                }
            }
        }
    }
}

static bool is_main_slot(const mf_inner *in, int slot) {
    int first = in->segment[in->slot[slot].segment].first + in->slot[slot].place;
    return mf_position_kind_of(in->model, first) == MF_POS_LAYER &&
           mf_rough_is_main(in->model, in->model->layer_class[mf_position_index(in->model, first)]);
}

/* Lean: extra[p] >= every line through neighbouring points of its curve; main layers end where
 * nothing fits. */
static mf_status add_extras(build *b) {
    const mf_inner *in = b->in;
    int layers = mf_rough_layers(in->model);
    for (int p = 0; p < in->stages; p++) {
        mf_status status = mf_inner_extra(in, p, b->curve_s, b->e);
        if (status != MF_OK) {
            return status;
        }
        b->extra[p] = mf_milp_add_col(&b->milp, 0, INFINITY, 0, false);
        double slope_s = 0.0;
        for (int k = 0; k < layers; k++) {
            double more_s = b->curve_s[k + 1] - b->curve_s[k];
            bool last = isinf(b->curve_s[k + 1]);
            if (!last && more_s <= slope_s * (1.0 + 1e-6) + 1e-9) {
                continue;
            }
            /* last: sum of layers <= k; else extra - more * layers >= extra(k) - more * k */
            int row = last ? mf_milp_add_row(&b->milp, -INFINITY, k)
                           : mf_milp_add_row(&b->milp, (b->curve_s[k] - more_s * k) / b->unit_s,
                                             INFINITY);
            for (int c = 0; c < in->chunks; c++) {
                int v = (int)mf_layout_vstage(&in->layout, p, c);
                for (int s = 0; s < in->slots; s++) {
                    if (is_main_slot(in, s)) {
                        add_slot(b, row, v, s, last ? 1.0 : -more_s / b->unit_s);
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
    return MF_OK;
}

/* At least one layer fewer, of those that stand there, on the stage (or anywhere). */
static void add_tried(build *b, const mf_inner_tried *tried) {
    const mf_inner *in = b->in;
    size_t cells = mf_inner_cells(in);
    for (int i = 0; tried && i < tried->sets; i++) {
        const int32_t *count = tried->count + (size_t)i * cells;
        int any = mf_milp_add_row(&b->milp, 1, INFINITY);
        for (int v = 0; v < in->vstages; v++) {
            int64_t stage = mf_layout_stage_of(&in->layout, v);
            size_t from = mf_inner_cell(in, v, 0, 0), to = mf_inner_cell(in, v + 1, 0, 0);
            for (size_t cell = from; cell < to; cell++) {
                bool watched = tried->stage[i] < 0 || tried->stage[i] == stage;
                if (count[cell] == 0 || !watched) {
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

/* --- chains ----------------------------------------------------------------------------------- */

/* Seconds that one layer of a cell adds to the chain. */
static double chain_s(const build *b, int v, int slot, int m) {
    const mf_inner_class *c = mf_inner_class_at(b->in, v, slot);
    double sum_s = 0.0;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        int32_t n = b->chain.count[p][v];
        if (n != 0) {
            sum_s +=
                (double)n * mf_inner_part_s(b->in, c, b->lean ? -1 : m, (mf_order_part)p, false);
        }
    }
    return sum_s;
}

/* The chain as a row: sum x * seconds - T <= -(what does not depend on x). */
static void chain_row(const build *b, mf_milp_lazy_row *row) {
    const mf_inner *in = b->in;
    double fixed_s = in->tail.fixed_s + b->chain.sends * in->send_s + b->chain.holds * in->hold_s;
    row->count = 0;
    row->lo = -INFINITY;
    row->hi = -fixed_s / b->unit_s;
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            for (int m = 0; m < columns_of(b, mf_inner_class_at(in, v, s)); m++) {
                int col = b->col[mf_inner_cell(in, v, s, m)];
                double each_s = col >= 0 ? chain_s(b, v, s, m) : 0.0;
                if (each_s > 0.0 || each_s < 0.0) {
                    row->col[row->count] = col;
                    row->value[row->count++] = each_s / b->unit_s;
                }
            }
        }
    }
    for (int p = 0; p < in->stages && b->lean; p++) {
        int32_t least = INT32_MAX; /* whichever chunk has it */
        for (int c = 0; c < in->chunks; c++) {
            int v = (int)mf_layout_vstage(&in->layout, p, c);
            int32_t n = b->chain.count[MF_ORDER_B][v] + b->chain.count[MF_ORDER_B_PAIR][v];
            least = n < least ? n : least;
        }
        if (least > 0) {
            row->col[row->count] = b->extra[p];
            row->value[row->count++] = least;
        }
    }
    row->col[row->count] = b->step;
    row->value[row->count++] = -1.0;
}

/* By how much a row is broken at a point. */
static double excess(const mf_milp_lazy_row *row, const double *x) {
    double sum = -row->hi;
    for (int k = 0; k < row->count; k++) {
        sum += row->value[k] * x[row->col[k]];
    }
    return sum;
}

/* Longest chain at a point of the program; true when it is longer than T says. */
static bool find_chain(build *b, const double *x, mf_milp_lazy_row *row) {
    size_t cells = mf_inner_cells(b->in);
    if (b->chains >= MAX_CHAINS || b->status != MF_OK) {
        return false;
    }
    for (size_t i = 0; i < cells; i++) {
        b->count[i] = b->col[i] >= 0 ? x[b->col[i]] : 0.0;
    }
    for (int p = 0; p < b->in->stages && b->lean; p++) {
        b->extra_s[p] = x[b->extra[p]] * b->unit_s;
    }
    b->status =
        mf_inner_play(b->in, b->count, b->lean, b->lean ? b->extra_s : NULL, &b->chain, b->e);
    if (b->status != MF_OK) {
        return false;
    }
    chain_row(b, row);
    if (excess(row, x) <= x[b->step] * CHAIN_TOLERANCE) {
        return false;
    }
    b->chains++;
    return true;
}

static bool lazy_chain(void *user, const double *x, mf_milp_lazy_row *row) {
    return find_chain(user, x, row);
}

/* Chains that are there from the start: those of layers spread evenly over the stages. */
static mf_status add_first_chain(build *b, mf_milp_lazy_row *row) {
    const mf_inner *in = b->in;
    memset(b->count, 0, mf_inner_cells(in) * sizeof *b->count);
    for (int s = 0; s < in->slots; s++) {
        double n = in->segment[in->slot[s].segment].repeats;
        int width = in->slot[s].v_hi - in->slot[s].v_lo + 1;
        for (int v = in->slot[s].v_lo; v <= in->slot[s].v_hi; v++) {
            b->count[mf_inner_cell(in, v, s, 0)] = n / width;
        }
    }
    mf_status status = mf_inner_play(b->in, b->count, b->lean, NULL, &b->chain, b->e);
    if (status != MF_OK) {
        return status;
    }
    chain_row(b, row);
    int at = mf_milp_add_row(&b->milp, row->lo, row->hi);
    for (int k = 0; k < row->count; k++) {
        mf_milp_add_entry(&b->milp, at, row->col[k], row->value[k]);
    }
    return MF_OK;
}

/* --- the whole -------------------------------------------------------------------------------- */

static void build_clear(build *b) {
    mf_milp_clear(&b->milp);
    mf_order_chain_clear(&b->chain);
    free(b->col);
    free(b->top);
    free(b->extra);
    free(b->extra_s);
    free(b->curve_s);
    free(b->count);
}

static mf_status build_program(build *b, mf_inner *in, const mf_inner_tried *tried,
                               const mf_inner_options *o, mf_err *e) {
    size_t cells = mf_inner_cells(in);
    mf_milp_lazy_row row = {0, 0, 0, NULL, NULL};
    memset(b, 0, sizeof *b);
    b->in = in;
    b->lean = o->lean;
    b->e = e;
    mf_milp_init(&b->milp);
    mf_status status = mf_order_chain_init(&b->chain, in->vstages, e);
    if (status != MF_OK) {
        return status;
    }
    b->col = malloc(cells * sizeof *b->col);
    b->top = malloc(cells * sizeof *b->top);
    b->count = malloc(cells * sizeof *b->count);
    b->extra = malloc((size_t)in->stages * sizeof *b->extra);
    b->extra_s = malloc((size_t)in->stages * sizeof *b->extra_s);
    b->curve_s = malloc((size_t)(in->positions + 1) * sizeof *b->curve_s);
    row.col = malloc((cells + (size_t)in->stages + 1) * sizeof *row.col);
    row.value = malloc((cells + (size_t)in->stages + 1) * sizeof *row.value);
    if (!b->col || !b->top || !b->count || !b->extra || !b->extra_s || !b->curve_s || !row.col ||
        !row.value) {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
        goto out;
    }
    /* a unit of time in which steps are about a hundred */
    double all_s = 0.0;
    for (int s = 0; s < in->slots; s++) {
        const mf_quote *q = &mf_inner_class_at(in, in->slot[s].v_lo, s)->choice[0].quote;
        all_s += in->segment[in->slot[s].segment].repeats * (q->f.time_s + q->b.time_s);
    }
    b->unit_s = all_s * (double)in->layout.micro_batches / (double)in->stages / 100.0;
    b->unit_s = b->unit_s > 0.0 ? b->unit_s : 1.0;
    add_cells(b, o->cutoff_s);
    add_placement(b);
    add_order(b);
    add_patterns(b);
    if (b->lean) {
        status = add_extras(b);
    } else {
        add_memory(b);
        add_tried(b, tried);
    }
    if (status != MF_OK) {
        goto out;
    }
    b->step =
        mf_milp_add_col(&b->milp, o->floor_s / b->unit_s, o->cutoff_s / b->unit_s, 1.0, false);
    status = add_first_chain(b, &row);
out:
    free(row.col);
    free(row.value);
    if (status != MF_OK) {
        build_clear(b);
    }
    return status;
}

void mf_inner_solution_clear(mf_inner_solution *s) {
    free(s->count);
    free(s->first);
    memset(s, 0, sizeof *s);
}

/* Proven bounds are given away a little: GLPK's tolerances are 1e-7 of values near 100. */
#define SAFETY (1.0 - 1e-6)

static void read_answer(const build *b, const double *x, mf_inner_solution *out) {
    const mf_inner *in = b->in;
    size_t cells = mf_inner_cells(in), per_stage = cells / (size_t)in->vstages;
    for (size_t i = 0; i < cells; i++) {
        out->count[i] = b->col[i] >= 0 ? (int32_t)lround(x[b->col[i]]) : 0;
    }
    out->first[0] = 0;
    for (int v = 0; v < in->vstages; v++) {
        int n = 0;
        for (size_t i = 0; i < per_stage; i++) {
            n += out->count[(size_t)v * per_stage + i];
        }
        out->first[v + 1] = out->first[v] + n;
    }
}

mf_status mf_inner_solve(mf_inner *in, const mf_inner_tried *tried, const mf_inner_options *o,
                         mf_inner_solution *out, mf_err *e) {
    build b;
    double *x = NULL;
    mf_milp_result r;
    memset(out, 0, sizeof *out);
    mf_status status = build_program(&b, in, tried, o, e);
    if (status != MF_OK) {
        return status;
    }
    mf_milp_options mo = {
        .cutoff = INFINITY, /* the step's own bound does it */
        .gap = o->gap,
        .node_limit = o->node_limit,
        .cancel = o->cancel,
        .target = isinf(o->target_s) ? 0.0 : o->target_s / b.unit_s / SAFETY,
        .lazy = lazy_chain,
        .lazy_user = &b,
        .fault = o->fault,
    };
    x = malloc((size_t)b.milp.cols * sizeof *x);
    out->count = calloc(mf_inner_cells(in), sizeof *out->count);
    out->first = calloc((size_t)in->vstages + 1, sizeof *out->first);
    status = x && out->count && out->first ? mf_milp_solve(&b.milp, &mo, x, &r, e)
                                           : mf_err_set(e, MF_NOMEM, "out of memory");
    if (status == MF_OK) {
        status = b.status;
    }
    if (status != MF_OK) {
        goto out;
    }
    /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): counts and pointers are kept in
     * step */
    out->outcome = r.outcome;
    out->nodes = r.nodes;
    out->bound_s = fmax(r.bound * b.unit_s * SAFETY, o->floor_s);
    memcpy(out->text, r.text, sizeof out->text);
    if (r.outcome == MF_MILP_INFEASIBLE) {
        out->bound_s = o->cutoff_s; /* nothing below it */
    }
    out->have = r.have_x;
    if (r.have_x) {
        out->objective_s = r.objective * b.unit_s;
        read_answer(&b, x, out);
    }
out:
    free(x);
    build_clear(&b);
    if (status != MF_OK) {
        mf_inner_solution_clear(out);
    }
    return status;
}
