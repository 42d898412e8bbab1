/* family_gemma4.c - Gemma 4 with experts, its text: five window layers to one that sees everything
 * with wider and fewer heads, whose values are its keys; a dense FFN beside the experts of every
 * layer, which counts as their shared expert. */
#include "core/model/model_family.h"

#include <math.h>
#include <string.h>

/* Refuses what smaller models of the family have and this reader does not read. */
static void refuse_others(mf_config *c) {
    static const char *const zero[] = {"hidden_size_per_layer_input", "num_kv_shared_layers"};
    for (size_t i = 0; i < sizeof zero / sizeof zero[0]; i++) {
        if (mf_config_opt_int(c, MF_KEYS(zero[i]), 0, INT64_C(1) << 40, 0) > 0) {
            mf_config_fail(c, zero[i], "\"%s\": only 0 is supported", zero[i]);
        }
    }
    if (mf_config_opt_bool(c, MF_KEYS("use_double_wide_mlp"), false)) {
        mf_config_fail(c, "use_double_wide_mlp", "\"use_double_wide_mlp\" is not supported");
    }
}

static void read(mf_config *c, mf_model *m) {
    refuse_others(c);
    m->qk_norm = true;
    m->gelu = true;
    m->logit_cap = mf_config_opt_f64(c, MF_KEYS("final_logit_softcapping"), 0, 1e6, 0);
    m->embedding_multiplier = sqrt((double)m->hidden);
    const char *act = mf_config_opt_string(c, MF_KEYS("hidden_activation"), "gelu_pytorch_tanh");
    if (strcmp(act, "gelu_pytorch_tanh") != 0) {
        mf_config_fail(c, "hidden_activation", "\"hidden_activation\": expected gelu_pytorch_tanh");
    }
    if (mf_config_opt_bool(c, MF_KEYS("enable_moe_block"), false)) {
        mf_model_read_experts(c, m, "moe_intermediate_size");
        m->norm_topk = true;
        m->shared_ffn = mf_config_int(c, MF_KEYS("intermediate_size"), 1, MF_CONFIG_FFN_MAX);
    } else { /* what experts would be like */
        mf_config_has(c, "num_experts");
        mf_config_has(c, "top_k_experts");
        mf_config_has(c, "moe_intermediate_size");
    }
    mf_config_word(c, "use_bidirectional_attention", MF_KEYS("", "vision")); /* of images alone */
    mf_config_opt_int(c, MF_KEYS("vocab_size_per_layer_input"), 0, INT64_C(1) << 40, 0);
    mf_config_leave_out(c, "norms behind the halves of a layer, scales of experts and layers");
}

static void layers(mf_config *c, const mf_model *m, mf_layer_map *map) {
    mf_ffn_kind ffn = m->experts > 0 ? MF_FFN_MOE : MF_FFN_DENSE;
    mf_layer_class window = {.ffn = ffn}, full = {.ffn = ffn};
    const mf_json_value *types = mf_model_layer_list(c, "layer_types", m->layers);
    window.window = mf_config_opt_int(c, MF_KEYS("sliding_window"), 1, INT64_C(1) << 40, 512);
    full.head_dim =
        mf_config_opt_int(c, MF_KEYS("global_head_dim"), 1, MF_CONFIG_WIDTH_MAX, m->head_dim);
    full.kv_heads = mf_config_opt_int(c, MF_KEYS("num_global_key_value_heads"), 1,
                                      MF_CONFIG_WIDTH_MAX, m->kv_heads);
    full.k_is_v = mf_config_opt_bool(c, MF_KEYS("attention_k_eq_v"), false);
    mf_model_read_typed_rope(c, "sliding_attention", &window);
    mf_model_read_typed_rope(c, "full_attention", &full);
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        bool slides = types != NULL ? mf_model_layer_either(c, types, i, "sliding_attention",
                                                            "full_attention")
                                    : (i + 1) % 6 != 0;
        map->at[i] = slides ? window : full;
    }
}

const mf_model_family mf_family_gemma4 = {
    .name = "gemma4",
    .same = {"gemma4_text"},
    .architectures = {"Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .head_dim = 256,
    .eps = 1e-6,
    .theta = 10000,
    .tied = true,
    .act = "",
    .read = read,
    .layers = layers,
    .hub = {.shared = "mlp"},
};
