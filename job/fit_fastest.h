/* fit_fastest.h - a short search beside `fit`: what fits, ranked by time.
 *
 * It stops early, so its plans need not be the best ones; `plan` with the same options searches on.
 */
#ifndef MF_JOB_FIT_FASTEST_H
#define MF_JOB_FIT_FASTEST_H

#include "planner/planner.h"

/* The search for the fastest plan ends within this share of it, or with its effort. */
#define MF_FIT_FASTEST_GAP 0.03

/* Finds the fastest plans of `rows` combinations of degrees (TP, CP, PP, EP, ETP) at most, each
 * with the choices that suit it, best first. When nothing fits it returns MF_OK and no plan. The
 * caller clears *out in any case. Errors: as mf_planner_search reports them. */
mf_status mf_fit_fastest(const mf_problem *p, int rows, int threads, const volatile int *cancel,
                         mf_search_result *out, mf_err *e);

#endif
