/* hf_base.h - of tests/support/hf_model.h: what the model keeps, its parameters, and the small
 * steps that all of its parts take. */
#ifndef MF_TESTS_HF_BASE_H
#define MF_TESTS_HF_BASE_H

#include "tests/support/rope_table.h"
#include "tests/support/test.h"

#include "core/model/model.h"
#include "executor/files/safetensors.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/rope.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/gate.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
#include "kernels/moe/swiglu.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/rows/bias.h"
#include "kernels/rows/cast.h"
#include "kernels/rows/rmsnorm.h"

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
    float *count, *aux_weight;
    double aux;
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
    assert_below(h->kept_count, HF_KEPT);
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
    assert_at_most(h->m.layers, HF_LAYERS);
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
    plain_rope_table(h->m.rope_theta, rot, seq, h->cos, h->sin);
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

#endif
