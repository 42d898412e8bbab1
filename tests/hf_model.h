/* hf_model.h - a whole decoder, forward and backward, out of reference kernels on one rank: what
 * the kernels must add up to, held against Hugging Face by test_kernel_hf.c. Dense and MoE layers,
 * GQA and MLA, float32. Plain and slow: every value is kept. */
#ifndef MF_TESTS_HF_MODEL_H
#define MF_TESTS_HF_MODEL_H

#include "tests/test.h"

#include "core/model.h"
#include "executor/safetensors.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gate.h"
#include "kernels/gemm.h"
#include "kernels/grad_norm.h"
#include "kernels/mla.h"
#include "kernels/permute.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/swiglu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HF_LAYERS = 8, HF_KEPT = 4096 };

typedef struct hf_param {
    const char *name;
    float *w, *g, *m, *v;
    int64_t n;
    bool trained;
} hf_param;

/* What a feed-forward of one width keeps. */
typedef struct hf_mlp {
    const char *prefix;
    int64_t width;
    float *gate_up, *act, *out;
} hf_mlp;

typedef struct hf_layer {
    float *x, *h1, *rstd1, *x2, *h2, *rstd2; /* x2 = x + attention */
    float *q, *k, *v, *o, *lse, *attn;
    float *q_raw, *k_raw, *q_rstd, *k_rstd; /* QK-norm */
    float *qa, *qan, *qa_rstd;              /* MLA */
    float *kva, *kvan, *kva_rstd, *kv;
    hf_mlp dense, shared;
    float *logits, *scores, *prob, *row_prob, *gate, *rows, *gate_up, *act, *out;
    float *count, *aux_weight, aux;
    int32_t *index, *counts, *offsets, *row_of_slot, *slot_of_row;
} hf_layer;

typedef struct hf_model {
    mf_model m;
    mf_safetensors *weights;
    hf_param *params;
    int count;
    int64_t samples, seq, rows;
    int32_t *positions, *cu;
    float *cos, *sin;
    hf_layer layer[HF_LAYERS];
    float *x_last, *norm_last, *rstd_last, *logits, *lse;
    void *kept[HF_KEPT];
    int kept_count;
    double aux_coefficient;
    char text[8][128]; /* names in the making */
    int turn;
} hf_model;

/* --- memory, names, parameters -----------------------------------------------------------------
 */
static void *hf_bytes(hf_model *h, size_t size_B) {
    void *p = calloc(size_B + 1, 1);
    assert_non_null(p);
    assert_true(h->kept_count < HF_KEPT);
    h->kept[h->kept_count++] = p;
    return p;
}

static float *hf_floats(hf_model *h, int64_t n) {
    return hf_bytes(h, (size_t)n * sizeof(float));
}

static void hf_forget(hf_model *h, int from) {
    while (h->kept_count > from) {
        free(h->kept[--h->kept_count]);
    }
}

static const char *hf_name(hf_model *h, int64_t layer, const char *rest) {
    char *to = h->text[h->turn++ % 8];
    snprintf(to, sizeof h->text[0], "model.layers.%d.%s", (int)layer, rest);
    return to;
}

static const char *hf_join(hf_model *h, const char *prefix, const char *rest) {
    char *to = h->text[h->turn++ % 8];
    snprintf(to, sizeof h->text[0], "%s%s", prefix, rest);
    return to;
}

static hf_param *hf_find(hf_model *h, const char *name) {
    for (int i = 0; i < h->count; i++) {
        if (strcmp(h->params[i].name, name) == 0) {
            return &h->params[i];
        }
    }
    return NULL;
}

static hf_param *hf_need(hf_model *h, const char *name) {
    hf_param *p = hf_find(h, name);
    if (!p) {
        fail_msg("no tensor %s", name);
    }
    return p;
}

static void hf_reset(hf_model *h) {
    for (int i = 0; i < h->count; i++) {
        const mf_st_tensor *t = mf_safetensors_at(h->weights, (size_t)i);
        for (int64_t j = 0; j < h->params[i].n; j++) {
            h->params[i].w[j] = mf_st_get(t, j);
            h->params[i].m[j] = h->params[i].v[j] = 0.0f;
        }
    }
}

static void hf_open(hf_model *h, const char *folder, int64_t samples, int64_t seq) {
    mf_err e;
    memset(h, 0, sizeof *h);
    if (mf_model_load(folder, &h->m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(mf_safetensors_open(path, &h->weights, &e));
    assert_true(h->m.layers <= HF_LAYERS);
    h->count = (int)mf_safetensors_count(h->weights);
    h->params = hf_bytes(h, (size_t)h->count * sizeof *h->params);
    for (int i = 0; i < h->count; i++) {
        const mf_st_tensor *t = mf_safetensors_at(h->weights, (size_t)i);
        hf_param *p = &h->params[i];
        p->name = t->name;
        p->n = t->count;
        p->w = hf_floats(h, p->n), p->g = hf_floats(h, p->n);
        p->m = hf_floats(h, p->n), p->v = hf_floats(h, p->n);
        p->trained = strstr(t->name, "e_score_correction_bias") == NULL;
    }
    hf_reset(h);
    h->samples = samples, h->seq = seq, h->rows = samples * seq;
    h->positions = hf_bytes(h, (size_t)h->rows * 4);
    h->cu = hf_bytes(h, (size_t)(samples + 1) * 4);
    for (int64_t r = 0; r < h->rows; r++) {
        h->positions[r] = (int32_t)(r % seq);
    }
    for (int64_t s = 0; s <= samples; s++) {
        h->cu[s] = (int32_t)(s * seq);
    }
    int64_t rot = h->m.attn == MF_ATTN_MLA ? h->m.qk_rope_head_dim : h->m.head_dim;
    h->cos = hf_floats(h, seq * rot / 2), h->sin = hf_floats(h, seq * rot / 2);
    mf_kernel_rope_table(h->m.rope_theta, rot, seq, h->cos, h->sin);
}

static void hf_close(hf_model *h) {
    mf_safetensors_close(h->weights);
    hf_forget(h, 0);
}

/* --- small steps --------------------------------------------------------------------------------
 */
static void hf_gemm(mf_gemm_form form, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float *c, int64_t ldc, bool accumulate) {
    mf_kernel_gemm g = {.form = form,
                        .m = m,
                        .n = n,
                        .k = k,
                        .lda = lda,
                        .ldb = ldb,
                        .ldc = ldc,
                        .alpha = 1.0f,
                        .accumulate = accumulate,
                        .a = a,
                        .b = b,
                        .c = c};
    assert_ok(mf_kernel_gemm_run(&g, NULL));
}

/* y[rows, out] (stride ldy) = x[rows, in] w^T */
static void hf_linear(const hf_param *w, int64_t rows, int64_t out, int64_t in, const float *x,
                      float *y, int64_t ldy) {
    assert_int_equal(w->n, out * in);
    hf_gemm(MF_GEMM_NT, rows, out, in, x, in, w->w, in, y, ldy, false);
}

/* dx (+)= dy w;  dw += dy^T x */
static void hf_linear_back(hf_param *w, int64_t rows, int64_t out, int64_t in, const float *x,
                           const float *dy, int64_t ldy, float *dx, bool accumulate) {
    hf_gemm(MF_GEMM_NN, rows, in, out, dy, ldy, w->w, in, dx, in, accumulate);
    hf_gemm(MF_GEMM_TN, out, in, rows, dy, ldy, x, in, w->g, in, true);
}

static void hf_bias(hf_param *b, int64_t rows, int64_t cols, float *x, const float *dy) {
    if (!b) {
        return;
    }
    mf_kernel_bias f = {
        .rows = rows, .cols = cols, .stride = cols, .groups = 1, .bias = b->w, .x = x};
    mf_kernel_bias_grad g = {
        .rows = rows, .cols = cols, .stride = cols, .groups = 1, .dy = dy, .dbias = b->g};
    assert_ok(dy ? mf_kernel_bias_backward(&g, NULL) : mf_kernel_bias_add(&f, NULL));
}

static void hf_norm(const hf_model *h, const hf_param *w, int64_t rows, int64_t groups,
                    int64_t cols, int64_t stride, const float *x, const float *add, float *sum,
                    float *y, float *rstd) {
    mf_kernel_rmsnorm f = {.rows = rows,
                           .groups = groups,
                           .cols = cols,
                           .x_stride = stride,
                           .y_stride = groups * cols,
                           .eps = (float)h->m.rms_norm_eps,
                           .x = x,
                           .add = add,
                           .sum = sum,
                           .weight = w->w,
                           .y = y,
                           .rstd = rstd};
    assert_ok(mf_kernel_rmsnorm_forward(&f, NULL));
}

static void hf_norm_back(hf_param *w, int64_t rows, int64_t groups, int64_t cols, int64_t stride,
                         const float *x, const float *rstd, const float *dy, const float *dx_add,
                         float *dx) {
    mf_kernel_rmsnorm_grad g = {.rows = rows,
                                .groups = groups,
                                .cols = cols,
                                .x_stride = stride,
                                .y_stride = groups * cols,
                                .x = x,
                                .weight = w->w,
                                .rstd = rstd,
                                .dy = dy,
                                .dx_add = dx_add,
                                .dx = dx,
                                .dweight = w->g};
    assert_ok(mf_kernel_rmsnorm_backward(&g, NULL));
}

static void hf_rope(const hf_model *h, float *x, int64_t heads, int64_t row, int64_t head,
                    bool inverse) {
    bool mla = h->m.attn == MF_ATTN_MLA;
    mf_kernel_rope a = {.rows = h->rows,
                        .heads = heads,
                        .rot_dim = mla ? h->m.qk_rope_head_dim : h->m.head_dim,
                        .row_stride = row,
                        .head_stride = head,
                        .interleaved = h->m.rope_interleave,
                        .inverse = inverse,
                        .positions = h->positions,
                        .cos = h->cos,
                        .sin = h->sin,
                        .x = x};
    assert_ok(mf_kernel_rope_apply(&a, NULL));
}

static void hf_add(float *y, const float *x, int64_t n) {
    mf_kernel_add a = {.count = n, .a = y, .b = x, .y = y};
    assert_ok(mf_kernel_add_values(&a, NULL));
}

/* --- attention ----------------------------------------------------------------------------------
 */
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

/* --- feed-forward -------------------------------------------------------------------------------
 */
static mf_kernel_swiglu_shape hf_swiglu(int64_t rows, int64_t cols, const float *prob) {
    mf_kernel_swiglu_shape s = {.kind = MF_SWIGLU_SILU, .rows = rows, .cols = cols, .prob = prob};
    return s;
}

static void hf_mlp_run(hf_model *h, hf_mlp *m, const float *x) {
    int64_t t = h->rows, hid = h->m.hidden, f = m->width;
    m->gate_up = hf_floats(h, t * 2 * f), m->act = hf_floats(h, t * f);
    m->out = hf_floats(h, t * hid);
    hf_linear(hf_need(h, hf_join(h, m->prefix, "gate_proj.weight")), t, f, hid, x, m->gate_up,
              2 * f);
    hf_linear(hf_need(h, hf_join(h, m->prefix, "up_proj.weight")), t, f, hid, x, m->gate_up + f,
              2 * f);
    mf_kernel_swiglu a = {.shape = hf_swiglu(t, f, NULL), .gate_up = m->gate_up, .y = m->act};
    assert_ok(mf_kernel_swiglu_forward(&a, NULL));
    hf_linear(hf_need(h, hf_join(h, m->prefix, "down_proj.weight")), t, hid, f, m->act, m->out,
              hid);
}

/* dx += */
static void hf_mlp_back(hf_model *h, hf_mlp *m, const float *x, const float *dy, float *dx) {
    int64_t t = h->rows, hid = h->m.hidden, f = m->width;
    float *dact = hf_floats(h, t * f), *dgu = hf_floats(h, t * 2 * f);
    hf_linear_back(hf_need(h, hf_join(h, m->prefix, "down_proj.weight")), t, hid, f, m->act, dy,
                   hid, dact, false);
    mf_kernel_swiglu_grad g = {
        .shape = hf_swiglu(t, f, NULL), .gate_up = m->gate_up, .dy = dact, .dgate_up = dgu};
    assert_ok(mf_kernel_swiglu_backward(&g, NULL));
    hf_linear_back(hf_need(h, hf_join(h, m->prefix, "gate_proj.weight")), t, f, hid, x, dgu, 2 * f,
                   dx, true);
    hf_linear_back(hf_need(h, hf_join(h, m->prefix, "up_proj.weight")), t, f, hid, x, dgu + f,
                   2 * f, dx, true);
}

/* Weight `which` (0 gate, 1 up, 2 down) of expert x. */
static hf_param *hf_expert(hf_model *h, int64_t l, int x, int which) {
    static const char *const mixtral[] = {"w1", "w3", "w2"};
    static const char *const others[] = {"gate_proj", "up_proj", "down_proj"};
    bool is_mixtral = strcmp(h->m.family, "mixtral") == 0;
    char rest[96];
    snprintf(rest, sizeof rest, "%s.experts.%d.%s.weight", is_mixtral ? "block_sparse_moe" : "mlp",
             x, is_mixtral ? mixtral[which] : others[which]);
    return hf_need(h, hf_name(h, l, rest));
}

static hf_param *hf_router_weight(hf_model *h, int64_t l) {
    hf_param *p = hf_find(h, hf_name(h, l, "mlp.gate.weight"));
    return p ? p : hf_need(h, hf_name(h, l, "block_sparse_moe.gate.weight"));
}

static mf_route_score hf_score(const hf_model *h) {
    return h->m.router_score == MF_ROUTER_SIGMOID        ? MF_ROUTE_SIGMOID
           : h->m.router_score == MF_ROUTER_TOPK_SOFTMAX ? MF_ROUTE_TOPK_SOFTMAX
                                                         : MF_ROUTE_SOFTMAX;
}

static void hf_route(hf_model *h, hf_layer *s, int64_t l) {
    int64_t t = h->rows, n = h->m.experts, k = h->m.top_k;
    hf_param *bias = hf_find(h, hf_name(h, l, "mlp.gate.e_score_correction_bias"));
    s->logits = hf_floats(h, t * n), s->scores = hf_floats(h, t * n);
    s->prob = hf_floats(h, t * k), s->index = hf_bytes(h, (size_t)(t * k) * 4);
    hf_linear(hf_router_weight(h, l), t, n, h->m.hidden, s->h2, s->logits, n);
    mf_kernel_router r = {.rows = t,
                          .experts = n,
                          .top_k = k,
                          .score = hf_score(h),
                          .normalise = h->m.norm_topk,
                          .scaling = (float)h->m.routed_scaling,
                          .groups = h->m.n_group,
                          .group_topk = h->m.topk_group,
                          .group_score = MF_ROUTE_GROUP_TOP2,
                          .logits = s->logits,
                          .bias = bias ? bias->w : NULL,
                          .scores = s->scores,
                          .prob = s->prob,
                          .index = s->index};
    assert_ok(mf_kernel_router_forward(&r, NULL));
    float *sum = hf_floats(h, n);
    s->count = hf_floats(h, n), s->aux_weight = hf_floats(h, n), s->aux = 0.0f;
    mf_kernel_router_stats st = {.rows = t,
                                 .experts = n,
                                 .top_k = k,
                                 .score = hf_score(h),
                                 .scopes = 1,
                                 .scores = s->scores,
                                 .index = s->index,
                                 .count = s->count,
                                 .prob_sum = sum};
    assert_ok(mf_kernel_router_stats_add(&st, NULL));
    mf_kernel_router_aux au = {.experts = n,
                               .top_k = k,
                               .scopes = 1,
                               .tokens = (double)t,
                               .weight_scale = (float)h->aux_coefficient,
                               .count = s->count,
                               .prob_sum = sum,
                               .aux = &s->aux,
                               .weight = s->aux_weight};
    assert_ok(mf_kernel_router_aux_loss(&au, NULL));
}

static void hf_experts(hf_model *h, hf_layer *s, int64_t l) {
    int64_t t = h->rows, n = h->m.experts, k = h->m.top_k, hid = h->m.hidden, f = h->m.moe_ffn;
    int64_t rows = t * k;
    int32_t overflow;
    s->counts = hf_bytes(h, (size_t)n * 4), s->offsets = hf_bytes(h, (size_t)(n + 1) * 4);
    s->row_of_slot = hf_bytes(h, (size_t)rows * 4), s->slot_of_row = hf_bytes(h, (size_t)rows * 4);
    mf_kernel_permute_map map = {.tokens = t,
                                 .top_k = k,
                                 .experts = n,
                                 .align = 1,
                                 .rows_max = rows,
                                 .index = s->index,
                                 .counts = s->counts,
                                 .offsets = s->offsets,
                                 .row_of_slot = s->row_of_slot,
                                 .slot_of_row = s->slot_of_row,
                                 .overflow = &overflow};
    assert_ok(mf_kernel_permute_map_build(&map, NULL));
    s->rows = hf_floats(h, rows * hid), s->row_prob = hf_floats(h, rows);
    mf_kernel_permute p = {.rows = rows,
                           .cols = hid,
                           .top_k = k,
                           .slot_of_row = s->slot_of_row,
                           .x = s->h2,
                           .out = s->rows};
    assert_ok(mf_kernel_permute_forward(&p, NULL));
    mf_kernel_permute_scalar ps = {
        .rows = rows, .map = s->slot_of_row, .src = s->prob, .out = s->row_prob};
    assert_ok(mf_kernel_permute_scalars(&ps, NULL));
    s->gate_up = hf_floats(h, rows * 2 * f), s->act = hf_floats(h, rows * f);
    s->out = hf_floats(h, rows * hid);
    for (int x = 0; x < n; x++) {
        int64_t o = s->offsets[x], c = s->counts[x];
        hf_linear(hf_expert(h, l, x, 0), c, f, hid, s->rows + o * hid, s->gate_up + o * 2 * f,
                  2 * f);
        hf_linear(hf_expert(h, l, x, 1), c, f, hid, s->rows + o * hid, s->gate_up + o * 2 * f + f,
                  2 * f);
    }
    mf_kernel_swiglu a = {
        .shape = hf_swiglu(rows, f, s->row_prob), .gate_up = s->gate_up, .y = s->act};
    assert_ok(mf_kernel_swiglu_forward(&a, NULL));
    for (int x = 0; x < n; x++) {
        int64_t o = s->offsets[x];
        hf_linear(hf_expert(h, l, x, 2), s->counts[x], hid, f, s->act + o * f, s->out + o * hid,
                  hid);
    }
}

/* y = routed experts + shared expert (+ x2 by the caller) */
static void hf_moe(hf_model *h, hf_layer *s, int64_t l, float *y) {
    int64_t t = h->rows, hid = h->m.hidden;
    hf_route(h, s, l);
    hf_experts(h, s, l);
    float *add = NULL;
    if (h->m.shared_ffn > 0) {
        hf_mlp_run(h, &s->shared, s->h2);
        add = s->shared.out;
    }
    if (h->m.shared_gate) {
        s->gate = hf_floats(h, t);
        add = hf_floats(h, t * hid);
        hf_linear(hf_need(h, hf_name(h, l, "mlp.shared_expert_gate.weight")), t, 1, hid, s->h2,
                  s->gate, 1);
        mf_kernel_gate g = {.rows = t, .cols = hid, .gate = s->gate, .x = s->shared.out, .y = add};
        assert_ok(mf_kernel_gate_forward(&g, NULL));
    }
    mf_kernel_unpermute u = {.tokens = t,
                             .cols = hid,
                             .top_k = h->m.top_k,
                             .row_of_slot = s->row_of_slot,
                             .in = s->out,
                             .add = add,
                             .y = y};
    assert_ok(mf_kernel_unpermute_forward(&u, NULL));
}

/* dh2 += through the routed experts; dprob by slot. */
static void hf_experts_back(hf_model *h, hf_layer *s, int64_t l, const float *dy, float *dh2,
                            float *dprob) {
    int64_t t = h->rows, k = h->m.top_k, hid = h->m.hidden, f = h->m.moe_ffn, rows = t * k;
    float *dout = hf_floats(h, rows * hid), *dact = hf_floats(h, rows * f);
    float *dgu = hf_floats(h, rows * 2 * f), *drow = hf_floats(h, rows);
    mf_kernel_permute p = {
        .rows = rows, .cols = hid, .top_k = k, .slot_of_row = s->slot_of_row, .x = dy, .out = dout};
    assert_ok(mf_kernel_permute_forward(&p, NULL));
    for (int x = 0; x < h->m.experts; x++) {
        int64_t o = s->offsets[x];
        hf_linear_back(hf_expert(h, l, x, 2), s->counts[x], hid, f, s->act + o * f, dout + o * hid,
                       hid, dact + o * f, false);
    }
    mf_kernel_swiglu_grad g = {.shape = hf_swiglu(rows, f, s->row_prob),
                               .gate_up = s->gate_up,
                               .dy = dact,
                               .dgate_up = dgu,
                               .dprob = drow};
    assert_ok(mf_kernel_swiglu_backward(&g, NULL));
    for (int x = 0; x < h->m.experts; x++) {
        int64_t o = s->offsets[x], c = s->counts[x];
        hf_linear_back(hf_expert(h, l, x, 0), c, f, hid, s->rows + o * hid, dgu + o * 2 * f, 2 * f,
                       dout + o * hid, false);
        hf_linear_back(hf_expert(h, l, x, 1), c, f, hid, s->rows + o * hid, dgu + o * 2 * f + f,
                       2 * f, dout + o * hid, true);
    }
    mf_kernel_unpermute u = {.tokens = t,
                             .cols = hid,
                             .top_k = k,
                             .row_of_slot = s->row_of_slot,
                             .in = dout,
                             .add = dh2,
                             .y = dh2};
    assert_ok(mf_kernel_unpermute_forward(&u, NULL));
    mf_kernel_permute_scalar ps = {.rows = rows, .map = s->row_of_slot, .src = drow, .out = dprob};
    assert_ok(mf_kernel_permute_scalars(&ps, NULL));
}

static void hf_moe_back(hf_model *h, hf_layer *s, int64_t l, const float *dy, float *dh2) {
    int64_t t = h->rows, n = h->m.experts, hid = h->m.hidden;
    float *dprob = hf_floats(h, t * h->m.top_k), *dlogits = hf_floats(h, t * n);
    hf_experts_back(h, s, l, dy, dh2, dprob);
    mf_kernel_router_grad g = {.rows = t,
                               .experts = n,
                               .top_k = h->m.top_k,
                               .score = hf_score(h),
                               .normalise = h->m.norm_topk,
                               .scaling = (float)h->m.routed_scaling,
                               .scores = s->scores,
                               .index = s->index,
                               .dprob = dprob,
                               .aux_weight = h->aux_coefficient > 0.0 ? s->aux_weight : NULL,
                               .dlogits = dlogits};
    assert_ok(mf_kernel_router_backward(&g, NULL));
    hf_linear_back(hf_router_weight(h, l), t, n, hid, s->h2, dlogits, n, dh2, true);
    const float *dshared = dy;
    if (h->m.shared_gate) {
        float *dx = hf_floats(h, t * hid), *dgate = hf_floats(h, t);
        mf_kernel_gate_grad gg = {.rows = t,
                                  .cols = hid,
                                  .gate = s->gate,
                                  .x = s->shared.out,
                                  .dy = dy,
                                  .dx = dx,
                                  .dgate = dgate};
        assert_ok(mf_kernel_gate_backward(&gg, NULL));
        hf_linear_back(hf_need(h, hf_name(h, l, "mlp.shared_expert_gate.weight")), t, 1, hid, s->h2,
                       dgate, 1, dh2, true);
        dshared = dx;
    }
    if (h->m.shared_ffn > 0) {
        hf_mlp_back(h, &s->shared, s->h2, dshared, dh2);
    }
}

/* --- the whole model ----------------------------------------------------------------------------
 */
static bool hf_is_moe(const hf_model *h, int64_t l) {
    return h->m.layer_classes[h->m.layer_class[l]].ffn == MF_FFN_MOE;
}

/* Fixed text of a layer's feed-forward prefix, kept for the step. */
static const char *hf_prefix(hf_model *h, int64_t l, const char *rest) {
    char *to = hf_bytes(h, 128);
    snprintf(to, 128, "model.layers.%d.%s", (int)l, rest);
    return to;
}

static float *hf_layer_run(hf_model *h, int64_t l, float *x) {
    int64_t t = h->rows, hid = h->m.hidden;
    hf_layer *s = &h->layer[l];
    memset(s, 0, sizeof *s);
    s->x = x;
    s->h1 = hf_floats(h, t * hid), s->rstd1 = hf_floats(h, t), s->x2 = hf_floats(h, t * hid);
    s->h2 = hf_floats(h, t * hid), s->rstd2 = hf_floats(h, t);
    hf_norm(h, hf_need(h, hf_name(h, l, "input_layernorm.weight")), t, 1, hid, hid, x, NULL, NULL,
            s->h1, s->rstd1);
    hf_attend(h, s, l);
    hf_norm(h, hf_need(h, hf_name(h, l, "post_attention_layernorm.weight")), t, 1, hid, hid, x,
            s->attn, s->x2, s->h2, s->rstd2);
    float *y = hf_floats(h, t * hid);
    if (hf_is_moe(h, l)) {
        bool qwen2 = h->m.shared_gate;
        s->shared.prefix = hf_prefix(h, l, qwen2 ? "mlp.shared_expert." : "mlp.shared_experts.");
        s->shared.width = h->m.shared_ffn;
        hf_moe(h, s, l, y);
    } else {
        s->dense.prefix = hf_prefix(h, l, "mlp.");
        s->dense.width = h->m.ffn;
        hf_mlp_run(h, &s->dense, s->h2);
        hf_add(y, s->dense.out, t * hid);
    }
    hf_add(y, s->x2, t * hid);
    return y;
}

/* dy of the layer's output becomes dx of its input, in place. */
static void hf_layer_back(hf_model *h, int64_t l, float *dy) {
    int64_t t = h->rows, hid = h->m.hidden;
    hf_layer *s = &h->layer[l];
    float *dh = hf_floats(h, t * hid), *dh1 = hf_floats(h, t * hid);
    if (hf_is_moe(h, l)) {
        hf_moe_back(h, s, l, dy, dh);
    } else {
        hf_mlp_back(h, &s->dense, s->h2, dy, dh);
    }
    hf_norm_back(hf_need(h, hf_name(h, l, "post_attention_layernorm.weight")), t, 1, hid, hid,
                 s->x2, s->rstd2, dh, dy, dy);
    hf_attend_back(h, s, l, dy, dh1);
    hf_norm_back(hf_need(h, hf_name(h, l, "input_layernorm.weight")), t, 1, hid, hid, s->x,
                 s->rstd1, dh1, dy, dy);
}

/* Loss of one batch (mean over its labels); gradients in params[].g; logits copied out when asked
 * for; aux_sum (may be NULL) the unweighted sum of the layers' auxiliary losses. */
static double hf_step(hf_model *h, const int32_t *input, const int32_t *label, float *logits_out,
                      double *aux_sum) {
    int64_t t = h->rows, hid = h->m.hidden, v = h->m.vocab;
    int from = h->kept_count;
    for (int i = 0; i < h->count; i++) {
        memset(h->params[i].g, 0, (size_t)h->params[i].n * sizeof(float));
    }
    hf_param *table = hf_need(h, "model.embed_tokens.weight"), *head = hf_need(h, "lm_head.weight");
    float *x = hf_floats(h, t * hid), *norm = hf_floats(h, t * hid), *rstd = hf_floats(h, t);
    mf_kernel_embedding em = {
        .tokens = t, .cols = hid, .vocab = v, .token = input, .table = table->w, .y = x};
    assert_ok(mf_kernel_embedding_forward(&em, NULL));
    for (int64_t l = 0; l < h->m.layers; l++) {
        x = hf_layer_run(h, l, x);
    }
    hf_norm(h, hf_need(h, "model.norm.weight"), t, 1, hid, hid, x, NULL, NULL, norm, rstd);
    float *logits = hf_floats(h, t * v), *stats = hf_floats(h, 3 * t), *lse = hf_floats(h, t);
    float loss = 0.0f;
    hf_linear(head, t, v, hid, norm, logits, v);
    if (logits_out) {
        memcpy(logits_out, logits, (size_t)(t * v) * sizeof(float));
    }
    mf_kernel_ce_stats st = {.rows = t,
                             .cols = v,
                             .stride = v,
                             .vocab = v,
                             .logits = logits,
                             .target = label,
                             .stats = stats};
    assert_ok(mf_kernel_cross_entropy_stats(&st, NULL));
    mf_kernel_ce_combine c = {
        .rows = t, .ranks = 1, .stats = stats, .target = label, .lse = lse, .loss_sum = &loss};
    assert_ok(mf_kernel_cross_entropy_combine(&c, NULL));
    mf_kernel_ce_grad cg = {.rows = t,
                            .cols = v,
                            .stride = v,
                            .vocab = v,
                            .target = label,
                            .lse = lse,
                            .scale = 1.0f / (float)t,
                            .logits = logits};
    assert_ok(mf_kernel_cross_entropy_backward(&cg, NULL));
    float *dx = hf_floats(h, t * hid);
    hf_linear_back(head, t, v, hid, norm, logits, v, dx, false);
    hf_norm_back(hf_need(h, "model.norm.weight"), t, 1, hid, hid, x, rstd, dx, NULL, dx);
    double aux = 0.0;
    for (int64_t l = h->m.layers - 1; l >= 0; l--) {
        hf_layer_back(h, l, dx);
        aux += (double)h->layer[l].aux;
    }
    mf_kernel_embedding_grad eg = {
        .tokens = t, .cols = hid, .vocab = v, .token = input, .dy = dx, .dtable = table->g};
    assert_ok(mf_kernel_embedding_backward(&eg, NULL));
    if (aux_sum) {
        *aux_sum = aux;
    }
    hf_forget(h, from);
    return (double)loss / (double)t;
}

/* Gradient norm before clipping; then one AdamW step. */
static double hf_update(hf_model *h, int64_t step) {
    mf_kernel_grad_tensor *g = calloc((size_t)h->count, sizeof *g);
    mf_kernel_adamw_tensor *a = calloc((size_t)h->count, sizeof *a);
    assert_true(g && a);
    int64_t n = 0;
    for (int i = 0; i < h->count; i++) {
        hf_param *p = &h->params[i];
        if (p->trained) {
            g[n].grad = p->g, g[n].count = p->n;
            a[n].master = p->w, a[n].grad = p->g, a[n].m = p->m, a[n].v = p->v;
            a[n].count = p->n, a[n].decay = 0.1f;
            n++;
        }
    }
    double sum = 0.0;
    float norm, clip;
    mf_kernel_grad_norm k = {.tensors = n, .tensor = g, .sum_sq = &sum};
    assert_ok(mf_kernel_grad_norm_add(&k, NULL));
    mf_kernel_grad_clip c = {
        .sum_sq = &sum, .max_norm = 1.0f, .grad_scale = 1.0f, .norm = &norm, .clip = &clip};
    assert_ok(mf_kernel_grad_clip_factor(&c, NULL));
    mf_kernel_adamw u = {.moments = MF_KERNEL_F32,
                         .lr = 1e-3f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .grad_scale = 1.0f,
                         .step = step,
                         .clip = &clip,
                         .tensors = n,
                         .tensor = a};
    assert_ok(mf_kernel_adamw_update(&u, NULL));
    free(g), free(a);
    return (double)norm;
}

#endif
