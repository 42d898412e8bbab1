/* model_identity.c - what tells one model from another. */
#include "core/base/fingerprint.h"
#include "core/model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Fields that newer families added count only where they are set, so that fingerprints of older
 * models stay. */
static uint64_t hash_marks(uint64_t h, const double *marks, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (marks[i] < 0.0 || marks[i] > 0.0) {
            h = mf_fingerprint_f64(mf_fingerprint_i64(h, (int64_t)i), marks[i]);
        }
    }
    return h;
}

static uint64_t hash_model_marks(uint64_t h, const mf_model *m) {
    const mf_mixer_shape *x = &m->mixer;
    const double marks[] = {m->head_bias,
                            m->layer_norm,
                            m->zero_centred_norm,
                            m->embedding_multiplier,
                            m->residual_multiplier,
                            m->logits_multiplier,
                            m->qk_norm_plain,
                            m->qk_norm_late,
                            m->attn_gate,
                            m->attention_multiplier,
                            m->value_scale,
                            m->temperature_scale,
                            (double)m->index_heads,
                            (double)m->index_head_dim,
                            (double)m->index_topk,
                            (double)x->key_heads,
                            (double)x->key_dim,
                            (double)x->value_heads,
                            (double)x->value_dim,
                            (double)x->conv,
                            x->conv_bias,
                            x->full_rank_gate,
                            (double)x->chunk,
                            m->ungated,
                            m->input_scaled,
                            (double)m->moe_latent,
                            m->latent_norm,
                            m->temperature_floor,
                            m->router_jitter,
                            (double)m->o_groups,
                            (double)m->o_lora_rank,
                            (double)m->hyper_streams,
                            m->gelu,
                            m->logit_cap};
    return hash_marks(h, marks, COUNT(marks));
}

static uint64_t hash_class_marks(uint64_t h, const mf_layer_class *x) {
    const double marks[] = {x->mixer,
                            x->chunked,
                            x->no_rope,
                            x->no_qk_norm,
                            x->no_sinks,
                            x->indexer,
                            (double)x->heads,
                            (double)x->kv_heads,
                            x->rope_theta,
                            x->partial_rotary,
                            (double)x->head_dim,
                            x->k_is_v,
                            (double)x->compress,
                            x->hashed};
    return hash_marks(h, marks, COUNT(marks));
}

void mf_model_identify(const mf_model *m, mf_model_identity *out) {
    const int64_t whole[] = {m->layers,
                             m->mtp_layers,
                             m->hidden,
                             m->vocab,
                             m->tied_embeddings,
                             m->attn,
                             m->heads,
                             m->kv_heads,
                             m->head_dim,
                             m->q_lora_rank,
                             m->kv_lora_rank,
                             m->qk_nope_head_dim,
                             m->qk_rope_head_dim,
                             m->v_head_dim,
                             m->qk_norm,
                             m->qk_norm_full,
                             m->qkv_bias,
                             m->o_bias,
                             m->attn_sinks,
                             m->rope_interleave,
                             m->ffn,
                             m->ffn_bias,
                             m->moe_ffn,
                             m->experts,
                             m->top_k,
                             m->shared_ffn,
                             m->shared_gate,
                             m->router_score,
                             m->norm_topk,
                             m->n_group,
                             m->topk_group,
                             m->router_bias,
                             m->correction_bias,
                             m->classes,
                             m->mtp_class};
    const double real[] = {m->rms_norm_eps, m->rope_theta,     m->partial_rotary,
                           m->swiglu_limit, m->routed_scaling, m->aux_loss_coef};
    uint64_t h = MF_FINGERPRINT_SEED;
    for (size_t i = 0; i < COUNT(whole); i++) {
        h = mf_fingerprint_i64(h, whole[i]);
    }
    for (size_t i = 0; i < COUNT(real); i++) {
        h = mf_fingerprint_f64(h, real[i]);
    }
    for (int i = 0; i < m->classes; i++) {
        h = mf_fingerprint_i64(h, m->layer_classes[i].ffn);
        h = mf_fingerprint_i64(h, m->layer_classes[i].window);
        h = hash_class_marks(h, &m->layer_classes[i]);
    }
    h = hash_model_marks(h, m);
    for (int64_t i = 0; i < m->layers; i++) {
        h = mf_fingerprint_i64(h, m->layer_class[i]);
    }
    mf_model_counts counts;
    mf_model_count(m, &counts);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", m->name);
    snprintf(out->family, sizeof out->family, "%s", m->family);
    snprintf(out->fingerprint, sizeof out->fingerprint, "%016" PRIx64, h);
    out->layers = m->layers;
    out->mtp_layers = m->mtp_layers;
    out->hidden = m->hidden;
    out->experts = m->experts;
    out->parameters = counts.total;
    memcpy(out->set, m->set, sizeof out->set);
}
