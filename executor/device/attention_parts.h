/* attention_parts.h - attention over context-parallel ranks through a library that knows blocks of
 * consecutive queries against blocks of consecutive keys, causal or full.
 *
 * A rank's rows of a sequence are chunks c and 2 CP - 1 - c of its positions, in this order, so
 * that among them a later row has a later position. Of the keys of an earlier rank the first half
 * has positions before all queries, the second half after all of them. The keys of a later rank are
 * all before the second half of the queries and after the first half. Keys of all ranks, in order
 * of position: each half of the queries sees those up to its own end. Attention inside chunks
 * (Llama 4) divides such a block further: queries of one chunk see the keys of their chunk.
 *
 * Everything is enqueued through the device's table; the same on a GPU (cuDNN) and in tests
 * (reference kernels).
 */
#ifndef MF_EXECUTOR_ATTENTION_PARTS_H
#define MF_EXECUTOR_ATTENTION_PARTS_H

#include "executor/device/device.h"

typedef struct mf_attention_part {
    int64_t first_q, first_k; /* rows of each sequence before the block */
    int64_t seq_q, seq_k;     /* rows of the block in each sequence */
    bool causal;              /* its queries are the last seq_q of its keys' positions */
} mf_attention_part;

#define MF_ATTENTION_PARTS 2

/* Returns the number of blocks. Queries outside all blocks see no key; no query sees keys outside
 * all blocks. */
int mf_attention_parts(const mf_device_sequences *s, mf_attention_part out[MF_ATTENTION_PARTS]);

/* One block of every sequence. Rows of a sequence begin rows_q (keys rows_k) after those of the
 * sequence before. Strides of rows and heads, widths, scale, sinks and, without chunks, the window
 * are those of the shape (a block lies within one chunk). Gradients have the strides of their
 * values. */
typedef struct mf_attention_call {
    const mf_kernel_attention_shape *shape;
    int64_t seq_q, seq_k, rows_q, rows_k;
    bool causal; /* as above */
    bool keeps;  /* gradients: score gradients are kept (MF_OPF_KEPT) */
    const void *q, *k, *v;
    void *o;    /* forward: written; backward: read */
    float *lse; /* [sequences, heads, seq_q]; likewise */
    const void *d_o;
    void *dq, *dk, *dv; /* written */
    float *dsink;       /* [heads], added to; NULL: none */
    void *workspace;
    size_t workspace_B;
} mf_attention_call;

typedef mf_status (*mf_attention_fn)(mf_queue *q, const mf_attention_call *c, mf_err *e);

/* Sinks come with a rank's own keys or with all, one time for each query. Errors: MF_INFEASIBLE for
 * a window or chunks over the ranks of a ring, unless they are as long as the sequence, and for
 * chunks of odd sizes, as these do not form such blocks; MF_INTERNAL where the workspace is too
 * small. With one member, lse has the library's own layout, block by block. */
mf_status mf_attention_by_parts(mf_queue *q, const mf_device_attention *a, mf_attention_fn library,
                                mf_err *e);
mf_status mf_attention_grad_by_parts(mf_queue *q, const mf_device_attention_grad *a,
                                     mf_attention_fn library, mf_err *e);

#endif
