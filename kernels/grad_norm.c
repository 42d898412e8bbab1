/* grad_norm.c - reference of the global gradient norm. */
#include "kernels/grad_norm.h"

#include <math.h>

mf_status mf_kernel_grad_norm_add(const mf_kernel_grad_norm *a, mf_err *e) {
    (void)e;
    double total = 0.0;
    for (int64_t t = 0; t < a->tensors; t++) {
        const mf_kernel_grad_tensor *x = &a->tensor[t];
        for (int64_t i = 0; i < x->count; i++) {
            total += (double)x->grad[i] * (double)x->grad[i];
        }
    }
    *a->sum_sq += total;
    return MF_OK;
}

mf_status mf_kernel_grad_clip_factor(const mf_kernel_grad_clip *a, mf_err *e) {
    (void)e;
    double norm = sqrt(*a->sum_sq) * (double)a->grad_scale;
    double clip = a->max_norm > 0.0f ? (double)a->max_norm / (norm + 1e-6) : 1.0;
    *a->norm = (float)norm;
    *a->clip = clip < 1.0 ? (float)clip : 1.0f;
    return MF_OK;
}
