/* grad_norm.cu - CUDA kernels of the global gradient norm: a sum for each stretch of a tensor, then
 * one block that adds them in order.
 */
#include "kernels/device/cuda_common.cuh"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/update_terms.h"

#define THREADS 256

static __global__ void chunk_squares(mf_kernel_grad_norm a) {
    mf_await();
    mf_kernel_chunk chunk = a.chunk[blockIdx.x];
    const float *grad = a.tensor[chunk.tensor].grad + chunk.begin;
    int whole = ((uintptr_t)grad & 15) == 0 ? chunk.count / 4 * 4 : 0;
    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f}; /* of at most 32 elements each */
#pragma unroll 8
    for (int i = (int)threadIdx.x * 4; i < whole; i += THREADS * 4) {
        float g[4];
        mf_load(g, grad + i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            part[j] += g[j] * g[j];
        }
    }
    double sum = (double)part[0] + part[1] + part[2] + part[3];
    for (int i = whole + (int)threadIdx.x; i < chunk.count; i += THREADS) {
        sum += (double)grad[i] * grad[i];
    }
    sum = mf_block_sum(sum);
    if (threadIdx.x == 0) {
        ((double *)a.workspace)[blockIdx.x] = sum;
    }
}

static __global__ void chunk_total(mf_kernel_grad_norm a) {
    mf_await();
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < a.chunks; i += blockDim.x) {
        sum += ((const double *)a.workspace)[i];
    }
    sum = mf_block_sum(sum);
    if (threadIdx.x == 0) {
        *a.sum_sq += sum;
    }
}

static __global__ void clip_factor(mf_kernel_grad_clip a) {
    mf_update_clip(*a.sum_sq, a.grad_scale, a.max_norm, a.norm, a.clip);
}

extern "C" mf_status mf_kernel_grad_norm_add_cuda(const mf_kernel_grad_norm *a, void *stream,
                                                  mf_err *e) {
    if (a->chunks == 0) {
        return MF_OK;
    }
    MF_LAUNCH((chunk_squares), (unsigned)a->chunks, THREADS, 0, (cudaStream_t)stream, e, *a);
    MF_LAUNCH((chunk_total), 1, 1024, 0, (cudaStream_t)stream, e, *a);
    return MF_OK;
}

extern "C" mf_status mf_kernel_grad_clip_factor_cuda(const mf_kernel_grad_clip *a, void *stream,
                                                     mf_err *e) {
    clip_factor<<<1, 1, 0, (cudaStream_t)stream>>>(*a);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
