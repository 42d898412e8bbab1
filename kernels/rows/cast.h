/* cast.h - element-wise moves: cast, accumulate, add.
 *
 *     cast:  dst = alpha * src            (dst may be src when the types are the same)
 *     accumulate: dst = dst + alpha * src (float dst: gradient accumulation)
 *     add:   y = a + b                    (residual sums; y may be a or b)
 *     rows:  dst[r, 0..cols) = src[r, 0..cols) with strides (packing, splitting, padding)
 */
#ifndef MF_KERNELS_CAST_H
#define MF_KERNELS_CAST_H

#include "kernels/kernel.h"

typedef struct mf_kernel_cast {
    mf_kernel_dtype src_dtype, dst_dtype;
    int64_t count;
    float alpha;
    bool accumulate;
    const void *src;
    void *dst;
} mf_kernel_cast;

typedef struct mf_kernel_add {
    mf_kernel_dtype dtype;
    int64_t count;
    const void *a, *b;
    void *y;
} mf_kernel_add;

typedef struct mf_kernel_copy_rows {
    mf_kernel_dtype dtype;
    int64_t rows, cols, src_stride, dst_stride; /* elements */
    bool accumulate;                            /* dst += src, rounded once */
    const void *src;
    void *dst;
} mf_kernel_copy_rows;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_cast_values(const mf_kernel_cast *a, mf_err *e);
mf_status mf_kernel_add_values(const mf_kernel_add *a, mf_err *e);
mf_status mf_kernel_copy_rows_strided(const mf_kernel_copy_rows *a, mf_err *e);
mf_status mf_kernel_cast_values_cuda(const mf_kernel_cast *a, void *stream, mf_err *e);
mf_status mf_kernel_add_values_cuda(const mf_kernel_add *a, void *stream, mf_err *e);
mf_status mf_kernel_copy_rows_strided_cuda(const mf_kernel_copy_rows *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
