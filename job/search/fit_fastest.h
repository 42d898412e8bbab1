/* fit_fastest.h - a short search beside `fit`: what fits, and what would make it fit, ranked by
 * time.
 *
 * It stops early, so its plans need not be the best ones; `plan` with the same options searches on.
 */
#ifndef MF_JOB_FIT_FASTEST_H
#define MF_JOB_FIT_FASTEST_H

#include "job/search/runs_on.h"
#include "launch/steps/steps.h"
#include "planner/planner.h"
#include "planner/tuning/limits.h"

typedef struct mf_fit_rank_options {
    int rows;          /* combinations of degrees (TP, CP, PP, EP, ETP) at most */
    int64_t shown;     /* as in mf_fit_options */
    int remedies;      /* of what makes the job fit, at most */
    int64_t effort_us; /* counted work of each search; those of remedies have two thirds more */
    int threads;
    const volatile int *cancel;
    const mf_runs_on *on; /* what the program can express that is to run the plans */
} mf_fit_rank_options;

typedef struct mf_fit_ranking {
    /* Nothing fits: remedies, steps and pairs of what the search does not choose by itself that
     * make the combination fit that misses least; each with the fastest plan that was found with
     * it and its time, the best first. */
    mf_steps to_fit;
    mf_search_result fastest; /* each plan with the choices that suit its degrees, best first */
    char with[MF_STEP_TEXT];  /* options that `fastest` was found with beside the job's own */
} mf_fit_ranking;

/* Times what fits, as far as the effort goes, and puts fit's entries in the order of time (the rest
 * of them behind that by headroom). Where nothing fits, finds what would make it fit and how fast
 * that is; that nothing does is a result. *fit: of mf_runs_on_fit_problem(o->on, p). What its limit
 * costs stands in out->fastest.stats, where something fits. The caller clears *out in any
 * case. Errors: as mf_planner_search reports them; MF_INTERRUPTED with what was found. */
mf_status mf_fit_rank(const mf_problem *p, mf_fit_result *fit, const mf_fit_rank_options *o,
                      mf_fit_ranking *out, mf_err *e);
void mf_fit_ranking_clear(mf_fit_ranking *r);

#endif
