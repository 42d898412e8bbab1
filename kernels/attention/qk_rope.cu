/* qk_rope.cu - CUDA kernels of heads that are normed and turned.
 *
 * `lanes` threads (a part of a warp) share a head as in rope_heads.cu, two vectors each, so that
 * its sum takes a few shuffles. Forward: a thread serves HEADS heads of a row, all loads first.
 * Backward: blocks stay, go over the heads of q and then of k, and keep a thread's share of
 * dweight; each leaves one partial row a weight, which a second kernel adds. Slow path (any
 * alignment and width): a block a head.
 */
#include "kernels/attention/qk_rope.h"
#include "kernels/attention/qk_rope_any.cuh"
#include "kernels/device/row_sums.cuh"

#define THREADS 128
#define HEADS 4
#define GRAD_THREADS 256
#define GRAD_HEADS 2
#define GRAD_ADD_HEADS 1 /* where each has something added */
#define GRAD_BLOCKS 2    /* on a multiprocessor */

/* What the spans of a move are normed with: no weight where they are not. */
typedef struct span_norms {
    const void *weight[MF_ROPE_SPANS];
    float *rstd[MF_ROPE_SPANS];
    float eps;
} span_norms;

/* A unit's two vectors of a row of weights. */
template <typename T, int N>
__device__ inline void load_unit(float (&a)[N], float (&b)[N], const T *p, const rope_unit &at) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        a[i] = b[i] = 0.0f;
    }
    if (at.a >= 0) {
        mf_load(a, p + at.a);
    }
    if (at.b >= 0) {
        mf_load(b, p + at.b);
    }
}

template <typename T, int N>
__device__ inline void store_unit(T *p, const rope_unit &at, const float (&a)[N],
                                  const float (&b)[N]) {
    if (at.a >= 0) {
        mf_store(p + at.a, a);
    }
    if (at.b >= 0) {
        mf_store(p + at.b, b);
    }
}

template <int K> __device__ inline void sum_lanes(float (&x)[K], int lanes) {
    for (int o = lanes / 2; o > 0; o /= 2) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            x[k] += __shfl_xor_sync(0xffffffffu, x[k], o);
        }
    }
}

template <typename T, int N, bool PAIRS, int K>
__global__ void __launch_bounds__(THREADS)
    qk_rope_forward(mf_kernel_rope_heads a, heads_plan p, span_norms norms, int lanes) {
    mf_await();
    const unsigned t = blockIdx.x * THREADS + threadIdx.x;
    const int lane = (int)(t % (unsigned)lanes);
    const int64_t row = t / (unsigned)lanes / p.teams;
    unsigned team = t / (unsigned)lanes % p.teams;
    int i = 0;
    while (team >= p.span_teams[i]) {
        team -= p.span_teams[i++];
    }
    const mf_kernel_rope_span &span = a.span[i];
    const rope_unit at = rope_unit_of<N, PAIRS>(p.columns, lane, span.turn);
    const unsigned teams = p.span_teams[i];
    /* None of a row past the end, whose threads take part in the sums of their warp. */
    const int heads = row < a.rows ? (int)(((unsigned)span.heads - team + teams - 1) / teams) : 0;
    const int64_t step = (int64_t)teams * a.head_dim, first = (int64_t)team * a.head_dim;
    const int position = at.turn && heads > 0 ? a.positions[row] : 0;
    mf_raw<T, N> ra[K] = {}, rb[K] = {};
    fetch_heads<T, N, K>(ra, rb, (const T *)span.from + row * span.from_stride + first, step, at,
                         heads);
    float c[N], s[N], wa[N], wb[N], square[K];
    if (at.turn && heads > 0) {
        load_unit_turn<N, PAIRS>(a.cos, a.sin, a.inverse, position * (a.rot_dim / 2), at, c, s);
    }
    const T *weight = (const T *)(i == 0   ? norms.weight[0]
                                  : i == 1 ? norms.weight[1]
                                           : norms.weight[2]);
    float *rstds = i == 0 ? norms.rstd[0] : i == 1 ? norms.rstd[1] : norms.rstd[2];
    if (weight) {
        load_unit(wa, wb, weight, at);
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        float x[N], y[N];
        mf_widen(x, ra[k]);
        mf_widen(y, rb[k]);
        square[k] = 0.0f;
#pragma unroll
        for (int j = 0; j < N; j++) {
            square[k] += x[j] * x[j] + y[j] * y[j];
        }
    }
    sum_lanes<K>(square, lanes);
    T *to = (T *)span.to + row * span.to_stride + first;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (k >= heads) {
            continue;
        }
        if (!weight) {
            put_raw(to + k * step, at, ra[k], rb[k]);
            continue;
        }
        const float rstd = 1.0f / sqrtf(square[k] / (float)p.columns.head_dim + norms.eps);
        float x[N], y[N];
        mf_widen(x, ra[k]);
        mf_widen(y, rb[k]);
#pragma unroll
        for (int j = 0; j < N; j++) {
            x[j] = x[j] * rstd * wa[j];
            y[j] = y[j] * rstd * wb[j];
        }
        if (at.turn) {
            turn_unit<N, PAIRS>(x, y, c, s);
        }
        store_unit(to + k * step, at, x, y);
        if (rstds && lane == 0) {
            rstds[row * span.heads + team + k * (int64_t)teams] = rstd;
        }
    }
}

/* The block's shares of dweight, summed in a fixed order, as its partial row. */
template <int N>
__device__ inline void put_partial(float (&a)[N], float (&b)[N], const rope_unit &at, int lanes,
                                   int cols, float *partial) {
    __shared__ float share[GRAD_THREADS / 32][64 * N];
    for (int o = 16; o >= lanes; o /= 2) { /* the teams of a warp */
#pragma unroll
        for (int i = 0; i < N; i++) {
            a[i] += __shfl_xor_sync(0xffffffffu, a[i], o);
            b[i] += __shfl_xor_sync(0xffffffffu, b[i], o);
        }
    }
    if ((int)threadIdx.x % 32 < lanes) {
        float *mine = share[threadIdx.x / 32];
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (at.a >= 0) {
                mine[at.a + i] = a[i];
            }
            if (at.b >= 0) {
                mine[at.b + i] = b[i];
            }
        }
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < cols; c += GRAD_THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < GRAD_THREADS / 32; w++) {
            sum += share[w][c];
        }
        partial[c] = sum;
    }
    __syncthreads(); /* before the next part's shares */
}

/* K heads of a row: (row, head team, team + teams, ...). */
template <typename T, int N, int K, bool ADD> struct grad_heads {
    mf_raw<T, N> xa[K], xb[K], ya[K], yb[K], ma[ADD ? K : 1], mb[ADD ? K : 1];
    float rstd[K];
};

/* from: of the first head in joined rows; place: in rows of heads. */
template <typename T, int N, int K, bool ADD>
__device__ inline void fetch_grads(grad_heads<T, N, K, ADD> &h, const grad_part<T> &p,
                                   const rope_unit &at, int64_t from, int64_t place, unsigned teams,
                                   int d, int heads) {
    const int64_t step = (int64_t)teams * d;
    fetch_heads<T, N, K>(h.xa, h.xb, p.x + from, step, at, heads);
    fetch_heads<T, N, K>(h.ya, h.yb, p.dy + place * d, step, at, heads);
    if constexpr (ADD) {
        fetch_heads<T, N, K>(h.ma, h.mb, p.add + from, step, at, heads);
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        h.rstd[k] = k < heads ? p.rstd[place + k * (int64_t)teams] : 0.0f;
    }
}

template <typename T, int N, bool PAIRS, int K, bool ADD>
__global__ void __launch_bounds__(GRAD_THREADS, GRAD_BLOCKS)
    qk_rope_backward(mf_kernel_qk_rope_grad a, rope_columns columns, int lanes, float *partial) {
    mf_await();
    const mf_kernel_rope_shape &s = a.shape;
    const int d = columns.head_dim, lane = (int)threadIdx.x % lanes;
    const rope_unit at = rope_unit_of<N, PAIRS>(columns, lane, true);
    const unsigned in_block = GRAD_THREADS / (unsigned)lanes, stride = gridDim.x * in_block;
    for (int part = 0; part < 2; part++) {
        const grad_part<T> p = grad_part_of<T>(a, part);
        const unsigned teams = (p.heads + K - 1) / K, units = (unsigned)s.rows * teams;
        float wa[N], wb[N], dwa[N] = {}, dwb[N] = {};
        load_unit(wa, wb, p.weight, at);
        /* All threads of a warp take as many turns, because of the sums. */
        for (unsigned turn = blockIdx.x * in_block; turn < units; turn += stride) {
            const unsigned unit = turn + threadIdx.x / (unsigned)lanes;
            const int64_t row = unit / teams, head = unit % teams;
            const int heads = unit < units ? (int)((p.heads - head + teams - 1) / teams) : 0;
            const int64_t from = row * s.joined_stride + head * d, step = (int64_t)teams * d;
            const int64_t place = row * p.heads + head;
            grad_heads<T, N, K, ADD> h = {};
            fetch_grads(h, p, at, from, place, teams, d, heads);
            float c[N], sine[N], ga[K][N], gb[K][N], dot[K];
            if (at.turn && heads > 0) {
                load_unit_turn<N, PAIRS>(s.cos, s.sin, true, s.positions[row] * (s.rot_dim / 2), at,
                                         c, sine);
            }
#pragma unroll
            for (int k = 0; k < K; k++) {
                float x[N], y[N];
                mf_widen(x, h.xa[k]);
                mf_widen(y, h.xb[k]);
                mf_widen(ga[k], h.ya[k]);
                mf_widen(gb[k], h.yb[k]);
                dot[k] = 0.0f;
                if (k >= heads) {
                    continue;
                }
                if (at.turn) {
                    turn_unit<N, PAIRS>(ga[k], gb[k], c, sine);
                }
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float pa = x[i] * ga[k][i], pb = y[i] * gb[k][i];
                    dwa[i] += pa * h.rstd[k];
                    dwb[i] += pb * h.rstd[k];
                    dot[k] += pa * wa[i] + pb * wb[i];
                }
            }
            sum_lanes<K>(dot, lanes);
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (k >= heads) {
                    continue;
                }
                const float f = dot[k] / (float)d * h.rstd[k] * h.rstd[k];
                float x[N], y[N];
                mf_widen(x, h.xa[k]);
                mf_widen(y, h.xb[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    x[i] = h.rstd[k] * (ga[k][i] * wa[i] - x[i] * f);
                    y[i] = h.rstd[k] * (gb[k][i] * wb[i] - y[i] * f);
                }
                if constexpr (ADD) {
                    add_raw<T, N>(x, h.ma[k]);
                    add_raw<T, N>(y, h.mb[k]);
                }
                store_unit(p.dx + from + k * step, at, x, y);
            }
        }
        put_partial<N>(dwa, dwb, at, lanes, d,
                       partial + ((int64_t)part * gridDim.x + blockIdx.x) * d);
    }
}

/* --- launches ----------------------------------------------------------------------------------
 */

/* Lanes of a head. */
static int lanes_of(const mf_kernel_rope_shape *s, int width) {
    return mf_pow2_up(rope_units({(int)s->head_dim, 0, (int)s->rot_dim}, width));
}

/* The spans that are wanted, and what they are normed with. */
static mf_kernel_rope_heads wanted(const mf_kernel_qk_rope *a, span_norms *norms) {
    const mf_kernel_rope_split split = {a->shape, a->joined, a->q, a->k, a->v};
    const mf_kernel_rope_heads all = mf_kernel_rope_split_heads(&split);
    mf_kernel_rope_heads out = all;
    *norms = {};
    norms->eps = a->eps;
    out.spans = 0;
    for (int i = 0; i < all.spans; i++) {
        if (all.span[i].to && all.span[i].heads > 0) {
            out.span[out.spans] = all.span[i];
            norms->weight[out.spans] = i == 0 ? a->weight_q : i == 1 ? a->weight_k : nullptr;
            norms->rstd[out.spans] = !a->rstd || i == 2 ? nullptr
                                     : i == 0           ? a->rstd
                                                        : a->rstd + a->shape.rows * a->shape.heads;
            out.spans++;
        }
    }
    return out;
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_qk_rope *a, cudaStream_t stream, mf_err *e) {
    const mf_kernel_rope_shape *s = &a->shape;
    if constexpr (N == 1) {
        const int64_t most = s->heads > s->kv_heads ? s->heads : s->kv_heads;
        if ((a->q || a->k) && most > 0) {
            MF_LAUNCH((qk_rope_forward_any<T>), dim3((unsigned)(s->rows * most), 2), ANY_THREADS, 0,
                      stream, e, *a);
        }
        const mf_kernel_rope_split rest = {*s, a->joined, nullptr, nullptr, a->v};
        return mf_kernel_rope_split_run_cuda(&rest, stream, e);
    } else {
        span_norms norms;
        const mf_kernel_rope_heads heads = wanted(a, &norms);
        if (heads.spans == 0) {
            return MF_OK;
        }
        const heads_plan p = plan_heads(&heads, N, HEADS);
        const int lanes = lanes_of(s, N);
        const unsigned blocks = (unsigned)mf_ceil_div(s->rows * p.teams * lanes, THREADS);
        if (s->interleaved) {
            MF_LAUNCH((qk_rope_forward<T, N, true, HEADS>), blocks, THREADS, 0, stream, e, heads, p,
                      norms, lanes);
        } else {
            MF_LAUNCH((qk_rope_forward<T, N, false, HEADS>), blocks, THREADS, 0, stream, e, heads,
                      p, norms, lanes);
        }
        return MF_OK;
    }
}

template <typename T, int N, bool PAIRS, bool ADD>
static mf_status launch_backward(const mf_kernel_qk_rope_grad *a, int blocks, cudaStream_t stream,
                                 mf_err *e) {
    const mf_kernel_rope_shape *s = &a->shape;
    const rope_columns columns = {(int)s->head_dim, 0, (int)s->rot_dim};
    MF_LAUNCH((qk_rope_backward < T, N, PAIRS, ADD ? GRAD_ADD_HEADS : GRAD_HEADS, ADD >),
              (unsigned)blocks, GRAD_THREADS, 0, stream, e, *a, columns, lanes_of(s, N),
              (float *)a->workspace);
    return MF_OK;
}

/* *blocks: partial rows of each weight that it leaves. */
template <typename T, int N>
static mf_status run_backward(const mf_kernel_qk_rope_grad *a, int *blocks, cudaStream_t stream,
                              mf_err *e) {
    const mf_kernel_rope_shape *s = &a->shape;
    const int64_t most = s->heads > s->kv_heads ? s->heads : s->kv_heads, heads = s->rows * most;
    if constexpr (N == 1) {
        *blocks = heads < MF_QK_ROPE_BLOCKS ? (int)heads : MF_QK_ROPE_BLOCKS;
        const dim3 grid((unsigned)*blocks, (unsigned)mf_ceil_div(s->head_dim, ANY_THREADS), 2);
        MF_LAUNCH((qk_rope_weight_any<T>), grid, ANY_THREADS, 0, stream, e, *a,
                  (float *)a->workspace);
        MF_LAUNCH((qk_rope_backward_any<T>), dim3((unsigned)heads, 2), ANY_THREADS, 0, stream, e,
                  *a);
        return MF_OK;
    } else {
        int device, sms;
        MF_CUDA_TRY(cudaGetDevice(&device), e);
        MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
        const int64_t units = s->rows * mf_ceil_div(most, a->add ? GRAD_ADD_HEADS : GRAD_HEADS);
        const int64_t work = mf_ceil_div(units, GRAD_THREADS / lanes_of(s, N));
        int64_t n = GRAD_BLOCKS * sms < MF_QK_ROPE_BLOCKS ? GRAD_BLOCKS * sms : MF_QK_ROPE_BLOCKS;
        n = work < n ? work : n;
        *blocks = (int)n;
        if (s->interleaved) {
            return a->add ? launch_backward<T, N, true, true>(a, *blocks, stream, e)
                          : launch_backward<T, N, true, false>(a, *blocks, stream, e);
        }
        return a->add ? launch_backward<T, N, false, true>(a, *blocks, stream, e)
                      : launch_backward<T, N, false, false>(a, *blocks, stream, e);
    }
}

static bool shape_fast(const mf_kernel_rope_shape *s, const void *weight_q, const void *weight_k) {
    const int width = 16 / (int)mf_kernel_dtype_B(s->dtype);
    const int64_t heads = s->rows * (s->heads + 2 * s->kv_heads);
    return rope_columns_fast(s->head_dim, 0, s->rot_dim, s->interleaved, s->dtype, s->cos,
                             s->sin) &&
           s->head_dim <= 64 * width && lanes_of(s, width) <= 32 && heads * 32 <= INT32_MAX &&
           mf_aligned(weight_q) && mf_aligned(weight_k);
}

extern "C" mf_status mf_kernel_qk_rope_forward_cuda(const mf_kernel_qk_rope *a, void *stream,
                                                    mf_err *e) {
    const mf_kernel_rope_shape *s = &a->shape;
    if (s->rows * s->head_dim == 0) {
        return MF_OK;
    }
    const bool fast = shape_fast(s, a->weight_q, a->weight_k) &&
                      mf_vectors(a->joined, s->dtype, s->head_dim, s->joined_stride) &&
                      mf_aligned(a->q) && mf_aligned(a->k) && mf_aligned(a->v);
    return MF_KERNEL_PICK(run_forward, s->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_qk_rope_backward_cuda(const mf_kernel_qk_rope_grad *a, void *stream,
                                                     mf_err *e) {
    const mf_kernel_rope_shape *s = &a->shape;
    if (s->rows * s->head_dim * s->heads * s->kv_heads == 0) {
        return MF_OK;
    }
    const bool fast = shape_fast(s, a->weight_q, a->weight_k) &&
                      mf_vectors(a->joined, s->dtype, s->head_dim, s->joined_stride) &&
                      mf_aligned(a->dq) && mf_aligned(a->dk) && mf_aligned(a->add) &&
                      mf_aligned(a->djoined);
    int blocks = 0;
    mf_status status =
        MF_KERNEL_PICK(run_backward, s->dtype, fast, a, &blocks, (cudaStream_t)stream, e);
    if (status == MF_OK) {
        status = mf_add_partial_rows((const float *)a->workspace, 2, blocks, s->head_dim,
                                     a->dweight, (cudaStream_t)stream, e);
    }
    const mf_kernel_rope_join join = {*s, nullptr, nullptr, a->dv, a->add, a->djoined};
    mf_kernel_rope_heads rest = mf_kernel_rope_join_heads(&join);
    rest.span[0].to = rest.span[1].to = nullptr; /* v alone */
    return status == MF_OK ? mf_kernel_rope_heads_move_cuda(&rest, stream, e) : status;
}
