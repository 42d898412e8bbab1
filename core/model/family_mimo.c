/* family_mimo.c - MiMo-V2-Flash: window layers with KV heads, a rotary base and sinks of their own,
 * values narrower than keys; MiMo-7B: Qwen2 with a depth of multi-token prediction. */
#include "core/model/model_family.h"

static void read_v2(mf_config *c, mf_model *m) {
    m->v_head_dim =
        mf_config_opt_int(c, MF_KEYS("v_head_dim"), 1, MF_CONFIG_WIDTH_MAX, m->head_dim);
    m->value_scale = mf_config_opt_f64(c, MF_KEYS("attention_value_scale"), 0, 1e6, 0);
    m->attn_sinks = mf_config_opt_bool(c, MF_KEYS("add_swa_attention_sink_bias"), true);
    if (mf_config_opt_bool(c, MF_KEYS("add_full_attention_sink_bias"), false)) {
        mf_config_fail(c, "add_full_attention_sink_bias",
                       "\"add_full_attention_sink_bias\": sinks are for window layers only");
    }
    mf_model_read_experts(c, m, "moe_intermediate_size");
    mf_model_read_scoring(c, m, "sigmoid");
    m->correction_bias = true;
    m->norm_topk = true;
    mf_model_read_groups(c, m, 1, 1);
    mf_model_read_mtp(c, m);
}

static void layers(mf_config *c, const mf_model *m, mf_layer_map *map) {
    mf_layer_class full = {.no_sinks = true}, window = {.kv_heads = 2 * m->kv_heads};
    mf_model_read_typed_rope(c, "full_attention", &full);
    mf_model_read_typed_rope(c, "sliding_attention", &window);
    window.rope_theta = mf_config_opt_f64(c, MF_KEYS("swa_rope_theta"), 1, 1e18, window.rope_theta);
    window.window = mf_config_opt_int(c, MF_KEYS("sliding_window", "sliding_window_size"), 1,
                                      INT64_C(1) << 40, 128);
    mf_config_opt_int(c, MF_KEYS("attention_chunk_size"), 0, INT64_C(1) << 40, 0); /* the same */
    window.kv_heads = mf_config_opt_int(c, MF_KEYS("swa_num_key_value_heads"), 1,
                                        MF_CONFIG_WIDTH_MAX, window.kv_heads);
    window.heads =
        mf_config_opt_int(c, MF_KEYS("swa_num_attention_heads"), 1, MF_CONFIG_WIDTH_MAX, m->heads);
    if (mf_config_opt_int(c, MF_KEYS("swa_head_dim"), 1, MF_CONFIG_WIDTH_MAX, m->head_dim) !=
            m->head_dim ||
        mf_config_opt_int(c, MF_KEYS("swa_v_head_dim"), 1, MF_CONFIG_WIDTH_MAX, m->v_head_dim) !=
            m->v_head_dim) {
        mf_config_fail(c, "swa_head_dim",
                       "\"swa_head_dim\": window layers with heads of another "
                       "width are not supported");
    }
    const mf_json_value *types = mf_model_layer_list(c, "layer_types", m->layers);
    const mf_json_value *flags = mf_model_layer_list(c, "hybrid_layer_pattern", m->layers);
    if (types == NULL && flags == NULL) {
        mf_config_fail(c, "hybrid_layer_pattern", "\"hybrid_layer_pattern\" is missing");
    }
    for (int64_t i = 0; i <= m->layers && c->status == MF_OK; i++) {
        int64_t entry = i < m->layers ? i : m->layers - 1;
        bool slides = types != NULL ? mf_model_layer_either(c, types, entry, "sliding_attention",
                                                            "full_attention")
                                    : mf_model_layer_flag(c, flags, entry);
        mf_ffn_kind ffn = map->at[i].ffn;
        map->at[i] = slides ? window : full;
        map->at[i].ffn = ffn;
    }
}

static void read_7b(mf_config *c, mf_model *m) {
    mf_config_opt_bool(c, MF_KEYS("attention_bias"), true); /* q, k and v have one in any case */
    mf_model_read_mtp(c, m);
}

const mf_model_family mf_family_mimo_v2_flash = {
    .name = "mimo_v2_flash",
    .architectures = {"MiMoV2FlashForCausalLM"},
    .bias = MF_BIAS_ATTENTION_QKV,
    .moe = MF_MOE_FIRST_DENSE,
    .eps = 1e-5,
    .theta = 5e6,
    .partial_rotary = 0.334,
    .read = read_v2,
    .layers = layers,
    .hub = {.sinks = "self_attn.attention_sink_bias"},
};

const mf_model_family mf_family_mimo = {
    .name = "mimo",
    .architectures = {"MiMoForCausalLM"},
    .bias = MF_BIAS_QKV,
    .window = MF_WINDOW_SWITCHED,
    .window_default = 4096,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_7b,
};
