/* reported_flops.c - whether a log can be the job's, by the FLOPs of its step. */
#include "job/figures/reported_flops.h"

#include <math.h>
#include <stdio.h>

/* A log whose step has so many more FLOPs than the job's is one of another job. */
#define OTHER_FLOPS 0.05

double mf_reported_flops_ratio(const mf_job *j, const mf_log *l) {
    const mf_plan_prediction *p = &j->plan.prediction;
    return l->tflops > 0 && l->step_time_s > 0
               ? l->tflops * l->step_time_s / (p->model_tflops_per_gpu * p->step_time_s)
               : 1;
}

bool mf_reported_is_other_job(const mf_job *j, const mf_log *l) {
    return fabs(mf_reported_flops_ratio(j, l) - 1) > OTHER_FLOPS;
}

void mf_reported_say_other_job(const mf_job *j, const mf_log *l, const char *job, char *out,
                               size_t size) {
    const double more = mf_reported_flops_ratio(j, l) - 1;
    out[0] = '\0';
    if (mf_reported_is_other_job(j, l)) {
        snprintf(out, size,
                 "the log's step has %.1f %% %s FLOPs than %s, so that it may be another model, "
                 "batch or sequence",
                 100 * fabs(more), more > 0 ? "more" : "less", job);
    }
}
