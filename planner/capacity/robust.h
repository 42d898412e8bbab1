/* robust.h - a plan's step under uneven routing, and plans for a node less. */
#ifndef MF_PLANNER_ROBUST_H
#define MF_PLANNER_ROBUST_H

#include "planner/capacity/carry.h"

typedef struct mf_skewed {
    double step_time_s; /* simulated; at the 95th percentile of the draws */
    double load; /* routed rows of the busiest expert rank over the balanced number, the same */
    double most_load; /* of all draws */
    int draws;        /* simulations */
    bool fits;        /* all of them: with memory for so many rows */
} mf_skewed;

/* Draws that a routing takes. A Zipf law does not say which experts are hot: MF_SKEW_DRAWS. Counts
 * from a file are what they are: one. */
int mf_robust_draws(const mf_routing *skew);

/* The plan's step under `skew`: so many simulations (1 to MF_SKEW_DRAWS), each of a draw of its
 * own, the first of the one that `skew` itself is. */
mf_status mf_robust_skew(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                         const mf_routing *skew, int draws, mf_skewed *out, mf_err *e);

/* most_load of plans with EP ranks. */
double mf_robust_most_load(const mf_model *m, const mf_routing *skew, int draws, int64_t ep);

/* The fastest of known[count] (plans of p's model on `cluster`, such as the other cells of a row)
 * on at most `gpus` of p's GPUs, data parallelism made smaller until it divides the batch; no fewer
 * than half of `gpus`, since what is left has to go on. No search: one of its own may find better.
 * Simulated. Where none fits, *found is false. *out is to be cleared in any case. */
mf_status mf_robust_left(const mf_problem *p, int64_t gpus, int cluster, const mf_carried *known,
                         int count, mf_plan *out, bool *found, mf_err *e);

#endif
