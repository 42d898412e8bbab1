/* runs_on.h - the program that is to run a plan, and searches that hold to what it can express
 * (`--runs-on`).
 */
#ifndef MF_JOB_RUNS_ON_H
#define MF_JOB_RUNS_ON_H

#include "core/model/model.h"
#include "launch/target.h"
#include "planner/planner.h"

typedef struct mf_runs_on {
    bool limited; /* else the whole space is searched, and the rest does not count */
    mf_target target;
} mf_runs_on;

/* word: of the option, or NULL: megatron where the software profile is one of Megatron's, else any.
 * Errors: MF_USAGE "--runs-on: ...". */
mf_status mf_runs_on_parse(const char *word, const char *software, mf_runs_on *out, mf_err *e);

/* Refuses a model that the program cannot be told; word, software: as above. Without a word
 * Megatron-Bridge takes the place of Megatron-LM where it alone has a recipe for the model.
 * Errors: MF_INFEASIBLE. */
mf_status mf_runs_on_check_model(mf_runs_on *r, const char *word, const char *software,
                                 const mf_model *m, mf_err *e);

/* An mf_search_fn (job/host_copies.h); user: const mf_runs_on *. */
mf_status mf_runs_on_search(void *user, const mf_problem *p, const mf_search_options *o,
                            mf_search_result *r, mf_err *e);

#endif
