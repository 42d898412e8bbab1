/* rope.h - rotary position embedding (Su et al. 2021), in place, forward and backward.
 *
 * Of each head the first rot_dim elements are rotated in pairs by the angle of the row's position:
 *     (u, v) -> (u cos - v sin, v cos + u sin)
 * pairs are (i, i + rot_dim/2) ("half-split", Llama) or (2i, 2i + 1) ("interleaved", DeepSeek).
 * The rotation is orthogonal: the backward pass is the same call with inverse = true.
 * Partial rotary: rot_dim < head width. Rotated part behind a plain one (MLA): let x point at it.
 */
#ifndef MF_KERNELS_ROPE_H
#define MF_KERNELS_ROPE_H

#include "kernels/kernel.h"

typedef struct mf_kernel_rope {
    mf_kernel_dtype dtype; /* x */
    int64_t rows, heads;
    int64_t rot_dim;                 /* even */
    int64_t row_stride, head_stride; /* elements */
    bool interleaved;
    bool inverse;
    const int32_t *positions; /* [rows], each < the table's length */
    const float *cos, *sin;   /* [positions, rot_dim/2] */
    void *x;
} mf_kernel_rope;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_rope_apply(const mf_kernel_rope *a, mf_err *e);
mf_status mf_kernel_rope_apply_cuda(const mf_kernel_rope *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
