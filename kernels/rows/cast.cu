/* cast.cu - CUDA kernels of the element-wise moves. */
#include "kernels/device/cuda_common.cuh"
#include "kernels/rows/cast.h"

#define THREADS 256
#define EACH 4 /* stretches of 16 bytes that one thread has in flight */

/* N elements a stretch: 8 when everything is aligned, two loads of 16 bytes where a type is wide. 4
 * where only what is written is wide: a warp then writes whole sectors at once. */
template <typename T, int N> __device__ inline void load_n(float (&out)[N], const T *p) {
    if constexpr (N == 1 || N * sizeof(T) <= 16) {
        mf_load(out, p);
    } else {
        float a[4], b[4];
        mf_load(a, p);
        mf_load(b, p + 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = a[i];
            out[4 + i] = b[i];
        }
    }
}

template <typename T, int N> __device__ inline void store_n(T *p, const float (&x)[N]) {
    if constexpr (N == 1 || N * sizeof(T) <= 16) {
        mf_store(p, x);
    } else {
        const float a[4] = {x[0], x[1], x[2], x[3]}, b[4] = {x[4], x[5], x[6], x[7]};
        mf_store(p, a);
        mf_store(p + 4, b);
    }
}

template <typename S, typename D, int N, bool ADD> __global__ void cast_values(mf_kernel_cast a) {
    mf_await();
    constexpr int FLIGHT = N == 4 ? 2 * EACH : EACH;
    int64_t base = ((int64_t)blockIdx.x * THREADS * FLIGHT + threadIdx.x) * N;
    float x[FLIGHT][N], d[FLIGHT][N];
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) {
        int64_t i = base + (int64_t)k * THREADS * N;
        if (i < a.count) {
            load_n<S, N>(x[k], (const S *)a.src + i);
            if (ADD) {
                load_n<D, N>(d[k], (const D *)a.dst + i);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) {
        int64_t i = base + (int64_t)k * THREADS * N;
        if (i < a.count) {
#pragma unroll
            for (int j = 0; j < N; j++) {
                x[k][j] = a.alpha * x[k][j] + (ADD ? d[k][j] : 0.0f);
            }
            store_n<D, N>((D *)a.dst + i, x[k]);
        }
    }
}

template <typename T, int N> __global__ void add_values(mf_kernel_add a) {
    mf_await();
    int64_t base = ((int64_t)blockIdx.x * THREADS * EACH + threadIdx.x) * N;
    mf_raw<T, N> x[EACH], y[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int64_t i = base + (int64_t)k * THREADS * N;
        if (i < a.count) {
            x[k] = mf_fetch<T, N>((const T *)a.a + i);
            y[k] = mf_fetch<T, N>((const T *)a.b + i);
        }
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int64_t i = base + (int64_t)k * THREADS * N;
        if (i < a.count) {
            float u[N], v[N];
            mf_widen(u, x[k]);
            mf_widen(v, y[k]);
#pragma unroll
            for (int j = 0; j < N; j++) {
                u[j] += v[j];
            }
            mf_store((T *)a.y + i, u);
        }
    }
}

template <typename T, int N> __global__ void copy_rows(mf_kernel_copy_rows a, int lanes) {
    mf_await();
    int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    if (r >= a.rows) {
        return;
    }
#pragma unroll 4
    for (int64_t c = (threadIdx.x % lanes) * N; c < a.cols; c += (int64_t)lanes * N) {
        float x[N];
        mf_load(x, (const T *)a.src + r * a.src_stride + c);
        T *dst = (T *)a.dst + r * a.dst_stride + c;
        if (a.accumulate) {
            float d[N];
            mf_load(d, dst);
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[i] += d[i];
            }
        }
        mf_store(dst, x);
    }
}

template <typename S, typename D>
static mf_status launch_cast(const mf_kernel_cast *a, cudaStream_t stream, mf_err *e) {
    bool fast = mf_aligned(a->src) && mf_aligned(a->dst) && a->count % 8 == 0;
    constexpr int WIDE = sizeof(S) < sizeof(D) ? 4 : 8;
    unsigned blocks = (unsigned)mf_ceil_div(a->count, (int64_t)THREADS * EACH * (fast ? 8 : 1));
    if (fast && a->accumulate) {
        MF_LAUNCH((cast_values<S, D, 8, true>), blocks, THREADS, 0, stream, e, *a);
    } else if (fast) {
        MF_LAUNCH((cast_values<S, D, WIDE, false>), blocks, THREADS, 0, stream, e, *a);
    } else if (a->accumulate) {
        MF_LAUNCH((cast_values<S, D, 1, true>), blocks, THREADS, 0, stream, e, *a);
    } else {
        MF_LAUNCH((cast_values<S, D, 1, false>), blocks, THREADS, 0, stream, e, *a);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_cast_values_cuda(const mf_kernel_cast *a, void *stream, mf_err *e) {
    if (a->count == 0) {
        return MF_OK;
    }
    cudaStream_t s = (cudaStream_t)stream;
    if (a->src_dtype == MF_KERNEL_BF16) {
        return a->dst_dtype == MF_KERNEL_BF16 ? launch_cast<mf_bf16, mf_bf16>(a, s, e)
                                              : launch_cast<mf_bf16, float>(a, s, e);
    }
    return a->dst_dtype == MF_KERNEL_BF16 ? launch_cast<float, mf_bf16>(a, s, e)
                                          : launch_cast<float, float>(a, s, e);
}

template <typename T, int N>
static mf_status run_add(const mf_kernel_add *a, cudaStream_t stream, mf_err *e) {
    unsigned blocks = (unsigned)mf_ceil_div(a->count, (int64_t)THREADS * EACH * N);
    MF_LAUNCH((add_values<T, N>), blocks, THREADS, 0, stream, e, *a);
    return MF_OK;
}

extern "C" mf_status mf_kernel_add_values_cuda(const mf_kernel_add *a, void *stream, mf_err *e) {
    if (a->count == 0) {
        return MF_OK;
    }
    bool fast =
        mf_vectors(a->a, a->dtype, a->count, a->count) && mf_aligned(a->b) && mf_aligned(a->y);
    return MF_KERNEL_PICK(run_add, a->dtype, fast, a, (cudaStream_t)stream, e);
}

template <typename T, int N>
static mf_status run_copy(const mf_kernel_copy_rows *a, cudaStream_t stream, mf_err *e) {
    int lanes = mf_row_threads(mf_ceil_div(a->cols, N), 4);
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / lanes);
    MF_LAUNCH((copy_rows<T, N>), blocks, THREADS, 0, stream, e, *a, lanes);
    return MF_OK;
}

extern "C" mf_status mf_kernel_copy_rows_strided_cuda(const mf_kernel_copy_rows *a, void *stream,
                                                      mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->src, a->dtype, a->cols, a->src_stride) &&
                mf_vectors(a->dst, a->dtype, a->cols, a->dst_stride);
    return MF_KERNEL_PICK(run_copy, a->dtype, fast, a, (cudaStream_t)stream, e);
}
