/* milp.h - mixed-integer linear programs as plain data, and solving them with GLPK.
 *
 * A program minimises sum(cost * x) over columns with bounds, some of them integer, under rows with
 * bounds. It is built with counts from 0, printable and comparable in tests; only glpk_solve.c
 * knows GLPK. Solving is deterministic: limits count nodes and simplex iterations, never seconds.
 *
 * GLPK ends the process on misuse, on a failed internal check and when memory runs out. Here that
 * becomes MF_MILP_FAILED with GLPK's own last words: the error hook leaves GLPK by a long jump, its
 * memory is bounded, and its environment (one per thread) is freed whole. Nothing is printed.
 */
#ifndef MF_PLANNER_MILP_H
#define MF_PLANNER_MILP_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mf_milp_col {
    double lo, hi; /* +-INFINITY = no bound */
    double cost;
    bool integer;
} mf_milp_col;

typedef struct mf_milp_row {
    double lo, hi; /* +-INFINITY = no bound */
    int defines;   /* column, or -1 (mf_milp_define) */
} mf_milp_row;

typedef struct mf_milp_entry {
    int row, col;
    double value;
} mf_milp_entry;

typedef struct mf_milp {
    int cols, rows, entries;
    int cols_allocated, rows_allocated, entries_allocated;
    mf_milp_col *col;
    mf_milp_row *row;
    mf_milp_entry *entry; /* each (row, col) at most once */
    bool failed;          /* out of memory while building */
} mf_milp;

void mf_milp_init(mf_milp *p);
void mf_milp_clear(mf_milp *p);

/* Append; return the index (0 when memory ran out: `failed` is set and solving reports it). */
int mf_milp_add_col(mf_milp *p, double lo, double hi, double cost, bool integer);
int mf_milp_add_row(mf_milp *p, double lo, double hi);
/* Zero values are left out. */
void mf_milp_add_entry(mf_milp *p, int row, int col, double value);
/* The row, an equality, defines the column: the column starts basic in that row. Call it in an
 * order in which no row needs a column that is defined later. Affects speed only. */
void mf_milp_define(mf_milp *p, int col, int row);

typedef enum mf_milp_outcome {
    MF_MILP_OPTIMAL,    /* x is optimal within the tolerance; bound == its objective */
    MF_MILP_INFEASIBLE, /* no point, or none below the cutoff */
    MF_MILP_LIMIT,      /* a limit was reached: bound is proven, x is the best found if have_x */
    MF_MILP_CANCELLED,  /* as LIMIT, because *cancel was set */
    MF_MILP_FAILED,     /* GLPK gave up; nothing is known */
} mf_milp_outcome;

/* A fault that a test plants in GLPK, in order to see that the plan survives. */
typedef enum mf_milp_fault {
    MF_MILP_FAULT_NONE,
    MF_MILP_FAULT_ABORT,
    MF_MILP_FAULT_NOMEM
} mf_milp_fault;

/* A row that was not there from the start: entries over columns, each column once. */
typedef struct mf_milp_lazy_row {
    double lo, hi;
    int count;
    int *col;      /* [all columns] */
    double *value; /* [all columns] */
    bool more;     /* there is another one for the same point: called again with it right away */
} mf_milp_lazy_row;

/* Called with the point of every relaxation that is solved. Fills in one row that all wanted points
 * keep and this one does not, and returns true; or returns false when the point is fine. */
typedef bool (*mf_milp_lazy_fn)(void *user, const double *x, mf_milp_lazy_row *row);

typedef struct mf_milp_options {
    double cutoff;              /* only points with an objective below are wanted; INFINITY = any */
    double gap;                 /* relative gap at which to stop, 0 = optimal */
    int64_t node_limit;         /* nodes of the branch-and-bound tree; 0 = no limit */
    int64_t effort_ns;          /* counted nanoseconds of one core; 0 = no limit */
    const volatile int *cancel; /* may be NULL */
    mf_milp_lazy_fn lazy;       /* may be NULL */
    void *lazy_user;
    mf_milp_fault fault;
} mf_milp_options;

typedef struct mf_milp_result {
    mf_milp_outcome outcome;
    bool have_x;
    double objective; /* of x */
    double bound;     /* proven lower bound of the objective; -INFINITY = none */
    int64_t nodes;
    int64_t effort_ns; /* its effort, counted in GLPK's iterations */
    char text[160];    /* GLPK's words when outcome is FAILED */
} mf_milp_result;

/* Solves. x: [p->cols]. Errors: MF_NOMEM only when the program itself could not be
 * built; whatever happens inside GLPK is an outcome. Thread-safe. */
mf_status mf_milp_solve(const mf_milp *p, const mf_milp_options *o, double *x, mf_milp_result *r,
                        mf_err *e);

/* Fixes every integer column at round(x) and solves the linear program that remains: row_dual[rows]
 * is the change of the optimum per unit of the row's active bound (its shadow price). Outcomes:
 * OPTIMAL, INFEASIBLE, FAILED. */
mf_status mf_milp_duals(const mf_milp *p, const double *x, double *row_dual, mf_milp_result *r,
                        mf_err *e);

/* --- the same program, again and again -------------------------------------------------------- */

/* A linear program (integers relaxed) that is solved again and again under other bounds, each time
 * from where it stood, on a tableau of our own (dual_simplex.h): GLPK has no part in it. Columns
 * that a row defines are put in wherever they stand; of the others those with a cost need a finite
 * bound on the side that costs least, the rest one on either side. Lazy rows stay. */
typedef struct mf_lp mf_lp;
/* p and o are borrowed until it is closed; of the options lazy and fault apply (any fault: it gives
 * up).
 * Errors: MF_NOMEM. */
mf_status mf_lp_open(const mf_milp *p, const mf_milp_options *o, mf_lp **out, mf_err *e);
void mf_lp_close(mf_lp *lp);
void mf_lp_set_col(mf_lp *lp, int col, double lo, double hi);
void mf_lp_set_row(mf_lp *lp, int row, double lo, double hi);
/* OPTIMAL: *bound is the optimum of the rows that are there (of all, unless max_lazy rounds of lazy
 * rows were not enough), or cutoff when the optimum is known to be there or above. INFEASIBLE.
 * LIMIT (mf_lp_limit): *bound is what the optimum is at least. FAILED: its numbers got stuck, or
 * memory ran out, and it will not do better from then on. */
mf_milp_outcome mf_lp_solve(mf_lp *lp, double cutoff, int max_lazy, double *bound);
/* Simplex iterations of a solve from now on, 0 = any: a solve that takes more is given up. */
void mf_lp_limit(mf_lp *lp, int pivots);
/* Counted nanoseconds of one core that all solves together may take (mf_lp_effort_ns): the one that
 * gets there ends as LIMIT, and so do all after it. 0 = any. */
void mf_lp_allow(mf_lp *lp, int64_t effort_ns);
/* Effort of all solves so far, in counted nanoseconds of one core: the same on every machine. */
int64_t mf_lp_effort_ns(const mf_lp *lp);
/* A solve's lazy rows from now on: it stops when `rounds` rounds of them brought less than
 * share x (cutoff - bound); without a cutoff it is taken a tenth above. 0 = never. */
void mf_lp_stall(mf_lp *lp, int rounds, double share);
/* The basis as it is, to go back to: with its tableau that is quick, without it takes little
 * memory. Rows that came since stay. into: one that is used again, or NULL. NULL where memory ran
 * out; going back is nothing but quicker, and to NULL is left undone. The caller forgets it. */
typedef struct mf_dual_basis mf_lp_basis;
mf_lp_basis *mf_lp_note(const mf_lp *lp, bool tableau, mf_lp_basis *into);
void mf_lp_go_to(mf_lp *lp, const mf_lp_basis *b);
void mf_lp_forget(mf_lp_basis *b);
/* The point of the last solve that ended below its cutoff: [cols]. */
const double *mf_lp_point(const mf_lp *lp);
/* Multiplier of a row after the last solve; lazy rows follow the program's own. */
double mf_lp_row_dual(const mf_lp *lp, int row);
/* Lazy rows so far. */
int64_t mf_lp_lazy_rows(const mf_lp *lp);

/* Gives back the calling thread's GLPK environment (kept between solves otherwise). */
void mf_milp_thread_end(void);

#endif
