/* step_power.h - the power that GPUs draw in a step, and their clock. They come from the same
 * energies of ops from which the power cap's effect on time is computed (costmodel/cost.h), so that
 * step time, energy and clock are one prediction. */
#ifndef MF_JOB_STEP_POWER_H
#define MF_JOB_STEP_POWER_H

#include "core/plan/plan.h"
#include "costmodel/cost.h"
#include "planner/planner.h"

typedef struct mf_step_power {
    bool known;      /* false: CPU ranks */
    double energy_J; /* of a GPU and step, mean over the stages */
    double power_W;  /* over the step */
    double clock_Hz; /* of the multiprocessors, mean over the stages; 0: the GPU's is not known, or
                      * how the cap slows this software */
    mf_work busiest; /* of the stage that takes most energy: all but the time of what the clock does
                      * not hold up */
    bool measured;   /* energies of this kind of GPU; else those of an H200 carried over */
} mf_step_power;

/* Computes it for a plan that has a prediction. Errors: MF_NOMEM, those of lowering. */
struct mf_job;
mf_status mf_step_power_of(const struct mf_job *j, const mf_plan *plan, mf_step_power *out,
                           mf_err *e);

/* Adds the waits of a plan of the job, in which a GPU draws less than its cap, to what `explain`
 * names as remedies: what the step would take if the cap held on average over it. Keeps the list in
 * order of gain, and adds nothing where it gains nothing. Errors: as mf_job_load. */
mf_status mf_step_power_add_waits(mf_explanation *x, const struct mf_job *j, const mf_plan *plan,
                                  const mf_step_power *p, mf_err *e);

/* The power that a GPU draws over a step; for CPU ranks, that of their cluster file. */
double mf_step_power_drawn_W(const mf_step_power *p, const mf_cluster *c);

#endif
