/* refold.h - a job folded anew, on fewer ranks. */
#ifndef MF_JOB_REFOLD_H
#define MF_JOB_REFOLD_H

#include "job/job.h"
#include "planner/planner.h"

/* A plan names its cluster: of a job on a machine that was detected it is the shipped one of CPU
 * ranks, whose memory whoever reads the plan counts on. *out: its prices, to be destroyed. */
mf_status mf_job_refold_prices(const mf_job *j, mf_cost **out, mf_err *e);

/* The fastest plan on so many ranks, with batch, sequence, arithmetic and optimizer states as they
 * are. *out is to be cleared in any case. Errors: as mf_planner_search. */
mf_status mf_job_refold(const mf_job *j, const mf_cost *cost, int64_t ranks,
                        const volatile int *cancel, mf_search_result *out, mf_err *e);

#endif
