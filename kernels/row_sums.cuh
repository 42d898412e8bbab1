/* row_sums.cuh - the last step of a sum over rows whose order is fixed: blocks of a kernel have
 * left partial rows of floats, which are added up here, always in the same order.
 *
 *     out[group, c] += sum over b of partial[group, b, c]
 *
 * These blocks are small enough to find room beside their predecessor's and wait there: rows are
 * dealt to strands, of which each has several on their way at once.
 */
#ifndef MF_KERNELS_ROW_SUMS_CUH
#define MF_KERNELS_ROW_SUMS_CUH

#include "kernels/cuda_common.cuh"

#define ROW_SUMS_COLS 8
#define ROW_SUMS_STRANDS 16
#define ROW_SUMS_FLIGHT 12

static __global__ void add_partial_rows(const float *partial, int rows, int64_t cols, float *out) {
    __shared__ float share[ROW_SUMS_STRANDS][ROW_SUMS_COLS + 1];
    const int64_t first = (int64_t)blockIdx.x * ROW_SUMS_COLS, c = first + threadIdx.x;
    const int flat = (int)(threadIdx.y * ROW_SUMS_COLS + threadIdx.x);
    const int strand = flat % ROW_SUMS_STRANDS;
    const int64_t mine = first + flat / ROW_SUMS_STRANDS; /* column that this thread finishes */
    partial += (int64_t)blockIdx.y * rows * cols;
    out += (int64_t)blockIdx.y * cols;
    const float old = mine < cols ? out[mine] : 0.0f; /* the predecessor does not write it */
    float sum = 0.0f;
    cudaGridDependencySynchronize();
    for (int b = (int)threadIdx.y; b < rows; b += ROW_SUMS_STRANDS * ROW_SUMS_FLIGHT) {
        float v[ROW_SUMS_FLIGHT];
#pragma unroll
        for (int i = 0; i < ROW_SUMS_FLIGHT; i++) {
            const int row = b + i * ROW_SUMS_STRANDS;
            v[i] = c < cols && row < rows ? partial[row * cols + c] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < ROW_SUMS_FLIGHT; i++) {
            sum += v[i];
        }
    }
    share[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = share[strand][flat / ROW_SUMS_STRANDS];
    for (int o = ROW_SUMS_STRANDS / 2; o > 0; o /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    }
    if (strand == 0 && mine < cols) {
        out[mine] = old + sum;
    }
}

/* partial [groups, rows, cols] into out [groups, cols], behind the kernel that writes partial. */
static inline mf_status mf_add_partial_rows(const float *partial, int64_t groups, int rows,
                                            int64_t cols, float *out, cudaStream_t stream,
                                            mf_err *e) {
    return mf_launch(add_partial_rows,
                     dim3((unsigned)mf_ceil_div(cols, ROW_SUMS_COLS), (unsigned)groups),
                     dim3(ROW_SUMS_COLS, ROW_SUMS_STRANDS), 0, stream, e, partial, rows, cols, out);
}

#endif
