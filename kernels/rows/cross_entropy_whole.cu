/* cross_entropy_whole.cu - loss and gradient of rows of which a rank has all columns: each logit is
 * read once and its gradient written over it once.
 *
 * A cluster of blocks takes a row, each a slice of its columns, which stands in shared memory from
 * the read to the write while the copy engine fetches slices of the rows that follow. Blocks tell
 * each other the highest logit and the sum of their slices through their shared memory.
 */
#include "kernels/device/cuda_bulk.cuh"
#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/cross_entropy_device.cuh"

#include <cooperative_groups.h>

#define THREADS 256
#define WARPS (THREADS / 32)
#define BLOCKS 8             /* of a cluster: the most that every GPU with clusters takes */
#define STAGES 4             /* slices of a block at most: one at work, the others on their way */
#define SLICE_B (36 << 10)   /* of a slice, if a cluster suffices: three blocks a processor */
#define SLICES_B (72 << 10)  /* of all slices of such a block */
#define SHARED_B (220 << 10) /* of a block that has a processor alone */

typedef struct slices {
    int blocks, stages;
    int cols;   /* of a slice: a multiple of the vector; the last may have fewer or none */
    int size_B; /* of a slice in shared memory */
} slices;

/* What a warp says of its part of a slice. */
typedef struct part_stats {
    float high, sum, target;
} part_stats;

/* (high, sum) of a warp's threads, in each of them. */
template <typename T> __device__ static void join_warp(float &high, float &sum) {
    const float top = mf_warp_max(high);
    sum = mf_warp_sum(top == -INFINITY ? 0.0f : sum * quick_exp<T>(high - top));
    high = top;
}

/* exp(x - lse) * scale. For bf16 `lse` holds log2(scale) - lse * log2(e) instead, so that one
 * multiplication with addition and one power of two make a gradient. */
template <typename T> struct gradient_of {
    float lse, scale;
    __device__ gradient_of(float l, float s) : lse(l), scale(s) {
        if (sizeof(T) == 2) {
            lse = log2f(s) - l * LOG2_E;
        }
    }
    __device__ float operator()(float x) const {
        if constexpr (sizeof(T) == 2) {
            return exp_of_two(fmaf(x, LOG2_E, lse));
        }
        return expf(x - lse) * scale;
    }
};

/* The gradient of a slice into its place in global memory. */
template <typename T, int N>
__device__ static void differentiate(const T *slice, T *to, int cols, int live, int hit,
                                     gradient_of<T> gradient) {
#pragma unroll 4
    for (int c = (int)threadIdx.x * N; c < cols; c += THREADS * N) {
        float x[N];
        mf_load(x, slice + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = gradient(x[i]);
        }
        if (c + N > live || (c <= hit && hit < c + N)) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[i] = c + i < live ? x[i] - (c + i == hit ? gradient.scale : 0.0f) : 0.0f;
            }
        }
        mf_store(to + c, x);
    }
}

/* Rows cluster, cluster + clusters, ... Sums are taken in the same order every time. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 3) ce_whole(mf_kernel_ce_whole a, slices w) {
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t full[STAGES];
    __shared__ part_stats
        parts[2][WARPS]; /* in turns: neighbours may still read the row before's */
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    const int rank = (int)cluster.block_rank(), lane = (int)threadIdx.x % 32;
    const int clusters = (int)gridDim.x / w.blocks, begin = rank * w.cols;
    const int left = (int)a.cols - begin, left_live = (int)live_cols(a.cols, 0, a.vocab) - begin;
    const int cols = left < 0 ? 0 : left < w.cols ? left : w.cols;
    const int live = left_live < 0 ? 0 : left_live < cols ? left_live : cols;
    T *logits = (T *)a.logits + begin;
    if (threadIdx.x == 0) {
        for (int s = 0; s < w.stages; s++) {
            mf_bulk_init(&full[s]);
        }
        mf_bulk_init_done();
    }
    __syncthreads();
    mf_await();
    const auto fetch = [&](int64_t r, int s) {
        if (threadIdx.x == 0 && r < a.rows && cols > 0) {
            const uint32_t size_B = (uint32_t)(cols * (int)sizeof(T));
            mf_bulk_expect(&full[s], size_B);
            mf_bulk_load(shared + s * w.size_B, logits + r * a.stride, size_B, &full[s]);
        }
    };
    int64_t r = blockIdx.x / (unsigned)w.blocks;
    for (int s = 0; s + 1 < w.stages; s++) {
        fetch(r + (int64_t)s * clusters, s);
    }
    int s = 0, before = w.stages - 1, turn = 0;
    uint32_t parity = 0;
    for (; r < a.rows; r += clusters, turn ^= 1) {
        const T *slice = (const T *)(shared + s * w.size_B);
        const int target = a.target[r], hit = target < 0 ? -1 : target - begin;
        float high = -INFINITY, sum = 0.0f, logit[1] = {0.0f};
        if (cols > 0) {
            mf_bulk_wait(&full[s], parity);
            weigh<T, N>(slice, live, THREADS, high, sum);
        }
        join_warp<T>(high, sum);
        if (lane == 0) {
            if (threadIdx.x == 0 && 0 <= hit && hit < live) {
                mf_load(logit, slice + hit);
            }
            parts[turn][threadIdx.x / 32] = {high, sum, logit[0]};
        }
        cluster.sync();
        fetch(r + (int64_t)(w.stages - 1) * clusters, before); /* all left the row before there */
        float its = 0.0f;
        high = -INFINITY, sum = 0.0f;
        for (int i = lane; i < w.blocks * WARPS; i += 32) {
            const part_stats p =
                *cluster.map_shared_rank(&parts[turn][i % WARPS], (unsigned)(i / WARPS));
            join(high, sum, p.high, p.sum);
            its += p.target;
        }
        join_warp<T>(high, sum);
        its = mf_warp_sum(its);
        if (rank == 0 && threadIdx.x == 0) {
            a.stats[r] = high;
            a.stats[a.rows + r] = sum;
            a.stats[2 * a.rows + r] = its;
        }
        const gradient_of<T> gradient(high + logf(sum), target < 0 ? 0.0f : a.scale);
        differentiate<T, N>(slice, logits + r * a.stride, cols, live, hit, gradient);
        before = s;
        s = s + 1 < w.stages ? s + 1 : 0;
        parity ^= s == 0;
    }
    cluster.sync(); /* neighbours may read `parts` until here */
}

/* How rows are sliced. stages 0: too long for shared memory. */
static slices slices_of(int64_t cols, int64_t element_B) {
    slices w = {1, 0, 0, 0};
    const int64_t lines = mf_ceil_div(cols * element_B, 128);
    while (w.blocks < BLOCKS && mf_ceil_div(lines, w.blocks) * 128 > SLICE_B) {
        w.blocks *= 2;
    }
    const int64_t size_B = mf_ceil_div(lines, w.blocks) * 128, fit = SLICES_B / size_B;
    if (2 * size_B <= SHARED_B) {
        w.size_B = (int)size_B;
        w.cols = (int)(size_B / element_B);
        w.stages = fit < 2 ? 2 : fit > STAGES ? STAGES : (int)fit;
    }
    return w;
}

template <typename T, int N>
static mf_status run_whole(const mf_kernel_ce_whole *a, slices w, cudaStream_t stream, mf_err *e) {
    const int size_B = w.stages * w.size_B;
    int clusters = 0;
    cudaLaunchAttribute how[2] = {};
    how[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    how[0].val.programmaticStreamSerializationAllowed = 1;
    how[1].id = cudaLaunchAttributeClusterDimension;
    how[1].val.clusterDim.x = (unsigned)w.blocks;
    how[1].val.clusterDim.y = how[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)w.blocks);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)size_B;
    config.stream = stream;
    config.attrs = how;
    config.numAttrs = 2;
    MF_CUDA_TRY(
        cudaFuncSetAttribute(ce_whole<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, size_B),
        e);
    MF_CUDA_TRY(cudaOccupancyMaxActiveClusters(&clusters, ce_whole<T, N>, &config), e);
    clusters = clusters < 1 ? 1 : clusters;
    config.gridDim.x *= (unsigned)(clusters < a->rows ? clusters : a->rows);
    MF_CUDA_TRY(cudaLaunchKernelEx(&config, ce_whole<T, N>, *a, w), e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_cross_entropy_cuda(const mf_kernel_ce_whole *a, void *stream,
                                                  mf_err *e) {
    const slices w = slices_of(a->cols, (int64_t)mf_kernel_dtype_B(a->dtype));
    const mf_kernel_ce_stats stats = mf_kernel_ce_whole_stats(a);
    const mf_kernel_ce_combine sum = mf_kernel_ce_whole_combine(a);
    const mf_kernel_ce_grad grad = mf_kernel_ce_whole_grad(a);
    const bool whole = w.stages > 0 && mf_vectors(a->logits, a->dtype, a->cols, a->stride);
    mf_status status = MF_OK;
    if (a->rows == 0) {
        return MF_OK;
    }
    if (whole) {
        status = a->dtype == MF_KERNEL_BF16 ? run_whole<mf_bf16, 8>(a, w, (cudaStream_t)stream, e)
                                            : run_whole<float, 4>(a, w, (cudaStream_t)stream, e);
    } else {
        status = mf_kernel_cross_entropy_stats_cuda(&stats, stream, e);
    }
    status = status == MF_OK ? mf_kernel_cross_entropy_combine_cuda(&sum, stream, e) : status;
    return status == MF_OK && !whole ? mf_kernel_cross_entropy_backward_cuda(&grad, stream, e)
                                     : status;
}
