/* option_applicability.h - options that say nothing about this job: refused, so that nobody takes
 * what comes out for an answer to them. */
#ifndef MF_JOB_OPTION_APPLICABILITY_H
#define MF_JOB_OPTION_APPLICABILITY_H

#include "job/job.h"

/* Capacity and uneven routing of a model without experts; modules to recompute or to offload that
 * no layer has; FP8 primary weights of a recipe that quantises none; CUDA graphs on CPU ranks. What
 * every layout states (ZeRO of experts, dispatcher, token headroom) is no question and passes.
 * Errors: MF_LAYOUT, naming the option. */
mf_status mf_job_check_options(const mf_job *j, mf_err *e);

#endif
