/* adamw.c - reference of the optimizer, and the division of tensors into stretches. */
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/update_terms.h"

#include <assert.h>
#include <math.h>

int64_t mf_kernel_chunks(const int64_t *counts, int64_t tensors, mf_kernel_chunk *out) {
    int64_t n = 0;
    for (int64_t t = 0; t < tensors; t++) {
        for (int64_t begin = 0; begin < counts[t]; begin += MF_KERNEL_CHUNK, n++) {
            int64_t left = counts[t] - begin;
            if (out) {
                out[n].tensor = (int32_t)t;
                out[n].count = (int32_t)(left < MF_KERNEL_CHUNK ? left : MF_KERNEL_CHUNK);
                out[n].begin = begin;
            }
        }
    }
    return n;
}

mf_status mf_kernel_adamw_update(const mf_kernel_adamw *a, mf_err *e) {
    (void)e;
    const mf_kernel_update_state *s = a->state;
    if (s && s->skip) {
        return MF_OK;
    }
    int64_t step = s ? s->step : a->step;
    assert(step >= 1);
    float lr = s ? s->lr : a->lr, clip = s ? s->clip : a->clip ? *a->clip : 1.0f;
    float scale = a->grad_scale * clip, step_size = mf_update_rate(lr, a->beta1, step);
    float root = (float)sqrt(mf_update_lack(a->beta2, step));
    for (int64_t t = 0; t < a->tensors; t++) {
        const mf_kernel_adamw_tensor *x = &a->tensor[t];
        float keep = (float)(1.0 - (double)lr * (double)x->decay);
        for (int64_t i = 0; i < x->count; i++) {
            float g = x->grad[i] * scale;
            float m = mf_kernel_get(x->m, a->moments, i), v = mf_kernel_get(x->v, a->moments, i);
            m = m + (1.0f - a->beta1) * (g - m);
            v = a->beta2 * v + (1.0f - a->beta2) * g * g;
            float p = x->master[i] * keep - step_size * (m / (sqrtf(v) / root + a->eps));
            mf_kernel_put(x->m, a->moments, i, m);
            mf_kernel_put(x->v, a->moments, i, v);
            x->master[i] = p;
            if (x->param) {
                x->param[i] = mf_kernel_bf16_round(p);
            }
        }
    }
    return MF_OK;
}
