/* cast.c - reference of the element-wise moves. */
#include "kernels/rows/cast.h"

#include <string.h>

mf_status mf_kernel_cast_values(const mf_kernel_cast *a, mf_err *e) {
    (void)e;
    for (int64_t i = 0; i < a->count; i++) {
        float x = a->alpha * mf_kernel_get(a->src, a->src_dtype, i);
        if (a->accumulate) {
            x += mf_kernel_get(a->dst, a->dst_dtype, i);
        }
        mf_kernel_put(a->dst, a->dst_dtype, i, x);
    }
    return MF_OK;
}

mf_status mf_kernel_add_values(const mf_kernel_add *a, mf_err *e) {
    (void)e;
    for (int64_t i = 0; i < a->count; i++) {
        mf_kernel_put(a->y, a->dtype, i,
                      mf_kernel_get(a->a, a->dtype, i) + mf_kernel_get(a->b, a->dtype, i));
    }
    return MF_OK;
}

mf_status mf_kernel_copy_rows_strided(const mf_kernel_copy_rows *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        const void *src = mf_kernel_row(a->src, a->dtype, r, a->src_stride);
        void *dst = mf_kernel_row_mut(a->dst, a->dtype, r, a->dst_stride);
        if (!a->accumulate) {
            memcpy(dst, src, (size_t)a->cols * mf_kernel_dtype_B(a->dtype));
            continue;
        }
        for (int64_t c = 0; c < a->cols; c++) {
            float sum = mf_kernel_get(src, a->dtype, c) + mf_kernel_get(dst, a->dtype, c);
            mf_kernel_put(dst, a->dtype, c, sum);
        }
    }
    return MF_OK;
}
