/* runs_on.h - the program that runs a plan, and searches limited to what it can express
 * (`--runs-on`).
 */
#ifndef MF_JOB_RUNS_ON_H
#define MF_JOB_RUNS_ON_H

#include "core/model/model.h"
#include "launch/target/target.h"
#include "planner/planner.h"

typedef struct mf_runs_on {
    bool limited; /* false: searches use the whole space, and the rest is ignored */
    mf_target target;
} mf_runs_on;

/* word: the option's; NULL: megatron if the software profile is one of Megatron's, else any.
 * Errors: MF_USAGE "--runs-on: ...". */
mf_status mf_runs_on_parse(const char *word, const char *software, mf_runs_on *out, mf_err *e);

/* Whose prices a plan has that is to run there. asked: the software that was asked for, which is
 * taken; NULL: the newest Megatron's where the word is one of its programs, else NULL, the default.
 */
const char *mf_runs_on_software(const char *word, const char *asked);

/* Refuses a model that the program cannot build; word, software: as above. Without a word it
 * chooses Megatron-Bridge over Megatron-LM if only that has a recipe for the model. Errors:
 * MF_INFEASIBLE. */
mf_status mf_runs_on_check_model(mf_runs_on *r, const char *word, const char *software,
                                 const mf_model *m, mf_err *e);

/* The problem that phase 1 judges (mf_planner_fit): p, or what the program leaves of it. *r must
 * outlive *out. Errors: MF_LAYOUT where it cannot run the schedule that p holds. */
mf_status mf_runs_on_fit_problem(const mf_runs_on *r, const mf_problem *p, mf_problem *out,
                                 mf_err *e);

/* Of a limited search with the options o that has found a plan: searches p without the limit, with
 * a fifth of the effort, and notes in the result what the limit costs. Errors: as the search's. */
mf_status mf_runs_on_price(const mf_runs_on *r, const mf_problem *p, const mf_search_options *o,
                           mf_search_result *found, mf_err *e);

/* An mf_search_fn (job/search/host_copies.h); user: const mf_runs_on *. */
mf_status mf_runs_on_search(void *user, const mf_problem *p, const mf_search_options *o,
                            mf_search_result *r, mf_err *e);

#endif
