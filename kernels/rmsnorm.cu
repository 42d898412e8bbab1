/* rmsnorm.cu - CUDA kernels of the root-mean-square norm.
 *
 * A unit is one group of one row; `lanes` threads share it (a part of a warp for QK-norm, a block
 * for hidden) and hold it in registers, so that each element is read once. Backward runs a grid of
 * resident blocks over the units, fetches the next unit while it reduces this one, keeps its share
 * of dweight in registers and leaves one partial row a block; a second kernel adds those.
 */
#include "kernels/cuda_common.cuh"
#include "kernels/rmsnorm.h"

#define BLOCKS_MAX 528 /* rows of the workspace, as in rmsnorm.c */

/* Threads of a unit and of a block; vectors that each thread holds. */
typedef struct norm_grid {
    int lanes, threads, units_per_block, each;
} norm_grid;

static bool choose_grid(int64_t cols, int n, int most, norm_grid *g) {
    int64_t vectors = mf_ceil_div(cols, n);
    int each = n == 1 ? 16 : vectors <= 2 * most ? 2 : 4;
    int64_t need = mf_ceil_div(vectors, each);
    g->each = each;
    if (need <= 32) {
        g->lanes = mf_pow2_up(need);
        g->threads = 256;
        g->units_per_block = g->threads / g->lanes;
        return true;
    }
    g->lanes = g->threads = (int)mf_ceil_div(need, 32) * 32;
    g->units_per_block = 1;
    return g->threads <= (n == 1 ? 1024 : most);
}

template <typename T, int N, int K> __global__ void norm_forward(mf_kernel_rmsnorm a, int lanes) {
    __shared__ float scratch[64];
    int per_block = (int)blockDim.x / lanes, lane = (int)threadIdx.x % lanes;
    int64_t unit = (int64_t)blockIdx.x * per_block + threadIdx.x / lanes;
    bool live = unit < a.rows * a.groups;
    int64_t r = live ? unit / a.groups : 0, g = live ? unit % a.groups : 0;
    const T *x = (const T *)a.x + r * a.x_stride + g * a.cols;
    const T *add = a.add ? (const T *)a.add + r * a.x_stride + g * a.cols : nullptr;
    float s[K][N], square = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t c = (int64_t)(k * lanes + lane) * N;
        if (live && c < a.cols) {
            mf_load(s[k], x + c);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) {
                s[k][i] = 0.0f;
            }
        }
    }
    if (add) {
        T *sum = (T *)a.sum + r * a.x_stride + g * a.cols;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t c = (int64_t)(k * lanes + lane) * N;
            if (live && c < a.cols) {
                float t[N];
                mf_load(t, add + c);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    s[k][i] = mf_round_as((T *)nullptr, s[k][i] + t[i]);
                }
                mf_store(sum + c, s[k]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            square += s[k][i] * s[k][i];
        }
    }
    square = mf_group_sum(square, lanes, scratch, 0);
    float rstd = 1.0f / sqrtf(square / (float)a.cols + a.eps);
    if (!live) {
        return;
    }
    T *y = (T *)a.y + r * a.y_stride + g * a.cols;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t c = (int64_t)(k * lanes + lane) * N;
        if (c < a.cols) {
            float w[N];
            mf_load(w, (const T *)a.weight + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                w[i] = s[k][i] * rstd * w[i];
            }
            mf_store(y + c, w);
        }
    }
    if (a.rstd && lane == 0) {
        a.rstd[unit] = rstd;
    }
}

template <typename T, int N, int K>
__global__ void __launch_bounds__(N == 1 ? 1024 : 512)
    norm_backward(mf_kernel_rmsnorm_grad a, int lanes, float *partial) {
    extern __shared__ float share[]; /* [units per block, cols] when several units share a block */
    __shared__ float scratch[64];
    int per_block = (int)blockDim.x / lanes, lane = (int)threadIdx.x % lanes;
    int64_t units = a.rows * a.groups, step = (int64_t)gridDim.x * per_block;
    int64_t unit = (int64_t)blockIdx.x * per_block + threadIdx.x / lanes;
    /* All threads of a block make the same number of turns. */
    int64_t turns = ((int64_t)blockIdx.x * per_block < units)
                        ? (units - (int64_t)blockIdx.x * per_block + step - 1) / step
                        : 0;
    mf_raw<T, N> next_x[K], next_dy[K];
    float dw[K][N];
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            dw[k][i] = 0.0f;
        }
    }
    auto fetch = [&](int64_t u) {
        int64_t r = u / a.groups, g = u % a.groups;
        const T *x = (const T *)a.x + r * a.x_stride + g * a.cols;
        const T *dy = (const T *)a.dy + r * a.y_stride + g * a.cols;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t c = (int64_t)(k * lanes + lane) * N;
            if (u < units && c < a.cols) {
                next_x[k] = mf_fetch<T, N>(x + c);
                next_dy[k] = mf_fetch<T, N>(dy + c);
            }
        }
    };
    if (turns > 0) {
        fetch(unit);
    }
    for (int64_t turn = 0; turn < turns; turn++, unit += step) {
        bool live = unit < units;
        mf_raw<T, N> raw_x[K], raw_dy[K];
        float dot = 0.0f;
#pragma unroll
        for (int k = 0; k < K; k++) {
            raw_x[k] = next_x[k];
            raw_dy[k] = next_dy[k];
        }
        float rstd = live ? a.rstd[unit] : 0.0f;
        if (turn + 1 < turns) {
            fetch(unit + step);
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t c = (int64_t)(k * lanes + lane) * N;
            if (live && c < a.cols) {
                float w[N], x[N], dy[N];
                mf_load(w, (const T *)a.weight + c);
                mf_widen(x, raw_x[k]);
                mf_widen(dy, raw_dy[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float product = dy[i] * x[i];
                    dw[k][i] += product * rstd;
                    dot += product * w[i];
                }
            }
        }
        dot = mf_group_sum(dot, lanes, scratch, (int)turn);
        float f = dot / (float)a.cols * rstd * rstd;
        int64_t at = live ? unit / a.groups * a.x_stride + unit % a.groups * a.cols : 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t c = (int64_t)(k * lanes + lane) * N;
            if (live && c < a.cols) {
                float more[N], w[N], x[N], dy[N];
                mf_load(w, (const T *)a.weight + c);
                mf_widen(x, raw_x[k]);
                mf_widen(dy, raw_dy[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    more[i] = 0.0f;
                }
                if (a.dx_add) {
                    mf_load(more, (const T *)a.dx_add + at + c);
                }
#pragma unroll
                for (int i = 0; i < N; i++) {
                    more[i] += rstd * (dy[i] * w[i] - x[i] * f);
                }
                mf_store((T *)a.dx + at + c, more);
            }
        }
    }
    if (!partial) {
        return;
    }
    float *out = per_block > 1 ? share + (int64_t)(threadIdx.x / lanes) * a.cols
                               : partial + (int64_t)blockIdx.x * a.cols;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t c = (int64_t)(k * lanes + lane) * N;
        if (c < a.cols) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                out[c + i] = dw[k][i];
            }
        }
    }
    if (per_block > 1) {
        __syncthreads();
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            float sum = 0.0f;
            for (int u = 0; u < per_block; u++) {
                sum += share[u * a.cols + c];
            }
            partial[(int64_t)blockIdx.x * a.cols + c] = sum;
        }
    }
}

/* dweight[c] += sum of the blocks' partial rows. 32 columns and 8 strands of rows a block. */
static __global__ void norm_weight_sum(const float *partial, int blocks, int64_t cols,
                                       float *dweight) {
    __shared__ float share[8][32];
    int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    for (int b = (int)threadIdx.y; b < blocks && c < cols; b += 8) {
        sum += partial[b * cols + c];
    }
    share[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < cols) {
        for (int i = 1; i < 8; i++) {
            sum += share[i][threadIdx.x];
        }
        dweight[c] += sum;
    }
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_rmsnorm *a, cudaStream_t stream, mf_err *e) {
    norm_grid g;
    if (!choose_grid(a->cols, N, 1024, &g)) {
        return mf_err_set(e, MF_INPUT, "rmsnorm: %lld columns are too many", (long long)a->cols);
    }
    unsigned blocks = (unsigned)mf_ceil_div(a->rows * a->groups, g.units_per_block);
    if constexpr (N == 1) {
        norm_forward<T, N, 16><<<blocks, g.threads, 0, stream>>>(*a, g.lanes);
    } else if (g.each == 2) {
        norm_forward<T, N, 2><<<blocks, g.threads, 0, stream>>>(*a, g.lanes);
    } else {
        norm_forward<T, N, 4><<<blocks, g.threads, 0, stream>>>(*a, g.lanes);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

template <typename T, int N, int K>
static mf_status launch_backward(const mf_kernel_rmsnorm_grad *a, const norm_grid *g,
                                 cudaStream_t stream, mf_err *e) {
    int device, sms, resident;
    size_t share_B = g->units_per_block > 1 ? (size_t)(g->units_per_block * a->cols) * 4 : 0;
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    if (share_B > 48 * 1024) {
        MF_CUDA_TRY(cudaFuncSetAttribute(norm_backward<T, N, K>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)share_B),
                    e);
    }
    MF_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, norm_backward<T, N, K>,
                                                              g->threads, share_B),
                e);
    int64_t blocks = mf_ceil_div(a->rows * a->groups, g->units_per_block);
    int64_t most = (int64_t)sms * (resident < 4 ? resident : 4);
    most = most < BLOCKS_MAX ? most : BLOCKS_MAX;
    blocks = blocks < most ? blocks : most;
    float *partial = a->dweight ? (float *)a->workspace : nullptr;
    norm_backward<T, N, K>
        <<<(unsigned)blocks, g->threads, share_B, stream>>>(*a, g->lanes, partial);
    MF_KERNEL_LAUNCHED(e);
    if (partial) {
        norm_weight_sum<<<(unsigned)mf_ceil_div(a->cols, 32), dim3(32, 8), 0, stream>>>(
            partial, (int)blocks, a->cols, a->dweight);
        MF_KERNEL_LAUNCHED(e);
    }
    return MF_OK;
}

template <typename T, int N>
static mf_status run_backward(const mf_kernel_rmsnorm_grad *a, cudaStream_t stream, mf_err *e) {
    norm_grid g;
    if (!choose_grid(a->cols, N, 512, &g)) {
        return mf_err_set(e, MF_INPUT, "rmsnorm: %lld columns are too many", (long long)a->cols);
    }
    if constexpr (N == 1) {
        return launch_backward<T, N, 16>(a, &g, stream, e);
    } else {
        return g.each == 2 ? launch_backward<T, N, 2>(a, &g, stream, e)
                           : launch_backward<T, N, 4>(a, &g, stream, e);
    }
}

extern "C" mf_status mf_kernel_rmsnorm_forward_cuda(const mf_kernel_rmsnorm *a, void *stream,
                                                    mf_err *e) {
    if (a->rows == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->x, a->dtype, a->cols, a->x_stride) &&
                mf_vectors(a->y, a->dtype, a->cols, a->y_stride) && mf_aligned(a->weight) &&
                mf_aligned(a->add) && mf_aligned(a->sum);
    return MF_KERNEL_PICK(run_forward, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_rmsnorm_backward_cuda(const mf_kernel_rmsnorm_grad *a, void *stream,
                                                     mf_err *e) {
    if (a->rows == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->x, a->dtype, a->cols, a->x_stride) &&
                mf_vectors(a->dy, a->dtype, a->cols, a->y_stride) && mf_aligned(a->dx) &&
                mf_aligned(a->dx_add) && mf_aligned(a->weight);
    return MF_KERNEL_PICK(run_backward, a->dtype, fast, a, (cudaStream_t)stream, e);
}
