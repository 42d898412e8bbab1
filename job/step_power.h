/* step_power.h - what GPUs draw in a step, and the clock that they hold: the same energies of ops
 * whose sum the power cap turns into time (costmodel/cost.h), so that step time, energy and clock
 * are one prediction. */
#ifndef MF_JOB_STEP_POWER_H
#define MF_JOB_STEP_POWER_H

#include "core/plan/plan.h"
#include "costmodel/cost.h"

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

/* Of a plan with a prediction. Errors: MF_NOMEM, those of lowering. */
struct mf_job;
mf_status mf_step_power_of(const struct mf_job *j, const mf_plan *plan, mf_step_power *out,
                           mf_err *e);

/* The power cap holds over a stretch of work. *step_s: were it to hold over a step, so that work
 * may draw more after a wait: no less than every op rested, and than what the busiest stage
 * takes at one clock. How long a GPU's cap looks back was not measured. As long as before: without
 * a cap. Errors: as mf_job_load. */
mf_status mf_step_power_recovered(const struct mf_job *j, const mf_plan *plan,
                                  const mf_step_power *p, double *step_s, mf_err *e);

/* What a GPU draws over a step; of CPU ranks what their cluster file says. */
double mf_step_power_drawn_W(const mf_step_power *p, const mf_cluster *c);

#endif
