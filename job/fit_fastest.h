/* fit_fastest.h - a short search beside `fit`: what fits, ranked by time.
 *
 * It stops early, so its plans need not be the best ones; `plan` with the same options searches on.
 */
#ifndef MF_JOB_FIT_FASTEST_H
#define MF_JOB_FIT_FASTEST_H

#include "planner/planner.h"

/* The search for the fastest plan ends within this share of it, or with its effort. */
#define MF_FIT_FASTEST_GAP 0.03
/* Counted seconds that it takes where nobody says so; one that has no plan by then goes on until
 * it has. */
enum { MF_FIT_EFFORT = 3 };

/* Finds the fastest plans of `rows` combinations of degrees (TP, CP, PP, EP, ETP) at most, each
 * with the choices that suit it, best first; effort_us: counted work. When nothing fits it returns
 * MF_OK and no plan. The caller clears *out in any case. Errors: as mf_planner_search reports them.
 */
mf_status mf_fit_fastest(const mf_problem *p, int rows, int64_t effort_us, int threads,
                         const volatile int *cancel, mf_search_result *out, mf_err *e);

#endif
