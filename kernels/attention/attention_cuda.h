/* attention_cuda.h - scaled dot-product attention on a GPU through cuDNN's graph interface: what
 * kernels/attention/attention.h defines, in BF16, for `batch` sequences, of equal length or packed
 * one behind the other: causal or full, sliding window, grouped query heads, values of another
 * width than keys (MLA), learned sinks; forward with log-sum-exp, and backward.
 *
 *     q [batch, seq_q, heads, qk_dim]; k [batch, seq_k, kv_heads, qk_dim]; v ditto of v_dim;
 *     o [batch, seq_q, heads, v_dim], each with strides of its own (the last is 1); gradients lie
 * as their values do; lse [batch, heads, seq_q] float. Causal with seq_q < seq_k: the queries are
 *     the last seq_q positions.
 *
 * Packed sequences: seq_q = seq_k is the longest that the plan takes; row r of sequence i lies
 * behind the rows of those before it, whose number is cu[i]: q [cu[batch], heads, qk_dim] and so
 * on, strides of batches unused. Only lse keeps its place: [batch, heads, seq_q], rows past a
 * sequence's end unspecified.
 *
 * A plan is compiled for one shape (tenths of a second, once) and enqueued with pointers. The
 * handle of the library is bound to the GPU that is current when it is opened; handle and plans
 * belong to one thread at a time.
 */
#ifndef MF_KERNELS_ATTENTION_CUDA_H
#define MF_KERNELS_ATTENTION_CUDA_H

#include "kernels/kernel.h"

typedef struct mf_attention_strides {
    int64_t batch, row, head; /* elements */
} mf_attention_strides;

typedef struct mf_attention_cuda_shape {
    int64_t batch, heads, kv_heads, seq_q, seq_k, qk_dim, v_dim;
    mf_attention_strides q, k, v, o;
    float scale;
    bool causal;
    int64_t
        window; /* 0: unlimited; a query sees the last `window` keys up to its own; causal only */
    bool sink;
    bool backward; /* the plan computes gradients */
    bool packed;
    bool
        general; /* cuDNN, also where there is a kernel of our own (kernels/attention/mla_grad.h) */
    bool fixed;  /* only engines that add in one order; MF_INPUT where there is none. Gradients then
                    keep score gradients in the workspace, 2 x batch x heads x seq_q x seq_k bytes */
    int64_t pieces; /* backward: so many runs, each of as many heads and key heads, one behind the
                       other in one workspace; divides kv_heads, but where the kernel is our own.
                       0 means 1; not of packed sequences */
} mf_attention_cuda_shape;

/* Device pointers, 16-byte aligned. */
typedef struct mf_attention_cuda_data {
    const void *q, *k, *v;
    const float *sink; /* [heads] */
    void *o;           /* forward: written; backward: read */
    float *lse;        /* forward: written; backward: read */
    const void *d_o;
    void *dq, *dk, *dv;     /* written */
    float *dsink;           /* [heads], written */
    void *workspace;        /* mf_attention_cuda_workspace_B bytes */
    const int32_t *packing; /* of packed sequences, from mf_attention_packing_cuda */
} mf_attention_cuda_data;

typedef struct mf_attention_cuda mf_attention_cuda;

MF_KERNEL_C_BEGIN
mf_status mf_attention_cuda_library_open(void **library, mf_err *e);
void mf_attention_cuda_library_close(void *library);
/* "9.19.0" of the cuDNN that runs. */
void mf_attention_cuda_version(char *text, size_t size);

/* Strides of tightly packed [batch, seq, heads, width]. */
mf_attention_strides mf_attention_packed(int64_t seq, int64_t heads, int64_t width);

/* Bytes of a packing, and the packing itself from cu [batch + 1] on the device: the length of every
 * sequence and its first element in q, k, v and o. Enqueues. */
size_t mf_attention_packing_B(int64_t batch);
mf_status mf_attention_packing_cuda(const mf_attention_cuda_shape *shape, const int32_t *cu,
                                    int32_t *packing, void *stream, mf_err *e);

/* Errors: MF_INPUT (cuDNN has no kernel for the shape, in its words), MF_LIBRARY, MF_NOMEM. */
mf_status mf_attention_cuda_create(void *library, const mf_attention_cuda_shape *shape,
                                   mf_attention_cuda **out, mf_err *e);
void mf_attention_cuda_destroy(mf_attention_cuda *plan);
size_t mf_attention_cuda_workspace_B(const mf_attention_cuda *plan);

/* Enqueues; never synchronises; can be captured. MF_LIBRARY. */
mf_status mf_attention_cuda_run(mf_attention_cuda *plan, const mf_attention_cuda_data *data,
                                void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
