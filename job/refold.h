/* refold.h - finds a new plan for a job on fewer ranks. */
#ifndef MF_JOB_REFOLD_H
#define MF_JOB_REFOLD_H

#include "job/job.h"
#include "planner/planner.h"

/* Prices for a plan of a job on this machine: a plan file names its cluster, here the shipped
 * cluster of CPU ranks, and readers of the plan count on that cluster's memory. The caller destroys
 * *out. */
mf_status mf_job_refold_prices(const mf_job *j, mf_cost **out, mf_err *e);

/* Finds the fastest plan on so many ranks, with batch, sequence, arithmetic and optimizer states
 * unchanged. The caller clears *out in any case. Errors: as mf_planner_search. */
mf_status mf_job_refold(const mf_job *j, const mf_cost *cost, int64_t ranks,
                        const volatile int *cancel, mf_search_result *out, mf_err *e);

#endif
