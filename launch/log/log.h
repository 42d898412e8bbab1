/* log.h - what a training job's log measured: step times, throughput, memory.
 *
 * Lines of Megatron-LM ("elapsed time per iteration (ms): 5123.4", "throughput per GPU
 * (TFLOP/s/GPU): 400.1", "max allocated: 70123.5") and of Megatron-Bridge ("Step Time : 5.12s GPU
 * utilization: 400.1MODEL_TFLOP/s/GPU"), from megatron/training/training.py and
 * src/megatron/bridge/training/utils/train_utils.py at the commits of launch/target/target.c.
 */
#ifndef MF_LAUNCH_LOG_H
#define MF_LAUNCH_LOG_H

#include "core/base/status.h"

/* All zero is empty: no line was read yet. */
typedef struct mf_log {
    int steps;             /* step times read */
    int used;              /* those the median is of: the first tenth, ten at most, warms up */
    double step_time_s;    /* median */
    double tflops;         /* median of model TFLOP/s by GPU, as the program counts; 0 = none */
    double memory_B;       /* largest allocation that any rank printed; 0 = none */
    double *time_s, *rate; /* [steps], [rates] in the order of the log */
    int rates, times_allocated, rates_allocated;
} mf_log;

/* Adds the lines of a text. Lines of another kind are passed over; without memory, as well. */
void mf_log_read(mf_log *l, const char *text);
/* Reads a file of 256 MiB at most. The caller clears *l in any case. Errors:
 * MF_IO; MF_INPUT without any step time. */
mf_status mf_log_load(mf_log *l, const char *path, mf_err *e);
void mf_log_clear(mf_log *l);

#endif
