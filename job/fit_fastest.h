/* fit_fastest.h - short searches beside `fit`: which of the layouts that fit are the fastest, and
 * with what a job fits that does not.
 *
 * They stop early: a step time is that of a plan which was found, not of the best one. `plan` with
 * the same options goes on.
 */
#ifndef MF_JOB_FIT_FASTEST_H
#define MF_JOB_FIT_FASTEST_H

#include "launch/steps.h"

/* Searches end within this share of the fastest plan, or with their effort. */
#define MF_FIT_FASTEST_GAP 0.1

/* The fastest plan that was found, and others that were met on the way, best first. Nothing fits:
 * MF_OK, and none. *out is to be cleared in any case. Errors: as mf_planner_search reports them. */
mf_status mf_fit_fastest(const mf_problem *p, int threads, const volatile int *cancel,
                         mf_search_result *out, mf_err *e);

/* Of a problem of which no layout fits: a plan that does with optimizer states on the host, with
 * moments in BF16, and with both, least time first; those that do not help are left out. `what`
 * names the options and the plan's degrees. *out is to be cleared in any case. */
mf_status mf_fit_remedies(const mf_problem *p, int threads, const volatile int *cancel,
                          mf_steps *out, mf_err *e);

#endif
