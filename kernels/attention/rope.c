/* rope.c - reference of the rotary embedding. */
#include "kernels/attention/rope.h"

#include <assert.h>

mf_status mf_kernel_rope_apply(const mf_kernel_rope *a, mf_err *e) {
    (void)e;
    assert(a->rot_dim % 2 == 0);
    int64_t half = a->rot_dim / 2;
    int64_t step = a->interleaved ? 2 : 1, apart = a->interleaved ? 1 : half;
    for (int64_t r = 0; r < a->rows; r++) {
        const float *cos_row = a->cos + a->positions[r] * half;
        const float *sin_row = a->sin + a->positions[r] * half;
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t base = r * a->row_stride + h * a->head_stride;
            for (int64_t i = 0; i < half; i++) {
                int64_t iu = base + i * step, iv = iu + apart;
                float c = cos_row[i], s = a->inverse ? -sin_row[i] : sin_row[i];
                float u = mf_kernel_get(a->x, a->dtype, iu), v = mf_kernel_get(a->x, a->dtype, iv);
                mf_kernel_put(a->x, a->dtype, iu, u * c - v * s);
                mf_kernel_put(a->x, a->dtype, iv, v * c + u * s);
            }
        }
    }
    return MF_OK;
}
