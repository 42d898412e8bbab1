/* permute.cu - CUDA kernels of the token permutation: the map by a stable counting sort, rows moved
 * 16 bytes a thread with every copy of a token (or every term of its sum) in flight together.
 */
#include "kernels/device/counting_sort.cuh"
#include "kernels/moe/permute.h"

#define THREADS 256

struct slot_key {
    const int32_t *index;
    __device__ int operator()(int64_t slot) const {
        return index[slot];
    }
};

struct slot_put {
    int32_t *row_of_slot, *slot_of_row;
    int64_t rows_max;
    const int32_t *index;
    int each, rank_rows; /* experts and rows of a rank; 0: no slots */
    __device__ void operator()(int64_t slot, int row) const {
        int64_t end = rows_max;
        if (row >= 0 && each > 0) {
            end = (int64_t)(index[slot] / each + 1) * rank_rows;
        }
        bool fits = row >= 0 && row < end;
        row_of_slot[slot] = fits ? row : -1;
        if (fits) {
            slot_of_row[row] = (int32_t)slot;
        }
    }
};

extern "C" mf_status mf_kernel_permute_map_build_cuda(const mf_kernel_permute_map *a, void *stream,
                                                      mf_err *e) {
    cudaStream_t s = (cudaStream_t)stream;
    int64_t slots = a->tokens * a->top_k;
    if (a->experts > SORT_BINS_MAX) {
        return mf_err_set(e, MF_INPUT, "permute: %lld experts are more than %d",
                          (long long)a->experts, SORT_BINS_MAX);
    }
    int32_t *counts = (int32_t *)a->workspace;
    unsigned blocks = (unsigned)mf_ceil_div(slots, SORT_STRETCH);
    int bins = (int)a->experts;
    slot_key key = {a->index};
    const sort_slots slots_of = {a->ranks > 0 ? (int)(a->experts / a->ranks) : 0,
                                 (int)a->rank_rows};
    slot_put put = {a->row_of_slot, a->slot_of_row, a->rows_max,
                    a->index,       slots_of.bins,  slots_of.places};
    if (a->rows_max > 0) {
        MF_CUDA_TRY(cudaMemsetAsync(a->slot_of_row, 0xff, (size_t)a->rows_max * 4, s), e);
    }
    if (slots <= SORT_CLUSTER_ITEMS) {
        const sort_one_digit<slot_key, slot_put> digits = {key, put};
        const sort_bins want = {bins,        (int)a->align, (int)a->least, a->counts, a->offsets,
                                a->rows_max, a->overflow,   a->sticky,     slots_of};
        return sort_in_cluster(digits, want, slots, s, e);
    }
    if (blocks > 0) {
        sort_count<<<blocks, SORT_THREADS, 0, s>>>(key, slots, bins, counts);
        MF_KERNEL_LAUNCHED(e);
    }
    sort_places<<<1, SORT_BINS_MAX, 0, s>>>(counts, (int)blocks, bins, (int)a->align, (int)a->least,
                                            a->counts, a->offsets, a->rows_max, a->overflow,
                                            a->sticky, slots_of);
    MF_KERNEL_LAUNCHED(e);
    if (blocks > 0) {
        sort_place<<<blocks, SORT_THREADS, 0, s>>>(key, put, slots, bins, counts);
        MF_KERNEL_LAUNCHED(e);
    }
    return MF_OK;
}

/* Row by row: `lanes` threads a row. */
template <typename T, int N> __global__ void permute_rows(mf_kernel_permute a, int lanes) {
    mf_await();
    int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    if (r >= mf_rows(a.rows, a.rows_dev)) {
        return;
    }
    int64_t slot = a.slot_of_row[r], step = (int64_t)lanes * N;
    float w = slot >= 0 && a.weight ? a.weight[slot] : 1.0f;
    const T *x = (const T *)a.x + (slot < 0 ? 0 : slot / a.top_k) * a.cols;
    T *out = (T *)a.out + r * a.cols;
#pragma unroll 4
    for (int64_t c = (threadIdx.x % lanes) * N; c < a.cols; c += step) {
        float v[N];
        mf_load(v, x + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] = slot < 0 ? 0.0f : w * v[i];
        }
        mf_store(out + c, v);
    }
}

/* Clears the padding rows among rows [first, first + 32 * warps of the block); all its threads. */
template <typename T, int N>
__device__ static void clear_padding(const mf_kernel_permute &a, int64_t first, int64_t rows) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t r = first + threadIdx.x;
    unsigned empty = __ballot_sync(0xffffffffu, r < rows && a.slot_of_row[r] < 0);
    for (; empty; empty &= empty - 1) {
        T *to = (T *)a.out + (r - lane + __ffs((int)empty) - 1) * a.cols;
        float zero[N] = {};
        for (int64_t c = (int64_t)lane * N; c < a.cols; c += 32 * N) {
            mf_store(to + c, zero);
        }
    }
}

/* Token by token, a block each: its row is held in registers, at most HELD vectors a thread, and
 * written to all rows of the token, one after the other. The first blocks clear padding rows. */
#define HELD 4

template <typename T, int N>
__global__ void __launch_bounds__(512) permute_held(mf_kernel_permute a, int64_t clear_blocks) {
    mf_await();
    const int64_t rows = mf_rows(a.rows, a.rows_dev);
    if (blockIdx.x < clear_blocks) {
        clear_padding<T, N>(a, (int64_t)blockIdx.x * blockDim.x, rows);
        return;
    }
    const int64_t t = blockIdx.x - clear_blocks;
    const int lane = (int)threadIdx.x % 32, cols = (int)a.cols, choices = (int)a.top_k;
    if (a.sparse &&
        !__any_sync(0xffffffffu, lane < choices && a.row_of_slot[t * choices + lane] >= 0)) {
        return;
    }
    mf_raw<T, N> raw[HELD];
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int c = (k * (int)blockDim.x + (int)threadIdx.x) * N;
        if (c < cols) {
            raw[k] = mf_fetch_once<T, N>((const T *)a.x + t * cols + c);
        }
    }
    const int32_t my_row = lane < choices ? a.row_of_slot[t * choices + lane] : -1;
    const float my_weight = lane < choices && a.weight ? a.weight[t * choices + lane] : 1.0f;
    for (int j = 0; j < choices; j++) {
        const int64_t row = __shfl_sync(0xffffffffu, my_row, j);
        const float w = __shfl_sync(0xffffffffu, my_weight, j);
        if (row < 0 || row >= rows) {
            continue;
        }
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int c = (k * (int)blockDim.x + (int)threadIdx.x) * N;
            if (c < cols) {
                float v[N];
                mf_widen(v, raw[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    v[i] *= w;
                }
                mf_store((T *)a.out + row * cols + c, v);
            }
        }
    }
}

/* Any width and alignment: each vector of x is read once and written to all of the token's rows.
 * Blocks past the tokens clear padding rows. */
template <typename T, int N>
__global__ void permute_tokens(mf_kernel_permute a, int lanes, int64_t token_blocks) {
    mf_await();
    int64_t step = (int64_t)lanes * N, c0 = (threadIdx.x % lanes) * N;
    int64_t rows = mf_rows(a.rows, a.rows_dev);
    if (blockIdx.x >= token_blocks) {
        clear_padding<T, N>(a, (blockIdx.x - token_blocks) * THREADS, rows);
        return;
    }
    int64_t t = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    if (t >= a.tokens) {
        return;
    }
    const int32_t *row = a.row_of_slot + t * a.top_k;
    const float *weight = a.weight ? a.weight + t * a.top_k : nullptr;
    bool read = !a.sparse;
    for (int64_t j = 0; j < a.top_k && !read; j++) {
        read = row[j] >= 0;
    }
#pragma unroll 4
    for (int64_t c = c0; c < a.cols && read; c += step) {
        mf_raw<T, N> raw = mf_fetch<T, N>((const T *)a.x + t * a.cols + c);
        for (int64_t j = 0; j < a.top_k; j++) {
            int64_t r = row[j];
            if (r >= 0 && r < rows) {
                float v[N], w = weight ? weight[j] : 1.0f;
                mf_widen(v, raw);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    v[i] *= w;
                }
                mf_store((T *)a.out + r * a.cols + c, v);
            }
        }
    }
}

/* A thread sums up ACROSS vectors of a token, TERMS of each in flight. */
template <typename T, int N, int TERMS, int ACROSS>
__global__ void unpermute(mf_kernel_unpermute a, int lanes) {
    mf_await();
    int64_t t = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    if (t >= a.tokens) {
        return;
    }
    const int32_t *row = a.row_of_slot + t * a.top_k;
    const float *weight = a.weight ? a.weight + t * a.top_k : nullptr;
    const int64_t step = (int64_t)lanes * N;
    for (int64_t c0 = (threadIdx.x % lanes) * N; c0 < a.cols; c0 += ACROSS * step) {
        float sum[ACROSS][N];
#pragma unroll
        for (int k = 0; k < ACROSS; k++) {
            if (a.add && c0 + k * step < a.cols) {
                mf_load(sum[k], (const T *)a.add + t * a.cols + c0 + k * step);
            } else {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    sum[k][i] = 0.0f;
                }
            }
        }
        for (int64_t j0 = 0; j0 < a.top_k; j0 += TERMS) {
            mf_raw<T, N> raw[TERMS][ACROSS];
            int64_t r[TERMS];
#pragma unroll
            for (int j = 0; j < TERMS; j++) {
                r[j] = j0 + j < a.top_k ? row[j0 + j] : -1;
#pragma unroll
                for (int k = 0; k < ACROSS; k++) {
                    if (r[j] >= 0 && c0 + k * step < a.cols) {
                        raw[j][k] = mf_fetch<T, N>((const T *)a.in + r[j] * a.cols + c0 + k * step);
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < TERMS; j++) {
                if (r[j] < 0) {
                    continue;
                }
                const float w = weight ? weight[j0 + j] : 1.0f;
#pragma unroll
                for (int k = 0; k < ACROSS; k++) {
                    float v[N];
                    mf_widen(v, raw[j][k]);
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        sum[k][i] += w * v[i];
                    }
                }
            }
        }
#pragma unroll
        for (int k = 0; k < ACROSS; k++) {
            if (c0 + k * step < a.cols) {
                mf_store((T *)a.y + t * a.cols + c0 + k * step, sum[k]);
            }
        }
    }
}

/* A warp a slot. */
template <typename T, int N> __global__ void weight_grad(mf_kernel_unpermute_dweight a) {
    mf_await();
    int64_t slot = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (slot >= a.tokens * a.top_k) {
        return;
    }
    int64_t row = a.row_of_slot[slot], t = slot / a.top_k;
    const T *dy = (const T *)a.dy + t * a.cols, *in = (const T *)a.in + row * a.cols;
    float dot = 0.0f;
#pragma unroll 4
    for (int64_t c = (threadIdx.x % 32) * N; row >= 0 && c < a.cols; c += 32 * N) {
        float x[N], y[N];
        mf_load(x, dy + c);
        mf_load(y, in + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            dot += x[i] * y[i];
        }
    }
    dot = mf_warp_sum(dot);
    if (threadIdx.x % 32 == 0) {
        a.dweight[slot] = dot;
    }
}

static __global__ void permute_scalars(mf_kernel_permute_scalar a) {
    int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r < mf_rows(a.rows, a.rows_dev)) {
        a.out[r] = a.map[r] < 0 ? 0.0f : a.src[a.map[r]];
    }
}

/* One block: starts of all runs before and after, in shared memory; then every run is written by
 * the threads of a block of its own (grid = runs). Each block works the starts out for itself. */
static __global__ void regroup_runs(mf_kernel_regroup a) {
    int64_t runs = a.sources * a.experts, me = blockIdx.x;
    int64_t x = me / a.sources, s = me % a.sources; /* in the order after regrouping */
    int32_t old_part = 0, new_part = 0, expert_part = 0, all = 0;
    for (int64_t i = threadIdx.x; i < runs; i += THREADS) {
        int32_t n = a.counts[i];
        int64_t is = i / a.experts, ix = i % a.experts;
        old_part += i < s * a.experts + x ? n : 0;
        new_part += ix < x || (ix == x && is < s) ? n : 0;
        expert_part += ix < x ? n : 0;
        all += n;
    }
    __shared__ int32_t sums[4];
    if (threadIdx.x < 4) {
        sums[threadIdx.x] = 0;
    }
    __syncthreads();
    atomicAdd(&sums[0], old_part);
    atomicAdd(&sums[1], new_part);
    atomicAdd(&sums[2], expert_part);
    atomicAdd(&sums[3], all);
    __syncthreads();
    int32_t old_first = sums[0], new_first = sums[1];
    if (threadIdx.x == 0 && s == 0) {
        a.offsets[x] = sums[2];
    }
    if (threadIdx.x == 0 && me == 0) {
        a.offsets[a.experts] = sums[3];
        *a.overflow = sums[3] > a.rows_max;
    }
    int32_t n = a.counts[s * a.experts + x];
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS) {
        if (new_first + i < a.rows_max && old_first + i < a.rows_max) {
            a.from[new_first + i] = old_first + i;
            a.to[old_first + i] = new_first + i;
        }
    }
}

template <typename T, int N>
static mf_status run_permute(const mf_kernel_permute *a, cudaStream_t stream, mf_err *e) {
    int lanes = mf_row_threads(mf_ceil_div(a->cols, N), 4);
    int64_t held = mf_ceil_div(mf_ceil_div(a->cols, N * HELD), 32) * 32; /* threads */
    if (N > 1 && a->row_of_slot && a->top_k > 1 && a->top_k <= 32 && held <= 512) {
        int64_t clear_blocks = mf_ceil_div(a->rows, held);
        unsigned blocks = (unsigned)(clear_blocks + a->tokens);
        MF_LAUNCH((permute_held<T, N>), blocks, (unsigned)held, 0, stream, e, *a, clear_blocks);
    } else if (a->row_of_slot && a->top_k > 1) {
        int64_t token_blocks = mf_ceil_div(a->tokens, THREADS / lanes);
        unsigned blocks = (unsigned)(token_blocks + mf_ceil_div(a->rows, THREADS));
        MF_LAUNCH((permute_tokens<T, N>), blocks, THREADS, 0, stream, e, *a, lanes, token_blocks);
    } else {
        unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / lanes);
        MF_LAUNCH((permute_rows<T, N>), blocks, THREADS, 0, stream, e, *a, lanes);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_unpermute(const mf_kernel_unpermute *a, cudaStream_t stream, mf_err *e) {
    const int across = a->top_k <= 4 ? 2 : 1; /* vectors: four to eight loads in flight */
    const int lanes = mf_row_threads(mf_ceil_div(a->cols, N), across);
    const unsigned blocks = (unsigned)mf_ceil_div(a->tokens, THREADS / lanes);
    if (a->top_k <= 2) {
        MF_LAUNCH((unpermute<T, N, 2, 2>), blocks, THREADS, 0, stream, e, *a, lanes);
    } else if (across == 2) {
        MF_LAUNCH((unpermute<T, N, 4, 2>), blocks, THREADS, 0, stream, e, *a, lanes);
    } else {
        MF_LAUNCH((unpermute<T, N, 8, 1>), blocks, THREADS, 0, stream, e, *a, lanes);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_weight_grad(const mf_kernel_unpermute_dweight *a, cudaStream_t stream,
                                 mf_err *e) {
    unsigned blocks = (unsigned)mf_ceil_div(a->tokens * a->top_k, THREADS / 32);
    MF_LAUNCH((weight_grad<T, N>), blocks, THREADS, 0, stream, e, *a);
    return MF_OK;
}

extern "C" mf_status mf_kernel_permute_forward_cuda(const mf_kernel_permute *a, void *stream,
                                                    mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->x, a->dtype, a->cols, a->cols) && mf_aligned(a->out);
    return MF_KERNEL_PICK(run_permute, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_unpermute_forward_cuda(const mf_kernel_unpermute *a, void *stream,
                                                      mf_err *e) {
    if (a->tokens * a->cols == 0) {
        return MF_OK;
    }
    bool fast =
        mf_vectors(a->in, a->dtype, a->cols, a->cols) && mf_aligned(a->add) && mf_aligned(a->y);
    return MF_KERNEL_PICK(run_unpermute, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_unpermute_weight_grad_cuda(const mf_kernel_unpermute_dweight *a,
                                                          void *stream, mf_err *e) {
    if (a->tokens * a->top_k == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->in, a->dtype, a->cols, a->cols) && mf_aligned(a->dy);
    return MF_KERNEL_PICK(run_weight_grad, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_permute_scalars_cuda(const mf_kernel_permute_scalar *a, void *stream,
                                                    mf_err *e) {
    if (a->rows == 0) {
        return MF_OK;
    }
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS);
    permute_scalars<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(*a);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_permute_regroup_cuda(const mf_kernel_regroup *a, void *stream,
                                                    mf_err *e) {
    cudaStream_t s = (cudaStream_t)stream;
    size_t size_B = (size_t)a->rows_max * sizeof(int32_t);
    if (size_B > 0) {
        MF_CUDA_TRY(cudaMemsetAsync(a->from, 0xff, size_B, s), e);
        MF_CUDA_TRY(cudaMemsetAsync(a->to, 0xff, size_B, s), e);
    }
    regroup_runs<<<(unsigned)(a->sources * a->experts), THREADS, 0, s>>>(*a);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
