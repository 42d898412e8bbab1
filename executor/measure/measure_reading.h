/* measure_reading.h - what becomes of the times of batches: a reading, taken again while it
 * spreads. No CUDA in here.
 */
#ifndef MF_EXECUTOR_MEASURE_READING_H
#define MF_EXECUTOR_MEASURE_READING_H

#include "executor/measure/measure.h"

typedef struct mf_measure_time {
    double time_s, low_s, high_s; /* median, 10th and 90th percentile of the batches */
    double energy_J, sustained_s; /* of one run under the power cap; 0: not measured */
    int64_t samples;              /* runs in them */
    mf_measure_choice
        choice; /* algorithm: in, what to run if it can be ("": find out); out, what ran */
} mf_measure_time;

/* Median and percentiles of n >= 1 values (sorted in place); the rest of *out stays. */
void mf_measure_summary(double *value, int n, mf_measure_time *out);

/* Takes one reading; *out holds the one before, or what it was at first. */
typedef mf_status (*mf_measure_read)(void *user, mf_measure_time *out, mf_err *e);

/* Takes a reading, and where its percentiles lie more than 5 % of the median apart another, at most
 * `again` more: the quietest counts. Errors: those of `read`. */
mf_status mf_measure_quietest(mf_measure_read read, void *user, int again, mf_measure_time *out,
                              mf_err *e);

#endif
