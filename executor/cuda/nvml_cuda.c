/* nvml_cuda.c - finds NVML's functions and the GPU that CUDA counts so. */
#include "executor/device/nvml.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

bool mf_nvml_function(void *library, const char *name, void *function) {
    void *p = dlsym(library, name);
    memcpy(function, &p, sizeof p); /* ISO C has no cast from object to function pointers */
    return p != NULL;
}

void mf_nvml_let_go(mf_nvml *n) {
    if (n != NULL && n->library != NULL) {
        (void)dlclose(n->library);
    }
    free(n);
}

mf_nvml *mf_nvml_find(int device) {
    int (*init)(void) = NULL;
    int (*by_bus)(const char *, void **) = NULL;
    char bus[32] = "";
    mf_nvml *n = calloc(1, sizeof *n);
    if (n == NULL) {
        return NULL;
    }
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    bool ok =
        n->library != NULL && mf_nvml_function(n->library, "nvmlInit_v2", &init) &&
        mf_nvml_function(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus) &&
        mf_nvml_function(n->library, "nvmlDeviceGetClockInfo", &n->clock) &&
        mf_nvml_function(n->library, "nvmlDeviceGetTemperature", &n->temperature) &&
        mf_nvml_function(n->library, "nvmlDeviceGetPowerUsage", &n->power) &&
        mf_nvml_function(n->library, "nvmlDeviceGetComputeRunningProcesses_v3", &n->processes) &&
        mf_nvml_function(n->library, "nvmlDeviceGetCurrentClocksThrottleReasons", &n->reasons) &&
        cudaDeviceGetPCIBusId(bus, (int)sizeof bus, device) == cudaSuccess && init() == 0 &&
        by_bus(bus, &n->device) == 0;
    if (!ok) {
        mf_nvml_let_go(n);
        return NULL;
    }
    (void)mf_nvml_function(n->library, "nvmlDeviceGetTotalEnergyConsumption", &n->energy);
    (void)mf_nvml_function(n->library, "nvmlDeviceGetMemoryInfo", &n->memory);
    return n;
}
