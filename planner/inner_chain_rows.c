/* inner_chain_rows.c - chains as rows of the integer program: T is at least each of them. */
#include "planner/inner_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHAIN_TOLERANCE 1e-4
#define MAX_CHAINS 200
/* Where chains are found besides: so far from the best point to the program's. */
#define BETWEEN 0.3

/* --- chains ----------------------------------------------------------------------------------- */

/* Seconds that one layer of a cell adds to the chain. */
static double chain_s(const mf_rows *b, int v, int slot, int m) {
    const mf_inner_class *c = mf_inner_class_at(b->in, v, slot);
    double sum_s = 0.0;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        double n = b->chain.count[p][v];
        if (n > 0.0 || n < 0.0) {
            sum_s += n * mf_inner_part_s(b->in, c, b->lean ? -1 : m, (mf_order_part)p, b->hull);
        }
    }
    return sum_s;
}

/* The chain as a row: sum x * seconds - T <= -(what does not depend on x). */
static void chain_row(const mf_rows *b, mf_milp_lazy_row *row) {
    const mf_inner *in = b->in;
    row->count = 0;
    row->lo = -INFINITY;
    row->hi = -mf_inner_chain_fixed_s(in, &b->chain) / b->unit_s;
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            for (int m = 0; m < mf_rows_choices(b, mf_inner_class_at(in, v, s)); m++) {
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
        double least = HUGE_VAL; /* whichever chunk has it */
        for (int k = 0; k < in->chunks; k++) {
            int v = (int)mf_layout_vstage(&in->layout, p, k);
            least = fmin(least, mf_chain_visits(&b->chain, v));
        }
        if (least > 0.0) {
            row->col[row->count] = b->extra[p];
            row->value[row->count++] = least;
        }
    }
    row->col[row->count] = b->step;
    row->value[row->count++] = -1.0;
}

/* Keeps the chain of the next row, so that its losses can be told anew. */
static mf_status keep_row(mf_rows *b) {
    if (!b->keep_rows) {
        return MF_OK;
    }
    if (b->row_chains == b->room) {
        int room = b->room ? 2 * b->room : 32;
        mf_order_chain *grown = realloc(b->row_chain, (size_t)room * sizeof *grown);
        if (!grown) {
            return mf_err_set(b->e, MF_NOMEM, "out of memory");
        }
        b->row_chain = grown;
        b->room = room;
    }
    mf_order_chain *copy = &b->row_chain[b->row_chains];
    mf_status status = mf_order_chain_copy(copy, &b->chain, b->e);
    b->row_chains += status == MF_OK;
    return status;
}

double mf_rows_chain_hi(const mf_rows *b, int i) {
    return -mf_inner_chain_fixed_s(b->in, &b->row_chain[i]) / b->unit_s;
}

/* By how much a row is broken at a point. */
static double excess(const mf_milp_lazy_row *row, const double *x) {
    double sum = -row->hi;
    for (int k = 0; k < row->count; k++) {
        sum += row->value[k] * x[row->col[k]];
    }
    return sum;
}

/* The longest chain at b->count. */
static bool play(mf_rows *b) {
    b->status =
        mf_inner_play(b->in, b->count, b->lean, b->lean ? b->extra_s : NULL, &b->chain, b->e);
    return b->status == MF_OK;
}

static void swap_chains(mf_rows *b) {
    mf_order_chain other = b->other;
    b->other = b->chain;
    b->chain = other;
}

/* Between the point and a better one that was met before (in-out separation): a program's points
 * are extreme, and chains found at them say little about others. */
static void play_between(mf_rows *b, const double *x, mf_milp_lazy_row *row) {
    size_t cells = mf_inner_cells(b->in);
    double here_s = b->chain.time_s;
    if (!(b->inner_s < here_s)) {
        memcpy(b->inner, b->count, cells * sizeof *b->inner);
        b->inner_s = here_s;
        return;
    }
    for (size_t i = 0; i < cells; i++) {
        b->count[i] = BETWEEN * b->count[i] + (1.0 - BETWEEN) * b->inner[i];
    }
    swap_chains(b);
    if (!play(b)) {
        return;
    }
    if (b->chain.time_s < b->inner_s) {
        memcpy(b->inner, b->count, cells * sizeof *b->inner);
        b->inner_s = b->chain.time_s;
    }
    chain_row(b, row);
    if (excess(row, x) <= x[b->step] * CHAIN_TOLERANCE) {
        swap_chains(b);
        chain_row(b, row);
    } else {
        row->more = b->another = true;
    }
}

/* Keeps the chain whose row is about to be added. */
static bool add_found(mf_rows *b) {
    b->chains++;
    b->status = keep_row(b);
    if (b->kept && b->status == MF_OK) {
        b->status = mf_chains_add(b->kept, &b->chain, b->e);
    }
    return b->status == MF_OK;
}

/* Longest chain at a point of the program; true when it is longer than T says. */
static bool find_chain(mf_rows *b, const double *x, mf_milp_lazy_row *row) {
    size_t cells = mf_inner_cells(b->in);
    if (b->another) { /* of the point itself */
        b->another = false;
        swap_chains(b);
        chain_row(b, row);
        return add_found(b);
    }
    if ((b->chains >= MAX_CHAINS && !b->splits) || b->status != MF_OK) {
        return false;
    }
    for (size_t i = 0; i < cells; i++) {
        b->count[i] = b->col[i] >= 0 ? x[b->col[i]] : 0.0;
    }
    for (int p = 0; p < b->in->stages && b->lean; p++) {
        b->extra_s[p] = x[b->extra[p]] * b->unit_s;
    }
    if (!play(b)) {
        return false;
    }
    chain_row(b, row);
    if (excess(row, x) <= x[b->step] * CHAIN_TOLERANCE) {
        return false;
    }
    if (b->keep_rows) {
        play_between(b, x, row);
        if (b->status != MF_OK) {
            return false;
        }
    }
    return add_found(b);
}

bool mf_rows_lazy_chain(void *rows, const double *x, mf_milp_lazy_row *row) {
    return find_chain(rows, x, row);
}

/* The longest chain of layers spread evenly over the stages. */
static mf_status first_chain(mf_rows *b) {
    const mf_inner *in = b->in;
    memset(b->count, 0, mf_inner_cells(in) * sizeof *b->count);
    for (int s = 0; s < in->slots; s++) {
        double n = in->segment[in->slot[s].segment].repeats;
        int width = in->slot[s].v_hi - in->slot[s].v_lo + 1;
        for (int v = in->slot[s].v_lo; v <= in->slot[s].v_hi; v++) {
            b->count[mf_inner_cell(in, v, s, 0)] = n / width;
        }
    }
    return mf_inner_play(b->in, b->count, b->lean, NULL, &b->chain, b->e);
}

/* b->chain becomes a row of the program. */
static mf_status add_row(mf_rows *b, mf_milp_lazy_row *row) {
    chain_row(b, row);
    int at = mf_milp_add_row(&b->milp, row->lo, row->hi);
    for (int k = 0; k < row->count; k++) {
        mf_milp_add_entry(&b->milp, at, row->col[k], row->value[k]);
    }
    mf_status status = keep_row(b);
    return b->kept && status == MF_OK ? mf_chains_add(b->kept, &b->chain, b->e) : status;
}

mf_status mf_rows_add_chains(mf_rows *b, const mf_chains *known) {
    size_t room = (size_t)b->milp.cols + 1;
    mf_milp_lazy_row row = {.col = malloc(room * sizeof *row.col),
                            .value = malloc(room * sizeof *row.value)};
    mf_status status = MF_OK;
    b->first_chain_row = b->milp.rows;
    if (!row.col || !row.value) {
        free(row.col);
        free(row.value);
        return mf_err_set(b->e, MF_NOMEM, "out of memory");
    }
    if (!known || known->count == 0) {
        status = first_chain(b);
        status = status == MF_OK ? add_row(b, &row) : status;
    }
    mf_order_chain own = b->chain;
    for (int i = 0; known && i < known->count && status == MF_OK; i++) {
        b->chain = known->chain[i]; /* borrowed */
        status = add_row(b, &row);
    }
    b->chain = own;
    free(row.col);
    free(row.value);
    return status;
}
