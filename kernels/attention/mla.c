/* mla.c - reference of the packing for multi-head latent attention. */
#include "kernels/attention/mla.h"

mf_status mf_kernel_mla_pack(const mf_kernel_mla *a, mf_err *e) {
    (void)e;
    mf_kernel_dtype d = a->dtype;
    int64_t qk = a->nope + a->rope, wide = a->nope + a->v_dim;
    for (int64_t rh = 0; rh < a->rows * a->heads; rh++) {
        int64_t r = rh / a->heads;
        for (int64_t c = 0; c < a->nope; c++) {
            mf_kernel_put(a->k, d, rh * qk + c, mf_kernel_get(a->kv, d, rh * wide + c));
        }
        for (int64_t c = 0; c < a->rope; c++) {
            mf_kernel_put(a->k, d, rh * qk + a->nope + c,
                          mf_kernel_get(a->k_rope, d, r * a->rope_stride + c));
        }
        for (int64_t c = 0; a->v && c < a->v_dim; c++) {
            mf_kernel_put(a->v, d, rh * a->v_dim + c,
                          mf_kernel_get(a->kv, d, rh * wide + a->nope + c));
        }
    }
    return MF_OK;
}

mf_status mf_kernel_mla_unpack_grad(const mf_kernel_mla_grad *a, mf_err *e) {
    (void)e;
    mf_kernel_dtype d = a->dtype;
    int64_t qk = a->nope + a->rope, wide = a->nope + a->v_dim;
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t rh = r * a->heads + h;
            for (int64_t c = 0; c < a->nope; c++) {
                mf_kernel_put(a->dkv, d, rh * wide + c, mf_kernel_get(a->dk, d, rh * qk + c));
            }
            for (int64_t c = 0; c < a->v_dim; c++) {
                mf_kernel_put(a->dkv, d, rh * wide + a->nope + c,
                              mf_kernel_get(a->dv, d, rh * a->v_dim + c));
            }
        }
        for (int64_t c = 0; c < a->rope; c++) {
            float sum = 0.0f;
            for (int64_t h = 0; h < a->heads; h++) {
                sum += mf_kernel_get(a->dk, d, (r * a->heads + h) * qk + a->nope + c);
            }
            mf_kernel_put(a->dk_rope, d, r * a->rope_stride + c, sum);
        }
    }
    return MF_OK;
}
