/* bias.cu - CUDA kernels of bias rows and their gradients. Column sums go through partial sums of
 * stretches of rows, so that their order is fixed.
 */
#include "kernels/device/row_sums.cuh"
#include "kernels/rows/bias.h"

#define THREADS 256
#define SPLITS_MAX 64 /* as in bias.c */
#define FLIGHT 8      /* rows that a thread of a column sum has in flight */

__device__ static int64_t first_row(const int32_t *offsets, int64_t group) {
    return offsets ? offsets[group] : 0;
}

__device__ static int64_t end_row(const int32_t *offsets, int64_t group, int64_t rows) {
    return offsets && offsets[group + 1] < rows ? offsets[group + 1] : rows;
}

__device__ static int64_t group_of(const int32_t *offsets, int64_t groups, int64_t row) {
    int64_t low = 0, high = offsets ? groups - 1 : 0;
    while (low < high) {
        int64_t mid = (low + high + 1) / 2;
        if (offsets[mid] <= row) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return low;
}

template <typename T, int N> __global__ void bias_add(mf_kernel_bias a, int lanes) {
    mf_await();
    int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    int64_t rows = mf_rows(a.rows, a.rows_dev);
    if (r >= rows || r < first_row(a.offsets, 0) || r >= end_row(a.offsets, a.groups - 1, rows)) {
        return;
    }
    const T *bias = (const T *)a.bias + group_of(a.offsets, a.groups, r) * a.cols;
    T *x = (T *)a.x + r * a.stride;
    float scale = a.scale ? a.scale[r] : 1.0f;
#pragma unroll 4
    for (int64_t c = (threadIdx.x % lanes) * N; c < a.cols; c += (int64_t)lanes * N) {
        float v[N], b[N];
        mf_load(v, x + c);
        mf_load(b, bias + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] += scale * b[i];
        }
        mf_store(x + c, v);
    }
}

/* partial[group, split, c] = sum of scale * dy over the split's rows of the group. A block: 8 rows
 * of threads over 32 vectors of columns. */
template <typename T, int N>
__global__ void bias_partial(mf_kernel_bias_grad a, int splits, float *partial) {
    mf_await();
    __shared__ float smem[8][32 * N];
    int64_t group = blockIdx.y, split = blockIdx.z;
    int64_t c = ((int64_t)blockIdx.x * 32 + threadIdx.x) * N;
    int64_t begin = first_row(a.offsets, group);
    int64_t end = end_row(a.offsets, group, mf_rows(a.rows, a.rows_dev));
    int64_t count = end > begin ? end - begin : 0, each = (count + splits - 1) / splits;
    int64_t from = begin + split * each, to = from + each < end ? from + each : end;
    float sum[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        sum[i] = 0.0f;
    }
    for (int64_t r0 = from + threadIdx.y; r0 < to && c < a.cols; r0 += 8 * FLIGHT) {
        mf_raw<T, N> raw[FLIGHT];
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            if (r0 + 8 * f < to) {
                raw[f] = mf_fetch_once<T, N>((const T *)a.dy + (r0 + 8 * f) * a.stride + c);
            }
        }
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            if (r0 + 8 * f < to) {
                float v[N], scale = a.scale ? a.scale[r0 + 8 * f] : 1.0f;
                mf_widen(v, raw[f]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    sum[i] += scale * v[i];
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        smem[threadIdx.y][threadIdx.x * N + i] = sum[i];
    }
    __syncthreads();
    for (int i = (int)(threadIdx.y * 32 + threadIdx.x); i < 32 * N; i += THREADS) {
        int64_t col = (int64_t)blockIdx.x * 32 * N + i;
        if (col < a.cols) {
            float total = 0.0f;
            for (int y = 0; y < 8; y++) {
                total += smem[y][i];
            }
            partial[(group * splits + split) * a.cols + col] = total;
        }
    }
}

template <typename T, int N> __global__ void bias_scale_grad(mf_kernel_bias_grad a) {
    mf_await();
    int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    int64_t rows = mf_rows(a.rows, a.rows_dev);
    if (r >= rows || r < first_row(a.offsets, 0) || r >= end_row(a.offsets, a.groups - 1, rows)) {
        return;
    }
    const T *bias = (const T *)a.bias + group_of(a.offsets, a.groups, r) * a.cols;
    const T *dy = (const T *)a.dy + r * a.stride;
    float dot = 0.0f;
#pragma unroll 4
    for (int64_t c = (threadIdx.x % 32) * N; c < a.cols; c += 32 * N) {
        float v[N], b[N];
        mf_load(v, dy + c);
        mf_load(b, bias + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            dot += v[i] * b[i];
        }
    }
    dot = mf_warp_sum(dot);
    if (threadIdx.x % 32 == 0) {
        a.dscale[r] += dot;
    }
}

template <typename T, int N>
static mf_status run_add(const mf_kernel_bias *a, cudaStream_t stream, mf_err *e) {
    int lanes = mf_row_threads(mf_ceil_div(a->cols, N), 4);
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / lanes);
    MF_LAUNCH((bias_add<T, N>), blocks, THREADS, 0, stream, e, *a, lanes);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_grad(const mf_kernel_bias_grad *a, cudaStream_t stream, mf_err *e) {
    if (a->dbias) {
        int splits = a->groups == 1 ? SPLITS_MAX : 8;
        dim3 grid((unsigned)mf_ceil_div(a->cols, 32 * N), (unsigned)a->groups, (unsigned)splits);
        MF_LAUNCH((bias_partial<T, N>), grid, dim3(32, 8), 0, stream, e, *a, splits,
                  (float *)a->workspace);
        mf_status status = mf_add_partial_rows((const float *)a->workspace, a->groups, splits,
                                               a->cols, a->dbias, stream, e);
        if (status != MF_OK) {
            return status;
        }
    }
    if (a->dscale) {
        unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / 32);
        MF_LAUNCH((bias_scale_grad<T, N>), blocks, THREADS, 0, stream, e, *a);
    }
    return MF_OK;
}

extern "C" mf_status mf_kernel_bias_add_cuda(const mf_kernel_bias *a, void *stream, mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->x, a->dtype, a->cols, a->stride) && mf_aligned(a->bias);
    return MF_KERNEL_PICK(run_add, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_bias_backward_cuda(const mf_kernel_bias_grad *a, void *stream,
                                                  mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->dy, a->dtype, a->cols, a->stride) && mf_aligned(a->bias);
    return MF_KERNEL_PICK(run_grad, a->dtype, fast, a, (cudaStream_t)stream, e);
}
