/* cross_entropy.cu - CUDA kernels of the vocabulary-parallel cross-entropy: a block a row; each
 * thread keeps a running maximum and sum over the vectors that it reads, four in flight. Loss and
 * gradient in one: cross_entropy_whole.cu.
 */
#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/cross_entropy_device.cuh"

template <typename T, int N> __global__ void ce_stats(mf_kernel_ce_stats a) {
    mf_await();
    __shared__ float highs[32], sums[32];
    int64_t r = blockIdx.x, cols = live_cols(a.cols, a.begin, a.vocab);
    const T *row = (const T *)a.logits + r * a.stride;
    float high = -INFINITY, sum = 0.0f, hit[1] = {0.0f};
    if (threadIdx.x == 0) { /* on its way while the row is read */
        const int64_t t = a.target[r] - a.begin;
        if (a.target[r] >= 0 && t >= 0 && t < cols) {
            mf_load(hit, row + t);
        }
    }
    weigh<T, N>(row, (int)cols, (int)blockDim.x, high, sum);
    join_lanes(high, sum, 32);
    if (threadIdx.x % 32 == 0) {
        highs[threadIdx.x / 32] = high;
        sums[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const int warps = (int)blockDim.x / 32;
        high = (int)threadIdx.x < warps ? highs[threadIdx.x] : -INFINITY;
        sum = (int)threadIdx.x < warps ? sums[threadIdx.x] : 0.0f;
        join_lanes(high, sum, warps);
        if (threadIdx.x == 0) {
            a.stats[r] = high;
            a.stats[a.rows + r] = sum;
            a.stats[2 * a.rows + r] = hit[0];
        }
    }
}

static __global__ void ce_rescale(mf_kernel_ce_rescale a) {
    mf_await();
    const int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (r < a.rows) {
        const float own = a.own_highest[r], high = a.stats[r];
        a.stats[a.rows + r] *= own < high ? expf(own - high) : 1.0f; /* both may be -inf */
    }
}

/* One block; the loss is summed in double in a fixed order. */
static __global__ void ce_combine(mf_kernel_ce_combine a) {
    mf_await();
    __shared__ double sums[32];
    double total = 0.0;
    for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x) {
        float high = -INFINITY, target = 0.0f, sum = 0.0f;
        for (int64_t k = 0; k < a.ranks; k++) {
            high = fmaxf(high, a.stats[k * 3 * a.rows + r]);
            target += a.stats[(k * 3 + 2) * a.rows + r];
        }
        for (int64_t k = 0; k < a.ranks; k++) {
            sum += a.stats[(k * 3 + 1) * a.rows + r] * expf(a.stats[k * 3 * a.rows + r] - high);
        }
        float lse = high + logf(sum), loss = a.target[r] >= 0 ? lse - target : 0.0f;
        a.lse[r] = lse;
        if (a.loss) {
            a.loss[r] = loss;
        }
        total += (double)loss;
    }
    total = mf_warp_sum(total);
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0 && a.loss_sum) {
        total = 0.0;
        for (int w = 0; w < (int)blockDim.x / 32; w++) {
            total += sums[w];
        }
        *a.loss_sum += total * a.loss_scale;
    }
}

template <typename T, int N> __global__ void ce_grad(mf_kernel_ce_grad a) {
    mf_await();
    int64_t r = blockIdx.y, cols = live_cols(a.cols, a.begin, a.vocab);
    T *row = (T *)a.logits + r * a.stride;
    int64_t target = a.target[r], hit = target - a.begin;
    float scale = target >= 0 ? a.scale : 0.0f, lse = a.lse[r];
    int64_t step = (int64_t)blockDim.x * N,
            c0 = (int64_t)blockIdx.x * step * FLIGHT + threadIdx.x * N;
    mf_raw<T, N> raw[FLIGHT];
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) {
        if (c0 + k * step < a.cols) {
            raw[k] = mf_fetch<T, N>(row + c0 + k * step);
        }
    }
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) {
        int64_t c = c0 + k * step;
        if (c < a.cols) {
            float x[N];
            mf_widen(x, raw[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float p = mf_exp<T>(x[i] - lse) - (c + i == hit ? 1.0f : 0.0f);
                x[i] = c + i < cols ? p * scale : 0.0f;
            }
            mf_store(row + c, x);
        }
    }
}

static int row_threads(int64_t vectors) {
    int threads = mf_pow2_up(mf_ceil_div(vectors, FLIGHT));
    return threads < 32 ? 32 : threads > 512 ? 512 : threads;
}

template <typename T, int N>
static mf_status run_stats(const mf_kernel_ce_stats *a, cudaStream_t stream, mf_err *e) {
    int threads = row_threads(mf_ceil_div(a->cols, 4 * N));
    threads = threads < 256 ? threads : 256; /* many blocks, so that some always read */
    MF_LAUNCH((ce_stats<T, N>), (unsigned)a->rows, threads, 0, stream, e, *a);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_grad(const mf_kernel_ce_grad *a, cudaStream_t stream, mf_err *e) {
    int threads = row_threads(mf_ceil_div(a->cols, N));
    threads = threads < 256 ? threads : 256;
    for (int64_t first = 0; first < a->rows; first += 65535) { /* the grid's limit in y */
        mf_kernel_ce_grad part = *a;
        part.rows = a->rows - first < 65535 ? a->rows - first : 65535;
        part.target = a->target + first;
        part.lse = a->lse + first;
        part.logits = (T *)a->logits + first * a->stride;
        dim3 grid((unsigned)mf_ceil_div(a->cols, (int64_t)threads * N * FLIGHT),
                  (unsigned)part.rows);
        MF_LAUNCH((ce_grad<T, N>), grid, threads, 0, stream, e, part);
    }
    return MF_OK;
}

extern "C" mf_status mf_kernel_cross_entropy_stats_cuda(const mf_kernel_ce_stats *a, void *stream,
                                                        mf_err *e) {
    if (a->rows == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->logits, a->dtype, 0, a->stride);
    return MF_KERNEL_PICK(run_stats, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_cross_entropy_rescale_cuda(const mf_kernel_ce_rescale *a,
                                                          void *stream, mf_err *e) {
    if (a->rows == 0) {
        return MF_OK;
    }
    return mf_launch(ce_rescale, dim3((unsigned)mf_ceil_div(a->rows, 256)), dim3(256), 0,
                     (cudaStream_t)stream, e, *a);
}

extern "C" mf_status mf_kernel_cross_entropy_combine_cuda(const mf_kernel_ce_combine *a,
                                                          void *stream, mf_err *e) {
    if (a->rows == 0) {
        return MF_OK;
    }
    MF_LAUNCH((ce_combine), 1, 1024, 0, (cudaStream_t)stream, e, *a);
    return MF_OK;
}

extern "C" mf_status mf_kernel_cross_entropy_backward_cuda(const mf_kernel_ce_grad *a, void *stream,
                                                           mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->logits, a->dtype, a->cols, a->stride);
    return MF_KERNEL_PICK(run_grad, a->dtype, fast, a, (cudaStream_t)stream, e);
}
