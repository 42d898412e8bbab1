/* reported_memory.h - the peak of memory that the program of a software profile prints itself, to
 * stand beside its log.
 */
#ifndef MF_JOB_REPORTED_MEMORY_H
#define MF_JOB_REPORTED_MEMORY_H

#include "job/load/job.h"

/* Of a plan with a prediction, largest of its stages, by the profile's "memory_report"; the plan's
 * own peak where it has none. Errors: those of lowering. */
mf_status mf_reported_memory(const mf_job *j, const mf_plan *plan, double *out_B, mf_err *e);

#endif
