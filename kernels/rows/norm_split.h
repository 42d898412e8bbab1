/* norm_split.h - RMSNorm over rows whose columns are spread over ranks (OLMoE's norm over the whole
 * q or k projection, split by tensor parallelism). Four steps, a sum over ranks after the first of
 * each pass:
 *     square:   sum[r] = share * sum over own columns of x^2
 *     forward:  rstd[r] = 1 / sqrt(sum[r] / total + eps);  y = x * rstd * weight
 *     dot:      sum[r] = share * sum over own columns of dy * weight * x
 *     backward: dx = rstd * (dy * weight - x * rstd^2 * sum[r] / total);  dweight += dy * x * rstd
 * `share` counts columns once that several ranks hold (1 / copies: replicated K heads, of whose dy
 * each rank has a part).
 */
#ifndef MF_KERNELS_NORM_SPLIT_H
#define MF_KERNELS_NORM_SPLIT_H

#include "kernels/kernel.h"

typedef struct mf_kernel_norm_split {
    mf_kernel_dtype dtype; /* x, weight, y, dy, dx */
    int64_t rows, cols;    /* own columns */
    int64_t total;         /* columns over all ranks */
    int64_t x_stride, y_stride;
    float eps, share;
    const void *x;      /* dx has its strides */
    const void *weight; /* [cols] */
    float *sum;         /* [rows] written by square and dot, read by forward and backward */
    void *y;            /* forward */
    float *rstd;        /* [rows] written by forward, read by backward */
    const void *dy;     /* strides of y */
    void *dx;
    float *dweight;  /* [cols], added to */
    void *workspace; /* CUDA's backward: mf_kernel_norm_split_workspace_B bytes */
} mf_kernel_norm_split;

#define MF_NORM_SPLIT_TEAMS 1024 /* rows of partial sums that the workspace holds */

MF_KERNEL_C_BEGIN
size_t mf_kernel_norm_split_workspace_B(int64_t cols);

mf_status mf_kernel_norm_split_square(const mf_kernel_norm_split *a, mf_err *e);
mf_status mf_kernel_norm_split_forward(const mf_kernel_norm_split *a, mf_err *e);
mf_status mf_kernel_norm_split_dot(const mf_kernel_norm_split *a, mf_err *e);
mf_status mf_kernel_norm_split_backward(const mf_kernel_norm_split *a, mf_err *e);

mf_status mf_kernel_norm_split_square_cuda(const mf_kernel_norm_split *a, void *stream, mf_err *e);
mf_status mf_kernel_norm_split_forward_cuda(const mf_kernel_norm_split *a, void *stream, mf_err *e);
mf_status mf_kernel_norm_split_dot_cuda(const mf_kernel_norm_split *a, void *stream, mf_err *e);
mf_status mf_kernel_norm_split_backward_cuda(const mf_kernel_norm_split *a, void *stream,
                                             mf_err *e);
MF_KERNEL_C_END
#endif
