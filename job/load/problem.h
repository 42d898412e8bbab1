/* problem.h - what `plan`, `fit` and `explain` share: the planner's problem, made from a job. */
#ifndef MF_JOB_PROBLEM_H
#define MF_JOB_PROBLEM_H

#include "job/load/job.h"
#include "planner/planner.h"

/* Makes the job's problem, which borrows everything from the job and pins what its request pins.
 * Errors: MF_USAGE for a bad list of precisions; MF_LAYOUT where the cluster cannot do it. */
mf_status mf_problem_from_job(const mf_job *j, mf_problem *out, mf_err *e);

/* Sets e to what phase 1 found missing: "nothing fits: ...; the smallest size ...". */
void mf_problem_nothing_fits(const mf_fit_result *r, mf_err *e);

#endif
