/* gate.cu - CUDA kernels of the shared expert's sigmoid gate. */
#include "kernels/device/cuda_common.cuh"
#include "kernels/moe/gate.h"

#define THREADS 256

template <typename T, int N> __global__ void gate_forward(mf_kernel_gate a, int lanes) {
    mf_await();
    int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    if (r >= a.rows) {
        return;
    }
    float sig = 1.0f / (1.0f + expf(-a.gate[r]));
#pragma unroll 2
    for (int64_t c = (threadIdx.x % lanes) * N; c < a.cols; c += (int64_t)lanes * N) {
        float x[N];
        mf_load(x, (const T *)a.x + r * a.cols + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] *= sig;
        }
        if (a.add) {
            float more[N];
            mf_load(more, (const T *)a.add + r * a.cols + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[i] += more[i];
            }
        }
        mf_store((T *)a.y + r * a.cols + c, x);
    }
}

template <typename T, int N> __global__ void gate_backward(mf_kernel_gate_grad a, int lanes) {
    mf_await();
    __shared__ float sums[THREADS / 32];
    int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    bool live = r < a.rows;
    float sig = live ? 1.0f / (1.0f + expf(-a.gate[r])) : 0.0f, dot = 0.0f;
#pragma unroll 2
    for (int64_t c = (threadIdx.x % lanes) * N; live && c < a.cols; c += (int64_t)lanes * N) {
        float x[N], dy[N];
        mf_load(x, (const T *)a.x + r * a.cols + c);
        mf_load(dy, (const T *)a.dy + r * a.cols + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            dot += x[i] * dy[i];
            dy[i] *= sig;
        }
        mf_store((T *)a.dx + r * a.cols + c, dy);
    }
    dot = mf_warp_sum(dot);
    int warp = (int)threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        sums[warp] = dot;
    }
    __syncthreads();
    if (live && threadIdx.x % lanes == 0) {
        float sum = 0.0f;
        for (int w = 0; w < lanes / 32; w++) {
            sum += sums[warp + w];
        }
        a.dgate[r] = sig * (1.0f - sig) * sum;
    }
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_gate *a, cudaStream_t stream, mf_err *e) {
    int lanes = mf_row_threads(mf_ceil_div(a->cols, N), 2);
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / lanes);
    MF_LAUNCH((gate_forward<T, N>), blocks, THREADS, 0, stream, e, *a, lanes);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_backward(const mf_kernel_gate_grad *a, cudaStream_t stream, mf_err *e) {
    int lanes = mf_row_threads(mf_ceil_div(a->cols, N), 2);
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / lanes);
    MF_LAUNCH((gate_backward<T, N>), blocks, THREADS, 0, stream, e, *a, lanes);
    return MF_OK;
}

extern "C" mf_status mf_kernel_gate_forward_cuda(const mf_kernel_gate *a, void *stream, mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    bool fast =
        mf_vectors(a->x, a->dtype, a->cols, a->cols) && mf_aligned(a->add) && mf_aligned(a->y);
    return MF_KERNEL_PICK(run_forward, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_gate_backward_cuda(const mf_kernel_gate_grad *a, void *stream,
                                                  mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    bool fast =
        mf_vectors(a->x, a->dtype, a->cols, a->cols) && mf_aligned(a->dy) && mf_aligned(a->dx);
    return MF_KERNEL_PICK(run_backward, a->dtype, fast, a, (cudaStream_t)stream, e);
}
