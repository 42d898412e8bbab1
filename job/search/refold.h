/* refold.h - finds a new plan for a job on fewer ranks. */
#ifndef MF_JOB_REFOLD_H
#define MF_JOB_REFOLD_H

#include "job/load/job.h"
#include "planner/planner.h"

/* Prices for a plan of a job on this machine: a plan file names its cluster, here the shipped
 * cluster of CPU ranks, and readers of the plan count on that cluster's memory. The caller destroys
 * *out. */
mf_status mf_job_refold_prices(const mf_job *j, mf_cost **out, mf_err *e);

/* Finds the fastest plan on as many ranks as the job can be folded on, at most `most`, with batch,
 * sequence, arithmetic and optimizer states unchanged. *ranks: how many; 0: it fits on none, and
 * *out is empty. The caller clears *out in any case. Errors: as mf_planner_search. */
mf_status mf_job_refold(const mf_job *j, const mf_cost *cost, int64_t most,
                        const volatile int *cancel, int64_t *ranks, mf_search_result *out,
                        mf_err *e);

#endif
