/* measure_reading.h - makes a reading of the times of batches, and repeats it when they spread.
 * Contains no CUDA.
 */
#ifndef MF_EXECUTOR_MEASURE_READING_H
#define MF_EXECUTOR_MEASURE_READING_H

#include "executor/measure/measure.h"

typedef struct mf_measure_time {
    double time_s, low_s, high_s; /* median, 10th and 90th percentile of the batches */
    double energy_J, sustained_s; /* of one run under the power cap; 0: not measured */
    int64_t samples;              /* runs in them */
    mf_measure_choice choice; /* algorithm: in, to run if possible ("": find one); out, that ran */
} mf_measure_time;

/* Sets median and percentiles of n >= 1 values, which it sorts in place; leaves the rest of *out
 * unchanged. */
void mf_measure_summary(double *value, int n, mf_measure_time *out);

/* Takes one reading; *out holds the one before, or its initial value. */
typedef mf_status (*mf_measure_read)(void *user, mf_measure_time *out, mf_err *e);

/* Takes a reading, and at most `again` more while the percentiles are more than 5 % of the median
 * apart; keeps the one with the least spread. Errors: those of `read`. */
mf_status mf_measure_quietest(mf_measure_read read, void *user, int again, mf_measure_time *out,
                              mf_err *e);

#endif
