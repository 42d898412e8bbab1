/* option_applicability.h - refuses options that have no effect on this job, so that nobody takes
 * the result for an answer to them. */
#ifndef MF_JOB_OPTION_APPLICABILITY_H
#define MF_JOB_OPTION_APPLICABILITY_H

#include "job/load/job.h"

/* Refuses capacity and uneven routing of a model without experts, modules to recompute or to
 * offload that no layer has, FP8 primary weights with a recipe that quantises none, and CUDA graphs
 * on CPU ranks. Accepts choices that every layout states (ZeRO of experts, dispatcher, token
 * headroom). Errors: MF_LAYOUT, naming the option. */
mf_status mf_job_check_options(const mf_job *j, mf_err *e);

#endif
