/* rmsnorm.cu - CUDA kernels of the root-mean-square norm.
 *
 * Forward: `lanes` threads (a part of a warp for QK-norm, a small block for hidden) fetch a unit -
 * a group of a row - into registers, a few 16-byte loads a thread, reduce and store. Backward: of
 * wide rows rmsnorm_rows.cuh, of narrow groups rmsnorm_narrow.cuh; both leave one partial row of
 * dweight a block, which a second kernel adds. Slow path (any alignment and width): the same
 * arithmetic, one element at a time.
 */
#include "kernels/device/cuda_common.cuh"
#include "kernels/device/row_sums.cuh"
#include "kernels/rows/norm_units.cuh"
#include "kernels/rows/rmsnorm.h"
#include "kernels/rows/rmsnorm_narrow.cuh"
#include "kernels/rows/rmsnorm_rows.cuh"

template <typename T, int N, int K, bool ADD>
__global__ void norm_forward(mf_kernel_rmsnorm a, int lanes) {
    mf_await();
    __shared__ float scratch[64];
    int lane = (int)threadIdx.x % lanes, cols = (int)a.cols;
    int64_t unit = (int64_t)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    bool live = unit < a.rows * a.groups;
    int64_t r = unit / a.groups, g = unit % a.groups, at = r * a.x_stride + g * a.cols;
    const T *x = (const T *)a.x + at;
    mf_raw<T, N> raw[K];
    float square = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (k * lanes + lane) * N;
        if (live && c < cols) {
            raw[k] = mf_fetch_once<T, N>(x + c);
        }
    }
    if (ADD) {
        mf_raw<T, N> more[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = (k * lanes + lane) * N;
            if (live && c < cols) {
                more[k] = mf_fetch_once<T, N>((const T *)a.add + at + c);
            }
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = (k * lanes + lane) * N;
            if (live && c < cols) {
                float s[N], t[N];
                mf_widen(s, raw[k]);
                mf_widen(t, more[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    s[i] += t[i];
                }
                mf_store((T *)&raw[k], s);
                *reinterpret_cast<mf_raw<T, N> *>((T *)a.sum + at + c) = raw[k];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (live && (k * lanes + lane) * N < cols) {
            float s[N];
            mf_widen(s, raw[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                square += s[i] * s[i];
            }
        }
    }
    square = mf_group_sum(square, lanes, scratch, 0);
    float rstd = 1.0f / sqrtf(square / (float)cols + a.eps);
    const float one = a.plus_one ? 1.0f : 0.0f;
    T *y = (T *)a.y + r * a.y_stride + g * a.cols;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (k * lanes + lane) * N;
        if (live && c < cols) {
            float s[N], w[N];
            mf_widen(w, fetch_weight<T, N>(a.weight, c));
            mf_widen(s, raw[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                s[i] = s[i] * rstd * (w[i] + one);
            }
            mf_store(y + c, s);
        }
    }
    if (a.rstd && live && lane == 0) {
        a.rstd[unit] = rstd;
    }
}

/* Any alignment and width: a block a unit. */
template <typename T> __global__ void norm_forward_any(mf_kernel_rmsnorm a) {
    __shared__ float scratch[64];
    int64_t r = blockIdx.x / a.groups, g = blockIdx.x % a.groups;
    int64_t at = r * a.x_stride + g * a.cols;
    const T *s = a.add ? (const T *)a.sum : (const T *)a.x;
    float square = 0.0f;
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        float x[1], t[1];
        mf_load(x, (const T *)a.x + at + c);
        if (a.add) {
            mf_load(t, (const T *)a.add + at + c);
            x[0] = mf_round_as((T *)nullptr, x[0] + t[0]);
            mf_store((T *)a.sum + at + c, x);
        }
        square += x[0] * x[0];
    }
    square = mf_group_sum(square, (int)blockDim.x, scratch, 0);
    float rstd = 1.0f / sqrtf(square / (float)a.cols + a.eps);
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        float x[1], w[1];
        mf_load(x, s + at + c);
        mf_widen(w, fetch_weight<T, 1>(a.weight, c));
        x[0] = x[0] * rstd * (w[0] + (a.plus_one ? 1.0f : 0.0f));
        mf_store((T *)a.y + r * a.y_stride + g * a.cols + c, x);
    }
    if (a.rstd && threadIdx.x == 0) {
        a.rstd[blockIdx.x] = rstd;
    }
}

template <typename T> __global__ void norm_backward_any(mf_kernel_rmsnorm_grad a) {
    __shared__ float scratch[64];
    int64_t r = blockIdx.x / a.groups, g = blockIdx.x % a.groups;
    int64_t at = r * a.x_stride + g * a.cols, yt = r * a.y_stride + g * a.cols;
    const float one = a.plus_one ? 1.0f : 0.0f;
    float rstd = a.rstd[blockIdx.x], dot = 0.0f, x[1], dy[1], w[1];
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        mf_load(x, (const T *)a.x + at + c);
        mf_load(dy, (const T *)a.dy + yt + c);
        mf_widen(w, fetch_weight<T, 1>(a.weight, c));
        dot += dy[0] * (w[0] + one) * x[0];
    }
    dot = mf_group_sum(dot, (int)blockDim.x, scratch, 0);
    float f = dot / (float)a.cols * rstd * rstd;
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        mf_load(x, (const T *)a.x + at + c);
        mf_load(dy, (const T *)a.dy + yt + c);
        mf_widen(w, fetch_weight<T, 1>(a.weight, c));
        float dx[1] = {rstd * (dy[0] * (w[0] + one) - x[0] * f)};
        if (a.dx_add) {
            mf_load(w, (const T *)a.dx_add + at + c);
            dx[0] += w[0];
        }
        mf_store((T *)a.dx + at + c, dx);
    }
}

/* partial[block] = the sum of dy * x * rstd over the block's units; before dx overwrites dy. */
template <typename T> __global__ void norm_weight_any(mf_kernel_rmsnorm_grad a, float *partial) {
    int64_t c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= a.cols) {
        return;
    }
    float sum = 0.0f, x[1], dy[1];
    for (int64_t u = blockIdx.x; u < a.rows * a.groups; u += gridDim.x) {
        int64_t r = u / a.groups, g = u % a.groups;
        mf_load(x, (const T *)a.x + r * a.x_stride + g * a.cols + c);
        mf_load(dy, (const T *)a.dy + r * a.y_stride + g * a.cols + c);
        sum += dy[0] * x[0] * a.rstd[u];
    }
    partial[blockIdx.x * a.cols + c] = sum;
}

/* Partial rows that the workspace holds. */
static int64_t partial_rows(int64_t cols) {
    return (int64_t)(mf_kernel_rmsnorm_workspace_B(cols) / sizeof(float)) / cols;
}

static mf_status sum_weights(const mf_kernel_rmsnorm_grad *a, int blocks, cudaStream_t stream,
                             mf_err *e) {
    return mf_add_partial_rows((const float *)a->workspace, 1, blocks, a->cols, a->dweight, stream,
                               e);
}

/* Multiprocessors of the device. */
static mf_status multiprocessors(int *sms, mf_err *e) {
    int device;
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(sms, cudaDevAttrMultiProcessorCount, device), e);
    return MF_OK;
}

template <typename T, int N, int K>
static mf_status launch_forward(const mf_kernel_rmsnorm *a, const unit_plan *p, cudaStream_t stream,
                                mf_err *e) {
    unsigned blocks = (unsigned)mf_ceil_div(a->rows * a->groups, p->threads / p->lanes);
    if (a->add) {
        MF_LAUNCH((norm_forward<T, N, K, true>), blocks, p->threads, 0, stream, e, *a, p->lanes);
    } else {
        MF_LAUNCH((norm_forward<T, N, K, false>), blocks, p->threads, 0, stream, e, *a, p->lanes);
    }
    return MF_OK;
}

template <typename T, int N, bool ADD, int EACH, bool SHIFT>
static mf_status launch_units(const mf_kernel_rmsnorm_grad *a, const norm_plan *p,
                              cudaStream_t stream, mf_err *e) {
    int sms;
    mf_status status = multiprocessors(&sms, e);
    if (status != MF_OK) {
        return status;
    }
    size_t share_B = (size_t)plan_smem_B(p, ADD ? 3 : 2);
    const size_t teams_B = (size_t)(p->teams * a->cols) * sizeof(float);
    share_B = share_B > teams_B ? share_B : teams_B;
    MF_CUDA_TRY(cudaFuncSetAttribute(norm_backward<T, N, ADD, EACH, SHIFT>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)share_B),
                e);
    int64_t blocks = mf_ceil_div(a->rows * a->groups, p->teams);
    blocks = blocks < sms ? blocks : sms;
    blocks = blocks < partial_rows(a->cols) ? blocks : partial_rows(a->cols);
    float *partial = a->dweight ? (float *)a->workspace : nullptr;
    MF_LAUNCH((norm_backward<T, N, ADD, EACH, SHIFT>), (unsigned)blocks, p->lanes * p->teams,
              share_B, stream, e, *a, *p, partial);
    return partial ? sum_weights(a, (int)blocks, stream, e) : MF_OK;
}

template <typename T, int N, bool ADD, bool SHIFT>
static mf_status launch_each(const mf_kernel_rmsnorm_grad *a, const norm_plan *p,
                             cudaStream_t stream, mf_err *e) {
    if constexpr (!ADD) {
        if (p->each == 2) {
            return launch_units<T, N, ADD, 2, SHIFT>(a, p, stream, e);
        }
    }
    return launch_units<T, N, ADD, 4, SHIFT>(a, p, stream, e);
}

template <typename T, int N, bool ADD>
static mf_status launch_backward(const mf_kernel_rmsnorm_grad *a, norm_plan *p, cudaStream_t stream,
                                 mf_err *e) {
    p->shift = a->plus_one ? 1.0f : 0.0f;
    return a->plus_one || a->weight == nullptr ? launch_each<T, N, ADD, true>(a, p, stream, e)
                                               : launch_each<T, N, ADD, false>(a, p, stream, e);
}

/* Groups of at most a vector a thread of a warp. */
template <typename T, int N, bool ADD>
static mf_status launch_narrow(const mf_kernel_rmsnorm_grad *a, cudaStream_t stream, mf_err *e) {
    const int lanes = mf_pow2_up(a->cols / N);
    int sms;
    mf_status status = multiprocessors(&sms, e);
    if (status != MF_OK) {
        return status;
    }
    const int64_t work = mf_ceil_div(a->rows * a->groups, NARROW_THREADS / lanes);
    const int64_t most_rows = partial_rows(a->cols);
    const int64_t most = NARROW_BLOCKS * sms < most_rows ? NARROW_BLOCKS * sms : most_rows;
    const int64_t blocks = work < most ? work : most;
    float *partial = a->dweight ? (float *)a->workspace : nullptr;
    status = mf_launch(norm_backward_narrow<T, N, ADD>, dim3((unsigned)blocks),
                       dim3(NARROW_THREADS), 0, stream, e, *a, lanes, partial);
    return status == MF_OK && partial ? sum_weights(a, (int)blocks, stream, e) : status;
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_rmsnorm *a, cudaStream_t stream, mf_err *e) {
    unit_plan p;
    bool fast = N > 1 && choose_units(a->cols, N, &p);
    if constexpr (N > 1) {
        if (fast && p.each == 2) {
            return launch_forward<T, N, 2>(a, &p, stream, e);
        }
        if (fast) {
            return launch_forward<T, N, 4>(a, &p, stream, e);
        }
    }
    if (!fast) {
        norm_forward_any<T><<<(unsigned)(a->rows * a->groups), 256, 0, stream>>>(*a);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_backward(const mf_kernel_rmsnorm_grad *a, cudaStream_t stream, mf_err *e) {
    norm_plan p;
    if constexpr (N > 1) {
        if (a->cols <= 32 * N && a->rows * a->groups <= INT32_MAX) {
            return a->dx_add ? launch_narrow<T, N, true>(a, stream, e)
                             : launch_narrow<T, N, false>(a, stream, e);
        }
        if (a->rows * a->groups <= INT32_MAX / 2 &&
            choose_plan(a->cols, N, a->dx_add ? 3 : 2, &p)) {
            return a->dx_add ? launch_backward<T, N, true>(a, &p, stream, e)
                             : launch_backward<T, N, false>(a, &p, stream, e);
        }
    }
    if (a->dweight) {
        int64_t units = a->rows * a->groups, most = partial_rows(a->cols);
        dim3 grid((unsigned)(units < most ? units : most), (unsigned)mf_ceil_div(a->cols, 256));
        norm_weight_any<T><<<grid, 256, 0, stream>>>(*a, (float *)a->workspace);
        MF_KERNEL_LAUNCHED(e);
        mf_status status = sum_weights(a, (int)grid.x, stream, e);
        if (status != MF_OK) {
            return status;
        }
    }
    norm_backward_any<T><<<(unsigned)(a->rows * a->groups), 256, 0, stream>>>(*a);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
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
                mf_aligned(a->dx_add) && mf_aligned(a->weight) && mf_aligned(a->workspace);
    return MF_KERNEL_PICK(run_backward, a->dtype, fast, a, (cudaStream_t)stream, e);
}
