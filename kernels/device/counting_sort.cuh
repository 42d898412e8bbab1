/* counting_sort.cuh - a stable counting sort on the device. Stable and without floating atomics, so
 * the same in every run. Used by permute (keys = experts) and by the gradient of the embedding
 * (keys = digits of tokens). Two ways to the same order:
 * - up to SORT_CLUSTER_ITEMS: one launch of one cluster, all digits in turn; counts travel through
 *   the cluster's shared memory. Launch latency is what a sort of this size costs;
 * - more: three launches a digit: count the keys of each stretch of SORT_STRETCH items, turn counts
 *   into first places, place the items.
 */
#ifndef MF_KERNELS_COUNTING_SORT_CUH
#define MF_KERNELS_COUNTING_SORT_CUH

#include "kernels/device/cuda_common.cuh"

#include <cooperative_groups.h>

#define SORT_BINS_MAX 512
#define SORT_CLUSTER 8 /* blocks: the most that every GPU with clusters takes */
#define SORT_CLUSTER_ITEMS (1 << 18)
#define SORT_CLUSTER_THREADS 1024
#define SORT_CLUSTER_WARPS (SORT_CLUSTER_THREADS / 32)
#define SORT_HELD 8 /* items of a thread in registers */
#define SORT_STRETCH 1024
#define SORT_THREADS 256
#define SORT_WARPS (SORT_THREADS / 32)
#define SORT_ROUNDS (SORT_STRETCH / SORT_THREADS)

/* Bins in slots: every `bins` of them begin anew, `places` behind those before. bins 0: none. */
typedef struct sort_slots {
    int bins, places;
} sort_slots;

/* Where bin b begins, and the next one but for its slot's end, when `ends` are the ends of bins one
 * behind the other. */
typedef struct sort_run {
    int32_t begin, end;
    bool fits; /* its slot holds what is in it up to here */
} sort_run;

__device__ static inline sort_run sort_run_of(const int32_t *ends, int b, int32_t padded,
                                              sort_slots s) {
    if (s.bins == 0) {
        return {ends[b] - padded, ends[b], true};
    }
    const int slot = b / s.bins, first = slot * s.bins;
    const int32_t shift = slot * s.places - (first > 0 ? ends[first - 1] : 0);
    const int32_t end = ends[b] + shift;
    return {end - padded, end, end <= (slot + 1) * s.places};
}

/* Thousandths of the space that items ask for, of the fullest slot where there are slots: ends[bin]
 * are the items up to there and in it. */
__device__ static inline int32_t sort_asked(const int32_t *ends, int bins, int32_t end,
                                            int64_t most, sort_slots s) {
    int32_t asked = mf_kernel_asked(end, most);
    for (int last = s.bins - 1; s.bins > 0 && last < bins; last += s.bins) {
        const int32_t items = ends[last] - (last >= s.bins ? ends[last - s.bins] : 0);
        asked = max(asked, mf_kernel_asked(items, s.places));
    }
    return asked;
}

/* counts[stretch, bins] of the items of each stretch. Key: a functor item -> bin, -1 for none. */
template <typename Key>
__global__ void sort_count(Key key, int64_t items, int bins, int32_t *counts) {
    __shared__ int32_t bin[SORT_BINS_MAX];
    for (int b = (int)threadIdx.x; b < bins; b += SORT_THREADS) {
        bin[b] = 0;
    }
    __syncthreads();
    int64_t begin = (int64_t)blockIdx.x * SORT_STRETCH;
    for (int i = (int)threadIdx.x; i < SORT_STRETCH && begin + i < items; i += SORT_THREADS) {
        int k = key(begin + i);
        if (k >= 0) {
            atomicAdd(&bin[k], 1);
        }
    }
    __syncthreads();
    for (int b = (int)threadIdx.x; b < bins; b += SORT_THREADS) {
        counts[(int64_t)blockIdx.x * bins + b] = bin[b];
    }
}

/* One block of SORT_BINS_MAX threads: counts[stretch, bins] becomes the first place of each
 * stretch's items of a bin; bins begin at multiples of align and are no
 * shorter than least. totals [bins] and offsets [bins + 1]
 * (both may be NULL) get the items and first places of each bin; overflow (may be NULL) whether it
 * passes most, or a slot its places, sticky (may be NULL; kernels of other streams may raise it at
 * the same time) is raised to sort_asked then. */
static __global__ void sort_places(int32_t *counts, int stretches, int bins, int align, int least,
                                   int32_t *totals, int32_t *offsets, int64_t most,
                                   int32_t *overflow, int32_t *sticky = nullptr,
                                   sort_slots slots = {0, 0}) {
    __shared__ int32_t scan[SORT_BINS_MAX];
    int b = (int)threadIdx.x;
    int32_t total = 0;
#pragma unroll 8
    for (int s = 0; b < bins && s < stretches; s++) {
        total += counts[s * bins + b];
    }
    int32_t padded = max((total + align - 1) / align * align, least);
    scan[b] = padded;
    for (int step = 1; step < SORT_BINS_MAX; step *= 2) {
        __syncthreads();
        int32_t before = b >= step ? scan[b - step] : 0;
        __syncthreads();
        scan[b] += before;
    }
    __syncthreads();
    sort_run run = {0, 0, true};
    if (b < bins) {
        run = sort_run_of(scan, b, padded, slots);
    }
    const bool full = __syncthreads_or(!run.fits);
    if (b >= bins) {
        return;
    }
    int32_t place = run.begin;
    if (totals) {
        totals[b] = total;
    }
    if (offsets) {
        offsets[b] = place;
    }
    if (b == bins - 1) {
        const int32_t end = slots.bins > 0 ? bins / slots.bins * slots.places : run.end;
        if (offsets) {
            offsets[bins] = end;
        }
        if (overflow) {
            *overflow = full || end > most;
        }
        if (sticky && (full || end > most)) {
            atomicMax(sticky, sort_asked(scan, bins, end, most, slots));
        }
    }
#pragma unroll 4
    for (int s = 0; s < stretches; s++) {
        int32_t here = counts[s * bins + b];
        counts[s * bins + b] = place;
        place += here;
    }
}

/* Calls put(item, place) for every item with a bin, put(item, -1) for the others. A warp takes
 * SORT_STRETCH / SORT_WARPS items in a row, 32 at a time. */
template <typename Key, typename Put>
__global__ void sort_place(Key key, Put put, int64_t items, int bins, const int32_t *places) {
    __shared__ int32_t next[SORT_WARPS][SORT_BINS_MAX];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t begin = (int64_t)blockIdx.x * SORT_STRETCH + warp * (SORT_STRETCH / SORT_WARPS) + lane;
    for (int b = (int)threadIdx.x; b < SORT_WARPS * bins; b += SORT_THREADS) {
        next[b / bins][b % bins] = 0;
    }
    __syncthreads();
    int bin[SORT_ROUNDS], rank[SORT_ROUNDS];
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++) {
        int64_t item = begin + r * 32;
        bin[r] = item < items ? key(item) : -1;
        unsigned same = __match_any_sync(0xffffffffu, bin[r]);
        int before = __popc(same & ((1u << lane) - 1));
        rank[r] = bin[r] >= 0 ? next[warp][bin[r]] + before : -1;
        __syncwarp();
        if (bin[r] >= 0 && before == 0) {
            next[warp][bin[r]] += __popc(same);
        }
        __syncwarp();
    }
    __syncthreads();
    for (int b = (int)threadIdx.x; b < bins; b += SORT_THREADS) {
        int32_t place = places[(int64_t)blockIdx.x * bins + b];
        for (int w = 0; w < SORT_WARPS; w++) {
            int32_t here = next[w][b];
            next[w][b] = place;
            place += here;
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++) {
        int64_t item = begin + r * 32;
        if (item < items) {
            put(item, bin[r] >= 0 ? next[warp][bin[r]] + rank[r] : -1);
        }
    }
}

/* --- in one launch -----------------------------------------------------------------------------
 */

/* What the caller wants to know of the last digit's bins; all may be NULL. */
typedef struct sort_bins {
    int bins, align; /* a bin begins at a multiple of align */
    int least;       /* places that a bin takes at least */
    int32_t *totals, *offsets;
    int64_t most;
    int32_t *overflow; /* whether the bins pass most */
    int32_t *sticky;   /* raised to sort_asked if they do, else left as it is */
    sort_slots slots;
} sort_bins;

/* Inclusive sum over the first SORT_BINS_MAX threads; all threads of the block call it. */
__device__ static inline int32_t sort_scan(int32_t x, int32_t *warp_sums) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const int32_t below = __shfl_up_sync(0xffffffffu, x, o);
        x += lane >= o ? below : 0;
    }
    if (lane == 31) {
        warp_sums[warp] = x;
    }
    __syncthreads();
    for (int w = 0; w < warp; w++) {
        x += w < SORT_BINS_MAX / 32 ? warp_sums[w] : 0;
    }
    return x;
}

/* A warp's share of the items: `each` in a row, a multiple of 32. */
typedef struct sort_share {
    int64_t begin, end;
} sort_share;

__device__ static inline sort_share sort_share_of(int64_t items, unsigned warp) {
    const int64_t warps = SORT_CLUSTER * SORT_CLUSTER_WARPS;
    const int64_t each = (items + warps * 32 - 1) / (warps * 32) * 32;
    sort_share s = {warp * each, (warp + 1) * each};
    s.begin = s.begin < items ? s.begin : items;
    s.end = s.end < items ? s.end : items;
    return s;
}

/* What the sort carries: the bin of a digit comes from the key; payload is the caller's. */
typedef struct sort_item {
    int32_t key, payload;
} sort_item;

/* A sort by one digit, made of what the three launches take. */
template <typename Key, typename Put> struct sort_one_digit {
    static constexpr int count = 1;
    Key key;
    Put place;
    __device__ sort_item load(int, int64_t i) const {
        return {key(i), 0};
    }
    __device__ int bin(int, const sort_item &item) const {
        return item.key;
    }
    __device__ void put(int, int64_t i, const sort_item &, int to) const {
        place(i, to);
    }
    __device__ void finish(int64_t) const {
    }
};

/* 32 * SORT_HELD items of a warp from `base` on, a lane's in registers. */
template <typename Digits>
__device__ static inline void sort_fetch(const Digits &digits, int d, int64_t base, int64_t end,
                                         sort_item (&item)[SORT_HELD]) {
#pragma unroll
    for (int r = 0; r < SORT_HELD; r++) {
        const int64_t i = base + r * 32 + threadIdx.x % 32;
        if (i < end) {
            item[r] = digits.load(d, i);
        }
    }
}

/* Of digit d: first[bin] becomes the place of this block's first item of each bin, and the counts
 * of each warp sums over the warps before it. Rank 0 writes what the caller wants to know. */
__device__ static inline void sort_first_places(const sort_bins &b, int32_t *next, int32_t *first) {
    namespace cg = cooperative_groups;
    __shared__ int32_t mine[SORT_BINS_MAX], warp_sums[SORT_CLUSTER_WARPS], ends[SORT_BINS_MAX];
    cg::cluster_group cluster = cg::this_cluster();
    const int thread = (int)threadIdx.x;
    const unsigned rank = cluster.block_rank();
    if (thread < b.bins) {
        int32_t sum = 0;
#pragma unroll
        for (int w = 0; w < SORT_CLUSTER_WARPS; w++) {
            const int32_t here = next[w * b.bins + thread];
            next[w * b.bins + thread] = sum;
            sum += here;
        }
        mine[thread] = sum;
    }
    cluster.sync();
    int32_t before = 0, total = 0;
    if (thread < b.bins) {
#pragma unroll
        for (unsigned r = 0; r < SORT_CLUSTER; r++) {
            const int32_t theirs = *cluster.map_shared_rank(&mine[thread], r);
            before += r < rank ? theirs : 0;
            total += theirs;
        }
    }
    const int32_t padded = max((total + b.align - 1) / b.align * b.align, b.least);
    const int32_t ahead = sort_scan(padded, warp_sums);
    if (thread < b.bins) {
        ends[thread] = ahead;
    }
    __syncthreads();
    sort_run run = {0, 0, true};
    if (thread < b.bins) {
        run = sort_run_of(ends, thread, padded, b.slots);
        first[thread] = run.begin + before;
    }
    const bool full = __syncthreads_or(!run.fits);
    if (rank == 0 && thread < b.bins) {
        const bool last = thread == b.bins - 1;
        const int32_t end = b.slots.bins > 0 ? b.bins / b.slots.bins * b.slots.places : run.end;
        if (b.totals) {
            b.totals[thread] = total;
        }
        if (b.offsets) {
            b.offsets[thread] = run.begin;
        }
        if (b.offsets && last) {
            b.offsets[b.bins] = end;
        }
        if (b.overflow && last) {
            *b.overflow = full || end > b.most;
        }
        if (b.sticky && last && (full || end > b.most)) {
            atomicMax(b.sticky, sort_asked(ends, b.bins, end, b.most, b.slots));
        }
    }
    __syncthreads();
}

/* Digits: digits.count; digits.load(d, i) -> sort_item; digits.bin(d, item) -> bin or -1;
 * digits.put(d, i, item, place or -1); digits.finish(items), by one block when all is placed. The
 * items of digit d + 1 are the places of digit d. Shared
 * memory: SORT_CLUSTER_WARPS * bins ints. */
template <typename Digits>
__global__ void __cluster_dims__(SORT_CLUSTER, 1, 1) __launch_bounds__(SORT_CLUSTER_THREADS, 1)
    sort_cluster(Digits digits, sort_bins b, int64_t items) {
    extern __shared__ int4 smem[]; /* [warps, bins] */
    __shared__ int32_t first[SORT_BINS_MAX];
    mf_await(); /* the rest of the GPU is free for what comes next */
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32;
    const sort_share share =
        sort_share_of(items, cluster.block_rank() * SORT_CLUSTER_WARPS + (unsigned)warp);
    const bool once = share.end - share.begin <= 32 * SORT_HELD; /* items stay in registers */
    int32_t *const next = (int32_t *)smem, *const counts = next + warp * b.bins;
    sort_item item[SORT_HELD];
    for (int d = 0; d < digits.count; d++) {
        sort_fetch(digits, d, share.begin, share.end, item);
        for (int i = thread; i < SORT_CLUSTER_WARPS * b.bins / 4; i += SORT_CLUSTER_THREADS) {
            smem[i] = make_int4(0, 0, 0, 0);
        }
        __syncthreads();
        for (int64_t base = share.begin; base < share.end; base += 32 * SORT_HELD) {
            if (base > share.begin) {
                sort_fetch(digits, d, base, share.end, item);
            }
#pragma unroll
            for (int r = 0; r < SORT_HELD; r++) {
                const int bin = base + r * 32 + lane < share.end ? digits.bin(d, item[r]) : -1;
                if (bin >= 0) {
                    atomicAdd(&counts[bin], 1);
                }
            }
        }
        __syncthreads();
        sort_first_places(b, next, first);
        for (int64_t base = share.begin; base < share.end; base += 32 * SORT_HELD) {
            if (!once) {
                sort_fetch(digits, d, base, share.end, item);
            }
#pragma unroll
            for (int r = 0; r < SORT_HELD; r++) {
                const int64_t i = base + r * 32 + lane;
                if (i - lane >= share.end) {
                    break;
                }
                const int bin = i < share.end ? digits.bin(d, item[r]) : -1;
                const unsigned same = __match_any_sync(0xffffffffu, bin);
                const int ahead = __popc(same & ((1u << lane) - 1));
                const int place = bin >= 0 ? first[bin] + counts[bin] + ahead : -1;
                __syncwarp();
                if (bin >= 0 && ahead == 0) {
                    counts[bin] += __popc(same);
                }
                __syncwarp();
                if (i < share.end) {
                    digits.put(d, i, item[r], place);
                }
            }
        }
        cluster.sync(); /* what was placed is read next; no block leaves while others read it */
    }
    if (cluster.block_rank() == 0) {
        digits.finish(items);
    }
}

template <typename Digits>
static mf_status sort_in_cluster(const Digits &digits, const sort_bins &b, int64_t items,
                                 cudaStream_t stream, mf_err *e) {
    const size_t share_B = (size_t)SORT_CLUSTER_WARPS * (size_t)b.bins * sizeof(int32_t);
    MF_CUDA_TRY(cudaFuncSetAttribute(sort_cluster<Digits>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)share_B),
                e);
    return mf_launch(sort_cluster<Digits>, dim3(SORT_CLUSTER), dim3(SORT_CLUSTER_THREADS), share_B,
                     stream, e, digits, b, items);
}

#endif
