/* attention_merge.cu - CUDA kernel that joins partial results of attention: a few neighbouring
 * threads a head of a row, UNITS of them under way.
 */
#include "kernels/attention/attention_merge.h"
#include "kernels/device/cuda_common.cuh"

#define THREADS 256
#define UNITS 2

/* N elements of T, in as many 16-byte accesses as they take. */
template <typename T, int N> struct merge_part {
    static constexpr int each = N < mf_width<T>::value ? N : mf_width<T>::value;
    static constexpr int parts = N / each;
    mf_raw<T, each> raw[parts];
    __device__ void fetch(const T *p) {
#pragma unroll
        for (int i = 0; i < parts; i++) {
            raw[i] = mf_fetch_once<T, each>(p + i * each);
        }
    }
    __device__ void widen(float (&x)[N]) const {
#pragma unroll
        for (int i = 0; i < parts; i++) {
            float y[each];
            mf_widen(y, raw[i]);
#pragma unroll
            for (int k = 0; k < each; k++) {
                x[i * each + k] = y[k];
            }
        }
    }
    __device__ static void store(T *p, const float (&x)[N]) {
#pragma unroll
        for (int i = 0; i < parts; i++) {
            float y[each];
#pragma unroll
            for (int k = 0; k < each; k++) {
                y[k] = x[i * each + k];
            }
            mf_store(p + i * each, y);
        }
    }
};

/* Shares of both sides in the result. The larger lse counts 1, the other its distance to it. */
typedef struct merge_weights {
    float first, second, high, sum; /* the new lse is high + log(sum) */
    bool any;
} merge_weights;

__device__ static inline merge_weights weights_of(float lse, float lse2) {
    merge_weights w = {1.0f, 0.0f, fmaxf(lse, lse2), 1.0f, false};
    if (!isinf(w.high)) {
        const float less = expf(fminf(lse, lse2) - w.high);
        w.sum = 1.0f + less;
        const float most = 1.0f / w.sum;
        w.first = lse >= lse2 ? most : less * most;
        w.second = lse >= lse2 ? less * most : most;
        w.any = true;
    }
    return w;
}

/* A unit is a head of a row; `lanes` threads of a warp take it. Index: as wide as units need. */
template <typename T, typename T2, int N, typename Index>
__global__ void attention_merge(mf_kernel_attention_merge a, int lanes) {
    mf_await();
    const Index units = (Index)(a.rows * a.heads), heads = (Index)a.heads;
    const Index first =
        (Index)blockIdx.x * (Index)(UNITS * (THREADS / lanes)) + (Index)(threadIdx.x / lanes);
    float lse[UNITS], lse2[UNITS];
    int64_t base[UNITS], at[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        const Index unit = first + (Index)(u * (THREADS / lanes)), r = unit / heads;
        const Index h = unit - r * heads;
        base[u] = unit < units ? r * a.o_row + h * a.o_head : -1;
        at[u] = h * a.rows + r;
        lse[u] = lse2[u] = -INFINITY;
        if (base[u] >= 0) {
            lse[u] = a.lse[at[u]];
            lse2[u] = a.lse2[at[u]];
        }
    }
    for (int64_t c = (threadIdx.x % lanes) * N; c < a.v_dim; c += (int64_t)lanes * N) {
        merge_part<T, N> o[UNITS];
        merge_part<T2, N> o2[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) { /* whatever lse will say */
            if (base[u] >= 0) {
                o[u].fetch((const T *)a.o + base[u] + c);
                o2[u].fetch((const T2 *)a.o2 + base[u] + c);
            }
        }
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const merge_weights w = weights_of(lse[u], lse2[u]);
            if (w.any) {
                float x[N], y[N];
                o[u].widen(x);
                o2[u].widen(y);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    x[i] = w.first * x[i] + w.second * y[i];
                }
                merge_part<T, N>::store((T *)a.o + base[u] + c, x);
            }
        }
    }
    __syncwarp(); /* all have read lse */
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        const merge_weights w = weights_of(lse[u], lse2[u]);
        if (w.any && threadIdx.x % lanes == 0) {
            a.lse[at[u]] = w.high + logf(w.sum);
        }
    }
}

template <typename T, typename T2, int N>
static mf_status run(const mf_kernel_attention_merge *a, cudaStream_t stream, mf_err *e) {
    const int lanes = mf_pow2_up(mf_ceil_div(a->v_dim, N) < 32 ? mf_ceil_div(a->v_dim, N) : 32);
    const int64_t threads = a->rows * a->heads * lanes;
    const unsigned blocks = (unsigned)mf_ceil_div(threads, UNITS * THREADS);
    if (threads < INT32_MAX) {
        MF_LAUNCH((attention_merge<T, T2, N, uint32_t>), blocks, THREADS, 0, stream, e, *a, lanes);
    } else {
        MF_LAUNCH((attention_merge<T, T2, N, int64_t>), blocks, THREADS, 0, stream, e, *a, lanes);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

template <typename T, typename T2>
static mf_status run_width(const mf_kernel_attention_merge *a, cudaStream_t stream, mf_err *e) {
    constexpr int N =
        mf_width<T>::value < mf_width<T2>::value ? mf_width<T>::value : mf_width<T2>::value;
    const bool fast = a->v_dim % N == 0 && a->o_row % N == 0 && a->o_head % N == 0 &&
                      mf_aligned(a->o) && mf_aligned(a->o2);
    return fast ? run<T, T2, N>(a, stream, e) : run<T, T2, 1>(a, stream, e);
}

extern "C" mf_status mf_kernel_attention_merge_run_cuda(const mf_kernel_attention_merge *a,
                                                        void *stream, mf_err *e) {
    const cudaStream_t s = (cudaStream_t)stream;
    if (a->rows * a->heads * a->v_dim == 0) {
        return MF_OK;
    }
    if (a->o_dtype == MF_KERNEL_BF16) {
        return a->o2_dtype == MF_KERNEL_BF16 ? run_width<mf_bf16, mf_bf16>(a, s, e)
                                             : run_width<mf_bf16, float>(a, s, e);
    }
    return a->o2_dtype == MF_KERNEL_BF16 ? run_width<float, mf_bf16>(a, s, e)
                                         : run_width<float, float>(a, s, e);
}
