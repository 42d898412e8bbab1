/* normal.cu - CUDA kernel of initial weights; compiled with -fmad=false. */
#include "kernels/device/cuda_common.cuh"
#include "kernels/rows/normal.h"
#include "kernels/rows/normal_value.h"

#define THREADS 256
#define BLOCKS 2112 /* sixteen a multiprocessor of an H100 */

__global__ void normal_values(mf_kernel_normal a) {
    mf_await();
    const int64_t all = a.rows * a.cols, stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all; i += stride) {
        const int64_t r = i / a.cols, c = i % a.cols;
        const int64_t at = (a.at_row + r) * a.width + a.at_col + c - a.first;
        if (at >= 0 && at < a.count) {
            a.w[at] = (float)(a.deviation * mf_normal_at(a.key, ((a.row + r) << 24) + a.col + c));
        }
    }
}

extern "C" mf_status mf_kernel_normal_values_cuda(const mf_kernel_normal *a, void *stream,
                                                  mf_err *e) {
    const int64_t blocks = mf_ceil_div(a->rows * a->cols, (int64_t)THREADS);
    if (blocks > 0) {
        MF_LAUNCH(normal_values, (unsigned)(blocks < BLOCKS ? blocks : BLOCKS), THREADS, 0,
                  (cudaStream_t)stream, e, *a);
    }
    return MF_OK;
}
