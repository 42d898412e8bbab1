/* swiglu.h - the gated activation between FC1 and FC2, with the router probability folded in.
 *
 * gate_up holds a row's gate (first cols) and up (last cols) values; h = gate_up + bias[group].
 *     MF_SWIGLU_SILU:     y = silu(h_gate) * h_up * prob                        (Shazeer 2020)
 *     MF_SWIGLU_CLAMPED:  g = min(h_gate, limit), u = clamp(h_up, -limit, limit)  (GPT-OSS)
 *                         y = g * sigmoid(alpha * g) * (u + 1) * prob
 * prob_in (Llama 4, whose probabilities multiply what experts read; SILU without bias):
 *     y = silu(prob h_gate) * prob h_up
 * Otherwise scaling here instead of after FC2 is exact (FC2 is linear) and lets the probability's
 * gradient come out of data that is at hand: dprob[row] = sum over cols of dy * y / prob. GPT-OSS
 * checkpoints interleave gate and up: the importer separates them.
 */
#ifndef MF_KERNELS_SWIGLU_H
#define MF_KERNELS_SWIGLU_H

#include "kernels/kernel.h"

typedef enum mf_swiglu_kind { MF_SWIGLU_SILU, MF_SWIGLU_CLAMPED } mf_swiglu_kind;

/* What both passes share. */
typedef struct mf_kernel_swiglu_shape {
    mf_kernel_dtype dtype; /* gate_up, bias, y and their gradients */
    mf_swiglu_kind kind;
    float alpha, limit; /* CLAMPED only: 1.702, 7.0 in GPT-OSS */
    int64_t rows, cols;
    const int32_t *rows_dev; /* see kernel.h */
    const float *prob;       /* [rows]; NULL: 1 */
    const void *bias;        /* [groups, 2 * cols]; NULL: none */
    const int32_t *offsets;  /* [groups + 1] rows where the groups begin; read with bias only */
    int64_t groups;
    bool prob_in;
} mf_kernel_swiglu_shape;

typedef struct mf_kernel_swiglu {
    mf_kernel_swiglu_shape shape;
    const void *gate_up; /* [rows, 2 * cols] */
    void *y;             /* [rows, cols] */
} mf_kernel_swiglu;

typedef struct mf_kernel_swiglu_grad {
    mf_kernel_swiglu_shape shape;
    const void *gate_up; /* of the forward pass, without bias */
    const void *dy;      /* [rows, cols] */
    void *dgate_up;      /* [rows, 2 * cols]; may be gate_up */
    float *dprob;        /* [rows], written; NULL: not wanted */
} mf_kernel_swiglu_grad;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_swiglu_forward(const mf_kernel_swiglu *a, mf_err *e);
mf_status mf_kernel_swiglu_backward(const mf_kernel_swiglu_grad *a, mf_err *e);
mf_status mf_kernel_swiglu_forward_cuda(const mf_kernel_swiglu *a, void *stream, mf_err *e);
mf_status mf_kernel_swiglu_backward_cuda(const mf_kernel_swiglu_grad *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
