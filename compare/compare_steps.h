/* compare_steps.h - what a run's metrics.jsonl says of its steps on GPUs, behind those whose ops
 * were timed one by one. */
#ifndef MF_COMPARE_COMPARE_STEPS_H
#define MF_COMPARE_COMPARE_STEPS_H

#include "compare/compare.h"

/* Means over `steps` steps; memory, power and clock are of rank 0's GPU, as its driver counts, 0
 * where it did not say. */
typedef struct mf_compare_steps {
    int64_t steps; /* 0: there are none, and the rest is not known */
    double step_time_s, used_B, power_W, clock_MHz;
} mf_compare_steps;

/* Reads FOLDER/metrics.jsonl. first_step: of the run of the program that timed the ops, which may
 * have resumed an earlier one; 0: the first in the file. A run on CPUs, one of few steps and a
 * folder without that file have no such steps. Errors: MF_INPUT for a line that is none of a step,
 * but the last, which a killed run leaves incomplete. */
mf_status mf_compare_steps_read(const char *folder, int64_t first_step, mf_compare_steps *out,
                                mf_err *e);

/* Their mean is the measured step from here on: one in which ops run beside each other, or from a
 * graph. */
void mf_compare_steps_use(const mf_compare_steps *s, double tolerance, mf_compare *c);

#endif
