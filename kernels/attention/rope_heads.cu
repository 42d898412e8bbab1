/* rope_heads.cu - CUDA kernels of heads that are moved and turned.
 *
 * As in rope.cu a thread holds the angles of its columns of a row in registers and serves them in
 * HEADS heads of one span, all loads first; here columns that do not turn are dealt to threads,
 * too.
 */
#include "kernels/attention/rope_device.cuh"
#include "kernels/attention/rope_heads.h"

#define THREADS 128
#define HEADS 8
#define ADD_HEADS 4 /* where each has something added */

template <typename T, int N, bool PAIRS, int K, bool ADD>
__global__ void __launch_bounds__(THREADS) move_heads(mf_kernel_rope_heads a, heads_plan p) {
    mf_await();
    const unsigned t = blockIdx.x * THREADS + threadIdx.x;
    const int64_t row = t / p.units / p.teams;
    unsigned team = t / p.units % p.teams;
    if (row >= a.rows) {
        return;
    }
    int i = 0;
    while (team >= p.span_teams[i]) {
        team -= p.span_teams[i++];
    }
    const mf_kernel_rope_span &span = a.span[i];
    const rope_unit at = rope_unit_of<N, PAIRS>(p.columns, (int)(t % p.units), span.turn);
    /* Heads team, team + teams, ... of the span. */
    const unsigned teams = p.span_teams[i];
    const int heads = (int)(((unsigned)span.heads - team + teams - 1) / teams);
    const int64_t step = (int64_t)teams * a.head_dim, first = (int64_t)team * a.head_dim;
    const int64_t to_at = row * span.to_stride + first;
    const int position = at.turn ? a.positions[row] : 0;
    mf_raw<T, N> ra[K], rb[K], ma[ADD ? K : 1], mb[ADD ? K : 1];
    fetch_heads<T, N, K>(ra, rb, (const T *)span.from + row * span.from_stride + first, step, at,
                         heads);
    if constexpr (ADD) {
        fetch_heads<T, N, K>(ma, mb, (const T *)span.add + to_at, step, at, heads);
    }
    float c[N], s[N];
    if (at.turn) {
        load_unit_turn<N, PAIRS>(a.cos, a.sin, a.inverse, position * (a.rot_dim / 2), at, c, s);
    }
    T *to = (T *)span.to + to_at;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (k >= heads) {
            continue;
        }
        if (!ADD && !at.turn) {
            put_raw(to + k * step, at, ra[k], rb[k]);
            continue;
        }
        float x[N], y[N];
        mf_widen(x, ra[k]);
        mf_widen(y, rb[k]);
        if (at.turn) {
            turn_unit<N, PAIRS>(x, y, c, s);
        }
        if constexpr (ADD) {
            add_raw<T, N>(x, ma[k]);
            add_raw<T, N>(y, mb[k]);
        }
        if (at.a >= 0) {
            mf_store(to + k * step + at.a, x);
        }
        if (at.b >= 0) {
            mf_store(to + k * step + at.b, y);
        }
    }
}

/* One element a thread: any alignment. heads: of all spans. */
template <typename T> __global__ void move_heads_any(mf_kernel_rope_heads a, int64_t heads) {
    mf_await();
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x, d = a.head_dim;
    const int64_t col = t % d, row = t / d / heads;
    int64_t h = t / d % heads;
    if (row >= a.rows) {
        return;
    }
    int i = 0;
    while (h >= a.span[i].heads) {
        h -= a.span[i++].heads;
    }
    const mf_kernel_rope_span &span = a.span[i];
    const T *from = (const T *)span.from + row * span.from_stride + h * d;
    const int64_t to = row * span.to_stride + h * d + col, at = col - a.rot_at;
    float x[1], other[1];
    mf_load(x, from + col);
    if (span.turn && at >= 0 && at < a.rot_dim) {
        const rope_place p = rope_place_of(at, a.rot_dim, a.interleaved);
        const int64_t angle = a.positions[row] * (a.rot_dim / 2) + p.pair;
        const float s = a.inverse ? -a.sin[angle] : a.sin[angle];
        mf_load(other, from + a.rot_at + p.partner);
        x[0] = turn_one(p, x[0], other[0], a.cos[angle], s);
    }
    if (span.add) {
        mf_load(other, (const T *)span.add + to);
        x[0] = mf_round_as((const T *)nullptr, x[0]) + other[0];
    }
    mf_store((T *)span.to + to, x);
}

template <typename T, int N, bool PAIRS, int K, bool ADD>
static mf_status launch(const mf_kernel_rope_heads *a, cudaStream_t stream, mf_err *e) {
    const heads_plan p = plan_heads(a, N, K);
    const unsigned blocks = (unsigned)mf_ceil_div(a->rows * p.units * p.teams, THREADS);
    MF_LAUNCH((move_heads<T, N, PAIRS, K, ADD>), blocks, THREADS, 0, stream, e, *a, p);
    return MF_OK;
}

template <typename T, int N>
static mf_status run(const mf_kernel_rope_heads *a, bool add, cudaStream_t stream, mf_err *e) {
    if constexpr (N == 1) {
        int64_t heads = 0;
        for (int i = 0; i < a->spans; i++) {
            heads += a->span[i].heads;
        }
        const unsigned blocks = (unsigned)mf_ceil_div(a->rows * heads * a->head_dim, THREADS);
        MF_LAUNCH((move_heads_any<T>), blocks, THREADS, 0, stream, e, *a, heads);
        return MF_OK;
    } else if (a->interleaved) {
        return add ? launch<T, N, true, ADD_HEADS, true>(a, stream, e)
                   : launch<T, N, true, HEADS, false>(a, stream, e);
    } else {
        return add ? launch<T, N, false, ADD_HEADS, true>(a, stream, e)
                   : launch<T, N, false, HEADS, false>(a, stream, e);
    }
}

extern "C" mf_status mf_kernel_rope_heads_move_cuda(const mf_kernel_rope_heads *a, void *stream,
                                                    mf_err *e) {
    mf_kernel_rope_heads b = *a; /* the spans that are wanted */
    int64_t elements = 0;
    int adds = 0;
    bool fast = rope_columns_fast(a->head_dim, a->rot_at, a->rot_dim, a->interleaved, a->dtype,
                                  a->cos, a->sin);
    b.spans = 0;
    for (int i = 0; i < a->spans; i++) {
        const mf_kernel_rope_span *s = &a->span[i];
        if (s->to && s->heads > 0) {
            b.span[b.spans++] = *s;
            adds += s->add != nullptr;
            elements += a->rows * s->heads * a->head_dim;
            fast = fast && mf_vectors(s->from, a->dtype, a->head_dim, s->from_stride) &&
                   mf_vectors(s->to, a->dtype, a->head_dim, s->to_stride) && mf_aligned(s->add);
        }
    }
    if (elements == 0) {
        return MF_OK;
    }
    fast = fast && (adds == 0 || adds == b.spans) && elements <= UINT32_MAX;
    return MF_KERNEL_PICK(run, a->dtype, fast, &b, adds > 0, (cudaStream_t)stream, e);
}
