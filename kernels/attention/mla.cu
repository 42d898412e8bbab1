/* mla.cu - CUDA kernels of the packing for multi-head latent attention: a thread moves one vector.
 */
#include "kernels/attention/mla.h"
#include "kernels/device/cuda_common.cuh"

#define THREADS 256
#define HEADS 4 /* heads that one thread serves, all loads first */

/* Vector index v runs over (nope + rope) and then v_dim, in units of N. */
template <typename T, int N> __global__ void mla_pack(mf_kernel_mla a, int head_blocks) {
    mf_await();
    int64_t qk = a.nope + a.rope, wide = a.nope + a.v_dim;
    int64_t span = (qk + (a.v ? a.v_dim : 0)) / N;
    int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t c = t % span * N, h0 = t / span % head_blocks * HEADS, r = t / span / head_blocks;
    if (r >= a.rows) {
        return;
    }
    mf_raw<T, N> x[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        int64_t rh = r * a.heads + h0 + k;
        if (h0 + k < a.heads) {
            const T *src = c < a.nope ? (const T *)a.kv + rh * wide + c
                           : c < qk   ? (const T *)a.k_rope + r * a.rope_stride + c - a.nope
                                      : (const T *)a.kv + rh * wide + c - a.rope;
            x[k] = mf_fetch<T, N>(src);
        }
    }
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        int64_t rh = r * a.heads + h0 + k;
        if (h0 + k < a.heads) {
            T *dst = c < qk ? (T *)a.k + rh * qk + c : (T *)a.v + rh * a.v_dim + c - qk;
            *reinterpret_cast<mf_raw<T, N> *>(dst) = x[k];
        }
    }
}

template <typename T, int N> __global__ void mla_split(mf_kernel_mla_grad a, int head_blocks) {
    mf_await();
    int64_t qk = a.nope + a.rope, wide = a.nope + a.v_dim, span = wide / N;
    int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t c = t % span * N, h0 = t / span % head_blocks * HEADS, r = t / span / head_blocks;
    if (r >= a.rows) {
        return;
    }
    mf_raw<T, N> x[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        int64_t rh = r * a.heads + h0 + k;
        if (h0 + k < a.heads) {
            x[k] = mf_fetch<T, N>(c < a.nope ? (const T *)a.dk + rh * qk + c
                                             : (const T *)a.dv + rh * a.v_dim + c - a.nope);
        }
    }
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        if (h0 + k < a.heads) {
            T *dst = (T *)a.dkv + (r * a.heads + h0 + k) * wide + c;
            *reinterpret_cast<mf_raw<T, N> *>(dst) = x[k];
        }
    }
}

/* dk_rope: a warp's worth of threads strides over the heads of one vector of one row; 8 strands. */
template <typename T, int N> __global__ void mla_rope_sum(mf_kernel_mla_grad a) {
    mf_await();
    extern __shared__ float share[]; /* [8][rope] */
    int64_t qk = a.nope + a.rope, r = blockIdx.x, c = (int64_t)threadIdx.x * N;
    float sum[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        sum[i] = 0.0f;
    }
#pragma unroll 4
    for (int64_t h = threadIdx.y; h < a.heads; h += 8) {
        float x[N];
        mf_load(x, (const T *)a.dk + (r * a.heads + h) * qk + a.nope + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum[i] += x[i];
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        share[threadIdx.y * a.rope + c + i] = sum[i];
    }
    __syncthreads();
    if (threadIdx.y == 0) {
        for (int y = 1; y < 8; y++) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum[i] += share[y * a.rope + c + i];
            }
        }
        mf_store((T *)a.dk_rope + r * a.rope_stride + c, sum);
    }
}

template <typename T, int N>
static mf_status run_pack(const mf_kernel_mla *a, cudaStream_t stream, mf_err *e) {
    int head_blocks = (int)mf_ceil_div(a->heads, HEADS);
    int64_t span = (a->nope + a->rope + (a->v ? a->v_dim : 0)) / N;
    unsigned blocks = (unsigned)mf_ceil_div(a->rows * head_blocks * span, THREADS);
    MF_LAUNCH((mla_pack<T, N>), blocks, THREADS, 0, stream, e, *a, head_blocks);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_split(const mf_kernel_mla_grad *a, cudaStream_t stream, mf_err *e) {
    int head_blocks = (int)mf_ceil_div(a->heads, HEADS);
    int64_t span = (a->nope + a->v_dim) / N, width = a->rope / N;
    unsigned blocks = (unsigned)mf_ceil_div(a->rows * head_blocks * span, THREADS);
    if (width > 128) {
        return mf_err_set(e, MF_INPUT, "mla: %lld rotated columns are too many",
                          (long long)a->rope);
    }
    MF_LAUNCH((mla_split<T, N>), blocks, THREADS, 0, stream, e, *a, head_blocks);
    if (width > 0) {
        size_t share_B = (size_t)(8 * a->rope) * sizeof(float);
        MF_LAUNCH((mla_rope_sum<T, N>), (unsigned)a->rows, dim3((unsigned)width, 8), share_B,
                  stream, e, *a);
    }
    return MF_OK;
}

extern "C" mf_status mf_kernel_mla_pack_cuda(const mf_kernel_mla *a, void *stream, mf_err *e) {
    if (a->rows * a->heads == 0) {
        return MF_OK;
    }
    mf_kernel_dtype d = a->dtype;
    bool fast = mf_vectors(a->kv, d, a->nope, a->v_dim) &&
                mf_vectors(a->k_rope, d, a->rope, a->rope_stride) && mf_aligned(a->k) &&
                mf_aligned(a->v);
    return MF_KERNEL_PICK(run_pack, d, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_mla_unpack_grad_cuda(const mf_kernel_mla_grad *a, void *stream,
                                                    mf_err *e) {
    if (a->rows * a->heads == 0) {
        return MF_OK;
    }
    mf_kernel_dtype d = a->dtype;
    bool fast = mf_vectors(a->dk, d, a->nope, a->v_dim) &&
                mf_vectors(a->dk_rope, d, a->rope, a->rope_stride) && mf_aligned(a->dv) &&
                mf_aligned(a->dkv);
    return MF_KERNEL_PICK(run_split, d, fast, a, (cudaStream_t)stream, e);
}
