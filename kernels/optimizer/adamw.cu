/* adamw.cu - CUDA kernel of the optimizer: a block a stretch of a tensor, four elements a thread
 * and turn, all loads of two turns in flight.
 */
#include "kernels/device/cuda_common.cuh"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/update_terms.h"

#define THREADS 256

/* What does not change inside a launch: given by value, or else by the state. */
typedef struct step_terms {
    float lr, step_size, inverse_root;
} step_terms;

template <typename M> __device__ inline void load4(float (&out)[4], const M *p);
template <> __device__ inline void load4(float (&out)[4], const float *p) {
    mf_load(out, p);
}
template <> __device__ inline void load4(float (&out)[4], const mf_bf16 *p) {
    uint2 w = *reinterpret_cast<const uint2 *>(p);
    out[0] = __uint_as_float(w.x << 16);
    out[1] = __uint_as_float(w.x & 0xffff0000u);
    out[2] = __uint_as_float(w.y << 16);
    out[3] = __uint_as_float(w.y & 0xffff0000u);
}

__device__ inline void update(const mf_kernel_adamw &a, const step_terms &k, float keep, float g,
                              float &p, float &m, float &v) {
    m = m + (1.0f - a.beta1) * (g - m);
    v = a.beta2 * v + (1.0f - a.beta2) * g * g;
    p = p * keep - k.step_size * (m / (sqrtf(v) * k.inverse_root + a.eps));
}

template <typename M> __global__ void adamw(mf_kernel_adamw a, step_terms k) {
    mf_await();
    float clip = 1.0f;
    if (a.state) {
        if (a.state->skip) {
            return;
        }
        k = {a.state->lr, a.state->rate, a.state->root};
        clip = a.state->clip;
    } else if (a.clip) {
        clip = *a.clip;
    }
    mf_kernel_chunk chunk = a.chunk[blockIdx.x];
    mf_kernel_adamw_tensor t = a.tensor[chunk.tensor];
    float scale = a.grad_scale * clip, keep = 1.0f - k.lr * t.decay;
    const float *grad = t.grad + chunk.begin;
    float *master = t.master + chunk.begin;
    M *m = (M *)t.m + chunk.begin, *v = (M *)t.v + chunk.begin;
    mf_bf16 *param = t.param ? (mf_bf16 *)t.param + chunk.begin : nullptr;
    bool fast =
        (((uintptr_t)grad | (uintptr_t)master | (uintptr_t)m | (uintptr_t)v | (uintptr_t)param) &
         15) == 0;
    int whole = fast ? chunk.count / 4 * 4 : 0;
#pragma unroll 2
    for (int i = (int)threadIdx.x * 4; i < whole; i += THREADS * 4) {
        float xg[4], xp[4], xm[4], xv[4];
        mf_load(xg, grad + i);
        mf_load(xp, master + i);
        load4<M>(xm, m + i);
        load4<M>(xv, v + i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            update(a, k, keep, xg[j] * scale, xp[j], xm[j], xv[j]);
        }
        mf_store(master + i, xp);
        mf_store(m + i, xm);
        mf_store(v + i, xv);
        if (param) {
            mf_store(param + i, xp);
        }
    }
    for (int i = whole + (int)threadIdx.x; i < chunk.count; i += THREADS) {
        float xp[1], xm[1], xv[1];
        mf_load(xp, master + i);
        mf_load(xm, m + i);
        mf_load(xv, v + i);
        update(a, k, keep, grad[i] * scale, xp[0], xm[0], xv[0]);
        mf_store(master + i, xp);
        mf_store(m + i, xm);
        mf_store(v + i, xv);
        if (param) {
            mf_store(param + i, xp);
        }
    }
}

extern "C" mf_status mf_kernel_adamw_update_cuda(const mf_kernel_adamw *a, void *stream,
                                                 mf_err *e) {
    if (a->chunks == 0) {
        return MF_OK;
    }
    step_terms k = {};
    if (!a->state) {
        k = {a->lr, mf_update_rate(a->lr, a->beta1, a->step), mf_update_root(a->beta2, a->step)};
    }
    if (a->moments == MF_KERNEL_BF16) {
        MF_LAUNCH((adamw<mf_bf16>), (unsigned)a->chunks, THREADS, 0, (cudaStream_t)stream, e, *a,
                  k);
    } else {
        MF_LAUNCH((adamw<float>), (unsigned)a->chunks, THREADS, 0, (cudaStream_t)stream, e, *a, k);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
