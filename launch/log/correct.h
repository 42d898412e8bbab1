/* correct.h - what a measured job says about a software profile on a machine: one factor on
 * everything that it prices, kept as a profile of its own.
 */
#ifndef MF_LAUNCH_CORRECT_H
#define MF_LAUNCH_CORRECT_H

#include "simulator/sim.h"

/* The factor with which the program's step is simulated at measured_s, within a thousandth. The
 * cost's software is as before afterwards. *nearest_s: the step with it. Errors: MF_INPUT where no
 * factor from a tenth to ten does, with the nearest step that they give; those of mf_sim_step. */
mf_status mf_correction_find(mf_cost *cost, const mf_program *p, const mf_routing *routing,
                             double measured_s, double *factor, double *nearest_s, mf_err *e);

/* Below a half, or above two: the log is of another job, cluster or software more likely than of a
 * machine that is so fast or slow. */
bool mf_correction_is_doubtful(double factor);

/* What a correction rests on. */
typedef struct mf_correction_basis {
    const char *cluster, *log; /* a name, a file */
    int steps;
    double measured_s, predicted_s; /* of a step */
} mf_correction_basis;

/* Writes {"name", "extends", "step_factor"} (costmodel/cost.h), and as "measured" {"cluster",
 * "log", "steps", "date", "software_date", "measured_step_time_s", "predicted_step_time_s"}.
 * Errors: MF_IO, MF_USAGE where the profile is itself such a file. */
mf_status mf_correction_save(const mf_software *base, double factor, const mf_correction_basis *on,
                             const char *path, mf_err *e);

#endif
