/* noise.cu - values without a pattern. */
#include "executor/cuda/noise.h"

#include "kernels/device/cuda_check.h"

#include <cuda_bf16.h>

static __device__ inline float value(int64_t i) {
    uint32_t h = (uint32_t)i * 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (float)(int32_t)h * 0x1p-31f;
}

template <typename T> static __global__ void noise(T *data, int64_t count) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        data[i] = (T)value(i);
    }
}

extern "C" mf_status mf_cuda_noise(void *data, mf_kernel_dtype d, int64_t count, void *stream,
                                   mf_err *e) {
    if (d == MF_KERNEL_BF16) {
        noise<<<528, 256, 0, (cudaStream_t)stream>>>((__nv_bfloat16 *)data, count);
    } else {
        noise<<<528, 256, 0, (cudaStream_t)stream>>>((float *)data, count);
    }
    MF_CUDA_TRY(cudaGetLastError(), e);
    return MF_OK;
}
