/* norm_split.cu - CUDA kernels of the norm over rows that ranks share. Sums: a team of threads a
 * row. Backward: a thread keeps its columns' sums of dweight over many rows; a team leaves one
 * partial row, and a second kernel adds those up in a fixed order.
 */
#include "kernels/device/cuda_common.cuh"
#include "kernels/device/row_sums.cuh"
#include "kernels/rows/norm_split.h"

#define THREADS 256
#define FLIGHT 4 /* vectors that a thread has under way: of a row, in backward of so many rows */

/* sum[r] = share * sum of x^2, or of dy weight x. */
template <typename T, int N, bool DOT>
__global__ void norm_split_sum(mf_kernel_norm_split a, int lanes) {
    mf_await();
    __shared__ float sums[THREADS / 32];
    int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    float sum = 0.0f;
#pragma unroll 2
    for (int64_t c = (threadIdx.x % lanes) * N; r < a.rows && c < a.cols; c += (int64_t)lanes * N) {
        float x[N];
        mf_load(x, (const T *)a.x + r * a.x_stride + c);
        if constexpr (DOT) {
            float dy[N], w[N];
            mf_load(dy, (const T *)a.dy + r * a.y_stride + c);
            mf_load(w, (const T *)a.weight + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum += dy[i] * w[i] * x[i];
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum += x[i] * x[i];
            }
        }
    }
    sum = mf_warp_sum(sum);
    int warp = (int)threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        sums[warp] = sum;
    }
    __syncthreads();
    if (r < a.rows && threadIdx.x % lanes == 0) {
        float all = 0.0f;
        for (int w = 0; w < lanes / 32; w++) {
            all += sums[warp + w];
        }
        a.sum[r] = all * a.share;
    }
}

template <typename T, int N> __global__ void norm_split_forward(mf_kernel_norm_split a, int lanes) {
    mf_await();
    int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    if (r >= a.rows) {
        return;
    }
    const float sum = a.sum[r];
    const int64_t step = (int64_t)lanes * N;
    for (int64_t c0 = (threadIdx.x % lanes) * N; c0 < a.cols; c0 += FLIGHT * step) {
        mf_raw<T, N> raw[FLIGHT];
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) { /* whatever the sum will say */
            if (c0 + f * step < a.cols) {
                raw[f] = mf_fetch_once<T, N>((const T *)a.x + r * a.x_stride + c0 + f * step);
            }
        }
        const float rstd = 1.0f / sqrtf(sum / (float)a.total + a.eps);
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            if (c0 + f * step < a.cols) {
                float x[N], w[N];
                mf_widen(x, raw[f]);
                mf_load(w, (const T *)a.weight + c0 + f * step);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    x[i] = x[i] * rstd * w[i];
                }
                mf_store((T *)a.y + r * a.y_stride + c0 + f * step, x);
            }
        }
    }
    if (a.rstd && threadIdx.x % lanes == 0) {
        a.rstd[r] = 1.0f / sqrtf(sum / (float)a.total + a.eps);
    }
}

/* Team t of all teams takes rows t, t + teams, ...; blockIdx.y: the team's stretch of columns. */
template <typename T, int N>
__global__ void norm_split_backward(mf_kernel_norm_split a, int lanes, float *partial) {
    mf_await();
    int64_t c = ((int64_t)blockIdx.y * lanes + threadIdx.x % lanes) * N;
    int64_t team = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    int64_t teams = (int64_t)gridDim.x * (THREADS / lanes);
    float w[N], dw[N];
    if (c >= a.cols) {
        return;
    }
    mf_load(w, (const T *)a.weight + c);
#pragma unroll
    for (int i = 0; i < N; i++) {
        dw[i] = 0.0f;
    }
    for (int64_t r0 = team; r0 < a.rows; r0 += FLIGHT * teams) {
        mf_raw<T, N> x_raw[FLIGHT], dy_raw[FLIGHT];
        float rstd[FLIGHT], sum[FLIGHT];
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            int64_t r = r0 + f * teams;
            if (r < a.rows) {
                x_raw[f] = mf_fetch_once<T, N>((const T *)a.x + r * a.x_stride + c);
                dy_raw[f] = mf_fetch_once<T, N>((const T *)a.dy + r * a.y_stride + c);
                rstd[f] = a.rstd[r];
                sum[f] = a.sum[r];
            }
        }
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            int64_t r = r0 + f * teams;
            if (r < a.rows) {
                float x[N], dy[N], k = sum[f] / (float)a.total * rstd[f] * rstd[f];
                mf_widen(x, x_raw[f]);
                mf_widen(dy, dy_raw[f]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    dw[i] += dy[i] * x[i] * rstd[f];
                    dy[i] = rstd[f] * (dy[i] * w[i] - x[i] * k);
                }
                mf_store((T *)a.dx + r * a.x_stride + c, dy);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        partial[team * a.cols + c + i] = dw[i];
    }
}

static int lanes_of(const mf_kernel_norm_split *a, int width) {
    return mf_row_threads(mf_ceil_div(a->cols, width), 2);
}

template <typename T, int N>
static mf_status run_square(const mf_kernel_norm_split *a, cudaStream_t stream, mf_err *e) {
    int lanes = lanes_of(a, N);
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / lanes);
    MF_LAUNCH((norm_split_sum<T, N, false>), blocks, THREADS, 0, stream, e, *a, lanes);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_dot(const mf_kernel_norm_split *a, cudaStream_t stream, mf_err *e) {
    int lanes = lanes_of(a, N);
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / lanes);
    MF_LAUNCH((norm_split_sum<T, N, true>), blocks, THREADS, 0, stream, e, *a, lanes);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_norm_split *a, cudaStream_t stream, mf_err *e) {
    int lanes = mf_row_threads(mf_ceil_div(a->cols, N), FLIGHT);
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / lanes);
    MF_LAUNCH((norm_split_forward<T, N>), blocks, THREADS, 0, stream, e, *a, lanes);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_backward(const mf_kernel_norm_split *a, cudaStream_t stream, mf_err *e) {
    int64_t vectors = mf_ceil_div(a->cols, N);
    int lanes = vectors >= THREADS ? THREADS : mf_pow2_up(vectors < 32 ? 32 : vectors);
    int per_block = THREADS / lanes;
    int64_t across = mf_ceil_div(vectors, lanes), rows = mf_ceil_div(a->rows, per_block);
    int device, sms, resident;
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    MF_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, norm_split_backward<T, N>,
                                                              THREADS, 0),
                e);
    int64_t most = (int64_t)sms * (resident < 1 ? 1 : resident) / across; /* one wave */
    most = most < MF_NORM_SPLIT_TEAMS / per_block ? most : MF_NORM_SPLIT_TEAMS / per_block;
    most = most < 1 ? 1 : most;
    dim3 grid((unsigned)(rows < most ? rows : most), (unsigned)across);
    float *partial = (float *)a->workspace;
    MF_LAUNCH((norm_split_backward<T, N>), grid, THREADS, 0, stream, e, *a, lanes, partial);
    return mf_add_partial_rows(partial, 1, (int)grid.x * per_block, a->cols, a->dweight, stream, e);
}

static bool nothing(const mf_kernel_norm_split *a) {
    return a->rows * a->cols == 0;
}
static bool fast_x(const mf_kernel_norm_split *a) {
    return mf_vectors(a->x, a->dtype, a->cols, a->x_stride) && mf_aligned(a->weight);
}
static bool fast_dy(const mf_kernel_norm_split *a) {
    return fast_x(a) && mf_vectors(a->dy, a->dtype, a->cols, a->y_stride);
}

extern "C" mf_status mf_kernel_norm_split_square_cuda(const mf_kernel_norm_split *a, void *stream,
                                                      mf_err *e) {
    return nothing(a) ? MF_OK
                      : MF_KERNEL_PICK(run_square, a->dtype, fast_x(a), a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_norm_split_forward_cuda(const mf_kernel_norm_split *a, void *stream,
                                                       mf_err *e) {
    bool fast = fast_x(a) && mf_vectors(a->y, a->dtype, a->cols, a->y_stride);
    return nothing(a) ? MF_OK
                      : MF_KERNEL_PICK(run_forward, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_norm_split_dot_cuda(const mf_kernel_norm_split *a, void *stream,
                                                   mf_err *e) {
    return nothing(a) ? MF_OK
                      : MF_KERNEL_PICK(run_dot, a->dtype, fast_dy(a), a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_norm_split_backward_cuda(const mf_kernel_norm_split *a, void *stream,
                                                        mf_err *e) {
    bool fast = fast_dy(a) && mf_aligned(a->dx);
    return nothing(a) ? MF_OK
                      : MF_KERNEL_PICK(run_backward, a->dtype, fast, a, (cudaStream_t)stream, e);
}
