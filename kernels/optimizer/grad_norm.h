/* grad_norm.h - sum of squares over many gradients, and the factor that clips them.
 *
 * The caller names the tensors that this rank owns, so that each element is counted once over all
 * ranks, adds the sums over ranks, and then asks for the factor. Sums are double and their order is
 * fixed.
 *     clip = min(1, max_norm / (sqrt(sum_sq) * grad_scale + 1e-6))     (as PyTorch clips)
 */
#ifndef MF_KERNELS_GRAD_NORM_H
#define MF_KERNELS_GRAD_NORM_H

#include "kernels/optimizer/adamw.h"

typedef struct mf_kernel_grad_tensor {
    const float *grad;
    int64_t count;
} mf_kernel_grad_tensor;

typedef struct mf_kernel_grad_norm {
    int64_t tensors, chunks;
    const mf_kernel_grad_tensor *tensor;
    const mf_kernel_chunk *chunk; /* [chunks], see adamw.h; the reference takes NULL */
    double *sum_sq;               /* [1], added to */
    void *workspace;              /* CUDA: chunks * 8 bytes */
} mf_kernel_grad_norm;

typedef struct mf_kernel_grad_clip {
    const double *sum_sq;
    float max_norm;   /* <= 0: do not clip */
    float grad_scale; /* factor that the optimizer applies besides */
    float *norm;      /* [1] sqrt(sum_sq) * grad_scale */
    float *clip;      /* [1] */
} mf_kernel_grad_clip;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_grad_norm_add(const mf_kernel_grad_norm *a, mf_err *e);
mf_status mf_kernel_grad_clip_factor(const mf_kernel_grad_clip *a, mf_err *e);
mf_status mf_kernel_grad_norm_add_cuda(const mf_kernel_grad_norm *a, void *stream, mf_err *e);
mf_status mf_kernel_grad_clip_factor_cuda(const mf_kernel_grad_clip *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
