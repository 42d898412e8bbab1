/* export_job.h - a job's plan as another program runs it, and what that costs. */
#ifndef MF_JOB_EXPORT_JOB_H
#define MF_JOB_EXPORT_JOB_H

#include "job/load/job.h"
#include "launch/target/target.h"

enum { MF_MOST_DIFFERENCES = 16 };

typedef struct mf_export_difference {
    char text[480];
    double step_time_change_s, peak_memory_change_B; /* what it adds */
} mf_export_difference;

typedef struct mf_exported {
    mf_target target;
    mf_job job; /* after mf_export_concede with the plan that the target runs */
    int notes;
    mf_export_difference note[MF_MOST_DIFFERENCES];
    mf_plan_prediction before; /* of the plan as it was; its stages belong to nobody */
} mf_exported;

/* Makes the job's plan what the target runs, with a note of each difference that changes time or
 * memory. Where layers choose for themselves what they recompute and the target has one choice for
 * all, the fastest of those that fit stands instead. Errors: MF_INFEASIBLE for one that does not
 * fit, unless forced; those of the simulation. */
mf_status mf_export_concede(mf_exported *x, bool force, mf_err *e);

#endif
