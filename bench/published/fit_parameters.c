/* fit_parameters.c - the table of parameters that a fit may move. */
#include "bench/published/fit_parameters.h"

#define AT(member) offsetof(mf_software, member)
#define GPU(rate, gpu) AT(gpu_eff[MF_RATE_##rate][MF_GPU_##gpu])
enum { BLACKWELLS = MF_GPU_GB300 - MF_GPU_B200 + 1 };

/* Kernel rates are known within a tenth from measurements; host times and the shares that overlap
 * leaves exposed only within a factor. Releases differ most in host time and dispatchers. */
const pub_parameter_def pub_parameters[] = {
    {"gemm_eff.bf16", AT(gemm_eff[MF_MATH_BF16]), 1, 0.06, 0.02, 0.4, 1.1},
    {"gemm_eff.fp8", AT(gemm_eff[MF_MATH_FP8]), 1, 0.06, 0.02, 0.4, 1.1},
    {"attention_eff", AT(attention_eff), 1, 0.10, 0.10, 0.25, 1.1},
    {"ring_attention_eff", AT(ring_attention_eff), 1, 0.15, 0.30, 0.4, 1.1},
    {"grouped_eff", AT(grouped_eff), 1, 0.08, 0.03, 0.4, 1.3},
    {"memory_eff", AT(memory_eff), 1, 0.15, 0.08, 0.25, 1.0},
    {"scan_eff", AT(scan_eff), 1, 0.60, 0.10, 0.1, 1.5},
    {"host_op_s", AT(host_op_s), 1, 0.30, 0.25, 1e-6, 4e-5},
    {"host_layer_s", AT(host_layer_s), 1, 0.40, 0.30, 1e-6, 3e-3},
    {"moe_sync_s", AT(moe_sync_s), 1, 0.40, 0.40, 1e-5, 1e-2},
    {"comm_eff.alltoall", AT(comm_eff[MF_DISPATCH_ALLTOALL]), 1, 0.15, 0.10, 0.2, 1.1},
    {"comm_eff.fused", AT(comm_eff[MF_DISPATCH_FUSED]), 1, 0.15, 0.10, 0.2, 1.3},
    {"prefetch_exposed", AT(prefetch_exposed), 1, 0.30, 0.40, 0.05, 0.95},
    {"gemm_eff.fp4", AT(gemm_eff[MF_MATH_FP4]), 1, 0.10, 0, 0.4, 1.1},
    {"block_scale_eff", AT(block_scale_eff), 1, 0.05, 0, 0.6, 1.05},
    {"gpu_eff.gemm.b200", GPU(GEMM, B200), 1, 0.06, 0, 0.5, 1.2},
    {"gpu_eff.gemm.gb200", GPU(GEMM, GB200), 1, 0.06, 0, 0.5, 1.2},
    {"gpu_eff.gemm.b300", GPU(GEMM, B300), 1, 0.06, 0, 0.5, 1.2},
    {"gpu_eff.gemm.gb300", GPU(GEMM, GB300), 1, 0.06, 0, 0.5, 1.2},
    {"gpu_eff.low_precision.b200", GPU(LOW_PRECISION, B200), BLACKWELLS, 0.06, 0, 0.5, 1.2},
    {"gpu_eff.grouped.b200", GPU(GROUPED, B200), BLACKWELLS, 0.08, 0, 0.5, 1.2},
    {"gpu_eff.attention.b200", GPU(ATTENTION, B200), BLACKWELLS, 0.10, 0, 0.5, 1.6},
    {"gpu_eff.memory.b200", GPU(MEMORY, B200), BLACKWELLS, 0.10, 0, 0.5, 1.2},
    {"gpu_eff.host.b200", GPU(HOST, B200), 1, 0.20, 0, 0.3, 1.5},
    {"gpu_eff.host.gb200", GPU(HOST, GB200), 1, 0.20, 0, 0.3, 1.5},
    {"gpu_eff.host.b300", GPU(HOST, B300), 1, 0.20, 0, 0.3, 1.5},
    {"gpu_eff.host.gb300", GPU(HOST, GB300), 1, 0.20, 0, 0.3, 1.5},
    {"collective_eff", AT(collective_eff), 1, 0.15, 0, 0.3, 1.1},
    {"host_graph.partial", AT(host_graph[MF_GRAPH_PARTIAL]), 1, 0.25, 0, 0.1, 1.0},
    {"host_graph.step", AT(host_graph[MF_GRAPH_STEP]), 1, 0.50, 0, 0.01, 0.6},
    {"overlap_exposed.ep", AT(overlap_exposed[0]), 1, 0.40, 0.20, 0.05, 1.0},
    {"overlap_exposed.tp", AT(overlap_exposed[1]), 1, 0.40, 0.20, 0.05, 1.0},
    {"overlap_exposed.dp", AT(overlap_exposed[2]), 1, 0.30, 0.15, 0.02, 1.0},
    {"overlap_exposed.pp", AT(overlap_exposed[3]), 1, 0.50, 0, 0.02, 1.0},
};
const int pub_parameter_count = (int)(sizeof pub_parameters / sizeof pub_parameters[0]);

double *pub_parameter(mf_software *s, const pub_parameter_def *p, int i) {
    return (double *)(void *)((char *)s + p->offset) + i;
}
