/* qk_rope.h - a fused projection's rows taken apart into q, k and v, each head of q and k normed
 * and then turned by its position, and the gradient's way back: what rmsnorm.h (over heads) and
 * rope_split.h do one after the other, in one pass over the bytes.
 *
 *     n = x * rstd * weight,  rstd = 1 / sqrt(mean over the head of x^2 + eps);  q, k = turn(n)
 *     g = turn back(dq, dk);  dx = rstd * (g * weight - x * rstd^2 * mean(g * weight * x)) + add
 *     dweight += sum over rows and heads of g * x * rstd
 *
 * Shapes as in rope_split.h. Norm and turn are computed in float and rounded once, at the end: n
 * and g are not rounded to dtype as they are where the two ops run apart. What `add` is added to
 * has been rounded to dtype before.
 */
#ifndef MF_KERNELS_QK_ROPE_H
#define MF_KERNELS_QK_ROPE_H

#include "kernels/attention/rope_split.h"

typedef struct mf_kernel_qk_rope {
    mf_kernel_rope_shape shape;
    float eps;
    const void *weight_q, *weight_k; /* [head_dim] */
    const void *joined;
    void *q, *k, *v; /* each may be NULL: not wanted */
    float *rstd; /* [rows, heads], then [rows, kv_heads]: of q and k if they are wanted; NULL: not
                    wanted */
} mf_kernel_qk_rope;

typedef struct mf_kernel_qk_rope_grad {
    mf_kernel_rope_shape shape;
    const void *weight_q, *weight_k;
    const void *joined; /* of the forward pass */
    const float *rstd;
    const void *dq, *dk, *dv;
    const void *add; /* shape and stride of djoined; NULL: none; may be djoined */
    void *djoined;   /* stride of joined */
    float
        *dweight; /* [2, head_dim]: of weight_q and weight_k, added to in an order that is fixed */
    void *workspace; /* CUDA: mf_kernel_qk_rope_workspace_B bytes; the reference takes NULL */
} mf_kernel_qk_rope_grad;

#define MF_QK_ROPE_BLOCKS 264 /* rows of partial sums of each weight that the workspace holds */

MF_KERNEL_C_BEGIN
size_t mf_kernel_qk_rope_workspace_B(int64_t head_dim);

mf_status mf_kernel_qk_rope_forward(const mf_kernel_qk_rope *a, mf_err *e);
mf_status mf_kernel_qk_rope_backward(const mf_kernel_qk_rope_grad *a, mf_err *e);
mf_status mf_kernel_qk_rope_forward_cuda(const mf_kernel_qk_rope *a, void *stream, mf_err *e);
mf_status mf_kernel_qk_rope_backward_cuda(const mf_kernel_qk_rope_grad *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
