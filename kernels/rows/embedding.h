/* embedding.h - token rows out of a (vocabulary-parallel) table, and their gradient.
 *
 *     y[t] = scale table[token[t] - begin] where begin <= token[t] < begin + vocab, else 0
 *     dtable[v] += sum over the t with that token of scale dy[t], in the order of t, in float
 * The order is fixed, so the gradient is the same to the bit in every run.
 */
#ifndef MF_KERNELS_EMBEDDING_H
#define MF_KERNELS_EMBEDDING_H

#include "kernels/kernel.h"

typedef struct mf_kernel_embedding {
    mf_kernel_dtype dtype; /* table, y */
    int64_t tokens, cols;
    int64_t begin, vocab; /* this rank's part of the vocabulary */
    float scale;          /* of the rows; 0: 1 */
    const int32_t *token; /* [tokens] */
    const void *table;    /* [vocab, cols] */
    void *y;              /* [tokens, cols] */
} mf_kernel_embedding;

typedef struct mf_kernel_embedding_grad {
    mf_kernel_dtype dtype; /* dy */
    int64_t tokens, cols;
    int64_t begin, vocab;
    float scale; /* of the forward pass */
    const int32_t *token;
    const void *dy;
    float *dtable;   /* [vocab, cols], added to */
    void *workspace; /* CUDA: mf_kernel_embedding_workspace_B bytes */
} mf_kernel_embedding_grad;

MF_KERNEL_C_BEGIN
size_t mf_kernel_embedding_workspace_B(int64_t tokens, int64_t vocab, int64_t cols);

mf_status mf_kernel_embedding_forward(const mf_kernel_embedding *a, mf_err *e);
mf_status mf_kernel_embedding_backward(const mf_kernel_embedding_grad *a, mf_err *e);
mf_status mf_kernel_embedding_forward_cuda(const mf_kernel_embedding *a, void *stream, mf_err *e);
mf_status mf_kernel_embedding_backward_cuda(const mf_kernel_embedding_grad *a, void *stream,
                                            mf_err *e);
MF_KERNEL_C_END
#endif
