/* cross_entropy_device.cuh - what the kernels of the cross-entropy share. */
#ifndef MF_KERNELS_CROSS_ENTROPY_DEVICE_CUH
#define MF_KERNELS_CROSS_ENTROPY_DEVICE_CUH

#include "kernels/device/cuda_common.cuh"

__device__ static int64_t live_cols(int64_t cols, int64_t begin, int64_t vocab) {
    int64_t left = vocab > begin ? vocab - begin : 0;
    return left < cols ? left : cols;
}

/* (high, sum) <- the pair over both sets. */
__device__ static void join(float &high, float &sum, float high2, float sum2) {
    float top = fmaxf(high, high2);
    if (top == -INFINITY) {
        return;
    }
    sum = sum * expf(high - top) + sum2 * expf(high2 - top);
    high = top;
}

/* Of the first `lanes` of a warp, a power of two. */
__device__ static void join_lanes(float &high, float &sum, int lanes) {
    for (int o = lanes / 2; o > 0; o /= 2) {
        const float h = __shfl_xor_sync(0xffffffffu, high, o);
        const float s = __shfl_xor_sync(0xffffffffu, sum, o);
        join(high, sum, h, s);
    }
}

#endif
