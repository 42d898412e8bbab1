/* measure_nvml.h - what the driver's management library (NVML) says of a GPU, and whether times
 * taken now are those of an undisturbed one. */
#ifndef MF_EXECUTOR_MEASURE_NVML_H
#define MF_EXECUTOR_MEASURE_NVML_H

#include "core/base/status.h"
#include "executor/device/nvml.h"

#include <stdbool.h>

typedef struct mf_measure_state {
    bool known; /* clocks and temperature */
    unsigned sm_MHz, memory_MHz, temperature_C, power_W;
    unsigned long long memory_B; /* in use, by whomever; 0: not known */
    int processes; /* that compute on the GPU, this one among them when it does; -1 = not known */
    bool hot;      /* clocks are held down by heat or by the power brake */
} mf_measure_state;

/* NULL: nothing is known. */
void mf_measure_nvml_read(const mf_nvml *n, mf_measure_state *out);

/* Whether a run whose first look was `first` may go on. shared: company is accepted. Errors:
 * MF_INPUT, with what disturbs. */
mf_status mf_measure_state_check(const mf_measure_state *first, const mf_measure_state *now,
                                 bool shared, mf_err *e);

#endif
