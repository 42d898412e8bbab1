/* output_gate.cu - CUDA kernels of the gate on attention's output: element by element where each
 * column has a gate of its own, a warp for each head otherwise. */
#include "kernels/attention/output_gate.h"
#include "kernels/device/cuda_common.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

__device__ static inline float sigmoid_of(float x) {
    return 1.0f / (1.0f + expf(-x));
}

template <typename T, int N> __global__ void columns_forward(mf_kernel_output_gate a) {
    mf_await();
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (i >= a.rows * a.cols) {
        return;
    }
    float x[N], gate[N];
    mf_load(x, (const T *)a.x + i);
    mf_load(gate, (const T *)a.gate + i);
#pragma unroll
    for (int k = 0; k < N; k++) {
        x[k] *= sigmoid_of(gate[k]);
    }
    mf_store((T *)a.y + i, x);
}

template <typename T, int N> __global__ void columns_backward(mf_kernel_output_gate_grad a) {
    mf_await();
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (i >= a.rows * a.cols) {
        return;
    }
    float x[N], gate[N], dy[N];
    mf_load(x, (const T *)a.x + i);
    mf_load(gate, (const T *)a.gate + i);
    mf_load(dy, (const T *)a.dy + i);
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float s = sigmoid_of(gate[k]);
        x[k] *= s * (1.0f - s) * dy[k];
        dy[k] *= s;
    }
    mf_store((T *)a.dx + i, dy);
    mf_store((T *)a.dgate + i, x);
}

template <typename T, int N> __global__ void heads_forward(mf_kernel_output_gate a) {
    mf_await();
    const int64_t h = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (h >= a.rows * (a.cols / a.width)) {
        return;
    }
    float gate[1];
    mf_load(gate, (const T *)a.gate + h);
    const float s = sigmoid_of(gate[0]);
    for (int64_t c = (threadIdx.x % 32) * N; c < a.width; c += 32 * N) {
        float x[N];
        mf_load(x, (const T *)a.x + h * a.width + c);
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] *= s;
        }
        mf_store((T *)a.y + h * a.width + c, x);
    }
}

template <typename T, int N> __global__ void heads_backward(mf_kernel_output_gate_grad a) {
    mf_await();
    const int64_t h = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (h >= a.rows * (a.cols / a.width)) {
        return;
    }
    float gate[1], sum[1] = {0.0f};
    mf_load(gate, (const T *)a.gate + h);
    const float s = sigmoid_of(gate[0]);
    for (int64_t c = (threadIdx.x % 32) * N; c < a.width; c += 32 * N) {
        float x[N], dy[N];
        mf_load(x, (const T *)a.x + h * a.width + c);
        mf_load(dy, (const T *)a.dy + h * a.width + c);
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum[0] += x[k] * dy[k];
            dy[k] *= s;
        }
        mf_store((T *)a.dx + h * a.width + c, dy);
    }
    sum[0] = mf_warp_sum(sum[0]) * s * (1.0f - s);
    if (threadIdx.x % 32 == 0) {
        mf_store((T *)a.dgate + h, sum);
    }
}

/* Blocks of a launch: elements N a thread, or a warp a head. */
static unsigned blocks_of(int64_t rows, int64_t cols, int64_t width, int n) {
    return (unsigned)(width == 1 ? mf_ceil_div(rows * cols, (int64_t)THREADS * n)
                                 : mf_ceil_div(rows * (cols / width), WARPS));
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_output_gate *a, cudaStream_t stream, mf_err *e) {
    const unsigned blocks = blocks_of(a->rows, a->cols, a->width, N);
    if (a->width == 1) {
        MF_LAUNCH((columns_forward<T, N>), blocks, THREADS, 0, stream, e, *a);
    } else {
        MF_LAUNCH((heads_forward<T, N>), blocks, THREADS, 0, stream, e, *a);
    }
    return MF_OK;
}

template <typename T, int N>
static mf_status run_backward(const mf_kernel_output_gate_grad *a, cudaStream_t stream, mf_err *e) {
    const unsigned blocks = blocks_of(a->rows, a->cols, a->width, N);
    if (a->width == 1) {
        MF_LAUNCH((columns_backward<T, N>), blocks, THREADS, 0, stream, e, *a);
    } else {
        MF_LAUNCH((heads_backward<T, N>), blocks, THREADS, 0, stream, e, *a);
    }
    return MF_OK;
}

extern "C" mf_status mf_kernel_output_gate_forward_cuda(const mf_kernel_output_gate *a,
                                                        void *stream, mf_err *e) {
    const int64_t run = a->width == 1 ? a->cols : a->width;
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    const bool fast = mf_vectors(a->x, a->dtype, run, run) && mf_aligned(a->y) &&
                      (a->width > 1 || mf_aligned(a->gate));
    return MF_KERNEL_PICK(run_forward, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_output_gate_backward_cuda(const mf_kernel_output_gate_grad *a,
                                                         void *stream, mf_err *e) {
    const int64_t run = a->width == 1 ? a->cols : a->width;
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    const bool fast = mf_vectors(a->x, a->dtype, run, run) && mf_aligned(a->dy) &&
                      mf_aligned(a->dx) &&
                      (a->width > 1 || (mf_aligned(a->gate) && mf_aligned(a->dgate)));
    return MF_KERNEL_PICK(run_backward, a->dtype, fast, a, (cudaStream_t)stream, e);
}
