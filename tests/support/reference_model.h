/* reference_model.h - every model family in plain double precision, token by token, number by
 * number on a tape: losses, every gradient, and AdamW steps. Shares with the executor the reading
 * of a config.json and the names and shapes of weights (core/model/model.h); nothing of what is
 * computed.
 *
 * Formulas follow the families' published code and papers: one loop for each sum. */
#ifndef MF_TESTS_REFERENCE_MODEL_H
#define MF_TESTS_REFERENCE_MODEL_H

#include "tests/support/reference_attention.h"
#include "tests/support/reference_moe.h"

static inline void ref_layer(ref_model *r, int64_t layer, uint8_t class_index, num *x) {
    const mf_model *m = &r->m;
    int64_t tokens = r->o.samples * r->o.seq, h = m->hidden;
    num *normed = calloc((size_t)(tokens * h), sizeof *normed);
    snprintf(r->prefix, sizeof r->prefix, "model.layers.%lld.", (long long)layer);
    ref_attention(r, x, m->layer_classes[class_index].window);
    for (int64_t i = 0; i < tokens; i++) {
        ref_norm(r, "post_attention_layernorm", x + i * h, h, normed + i * h);
    }
    if (m->layer_classes[class_index].ffn == MF_FFN_MOE) {
        ref_moe(r, normed, x, r->load + layer * m->experts);
    } else {
        for (int64_t i = 0; i < tokens; i++) {
            num y[REF_WIDE];
            ref_mlp(r, "mlp", m->ffn, normed + i * h, y);
            for (int64_t c = 0; c < h; c++) {
                x[i * h + c] = t_add(&r->t, x[i * h + c], y[c]);
            }
        }
    }
    free(normed);
}

/* Sum over tokens whose label is known of the cross-entropy; labels lie `ahead` places on. */
static inline num ref_loss(ref_model *r, const char *norm, const num *x, const int32_t *tokens,
                           int64_t ahead) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    const ref_tensor *head =
        ref_find(r, m->tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
    num sum = tape_put(t, 0.0), *logit = calloc((size_t)m->vocab, sizeof *logit);
    for (int64_t s = 0; s < r->o.samples; s++) {
        for (int64_t i = 0; i + ahead <= r->o.seq; i++) {
            num normed[REF_WIDE], total = tape_put(t, 0.0);
            int32_t label = tokens[s * (r->o.seq + 1) + i + ahead];
            ref_norm(r, norm, x + (s * r->o.seq + i) * m->hidden, m->hidden, normed);
            for (int64_t v = 0; v < m->vocab; v++) {
                logit[v] = tape_put(t, 0.0);
                for (int64_t c = 0; c < m->hidden; c++) {
                    logit[v] = t_fma(t, logit[v], head->at + (num)(v * m->hidden + c), normed[c]);
                }
                total = t_add(t, total, t_exp(t, logit[v]));
            }
            sum = t_add(t, sum, t_sub(t, t_log(t, total), logit[label]));
        }
    }
    free(logit);
    return sum;
}

static inline num ref_embed(ref_model *r, int32_t token, int64_t c) {
    return ref_find(r, "model.embed_tokens.weight")->at + (num)(token * r->m.hidden + c);
}

/* Depth d (from 0) of multi-token prediction on the hidden states `x`, which become its own. */
static inline num ref_mtp(ref_model *r, int64_t d, num *x, const int32_t *tokens) {
    const mf_model *m = &r->m;
    int64_t h = m->hidden, seq = r->o.seq;
    snprintf(r->prefix, sizeof r->prefix, "model.layers.%lld.", (long long)(m->layers + d));
    for (int64_t s = 0; s < r->o.samples; s++) {
        for (int64_t i = 0; i < seq; i++) {
            num both[REF_WIDE], embedded[REF_WIDE], *row = x + (s * seq + i) * h;
            int64_t at = i + d + 1; /* past the end nothing is known: token 0, no label */
            int32_t token = at <= seq ? tokens[s * (seq + 1) + at] : 0;
            for (int64_t c = 0; c < h; c++) {
                embedded[c] = ref_embed(r, token, c);
            }
            ref_norm(r, "enorm", embedded, h, both);
            ref_norm(r, "hnorm", row, h, both + h);
            ref_linear(r, "eh_proj", both, row);
        }
    }
    ref_layer(r, m->layers + d, m->mtp_class, x);
    return ref_loss(r, "shared_head.norm", x, tokens, d + 2);
}

/* Losses and every gradient of a batch: tokens [samples][seq + 1]. */
static inline void ref_gradients(ref_model *r, const int32_t *tokens) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    int64_t h = m->hidden, n = r->o.samples * r->o.seq;
    t->count = 0;
    r->r = (ref_result){.nearest = 1e9};
    memset(r->load, 0, (size_t)((m->layers + m->mtp_layers) * m->experts) * sizeof *r->load);
    for (int i = 0; i < r->count; i++) {
        ref_tensor *w = &r->tensor[i];
        for (int64_t k = 0; k < w->rows * w->cols; k++) {
            num at = tape_put(t, w->value[k]);
            w->at = k == 0 ? at : w->at;
        }
    }
    r->aux = tape_put(t, 0.0);
    r->z = tape_put(t, 0.0);
    num *x = calloc((size_t)(n * h), sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        int32_t token = tokens[i / r->o.seq * (r->o.seq + 1) + i % r->o.seq];
        for (int64_t c = 0; c < h; c++) {
            x[i * h + c] = ref_embed(r, token, c);
        }
    }
    for (int64_t i = 0; i < m->layers; i++) {
        ref_layer(r, i, m->layer_class[i], x);
    }
    r->prefix[0] = '\0';
    num loss = t_line(t, ref_loss(r, "model.norm", x, tokens, 1), 1.0 / (double)n, 0.0);
    r->r.lm_loss = val(t, loss);
    r->r.mtp_loss = 0.0;
    for (int64_t d = 0; d < m->mtp_layers; d++) {
        num sum = ref_mtp(r, d, x, tokens);
        double labels = (double)(r->o.samples * (r->o.seq - d - 1));
        double weight = r->o.mtp_coef / (double)m->mtp_layers / labels;
        r->r.mtp_loss += val(t, sum) / (double)m->mtp_layers / labels;
        loss = t_add(t, loss, t_line(t, sum, weight, 0.0));
    }
    r->r.aux_loss = val(t, r->aux);
    r->r.z_loss = val(t, r->z);
    loss = t_add(t, loss, t_line(t, r->aux, r->o.aux_coef, 0.0));
    loss = t_add(t, loss, t_line(t, r->z, r->o.z_coef, 0.0));
    tape_backward(t, loss);
    double sum = 0.0;
    for (int i = 0; i < r->count; i++) {
        ref_tensor *w = &r->tensor[i];
        for (int64_t k = 0; k < w->rows * w->cols && !w->buffer; k++) {
            w->grad[k] = t->node[w->at + (num)k].grad;
            sum += w->grad[k] * w->grad[k];
        }
    }
    r->r.grad_norm = sqrt(sum);
    free(x);
}

/* One AdamW update by the gradients that stand, and of the correction biases. */
static inline void ref_update(ref_model *r) {
    const ref_options *o = &r->o;
    const mf_model *m = &r->m;
    double n = (double)++r->step;
    double clip = r->r.grad_norm > o->clip ? o->clip / (r->r.grad_norm + 1e-6) : 1.0;
    for (int i = 0; i < r->count; i++) {
        ref_tensor *w = &r->tensor[i];
        for (int64_t k = 0; k < w->rows * w->cols && !w->buffer; k++) {
            double g = clip * w->grad[k];
            w->m[k] = o->beta1 * w->m[k] + (1.0 - o->beta1) * g;
            w->v[k] = o->beta2 * w->v[k] + (1.0 - o->beta2) * g * g;
            double mean = w->m[k] / (1.0 - pow(o->beta1, n));
            double square = w->v[k] / (1.0 - pow(o->beta2, n));
            w->value[k] -= o->lr * (mean / (sqrt(square) + o->eps) + o->decay * w->value[k]);
        }
    }
    for (int64_t layer = 0; layer < m->layers + m->mtp_layers; layer++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%lld.mlp.gate.e_score_correction_bias",
                 (long long)layer);
        ref_tensor *bias = ref_find(r, name);
        const double *load = r->load + layer * m->experts;
        double mean = 0.0;
        for (int64_t e = 0; e < m->experts; e++) {
            mean += load[e] / (double)m->experts;
        }
        for (int64_t e = 0; e < m->experts && bias != NULL; e++) {
            bias->value[e] += load[e] < mean ? o->bias_rate : load[e] > mean ? -o->bias_rate : 0.0;
        }
    }
}

#endif
