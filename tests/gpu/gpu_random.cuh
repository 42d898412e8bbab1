/* gpu_random.cuh - standard normal bf16 in device memory, from a counter-based generator. */
#ifndef MF_TESTS_GPU_RANDOM_CUH
#define MF_TESTS_GPU_RANDOM_CUH

#include "tests/gpu/gpu.h"

#include <cuda_bf16.h>

static __global__ void gpu_normal_kernel(__nv_bfloat16 *p, int64_t n, uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const uint64_t r = gpu_mix(seed ^ gpu_mix((uint64_t)i));
        const float u = ((float)(uint32_t)(r >> 40) + 1.0f) * 0x1p-24f;
        const float v = (float)(uint32_t)(r & 0xffffff) * 0x1p-24f;
        p[i] = __float2bfloat16_rn(sqrtf(-2.0f * logf(u)) * cospif(2.0f * v));
    }
}

static inline void gpu_normal(void *p, int64_t n, uint64_t seed) {
    if (n > 0) {
        gpu_normal_kernel<<<1024, 256>>>((__nv_bfloat16 *)p, n, seed);
        GPU_MUST(cudaGetLastError());
    }
}

#endif
