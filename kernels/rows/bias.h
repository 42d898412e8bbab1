/* bias.h - bias rows added to the output of a (grouped) linear map, and their gradients.
 *
 *     x[r, :] += scale[r] * bias[group of r, :]      (in place, rounded once)
 *     dbias[group, :] += sum over its rows of scale[r] * dy[r, :]
 *     dscale[r] += dot(dy[r, :], bias[group of r, :])
 * groups = 1 without offsets is a plain bias (QKV); with offsets it is the bias of the experts.
 * scale is the router probability where that was folded in before the linear map.
 */
#ifndef MF_KERNELS_BIAS_H
#define MF_KERNELS_BIAS_H

#include "kernels/kernel.h"

typedef struct mf_kernel_bias {
    mf_kernel_dtype dtype; /* x, bias */
    int64_t rows, cols, stride;
    const int32_t *rows_dev;
    int64_t groups;
    const int32_t *offsets; /* [groups + 1]; NULL: one group of all rows */
    const float *scale;     /* [rows]; NULL: 1 */
    const void *bias;       /* [groups, cols] */
    void *x;
} mf_kernel_bias;

typedef struct mf_kernel_bias_grad {
    mf_kernel_dtype dtype; /* dy, bias */
    int64_t rows, cols, stride;
    const int32_t *rows_dev;
    int64_t groups;
    const int32_t *offsets;
    const float *scale;
    const void *bias; /* read for dscale only */
    const void *dy;
    float *dbias;    /* [groups, cols], added to; NULL: not wanted */
    float *dscale;   /* [rows], added to; NULL: not wanted */
    void *workspace; /* CUDA: mf_kernel_bias_workspace_B bytes; the reference takes NULL */
} mf_kernel_bias_grad;

MF_KERNEL_C_BEGIN
size_t mf_kernel_bias_workspace_B(int64_t groups, int64_t cols);

mf_status mf_kernel_bias_add(const mf_kernel_bias *a, mf_err *e);
mf_status mf_kernel_bias_backward(const mf_kernel_bias_grad *a, mf_err *e);
mf_status mf_kernel_bias_add_cuda(const mf_kernel_bias *a, void *stream, mf_err *e);
mf_status mf_kernel_bias_backward_cuda(const mf_kernel_bias_grad *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
