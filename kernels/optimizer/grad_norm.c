/* grad_norm.c - reference of the global gradient norm. */
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/update_terms.h"

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
    mf_update_clip(*a->sum_sq, a->grad_scale, a->max_norm, a->norm, a->clip);
    return MF_OK;
}
