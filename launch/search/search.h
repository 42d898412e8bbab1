/* search.h - the fastest plan that a target can express (`--runs-on`), and what the limit costs. */
#ifndef MF_LAUNCH_SEARCH_H
#define MF_LAUNCH_SEARCH_H

#include "launch/target/target.h"

#include "planner/planner.h"

/* Like mf_planner_search, over plans that the target runs as they are: mf_target_concede changes
 * none of those found. A target has one memory choice for all layers, so that each of the usual
 * ones is a search of its own, and merged passes, which exclude some of them, are searched apart;
 * the best of one search is what the next has to beat. The bound is the least of all. The budget is
 * that of all searches together; one that has begun may end up to half as much later. Activations
 * are offloaded where the problem pins it alone. o->book is not used; of o->start each search takes
 * what is of its kind. result->stats.unlimited_s: of the best plan met in which layers choose for
 * themselves; 0: none was met. Errors: as there; MF_LAYOUT where the problem holds a schedule that
 * the target does not have. */
mf_status mf_target_search(mf_target t, const mf_problem *p, const mf_search_options *o,
                           mf_search_result *result, mf_err *e);

/* The problem whose combinations of degrees phase 1 is to judge (mf_planner_fit): it lists none
 * that the target cannot run, and each with choices that the target has, as the search above does.
 * *t must outlive *out. Errors: MF_LAYOUT as there. */
mf_status mf_target_fit_problem(const mf_target *t, const mf_problem *p, mf_problem *out,
                                mf_err *e);

#endif
