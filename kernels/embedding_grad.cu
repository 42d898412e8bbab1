/* embedding_grad.cu - CUDA kernels of the gradient of the table look-up.
 *
 * Most tokens occur once, and their rows can be added at once. One block marks the
 * others; while one cluster sorts those (pairs of token and position, stable, 9 bits a pass), the
 * rest of the GPU adds the rows of tokens that occur once. Then the sorted list, cut into pieces of
 * PIECE positions: a block sums the runs of equal tokens inside a piece and adds whole runs to the
 * table; runs that cross pieces leave partial rows, which a last kernel adds in order. Beyond what
 * a block marks or a cluster sorts, all tokens are sorted.
 */
#include "kernels/counting_sort.cuh"
#include "kernels/embedding.h"

#define PIECE 32 /* as EMBED_PIECE in embedding.c */
#define PIECE_THREADS 256
#define DIGIT_BITS 9
#define FLIGHT 4 /* rows that one thread has in flight */
#define MARK_THREADS 1024
#define MARK_FLIGHT 8
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

/* All digits, in turn from one pair of buffers to the other: what the three launches a digit do.
 * Tokens that occur once go behind all others. */
struct token_digits {
    const int32_t *token;
    int64_t begin, vocab;
    const uint32_t *again; /* NULL: all are sorted */
    int32_t *keys[2], *positions[2];
    int count, bits; /* of a digit */
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
};

/* N floats. */
template <int N> struct sums { float v[N]; };
template <int N> __device__ inline sums<N> load_sums(const float *p) {
    sums<N> s;
    if constexpr (N == 1) {
        s.v[0] = p[0];
    } else {
#pragma unroll
        for (int k = 0; k < N; k += 4) {
            *reinterpret_cast<float4 *>(&s.v[k]) = *reinterpret_cast<const float4 *>(p + k);
        }
    }
    return s;
}
template <int N> __device__ inline void store_sums(float *p, const float (&x)[N]) {
    if constexpr (N == 1) {
        p[0] = x[0];
    } else {
#pragma unroll
        for (int k = 0; k < N; k += 4) {
            *reinterpret_cast<float4 *>(p + k) = make_float4(x[k], x[k + 1], x[k + 2], x[k + 3]);
        }
    }
}

/* Adds the rows of the positions from `begin` on whose tokens occur once. */
template <typename T, int N>
__device__ static void add_single(const mf_kernel_embedding_grad &a, const uint32_t *again,
                                  int64_t begin, int64_t c) {
    __shared__ int32_t row[PIECE], position[PIECE];
    __shared__ int found;
    static_assert(PIECE == 32, "one warp looks at a piece");
    if (threadIdx.x < PIECE) {
        const int64_t t = begin + threadIdx.x;
        const int64_t v = t < a.tokens ? a.token[t] - a.begin : -1;
        const bool once = v >= 0 && v < a.vocab && occurs_once(again, (uint32_t)v);
        const unsigned all = __ballot_sync(0xffffffffu, once);
        const int place = __popc(all & ((1u << threadIdx.x) - 1));
        if (once) {
            row[place] = (int32_t)v;
            position[place] = (int32_t)t;
        }
        if (threadIdx.x == 0) {
            found = __popc(all);
        }
    }
    __syncthreads();
    if (c >= a.cols) {
        return;
    }
    for (int i0 = 0; i0 < found; i0 += FLIGHT) {
        mf_raw<T, N> raw[FLIGHT];
        sums<N> old[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            if (i0 + i < found) {
                raw[i] = mf_fetch<T, N>((const T *)a.dy + (int64_t)position[i0 + i] * a.cols + c);
                old[i] = load_sums<N>(a.dtable + (int64_t)row[i0 + i] * a.cols + c);
            }
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            if (i0 + i < found) {
                float x[N];
                mf_widen(x, raw[i]);
#pragma unroll
                for (int k = 0; k < N; k++) {
                    old[i].v[k] += x[k];
                }
                store_sums(a.dtable + (int64_t)row[i0 + i] * a.cols + c, old[i].v);
            }
        }
    }
}

/* Blocks [0, single) add the rows of tokens that occur once, and wait for nothing; the others take
 * a piece each, once all is sorted. What follows or precedes a piece with the same key continues
 * its run. `across`: blocks side by side over the columns. */
template <typename T, int N>
__global__ void piece_sum(mf_kernel_embedding_grad a, const int32_t *keys, const int32_t *positions,
                          float *partial, const uint32_t *again, int64_t single, int across) {
    __shared__ int32_t key[PIECE], position[PIECE];
    const int64_t block = blockIdx.x;
    int64_t c = (block % across * blockDim.x + threadIdx.x) * N;
    if (block < single) {
        cudaTriggerProgrammaticLaunchCompletion();
        add_single<T, N>(a, again, block / across * PIECE, c);
        return;
    }
    cudaGridDependencySynchronize();
    int64_t piece = (block - single) / across, begin = piece * PIECE;
    int count = (int)(a.tokens - begin < PIECE ? a.tokens - begin : PIECE);
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        key[i] = keys[begin + i];
        position[i] = positions[begin + i];
    }
    bool before = begin > 0 && keys[begin - 1] == keys[begin];
    bool after = begin + count < a.tokens && keys[begin + count] == keys[begin + count - 1];
    cudaTriggerProgrammaticLaunchCompletion();
    __syncthreads();
    if (c >= a.cols) {
        return;
    }
    float sum[N];
    bool first = true; /* still in the run that the piece begins with */
    for (int i0 = 0; i0 < count; i0 += FLIGHT) {
        mf_raw<T, N> raw[FLIGHT];
        sums<N> old[FLIGHT]; /* table rows of runs that end here */
        float *to[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            int at = i0 + i;
            to[i] = nullptr;
            if (at >= count || key[at] >= a.vocab) {
                continue;
            }
            raw[i] = mf_fetch<T, N>((const T *)a.dy + (int64_t)position[at] * a.cols + c);
            bool fresh = at == 0 || key[at] != key[at - 1];
            bool ends = at + 1 == count || key[at + 1] != key[at];
            first = first && !(fresh && at > 0);
            bool head = first && before, crosses = head || (at + 1 == count && after);
            if (ends && crosses) {
                to[i] = partial + (piece * 2 + (head ? 0 : 1)) * a.cols + c;
#pragma unroll
                for (int k = 0; k < N; k++) {
                    old[i].v[k] = 0.0f;
                }
            } else if (ends) {
                to[i] = a.dtable + (int64_t)key[at] * a.cols + c;
                old[i] = load_sums<N>(to[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            int at = i0 + i;
            if (at >= count || key[at] >= a.vocab) {
                break;
            }
            float x[N];
            mf_widen(x, raw[i]);
            bool fresh = at == 0 || key[at] != key[at - 1];
#pragma unroll
            for (int k = 0; k < N; k++) {
                sum[k] = fresh ? x[k] : sum[k] + x[k];
            }
            if (to[i]) {
#pragma unroll
                for (int k = 0; k < N; k++) {
                    old[i].v[k] += sum[k];
                }
                store_sums(to[i], old[i].v);
            }
        }
    }
}

/* For a piece whose last run starts in it and goes on: adds its partial rows in order. */
template <int N>
__global__ void crossing_sum(mf_kernel_embedding_grad a, const int32_t *keys, const float *partial,
                             int64_t pieces) {
    int64_t piece = blockIdx.x, end = (piece + 1) * PIECE;
    cudaGridDependencySynchronize();
    if (end >= a.tokens) {
        return;
    }
    int32_t key = keys[end - 1];
    bool whole = keys[piece * PIECE] == key;
    bool starts = !whole || piece == 0 || keys[piece * PIECE - 1] != key;
    if (!starts || keys[end] != key || key >= a.vocab) {
        return;
    }
    int64_t last = piece + 1; /* the run's last piece */
    while (last + 1 < pieces && keys[(last + 1) * PIECE] == key) {
        last++;
    }
    int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (c >= a.cols) {
        return;
    }
    float *to = a.dtable + (int64_t)key * a.cols + c;
    const sums<N> old = load_sums<N>(to);
    sums<N> sum = load_sums<N>(partial + (piece * 2 + 1) * a.cols + c);
#pragma unroll 4
    for (int64_t p = piece + 1; p <= last; p++) {
        const sums<N> more = load_sums<N>(partial + p * 2 * a.cols + c);
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum.v[k] += more.v[k];
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        sum.v[k] += old.v[k];
    }
    store_sums(to, sum.v);
}

template <typename T, int N>
static mf_status run_sums(const mf_kernel_embedding_grad *a, const int32_t *keys,
                          const int32_t *positions, float *partial, const uint32_t *again,
                          cudaStream_t stream, mf_err *e) {
    int64_t pieces = mf_ceil_div(a->tokens, PIECE);
    int64_t vectors = mf_ceil_div(a->cols, N);
    int threads =
        (int)(mf_ceil_div(mf_ceil_div(vectors, mf_ceil_div(vectors, PIECE_THREADS)), 32) * 32);
    const int64_t across = mf_ceil_div(a->cols, (int64_t)threads * N);
    const int64_t single = again ? pieces * across : 0;
    mf_status status = mf_launch(piece_sum<T, N>, dim3((unsigned)(single + pieces * across)),
                                 dim3((unsigned)threads), 0, stream, e, *a, keys, positions,
                                 partial, again, single, (int)across);
    if (status != MF_OK) {
        return status;
    }
    constexpr int SIDE = N == 1 ? 1 : 4;
    dim3 rest((unsigned)pieces, (unsigned)mf_ceil_div(a->cols, 256 * SIDE));
    return mf_launch(crossing_sum<SIDE>, rest, dim3(256), 0, stream, e, *a, keys, partial, pieces);
}

/* *from: which pair of buffers holds the sorted tokens and their positions. */
static mf_status sort_tokens(const mf_kernel_embedding_grad *a, int32_t *const *keys,
                             int32_t *const *positions, int32_t *counts, const uint32_t *again,
                             int *from, cudaStream_t s, mf_err *e) {
    int digits = 1;
    while (a->vocab >> (digits * DIGIT_BITS)) {
        digits++;
    }
    *from = digits % 2;
    int bits = 2; /* of a digit: as few as do */
    while (a->vocab >> (digits * bits)) {
        bits++;
    }
    if (a->tokens <= SORT_CLUSTER_ITEMS) {
        const token_digits all = {
            a->token, a->begin, a->vocab, again, {keys[0], keys[1]}, {positions[0], positions[1]},
            digits,   bits};
        const sort_bins bins = {1 << bits, 1, 0, nullptr, nullptr, 0, nullptr};
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
    return MF_OK;
}

extern "C" mf_status mf_kernel_embedding_backward_cuda(const mf_kernel_embedding_grad *a,
                                                       void *stream, mf_err *e) {
    if (a->tokens * a->cols == 0) {
        return MF_OK;
    }
    cudaStream_t s = (cudaStream_t)stream;
    int64_t room = (a->tokens + 3) / 4 * 4;
    int32_t *buffer = (int32_t *)a->workspace;
    int32_t *keys[2] = {buffer, buffer + room},
            *positions[2] = {buffer + 2 * room, buffer + 3 * room};
    int32_t *counts = buffer + 4 * room;
    unsigned blocks = (unsigned)mf_ceil_div(a->tokens, SORT_STRETCH);
    float *partial = (float *)(counts + (int64_t)blocks * (1 << DIGIT_BITS));
    const int64_t words = (a->vocab + 31) / 32;
    uint32_t *again = NULL;
    if (a->tokens <= MARK_TOKENS_MOST && words <= MARK_WORDS_MOST) {
        const size_t share_B = 2 * (size_t)words * sizeof(uint32_t);
        again = (uint32_t *)(partial + 2 * mf_ceil_div(a->tokens, PIECE) * a->cols);
        MF_CUDA_TRY(cudaFuncSetAttribute(mark_again, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)share_B),
                    e);
        mark_again<<<1, MARK_THREADS, share_B, s>>>(a->token, a->tokens, a->begin, a->vocab, again);
        MF_KERNEL_LAUNCHED(e);
    }
    int from = 0;
    mf_status status = sort_tokens(a, keys, positions, counts, again, &from, s, e);
    if (status != MF_OK) {
        return status;
    }
    bool fast = mf_vectors(a->dy, a->dtype, a->cols, a->cols) && mf_aligned(a->dtable);
    return MF_KERNEL_PICK(run_sums, a->dtype, fast, a, keys[from], positions[from], partial, again,
                          s, e);
}
