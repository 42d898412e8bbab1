/* rope.cu - CUDA kernel of the rotary embedding.
 *
 * A thread holds the angles of one vector of pairs of one row in registers and turns that vector in
 * HEADS heads, one or two 16-byte loads and stores a head. The heads are asked for before the
 * angles, whose address waits for the position.
 */
#include "kernels/attention/rope.h"
#include "kernels/attention/rope_device.cuh"

#define HEADS 8
#define PAIR_HEADS 4 /* of interleaved pairs */

/* cos and +-sin of K pairs of a row, from pair `i` on. */
template <int K>
__device__ inline void row_angles(const mf_kernel_rope &a, int position, int i, float (&c)[K],
                                  float (&s)[K]) {
    load_turn<K>(a.cos, a.sin, a.inverse, (int64_t)position * (a.rot_dim / 2) + i, c, s);
}

/* Half-split: N pairs (i, i + half) from two vectors. */
template <typename T, int N>
__global__ void rope_halves(mf_kernel_rope a, int per_row, int head_blocks) {
    mf_await();
    const unsigned t = blockIdx.x * blockDim.x + threadIdx.x, blocks = (unsigned)head_blocks;
    const int unit = (int)(t % (unsigned)per_row);
    const int64_t row = t / (unsigned)per_row / blocks, half = a.rot_dim / 2;
    const int h0 = (int)(t / (unsigned)per_row % blocks); /* and every head_blocks-th after it */
    if (row >= a.rows) {
        return;
    }
    const int position = a.positions[row], heads = (int)a.heads;
    T *x = (T *)a.x + row * a.row_stride + unit * N + h0 * a.head_stride;
    const int64_t step = head_blocks * a.head_stride;
    mf_raw<T, N> ru[HEADS], rv[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h0 + h * head_blocks < heads) {
            ru[h] = mf_fetch_once<T, N>(x + h * step);
            rv[h] = mf_fetch_once<T, N>(x + h * step + half);
        }
    }
    float c[N], s[N];
    row_angles<N>(a, position, unit * N, c, s);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h0 + h * head_blocks < heads) {
            float u[N], v[N], nu[N], nv[N];
            mf_widen(u, ru[h]);
            mf_widen(v, rv[h]);
#pragma unroll
            for (int k = 0; k < N; k++) {
                nu[k] = u[k] * c[k] - v[k] * s[k];
                nv[k] = v[k] * c[k] + u[k] * s[k];
            }
            mf_store(x + h * step, nu);
            mf_store(x + h * step + half, nv);
        }
    }
}

/* Interleaved: N / 2 pairs inside one vector. */
template <typename T, int N>
__global__ void rope_pairs(mf_kernel_rope a, int per_row, int head_blocks) {
    mf_await();
    const unsigned t = blockIdx.x * blockDim.x + threadIdx.x, blocks = (unsigned)head_blocks;
    const int unit = (int)(t % (unsigned)per_row);
    const int64_t row = t / (unsigned)per_row / blocks;
    const int h0 = (int)(t / (unsigned)per_row % blocks); /* and every head_blocks-th after it */
    if (row >= a.rows) {
        return;
    }
    const int position = a.positions[row], heads = (int)a.heads;
    T *x = (T *)a.x + row * a.row_stride + unit * N + h0 * a.head_stride;
    const int64_t step = head_blocks * a.head_stride;
    mf_raw<T, N> raw[PAIR_HEADS];
#pragma unroll
    for (int h = 0; h < PAIR_HEADS; h++) {
        if (h0 + h * head_blocks < heads) {
            raw[h] = mf_fetch<T, N>(x + h * step); /* past the first-level cache: 3 % slower */
        }
    }
    float c[N / 2], s[N / 2];
    row_angles<N / 2>(a, position, unit * (N / 2), c, s);
#pragma unroll
    for (int h = 0; h < PAIR_HEADS; h++) {
        if (h0 + h * head_blocks < heads) {
            float u[N], v[N];
            mf_widen(u, raw[h]);
#pragma unroll
            for (int k = 0; k < N / 2; k++) {
                v[2 * k] = u[2 * k] * c[k] - u[2 * k + 1] * s[k];
                v[2 * k + 1] = u[2 * k + 1] * c[k] + u[2 * k] * s[k];
            }
            mf_store(x + h * step, v);
        }
    }
}

/* One pair a thread: any alignment, both kinds. */
template <typename T> __global__ void rope_any(mf_kernel_rope a) {
    mf_await();
    int64_t half = a.rot_dim / 2, t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t i = t % half, h = t / half % a.heads, row = t / half / a.heads;
    if (row >= a.rows) {
        return;
    }
    float c = a.cos[a.positions[row] * half + i], s = a.sin[a.positions[row] * half + i];
    s = a.inverse ? -s : s;
    T *u = (T *)a.x + row * a.row_stride + h * a.head_stride + (a.interleaved ? 2 * i : i);
    T *v = u + (a.interleaved ? 1 : half);
    float x[1], y[1], nx[1], ny[1];
    mf_load(x, u);
    mf_load(y, v);
    nx[0] = x[0] * c - y[0] * s;
    ny[0] = y[0] * c + x[0] * s;
    mf_store(u, nx);
    mf_store(v, ny);
}

template <typename T, int N>
static mf_status run(const mf_kernel_rope *a, cudaStream_t stream, mf_err *e) {
    if constexpr (N == 1) {
        int64_t threads = a->rows * a->heads * (a->rot_dim / 2);
        MF_LAUNCH((rope_any<T>), (unsigned)mf_ceil_div(threads, 256), 256, 0, stream, e, *a);
    } else {
        int per_row = (int)(a->rot_dim / (a->interleaved ? 1 : 2) / N);
        int head_blocks = (int)mf_ceil_div(a->heads, a->interleaved ? PAIR_HEADS : HEADS);
        unsigned blocks = (unsigned)mf_ceil_div(a->rows * per_row * head_blocks, 128);
        if (a->interleaved) {
            MF_LAUNCH((rope_pairs<T, N>), blocks, 128, 0, stream, e, *a, per_row, head_blocks);
        } else {
            MF_LAUNCH((rope_halves<T, N>), blocks, 128, 0, stream, e, *a, per_row, head_blocks);
        }
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_rope_apply_cuda(const mf_kernel_rope *a, void *stream, mf_err *e) {
    if (a->rows * a->heads * a->rot_dim == 0) {
        return MF_OK;
    }
    int64_t unit = a->interleaved ? a->rot_dim : a->rot_dim / 2;
    bool fast = mf_vectors(a->x, a->dtype, unit, a->row_stride) &&
                mf_vectors(a->x, a->dtype, unit, a->head_stride) && mf_aligned(a->cos) &&
                mf_aligned(a->sin) && a->rows * a->heads * a->rot_dim <= UINT32_MAX;
    return MF_KERNEL_PICK(run, a->dtype, fast, a, (cudaStream_t)stream, e);
}
