/* row_sums.cuh - the last step of a sum over rows whose order is fixed: blocks of a kernel have
 * left partial rows of floats, which are added up here, always in the same order.
 *
 *     out[group, c] += sum over b of partial[group, b, c]
 *
 * These blocks are small enough to find space beside their predecessor's and wait there, as their
 * successor's do beside them: rows are dealt to strands, of which each has several on their way at
 * once.
 */
#ifndef MF_KERNELS_ROW_SUMS_CUH
#define MF_KERNELS_ROW_SUMS_CUH

#include "kernels/device/cuda_common.cuh"

#define ROW_SUMS_LANES 4 /* threads side by side */
#define ROW_SUMS_STRANDS 64
#define ROW_SUMS_FLIGHT 3
#define ROW_SUMS_ENDS 16 /* threads that finish a column */

/* Where sums go: of group g to first + g * cols, but of the last group to `last` if there is one.
 */
typedef struct row_sums_out {
    float *first, *last;
} row_sums_out;

/* W columns a thread (4: rows are vectors). */
template <int W>
__global__ void add_partial_rows(const float *partial, int rows, int64_t cols, row_sums_out to) {
    constexpr int WIDTH = ROW_SUMS_LANES * W;
    static_assert(WIDTH * ROW_SUMS_ENDS <= ROW_SUMS_LANES * ROW_SUMS_STRANDS, "a block finishes");
    __shared__ float share[ROW_SUMS_STRANDS][WIDTH + 1];
    const int flat = (int)(threadIdx.y * ROW_SUMS_LANES + threadIdx.x);
    const int column = flat / ROW_SUMS_ENDS, end = flat % ROW_SUMS_ENDS;
    const int64_t first = (int64_t)blockIdx.x * WIDTH, c = first + (int64_t)threadIdx.x * W;
    const int64_t mine = first + column; /* column that this thread helps to finish */
    const bool finishes = column < WIDTH && mine < cols;
    partial += (int64_t)blockIdx.y * rows * cols + c;
    float *out = to.first + (int64_t)blockIdx.y * cols;
    if (to.last && blockIdx.y + 1 == gridDim.y) {
        out = to.last;
    }
    cudaTriggerProgrammaticLaunchCompletion();
    const float old = finishes ? out[mine] : 0.0f; /* the predecessor does not write it */
    float sum[W];
#pragma unroll
    for (int k = 0; k < W; k++) {
        sum[k] = 0.0f;
    }
    cudaGridDependencySynchronize();
    for (int b = (int)threadIdx.y; c < cols && b < rows; b += ROW_SUMS_STRANDS * ROW_SUMS_FLIGHT) {
        mf_raw<float, W> v[ROW_SUMS_FLIGHT];
#pragma unroll
        for (int i = 0; i < ROW_SUMS_FLIGHT; i++) {
            if (b + i * ROW_SUMS_STRANDS < rows) {
                v[i] = mf_fetch<float, W>(partial + (b + i * ROW_SUMS_STRANDS) * cols);
            }
        }
#pragma unroll
        for (int i = 0; i < ROW_SUMS_FLIGHT; i++) {
            if (b + i * ROW_SUMS_STRANDS < rows) {
                float x[W];
                mf_widen(x, v[i]);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    sum[k] += x[k];
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < W; k++) {
        share[threadIdx.y][(int)threadIdx.x * W + k] = sum[k];
    }
    __syncthreads();
    float all = 0.0f;
    for (int s = end; finishes && s < ROW_SUMS_STRANDS; s += ROW_SUMS_ENDS) {
        all += share[s][column];
    }
    for (int o = ROW_SUMS_ENDS / 2; o > 0; o /= 2) {
        all += __shfl_xor_sync(0xffffffffu, all, o);
    }
    if (finishes && end == 0) {
        out[mine] = old + all;
    }
}

/* partial [groups, rows, cols] into where `to` says, behind the kernel that writes partial. */
static inline mf_status mf_add_partial_rows_to(const float *partial, int64_t groups, int rows,
                                               int64_t cols, row_sums_out to, cudaStream_t stream,
                                               mf_err *e) {
    const bool wide = cols % 4 == 0 && mf_aligned(partial);
    const dim3 block(ROW_SUMS_LANES, ROW_SUMS_STRANDS);
    const dim3 grid((unsigned)mf_ceil_div(cols, ROW_SUMS_LANES * (wide ? 4 : 1)), (unsigned)groups);
    return wide
               ? mf_launch(add_partial_rows<4>, grid, block, 0, stream, e, partial, rows, cols, to)
               : mf_launch(add_partial_rows<1>, grid, block, 0, stream, e, partial, rows, cols, to);
}

/* The same into out [groups, cols]. */
static inline mf_status mf_add_partial_rows(const float *partial, int64_t groups, int rows,
                                            int64_t cols, float *out, cudaStream_t stream,
                                            mf_err *e) {
    return mf_add_partial_rows_to(partial, groups, rows, cols, {out, nullptr}, stream, e);
}

#endif
