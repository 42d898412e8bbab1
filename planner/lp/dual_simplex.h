/* dual_simplex.h - linear programs of a few hundred columns, solved again and again by the dual
 * simplex method on a dense tableau.
 *
 * Minimises cost . x over columns with bounds, under rows lo <= a . x <= hi. Rows come on the way
 * and stay; of all that are known only those that bind, or were broken lately, stand in the
 * tableau: a tableau row for each basic column, and for each broken row until it binds. With some
 * hundred columns and a few dozen rows that bind, a pivot is a few thousand multiplications in a
 * row, and neither a factorisation nor a warm start has to be paid for.
 *
 * Bounds that are given out rest on no tableau: the multipliers that were found are put into the
 * rows as they were given, and what is left of the cost takes each column's worst bound (weak
 * duality holds for any multipliers). A tableau that has lost its accuracy is made anew, and can
 * cost nothing but time.
 *
 * Variables are numbered: columns 0 ... cols - 1, then the rows' sums a . x.
 */
#ifndef MF_PLANNER_DUAL_SIMPLEX_H
#define MF_PLANNER_DUAL_SIMPLEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A place that can bring a variable back to its bound: what the cost rises by for each unit of it,
 * its entry in the tableau, by how much it can move. */
typedef struct mf_dual_candidate {
    double ratio, entry, width;
    int place;
} mf_dual_candidate;

typedef struct mf_dual {
    int cols, stride;         /* stride: doubles of a row, a multiple of 4; the rest is 0 */
    int rows, rows_allocated; /* known */
    double *cost;             /* [cols] as given, */
    double *tilted;           /* [cols] and so that few pivots tie */
    double *lo, *hi;          /* [cols + rows] of every variable */
    double *a;                /* [rows][stride] as given, each scaled by a power of two, */
    double *scale;            /* [rows] this one */
    int *from, *to;           /* [rows] its entries are within [from, to), multiples of 4 */
    int64_t *in_use; /* [rows] the last solve in which it stood in the tableau or was given */
    int *where;      /* [cols + rows] place, or -1 - tableau row, or MF_DUAL_OUT */
    bool *stuck;     /* [cols + rows] off by rounding, it seems */
    int *nonbasic;   /* [cols] variable at each place, */
    bool *up;        /* [cols] at its upper bound, */
    double *at;      /* [cols] and its value */
    int basics, basics_allocated;
    int *basic;    /* [basics] variable of each tableau row */
    double *t;     /* [1 + basics][stride] by nonbasic variables; the first is the cost */
    double *value; /* [1 + basics] of the cost, of each basic variable */
    double *norm;  /* [1 + basics] of each tableau row, squared; negative: not known */
    double *x;     /* [cols] after a solve */
    double *work;  /* [2 * stride] */
    mf_dual_candidate *candidate; /* [cols] */
    int *place;                   /* [cols] of which candidates are chosen */
    int64_t pivots, since;        /* in all, since the tableau was made */
    int64_t entries;              /* entries of tableau and rows that were gone through, in all; */
    int64_t most_entries;         /* solves end as LIMIT at so many; 0 = any */
    int64_t solves;
    bool failed; /* memory ran out, or no bound could be proven */
} mf_dual;

#define MF_DUAL_OUT INT32_MIN

typedef enum mf_dual_outcome {
    MF_DUAL_OPTIMAL,    /* bound is the optimum, or the cutoff when that is at or below */
    MF_DUAL_INFEASIBLE, /* proven, as bounds are */
    MF_DUAL_LIMIT,      /* a limit of pivots or entries was reached; bound is proven */
    MF_DUAL_FAILED      /* numbers got stuck */
} mf_dual_outcome;

/* lo, hi, cost [cols]. A column whose cost is positive (negative) has a finite lower (upper) bound,
 * any other one of both. NULL when one has not, or memory ran out. */
mf_dual *mf_dual_create(int cols, const double *lo, const double *hi, const double *cost);
void mf_dual_free(mf_dual *d);
/* a [cols]. Returns the row's variable, or -1 when memory ran out. */
int mf_dual_add_row(mf_dual *d, const double *a, double lo, double hi);
void mf_dual_set(mf_dual *d, int var, double lo, double hi);
/* Solves on from where the last solve, or mf_dual_restore, stopped. most_pivots 0: any number. */
mf_dual_outcome mf_dual_solve(mf_dual *d, double cutoff, int64_t most_pivots, double *bound);
/* The multiplier of a row: by how much the optimal cost changes per unit of its binding bound; 0
 * when none binds. */
double mf_dual_multiplier(const mf_dual *d, int var);

/* A basis with its tableau, or without: then going back to it makes the tableau anew. */
typedef struct mf_dual_basis {
    int basics, allocated;
    int *nonbasic, *basic;
    bool *up;
    double *t;
} mf_dual_basis;
/* False when memory ran out. */
bool mf_dual_save(const mf_dual *d, bool tableau, mf_dual_basis *b);
void mf_dual_restore(mf_dual *d, const mf_dual_basis *b);
void mf_dual_basis_clear(mf_dual_basis *b);

/* --- private to dual_*.c ------------------------------------------------------------------------
 */

/* Memory for so many in an array that grows, true where there is; `grown` is a void pointer. */
#define MF_DUAL_MORE(array, count)                                                                 \
    ((grown = realloc((array), (count) * sizeof *(array))) != NULL && ((array) = grown, true))

/* `count` numbers, of which the first `had` are those of *row: of none where that is NULL. They
 * begin with a cache line, so that no four of a row lie in two. False when memory ran out. */
bool mf_dual_lines(double **row, size_t had, size_t count);

/* to[0 ... n) += by x from, the sum of products, n being a multiple of 4 (dual_vectors.c). The same
 * numbers bit by bit on any processor. */
void mf_dual_add_times(double *restrict to, const double *restrict from, double by, int n);
double mf_dual_product(const double *restrict a, const double *restrict b, int n);
/* Of four pairs of rows, each sum as mf_dual_product has it. */
void mf_dual_four_products(const double *const a[4], const double *const b[4], int n,
                           double out[4]);
/* Puts the sum of a row that is out into the tableau; false when memory ran out. */
bool mf_dual_enter_row(mf_dual *d, int row);
/* Removes rows whose sums are basic from the tableau: they do not bind. */
void mf_dual_drop_basic_rows(mf_dual *d);
/* The tableau from the rows as given, for the same basis; false when rounding makes it none, or
 * memory ran out. */
bool mf_dual_renew(mf_dual *d);
/* Makes the tableau without rows: every column is at a bound. */
void mf_dual_reset(mf_dual *d);
/* A pivot: the basic variable of tableau row r goes to a bound, the variable at place q becomes
 * basic. */
void mf_dual_pivot(mf_dual *d, int r, int q);
/* Values of basic variables from those at bounds. */
void mf_dual_values(mf_dual *d);
/* The lower bound that the current multipliers prove. */
double mf_dual_proven(mf_dual *d);
/* Is it proven that tableau row r cannot keep its variable's bounds? */
bool mf_dual_proves_empty(mf_dual *d, int r);

#endif
