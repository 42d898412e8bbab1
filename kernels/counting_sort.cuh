/* counting_sort.cuh - a stable counting sort on the device, in three launches: count the keys of
 * each stretch of SORT_STRETCH items, turn counts into first places, place the items. Stable and
 * without floating atomics, so the same in every run. Used by permute (keys = experts) and by the
 * gradient of the embedding (keys = digits of tokens).
 */
#ifndef MF_KERNELS_COUNTING_SORT_CUH
#define MF_KERNELS_COUNTING_SORT_CUH

#include "kernels/cuda_common.cuh"

#define SORT_BINS_MAX 512
#define SORT_STRETCH 1024
#define SORT_THREADS 256
#define SORT_WARPS (SORT_THREADS / 32)
#define SORT_ROUNDS (SORT_STRETCH / SORT_THREADS)

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
 * stretch's items of a bin; bins begin at multiples of align. totals [bins] and offsets [bins + 1]
 * (both may be NULL) get the items and first places of each bin; overflow (may be NULL) whether it
 * passes most. */
static __global__ void sort_places(int32_t *counts, int stretches, int bins, int align,
                                   int32_t *totals, int32_t *offsets, int64_t most,
                                   int32_t *overflow) {
    __shared__ int32_t scan[SORT_BINS_MAX];
    int b = (int)threadIdx.x;
    int32_t total = 0;
#pragma unroll 8
    for (int s = 0; b < bins && s < stretches; s++) {
        total += counts[s * bins + b];
    }
    int32_t padded = (total + align - 1) / align * align;
    scan[b] = padded;
    for (int step = 1; step < SORT_BINS_MAX; step *= 2) {
        __syncthreads();
        int32_t before = b >= step ? scan[b - step] : 0;
        __syncthreads();
        scan[b] += before;
    }
    if (b >= bins) {
        return;
    }
    int32_t place = scan[b] - padded;
    if (totals) {
        totals[b] = total;
    }
    if (offsets) {
        offsets[b] = place;
        if (b == bins - 1) {
            offsets[bins] = scan[b];
        }
    }
    if (overflow && b == bins - 1) {
        *overflow = scan[b] > most;
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

#endif
