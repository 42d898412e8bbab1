/* reported_flops.h - the FLOPs of a step as a log counts them, beside those of the job: whether the
 * log can be the job's. */
#ifndef MF_JOB_REPORTED_FLOPS_H
#define MF_JOB_REPORTED_FLOPS_H

#include "job/load/job.h"
#include "launch/log/log.h"

/* A log's TFLOP/s times its step time over the same of the job, which must be simulated; 1 where
 * the log counts none. */
double mf_reported_flops_ratio(const mf_job *j, const mf_log *l);

/* Are they so many more or less that the log must be of another model, batch or sequence? */
bool mf_reported_is_other_job(const mf_job *j, const mf_log *l);

/* "the log's step has 40.0 % more FLOPs than the job's, so that it may be another model, batch
 * or sequence"; job: what it is called, "the job's". Nothing else is written than that: "" where it
 * may be the same. */
void mf_reported_say_other_job(const mf_job *j, const mf_log *l, const char *job, char *out,
                               size_t size);

#endif
