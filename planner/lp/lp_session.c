/* lp_session.c - a linear program that stays in its tableau between solves.
 *
 * Columns that are defined by a row (mf_milp_define) are put in wherever they stand, so that the
 * tableau has none of them; where they have bounds, their sum is a row of its own.
 */
#include "planner/lp/dual_simplex.h"
#include "planner/lp/milp.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A column that a row defines, as a sum over the tableau's columns: those within [from, to),
 * multiples of 4. */
typedef struct defined_col {
    double *value; /* [the tableau's stride]; NULL: no row defines it */
    int from, to;
} defined_col;

struct mf_lp {
    const mf_milp *program;
    const mf_milp_options *options;
    mf_dual *dual;
    int *col_of;          /* [cols] the tableau's column, or -1: it is defined, */
    int *col_var;         /* [cols] variable that has the column's bounds, -1 = it never had any */
    defined_col *defined; /* [cols] */
    int *row_var;         /* [rows, lazy ones included] variable; -1 = the row defines a column */
    int rows, rows_allocated; /* lazy ones included */
    double *sum, *x;      /* [tableau's stride] a row that is being made; [cols] the last point */
    mf_milp_lazy_row row; /* the one that is asked for */
    int64_t lazy_rows;
    int64_t entries;     /* of defined columns that were put in or read, in all */
    int64_t most_pivots; /* of a solve; 0 = any */
    int stall_rounds;
    double stall_share;
    bool dead; /* it gave up */
};

/* --- rows ------------------------------------------------------------------------------------- */

/* An entry of a row over the program's columns, in terms of the tableau's. */
static void add_entry(mf_lp *lp, int col, double value) {
    int at = lp->col_of[col];
    if (at >= 0) {
        lp->sum[at] += value;
        return;
    }
    const defined_col *x = &lp->defined[col];
    lp->entries += x->to - x->from;
    if (x->to > x->from) {
        mf_dual_add_times(lp->sum + x->from, x->value + x->from, value, x->to - x->from);
    }
}

static bool number_row(mf_lp *lp, int var) {
    if (lp->rows == lp->rows_allocated) {
        size_t allocated = 2 * (size_t)lp->rows_allocated + 64;
        int *grown = realloc(lp->row_var, allocated * sizeof *grown);
        if (!grown) {
            return false;
        }
        lp->row_var = grown;
        lp->rows_allocated = (int)allocated;
    }
    lp->row_var[lp->rows++] = var;
    return true;
}

/* The row in lp->sum, which is emptied. -1: out of memory. */
static int take_row(mf_lp *lp, double lo, double hi) {
    int var = mf_dual_add_row(lp->dual, lp->sum, lo, hi);
    memset(lp->sum, 0, (size_t)lp->dual->cols * sizeof *lp->sum);
    return var;
}

/* The column that row i defines, from the entries of the others in lp->sum and its own. */
static bool define(mf_lp *lp, int i, double own) {
    int col = lp->program->row[i].defines;
    const int n = lp->dual->cols;
    double *sum = calloc((size_t)lp->dual->stride, sizeof *sum);
    if (!sum || !(own > 0.0 || own < 0.0)) {
        free(sum);
        return false;
    }
    defined_col x = {.value = sum};
    for (int j = 0; j < n; j++) {
        if (lp->sum[j] > 0.0 || lp->sum[j] < 0.0) {
            sum[j] = -lp->sum[j] / own;
            x.from = x.to > 0 ? x.from : j / 4 * 4;
            x.to = j / 4 * 4 + 4;
        }
    }
    memset(lp->sum, 0, (size_t)n * sizeof *sum);
    lp->defined[col] = x;
    return true;
}

/* --- open and close --------------------------------------------------------------------------- */

/* The program's rows, entries sorted by row; of the defining ones the defined columns. */
static bool load_rows(mf_lp *lp, const int *start, const int *entry) {
    const mf_milp *p = lp->program;
    for (int i = 0; i < p->rows; i++) {
        int var = -1, col = p->row[i].defines;
        double own = 0.0;
        for (int k = start[i]; k < start[i + 1]; k++) {
            const mf_milp_entry *x = &p->entry[entry[k]];
            if (x->col == col) {
                own = x->value;
            } else {
                add_entry(lp, x->col, x->value);
            }
        }
        if (col >= 0) {
            if (!define(lp, i, own)) {
                return false;
            }
        } else {
            var = take_row(lp, p->row[i].lo, p->row[i].hi);
            if (var < 0) {
                return false;
            }
        }
        if (!number_row(lp, var)) {
            return false;
        }
    }
    return true;
}

/* Rows of the bounds of defined columns. */
static bool load_bounds(mf_lp *lp) {
    const mf_milp *p = lp->program;
    for (int j = 0; j < p->cols; j++) {
        lp->col_var[j] = lp->col_of[j];
        if (lp->col_of[j] < 0 && !(isinf(p->col[j].lo) && isinf(p->col[j].hi))) {
            add_entry(lp, j, 1.0);
            lp->col_var[j] = take_row(lp, p->col[j].lo, p->col[j].hi);
            if (lp->col_var[j] < 0) {
                return false;
            }
        }
    }
    return true;
}

static bool load_sorted(mf_lp *lp) {
    const mf_milp *p = lp->program;
    int *start = calloc((size_t)p->rows + 2, sizeof *start);
    int *entry = malloc(((size_t)p->entries + 1) * sizeof *entry);
    bool ok = start && entry;
    for (int k = 0; k < p->entries && ok; k++) {
        start[p->entry[k].row + 2]++;
    }
    for (int i = 0; i < p->rows && ok; i++) {
        start[i + 2] += start[i + 1];
    }
    for (int k = 0; k < p->entries && ok; k++) {
        entry[start[p->entry[k].row + 1]++] = k;
    }
    ok = ok && load_rows(lp, start, entry) && load_bounds(lp);
    free(start);
    free(entry);
    return ok;
}

/* The tableau's columns: those that no row defines. */
static bool load(mf_lp *lp) {
    const mf_milp *p = lp->program;
    size_t n = (size_t)p->cols + 1;
    int cols = 0;
    double *lo = malloc(3 * n * sizeof *lo), *hi = lo ? lo + n : NULL, *cost = lo ? hi + n : NULL;
    lp->col_of = calloc(n, sizeof *lp->col_of);
    lp->col_var = calloc(n, sizeof *lp->col_var);
    lp->defined = calloc(n, sizeof *lp->defined);
    lp->sum = calloc(n + 4, sizeof *lp->sum);
    lp->x = calloc(n, sizeof *lp->x);
    lp->row.col = malloc(n * sizeof *lp->row.col);
    lp->row.value = malloc(n * sizeof *lp->row.value);
    bool ok = lo && lp->col_of && lp->col_var && lp->defined && lp->sum && lp->x && lp->row.col &&
              lp->row.value;
    for (int i = 0; i < p->rows && ok; i++) {
        if (p->row[i].defines >= 0) {
            lp->col_of[p->row[i].defines] = -1;
        }
    }
    for (int j = 0; j < p->cols && ok; j++) {
        if (lp->col_of[j] == 0) {
            lp->col_of[j] = cols;
            lo[cols] = p->col[j].lo;
            hi[cols] = p->col[j].hi;
            cost[cols++] = p->col[j].cost;
        }
    }
    lp->dual = ok ? mf_dual_create(cols, lo, hi, cost) : NULL;
    free(lo);
    return lp->dual && load_sorted(lp);
}

mf_status mf_lp_open(const mf_milp *p, const mf_milp_options *o, mf_lp **out, mf_err *e) {
    mf_lp *lp = calloc(1, sizeof *lp);
    *out = lp;
    if (!lp || p->failed) {
        free(lp);
        *out = NULL;
        return mf_err_set(e, MF_NOMEM, "out of memory for a linear program of %d columns", p->cols);
    }
    lp->program = p;
    lp->options = o;
    lp->dead = o->fault != MF_MILP_FAULT_NONE || !load(lp);
    return MF_OK;
}

void mf_lp_close(mf_lp *lp) {
    if (!lp) {
        return;
    }
    mf_dual_free(lp->dual);
    for (int j = 0; lp->defined && j < lp->program->cols; j++) {
        free(lp->defined[j].value);
    }
    free(lp->col_of);
    free(lp->col_var);
    free(lp->defined);
    free(lp->row_var);
    free(lp->sum);
    free(lp->x);
    free(lp->row.col);
    free(lp->row.value);
    free(lp);
}

void mf_lp_set_col(mf_lp *lp, int col, double lo, double hi) {
    if (!lp->dead && lp->col_var[col] >= 0) {
        mf_dual_set(lp->dual, lp->col_var[col], lo, hi);
    }
}

void mf_lp_set_row(mf_lp *lp, int row, double lo, double hi) {
    if (!lp->dead && lp->row_var[row] >= 0) {
        mf_dual_set(lp->dual, lp->row_var[row], lo, hi);
    }
}

/* --- solving ---------------------------------------------------------------------------------- */

static void read_point(mf_lp *lp) {
    const mf_dual *d = lp->dual;
    for (int j = 0; j < lp->program->cols; j++) {
        const int at = lp->col_of[j];
        const defined_col *x = &lp->defined[j];
        if (at >= 0) {
            lp->x[j] = d->x[at];
        } else {
            const int n = x->to - x->from;
            lp->x[j] = n > 0 ? mf_dual_product(x->value + x->from, d->x + x->from, n) : 0.0;
            lp->entries += n;
        }
    }
}

/* Rows that the point breaks; false when it breaks none, or memory ran out. */
static bool add_lazy(mf_lp *lp) {
    mf_milp_lazy_row *row = &lp->row;
    bool added = false;
    do {
        row->more = false;
        if (!lp->options->lazy(lp->options->lazy_user, lp->x, row)) {
            return added;
        }
        for (int k = 0; k < row->count; k++) {
            add_entry(lp, row->col[k], row->value[k]);
        }
        int var = take_row(lp, row->lo, row->hi);
        if (var < 0 || !number_row(lp, var)) {
            lp->dead = true;
            return false;
        }
        lp->lazy_rows++;
        added = true;
    } while (row->more);
    return true;
}

static mf_milp_outcome solve_as_is(mf_lp *lp, double cutoff, int64_t most_pivots, double *bound) {
    switch (mf_dual_solve(lp->dual, cutoff, most_pivots, bound)) {
    case MF_DUAL_OPTIMAL:
        return MF_MILP_OPTIMAL;
    case MF_DUAL_INFEASIBLE:
        return MF_MILP_INFEASIBLE;
    case MF_DUAL_LIMIT:
        return MF_MILP_LIMIT;
    case MF_DUAL_FAILED:
        break;
    }
    lp->dead = true;
    *bound = -INFINITY;
    return MF_MILP_FAILED;
}

mf_milp_outcome mf_lp_solve(mf_lp *lp, double cutoff, int max_lazy, double *bound) {
    double before = -INFINITY;
    *bound = -INFINITY;
    int64_t until = lp->dead ? 0 : lp->dual->pivots + lp->most_pivots;
    for (int round = 0; !lp->dead; round++) {
        int64_t left = until > lp->dual->pivots ? until - lp->dual->pivots : 1;
        mf_milp_outcome outcome = solve_as_is(lp, cutoff, lp->most_pivots > 0 ? left : 0, bound);
        if (outcome != MF_MILP_OPTIMAL || *bound >= cutoff) {
            return outcome;
        }
        bool enough = !lp->options->lazy || round >= max_lazy;
        if (lp->stall_rounds > 0 && round % lp->stall_rounds == 0) {
            double below = isfinite(cutoff) ? cutoff - *bound : 0.1 * fabs(*bound);
            enough = enough || *bound - before < lp->stall_share * below;
            before = *bound;
        }
        read_point(lp);
        if (enough || !add_lazy(lp)) {
            return lp->dead ? MF_MILP_FAILED : MF_MILP_OPTIMAL;
        }
    }
    *bound = -INFINITY;
    return MF_MILP_FAILED;
}

void mf_lp_limit(mf_lp *lp, int pivots) {
    lp->most_pivots = pivots;
}

void mf_lp_allow(mf_lp *lp, int64_t effort_ns) {
    if (lp->dual) {
        lp->dual->most_entries =
            effort_ns > 0 ? (int64_t)((double)effort_ns / MF_LP_ENTRY_NS) + 1 : 0;
    }
}

int64_t mf_lp_effort_ns(const mf_lp *lp) {
    const int64_t entries = lp->entries + (lp->dual ? lp->dual->entries : 0);
    return (int64_t)(MF_LP_ENTRY_NS * (double)entries);
}

void mf_lp_stall(mf_lp *lp, int rounds, double share) {
    lp->stall_rounds = rounds;
    lp->stall_share = share;
}

const double *mf_lp_point(const mf_lp *lp) {
    return lp->x;
}

double mf_lp_row_dual(const mf_lp *lp, int row) {
    bool there = !lp->dead && row < lp->rows && lp->row_var[row] >= 0;
    return there ? mf_dual_multiplier(lp->dual, lp->row_var[row]) : 0.0;
}

int64_t mf_lp_lazy_rows(const mf_lp *lp) {
    return lp->lazy_rows;
}

/* --- bases ------------------------------------------------------------------------------------ */

mf_lp_basis *mf_lp_note(const mf_lp *lp, bool tableau, mf_lp_basis *into) {
    mf_dual_basis *b = into || lp->dead ? into : calloc(1, sizeof *b);
    if (b && (lp->dead || !mf_dual_save(lp->dual, tableau, b))) {
        mf_lp_forget(b);
        b = NULL;
    }
    return b;
}

void mf_lp_go_to(mf_lp *lp, const mf_lp_basis *b) {
    if (!lp->dead && b) {
        mf_dual_restore(lp->dual, b);
    }
}

void mf_lp_forget(mf_lp_basis *b) {
    if (b) {
        mf_dual_basis_clear(b);
        free(b);
    }
}
