/* rmsnorm.h - root-mean-square norm, over a row (hidden) or over groups of a row (QK-norm, the
 * latent norms of MLA), with the residual addition in front fused in.
 *
 *     s = x + add (rounded to dtype; s = x without add)
 *     y = s * rstd * weight,  rstd = 1 / sqrt(mean(s^2) + eps)        (Zhang & Sennrich 2019)
 *     dx = rstd * (g - s * rstd^2 * mean(g * s)) + dx_add,  g = dy * weight
 *     dweight += sum over rows and groups of dy * s * rstd
 *
 * A row holds `groups` groups of `cols` elements side by side; each group is normalised by itself
 * with the same weight[cols]. Strides let x be a slice of a wider row (q inside qkv).
 */
#ifndef MF_KERNELS_RMSNORM_H
#define MF_KERNELS_RMSNORM_H

#include "kernels/kernel.h"

typedef struct mf_kernel_rmsnorm {
    mf_kernel_dtype dtype; /* x, add, sum, weight, y */
    int64_t rows, groups, cols;
    int64_t x_stride; /* elements between rows of x, add, sum */
    int64_t y_stride;
    float eps;
    const void *x;
    const void *add;    /* NULL: none */
    void *sum;          /* s; NULL without add; may be x or add */
    const void *weight; /* [cols]; NULL: 1 */
    void *y;            /* may be x when nothing needs x afterwards and there is no sum */
    float *rstd;        /* [rows * groups]; NULL: not wanted */
    bool plus_one;      /* 1 + weight in its place */
} mf_kernel_rmsnorm;

typedef struct mf_kernel_rmsnorm_grad {
    mf_kernel_dtype dtype;
    int64_t rows, groups, cols;
    int64_t x_stride;   /* x, dx, dx_add */
    int64_t y_stride;   /* dy */
    const void *x;      /* s of the forward pass */
    const void *weight; /* NULL: 1, and dweight is not wanted */
    const float *rstd;
    const void *dy;
    const void *dx_add; /* gradient that reaches s by another way; NULL: none */
    void *dx;           /* may be dy (with equal strides) or dx_add */
    float *dweight;     /* [cols], added to; NULL: not wanted */
    void *workspace;    /* CUDA: mf_kernel_rmsnorm_workspace_B bytes; the reference takes NULL */
    bool plus_one;
} mf_kernel_rmsnorm_grad;

MF_KERNEL_C_BEGIN
size_t mf_kernel_rmsnorm_workspace_B(int64_t cols);

mf_status mf_kernel_rmsnorm_forward(const mf_kernel_rmsnorm *a, mf_err *e);
mf_status mf_kernel_rmsnorm_backward(const mf_kernel_rmsnorm_grad *a, mf_err *e);
mf_status mf_kernel_rmsnorm_forward_cuda(const mf_kernel_rmsnorm *a, void *stream, mf_err *e);
mf_status mf_kernel_rmsnorm_backward_cuda(const mf_kernel_rmsnorm_grad *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
