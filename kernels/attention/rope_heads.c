/* rope_heads.c - reference of heads that are moved and turned. */
#include "kernels/attention/rope_heads.h"

#include <assert.h>

/* Element i of `to`, with the element of `add` that belongs there. */
static void put(const mf_kernel_rope_span *s, mf_kernel_dtype d, int64_t i, float value) {
    if (s->add) {
        value = mf_kernel_rounded(d, value) + mf_kernel_get(s->add, d, i);
    }
    mf_kernel_put(s->to, d, i, value);
}

static void copy_columns(const mf_kernel_rope_span *s, mf_kernel_dtype d, int64_t cols,
                         int64_t from, int64_t to) {
    if (!s->add) {
        memcpy(mf_kernel_row_mut(s->to, d, to, 1), mf_kernel_row(s->from, d, from, 1),
               (size_t)cols * mf_kernel_dtype_B(d));
        return;
    }
    for (int64_t c = 0; c < cols; c++) {
        put(s, d, to + c, mf_kernel_get(s->from, d, from + c));
    }
}

static void turn_columns(const mf_kernel_rope_heads *a, const mf_kernel_rope_span *s, int64_t row,
                         int64_t from, int64_t to) {
    int64_t half = a->rot_dim / 2;
    int64_t step = a->interleaved ? 2 : 1, apart = a->interleaved ? 1 : half;
    const float *cos_row = a->cos + a->positions[row] * half;
    const float *sin_row = a->sin + a->positions[row] * half;
    for (int64_t i = 0; i < half; i++) {
        int64_t iu = i * step, iv = iu + apart;
        float c = cos_row[i], sine = a->inverse ? -sin_row[i] : sin_row[i];
        float u = mf_kernel_get(s->from, a->dtype, from + iu);
        float v = mf_kernel_get(s->from, a->dtype, from + iv);
        put(s, a->dtype, to + iu, u * c - v * sine);
        put(s, a->dtype, to + iv, v * c + u * sine);
    }
}

mf_status mf_kernel_rope_heads_move(const mf_kernel_rope_heads *a, mf_err *e) {
    (void)e;
    assert(a->rot_dim % 2 == 0 && a->rot_at + a->rot_dim <= a->head_dim);
    assert(a->spans <= MF_ROPE_SPANS);
    int64_t d = a->head_dim, behind = a->rot_at + a->rot_dim;
    for (int i = 0; i < a->spans; i++) {
        const mf_kernel_rope_span *s = &a->span[i];
        for (int64_t rh = 0; s->to && rh < a->rows * s->heads; rh++) {
            int64_t r = rh / s->heads, h = rh % s->heads;
            int64_t from = r * s->from_stride + h * d, to = r * s->to_stride + h * d;
            if (!s->turn) {
                copy_columns(s, a->dtype, d, from, to);
                continue;
            }
            copy_columns(s, a->dtype, a->rot_at, from, to);
            turn_columns(a, s, r, from + a->rot_at, to + a->rot_at);
            copy_columns(s, a->dtype, d - behind, from + behind, to + behind);
        }
    }
    return MF_OK;
}
