/* hf_model.h - a whole decoder, forward and backward, out of reference kernels on one rank: what
 * the kernels must add up to, held against Hugging Face by test_kernel_hf.c. Dense and MoE layers,
 * GQA and MLA, float32. Plain and slow: every value is kept. */
#ifndef MF_TESTS_HF_MODEL_H
#define MF_TESTS_HF_MODEL_H

#include "tests/support/hf_attention.h"
#include "tests/support/hf_moe.h"

#include "kernels/optimizer/grad_norm.h"
#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/embedding.h"

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
    double loss = 0.0;
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
    mf_kernel_ce_combine c = {.rows = t,
                              .ranks = 1,
                              .stats = stats,
                              .target = label,
                              .lse = lse,
                              .loss_sum = &loss,
                              .loss_scale = 1.0};
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
        aux += h->layer[l].aux;
    }
    mf_kernel_embedding_grad eg = {
        .tokens = t, .cols = hid, .vocab = v, .token = input, .dy = dx, .dtable = table->g};
    assert_ok(mf_kernel_embedding_backward(&eg, NULL));
    if (aux_sum) {
        *aux_sum = aux;
    }
    hf_forget(h, from);
    return loss / (double)t;
}

/* Gradient norm before clipping; then one AdamW step. */
static double hf_update(hf_model *h, int64_t step) {
    mf_kernel_grad_tensor *g = calloc((size_t)h->count, sizeof *g);
    mf_kernel_adamw_tensor *a = calloc((size_t)h->count, sizeof *a);
    assert_true(g);
    assert_true(a);
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
