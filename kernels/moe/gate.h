/* gate.h - the sigmoid gate of a shared expert (Qwen2-MoE), with the sum that follows fused in.
 *
 *     y[r, :] = sigmoid(gate[r]) * x[r, :] + add[r, :]
 *     dx = sigmoid(gate) * dy,  dgate = sigmoid(gate) * (1 - sigmoid(gate)) * dot(dy, x)
 * The gradient of add is dy itself. The gate itself is a product with one row of weights:
 *
 *     gate[r] = dot(x[r, :], weight)
 *     dx[r, :] = dgate[r] * weight + add[r, :],  dweight += sum over r of dgate[r] * x[r, :]
 *
 * There what `add` is added to has been rounded to dtype before, and the reference sums dweight in
 * float, row after row.
 */
#ifndef MF_KERNELS_GATE_H
#define MF_KERNELS_GATE_H

#include "kernels/kernel.h"

typedef struct mf_kernel_gate {
    mf_kernel_dtype dtype; /* x, add, y */
    int64_t rows, cols;
    const float *gate; /* [rows] logits */
    const void *x;
    const void *add; /* NULL: none */
    void *y;         /* may be x or add */
} mf_kernel_gate;

typedef struct mf_kernel_gate_grad {
    mf_kernel_dtype dtype;
    int64_t rows, cols;
    const float *gate;
    const void *x, *dy;
    void *dx;     /* may be dy or x */
    float *dgate; /* [rows], written */
} mf_kernel_gate_grad;

typedef struct mf_kernel_gate_logit {
    mf_kernel_dtype dtype; /* x, weight */
    int64_t rows, cols;
    const void *x, *weight; /* [rows, cols], [cols] */
    float *gate;            /* [rows] */
} mf_kernel_gate_logit;

typedef struct mf_kernel_gate_input_grad {
    mf_kernel_dtype dtype; /* x, weight, add, dx */
    int64_t rows, cols;
    const float *dgate; /* [rows] */
    const void *x, *weight;
    const void *add; /* NULL: none; may be dx */
    void *dx;
    float *dweight;  /* [cols], added to in an order that is fixed */
    void *workspace; /* CUDA: mf_kernel_gate_workspace_B bytes; the reference takes NULL */
} mf_kernel_gate_input_grad;

#define MF_GATE_TEAMS 512 /* rows of partial sums that the workspace holds */

MF_KERNEL_C_BEGIN
size_t mf_kernel_gate_workspace_B(int64_t cols);

mf_status mf_kernel_gate_logits(const mf_kernel_gate_logit *a, mf_err *e);
mf_status mf_kernel_gate_input_backward(const mf_kernel_gate_input_grad *a, mf_err *e);
mf_status mf_kernel_gate_logits_cuda(const mf_kernel_gate_logit *a, void *stream, mf_err *e);
mf_status mf_kernel_gate_input_backward_cuda(const mf_kernel_gate_input_grad *a, void *stream,
                                             mf_err *e);

mf_status mf_kernel_gate_forward(const mf_kernel_gate *a, mf_err *e);
mf_status mf_kernel_gate_backward(const mf_kernel_gate_grad *a, mf_err *e);
mf_status mf_kernel_gate_forward_cuda(const mf_kernel_gate *a, void *stream, mf_err *e);
mf_status mf_kernel_gate_backward_cuda(const mf_kernel_gate_grad *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
