/* layernorm.h - LayerNorm with weight and bias (Ba et al. 2016), of whole rows.
 *
 *     y = (x - mean(x)) * rstd * weight + bias,  rstd = 1 / sqrt(mean((x - mean(x))^2) + eps)
 *     n = (x - mean(x)) * rstd,  g = dy * weight
 *     dx = rstd * (g - mean(g) - n * mean(g * n)) + dx_add
 *     dweight += sum over rows of dy * n,  dbias += sum over rows of dy
 */
#ifndef MF_KERNELS_LAYERNORM_H
#define MF_KERNELS_LAYERNORM_H

#include "kernels/kernel.h"

typedef struct mf_kernel_layernorm {
    mf_kernel_dtype dtype; /* x, weight, y */
    int64_t rows, cols;
    float eps;
    const void *x;
    const void *weight; /* [2 * cols]: weights, then biases */
    void *y;            /* not x */
    float *rstd;        /* [rows]; NULL: not wanted */
} mf_kernel_layernorm;

typedef struct mf_kernel_layernorm_grad {
    mf_kernel_dtype dtype; /* x, weight, dy, dx */
    int64_t rows, cols;
    const void *x;
    const void *weight;
    const float *rstd;
    const void *dy;
    const void *dx_add; /* gradient that reaches x by another way; NULL: none */
    void *dx;           /* not dy, not x; may be dx_add */
    float *dweight;     /* [2 * cols], added to */
    void *workspace;    /* CUDA: mf_kernel_layernorm_workspace_B bytes; the reference takes NULL */
} mf_kernel_layernorm_grad;

MF_KERNEL_C_BEGIN
size_t mf_kernel_layernorm_workspace_B(int64_t cols);

mf_status mf_kernel_layernorm_forward(const mf_kernel_layernorm *a, mf_err *e);
mf_status mf_kernel_layernorm_backward(const mf_kernel_layernorm_grad *a, mf_err *e);
mf_status mf_kernel_layernorm_forward_cuda(const mf_kernel_layernorm *a, void *stream, mf_err *e);
mf_status mf_kernel_layernorm_backward_cuda(const mf_kernel_layernorm_grad *a, void *stream,
                                            mf_err *e);
MF_KERNEL_C_END
#endif
