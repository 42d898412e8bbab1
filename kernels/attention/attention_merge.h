/* attention_merge.h - joins two partial results of attention over different keys (ring context
 * parallelism: forward runs on each block of keys, and what comes out is merged).
 *
 *     lse' = log(exp(lse) + exp(lse2));  o' = exp(lse - lse') o + exp(lse2 - lse') o2
 * A row that saw no key on either side (both lse are -inf) stays as it is.
 */
#ifndef MF_KERNELS_ATTENTION_MERGE_H
#define MF_KERNELS_ATTENTION_MERGE_H

#include "kernels/kernel.h"

/* (o, lse) <- the attention over both key sets of (o, lse) and (o2, lse2). */
typedef struct mf_kernel_attention_merge {
    int64_t rows, heads, v_dim;
    int64_t o_row, o_head;   /* elements between rows, between heads */
    mf_kernel_dtype o_dtype; /* float: ring steps are rounded once at the end; bf16: each of them */
    void *o;
    float *lse; /* [heads, rows] */
    mf_kernel_dtype o2_dtype;
    const void *o2; /* strides of o */
    const float *lse2;
} mf_kernel_attention_merge;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_attention_merge_run(const mf_kernel_attention_merge *a, mf_err *e);

mf_status mf_kernel_attention_merge_run_cuda(const mf_kernel_attention_merge *a, void *stream,
                                             mf_err *e);
MF_KERNEL_C_END
#endif
