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

enum { FLIGHT = 4 }; /* vectors that a thread has on their way */

#define LOG2_E 1.4426950408889634f

__device__ static float exp_of_two(float x) { /* below 1e-38: 0 */
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* exp(x) as mf_exp<T>, in two instructions for bf16. */
template <typename T> __device__ static float quick_exp(float x) {
    return sizeof(T) == 2 ? exp_of_two(x * LOG2_E) : expf(x);
}

/* (high, sum) of what this thread reads of a row of which `live` columns count: every `threads`-th
 * vector of N. */
template <typename T, int N>
__device__ static void weigh(const T *row, int live, int threads, float &high, float &sum) {
    const int whole = live / N * N, step = threads * N;
    for (int c0 = (int)threadIdx.x * N; c0 < whole; c0 += step * FLIGHT) {
        mf_raw<T, N> raw[FLIGHT];
        float top = high;
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
            if (c0 + k * step < whole) {
                raw[k] = mf_fetch<T, N>(row + c0 + k * step);
            }
        }
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
            if (c0 + k * step < whole) {
                float x[N];
                mf_widen(x, raw[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    top = fmaxf(top, x[i]);
                }
            }
        }
        if (top == -INFINITY) {
            continue;
        }
        sum *= quick_exp<T>(high - top);
        high = top;
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
            if (c0 + k * step < whole) {
                float x[N];
                mf_widen(x, raw[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    sum += quick_exp<T>(x[i] - high);
                }
            }
        }
    }
    for (int c = whole + (int)threadIdx.x; c < live; c += threads) {
        float x[1];
        mf_load(x, row + c);
        if (x[0] > -INFINITY) {
            join(high, sum, x[0], 1.0f);
        }
    }
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
