/* target_model.c - which models a target cannot build.
 *
 * Megatron-LM: what launch/write/write_model.c has no flag for. Megatron-Bridge: the same, as
 * scripts build what flags can say (launch/write/write_bridge.c), but for models that a recipe
 * builds: those of the table below at the commit of launch/target/target.c
 * (src/megatron/bridge/recipes/.../__init__.py).
 */
#include "launch/target/target.h"

#include "core/plan/plan.h"

#include <stdio.h>
#include <string.h>

/* Parts of a model, each once, "; " between. */
typedef struct parts {
    char *text;
    size_t size;
} parts;

static void add(parts *p, bool has, const char *what) {
    size_t used = strlen(p->text);
    if (has && strstr(p->text, what) == NULL) {
        snprintf(p->text + used, p->size - used, "%s%s", used > 0 ? "; " : "", what);
    }
}

static const char *mixer_text(mf_mixer_kind kind) {
    switch (kind) {
    case MF_MIXER_GDN:
        return "linear attention (gated delta nets)";
    case MF_MIXER_KDA:
        return "linear attention (Kimi delta attention)";
    case MF_MIXER_LIGHTNING:
        return "linear attention (lightning)";
    case MF_MIXER_MAMBA2:
        return "state-space layers (Mamba-2)";
    case MF_MIXER_COMPRESSED:
        return "attention over compressed keys";
    case MF_MIXER_NONE:
    case MF_MIXER_ATTENTION:
        break;
    }
    return NULL;
}

/* Layers of Megatron-LM: gated delta nets stand where attention does, before an FFN, and in MTP
 * blocks as in the last layer; what Mamba-2 is made of is fixed. */
static bool knows_mixer(const mf_model *m, const mf_layer_class *x) {
    const mf_mixer_shape *s = &m->mixer;
    const mf_layer_class *last = &m->layer_classes[m->layer_class[m->layers - 1]];
    switch (x->mixer) {
    case MF_MIXER_ATTENTION:
    case MF_MIXER_NONE:
        return true;
    case MF_MIXER_GDN:
        return !mf_target_is_hybrid(m) &&
               (m->mtp_layers == 0 || last->mixer == m->layer_classes[m->mtp_class].mixer);
    case MF_MIXER_MAMBA2:
        return s->conv == 4 && s->conv_bias && s->chunk == 128;
    case MF_MIXER_KDA:
    case MF_MIXER_LIGHTNING:
    case MF_MIXER_COMPRESSED:
        break;
    }
    return false;
}

static void add_hybrid(const mf_model *m, parts *p) {
    if (!mf_target_is_hybrid(m)) {
        return;
    }
    add(p, !mf_target_one_letter(m), "layers of a mixer with a state and a feed-forward part");
    add(p, m->attn == MF_ATTN_MLA, "latent attention in a hybrid");
}

/* Flags speak of all layers at once; a window may skip some of them. */
static void add_layers(const mf_model *m, parts *p) {
    int64_t window = 0;
    for (int i = 0; i < m->classes; i++) {
        const mf_layer_class *c = &m->layer_classes[i];
        const char *mixer = mixer_text(c->mixer);
        add(p, mixer != NULL && !knows_mixer(m, c), mixer != NULL ? mixer : "");
        add(p, c->chunked, "attention inside chunks");
        add(p, c->no_rope && !mf_target_rotates_none(m), "layers whose positions are not rotated");
        add(p, c->window > 0 && window > 0 && window != c->window, "windows of several lengths");
        add(p, c->heads > 0 || c->kv_heads > 0, "layers with heads of another number");
        add(p, c->head_dim > 0 || c->k_is_v, "layers with heads of another width");
        add(p, c->hashed, "experts by a table of tokens");
        add(p, c->no_qk_norm && (m->qk_norm || m->qk_norm_full || m->qk_norm_plain),
            "layers without norms of queries and keys");
        add(p, c->no_sinks && m->attn_sinks, "layers without attention sinks");
        add(p, c->rope_theta > 0 && c->rope_theta != m->rope_theta, "rotary bases by layer");
        add(p, c->partial_rotary > 0 && c->partial_rotary != m->partial_rotary,
            "rotated shares by layer");
        window = c->window > 0 ? c->window : window;
    }
}

static void add_attention(const mf_model *m, parts *p) {
    const bool gqa = m->attn == MF_ATTN_GQA;
    const mf_rope_scaling *r = &m->rope_scaling;
    int64_t freq = 1, offset = 0;
    add(p, m->index_topk > 0 && gqa && m->o_groups == 0, "sparse attention by blocks of keys");
    add(p, m->index_topk > 0 && !gqa && !mf_target_shares_choices(m, &freq, &offset),
        "sparse attention whose layers share choices unevenly");
    add(p, gqa && m->q_lora_rank > 0, "low-rank queries beside whole keys");
    add(p, gqa && m->v_head_dim != m->head_dim, "values of another width than keys");
    add(p, m->value_scale > 0, "a factor on values");
    add(p, m->attn_gate == MF_ATTN_GATE_HEAD, "gates of whole heads");
    add(p, m->attn_gate == MF_ATTN_GATE_CHANNEL && !gqa, "gates on latent attention's output");
    add(p, m->qk_norm_plain, "norms of queries and keys without weights");
    add(p, m->qk_norm_late && !m->qk_norm_plain, "norms of queries and keys behind their rotation");
    add(p, m->qk_norm_full, "norms over whole queries and keys");
    add(p, m->attention_multiplier > 0, "a factor on attention's scores");
    add(p,
        r->kind == MF_ROPE_OTHER ||
            (r->kind == MF_ROPE_LINEAR && (double)(int64_t)r->factor != r->factor),
        "this scaling of rotary positions");
}

static void add_rest(const mf_model *m, parts *p) {
    const bool several = m->ffn_bias != m->o_bias || (m->o_bias && !m->qkv_bias);
    add(p, m->gelu, "GELU in place of SiLU");
    add(p, m->logit_cap > 0, "a cap on logits");
    add(p, m->head_bias, "the output projection's bias");
    add(p, several, "biases in some projections alone");
    add(p, m->embedding_multiplier > 0 || m->residual_multiplier > 0 || m->logits_multiplier > 0,
        "multipliers on embeddings, residuals and logits");
    add(p, m->latent_norm, "a norm behind experts in a latent space");
    add(p, m->hyper_streams > 0, "streams of residuals");
    add(p, m->input_scaled, "probabilities on the experts' input");
    add(p, m->experts > 0 && m->router_score == MF_ROUTER_SPARSEMIXER, "the router's sparse mixer");
    add(p, m->experts > 0 && m->router_score == MF_ROUTER_SQRTSOFTPLUS,
        "the router's root of softplus");
    add(p, m->correction_bias && m->router_score != MF_ROUTER_SIGMOID,
        "a selection bias beside a softmax");
}

static void list_parts(const mf_model *m, char *out, size_t size) {
    parts p = {out, size};
    out[0] = '\0';
    add_hybrid(m, &p);
    add_layers(m, &p);
    add_attention(m, &p);
    add_rest(m, &p);
}

/* --- recipes of Megatron-Bridge ----------------------------------------------------------------
 */

const char *mf_target_recipe(const char *model) {
    static const struct {
        const char *model, *recipe;
    } rows[] = {
        {"llama2-7b", "llama2_7b_pretrain_config"},
        {"llama3-8b", "llama3_8b_pretrain_config"},
        {"llama3-70b", "llama3_70b_pretrain_config"},
        {"llama3-405b", "llama31_405b_pretrain_config"},
        {"qwen2.5-7b", "qwen25_7b_pretrain_config"},
        {"qwen2.5-32b", "qwen25_32b_pretrain_config"},
        {"qwen3-8b", "qwen3_8b_pretrain_config"},
        {"qwen3-30b-a3b", "qwen3_30b_a3b_pretrain_config"},
        {"qwen3-235b-a22b", "qwen3_235b_a22b_pretrain_config"},
        {"deepseek-v2-lite", "deepseek_v2_lite_pretrain_config"},
        {"deepseek-v2", "deepseek_v2_pretrain_config"},
        {"deepseek-v3", "deepseek_v3_pretrain_config"},
        {"moonlight-16b-a3b", "moonlight_16b_pretrain_config"},
        {"kimi-k2", "kimi_k2_pretrain_config"},
        {"gpt-oss-20b", "gpt_oss_20b_pretrain_config"},
        {"gpt-oss-120b", "gpt_oss_120b_pretrain_config"},
        {"olmoe-1b-7b", "olmoe_7b_pretrain_config"},
        {"glm-4.5", "glm45_355b_pretrain_config"},
        {"glm-5.2", "glm52_pretrain_416gpu_h100_bf16_config"},
        {"minimax-m3",
         "minimax_m3_pretrain_config"}, /* attends to all keys, as this program does */
        {"qwen3-next-80b-a3b", "qwen3_next_80b_a3b_pretrain_config"},
        {"nemotron-3-nano", "nemotron_3_nano_pretrain_config"},
        {"nemotron-3-super", "nemotron_3_super_pretrain_config"},
        {"nemotron-3-ultra", "nemotron_3_ultra_pretrain_config"},
        {"nemotron-3.5-lightning", "nemotron_3_5_lightning_pretrain_config"},
        {"nemotron-h-56b", "nemotronh_56b_pretrain_config"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].model, model) == 0) {
            return rows[i].recipe;
        }
    }
    return NULL;
}

/* Recipes that build another model, or none where Megatron-Core is the release that
 * Megatron-Bridge pins (3rdparty/Megatron-LM). */
static const char *useless_recipe(const char *model) {
    static const struct {
        const char *model, *why;
    } rows[] = {
        /* transformer_config.py of the release has neither dsv4_hybrid nor moe_n_hash_layers nor
         * hyper-connections; examples/models/deepseek_v4/README.md asks for Megatron-Core's dev. */
        {"deepseek-v4-flash", "deepseek_v4_flash_pretrain_config needs a development branch of "
                              "Megatron-Core"},
        /* step35_bridge.py, where transformer_config.py has no head_wise_attn_gate: 199,997,706,240
         * parameters by model_verification_cards/step35-flash. */
        {"step-3.5-flash", "step35_196b_a11b_pretrain_config makes of each head's gate one for "
                           "every channel"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].model, model) == 0) {
            return rows[i].why;
        }
    }
    return NULL;
}

/* Is it the shipped model of that name, but for depths of MTP, which are a setting? */
static bool is_shipped(const mf_model *m, const char *name) {
    mf_model_identity have, built;
    mf_model shipped;
    char set[48];
    const char *const sets[] = {set};
    if (mf_model_load(name, &shipped, NULL) != MF_OK) {
        return false;
    }
    snprintf(set, sizeof set, "num_nextn_predict_layers=%lld", (long long)m->mtp_layers);
    if (m->mtp_layers != shipped.mtp_layers &&
        mf_model_load_with(name, sets, 1, &shipped, NULL) != MF_OK) {
        return false;
    }
    mf_model_identify(m, &have);
    mf_model_identify(&shipped, &built);
    return strcmp(have.fingerprint, built.fingerprint) == 0;
}

/* Is it the shipped model of that name, all layers alike, but for their number? */
static bool is_shipped_but_for_layers(const mf_model *m, const char *name) {
    mf_model_identity have, built;
    mf_model shipped;
    char layers[48];
    const char *const sets[] = {layers};
    snprintf(layers, sizeof layers, "num_hidden_layers=%lld", (long long)m->layers);
    if (m->classes != 1 || m->mtp_layers > 0 ||
        mf_model_load_with(name, sets, 1, &shipped, NULL) != MF_OK) {
        return false;
    }
    mf_model_identify(m, &have);
    mf_model_identify(&shipped, &built);
    return strcmp(have.fingerprint, built.fingerprint) == 0;
}

bool mf_target_has_recipe(const mf_model *m, const char *name) {
    return mf_target_recipe(name) != NULL &&
           (is_shipped(m, name) || is_shipped_but_for_layers(m, name));
}

mf_status mf_target_check_model(mf_target t, const mf_model *m, const char *name, mf_err *e) {
    const char *program = mf_target_info_of(t)->program;
    char text[512];
    list_parts(m, text, sizeof text);
    if (text[0] == '\0' || (t == MF_TARGET_BRIDGE && mf_target_has_recipe(m, name))) {
        return MF_OK;
    }
    const bool other = t == MF_TARGET_MEGATRON && mf_target_has_recipe(m, name);
    const char *why = t == MF_TARGET_BRIDGE && is_shipped(m, name) ? useless_recipe(name) : NULL;
    return mf_err_set(e, MF_INFEASIBLE, "%s has no %s for parts of %s: %s%s%s%s", program,
                      t == MF_TARGET_BRIDGE ? "recipe or setting" : "flag", name, text,
                      other ? "; --format bridge has a recipe that builds it" : "",
                      why != NULL ? "; its recipe " : "", why != NULL ? why : "");
}
