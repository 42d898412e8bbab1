/* write_model.c - config.json in Megatron-LM's flags.
 *
 * Facts: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py (fields of
 * the same names) and moe_utils.py (order of top-k and softmax) of Megatron-LM.
 */
#include "launch/write/write.h"

#include <math.h>
#include <string.h>

#define LL(x) ((long long)(x))

static void write_attention(const mf_model *m, mf_settings *s) {
    mf_settings_put(s, "num-attention-heads", "%lld", LL(m->heads));
    if (m->attn == MF_ATTN_MLA) {
        mf_settings_on(s, "multi-latent-attention");
        if (m->q_lora_rank > 0) {
            mf_settings_put(s, "q-lora-rank", "%lld", LL(m->q_lora_rank));
        }
        mf_settings_put(s, "kv-lora-rank", "%lld", LL(m->kv_lora_rank));
        mf_settings_put(s, "qk-head-dim", "%lld", LL(m->qk_nope_head_dim));
        mf_settings_put(s, "qk-pos-emb-head-dim", "%lld", LL(m->qk_rope_head_dim));
        mf_settings_put(s, "v-head-dim", "%lld", LL(m->v_head_dim));
        mf_settings_put(s, "kv-channels", "%lld", LL(m->v_head_dim));
        mf_settings_on(s, "qk-layernorm"); /* the norms of the two low ranks */
        return;
    }
    if (m->kv_heads != m->heads) {
        mf_settings_on(s, "group-query-attention");
        mf_settings_put(s, "num-query-groups", "%lld", LL(m->kv_heads));
    }
    mf_settings_put(s, "kv-channels", "%lld", LL(m->head_dim));
    if (m->qk_norm || m->qk_norm_full) {
        mf_settings_on(s, "qk-layernorm");
    }
    if (m->attn_sinks) {
        mf_settings_put(s, "softmax-type", "learnable");
    }
    if (m->attn_gate == MF_ATTN_GATE_CHANNEL) {
        mf_settings_on(s, "attention-output-gate");
    }
}

/* YaRN with latent attention, whose two factors on the softmax follow from what config.json makes
 * of them (Peng et al. 2023: 1 + 0.1 * mscale * ln(factor)). */
static void write_latent_rope(const mf_model *m, mf_settings *s) {
    const mf_rope_scaling *r = &m->rope_scaling;
    if (r->kind != MF_ROPE_YARN) {
        mf_settings_put(s, "rope-type", "rope");
        mf_settings_on(s, "no-rope-fusion"); /* its kernel is of YaRN alone */
        return;
    }
    double slope = 0.1 * log(r->factor);
    double all = slope > 0 ? (sqrt(r->softmax_scale) - 1.0) / slope : 0.0;
    double scale = slope > 0 ? (r->table_scale * (1.0 + slope * all) - 1.0) / slope : 1.0;
    mf_settings_put(s, "rotary-scaling-factor", "%g", r->factor);
    mf_settings_put(s, "mscale", "%.6g", scale);
    mf_settings_put(s, "mscale-all-dim", "%.6g", all);
}

/* YaRN of whole heads: cosines and sines carry its factor. */
static void write_yarn(const mf_model *m, mf_settings *s) {
    const mf_rope_scaling *r = &m->rope_scaling;
    double slope = 0.1 * log(r->factor);
    mf_settings_put(s, "position-embedding-type", "yarn");
    mf_settings_put(s, "rotary-scaling-factor", "%g", r->factor);
    mf_settings_put(s, "yarn-original-max-position-embeddings", "%.0f", r->original);
    mf_settings_put(s, "yarn-beta-fast", "%g", r->beta_fast);
    mf_settings_put(s, "yarn-beta-slow", "%g", r->beta_slow);
    mf_settings_on(s, r->truncate ? "yarn-correction-range-round-to-int"
                                  : "no-yarn-correction-range-round-to-int");
    mf_settings_put(s, "mscale", "%.6g", slope > 0 ? (r->table_scale - 1.0) / slope : 1.0);
}

static void write_rope(const mf_model *m, const mf_layout *l, mf_settings *s) {
    const mf_rope_scaling *r = &m->rope_scaling;
    int64_t reach = m->max_position > l->seq ? m->max_position : l->seq;
    if (mf_target_rotates_none(m)) {
        mf_settings_put(s, "position-embedding-type", "none");
        mf_settings_put(s, "max-position-embeddings", "%lld", LL(reach));
        return;
    }
    mf_settings_put(s, "position-embedding-type", "rope");
    mf_settings_put(s, "rotary-base", "%.0f", m->rope_theta);
    mf_settings_put(s, "max-position-embeddings", "%lld", LL(reach));
    if (m->attn == MF_ATTN_MLA) {
        write_latent_rope(m, s);
        return;
    }
    if (m->partial_rotary < 1.0) {
        mf_settings_put(s, "rotary-percent", "%g", m->partial_rotary);
    }
    if (r->kind == MF_ROPE_LLAMA3) {
        mf_settings_on(s, "use-rope-scaling");
        mf_settings_put(s, "rope-scaling-factor", "%g", r->factor);
    } else if (r->kind == MF_ROPE_LINEAR && r->factor == floor(r->factor)) {
        mf_settings_put(s, "rotary-seq-len-interpolation-factor", "%.0f", r->factor);
    } else if (r->kind == MF_ROPE_YARN) {
        write_yarn(m, s);
    }
}

static void write_windows(const mf_model *m, mf_settings *s) {
    char freq[4 * MF_MODEL_MAX_LAYERS + 4] = "[";
    int64_t window = 0;
    bool all = true;
    for (int64_t i = 0; i < m->layers; i++) {
        const mf_layer_class *c = &m->layer_classes[m->layer_class[i]];
        size_t used = strlen(freq);
        window = c->window > 0 ? c->window : window;
        all = all && c->window > 0;
        snprintf(freq + used, sizeof freq - used, "%s%d", i > 0 ? "," : "", c->window > 0);
    }
    if (window > 0) {
        mf_settings_put(s, "window-size", "%lld,0", LL(window - 1));
        if (!all) {
            mf_settings_put(s, "window-attn-skip-freq", "%s]", freq);
        }
    }
}

static void write_ffn(const mf_model *m, mf_settings *s) {
    mf_settings_put(s, "ffn-hidden-size", "%lld", LL(m->ffn > 0 ? m->ffn : m->moe_ffn));
    if (m->swiglu_limit > 0) { /* GPT-OSS */
        mf_settings_on(s, "quick-geglu");
        mf_settings_put(s, "glu-linear-offset", "1.0");
        mf_settings_put(s, "activation-func-clamp-value", "%g", m->swiglu_limit);
    } else {
        mf_settings_on(s, m->ungated ? "squared-relu" : "swiglu");
    }
    if (!m->ffn_bias && !m->o_bias) {
        mf_settings_on(s, "disable-bias-linear");
        if (m->qkv_bias) {
            mf_settings_on(s, "add-qkv-bias");
        }
    }
}

bool mf_write_runs(const mf_model *m, bool (*is)(const mf_layer_class *x), char *out, size_t size) {
    bool both[2] = {false, false};
    snprintf(out, size, "(");
    for (int64_t i = 0; i < m->layers;) {
        const bool one = is(&m->layer_classes[m->layer_class[i]]);
        int64_t n = i;
        while (n < m->layers && is(&m->layer_classes[m->layer_class[n]]) == one) {
            n++;
        }
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s[%d]*%lld", i > 0 ? "+" : "", one, LL(n - i));
        both[one] = true;
        i = n;
    }
    size_t used = strlen(out);
    snprintf(out + used, size - used, ")");
    return both[0] && both[1];
}

static bool has_experts(const mf_layer_class *x) {
    return x->ffn == MF_FFN_MOE;
}

static void write_router(const mf_model *m, mf_settings *s) {
    mf_settings_put(s, "moe-router-topk", "%lld", LL(m->top_k));
    switch (m->router_score) {
    case MF_ROUTER_SOFTMAX: /* softmax over the chosen ones is the same after these are normalised
                             */
        if (!m->norm_topk) {
            mf_settings_on(s, "moe-router-pre-softmax");
        }
        break;
    case MF_ROUTER_TOPK_SOFTMAX:
        break;
    case MF_ROUTER_SIGMOID:
    case MF_ROUTER_TOPK_SIGMOID:
        mf_settings_put(s, "moe-router-score-function", "sigmoid");
        break;
    case MF_ROUTER_SPARSEMIXER:
    case MF_ROUTER_SQRTSOFTPLUS:
        break; /* not said: see mf_target_check_model */
    }
    if (m->n_group > 1) {
        mf_settings_put(s, "moe-router-num-groups", "%lld", LL(m->n_group));
        mf_settings_put(s, "moe-router-group-topk", "%lld", LL(m->topk_group));
    }
    if (m->routed_scaling != 1.0 && m->routed_scaling != 0.0) {
        mf_settings_put(s, "moe-router-topk-scaling-factor", "%g", m->routed_scaling);
    }
    if (m->correction_bias) {
        mf_settings_on(s, "moe-router-enable-expert-bias");
        mf_settings_put(s, "moe-router-bias-update-rate", "1e-3");
    }
    mf_settings_put(s, "moe-router-dtype", "fp32");
    if (m->aux_loss_coef > 0) {
        mf_settings_put(s, "moe-router-load-balancing-type", "%s",
                        m->attn == MF_ATTN_MLA ? "seq_aux_loss" : "aux_loss");
        mf_settings_put(s, "moe-aux-loss-coeff", "%g", m->aux_loss_coef);
    } else {
        mf_settings_put(s, "moe-router-load-balancing-type", "none");
    }
}

static void write_experts(const mf_model *m, mf_settings *s) {
    if (m->experts == 0) {
        return;
    }
    mf_settings_put(s, "num-experts", "%lld", LL(m->experts));
    mf_settings_put(s, "moe-ffn-hidden-size", "%lld", LL(m->moe_ffn));
    char layers[1024];
    if (mf_write_runs(m, has_experts, layers, sizeof layers) && !mf_target_is_hybrid(m)) {
        mf_settings_put(s, "moe-layer-freq", "%s", layers);
    }
    if (m->moe_latent > 0) {
        mf_settings_put(s, "moe-latent-size", "%lld", LL(m->moe_latent));
    }
    if (m->shared_ffn > 0) {
        mf_settings_put(s, "moe-shared-expert-intermediate-size", "%lld", LL(m->shared_ffn));
        if (m->shared_gate) {
            mf_settings_on(s, "moe-shared-expert-gate");
        }
    }
    write_router(m, s);
    mf_settings_on(s, "moe-grouped-gemm");
    mf_settings_on(s, "moe-permute-fusion");
}

void mf_write_model(const mf_model *m, const mf_layout *l, mf_settings *out) {
    mf_settings_put(out, "transformer-impl", "transformer_engine");
    if (mf_target_is_hybrid(m)) {
        mf_settings_put(out, "spec",
                        "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec");
    }
    if (!mf_target_is_hybrid(m)) {
        mf_settings_put(out, "num-layers", "%lld", LL(m->layers));
    }
    mf_settings_put(out, "hidden-size", "%lld", LL(m->hidden));
    write_attention(m, out);
    write_ffn(m, out);
    mf_settings_put(out, "normalization", "%s", m->layer_norm ? "LayerNorm" : "RMSNorm");
    mf_settings_put(out, "norm-epsilon", "%g", m->rms_norm_eps);
    if (m->zero_centred_norm) {
        mf_settings_on(out, "apply-layernorm-1p");
    }
    write_rope(m, l, out);
    write_windows(m, out);
    mf_write_mixers(m, out);
    if (!m->tied_embeddings) {
        mf_settings_on(out, "untie-embeddings-and-output-weights");
    }
    mf_settings_put(out, "vocab-size", "%lld", LL(m->vocab));
    mf_settings_put(out, "attention-dropout", "0.0");
    mf_settings_put(out, "hidden-dropout", "0.0");
    write_experts(m, out);
    if (m->mtp_layers > 0) {
        mf_settings_put(out, "mtp-num-layers", "%lld", LL(m->mtp_layers));
        mf_settings_put(out, "mtp-loss-scaling-factor", "0.1");
    }
}
