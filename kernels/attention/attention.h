/* attention.h - scaled dot-product attention, plain C reference (on GPUs cuDNN does this).
 *
 *     s = scale * q k^T where the key may be seen, else -inf;  p = softmax(s);  o = p v
 *     lse = log sum exp s (with a sink: log (exp(sink[h]) + sum exp s); the sink takes part in the
 *           softmax and adds nothing to o)
 *     backward: delta = rowsum(do * o);  dv = p^T do;  ds = p * (do v^T - delta);
 *               dq = scale * ds k;  dk = scale * ds^T q;  dsink[h] -= sum exp(sink - lse) * delta
 * A key is seen when q and k belong to the same sequence, k_pos <= q_pos (causal), and
 * q_pos - k_pos < window (window > 0), or, chunked, both lie in one chunk of `window` positions.
 * Sequences are runs of rows: sequence i has q rows
 * cu_q[i] .. cu_q[i+1]-1 and k rows cu_k[i] .. cu_k[i+1]-1. Positions count from the start of the
 * sequence; NULL means that the rows hold positions 0, 1, 2, ... (context parallelism passes its
 * zig-zag positions). Query head h reads k/v head h / (heads / kv_heads). The v head width may
 * differ from that of q and k (MLA). A row that sees no key gets o = 0, lse = -inf.
 *
 * Ring context parallelism: run forward on each block of keys, and merge the partial results with
 * kernels/attention/attention_merge.h; run backward on each block with the final o and lse.
 *
 * bf16: s and its softmax stay float; p is rounded to bf16 before p v and p^T do, ds before its two
 * products; o is divided by the unrounded sum and rounded once.
 */
#ifndef MF_KERNELS_ATTENTION_H
#define MF_KERNELS_ATTENTION_H

#include "kernels/kernel.h"

/* Rows and strides that both passes share. x_row: elements between rows, x_head: between heads. */
typedef struct mf_kernel_attention_shape {
    mf_kernel_dtype dtype;
    int64_t sequences;
    const int32_t *cu_q, *cu_k; /* [sequences + 1] */
    const int32_t *q_pos, *k_pos;
    int64_t heads, kv_heads;
    int64_t qk_dim, v_dim;
    bool causal;
    int64_t window; /* 0: unlimited */
    bool chunked;
    float scale;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head, o_row, o_head;
    const float *sink; /* [heads]; NULL: none */
} mf_kernel_attention_shape;

typedef struct mf_kernel_attention {
    mf_kernel_attention_shape shape;
    const void *q, *k, *v;
    mf_kernel_dtype o_dtype; /* float for partial results that are merged */
    void *o;
    float *lse; /* [heads, q rows] (q rows = cu_q[sequences]); NULL: not wanted */
} mf_kernel_attention;

typedef struct mf_kernel_attention_grad {
    mf_kernel_attention_shape shape; /* gradients have the strides of their values */
    const void *q, *k, *v, *o;
    const void *d_o;
    const float *lse;
    mf_kernel_dtype grad_dtype; /* of dq, dk, dv */
    bool accumulate;            /* add to dq, dk, dv (ring steps; float) instead of writing */
    void *dq, *dk, *dv;
    float *dsink;    /* [heads], added to; NULL: not wanted */
    void *workspace; /* mf_kernel_attention_workspace_B bytes */
} mf_kernel_attention_grad;

MF_KERNEL_C_BEGIN
/* Scratch of the backward pass: float sums of dk and dv for one key head of one sequence. */
size_t mf_kernel_attention_workspace_B(int64_t k_rows_max, int64_t qk_dim, int64_t v_dim);

mf_status mf_kernel_attention_forward(const mf_kernel_attention *a, mf_err *e);
mf_status mf_kernel_attention_backward(const mf_kernel_attention_grad *a, mf_err *e);
MF_KERNEL_C_END
#endif
