/* cluster_usual.c - what figures of GPUs that train usually are: what lies outside looks like a
 * slip of the unit. */
#include "core/cluster/cluster_json.h"

#include <string.h>

/* By SI key. Ranges begin below the least that anybody trains on (a T4 of 2018: 65 TFLOP/s, 16 GB
 * at 0.3 TB/s, 70 W, PCIe 3) and end above what is announced (Rubin Ultra: 100 PFLOP/s of FP4 and
 * 1 TB at 32 TB/s a package, 3.6 kW; NVLink 6: 1.8 TB/s a direction; adapters of 1.6 Tbit/s a
 * GPU), so that a factor of 1,000 leaves them, and for links between GPUs one of 8 as well. */
static const mf_usual usual[] = {
    {"peak_fp32_flops", 1e12, 1e16, "1 TFLOP/s to 10 PFLOP/s"},
    {"peak_bf16_flops", 1e13, 5e16, "10 TFLOP/s to 50 PFLOP/s"},
    {"peak_fp8_flops", 1e13, 1e17, "10 TFLOP/s to 100 PFLOP/s"},
    {"peak_fp4_flops", 1e13, 2e17, "10 TFLOP/s to 200 PFLOP/s"},
    {"memory_B", 8e9, 2e12, "8 GB to 2 TB"},
    {"memory_Bps", 1e11, 1e14, "0.1 to 100 TB/s"},
    {"memory_measured_Bps", 1e11, 1e14, "0.1 to 100 TB/s"},
    {"l2_B", 1e6, 2e9, "1 MB to 2 GB"},
    {"sms", 10, 2000, "10 to 2,000"},
    {"power_w", 50, 5000, "50 W to 5 kW"},
    {"scaleup_Bps", 4e9, 3e12, "4 GB/s to 3 TB/s a GPU and direction"},
    {"scaleup_effective_Bps", 2e9, 3e12, "2 GB/s to 3 TB/s a GPU and direction"},
    {"scaleup_latency_s", 1e-8, 1e-4, "10 ns to 100 us"},
    {"nic_Bps", 1e8, 2.5e11, "0.1 to 250 GB/s (2 Tbit/s) a GPU and direction"},
    {"nic_latency_s", 1e-7, 1e-3, "0.1 us to 1 ms"},
    {"host_Bps", 2e9, 2e12, "2 GB/s to 2 TB/s"},
    {"host_shared_Bps", 5e9, 2e13, "5 GB/s to 20 TB/s"},
    {"host_memory_B", 4e9, 1e13, "4 GB to 10 TB a GPU"},
    /* listings of 2026: 0.2 for a used V100, 16 for a B300 on demand */
    {"price_usd_gpu_h", 0.1, 100, "0.1 to 100 USD an hour"},
    {"node_overhead_w", 10, 5000, "10 W to 5 kW a GPU"},
    /* published: 50,677 h of H100 (Llama 3) */
    {"mtbf_gpu_h", 500, 1e8, "500 to 100 million hours"},
};

const mf_usual *mf_cluster_usual(const char *key) {
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        if (strcmp(usual[i].key, key) == 0) {
            return &usual[i];
        }
    }
    return NULL;
}
