/* embedding_grad.cu - CUDA kernels of the gradient of the table look-up.
 *
 * Most tokens occur once, and their rows can be added immediately. One block marks the others;
 * while one cluster sorts those (pairs of token and position, stable, 9 bits a pass), the rest of
 * the GPU adds the rows of tokens that occur once. Then the sorted list, divided into pieces of
 * PIECE positions: a block sums the runs of equal tokens that begin in a piece; of a run longer
 * than LONG, a block sums a few columns, all its warps the rows in turn. Every sum is finished by
 * the block that began it, in a fixed order. Beyond what a block marks or a cluster sorts, all
 * tokens are sorted.
 */
#include "kernels/rows/embedding_sort.cuh"

#define ROW_THREADS 256
#define RUN_LANES 8  /* vectors side by side of a long run */
#define RUN_FLIGHT 8 /* its rows that a thread has in flight */
/* Rows of up to ROW_THREADS vectors that a block adds of tokens that occur once, at most. */
#define SINGLE_ROWS 4
#define SORTED_BLOCKS 264
#define FLIGHT 4 /* rows that one thread has in flight */

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
            /* by name, or the compiler may take it apart */
            __stcg(reinterpret_cast<float4 *>(p + k),
                   make_float4(x[k], x[k + 1], x[k + 2], x[k + 3]));
        }
    }
}

/* Rows that a block adds: [first, end) of them, in shared memory. */
struct row_buffer {
    int32_t key[PIECE + LONG], position[PIECE + LONG];
    int first, end;
};

/* Adds the rows of the positions [begin, end), at most a warp's lanes, whose tokens occur once. */
template <typename T, int N>
__device__ static void add_single(const mf_kernel_embedding_grad &a, const uint32_t *again,
                                  int64_t begin, int64_t end, int across, row_buffer &buffer) {
    if (threadIdx.x < 32) {
        const int64_t t = begin + threadIdx.x;
        const int64_t v = t < end ? a.token[t] - a.begin : -1;
        const bool once = v >= 0 && v < a.vocab && occurs_once(again, (uint32_t)v);
        const unsigned all = __ballot_sync(0xffffffffu, once);
        const int place = __popc(all & ((1u << threadIdx.x) - 1));
        if (once) {
            buffer.key[place] = (int32_t)v;
            buffer.position[place] = (int32_t)t;
        }
        if (threadIdx.x == 0) {
            buffer.end = __popc(all);
        }
    }
    __syncthreads();
    const int found = buffer.end;
    /* Item i: row i / across, and of it the vectors i % across * blockDim.x and on. */
    const int items = found * across;
    for (int i0 = 0; i0 < items; i0 += FLIGHT) {
        mf_raw<T, N> raw[FLIGHT];
        sums<N> old[FLIGHT];
        float *to[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const int row = (i0 + i) / across, piece = i0 + i - row * across;
            const int64_t c = ((int64_t)piece * blockDim.x + threadIdx.x) * N;
            to[i] = nullptr;
            if (i0 + i < items && c < a.cols) {
                raw[i] =
                    mf_fetch<T, N>((const T *)a.dy + (int64_t)buffer.position[row] * a.cols + c);
                to[i] = a.dtable + (int64_t)buffer.key[row] * a.cols + c;
                old[i] = load_sums<N>(to[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            if (to[i]) {
                float x[N];
                mf_widen(x, raw[i]);
#pragma unroll
                for (int k = 0; k < N; k++) {
                    old[i].v[k] += a.scale * x[k];
                }
                store_sums(to[i], old[i].v);
            }
        }
    }
}

/* What a warp finds out about a piece: the rows of its runs, without long ones. A run that
 * begins in the piece and is not long ends within LONG positions behind it. */
__device__ static void find_piece(const mf_kernel_embedding_grad &a, const sorted_tokens &s,
                                  int64_t begin, row_buffer &buffer) {
    const int lane = (int)threadIdx.x % 32;
    const int32_t before = begin > 0 ? s.keys[begin - 1] : -1;
#pragma unroll
    for (int i = lane; i < PIECE + LONG; i += 32) {
        buffer.key[i] = begin + i < a.tokens ? s.keys[begin + i] : (int32_t)a.vocab;
        buffer.position[i] = begin + i < a.tokens ? s.positions[begin + i] : 0;
    }
    __syncwarp();
    const int32_t key = lane < PIECE ? buffer.key[lane] : (int32_t)a.vocab;
    const bool starts = key < a.vocab && key != (lane > 0 ? buffer.key[lane - 1] : before);
    const bool is_long = starts && buffer.key[lane + LONG] == key;
    const unsigned first = __ballot_sync(0xffffffffu, starts);
    const unsigned longs = __ballot_sync(0xffffffffu, is_long);
    if (lane == 0) {
        int end = first ? 31 - __clz((int)first) : 0; /* where the last run begins: its end */
        const int32_t last = buffer.key[end];
        while (first && !longs && end < PIECE + LONG && buffer.key[end] == last) {
            end++;
        }
        buffer.first = first ? __ffs((int)first) - 1 : 0;
        buffer.end = first ? end : 0;
    }
}

/* Sums the runs of [buffer.first, buffer.end). */
template <typename T, int N>
__device__ static void add_piece(const mf_kernel_embedding_grad &a, const row_buffer &buffer,
                                 int64_t c) {
    const int first = buffer.first, end = buffer.end;
    float sum[N];
    for (int i0 = first; i0 < end; i0 += FLIGHT) {
        mf_raw<T, N> raw[FLIGHT];
        sums<N> old[FLIGHT]; /* table rows of runs that end here */
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const int at = i0 + i;
            if (at < end) {
                raw[i] =
                    mf_fetch<T, N>((const T *)a.dy + (int64_t)buffer.position[at] * a.cols + c);
                if (at + 1 == end || buffer.key[at + 1] != buffer.key[at]) {
                    old[i] = load_sums<N>(a.dtable + (int64_t)buffer.key[at] * a.cols + c);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const int at = i0 + i;
            if (at >= end) {
                break;
            }
            const bool fresh = at == first || buffer.key[at] != buffer.key[at - 1];
            float x[N];
            mf_widen(x, raw[i]);
#pragma unroll
            for (int k = 0; k < N; k++) {
                sum[k] = fresh ? x[k] : sum[k] + x[k];
            }
            if (at + 1 == end || buffer.key[at + 1] != buffer.key[at]) {
#pragma unroll
                for (int k = 0; k < N; k++) {
                    old[i].v[k] += a.scale * sum[k];
                }
                store_sums(a.dtable + (int64_t)buffer.key[at] * a.cols + c, old[i].v);
            }
        }
    }
}

/* Sums a long run over RUN_LANES * N columns from c0 on: the block's strands take its rows in turn,
 * and are added in their order. `smem`: a float for each thread and vector element. */
template <typename T, int N>
__device__ static void add_run(const mf_kernel_embedding_grad &a, const sorted_tokens &s, int2 run,
                               int64_t c0, float *smem) {
    const int strands = (int)blockDim.x / RUN_LANES, strand = (int)threadIdx.x / RUN_LANES;
    const int64_t c = c0 + (int64_t)(threadIdx.x % RUN_LANES) * N;
    const int64_t mine = c0 + threadIdx.x; /* column that this thread finishes */
    const bool finishes = threadIdx.x < RUN_LANES * N && mine < a.cols;
    float *const to = a.dtable + (int64_t)s.keys[run.x] * a.cols + mine;
    const float old = finishes ? *to : 0.0f;
    float sum[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        sum[k] = 0.0f;
    }
    /* Positions of the next rows are asked for before these rows are added. */
    int32_t next[RUN_FLIGHT];
#pragma unroll
    for (int i = 0; i < RUN_FLIGHT; i++) {
        const int r = run.x + strand + i * strands;
        next[i] = r < run.y ? s.positions[r] : -1;
    }
    for (int r0 = run.x + strand; c < a.cols && r0 < run.y; r0 += strands * RUN_FLIGHT) {
        int32_t position[RUN_FLIGHT];
        mf_raw<T, N> raw[RUN_FLIGHT];
#pragma unroll
        for (int i = 0; i < RUN_FLIGHT; i++) {
            position[i] = next[i];
            if (position[i] >= 0) {
                raw[i] = mf_fetch<T, N>((const T *)a.dy + (int64_t)position[i] * a.cols + c);
            }
        }
#pragma unroll
        for (int i = 0; i < RUN_FLIGHT; i++) {
            const int r = r0 + (RUN_FLIGHT + i) * strands;
            next[i] = r < run.y ? s.positions[r] : -1;
        }
#pragma unroll
        for (int i = 0; i < RUN_FLIGHT; i++) {
            if (position[i] >= 0) {
                float x[N];
                mf_widen(x, raw[i]);
#pragma unroll
                for (int k = 0; k < N; k++) {
                    sum[k] += x[k];
                }
            }
        }
    }
    __syncthreads(); /* what smem held was read */
#pragma unroll
    for (int k = 0; k < N; k++) {
        smem[threadIdx.x * N + k] = sum[k];
    }
    __syncthreads();
    if (finishes) {
        float all = 0.0f;
#pragma unroll 8
        for (int i = 0; i < strands; i++) {
            all += smem[i * RUN_LANES * N + (int)threadIdx.x];
        }
        *to = old + a.scale * all;
    }
}

/* How the blocks of add_rows are dealt: `single` of them, `each` positions a block, add the rows of
 * tokens that occur once and wait for nothing; of `sorted` others, which start behind the first
 * `before` of those and wait until all is sorted, each takes some of the long runs and pieces. */
typedef struct rows_plan {
    int64_t single, before;
    int sorted, each;
    int across; /* pieces of a row of blockDim vectors */
} rows_plan;

template <typename T, int N>
__global__ void __launch_bounds__(ROW_THREADS, N == 8 ? 3 : 4)
    add_rows(mf_kernel_embedding_grad a, sorted_tokens s, const uint32_t *again, rows_plan p) {
    __shared__ row_buffer buffer;
    __shared__ __align__(16) float smem[ROW_THREADS * N];
    const int64_t block = blockIdx.x;
    cudaTriggerProgrammaticLaunchCompletion();
    if (block < p.before || block >= p.before + p.sorted) {
        const int64_t begin = (block < p.before ? block : block - p.sorted) * p.each;
        const int64_t end = begin + p.each < a.tokens ? begin + p.each : a.tokens;
        add_single<T, N>(a, again, begin, end, p.across, buffer);
        return;
    }
    cudaGridDependencySynchronize();
    const int64_t slices = (a.cols + RUN_LANES * N - 1) / (RUN_LANES * N);
    const int64_t runs = s.found->runs * slices, pieces = (int64_t)s.found->pieces * p.across;
    for (int64_t i = block - p.before; i < runs; i += p.sorted) {
        add_run<T, N>(a, s, s.run[i / slices], i % slices * (RUN_LANES * N), smem);
    }
    for (int64_t i = block - p.before; i < pieces; i += p.sorted) {
        const int64_t c = (i % p.across * blockDim.x + threadIdx.x) * N;
        __syncthreads(); /* the buffer was read */
        if (threadIdx.x < 32) {
            find_piece(a, s, i / p.across * PIECE, buffer);
        }
        __syncthreads();
        if (c < a.cols) {
            add_piece<T, N>(a, buffer, c);
        }
    }
}

template <typename T, int N>
static mf_status run_sums(const mf_kernel_embedding_grad *a, const sorted_tokens *sorted,
                          const uint32_t *again, cudaStream_t stream, mf_err *e) {
    const int64_t vectors = mf_ceil_div(a->cols, N);
    int threads =
        (int)(mf_ceil_div(mf_ceil_div(vectors, mf_ceil_div(vectors, ROW_THREADS)), 32) * 32);
    threads = threads < RUN_LANES * N ? RUN_LANES * N : threads; /* each finishes a column */
    rows_plan p = {0, 0, SORTED_BLOCKS, 1, (int)mf_ceil_div(vectors, threads)};
    p.each = p.across < SINGLE_ROWS ? SINGLE_ROWS / p.across : 1;
    p.single = again ? mf_ceil_div(a->tokens, p.each) : 0;
    p.before = p.single / 2; /* by then the tokens are sorted; what is left fills up the end */
    mf_kernel_embedding_grad scaled = *a;
    scaled.scale = a->scale > 0.0f ? a->scale : 1.0f;
    return mf_launch(add_rows<T, N>, dim3((unsigned)(p.single + p.sorted)), dim3((unsigned)threads),
                     0, stream, e, scaled, *sorted, again, p);
}

extern "C" mf_status mf_kernel_embedding_backward_cuda(const mf_kernel_embedding_grad *a,
                                                       void *stream, mf_err *e) {
    if (a->tokens * a->cols == 0) {
        return MF_OK;
    }
    cudaStream_t s = (cudaStream_t)stream;
    int64_t padded = (a->tokens + 3) / 4 * 4;
    int32_t *buffer = (int32_t *)a->workspace;
    int32_t *keys[2] = {buffer, buffer + padded},
            *positions[2] = {buffer + 2 * padded, buffer + 3 * padded};
    int32_t *counts = buffer + 4 * padded;
    const int64_t blocks = mf_ceil_div(a->tokens, SORT_STRETCH);
    const int64_t words = (a->vocab + 31) / 32;
    int32_t *found = counts + blocks * (1 << DIGIT_BITS);
    uint32_t *again = NULL;
    if (a->tokens <= MARK_TOKENS_MOST && words <= MARK_WORDS_MOST) {
        const size_t share_B = 2 * (size_t)words * sizeof(uint32_t);
        again = (uint32_t *)(found + 2 + 2 * mf_ceil_div(a->tokens, LONG));
        MF_CUDA_TRY(cudaFuncSetAttribute(mark_again, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)share_B),
                    e);
        MF_LAUNCH(mark_again, 1, MARK_THREADS, share_B, s, e, a->token, a->tokens, a->begin,
                  a->vocab, again);
    }
    sorted_tokens sorted = {nullptr, nullptr, (int2 *)(found + 2), (runs_found *)found};
    mf_status status = sort_tokens(a, keys, positions, counts, again, &sorted, s, e);
    if (status != MF_OK) {
        return status;
    }
    bool fast = mf_vectors(a->dy, a->dtype, a->cols, a->cols) && mf_aligned(a->dtable);
    return MF_KERNEL_PICK(run_sums, a->dtype, fast, a, &sorted, again, s, e);
}
