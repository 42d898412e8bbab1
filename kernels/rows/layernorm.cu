/* layernorm.cu - CUDA kernels of LayerNorm.
 *
 * Forward: `lanes` threads fetch a row into registers, find its mean, then the mean square of what
 * is left, and store. Backward: blocks walk over rows, one at a time with the next one on its way;
 * a thread meets the same columns in every row, so that its parts of the gradients of weights and
 * biases stay in registers. A block leaves one partial row of each, which a second kernel adds in a
 * fixed order. Slow path (any alignment and width): the same arithmetic, one element at a time.
 */
#include "kernels/device/cuda_common.cuh"
#include "kernels/device/row_sums.cuh"
#include "kernels/rows/layernorm.h"
#include "kernels/rows/norm_units.cuh"

#define ROW_THREADS 512 /* of a block in backward, at most */
#define ROW_EACH 2      /* vectors of a thread there */
#define ROW_BLOCKS 2    /* on a multiprocessor */
#define ANY_THREADS 256

template <typename T, int N, int K>
__global__ void layernorm_forward(mf_kernel_layernorm a, int lanes) {
    mf_await();
    __shared__ float scratch[64];
    const int lane = (int)threadIdx.x % lanes, cols = (int)a.cols;
    const int64_t r = (int64_t)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    const bool live = r < a.rows;
    const T *x = (const T *)a.x + r * a.cols;
    mf_raw<T, N> raw[K];
    float sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = (k * lanes + lane) * N;
        if (live && c < cols) {
            raw[k] = mf_fetch_once<T, N>(x + c);
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (live && (k * lanes + lane) * N < cols) {
            float v[N];
            mf_widen(v, raw[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum += v[i];
            }
        }
    }
    const float mean = mf_group_sum(sum, lanes, scratch, 0) / (float)cols;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (live && (k * lanes + lane) * N < cols) {
            float v[N];
            mf_widen(v, raw[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                square += (v[i] - mean) * (v[i] - mean);
            }
        }
    }
    square = mf_group_sum(square, lanes, scratch, 1);
    const float rstd = 1.0f / sqrtf(square / (float)cols + a.eps);
    const T *weight = (const T *)a.weight, *bias = weight + cols;
    T *y = (T *)a.y + r * a.cols;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = (k * lanes + lane) * N;
        if (live && c < cols) {
            float v[N], w[N], b[N];
            mf_load(w, weight + c);
            mf_load(b, bias + c);
            mf_widen(v, raw[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                v[i] = (v[i] - mean) * rstd * w[i] + b[i];
            }
            mf_store(y + c, v);
        }
    }
    if (a.rstd && live && lane == 0) {
        a.rstd[r] = rstd;
    }
}

/* Any alignment and width: a block a row. */
template <typename T> __global__ void layernorm_forward_any(mf_kernel_layernorm a) {
    __shared__ float scratch[64];
    const T *x = (const T *)a.x + (int64_t)blockIdx.x * a.cols, *weight = (const T *)a.weight;
    float sum = 0.0f, square = 0.0f, v[1], w[1], b[1];
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        mf_load(v, x + c);
        sum += v[0];
    }
    const float mean = mf_group_sum(sum, (int)blockDim.x, scratch, 0) / (float)a.cols;
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        mf_load(v, x + c);
        square += (v[0] - mean) * (v[0] - mean);
    }
    square = mf_group_sum(square, (int)blockDim.x, scratch, 1);
    const float rstd = 1.0f / sqrtf(square / (float)a.cols + a.eps);
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        mf_load(v, x + c);
        mf_load(w, weight + c);
        mf_load(b, weight + a.cols + c);
        v[0] = (v[0] - mean) * rstd * w[0] + b[0];
        mf_store((T *)a.y + (int64_t)blockIdx.x * a.cols + c, v);
    }
    if (a.rstd && threadIdx.x == 0) {
        a.rstd[blockIdx.x] = rstd;
    }
}

/* Column of a thread's vector k of ROW_EACH, which lie blockDim.x vectors apart. */
template <int N> __device__ static inline int row_column(int k) {
    return (k * (int)blockDim.x + (int)threadIdx.x) * N;
}

/* A thread's vectors of a row. */
template <typename T, int N> struct row_part { mf_raw<T, N> x[ROW_EACH], dy[ROW_EACH]; };

template <typename T, int N>
__device__ static inline void fetch_row(row_part<T, N> &p, const mf_kernel_layernorm_grad &a,
                                        int64_t r) {
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++) {
        const int c = row_column<N>(k);
        if (r < a.rows && c < (int)a.cols) {
            p.x[k] = mf_fetch_once<T, N>((const T *)a.x + r * a.cols + c);
            p.dy[k] = mf_fetch_once<T, N>((const T *)a.dy + r * a.cols + c);
        }
    }
}

/* Sums of two numbers over a block of whole warps, in a fixed order, with one barrier. `scratch`:
 * 64 pairs of shared memory, whose halves take turns. */
__device__ static inline float2 sum_pair(float2 v, float2 *scratch, int turn) {
    const int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    float2 *const s = scratch + (turn & 1) * 32;
    v = make_float2(mf_warp_sum(v.x), mf_warp_sum(v.y));
    if (lane == 0) {
        s[threadIdx.x / 32] = v;
    }
    __syncthreads();
    v = lane < warps ? s[lane] : make_float2(0.0f, 0.0f);
    return make_float2(mf_warp_sum(v.x), mf_warp_sum(v.y));
}

/* A thread's columns in all rows of its block: weights, and sums of their gradients and of those of
 * biases. */
template <typename T, int N> struct column_part {
    mf_raw<T, N> weight[ROW_EACH];
    float dw[ROW_EACH][N], db[ROW_EACH][N];
};

template <typename T, int N>
__device__ static inline void begin_columns(column_part<T, N> &own,
                                            const mf_kernel_layernorm_grad &a) {
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++) {
        const int c = row_column<N>(k);
        if (c < (int)a.cols) {
            own.weight[k] = mf_fetch<T, N>((const T *)a.weight + c);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            own.dw[k][i] = own.db[k][i] = 0.0f;
        }
    }
}

/* A thread's sums of x and of dy * weight. Fetches what is to be added to row r of dx, too. */
template <typename T, int N, bool ADD>
__device__ static inline float2 sum_row(const row_part<T, N> &row, const column_part<T, N> &own,
                                        const mf_kernel_layernorm_grad &a, int64_t r,
                                        mf_raw<T, N> *add) {
    float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++) {
        const int c = row_column<N>(k);
        if (c < (int)a.cols) {
            float x[N], dy[N], w[N];
            mf_widen(x, row.x[k]);
            mf_widen(dy, row.dy[k]);
            mf_widen(w, own.weight[k]);
            if constexpr (ADD) {
                add[k] = mf_fetch_once<T, N>((const T *)a.dx_add + r * a.cols + c);
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                sums.x += x[i];
                sums.y += dy[i] * w[i];
            }
        }
    }
    return sums;
}

/* Adds the row to the thread's gradients of weights and biases. Returns its sum of dy * weight * n,
 * n: x normalized. */
template <typename T, int N>
__device__ static inline float add_row(column_part<T, N> &own, const row_part<T, N> &row,
                                       float mean, float rstd, int cols) {
    float dot = 0.0f;
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++) {
        if (row_column<N>(k) < cols) {
            float x[N], dy[N], w[N];
            mf_widen(x, row.x[k]);
            mf_widen(dy, row.dy[k]);
            mf_widen(w, own.weight[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float n = (x[i] - mean) * rstd;
                dot += dy[i] * w[i] * n;
                own.dw[k][i] += dy[i] * n;
                own.db[k][i] += dy[i];
            }
        }
    }
    return dot;
}

/* dx = rstd * (dy * weight - mean_g - n * mean_gn) [+ add]; mean_g and mean_gn are the means of
 * dy * weight and of dy * weight * n over the row. */
template <typename T, int N, bool ADD>
__device__ static inline void put_dx(T *dx, const row_part<T, N> &row, const column_part<T, N> &own,
                                     const mf_raw<T, N> *add, float mean, float rstd, float mean_g,
                                     float mean_gn, int cols) {
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++) {
        const int c = row_column<N>(k);
        if (c < cols) {
            float x[N], dy[N], w[N];
            mf_widen(x, row.x[k]);
            mf_widen(dy, row.dy[k]);
            mf_widen(w, own.weight[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float n = (x[i] - mean) * rstd;
                x[i] = rstd * (dy[i] * w[i] - mean_g - n * mean_gn);
            }
            if constexpr (ADD) {
                mf_widen(dy, add[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    x[i] += dy[i];
                }
            }
            mf_store(dx + c, x);
        }
    }
}

/* The block's partial rows: dw's at `to`, db's at `bias_to`. */
template <typename T, int N>
__device__ static inline void put_partial_rows(float *to, float *bias_to,
                                               const column_part<T, N> &own, int cols) {
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++) {
        const int c = row_column<N>(k);
        if (c < cols) {
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                *reinterpret_cast<float4 *>(to + c + i) =
                    make_float4(own.dw[k][i], own.dw[k][i + 1], own.dw[k][i + 2], own.dw[k][i + 3]);
                *reinterpret_cast<float4 *>(bias_to + c + i) =
                    make_float4(own.db[k][i], own.db[k][i + 1], own.db[k][i + 2], own.db[k][i + 3]);
            }
        }
    }
}

/* partial: [2, blocks, cols], a row of gradients of weights and one of biases from each block. */
template <typename T, int N, bool ADD>
__global__ void __launch_bounds__(ROW_THREADS)
    layernorm_backward(mf_kernel_layernorm_grad a, float *partial) {
    mf_await();
    __shared__ float2 scratch[64];
    const int cols = (int)a.cols;
    const float part = 1.0f / (float)cols;
    column_part<T, N> own;
    begin_columns(own, a);
    row_part<T, N> next;
    fetch_row(next, a, blockIdx.x);
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const row_part<T, N> row = next;
        const float rstd = a.rstd[r];
        mf_raw<T, N> add[ADD ? ROW_EACH : 1];
        fetch_row(next, a, r + gridDim.x);
        const float2 sums = sum_pair(sum_row<T, N, ADD>(row, own, a, r, add), scratch, 0);
        const float mean = sums.x * part, mean_g = sums.y * part;
        const float dot = add_row(own, row, mean, rstd, cols);
        const float mean_gn = sum_pair(make_float2(dot, 0.0f), scratch, 1).x * part;
        put_dx<T, N, ADD>((T *)a.dx + r * a.cols, row, own, add, mean, rstd, mean_g, mean_gn, cols);
    }
    float *const to = partial + (int64_t)blockIdx.x * cols;
    put_partial_rows(to, to + (int64_t)gridDim.x * cols, own, cols);
}

/* Any alignment and width: a block's threads add to its partial rows where they lie. */
template <typename T>
__global__ void layernorm_backward_any(mf_kernel_layernorm_grad a, float *partial) {
    __shared__ float2 scratch[64];
    const float part = 1.0f / (float)a.cols;
    float *const to = partial + (int64_t)blockIdx.x * a.cols;
    float *const bias_to = to + (int64_t)gridDim.x * a.cols;
    float x[1], dy[1], w[1];
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t at = r * a.cols;
        const float rstd = a.rstd[r];
        float2 sums = make_float2(0.0f, 0.0f);
        float dot = 0.0f;
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            mf_load(x, (const T *)a.x + at + c);
            mf_load(dy, (const T *)a.dy + at + c);
            mf_load(w, (const T *)a.weight + c);
            sums.x += x[0];
            sums.y += dy[0] * w[0];
        }
        sums = sum_pair(sums, scratch, 0);
        const float mean = sums.x * part, mean_g = sums.y * part;
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            mf_load(x, (const T *)a.x + at + c);
            mf_load(dy, (const T *)a.dy + at + c);
            mf_load(w, (const T *)a.weight + c);
            const float n = (x[0] - mean) * rstd;
            const bool first = r == blockIdx.x;
            dot += dy[0] * w[0] * n;
            to[c] = dy[0] * n + (first ? 0.0f : to[c]);
            bias_to[c] = dy[0] + (first ? 0.0f : bias_to[c]);
        }
        const float mean_gn = sum_pair(make_float2(dot, 0.0f), scratch, 1).x * part;
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            mf_load(x, (const T *)a.x + at + c);
            mf_load(dy, (const T *)a.dy + at + c);
            mf_load(w, (const T *)a.weight + c);
            const float n = (x[0] - mean) * rstd;
            float dx[1] = {rstd * (dy[0] * w[0] - mean_g - n * mean_gn)};
            if (a.dx_add) {
                mf_load(w, (const T *)a.dx_add + at + c);
                dx[0] += w[0];
            }
            mf_store((T *)a.dx + at + c, dx);
        }
    }
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_layernorm *a, cudaStream_t stream, mf_err *e) {
    unit_plan p;
    if constexpr (N > 1) {
        if (choose_units(a->cols, N, &p)) {
            const unsigned blocks = (unsigned)mf_ceil_div(a->rows, p.threads / p.lanes);
            return p.each == 2 ? mf_launch(layernorm_forward<T, N, 2>, dim3(blocks),
                                           dim3((unsigned)p.threads), 0, stream, e, *a, p.lanes)
                               : mf_launch(layernorm_forward<T, N, 4>, dim3(blocks),
                                           dim3((unsigned)p.threads), 0, stream, e, *a, p.lanes);
        }
    }
    layernorm_forward_any<T><<<(unsigned)a->rows, ANY_THREADS, 0, stream>>>(*a);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

/* One wave of blocks, each with two partial rows in the workspace. */
static mf_status blocks_of(const mf_kernel_layernorm_grad *a, int64_t *out, mf_err *e) {
    const int64_t held =
        (int64_t)(mf_kernel_layernorm_workspace_B(a->cols) / sizeof(float)) / (2 * a->cols);
    int device, sms;
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    const int64_t wave = ROW_BLOCKS * (int64_t)sms, most = held < wave ? held : wave;
    *out = a->rows < most ? a->rows : most;
    return MF_OK;
}

template <typename T, int N>
static mf_status run_backward(const mf_kernel_layernorm_grad *a, cudaStream_t stream, mf_err *e) {
    float *partial = (float *)a->workspace;
    int64_t blocks = 0;
    mf_status status = blocks_of(a, &blocks, e);
    if (status != MF_OK) {
        return status;
    }
    const int64_t threads = mf_ceil_div(mf_ceil_div(a->cols, N), ROW_EACH * 32) * 32;
    bool fast = N > 1 && threads <= ROW_THREADS;
    if constexpr (N > 1) {
        if (fast) {
            status = mf_launch(
                a->dx_add ? layernorm_backward<T, N, true> : layernorm_backward<T, N, false>,
                dim3((unsigned)blocks), dim3((unsigned)threads), 0, stream, e, *a, partial);
        }
    }
    if (!fast) {
        layernorm_backward_any<T><<<(unsigned)blocks, ANY_THREADS, 0, stream>>>(*a, partial);
        MF_KERNEL_LAUNCHED(e);
    }
    return status == MF_OK
               ? mf_add_partial_rows(partial, 2, (int)blocks, a->cols, a->dweight, stream, e)
               : status;
}

extern "C" mf_status mf_kernel_layernorm_forward_cuda(const mf_kernel_layernorm *a, void *stream,
                                                      mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    bool fast =
        mf_vectors(a->x, a->dtype, a->cols, a->cols) && mf_aligned(a->weight) && mf_aligned(a->y);
    return MF_KERNEL_PICK(run_forward, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_layernorm_backward_cuda(const mf_kernel_layernorm_grad *a,
                                                       void *stream, mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->x, a->dtype, a->cols, a->cols) && mf_aligned(a->weight) &&
                mf_aligned(a->dy) && mf_aligned(a->dx) && mf_aligned(a->dx_add) &&
                mf_aligned(a->workspace);
    return MF_KERNEL_PICK(run_backward, a->dtype, fast, a, (cudaStream_t)stream, e);
}
