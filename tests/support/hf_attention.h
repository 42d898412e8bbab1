/* hf_attention.h - of tests/support/hf_model.h: attention, grouped or latent, forward and backward.
 */
#ifndef MF_TESTS_HF_ATTENTION_H
#define MF_TESTS_HF_ATTENTION_H

#include "tests/support/hf_base.h"

#include "kernels/attention/attention.h"
#include "kernels/attention/mla.h"

static mf_kernel_attention_shape hf_attention_shape(const hf_model *h) {
    int64_t qk = h->m.head_dim, v = h->m.v_head_dim, kv = h->m.kv_heads;
    mf_kernel_attention_shape s = {.sequences = h->samples,
                                   .cu_q = h->cu,
                                   .cu_k = h->cu,
                                   .heads = h->m.heads,
                                   .kv_heads = kv,
                                   .qk_dim = qk,
                                   .v_dim = v,
                                   .causal = true,
                                   .scale = (float)(1.0 / sqrt((double)qk)),
                                   .q_row = h->m.heads * qk,
                                   .q_head = qk,
                                   .k_row = kv * qk,
                                   .k_head = qk,
                                   .v_row = kv * v,
                                   .v_head = v,
                                   .o_row = h->m.heads * v,
                                   .o_head = v};
    return s;
}

/* q, k, v before the rotation of k and q. */
static void hf_project(hf_model *h, hf_layer *s, int64_t l) {
    int64_t t = h->rows, hid = h->m.hidden, d = h->m.head_dim, nq = h->m.heads * d;
    int64_t nk = h->m.kv_heads * d;
    s->q = hf_floats(h, t * nq), s->k = hf_floats(h, t * nk), s->v = hf_floats(h, t * nk);
    hf_linear(hf_need(h, hf_name(h, l, "self_attn.q_proj.weight")), t, nq, hid, s->h1, s->q, nq);
    hf_linear(hf_need(h, hf_name(h, l, "self_attn.k_proj.weight")), t, nk, hid, s->h1, s->k, nk);
    hf_linear(hf_need(h, hf_name(h, l, "self_attn.v_proj.weight")), t, nk, hid, s->h1, s->v, nk);
    hf_bias(hf_find(h, hf_name(h, l, "self_attn.q_proj.bias")), t, nq, s->q, NULL);
    hf_bias(hf_find(h, hf_name(h, l, "self_attn.k_proj.bias")), t, nk, s->k, NULL);
    hf_bias(hf_find(h, hf_name(h, l, "self_attn.v_proj.bias")), t, nk, s->v, NULL);
    if (h->m.qk_norm) {
        s->q_raw = s->q, s->k_raw = s->k;
        s->q = hf_floats(h, t * nq), s->k = hf_floats(h, t * nk);
        s->q_rstd = hf_floats(h, t * h->m.heads), s->k_rstd = hf_floats(h, t * h->m.kv_heads);
        hf_norm(h, hf_need(h, hf_name(h, l, "self_attn.q_norm.weight")), t, h->m.heads, d, nq,
                s->q_raw, NULL, NULL, s->q, s->q_rstd);
        hf_norm(h, hf_need(h, hf_name(h, l, "self_attn.k_norm.weight")), t, h->m.kv_heads, d, nk,
                s->k_raw, NULL, NULL, s->k, s->k_rstd);
    }
    hf_rope(h, s->q, h->m.heads, nq, d, false);
    hf_rope(h, s->k, h->m.kv_heads, nk, d, false);
}

/* dq, dk, dv -> dh1 */
static void hf_project_back(hf_model *h, hf_layer *s, int64_t l, float *dq, float *dk, float *dv,
                            float *dh1) {
    int64_t t = h->rows, hid = h->m.hidden, d = h->m.head_dim, nq = h->m.heads * d;
    int64_t nk = h->m.kv_heads * d;
    hf_rope(h, dq, h->m.heads, nq, d, true);
    hf_rope(h, dk, h->m.kv_heads, nk, d, true);
    if (h->m.qk_norm) {
        hf_norm_back(hf_need(h, hf_name(h, l, "self_attn.q_norm.weight")), t, h->m.heads, d, nq,
                     s->q_raw, s->q_rstd, dq, NULL, dq);
        hf_norm_back(hf_need(h, hf_name(h, l, "self_attn.k_norm.weight")), t, h->m.kv_heads, d, nk,
                     s->k_raw, s->k_rstd, dk, NULL, dk);
    }
    hf_bias(hf_find(h, hf_name(h, l, "self_attn.q_proj.bias")), t, nq, NULL, dq);
    hf_bias(hf_find(h, hf_name(h, l, "self_attn.k_proj.bias")), t, nk, NULL, dk);
    hf_bias(hf_find(h, hf_name(h, l, "self_attn.v_proj.bias")), t, nk, NULL, dv);
    hf_linear_back(hf_need(h, hf_name(h, l, "self_attn.q_proj.weight")), t, nq, hid, s->h1, dq, nq,
                   dh1, false);
    hf_linear_back(hf_need(h, hf_name(h, l, "self_attn.k_proj.weight")), t, nk, hid, s->h1, dk, nk,
                   dh1, true);
    hf_linear_back(hf_need(h, hf_name(h, l, "self_attn.v_proj.weight")), t, nk, hid, s->h1, dv, nk,
                   dh1, true);
}

static mf_kernel_mla hf_mla_sizes(const hf_model *h) {
    mf_kernel_mla a = {.rows = h->rows,
                       .heads = h->m.heads,
                       .nope = h->m.qk_nope_head_dim,
                       .rope = h->m.qk_rope_head_dim,
                       .v_dim = h->m.v_head_dim,
                       .rope_stride = h->m.kv_lora_rank + h->m.qk_rope_head_dim};
    return a;
}

static void hf_mla_project(hf_model *h, hf_layer *s, int64_t l) {
    int64_t t = h->rows, hid = h->m.hidden, nq = h->m.heads * h->m.head_dim;
    int64_t ql = h->m.q_lora_rank, kl = h->m.kv_lora_rank;
    mf_kernel_mla a = hf_mla_sizes(h);
    int64_t wide = a.heads * (a.nope + a.v_dim);
    s->q = hf_floats(h, t * nq), s->k = hf_floats(h, t * nq);
    s->v = hf_floats(h, t * a.heads * a.v_dim);
    s->qa = hf_floats(h, t * ql), s->qan = hf_floats(h, t * ql), s->qa_rstd = hf_floats(h, t);
    s->kva = hf_floats(h, t * a.rope_stride), s->kvan = hf_floats(h, t * kl);
    s->kva_rstd = hf_floats(h, t), s->kv = hf_floats(h, t * wide);
    hf_linear(hf_need(h, hf_name(h, l, "self_attn.q_a_proj.weight")), t, ql, hid, s->h1, s->qa, ql);
    hf_norm(h, hf_need(h, hf_name(h, l, "self_attn.q_a_layernorm.weight")), t, 1, ql, ql, s->qa,
            NULL, NULL, s->qan, s->qa_rstd);
    hf_linear(hf_need(h, hf_name(h, l, "self_attn.q_b_proj.weight")), t, nq, ql, s->qan, s->q, nq);
    hf_linear(hf_need(h, hf_name(h, l, "self_attn.kv_a_proj_with_mqa.weight")), t, a.rope_stride,
              hid, s->h1, s->kva, a.rope_stride);
    hf_norm(h, hf_need(h, hf_name(h, l, "self_attn.kv_a_layernorm.weight")), t, 1, kl,
            a.rope_stride, s->kva, NULL, NULL, s->kvan, s->kva_rstd);
    hf_linear(hf_need(h, hf_name(h, l, "self_attn.kv_b_proj.weight")), t, wide, kl, s->kvan, s->kv,
              wide);
    hf_rope(h, s->q + a.nope, a.heads, nq, h->m.head_dim, false);
    hf_rope(h, s->kva + kl, 1, a.rope_stride, a.rope, false);
    a.kv = s->kv, a.k_rope = s->kva + kl, a.k = s->k, a.v = s->v;
    assert_ok(mf_kernel_mla_pack(&a, NULL));
}

static void hf_mla_back(hf_model *h, hf_layer *s, int64_t l, float *dq, float *dk, float *dv,
                        float *dh1) {
    int64_t t = h->rows, hid = h->m.hidden, nq = h->m.heads * h->m.head_dim;
    int64_t ql = h->m.q_lora_rank, kl = h->m.kv_lora_rank;
    mf_kernel_mla a = hf_mla_sizes(h);
    int64_t wide = a.heads * (a.nope + a.v_dim);
    float *dkv = hf_floats(h, t * wide), *dkva = hf_floats(h, t * a.rope_stride);
    float *dkvan = hf_floats(h, t * kl), *dqan = hf_floats(h, t * ql);
    mf_kernel_mla_grad g = {.rows = t,
                            .heads = a.heads,
                            .nope = a.nope,
                            .rope = a.rope,
                            .v_dim = a.v_dim,
                            .rope_stride = a.rope_stride,
                            .dk = dk,
                            .dv = dv,
                            .dkv = dkv,
                            .dk_rope = dkva + kl};
    assert_ok(mf_kernel_mla_unpack_grad(&g, NULL));
    hf_rope(h, dkva + kl, 1, a.rope_stride, a.rope, true);
    hf_rope(h, dq + a.nope, a.heads, nq, h->m.head_dim, true);
    hf_linear_back(hf_need(h, hf_name(h, l, "self_attn.kv_b_proj.weight")), t, wide, kl, s->kvan,
                   dkv, wide, dkvan, false);
    /* The norm reads s->kva[:, 0..kl); the rotation behind it left those columns alone. */
    hf_norm_back(hf_need(h, hf_name(h, l, "self_attn.kv_a_layernorm.weight")), t, 1, kl,
                 a.rope_stride, s->kva, s->kva_rstd, dkvan, NULL, dkva);
    hf_linear_back(hf_need(h, hf_name(h, l, "self_attn.kv_a_proj_with_mqa.weight")), t,
                   a.rope_stride, hid, s->h1, dkva, a.rope_stride, dh1, false);
    hf_linear_back(hf_need(h, hf_name(h, l, "self_attn.q_b_proj.weight")), t, nq, ql, s->qan, dq,
                   nq, dqan, false);
    hf_norm_back(hf_need(h, hf_name(h, l, "self_attn.q_a_layernorm.weight")), t, 1, ql, ql, s->qa,
                 s->qa_rstd, dqan, NULL, dqan);
    hf_linear_back(hf_need(h, hf_name(h, l, "self_attn.q_a_proj.weight")), t, ql, hid, s->h1, dqan,
                   ql, dh1, true);
}

static void hf_attend(hf_model *h, hf_layer *s, int64_t l) {
    int64_t t = h->rows, no = h->m.heads * h->m.v_head_dim;
    if (h->m.attn == MF_ATTN_MLA) {
        hf_mla_project(h, s, l);
    } else {
        hf_project(h, s, l);
    }
    s->o = hf_floats(h, t * no), s->lse = hf_floats(h, t * h->m.heads);
    s->attn = hf_floats(h, t * h->m.hidden);
    mf_kernel_attention a = {
        .shape = hf_attention_shape(h), .q = s->q, .k = s->k, .v = s->v, .o = s->o, .lse = s->lse};
    assert_ok(mf_kernel_attention_forward(&a, NULL));
    hf_linear(hf_need(h, hf_name(h, l, "self_attn.o_proj.weight")), t, h->m.hidden, no, s->o,
              s->attn, h->m.hidden);
}

/* dattn -> dh1 */
static void hf_attend_back(hf_model *h, hf_layer *s, int64_t l, const float *dattn, float *dh1) {
    int64_t t = h->rows, no = h->m.heads * h->m.v_head_dim;
    int64_t nk = h->m.kv_heads * h->m.head_dim;
    float *d_o = hf_floats(h, t * no), *dq = hf_floats(h, t * h->m.heads * h->m.head_dim);
    float *dk = hf_floats(h, t * nk), *dv = hf_floats(h, t * h->m.kv_heads * h->m.v_head_dim);
    hf_linear_back(hf_need(h, hf_name(h, l, "self_attn.o_proj.weight")), t, h->m.hidden, no, s->o,
                   dattn, h->m.hidden, d_o, false);
    size_t work_B = mf_kernel_attention_workspace_B(h->seq, h->m.head_dim, h->m.v_head_dim);
    mf_kernel_attention_grad g = {.shape = hf_attention_shape(h),
                                  .q = s->q,
                                  .k = s->k,
                                  .v = s->v,
                                  .o = s->o,
                                  .d_o = d_o,
                                  .lse = s->lse,
                                  .dq = dq,
                                  .dk = dk,
                                  .dv = dv,
                                  .workspace = hf_bytes(h, work_B)};
    assert_ok(mf_kernel_attention_backward(&g, NULL));
    if (h->m.attn == MF_ATTN_MLA) {
        hf_mla_back(h, s, l, dq, dk, dv, dh1);
    } else {
        hf_project_back(h, s, l, dq, dk, dv, dh1);
    }
}

#endif
