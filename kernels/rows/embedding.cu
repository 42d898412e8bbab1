/* embedding.cu - CUDA kernel of the table look-up (its gradient: embedding_grad.cu). */
#include "kernels/device/cuda_common.cuh"
#include "kernels/rows/embedding.h"

#define THREADS 256

template <typename T, int N>
__global__ void embedding_rows(mf_kernel_embedding a, int lanes, float scale) {
    mf_await();
    int64_t t = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    if (t >= a.tokens) {
        return;
    }
    int64_t v = a.token[t] - a.begin;
    bool here = v >= 0 && v < a.vocab;
    const T *row = (const T *)a.table + (here ? v : 0) * a.cols;
    T *y = (T *)a.y + t * a.cols;
#pragma unroll 4
    for (int64_t c = (threadIdx.x % lanes) * N; c < a.cols; c += (int64_t)lanes * N) {
        float x[N] = {};
        if (here) {
            mf_load(x, row + c);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] *= scale;
        }
        mf_store(y + c, x);
    }
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_embedding *a, cudaStream_t stream, mf_err *e) {
    int lanes = mf_row_threads(mf_ceil_div(a->cols, N), 4);
    unsigned blocks = (unsigned)mf_ceil_div(a->tokens, THREADS / lanes);
    const float scale = a->scale > 0.0f ? a->scale : 1.0f;
    MF_LAUNCH((embedding_rows<T, N>), blocks, THREADS, 0, stream, e, *a, lanes, scale);
    return MF_OK;
}

extern "C" mf_status mf_kernel_embedding_forward_cuda(const mf_kernel_embedding *a, void *stream,
                                                      mf_err *e) {
    if (a->tokens * a->cols == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->table, a->dtype, a->cols, a->cols) && mf_aligned(a->y);
    return MF_KERNEL_PICK(run_forward, a->dtype, fast, a, (cudaStream_t)stream, e);
}
