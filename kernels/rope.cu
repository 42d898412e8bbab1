/* rope.cu - CUDA kernel of the rotary embedding.
 *
 * A thread holds the angles of one vector of pairs of one row in registers and turns that vector in
 * HEADS heads, two 16-byte loads and stores a head.
 */
#include "kernels/cuda_common.cuh"
#include "kernels/rope.h"

#define HEADS 8

/* Half-split: N pairs (i, i + half) from two vectors. */
template <typename T, int N>
__global__ void rope_halves(mf_kernel_rope a, int per_row, int head_blocks) {
    int64_t half = a.rot_dim / 2, t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t i = t % per_row * N, row = t / per_row / head_blocks;
    int64_t h0 = t / per_row % head_blocks; /* and every head_blocks-th head after it */
    if (row >= a.rows) {
        return;
    }
    float c[N], s[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        int64_t at = a.positions[row] * half + i + k;
        c[k] = a.cos[at];
        s[k] = a.inverse ? -a.sin[at] : a.sin[at];
    }
    T *x = (T *)a.x + row * a.row_stride + i;
    mf_raw<T, N> ru[HEADS], rv[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h0 + h * head_blocks < a.heads) {
            ru[h] = mf_fetch<T, N>(x + (h0 + h * head_blocks) * a.head_stride);
            rv[h] = mf_fetch<T, N>(x + (h0 + h * head_blocks) * a.head_stride + half);
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h0 + h * head_blocks < a.heads) {
            float u[N], v[N], nu[N], nv[N];
            mf_widen(u, ru[h]);
            mf_widen(v, rv[h]);
#pragma unroll
            for (int k = 0; k < N; k++) {
                nu[k] = u[k] * c[k] - v[k] * s[k];
                nv[k] = v[k] * c[k] + u[k] * s[k];
            }
            mf_store(x + (h0 + h * head_blocks) * a.head_stride, nu);
            mf_store(x + (h0 + h * head_blocks) * a.head_stride + half, nv);
        }
    }
}

/* Interleaved: N / 2 pairs inside one vector. */
template <typename T, int N>
__global__ void rope_pairs(mf_kernel_rope a, int per_row, int head_blocks) {
    int64_t half = a.rot_dim / 2, t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t i = t % per_row * N, row = t / per_row / head_blocks;
    int64_t h0 = t / per_row % head_blocks; /* and every head_blocks-th head after it */
    if (row >= a.rows) {
        return;
    }
    float c[N / 2], s[N / 2];
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        int64_t at = a.positions[row] * half + i / 2 + k;
        c[k] = a.cos[at];
        s[k] = a.inverse ? -a.sin[at] : a.sin[at];
    }
    T *x = (T *)a.x + row * a.row_stride + i;
    mf_raw<T, N> raw[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h0 + h * head_blocks < a.heads) {
            raw[h] = mf_fetch<T, N>(x + (h0 + h * head_blocks) * a.head_stride);
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h0 + h * head_blocks < a.heads) {
            float u[N], v[N];
            mf_widen(u, raw[h]);
#pragma unroll
            for (int k = 0; k < N / 2; k++) {
                v[2 * k] = u[2 * k] * c[k] - u[2 * k + 1] * s[k];
                v[2 * k + 1] = u[2 * k + 1] * c[k] + u[2 * k] * s[k];
            }
            mf_store(x + (h0 + h * head_blocks) * a.head_stride, v);
        }
    }
}

/* One pair a thread: any alignment, both kinds. */
template <typename T> __global__ void rope_any(mf_kernel_rope a) {
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
        rope_any<T><<<(unsigned)mf_ceil_div(threads, 256), 256, 0, stream>>>(*a);
    } else {
        int per_row = (int)(a->rot_dim / (a->interleaved ? 1 : 2) / N);
        int head_blocks = (int)mf_ceil_div(a->heads, HEADS);
        unsigned blocks = (unsigned)mf_ceil_div(a->rows * per_row * head_blocks, 128);
        if (a->interleaved) {
            rope_pairs<T, N><<<blocks, 128, 0, stream>>>(*a, per_row, head_blocks);
        } else {
            rope_halves<T, N><<<blocks, 128, 0, stream>>>(*a, per_row, head_blocks);
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
                mf_vectors(a->x, a->dtype, unit, a->head_stride);
    return MF_KERNEL_PICK(run, a->dtype, fast, a, (cudaStream_t)stream, e);
}
