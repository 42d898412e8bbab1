/* model_limits.c - in words, what lowering or the executor cannot do of a model yet. */
#include "core/model/model.h"

#include <stddef.h>

static const char *mixer_text(mf_mixer_kind k) {
    switch (k) {
    case MF_MIXER_ATTENTION:
        break;
    case MF_MIXER_NONE:
        return "layers without a mixer";
    case MF_MIXER_GDN:
        return "gated delta nets";
    case MF_MIXER_KDA:
        return "Kimi delta attention";
    case MF_MIXER_MAMBA2:
        return "Mamba-2";
    case MF_MIXER_LIGHTNING:
        return "lightning attention";
    case MF_MIXER_COMPRESSED:
        return "attention over compressed keys";
    }
    return NULL;
}

/* The class of a layer, MTP blocks last. */
static const mf_layer_class *class_at(const mf_model *m, int64_t i) {
    return &m->layer_classes[i < m->layers ? m->layer_class[i] : m->mtp_class];
}

const char *mf_model_not_lowered(const mf_model *m) {
    bool beside = m->attn_gate != MF_ATTN_GATE_NONE || m->qk_norm || m->qk_norm_full;
    return m->attn == MF_ATTN_GQA && m->q_lora_rank > 0 && beside
               ? "low-rank queries beside gates or norms of q and k"
               : NULL;
}

/* What layers of a class need that no backend has. */
static const char *class_not_executed(const mf_layer_class *x) {
    const char *mixer = mixer_text(x->mixer);
    return x->head_dim > 0 || x->k_is_v ? "heads of several widths"
           : mixer != NULL              ? mixer
           : x->ffn == MF_FFN_NONE      ? "layers without an FFN"
           : x->hashed                  ? "experts by a table of tokens"
                                        : NULL;
}

const char *mf_model_not_executed(const mf_model *m) {
    const char *what = mf_model_not_lowered(m);
    for (int64_t i = 0; i < m->layers + (m->mtp_layers > 0) && what == NULL; i++) {
        what = class_not_executed(class_at(m, i));
    }
    if (what != NULL) {
        return what;
    }
    bool biased = m->o_bias || m->ffn_bias;
    bool copies = m->tied_embeddings || m->mtp_layers > 0;
    return m->index_topk > 0 ? "sparse attention with an indexer"
           : m->attn == MF_ATTN_GQA && m->q_lora_rank > 0 && m->v_head_dim != m->head_dim
               ? "low-rank queries beside values of another width"
           : m->moe_latent > 0 ? "experts in a latent space"
           : m->gelu           ? "GELU"
           : m->logit_cap > 0  ? "a cap on logits"
           : m->ungated        ? "FFNs without a gate"
           : m->attn_gate == MF_ATTN_GATE_CHANNEL && m->attn == MF_ATTN_MLA
               ? "gates on latent attention's output"
           : m->attn_gate == MF_ATTN_GATE_HEAD && m->qkv_bias ? "gates beside biases of q, k and v"
           : m->rope_scaling.kind == MF_ROPE_OTHER            ? "this rope_scaling"
           : m->experts > MF_MODEL_MOST_EXPERTS_RUN           ? "so many experts"
           : m->experts > 0 && m->top_k > MF_MODEL_MOST_CHOICES_RUN ? "so many experts a token"
           : m->router_score == MF_ROUTER_SQRTSOFTPLUS              ? "this router"
           : m->layer_norm && m->mtp_layers > 0                     ? "LayerNorm in MTP blocks"
           : m->head_bias && copies               ? "a bias of a shared output projection"
           : m->value_scale > 0 && m->o_bias      ? "a factor on v beside a bias"
           : m->residual_multiplier > 0 && biased ? "factors on residuals beside biases"
           : m->input_scaled && (m->ffn_bias || m->swiglu_limit > 0)
               ? "probabilities on the experts' input beside biases"
               : NULL;
}

mf_status mf_model_check_executed(const mf_model *m, mf_err *e) {
    const char *what = mf_model_not_executed(m);
    return what == NULL
               ? MF_OK
               : mf_err_set(e, MF_INFEASIBLE, "%s cannot be trained yet: %s", m->name, what);
}

const char *mf_model_not_on_gpu(const mf_model *m) {
    return mf_model_not_executed(m);
}
