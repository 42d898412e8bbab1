/* embedding_sort.cuh - which tokens occur again, and those sorted: what the gradient of the table
 * look-up (embedding_grad.cu) sums by.
 */
#ifndef MF_KERNELS_EMBEDDING_SORT_CUH
#define MF_KERNELS_EMBEDDING_SORT_CUH

#include "kernels/device/counting_sort.cuh"
#include "kernels/rows/embedding.h"

#define PIECE 8 /* positions of the sorted list whose runs a block sums */
#define LONG 32 /* a run of more rows is summed by many blocks; as EMBED_LONG in embedding.c */
#define FIND_THREADS 1024
#define DIGIT_BITS 9
#define MARK_THREADS 1024
#define MARK_FLIGHT 16 /* tokens that a thread has in flight */
#define MARK_TOKENS_MOST (1 << 16)
#define MARK_WORDS_MOST (96 * 1024 / 4) /* of one of two bitmaps in shared memory */

/* again: a bit for each row of the table whose token occurs more than once. One block. */
static __global__ void __launch_bounds__(MARK_THREADS)
    mark_again(const int32_t *token, int64_t tokens, int64_t begin, int64_t vocab,
               uint32_t *again) {
    extern __shared__ uint32_t bits[]; /* seen [words], seen again [words] */
    const int words = (int)((vocab + 31) / 32);
    for (int w = (int)threadIdx.x; w < 2 * words; w += MARK_THREADS) {
        bits[w] = 0;
    }
    mf_await();
    __syncthreads();
    for (int64_t t0 = threadIdx.x; t0 < tokens; t0 += MARK_FLIGHT * MARK_THREADS) {
        int64_t v[MARK_FLIGHT];
#pragma unroll
        for (int f = 0; f < MARK_FLIGHT; f++) {
            const int64_t t = t0 + f * MARK_THREADS;
            v[f] = t < tokens ? token[t] - begin : -1;
        }
#pragma unroll
        for (int f = 0; f < MARK_FLIGHT; f++) {
            if (v[f] >= 0 && v[f] < vocab) {
                const uint32_t bit = 1u << (v[f] & 31);
                volatile uint32_t *seen = &bits[v[f] >> 5], *twice = seen + words;
                /* looked at first: atomics on one hot word queue up */
                const bool before = (*seen & bit) || (atomicOr((uint32_t *)seen, bit) & bit);
                if (before && !(*twice & bit)) {
                    atomicOr((uint32_t *)twice, bit);
                }
            }
        }
    }
    __syncthreads();
    for (int w = (int)threadIdx.x; w < words; w += MARK_THREADS) {
        again[w] = bits[words + w];
    }
}

__device__ static inline bool occurs_once(const uint32_t *again, uint32_t row) {
    return again && !(again[row >> 5] >> (row & 31) & 1);
}

/* First pass reads tokens (rows of the table, a.vocab for "elsewhere"), later ones sorted pairs. */
struct digit_key {
    const int32_t *keys;
    int64_t begin, vocab; /* vocab >= 0: keys are tokens still */
    int shift;
    __device__ int32_t row(int64_t i) const {
        int64_t v = keys[i];
        if (vocab >= 0) {
            v -= begin;
            v = v >= 0 && v < vocab ? v : vocab;
        }
        return (int32_t)v;
    }
    __device__ int operator()(int64_t i) const {
        return (row(i) >> shift) & ((1 << DIGIT_BITS) - 1);
    }
};

struct digit_put {
    digit_key key;
    const int32_t *positions; /* NULL in the first pass */
    int32_t *keys_out, *positions_out;
    __device__ void operator()(int64_t i, int place) const {
        keys_out[place] = key.row(i);
        positions_out[place] = positions ? positions[i] : (int32_t)i;
    }
};

/* What sorting left: tokens' rows of the table (vocab: nothing to do) and their positions; long
 * runs, from .x to before .y; how many there are. */
typedef struct runs_found {
    int32_t runs, pieces; /* pieces: that may hold a token */
} runs_found;
typedef struct sorted_tokens {
    const int32_t *keys, *positions;
    int2 *run;
    runs_found *found;
} sorted_tokens;

/* Of LONG keys from `at` on, which is a multiple of LONG: how many are this one. */
__device__ static int count_equal(const int32_t *keys, int64_t at, int64_t tokens, int32_t key) {
    int count = 0;
    if (at + LONG <= tokens) {
#pragma unroll
        for (int i = 0; i < LONG; i += 4) {
            const int4 k = *reinterpret_cast<const int4 *>(keys + at + i);
            count += (k.x == key) + (k.y == key) + (k.z == key) + (k.w == key);
        }
    } else {
        for (int64_t i = at; i < tokens; i++) {
            count += keys[i] == key;
        }
    }
    return count;
}

/* One block: finds the long runs of equal tokens in the sorted list, in their order, and how many
 * pieces may hold a token. A long run crosses from one stretch of LONG positions to the next; runs
 * do not overlap, so the i-th that starts is the i-th that ends. */
__device__ static void find_runs(const sorted_tokens &s, int64_t tokens, int64_t vocab) {
    __shared__ int starts_of[FIND_THREADS / 32], ends_of[FIND_THREADS / 32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int stretches = 0, starts_before = 0, ends_before = 0;
    for (int64_t s0 = 0; s0 * LONG < tokens; s0 += FIND_THREADS) {
        const int64_t at = (s0 + threadIdx.x) * LONG;
        const int32_t key = at < tokens ? s.keys[at] : (int32_t)vocab;
        bool starts = false, ends = false;
        int before = 0, behind = 0;
        if (at > 0 && key < vocab) {
            const int32_t further = at > LONG ? s.keys[at - LONG - 1] : -1;
            const int32_t next = at + LONG < tokens ? s.keys[at + LONG] : -1;
            before = count_equal(s.keys, at - LONG, tokens, key);
            behind = count_equal(s.keys, at, tokens, key);
            const bool is_long = before > 0 && before + behind > LONG;
            starts = is_long && further != key;
            ends = is_long && next != key;
        }
        stretches += __syncthreads_count(key < vocab);
        const unsigned all_starts = __ballot_sync(0xffffffffu, starts);
        const unsigned all_ends = __ballot_sync(0xffffffffu, ends);
        if (lane == 0) {
            starts_of[warp] = __popc(all_starts);
            ends_of[warp] = __popc(all_ends);
        }
        __syncthreads();
        int start = starts_before + __popc(all_starts & ((1u << lane) - 1));
        int end = ends_before + __popc(all_ends & ((1u << lane) - 1));
        for (int w = 0; w < FIND_THREADS / 32; w++) {
            start += w < warp ? starts_of[w] : 0;
            end += w < warp ? ends_of[w] : 0;
            starts_before += starts_of[w];
            ends_before += ends_of[w];
        }
        if (starts) {
            s.run[start].x = (int)at - before;
        }
        if (ends) {
            s.run[end].y = (int)at + behind;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        s.found->runs = starts_before;
        s.found->pieces = stretches * (LONG / PIECE);
    }
}

/* By itself, where no cluster sorts. */
static __global__ void __launch_bounds__(FIND_THREADS)
    find_runs_alone(sorted_tokens s, int64_t tokens, int64_t vocab) {
    mf_await();
    find_runs(s, tokens, vocab);
}

/* All digits, in turn from one pair of buffers to the other: what the three launches a digit do.
 * Tokens that occur once go behind all others. */
struct token_digits {
    const int32_t *token;
    int64_t begin, vocab;
    const uint32_t *again; /* NULL: all are sorted */
    int32_t *keys[2], *positions[2];
    int count, bits; /* of a digit */
    sorted_tokens sorted;
    __device__ sort_item load(int d, int64_t i) const {
        if (d > 0) {
            return {keys[d % 2][i], positions[d % 2][i]};
        }
        const uint32_t row = (uint32_t)token[i] - (uint32_t)begin, none = (uint32_t)vocab;
        const bool sorted = row < none && !occurs_once(again, row);
        return {(int32_t)(sorted ? row : none), (int32_t)i};
    }
    __device__ int bin(int d, const sort_item &item) const {
        return (item.key >> (d * bits)) & ((1 << bits) - 1);
    }
    __device__ void put(int d, int64_t, const sort_item &item, int place) const {
        keys[(d + 1) % 2][place] = item.key;
        positions[(d + 1) % 2][place] = item.payload;
    }
    __device__ void finish(int64_t items) const {
        find_runs(sorted, items, vocab);
    }
};

/* sorted: its keys and positions become one of the two pairs of buffers. */
static mf_status sort_tokens(const mf_kernel_embedding_grad *a, int32_t *const *keys,
                             int32_t *const *positions, int32_t *counts, const uint32_t *again,
                             sorted_tokens *sorted, cudaStream_t s, mf_err *e) {
    int digits = 1;
    while (a->vocab >> (digits * DIGIT_BITS)) {
        digits++;
    }
    int bits = 2; /* of a digit: as few as do */
    while (a->vocab >> (digits * bits)) {
        bits++;
    }
    sorted->keys = keys[digits % 2];
    sorted->positions = positions[digits % 2];
    if (a->tokens <= SORT_CLUSTER_ITEMS) {
        const token_digits all = {
            a->token, a->begin, a->vocab, again, {keys[0], keys[1]}, {positions[0], positions[1]},
            digits,   bits,     *sorted};
        const sort_bins bins = {1 << bits, 1, 0, nullptr, nullptr, 0, nullptr, nullptr};
        return sort_in_cluster(all, bins, a->tokens, s, e);
    }
    unsigned blocks = (unsigned)mf_ceil_div(a->tokens, SORT_STRETCH);
    for (int d = 0; d < digits; d++) {
        int in = d % 2, out = in ^ 1;
        digit_key key = {d ? keys[in] : a->token, a->begin, d ? -1 : a->vocab, d * DIGIT_BITS};
        digit_put put = {key, d ? positions[in] : nullptr, keys[out], positions[out]};
        sort_count<<<blocks, SORT_THREADS, 0, s>>>(key, a->tokens, 1 << DIGIT_BITS, counts);
        MF_KERNEL_LAUNCHED(e);
        sort_places<<<1, SORT_BINS_MAX, 0, s>>>(counts, (int)blocks, 1 << DIGIT_BITS, 1, 0, nullptr,
                                                nullptr, 0, nullptr);
        MF_KERNEL_LAUNCHED(e);
        sort_place<<<blocks, SORT_THREADS, 0, s>>>(key, put, a->tokens, 1 << DIGIT_BITS, counts);
        MF_KERNEL_LAUNCHED(e);
    }
    MF_LAUNCH(find_runs_alone, 1, FIND_THREADS, 0, s, e, *sorted, a->tokens, a->vocab);
    return MF_OK;
}

#endif
