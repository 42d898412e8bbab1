/* router_drop.cu - CUDA kernels of the capacity of experts: choices in the order of their experts
 * by a stable sort, then a block for each expert of a sample finds the last probability that stays,
 * eight bits at a time.
 */
#include "kernels/device/counting_sort.cuh"
#include "kernels/moe/router.h"

#define THREADS 256
#define WARPS (THREADS / 32)
#define DIGIT 256 /* values of eight bits */

struct drop_key {
    const int32_t *index;
    __device__ int operator()(int64_t slot) const {
        return index[slot];
    }
};

/* Slots in expert order; one without an expert has none to be dropped from. */
struct drop_put {
    int32_t *order, *index_kept;
    float *prob_kept;
    __device__ void operator()(int64_t slot, int place) const {
        if (place >= 0) {
            order[place] = (int32_t)slot;
        } else {
            index_kept[slot] = -1;
            prob_kept[slot] = 0.0f;
        }
    }
};

/* Bits that order as the floats do. */
__device__ static inline uint32_t ordered_bits(float x) {
    return mf_kernel_router_order(__float_as_uint(x + 0.0f)); /* -0 is 0 */
}

/* The choices of one expert in one sample. */
typedef struct segment {
    const mf_kernel_router_drop *a;
    const int32_t *order;
    int begin, end, sample;
    __device__ bool has(int slot) const {
        return !a->sample || a->sample[slot / a->top_k] == sample;
    }
} segment;

/* Of the counts of a digit, highest first: the value in which the `left`-th falls; *before: how
 * many lie above it. One warp. */
__device__ static inline int digit_of(const int *bin, int left, int *before) {
    const int lane = (int)threadIdx.x % 32, each = DIGIT / 32;
    int sum = 0;
    for (int i = 0; i < each; i++) {
        sum += bin[DIGIT - 1 - (lane * each + i)];
    }
    int upto = sum;
    for (int o = 1; o < 32; o *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, upto, o);
        upto += lane >= o ? below : 0;
    }
    const unsigned reached = __ballot_sync(0xffffffffu, upto >= left);
    const int found = __ffs((int)reached) - 1;
    int value = 0, above = upto - sum;
    if (lane == found) {
        value = DIGIT - 1 - lane * each;
        while (above + bin[value] < left) {
            above += bin[value--];
        }
    }
    *before = __shfl_sync(0xffffffffu, above, found);
    return __shfl_sync(0xffffffffu, value, found);
}

/* Bits of the last probability that stays, and how many choices of just that stay; all threads. */
__device__ static inline uint32_t last_that_stays(const segment &s, int capacity, int *equal_stay,
                                                  int *bin, int *found) {
    uint32_t prefix = 0;
    int left = capacity;
    for (int shift = 24; shift > 0; shift -= 8) { /* the last eight are 0 */
        for (int b = (int)threadIdx.x; b < DIGIT; b += THREADS) {
            bin[b] = 0;
        }
        __syncthreads();
        for (int i = s.begin + (int)threadIdx.x; i < s.end; i += THREADS) {
            const int slot = s.order[i];
            const uint32_t key = ordered_bits(s.a->prob[slot]);
            const bool alike = shift == 24 || (key ^ prefix) >> (shift + 8) == 0;
            if (alike && s.has(slot)) {
                atomicAdd(&bin[key >> shift & (DIGIT - 1)], 1);
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            int before, value = digit_of(bin, left, &before);
            if (threadIdx.x == 0) {
                found[0] = value;
                found[1] = before;
            }
        }
        __syncthreads();
        prefix |= (uint32_t)found[0] << shift;
        left -= found[1];
    }
    *equal_stay = left;
    return prefix;
}

static __global__ void router_drop(mf_kernel_router_drop a, const int32_t *order,
                                   const int32_t *offsets) {
    __shared__ int bin[DIGIT], found[2], warp_equal[WARPS], count;
    const int expert = (int)blockIdx.x, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const segment s = {&a, order, offsets[expert], offsets[expert + 1], (int)blockIdx.y};
    if (threadIdx.x == 0) {
        count = 0;
    }
    __syncthreads();
    int mine = 0;
    for (int i = s.begin + (int)threadIdx.x; i < s.end; i += THREADS) {
        mine += s.has(order[i]);
    }
    atomicAdd(&count, mine);
    __syncthreads();
    uint32_t last = 0; /* of a float that is no number: below all */
    int equal_stay = 0, equal = 0;
    if (count > a.capacity && a.capacity > 0) {
        last = last_that_stays(s, (int)a.capacity, &equal_stay, bin, found);
    } else if (a.capacity <= 0) {
        last = UINT32_MAX;
    }
    /* Equal ones stay in the order of their slots. */
    for (int i0 = s.begin; i0 < s.end; i0 += THREADS) {
        const int i = i0 + (int)threadIdx.x, slot = i < s.end ? order[i] : -1;
        const bool here = slot >= 0 && s.has(slot);
        const float prob = here ? a.prob[slot] : 0.0f;
        const uint32_t key = ordered_bits(prob);
        const unsigned alike = __ballot_sync(0xffffffffu, here && key == last);
        __syncthreads();
        if (lane == 0) {
            warp_equal[warp] = __popc(alike);
        }
        __syncthreads();
        int before = equal + __popc(alike & ((1u << lane) - 1));
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? warp_equal[w] : 0;
            equal += warp_equal[w];
        }
        if (here) {
            const bool stays = key > last || (key == last && before < equal_stay);
            a.index_kept[slot] = stays ? expert : -1;
            a.prob_kept[slot] = stays ? prob : 0.0f;
        }
    }
}

extern "C" mf_status mf_kernel_router_capacity_cuda(const mf_kernel_router_drop *a, void *stream,
                                                    mf_err *e) {
    const cudaStream_t s = (cudaStream_t)stream;
    const int64_t slots = a->rows * a->top_k, samples = a->sample ? a->samples : 1;
    const int bins = (int)a->experts;
    if (slots == 0) {
        return MF_OK;
    }
    if (a->experts > SORT_BINS_MAX || slots > INT32_MAX || samples > 65535) {
        return mf_err_set(e, MF_INPUT, "capacity: %lld experts, %lld choices are too many",
                          (long long)a->experts, (long long)slots);
    }
    int32_t *order = (int32_t *)a->workspace, *offsets = order + slots;
    int32_t *counts = offsets + bins + 1;
    const drop_key key = {a->index};
    const drop_put put = {order, a->index_kept, a->prob_kept};
    if (slots <= SORT_CLUSTER_ITEMS) {
        const sort_one_digit<drop_key, drop_put> digits = {key, put};
        const sort_bins want = {bins, 1, 0, nullptr, offsets, slots, nullptr, nullptr};
        mf_status status = sort_in_cluster(digits, want, slots, s, e);
        if (status != MF_OK) {
            return status;
        }
    } else {
        const unsigned blocks = (unsigned)mf_ceil_div(slots, SORT_STRETCH);
        sort_count<<<blocks, SORT_THREADS, 0, s>>>(key, slots, bins, counts);
        MF_KERNEL_LAUNCHED(e);
        sort_places<<<1, SORT_BINS_MAX, 0, s>>>(counts, (int)blocks, bins, 1, 0, nullptr, offsets,
                                                slots, nullptr);
        MF_KERNEL_LAUNCHED(e);
        sort_place<<<blocks, SORT_THREADS, 0, s>>>(key, put, slots, bins, counts);
        MF_KERNEL_LAUNCHED(e);
    }
    router_drop<<<dim3((unsigned)bins, (unsigned)samples), THREADS, 0, s>>>(*a, order, offsets);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
