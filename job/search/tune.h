/* tune.h - the three phases on one job, against the layout that it runs with: what fits, what is
 * faster, what holds back.
 */
#ifndef MF_JOB_TUNE_H
#define MF_JOB_TUNE_H

#include "job/load/job.h"
#include "job/search/host_copies.h"
#include "job/search/runs_on.h"
#include "launch/steps/steps.h"

typedef struct mf_tune_request {
    const char *runs_on; /* as mf_runs_on_parse takes it; NULL */
    double min_headroom; /* share of the GPU's memory that a plan leaves free beyond the reserve */
    int64_t effort_us;   /* of a search, counted (mf_search_options.budget); 0: the default */
    int threads;         /* 0: one a core, at most 8 */
    const volatile int *cancel;
} mf_tune_request;

/* Phases in their order: what fits, single steps and what makes the job fit, the best plan. */
enum { MF_TUNE_FITS = 1, MF_TUNE_STEPS, MF_TUNE_PLAN };

typedef struct mf_tuning {
    const mf_job *job; /* borrowed; its plan is the present layout */
    int finished;      /* phases; fewer than MF_TUNE_PLAN: it was interrupted */
    mf_problem problem;
    mf_runs_on on;
    double min_headroom_B; /* the same in bytes */
    bool now_fits;         /* the present layout, with so much free */
    mf_fit_result fit;
    mf_steps steps;  /* single ones, fastest first; if interrupted those that were played */
    mf_steps to_fit; /* of a layout that does not fit: what makes it fit */
    mf_search_result search;
    mf_host_copies host;     /* of the best plan */
    mf_host_copies host_now; /* of the present layout */
    double offloaded;        /* share of the optimizer's states on the host that it was found with,
                                where nothing fits as it is; else 0 */
    mf_explanation explanation;
} mf_tuning;

/* The job must be simulated. No option of its request pins the search. That nothing fits, or
 * nothing is faster, is a result. The caller clears *out in any case. Errors: MF_USAGE for
 * --runs-on; MF_INTERRUPTED through cancel, with what was found; those of the planner and of
 * mf_steps_single. */
mf_status mf_job_tune(const mf_job *j, const mf_tune_request *r, mf_tuning *out, mf_err *e);
void mf_tuning_clear(mf_tuning *t);

/* The best plan, if it is worth a change; else NULL. */
const mf_plan *mf_tuning_better_plan(const mf_tuning *t);

/* The single step of this text; NULL: there is none. */
const mf_one_step *mf_tuning_step(const mf_tuning *t, const char *what);

#endif
