/* measure_nvml.h - what the driver's management library (NVML) says of a GPU, and whether times
 * taken now are those of an undisturbed one. No CUDA in here: measure_run_cuda.c finds the
 * functions.
 */
#ifndef MF_EXECUTOR_MEASURE_NVML_H
#define MF_EXECUTOR_MEASURE_NVML_H

#include "core/base/status.h"

#include <stdbool.h>

/* The few functions that are needed, by their documented signatures; each returns 0 when it worked.
 * processes: with *count 0 and no room it returns MF_NVML_INSUFFICIENT_SIZE and how many there are.
 */
typedef struct mf_measure_nvml {
    void *library, *device;
    int (*clock)(void *device, int kind, unsigned *MHz);
    int (*temperature)(void *device, int sensor, unsigned *C);
    int (*power)(void *device, unsigned *mW);
    int (*processes)(void *device, unsigned *count, void *infos);
    int (*reasons)(void *device, unsigned long long *bits);
    int (*memory)(void *device, void *out);              /* mf_measure_nvml_memory */
    int (*energy)(void *device, unsigned long long *mJ); /* NULL where the driver has none */
} mf_measure_nvml;

typedef struct mf_measure_nvml_memory {
    unsigned long long total_B, free_B, used_B;
} mf_measure_nvml_memory;

enum { MF_NVML_CLOCK_SM = 1, MF_NVML_CLOCK_MEMORY = 2, MF_NVML_INSUFFICIENT_SIZE = 7 };

typedef struct mf_measure_state {
    bool known; /* clocks and temperature */
    unsigned sm_MHz, memory_MHz, temperature_C, power_W;
    unsigned long long memory_B; /* in use, by whomever; 0: not known */
    int processes; /* that compute on the GPU, this one among them when it does; -1 = not known */
    bool hot;      /* clocks are held down by heat or by the power brake */
} mf_measure_state;

/* NULL: nothing is known. */
void mf_measure_nvml_read(const mf_measure_nvml *n, mf_measure_state *out);

/* Whether a run whose first look was `first` may go on. shared: company is accepted. Errors:
 * MF_INPUT, with what disturbs. */
mf_status mf_measure_state_check(const mf_measure_state *first, const mf_measure_state *now,
                                 bool shared, mf_err *e);

#endif
