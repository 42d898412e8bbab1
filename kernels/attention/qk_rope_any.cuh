/* qk_rope_any.cuh - heads that are normed and turned, with any alignment and width: a block a head.
 * And what a part of the backward pass, q or k, consists of. */
#ifndef MF_KERNELS_QK_ROPE_ANY_CUH
#define MF_KERNELS_QK_ROPE_ANY_CUH

#include "kernels/attention/qk_rope.h"
#include "kernels/attention/rope_device.cuh"

#define ANY_THREADS 128

/* Part 0: q, 1: k. */
template <typename T> struct grad_part {
    const T *x, *dy, *weight, *add;
    T *dx;
    const float *rstd;
    unsigned heads;
};
template <typename T>
__device__ inline grad_part<T> grad_part_of(const mf_kernel_qk_rope_grad &a, int part) {
    const mf_kernel_rope_shape &s = a.shape;
    const int64_t at = part == 0 ? 0 : s.heads * s.head_dim;
    grad_part<T> p;
    p.x = (const T *)a.joined + at;
    p.dy = (const T *)(part == 0 ? a.dq : a.dk);
    p.weight = (const T *)(part == 0 ? a.weight_q : a.weight_k);
    p.add = a.add ? (const T *)a.add + at : nullptr;
    p.dx = (T *)a.djoined + at;
    p.rstd = a.rstd + (part == 0 ? 0 : s.rows * s.heads);
    p.heads = (unsigned)(part == 0 ? s.heads : s.kv_heads);
    return p;
}

/* Where column c of a head turns, which element is its partner and by which angle. */
struct any_place {
    rope_place p;
    float cos, sin;
};
__device__ inline any_place any_place_of(const mf_kernel_rope_shape &s, int64_t row, int64_t c,
                                         bool inverse) {
    any_place x;
    if (c >= s.rot_dim) {
        x.p.first = true, x.p.pair = 0, x.p.partner = c, x.cos = 1.0f, x.sin = 0.0f;
        return x;
    }
    x.p = rope_place_of(c, s.rot_dim, s.interleaved);
    const int64_t angle = s.positions[row] * (s.rot_dim / 2) + x.p.pair;
    x.cos = s.cos[angle];
    x.sin = inverse ? -s.sin[angle] : s.sin[angle];
    return x;
}

/* blockIdx.x: row and head of the part; y: part. */
template <typename T> __global__ void qk_rope_forward_any(mf_kernel_qk_rope a) {
    mf_await();
    __shared__ float scratch[64];
    const mf_kernel_rope_shape &s = a.shape;
    const int part = (int)blockIdx.y;
    const int64_t d = s.head_dim, heads = part == 0 ? s.heads : s.kv_heads;
    const int64_t row = blockIdx.x / heads, head = blockIdx.x % heads;
    T *to = (T *)(part == 0 ? a.q : a.k);
    if (row >= s.rows || !to) {
        return;
    }
    const T *x = (const T *)a.joined + row * s.joined_stride + (part * s.heads + head) * d;
    const T *w = (const T *)(part == 0 ? a.weight_q : a.weight_k);
    float square = 0.0f, v[1], other[1], wv[1];
    for (int64_t c = threadIdx.x; c < d; c += ANY_THREADS) {
        mf_load(v, x + c);
        square += v[0] * v[0];
    }
    square = mf_group_sum(square, ANY_THREADS, scratch, 0);
    const float rstd = 1.0f / sqrtf(square / (float)d + a.eps);
    for (int64_t c = threadIdx.x; c < d; c += ANY_THREADS) {
        const any_place p = any_place_of(s, row, c, false);
        mf_load(v, x + c);
        mf_load(wv, w + c);
        v[0] = v[0] * rstd * wv[0];
        mf_load(other, x + p.p.partner);
        mf_load(wv, w + p.p.partner);
        v[0] = turn_one(p.p, v[0], other[0] * rstd * wv[0], p.cos, p.sin);
        mf_store(to + (row * heads + head) * d + c, v);
    }
    if (a.rstd && threadIdx.x == 0) {
        a.rstd[part * s.rows * s.heads + row * heads + head] = rstd;
    }
}

/* Column c of g in the head of dy. */
template <typename T>
__device__ inline float turned_back(const mf_kernel_rope_shape &s, const T *dy, int64_t row,
                                    int64_t c) {
    const any_place p = any_place_of(s, row, c, true);
    float own[1], other[1];
    mf_load(own, dy + c);
    mf_load(other, dy + p.p.partner);
    return turn_one(p.p, own[0], other[0], p.cos, p.sin);
}

template <typename T> __global__ void qk_rope_backward_any(mf_kernel_qk_rope_grad a) {
    mf_await();
    __shared__ float scratch[64];
    const mf_kernel_rope_shape &s = a.shape;
    const grad_part<T> p = grad_part_of<T>(a, (int)blockIdx.y);
    const int64_t d = s.head_dim, row = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
    if (row >= s.rows) {
        return;
    }
    const int64_t at = row * s.joined_stride + head * d, place = row * p.heads + head;
    const T *dy = p.dy + place * d;
    const float rstd = p.rstd[place];
    float dot = 0.0f, x[1], w[1];
    for (int64_t c = threadIdx.x; c < d; c += ANY_THREADS) {
        mf_load(x, p.x + at + c);
        mf_load(w, p.weight + c);
        dot += turned_back(s, dy, row, c) * w[0] * x[0];
    }
    dot = mf_group_sum(dot, ANY_THREADS, scratch, 0);
    const float f = dot / (float)d * rstd * rstd;
    for (int64_t c = threadIdx.x; c < d; c += ANY_THREADS) {
        mf_load(x, p.x + at + c);
        mf_load(w, p.weight + c);
        float dx[1] = {rstd * (turned_back(s, dy, row, c) * w[0] - x[0] * f)};
        if (p.add) {
            add_raw<T, 1>(dx, mf_fetch<T, 1>(p.add + at + c));
        }
        mf_store(p.dx + at + c, dx);
    }
}

/* partial[part, block] = the sum of g * x * rstd over the block's heads. blockIdx.y: columns, z:
 * part.
 */
template <typename T> __global__ void qk_rope_weight_any(mf_kernel_qk_rope_grad a, float *partial) {
    mf_await();
    const mf_kernel_rope_shape &s = a.shape;
    const grad_part<T> p = grad_part_of<T>(a, (int)blockIdx.z);
    const int64_t d = s.head_dim, c = (int64_t)blockIdx.y * ANY_THREADS + threadIdx.x;
    if (c >= d) {
        return;
    }
    float sum = 0.0f, x[1];
    for (int64_t u = blockIdx.x; u < s.rows * p.heads; u += gridDim.x) {
        const int64_t row = u / p.heads, head = u % p.heads;
        mf_load(x, p.x + row * s.joined_stride + head * d + c);
        sum += turned_back(s, p.dy + u * d, row, c) * x[0] * p.rstd[u];
    }
    partial[((int64_t)blockIdx.z * gridDim.x + blockIdx.x) * d + c] = sum;
}

#endif
