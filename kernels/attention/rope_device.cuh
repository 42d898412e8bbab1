/* rope_device.cuh - what kernels that turn heads share: angles in registers, the two vectors of a
 * head that one thread deals with, and their turn. Device code only. */
#ifndef MF_KERNELS_ROPE_DEVICE_CUH
#define MF_KERNELS_ROPE_DEVICE_CUH

#include "kernels/attention/rope_heads.h"
#include "kernels/device/cuda_common.cuh"

/* K angles that lie side by side: as wide as they are aligned. */
template <int K> __device__ inline void load_angles(float (&out)[K], const float *p) {
    if constexpr (K % 4 == 0) {
#pragma unroll
        for (int k = 0; k < K; k += 4) {
            mf_raw<float, 4> four = mf_fetch<float, 4>(p + k);
            float wide[4];
            mf_widen(wide, four);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out[k + i] = wide[i];
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < K; k++) {
            out[k] = p[k];
        }
    }
}

/* cos and +-sin of K pairs, from place `at` of the tables on. */
template <int K>
__device__ inline void load_turn(const float *cos, const float *sin, bool inverse, int64_t at,
                                 float (&c)[K], float (&s)[K]) {
    load_angles<K>(c, cos + at);
    load_angles<K>(s, sin + at);
#pragma unroll
    for (int k = 0; k < K; k++) {
        s[k] = inverse ? -s[k] : s[k];
    }
}

/* Which columns of a head turn. All are whole vectors; of half-split pairs half of rot_dim is, too.
 */
typedef struct rope_columns {
    int head_dim, rot_at, rot_dim;
} rope_columns;

/* Threads that share a head, each with up to two vectors. */
static inline int rope_units(rope_columns h, int width) {
    const int turning = h.rot_dim / width, plain = h.head_dim / width - turning;
    return (turning + 1) / 2 + (plain + 1) / 2;
}

/* A thread's two vectors: their first columns (< 0: there is none). Where they turn: by the angles
 * of pair `pair` on, and of interleaved pairs the second one by those of pair `pair_b` on. */
typedef struct rope_unit {
    int a, b;
    bool turn;
    int pair, pair_b;
} rope_unit;

template <int N, bool PAIRS>
__device__ inline rope_unit rope_unit_of(const rope_columns &h, int u, bool turn) {
    const int vectors = turn ? h.rot_dim / N : 0, turning = (vectors + 1) / 2;
    rope_unit x;
    x.turn = u < turning;
    x.pair = x.pair_b = 0;
    if (x.turn) {
        x.a = h.rot_at + u * N;
        x.b = u + turning < vectors ? x.a + turning * N : -1;
        x.pair = PAIRS ? u * (N / 2) : u * N;
        x.pair_b = x.pair + turning * (N / 2);
        return x;
    }
    const int plain = h.head_dim / N - vectors, first = (plain + 1) / 2;
    const int a = (u - turning) * N, b = a + first * N;
    const int skip = turn ? h.rot_dim : 0;
    x.a = a < first * N ? a + (a >= h.rot_at ? skip : 0) : -1;
    x.b = b < plain * N ? b + (b >= h.rot_at ? skip : 0) : -1;
    return x;
}

/* The angles of a unit that turns; `row`: place of its row's angles in the tables. */
template <int N, bool PAIRS>
__device__ inline void load_unit_turn(const float *cos, const float *sin, bool inverse, int64_t row,
                                      const rope_unit &x, float (&c)[N], float (&s)[N]) {
    if constexpr (PAIRS) {
        float ca[N / 2], sa[N / 2], cb[N / 2] = {}, sb[N / 2] = {};
        load_turn<N / 2>(cos, sin, inverse, row + x.pair, ca, sa);
        if (x.b >= 0) {
            load_turn<N / 2>(cos, sin, inverse, row + x.pair_b, cb, sb);
        }
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            c[k] = ca[k], s[k] = sa[k];
            c[N / 2 + k] = cb[k], s[N / 2 + k] = sb[k];
        }
    } else {
        load_turn<N>(cos, sin, inverse, row + x.pair, c, s);
    }
}

/* Turns a unit's two vectors. */
template <int N, bool PAIRS>
__device__ inline void turn_unit(float (&a)[N], float (&b)[N], const float (&c)[N],
                                 const float (&s)[N]) {
    if constexpr (PAIRS) {
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            const float ua = a[2 * k], va = a[2 * k + 1], ub = b[2 * k], vb = b[2 * k + 1];
            a[2 * k] = ua * c[k] - va * s[k];
            a[2 * k + 1] = va * c[k] + ua * s[k];
            b[2 * k] = ub * c[N / 2 + k] - vb * s[N / 2 + k];
            b[2 * k + 1] = vb * c[N / 2 + k] + ub * s[N / 2 + k];
        }
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float u = a[k], v = b[k];
            a[k] = u * c[k] - v * s[k];
            b[k] = v * c[k] + u * s[k];
        }
    }
}

/* x, rounded, plus what `raw` holds. */
template <typename T, int N>
__device__ inline void add_raw(float (&x)[N], const mf_raw<T, N> &raw) {
    float more[N];
    mf_widen(more, raw);
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = mf_round_as((const T *)nullptr, x[i]) + more[i];
    }
}

/* Threads of a row: `units` for each team of heads; teams of span i are as many as its heads need.
 */
typedef struct heads_plan {
    rope_columns columns;
    unsigned units, teams;
    unsigned span_teams[MF_ROPE_SPANS];
} heads_plan;

/* Of spans that are all wanted; a thread serves up to `each` heads. */
static inline heads_plan plan_heads(const mf_kernel_rope_heads *a, int width, int each) {
    heads_plan p = {};
    p.columns = {(int)a->head_dim, (int)a->rot_at, (int)a->rot_dim};
    p.units = (unsigned)rope_units(p.columns, width);
    for (int i = 0; i < a->spans; i++) {
        p.span_teams[i] = (unsigned)mf_ceil_div(a->span[i].heads, each);
        p.teams += p.span_teams[i];
    }
    return p;
}

template <typename T, int N, int K>
__device__ inline void fetch_heads(mf_raw<T, N> (&a)[K], mf_raw<T, N> (&b)[K], const T *x,
                                   int64_t step, const rope_unit &at, int heads) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (k < heads && at.a >= 0) {
            a[k] = mf_fetch_once<T, N>(x + k * step + at.a);
        }
        if (k < heads && at.b >= 0) {
            b[k] = mf_fetch_once<T, N>(x + k * step + at.b);
        }
    }
}

template <typename T, int N>
__device__ inline void put_raw(T *to, const rope_unit &at, const mf_raw<T, N> &a,
                               const mf_raw<T, N> &b) {
    if (at.a >= 0) {
        *reinterpret_cast<mf_raw<T, N> *>(to + at.a) = a;
    }
    if (at.b >= 0) {
        *reinterpret_cast<mf_raw<T, N> *>(to + at.b) = b;
    }
}

/* Column c of a head with any alignment: its place among the pairs. `at`: the column from rot_at
 * on.
 */
struct rope_place {
    int64_t pair, partner;
    bool first; /* of its pair */
};
__device__ inline rope_place rope_place_of(int64_t at, int64_t rot_dim, bool interleaved) {
    const int64_t half = rot_dim / 2;
    rope_place p;
    p.first = interleaved ? at % 2 == 0 : at < half;
    p.pair = interleaved ? at / 2 : p.first ? at : at - half;
    p.partner = interleaved ? at ^ 1 : p.first ? at + half : at - half;
    return p;
}

/* An element after the turn, from itself and its partner. */
__device__ inline float turn_one(const rope_place &p, float own, float other, float c, float s) {
    return p.first ? own * c - other * s : own * c + other * s;
}

/* Whether heads can be dealt with in vectors. */
static inline bool rope_columns_fast(int64_t head_dim, int64_t rot_at, int64_t rot_dim,
                                     bool interleaved, mf_kernel_dtype d, const float *cos,
                                     const float *sin) {
    const int64_t n = 16 / (int64_t)mf_kernel_dtype_B(d);
    return head_dim % n == 0 && rot_at % n == 0 && rot_dim % (interleaved ? n : 2 * n) == 0 &&
           mf_aligned(cos) && mf_aligned(sin);
}

#endif
