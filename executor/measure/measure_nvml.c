/* measure_nvml.c - reads NVML's answers and judges them. */
#include "executor/measure/measure_nvml.h"

#include <stddef.h>
#include <string.h>

/* Slowed down by software for heat, by hardware for heat, by the power brake. */
static const unsigned long long hot_bits = 0x20 | 0x40 | 0x80;

void mf_measure_nvml_read(const mf_nvml *n, mf_measure_state *out) {
    unsigned mW = 0, processes = 0;
    unsigned long long reasons = 0;
    memset(out, 0, sizeof *out);
    out->processes = -1;
    if (n == NULL) {
        return;
    }
    out->known = n->clock(n->device, MF_NVML_CLOCK_SM, &out->sm_MHz) == 0 &&
                 n->clock(n->device, MF_NVML_CLOCK_MEMORY, &out->memory_MHz) == 0 &&
                 n->temperature(n->device, 0, &out->temperature_C) == 0;
    out->power_W = n->power(n->device, &mW) == 0 ? mW / 1000 : 0;
    out->hot = n->reasons(n->device, &reasons) == 0 && (reasons & hot_bits) != 0;
    mf_nvml_memory memory = {0, 0, 0};
    out->memory_B = n->memory != NULL && n->memory(n->device, &memory) == 0 ? memory.used_B : 0;
    int result = n->processes(n->device, &processes, NULL); /* only how many */
    if (result == 0 || result == MF_NVML_INSUFFICIENT_SIZE) {
        out->processes = (int)processes;
    }
}

mf_status mf_measure_state_check(const mf_measure_state *first, const mf_measure_state *now,
                                 bool shared, mf_err *e) {
    static const char again[] = "what was measured so far is stored, the same command goes on";
    if (now->hot) {
        return mf_err_set(e, MF_INPUT,
                          "the GPU is throttled at %u MHz and %u C; %s once it has cooled",
                          now->sm_MHz, now->temperature_C, again);
    }
    if (!shared && first->processes >= 0 && now->processes > first->processes) {
        return mf_err_set(e, MF_INPUT,
                          "another process came to the GPU; %s when it has gone, or with --shared",
                          again);
    }
    return MF_OK;
}
