/* fit_fastest.h - a short search after `fit`: the fastest of the layouts that fit.
 *
 * It stops early, so its plans need not be the best ones; `plan` with the same options searches on.
 */
#ifndef MF_JOB_FIT_FASTEST_H
#define MF_JOB_FIT_FASTEST_H

#include "planner/planner.h"

/* The search ends within this share of the fastest plan, or with its effort. */
#define MF_FIT_FASTEST_GAP 0.1

/* Finds the fastest plan, and lists others found on the way, best first. When nothing fits it
 * returns MF_OK and no plan. The caller clears *out in any case. Errors: as mf_planner_search
 * reports them. */
mf_status mf_fit_fastest(const mf_problem *p, int threads, const volatile int *cancel,
                         mf_search_result *out, mf_err *e);

#endif
