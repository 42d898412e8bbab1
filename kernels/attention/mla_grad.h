/* mla_grad.h - gradients of causal attention with keys of 192 and values of 128 numbers a head, as
 * MLA has them (DeepSeek-V2 and -V3, Kimi-K2, Moonlight), on Hopper by kernels of our own:
 *
 *     p = exp(scale q k^T - lse);  dv = p^T do;  ds = p (do v^T - delta);  dk = scale ds^T q
 *     dq = scale ds k                                      delta = rowsum(do o)
 *
 * A general kernel adds dq over blocks of keys in memory, 4 bytes an element and block, and the
 * GPU's L2 adds no faster than 1.3 TB/s: less than half of what these heads need. Here one kernel
 * computes dk, dv and ds, which it keeps in memory (2 bytes a score); a second one multiplies ds by
 * k. Heads go in groups, so that a group's scores fit into the workspace. No sum depends on the
 * order in which blocks end, so gradients are the same to the bit each time.
 *
 * p and ds are rounded to BF16 before their products; ds is made of the rounded p.
 */
#ifndef MF_KERNELS_MLA_GRAD_H
#define MF_KERNELS_MLA_GRAD_H

#include "kernels/attention/attention_cuda.h"

MF_KERNEL_C_BEGIN
/* Whether these kernels compute the shape's gradients: heads with keys of their own, whole
 * sequences of a multiple of 256 rows one behind the other, no window, no sink. */
bool mf_mla_grad_takes(const mf_attention_cuda_shape *shape);

/* Heads of all sequences go in shape->pieces groups, every other one on a stream of its own, so
 * that one group's last blocks and another's first ones share the GPU. The workspace holds the
 * scores of two groups, of those tiles that queries see, and 8 bytes a row and head. */
size_t mf_mla_grad_workspace_B(const mf_attention_cuda_shape *shape);

typedef struct mf_mla_grad mf_mla_grad;
/* MF_LIBRARY, MF_NOMEM. */
mf_status mf_mla_grad_create(const mf_attention_cuda_shape *shape, mf_mla_grad **out, mf_err *e);
void mf_mla_grad_destroy(mf_mla_grad *grad);
/* Enqueues; can be captured. MF_LIBRARY. */
mf_status mf_mla_grad_run(mf_mla_grad *grad, const mf_attention_cuda_data *data, void *stream,
                          mf_err *e);
MF_KERNEL_C_END
#endif
