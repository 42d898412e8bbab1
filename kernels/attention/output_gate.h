/* output_gate.h - a sigmoid on the output of attention, one number for each run of `width` columns:
 * a head (Step-3.5), or a single column (Qwen3-Next).
 *
 *     y[r, c] = sigmoid(gate[r, c / width]) x[r, c]
 *     dx = sigmoid(gate) dy,  dgate = sigmoid(gate) (1 - sigmoid(gate)) times the sum of dy x over
 *     its columns
 */
#ifndef MF_KERNELS_OUTPUT_GATE_H
#define MF_KERNELS_OUTPUT_GATE_H

#include "kernels/kernel.h"

typedef struct mf_kernel_output_gate {
    mf_kernel_dtype dtype; /* gate, x, y */
    int64_t rows, cols, width;
    const void *gate; /* [rows, cols / width] */
    const void *x;
    void *y; /* may be x */
} mf_kernel_output_gate;

typedef struct mf_kernel_output_gate_grad {
    mf_kernel_dtype dtype;
    int64_t rows, cols, width;
    const void *gate, *x, *dy;
    void *dx;    /* may be dy */
    void *dgate; /* [rows, cols / width], written */
} mf_kernel_output_gate_grad;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_output_gate_forward(const mf_kernel_output_gate *a, mf_err *e);
mf_status mf_kernel_output_gate_backward(const mf_kernel_output_gate_grad *a, mf_err *e);
mf_status mf_kernel_output_gate_forward_cuda(const mf_kernel_output_gate *a, void *stream,
                                             mf_err *e);
mf_status mf_kernel_output_gate_backward_cuda(const mf_kernel_output_gate_grad *a, void *stream,
                                              mf_err *e);
MF_KERNEL_C_END
#endif
