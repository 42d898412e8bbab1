/* gate.h - the sigmoid gate of a shared expert (Qwen2-MoE), with the sum that follows fused in.
 *
 *     y[r, :] = sigmoid(gate[r]) * x[r, :] + add[r, :]
 *     dx = sigmoid(gate) * dy,  dgate = sigmoid(gate) * (1 - sigmoid(gate)) * dot(dy, x)
 * The gradient of add is dy itself.
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

MF_KERNEL_C_BEGIN
mf_status mf_kernel_gate_forward(const mf_kernel_gate *a, mf_err *e);
mf_status mf_kernel_gate_backward(const mf_kernel_gate_grad *a, mf_err *e);
mf_status mf_kernel_gate_forward_cuda(const mf_kernel_gate *a, void *stream, mf_err *e);
mf_status mf_kernel_gate_backward_cuda(const mf_kernel_gate_grad *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
