/* problem.h - what `plan`, `fit` and `explain` share: the planner's problem, made from a job. */
#ifndef MF_CLI_PROBLEM_H
#define MF_CLI_PROBLEM_H

#include "cli/job.h"
#include "planner/planner.h"

/* The job's problem: everything is borrowed from it. Given layout options pin their dimension.
 * Errors: MF_USAGE for a bad --precisions; MF_LAYOUT where the cluster cannot do it. */
mf_status mf_problem_from_job(const mf_job *j, const mf_args *a, mf_problem *out, mf_err *e);

/* --gpus, --global-batch and --seq were given. */
mf_status mf_problem_require(const mf_args *a, mf_err *e);

/* Puts into e what phase 1 found to be missing: "nothing fits: ...; the smallest size ...". */
void mf_problem_nothing_fits(const mf_fit_result *r, mf_err *e);

#endif
