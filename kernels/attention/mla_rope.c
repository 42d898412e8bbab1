/* mla_rope.c - reference of q, k and v of multi-head latent attention, turned, and the way back. */
#include "kernels/attention/mla_rope.h"

#include <assert.h>

mf_kernel_rope_heads mf_kernel_mla_rope_q(const mf_kernel_mla_shape *s, bool inverse,
                                          const void *from, const void *add, void *to) {
    int64_t qk = s->nope + s->rope, stride = s->heads * qk;
    return (mf_kernel_rope_heads){.dtype = s->dtype,
                                  .rows = s->rows,
                                  .head_dim = qk,
                                  .rot_at = s->nope,
                                  .rot_dim = s->rope,
                                  .interleaved = s->interleaved,
                                  .inverse = inverse,
                                  .positions = s->positions,
                                  .cos = s->cos,
                                  .sin = s->sin,
                                  .spans = 1,
                                  .span[0] = {.heads = s->heads,
                                              .from_stride = stride,
                                              .to_stride = stride,
                                              .turn = true,
                                              .from = from,
                                              .add = add,
                                              .to = to}};
}

mf_kernel_rope mf_kernel_mla_rope_in_place(const mf_kernel_mla_shape *s, bool inverse, void *q) {
    int64_t qk = s->nope + s->rope;
    return (mf_kernel_rope){.dtype = s->dtype,
                            .rows = s->rows,
                            .heads = s->heads,
                            .rot_dim = s->rope,
                            .row_stride = s->heads * qk,
                            .head_stride = qk,
                            .interleaved = s->interleaved,
                            .inverse = inverse,
                            .positions = s->positions,
                            .cos = s->cos,
                            .sin = s->sin,
                            .x = mf_kernel_row_mut(q, s->dtype, s->nope, 1)};
}

static void put(void *to, const void *add, mf_kernel_dtype d, int64_t i, float value) {
    if (add) {
        value = mf_kernel_rounded(d, value) + mf_kernel_get(add, d, i);
    }
    mf_kernel_put(to, d, i, value);
}

/* k_out[at ..) = the rotary columns of row r's latent, turned. */
static void turn_key(const mf_kernel_mla_rope *a, int64_t r, int64_t at) {
    const mf_kernel_mla_shape *s = &a->shape;
    int64_t half = s->rope / 2, step = s->interleaved ? 2 : 1, apart = s->interleaved ? 1 : half;
    for (int64_t i = 0; i < half; i++) {
        int64_t iu = i * step, iv = iu + apart;
        float c = s->cos[s->positions[r] * half + i], sine = s->sin[s->positions[r] * half + i];
        float u = mf_kernel_get(a->k_rope, s->dtype, r * a->rope_stride + iu);
        float v = mf_kernel_get(a->k_rope, s->dtype, r * a->rope_stride + iv);
        mf_kernel_put(a->k_out, s->dtype, at + iu, u * c - v * sine);
        mf_kernel_put(a->k_out, s->dtype, at + iv, v * c + u * sine);
    }
}

mf_status mf_kernel_mla_rope_forward(const mf_kernel_mla_rope *a, mf_err *e) {
    const mf_kernel_mla_shape *s = &a->shape;
    assert(s->rope % 2 == 0);
    mf_kernel_dtype d = s->dtype;
    int64_t qk = s->nope + s->rope, wide = s->nope + s->v_dim;
    for (int64_t rh = 0; rh < s->rows * s->heads; rh++) {
        int64_t r = rh / s->heads;
        for (int64_t c = 0; a->k_out && c < s->nope; c++) {
            mf_kernel_put(a->k_out, d, rh * qk + c, mf_kernel_get(a->kv, d, rh * wide + c));
        }
        if (a->k_out) {
            turn_key(a, r, rh * qk + s->nope);
        }
        for (int64_t c = 0; a->v_out && c < s->v_dim; c++) {
            mf_kernel_put(a->v_out, d, rh * s->v_dim + c,
                          mf_kernel_get(a->kv, d, rh * wide + s->nope + c));
        }
    }
    if (a->q_out != NULL && a->q_out == a->q) {
        const mf_kernel_rope here = mf_kernel_mla_rope_in_place(s, false, a->q_out);
        return mf_kernel_rope_apply(&here, e);
    }
    const mf_kernel_rope_heads q = mf_kernel_mla_rope_q(s, false, a->q, NULL, a->q_out);
    return mf_kernel_rope_heads_move(&q, e);
}

static void latent_grad(const mf_kernel_mla_rope_grad *a, int64_t r) {
    const mf_kernel_mla_shape *s = &a->shape;
    mf_kernel_dtype d = s->dtype;
    int64_t qk = s->nope + s->rope, at = r * (a->kv_rank + s->rope);
    for (int64_t c = 0; c < a->kv_rank; c++) {
        put(a->dlatent, a->add_latent, d, at + c, 0.0f);
    }
    int64_t half = s->rope / 2, step = s->interleaved ? 2 : 1, apart = s->interleaved ? 1 : half;
    for (int64_t i = 0; i < half; i++) {
        float pair[2] = {0.0f, 0.0f};
        for (int64_t h = 0; h < s->heads; h++) {
            int64_t from = (r * s->heads + h) * qk + s->nope + i * step;
            pair[0] += mf_kernel_get(a->dk, d, from);
            pair[1] += mf_kernel_get(a->dk, d, from + apart);
        }
        int64_t angle = s->positions[r] * half + i, to = at + a->kv_rank + i * step;
        float c = s->cos[angle], sine = -s->sin[angle];
        float u = mf_kernel_rounded(d, pair[0]), v = mf_kernel_rounded(d, pair[1]);
        put(a->dlatent, a->add_latent, d, to, u * c - v * sine);
        put(a->dlatent, a->add_latent, d, to + apart, v * c + u * sine);
    }
}

mf_status mf_kernel_mla_rope_backward(const mf_kernel_mla_rope_grad *a, mf_err *e) {
    const mf_kernel_mla_shape *s = &a->shape;
    assert(s->rope % 2 == 0);
    mf_kernel_dtype d = s->dtype;
    int64_t qk = s->nope + s->rope, wide = s->nope + s->v_dim;
    for (int64_t rh = 0; a->dkv && rh < s->rows * s->heads; rh++) {
        for (int64_t c = 0; c < s->nope; c++) {
            put(a->dkv, a->add_kv, d, rh * wide + c, mf_kernel_get(a->dk, d, rh * qk + c));
        }
        for (int64_t c = 0; c < s->v_dim; c++) {
            put(a->dkv, a->add_kv, d, rh * wide + s->nope + c,
                mf_kernel_get(a->dv, d, rh * s->v_dim + c));
        }
    }
    for (int64_t r = 0; a->dlatent && r < s->rows; r++) {
        latent_grad(a, r);
    }
    if (a->dq_in != NULL && a->dq_in == a->dq && a->add_q == NULL) {
        const mf_kernel_rope here = mf_kernel_mla_rope_in_place(s, true, a->dq_in);
        return mf_kernel_rope_apply(&here, e);
    }
    const mf_kernel_rope_heads q = mf_kernel_mla_rope_q(s, true, a->dq, a->add_q, a->dq_in);
    return mf_kernel_rope_heads_move(&q, e);
}
