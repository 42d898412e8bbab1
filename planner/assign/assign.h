/* assign.h - plans of one layout that fit, found by trying: memory choices for given positions,
 * better positions and choices, every plan where there are few.
 */
#ifndef MF_PLANNER_ASSIGN_H
#define MF_PLANNER_ASSIGN_H

#include "planner/partition/partition.h"

/* --- a first plan (fill.c, give_away.c) ------------------------------------------------------- */

/* Finds memory choices for a split of the positions: the fastest that the evaluator's memory plan
 * accepts, as counts and as an assignment. gaps: the plan's gaps count, too, which takes long to
 * find out. free_B[stages]: the most bytes for each stage; what the memory plan finds too much is
 * taken away from it. Errors: MF_INFEASIBLE if none is found. */
mf_status mf_partition_fill_checked(mf_partition *in, const int *first, bool gaps, double *free_B,
                                    int32_t *count, mf_assignment *out, mf_err *e);
/* Writes the cells of one stage, without asking the memory plan. False: no choices make it fit.
 * Merged schedules: mf_partition_own_pairs was called. */
bool mf_partition_fill_stage(const mf_partition *in, const int *first, int stage, double free_B,
                             int32_t *count);
/* About how many bytes a stage needs: what filling goes by. */
double mf_partition_stage_B(const mf_partition *in, int32_t *count, int stage);
/* Moves positions, one at a time, from stages that no memory choice makes fit to stages with memory
 * left. Merged schedules: mf_partition_own_pairs was called. Errors: MF_INFEASIBLE, with first[] as
 * it was, if some stage does not fit all the same; MF_NOMEM. */
mf_status mf_partition_give_away(mf_partition *in, int *first, mf_err *e);

/* --- a better split (local_search.c) ---------------------------------------------------------- */

/* Moves positions from virtual stages that the longest path passes through often to others, memory
 * choices refilled each time, and keeps the split that plays shortest. first[vstages + 1] is the
 * split to start from and the one that was found; *time_s is what it plays in (no bound, and not
 * simulated). A first split that does not play below hopeless_s is left as it is. Moves end after
 * about effort_ns, counted. Errors: MF_INFEASIBLE when the first split does not fit. */
mf_status mf_partition_improve(mf_partition *in, double hopeless_s, int64_t effort_ns, int *first,
                               mf_assignment *out, double *time_s, mf_err *e);
/* As mf_partition_improve, with simulated steps: moves positions from a plan that fits, *out,
 * promising moves and nearest virtual stages first, as long as steps become shorter than *best_s
 * and that plan fits. Moves that gain allow as much effort again (MF_STEP_SEARCH_MORE). *simulated
 * steps are counted. */
mf_status mf_partition_improve_step(mf_partition *in, int64_t effort_ns, mf_assignment *out,
                                    double *best_s, int64_t *simulated, mf_err *e);
/* The same with memory choices, positions as they are (choice_search.c): a layer takes a faster
 * one, another layer of its stage a smaller one where memory is short. */
mf_status mf_partition_improve_choices(mf_partition *in, int64_t effort_ns, mf_assignment *out,
                                       double *best_s, int64_t *simulated, mf_err *e);
/* May positions stand like this? No virtual stage is empty, each slot stands within its range. */
bool mf_partition_is_split(const mf_partition *in, const int *first);

/* --- every plan (exhaustive.c) ---------------------------------------------------------------- */

typedef struct mf_partition_all {
    bool complete; /* there are few enough: all were simulated */
    bool found;    /* one of them fits; the fastest that does is `best` */
    double time_s;
    mf_assignment best;
    int64_t tried;
} mf_partition_all;

/* Simulates every split with every memory choice of the catalogue, if those are `most` plans at
 * most. pinned: as in mf_partition_create. */
mf_status mf_partition_try_all(const mf_partition *in, uint32_t pinned, int64_t most,
                               mf_partition_all *out, mf_err *e);

#endif
