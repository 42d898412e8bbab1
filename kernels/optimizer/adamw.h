/* adamw.h - AdamW over many tensors in one launch (Loshchilov & Hutter 2019, as PyTorch computes
 * it).
 *
 *     g = grad * grad_scale * *clip
 *     p = master * (1 - lr * decay)
 *     m = m + (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g^2
 *     master = p - lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
 *     param = master rounded to bf16 (tensors that have one)
 * Moments are float or bf16 (rounded to nearest after each update).
 */
#ifndef MF_KERNELS_ADAMW_H
#define MF_KERNELS_ADAMW_H

#include "kernels/optimizer/update.h"

typedef struct mf_kernel_adamw_tensor {
    float *master;     /* [count] the weights that are trained */
    uint16_t *param;   /* [count] bf16 copy that the layers read; NULL: they read master */
    const float *grad; /* [count] */
    void *m, *v;       /* [count] of moment dtype */
    int64_t count;
    float decay; /* weight decay of this tensor */
} mf_kernel_adamw_tensor;

/* A stretch of one tensor, the unit of work of one block. */
typedef struct mf_kernel_chunk {
    int32_t tensor;
    int32_t count;
    int64_t begin;
} mf_kernel_chunk;

typedef struct mf_kernel_adamw {
    mf_kernel_dtype moments;
    float lr, beta1, beta2, eps, grad_scale;
    int64_t step;      /* from 1 */
    const float *clip; /* [1] factor of the gradient clipping; NULL: 1 */
    int64_t tensors, chunks;
    const mf_kernel_adamw_tensor *tensor; /* [tensors] */
    const mf_kernel_chunk *chunk; /* [chunks] covers every tensor once; the reference takes NULL */
    const mf_kernel_update_state *state; /* [1] lr, step and clip come from it, to the same results,
                                            and nothing is written where it says skip; NULL: they
                                            come from above */
} mf_kernel_adamw;

MF_KERNEL_C_BEGIN
/* Divides tensors of counts[i] elements into stretches of at most MF_KERNEL_CHUNK elements; returns
 * how many, and fills out[] (host) when it is not NULL. */
#define MF_KERNEL_CHUNK 32768
int64_t mf_kernel_chunks(const int64_t *counts, int64_t tensors, mf_kernel_chunk *out);

mf_status mf_kernel_adamw_update(const mf_kernel_adamw *a, mf_err *e);
mf_status mf_kernel_adamw_update_cuda(const mf_kernel_adamw *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
