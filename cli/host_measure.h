/* host_measure.h - loads jobs, and measures this machine's CPU ranks when one is first for them. */
#ifndef MF_CLI_HOST_MEASURE_H
#define MF_CLI_HOST_MEASURE_H

#include "job/load/job.h"

#include <stdio.h>

typedef mf_status (*mf_job_load_fn)(mf_job *j, const mf_job_request *r, mf_err *e);

/* Loads a job by `load`: mf_job_load, mf_job_load_layout, ... Where it is for the cluster `cpu`
 * with a number of ranks that nobody has measured on this machine, it measures them first, keeps
 * the result (job/kept/host_cpu.h) and says so on `notes` (NULL: nowhere). A disturbed measurement
 * is repeated once the cores are free; until then a warning names it. When measuring fails, prices
 * stay the shipped assumptions, and a note says why. A program without the command `train` measures
 * nothing. The job is to be cleared in any case. Errors: those of `load`. */
mf_status mf_host_load_job(mf_job *j, const mf_job_request *r, mf_job_load_fn load, FILE *notes,
                           mf_err *e);

#endif
