/* problem.h - what `plan`, `fit` and `explain` share: the planner's problem, made from a job. */
#ifndef MF_JOB_PROBLEM_H
#define MF_JOB_PROBLEM_H

#include "job/job.h"
#include "planner/planner.h"

/* The job's problem: everything is borrowed from it. What its request pins is pinned. Errors:
 * MF_USAGE for a bad list of precisions; MF_LAYOUT where the cluster cannot do it. */
mf_status mf_problem_from_job(const mf_job *j, mf_problem *out, mf_err *e);

/* Puts into e what phase 1 found to be missing: "nothing fits: ...; the smallest size ...". */
void mf_problem_nothing_fits(const mf_fit_result *r, mf_err *e);

#endif
