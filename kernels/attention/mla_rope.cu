/* mla_rope.cu - CUDA kernels of q, k and v of multi-head latent attention, turned, and the way
 * back.
 *
 * q goes through rope_heads.cu. Of keys and values a thread moves one vector of HEADS heads; the
 * rotary part it turns once. The latent's gradient: a block a row sums the heads in strands.
 */
#include "kernels/attention/mla_rope.h"
#include "kernels/attention/rope_device.cuh"

#define THREADS 256
#define HEADS 8     /* heads that one thread serves, all loads first */
#define ADD_HEADS 4 /* where each has something added */
#define STRANDS 16
#define SHARE_MOST 512 /* rotary columns whose strands fit into shared memory */

/* Vector at column j of row r's rotary columns, turned. */
template <typename T, int N>
__device__ inline void turned_key(float (&x)[N], const mf_kernel_mla_rope &a, int64_t r,
                                  int64_t j) {
    const mf_kernel_mla_shape &s = a.shape;
    const T *key = (const T *)a.k_rope + r * a.rope_stride;
    const int64_t row = s.positions[r] * (s.rope / 2);
    mf_load(x, key + j);
    if (N > 1 && s.interleaved) {
        if constexpr (N > 1) {
            float c[N / 2], sine[N / 2];
            load_turn<N / 2>(s.cos, s.sin, false, row + j / 2, c, sine);
#pragma unroll
            for (int k = 0; k < N / 2; k++) {
                const float u = x[2 * k], v = x[2 * k + 1];
                x[2 * k] = u * c[k] - v * sine[k];
                x[2 * k + 1] = v * c[k] + u * sine[k];
            }
        }
        return;
    }
    const rope_place p = rope_place_of(j, s.rope, s.interleaved);
    float other[N], c[N], sine[N];
    mf_load(other, key + p.partner);
    load_turn<N>(s.cos, s.sin, false, row + p.pair, c, sine);
#pragma unroll
    for (int k = 0; k < N; k++) {
        x[k] = turn_one(p, x[k], other[k], c[k], sine[k]);
    }
}

/* Columns [begin, end) of (nope | rope | v_dim): those before nope + rope go to k_out. A thread:
 * one vector of heads team, team + teams, ... */
template <typename T, int N>
__global__ void mla_keys(mf_kernel_mla_rope a, int64_t begin, unsigned vectors, unsigned teams) {
    mf_await();
    const mf_kernel_mla_shape &s = a.shape;
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t qk = s.nope + s.rope, wide = s.nope + s.v_dim, r = t / vectors / teams;
    const int64_t c = begin + t % vectors * N, team = t / vectors % teams;
    if (r >= s.rows) {
        return;
    }
    const int64_t first = r * s.heads + team, to_width = c < qk ? qk : s.v_dim;
    T *to = c < qk ? (T *)a.k_out + c : (T *)a.v_out + c - qk;
    if (c >= s.nope && c < qk) {
        float x[N];
        turned_key<T, N>(x, a, r, c - s.nope);
        for (int64_t h = team; h < s.heads; h += teams) {
            mf_store(to + (r * s.heads + h) * to_width, x);
        }
        return;
    }
    const T *from = (const T *)a.kv + (c < s.nope ? c : c - s.rope);
    mf_raw<T, N> x[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        if (team + k * (int64_t)teams < s.heads) {
            x[k] = mf_fetch_once<T, N>(from + (first + k * (int64_t)teams) * wide);
        }
    }
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        if (team + k * (int64_t)teams < s.heads) {
            *reinterpret_cast<mf_raw<T, N> *>(to + (first + k * (int64_t)teams) * to_width) = x[k];
        }
    }
}

template <typename T, int N, int K, bool ADD>
__global__ void mla_keys_grad(mf_kernel_mla_rope_grad a, unsigned vectors, unsigned teams) {
    mf_await();
    const mf_kernel_mla_shape &s = a.shape;
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t wide = s.nope + s.v_dim, r = t / vectors / teams;
    const int64_t c = t % vectors * N, team = t / vectors % teams, first = r * s.heads + team;
    if (r >= s.rows) {
        return;
    }
    const T *from = c < s.nope ? (const T *)a.dk + c : (const T *)a.dv + c - s.nope;
    const int64_t from_width = c < s.nope ? s.nope + s.rope : s.v_dim;
    mf_raw<T, N> x[K], more[ADD ? K : 1];
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int64_t rh = first + k * (int64_t)teams;
        if (team + k * (int64_t)teams < s.heads) {
            x[k] = mf_fetch_once<T, N>(from + rh * from_width);
            if constexpr (ADD) {
                more[k] = mf_fetch_once<T, N>((const T *)a.add_kv + rh * wide + c);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        T *to = (T *)a.dkv + (first + k * (int64_t)teams) * wide + c;
        if (team + k * (int64_t)teams >= s.heads) {
            continue;
        }
        if constexpr (ADD) {
            float sum[N];
            mf_widen(sum, x[k]);
            add_raw<T, N>(sum, more[k]);
            mf_store(to, sum);
        } else {
            *reinterpret_cast<mf_raw<T, N> *>(to) = x[k];
        }
    }
}

/* dlatent's first kv_rank columns: nothing, or what is to be added. */
template <typename T, int N>
__device__ inline void clear_latent(const mf_kernel_mla_rope_grad &a, int64_t at, int thread,
                                    int threads) {
    for (int64_t c = (int64_t)thread * N; c < a.kv_rank; c += (int64_t)threads * N) {
        float x[N] = {};
        if (a.add_latent) {
            add_raw<T, N>(x, mf_fetch<T, N>((const T *)a.add_latent + at + c));
        }
        mf_store((T *)a.dlatent + at + c, x);
    }
}

/* dlatent of row blockIdx.x. Thread (x, y): vectors x, x + blockDim.x, ... of every STRANDS-th head
 * from y on. */
template <typename T, int N> __global__ void mla_latent_grad(mf_kernel_mla_rope_grad a) {
    mf_await();
    extern __shared__ float share[]; /* [STRANDS][rope]; then the sums in [0] */
    const mf_kernel_mla_shape &s = a.shape;
    const int64_t qk = s.nope + s.rope, r = blockIdx.x, at = r * (a.kv_rank + s.rope);
    const int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    const int threads = (int)(STRANDS * blockDim.x);
    const T *dk = (const T *)a.dk + r * s.heads * qk + s.nope;
    for (int64_t c = (int64_t)threadIdx.x * N; c < s.rope; c += (int64_t)blockDim.x * N) {
        float sum[N] = {};
#pragma unroll 4
        for (int64_t h = threadIdx.y; h < s.heads; h += STRANDS) {
            float x[N];
            mf_load(x, dk + h * qk + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum[i] += x[i];
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            share[threadIdx.y * s.rope + c + i] = sum[i];
        }
    }
    clear_latent<T, N>(a, at, thread, threads);
    __syncthreads();
    for (int64_t c = thread; c < s.rope; c += threads) {
        float sum = share[c];
        for (int y = 1; y < STRANDS; y++) {
            sum += share[y * s.rope + c];
        }
        share[c] = mf_round_as((const T *)nullptr, sum);
    }
    __syncthreads();
    const int64_t row = s.positions[r] * (s.rope / 2);
    for (int64_t c = thread; c < s.rope; c += threads) {
        const rope_place p = rope_place_of(c, s.rope, s.interleaved);
        float x[1] = {
            turn_one(p, share[c], share[p.partner], s.cos[row + p.pair], -s.sin[row + p.pair])};
        const int64_t to = at + a.kv_rank + c;
        if (a.add_latent) {
            add_raw<T, 1>(x, mf_fetch<T, 1>((const T *)a.add_latent + to));
        }
        mf_store((T *)a.dlatent + to, x);
    }
}

template <typename T, int N>
static mf_status run_keys(const mf_kernel_mla_rope *a, cudaStream_t stream, mf_err *e) {
    const mf_kernel_mla_shape *s = &a->shape;
    const int64_t qk = s->nope + s->rope, begin = a->k_out ? 0 : qk;
    const int64_t vectors = ((a->v_out ? qk + s->v_dim : qk) - begin) / N;
    const int64_t teams = mf_ceil_div(s->heads, HEADS);
    const unsigned blocks = (unsigned)mf_ceil_div(s->rows * vectors * teams, THREADS);
    MF_LAUNCH((mla_keys<T, N>), blocks, THREADS, 0, stream, e, *a, begin, (unsigned)vectors,
              (unsigned)teams);
    return MF_OK;
}

template <typename T, int N, int K, bool ADD>
static mf_status launch_grad(const mf_kernel_mla_rope_grad *a, cudaStream_t stream, mf_err *e) {
    const mf_kernel_mla_shape *s = &a->shape;
    const int64_t vectors = (s->nope + s->v_dim) / N, teams = mf_ceil_div(s->heads, K);
    const unsigned blocks = (unsigned)mf_ceil_div(s->rows * vectors * teams, THREADS);
    MF_LAUNCH((mla_keys_grad<T, N, K, ADD>), blocks, THREADS, 0, stream, e, *a, (unsigned)vectors,
              (unsigned)teams);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_keys_grad(const mf_kernel_mla_rope_grad *a, cudaStream_t stream, mf_err *e) {
    return a->add_kv ? launch_grad<T, N, ADD_HEADS, true>(a, stream, e)
                     : launch_grad<T, N, HEADS, false>(a, stream, e);
}

template <typename T, int N>
static mf_status run_latent_grad(const mf_kernel_mla_rope_grad *a, cudaStream_t stream, mf_err *e) {
    const int64_t rope = a->shape.rope, vectors = rope / N;
    const unsigned width = vectors < 1 ? 1 : vectors > 32 ? 32 : (unsigned)vectors;
    const size_t share_B = (size_t)(STRANDS * rope) * sizeof(float);
    if (rope > SHARE_MOST) {
        return mf_err_set(e, MF_INPUT, "mla: %lld rotated columns are too many", (long long)rope);
    }
    MF_LAUNCH((mla_latent_grad<T, N>), (unsigned)a->shape.rows, dim3(width, STRANDS), share_B,
              stream, e, *a);
    return MF_OK;
}

/* Whether rotary columns can be dealt with in vectors. */
static bool rope_fast(const mf_kernel_mla_shape *s) {
    return rope_columns_fast(s->nope + s->rope, s->nope, s->rope, s->interleaved, s->dtype, s->cos,
                             s->sin);
}

extern "C" mf_status mf_kernel_mla_rope_forward_cuda(const mf_kernel_mla_rope *a, void *stream,
                                                     mf_err *e) {
    const mf_kernel_mla_shape *s = &a->shape;
    const mf_kernel_dtype d = s->dtype;
    if (s->rows * s->heads == 0) {
        return MF_OK;
    }
    mf_status status = MF_OK;
    if (a->k_out || a->v_out) {
        const bool fast = rope_fast(s) && mf_vectors(a->kv, d, s->nope, s->v_dim) &&
                          mf_vectors(a->k_rope, d, s->rope, a->rope_stride) &&
                          mf_aligned(a->k_out) && mf_aligned(a->v_out);
        status = MF_KERNEL_PICK(run_keys, d, fast, a, (cudaStream_t)stream, e);
    }
    if (status == MF_OK && a->q_out != nullptr && a->q_out == a->q) {
        const mf_kernel_rope here = mf_kernel_mla_rope_in_place(s, false, a->q_out);
        return mf_kernel_rope_apply_cuda(&here, stream, e);
    }
    const mf_kernel_rope_heads q = mf_kernel_mla_rope_q(s, false, a->q, nullptr, a->q_out);
    return status == MF_OK ? mf_kernel_rope_heads_move_cuda(&q, stream, e) : status;
}

extern "C" mf_status mf_kernel_mla_rope_backward_cuda(const mf_kernel_mla_rope_grad *a,
                                                      void *stream, mf_err *e) {
    const mf_kernel_mla_shape *s = &a->shape;
    const mf_kernel_dtype d = s->dtype;
    if (s->rows * s->heads == 0) {
        return MF_OK;
    }
    mf_status status = MF_OK;
    if (a->dlatent) { /* first: it may refuse */
        const bool fast = mf_vectors(a->dk, d, s->nope, s->rope) &&
                          mf_vectors(a->dlatent, d, a->kv_rank, a->kv_rank + s->rope) &&
                          mf_aligned(a->add_latent);
        status = MF_KERNEL_PICK(run_latent_grad, d, fast, a, (cudaStream_t)stream, e);
    }
    if (status == MF_OK && a->dkv) {
        const bool fast = mf_vectors(a->dk, d, s->nope, s->nope + s->rope) &&
                          mf_vectors(a->dv, d, s->v_dim, s->v_dim) && mf_aligned(a->dkv) &&
                          mf_aligned(a->add_kv);
        status = MF_KERNEL_PICK(run_keys_grad, d, fast, a, (cudaStream_t)stream, e);
    }
    if (status == MF_OK && a->dq_in != nullptr && a->dq_in == a->dq && a->add_q == nullptr) {
        const mf_kernel_rope here = mf_kernel_mla_rope_in_place(s, true, a->dq_in);
        return mf_kernel_rope_apply_cuda(&here, stream, e);
    }
    const mf_kernel_rope_heads q = mf_kernel_mla_rope_q(s, true, a->dq, a->add_q, a->dq_in);
    return status == MF_OK ? mf_kernel_rope_heads_move_cuda(&q, stream, e) : status;
}
