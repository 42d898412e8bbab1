/* nvml.h - the driver's management library (NVML), found when a program asks for it: clocks, power,
 * energy and memory of a GPU. No CUDA in here: executor/cuda/nvml_cuda.c finds the functions.
 */
#ifndef MF_EXECUTOR_NVML_H
#define MF_EXECUTOR_NVML_H

#include <stdbool.h>

/* The few functions that are needed, by their documented signatures; each returns 0 when it worked.
 * processes: with *count 0 and no space it returns MF_NVML_INSUFFICIENT_SIZE and how many there
 * are.
 */
typedef struct mf_nvml {
    void *library, *device;
    int (*clock)(void *device, int kind, unsigned *MHz);
    int (*temperature)(void *device, int sensor, unsigned *C);
    int (*power)(void *device, unsigned *mW);
    int (*processes)(void *device, unsigned *count, void *infos);
    int (*reasons)(void *device, unsigned long long *bits);
    int (*memory)(void *device, void *out);              /* mf_nvml_memory */
    int (*energy)(void *device, unsigned long long *mJ); /* NULL where the driver has none */
} mf_nvml;

typedef struct mf_nvml_memory {
    unsigned long long total_B, free_B, used_B;
} mf_nvml_memory;

enum { MF_NVML_CLOCK_SM = 1, MF_NVML_CLOCK_MEMORY = 2, MF_NVML_INSUFFICIENT_SIZE = 7 };

/* Of GPU `device` as CUDA counts them. NULL: there is no such library, or it does not know the GPU.
 * The caller lets go of it; NULL is fine. */
mf_nvml *mf_nvml_find(int device);
void mf_nvml_let_go(mf_nvml *n);
/* Another of its functions into the pointer at `function`; false: it has none of that name. */
bool mf_nvml_function(void *library, const char *name, void *function);

#endif
