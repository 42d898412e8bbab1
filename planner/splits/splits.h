/* splits.h - the least step of a layout over all splits of its positions, by linear programs and a
 * tree; over all whole layers with their choices, by the integer program.
 */
#ifndef MF_PLANNER_SPLITS_H
#define MF_PLANNER_SPLITS_H

#include "planner/lp/milp.h"
#include "planner/partition/partition.h"

/* --- the integer program (integer_program.c) -------------------------------------------------- */

/* Open nodes of a tree over splits (open_splits.h). */
typedef struct mf_open_splits {
    int count, allocated;
    struct mf_open_split *node; /* [allocated] */
} mf_open_splits;
void mf_open_splits_clear(mf_open_splits *o);

/* What a tree over splits has left open. A tree that is taken up again goes on with that. */
typedef struct mf_split_rest {
    double cutoff_s;             /* of the tree: nodes that are not here have bounds at or above */
    mf_open_splits open;         /* none: no tree was made yet */
    struct mf_branch_gain *gain; /* of its numbers (branch_gains.h), or NULL */
} mf_split_rest;
void mf_split_rest_clear(mf_split_rest *rest);

/* What was tried on a layout: counts of a stage that were too large for its memory. No answer is
 * wanted that puts at least as many layers of each cell there. */
typedef struct mf_partition_tried {
    int sets, allocated;
    int *stage;     /* [sets] */
    int32_t *count; /* [sets][cells] */
    mf_split_rest rest;
} mf_partition_tried;
mf_status mf_partition_tried_add(const mf_partition *in, mf_partition_tried *t, int stage,
                                 const int32_t *count, mf_err *e);
void mf_partition_tried_clear(mf_partition_tried *t);

typedef struct mf_partition_options {
    bool coarse;        /* layers without their choices: a quick bound and a split; else
                         * whole layers with every choice */
    bool hull;          /* only choices that stand for all others: for relaxations alone */
    bool lossy;         /* splits: each node of the tree has losses of its own */
    bool splits;        /* whole positions on every virtual stage, choices in any proportion, as
                         * split_tree.c branches; no counts */
    bool memory_ample;  /* splits: memory is no concern, a layer takes the least of its choices */
    double proven_s;    /* a bound that is known already; 0 = none */
    double cutoff_s;    /* only steps below are of interest; INFINITY = any */
    double gap;         /* relative gap at which the program may stop */
    int64_t node_limit; /* of the integer program; 0 = none */
    int64_t effort_ns;  /* counted nanoseconds of one core, about; 0 = any */
    const struct mf_path_set *known; /* paths to begin with; may be NULL */
    const volatile int *cancel;
    mf_milp_fault fault;
} mf_partition_options;

typedef struct mf_partition_solution {
    mf_milp_outcome outcome;
    double bound_s; /* no assignment (that is still wanted) is faster */
    bool have;      /* an answer was found */
    int32_t *count; /* [cells], not coarse: its counts; owned */
} mf_partition_solution;

mf_status mf_partition_solve(mf_partition *in, const mf_partition_tried *tried,
                             const mf_partition_options *o, mf_partition_solution *out, mf_err *e);
void mf_partition_solution_clear(mf_partition_solution *s);

/* --- whole splits (split_tree.c) -------------------------------------------------------------- */

typedef struct mf_partition_split_options {
    double proven_s;     /* a bound that is known already; 0 = none */
    double cutoff_s;     /* a bound at or above is as good as any */
    int64_t lp_limit;    /* linear programs */
    int64_t effort_ns;   /* counted nanoseconds of one core, about; 0 = any */
    bool own_losses;     /* whole splits count what their own positions lose, and more of
                          * them are looked into: tighter, and takes longer */
    mf_split_rest *rest; /* what is left open, from before and for later; may be NULL */
    const struct mf_path_set *known; /* paths to begin with; may be NULL */
    struct mf_path_set *kept; /* may be NULL: receives the paths that bind the relaxation, with
                               * their weights, as mf_partition_relax gives them */
    const volatile int *cancel;
    mf_milp_fault fault;
} mf_partition_split_options;

typedef struct mf_partition_split_result {
    mf_milp_outcome outcome; /* OPTIMAL, LIMIT, FAILED */
    double bound_s;          /* no assignment is faster; the cutoff at most */
    bool have;               /* a whole split with a bound below the cutoff was met ... */
    double split_bound_s;    /* ... none of its assignments is faster than this */
    bool met;   /* none was, but `first` is one that its own losses take above the cutoff */
    bool near;  /* nor that; the last program has a point, and the split nearest to it is ... */
    int *first; /* ... [vstages + 1] its positions; owned */
    int64_t lps;
} mf_partition_split_result;

/* The least step over all splits of the positions, choices mixed in any proportion. Errors:
 * MF_NOMEM, and as the evaluator reports. */
mf_status mf_partition_splits(mf_partition *in, const mf_partition_split_options *o,
                              mf_partition_split_result *out, mf_err *e);
void mf_partition_split_result_clear(mf_partition_split_result *r);

/* The coarse linear relaxation, and the paths that bind it with their weights: *paths is
 * initialised and owned by the caller; it has a mean when mean.count[0] is set. enough_s: a bound
 * at or above is as good as any. first (may be NULL): the split of the positions nearest to its
 * point, [vstages + 1]; only when OPTIMAL. OPTIMAL, LIMIT (effort_ns were not enough: the bound is
 * one still, and there are weights), INFEASIBLE (nothing fits), FAILED. */
mf_status mf_partition_relax(mf_partition *in, const struct mf_path_set *known, double enough_s,
                             int64_t effort_ns, mf_milp_fault fault, struct mf_path_set *paths,
                             int *first, mf_milp_outcome *outcome, double *bound_s, mf_err *e);

#endif
