/* family_step3.c - Step-3 (low-rank queries, one KV head) and Step-3.5 (window layers with more
 * heads, a gate on each head's output). */
#include "core/model/model_family.h"

#include <stdlib.h>
#include <string.h>

/* The shared expert has a width of its own. */
static void read_experts(mf_config *c, mf_model *m) {
    mf_model_read_experts(c, m, "moe_intermediate_size");
    mf_model_read_groups(c, m, 1, 1);
    m->shared_ffn = mf_config_int(c, MF_KEYS("share_expert_dim"), 0, MF_CONFIG_FFN_MAX);
}

/* "moe_layers_enum": a text "3,4,...", or a list. */
static void map_experts(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *v = mf_config_value(c, MF_KEYS("moe_layers_enum"));
    const char *text = NULL;
    if (v == NULL || c->status != MF_OK) {
        for (int64_t i = 1; v == NULL && i <= m->layers; i++) {
            map->at[i].ffn = MF_FFN_MOE;
        }
        return;
    }
    if (mf_json_value_type(v) == MF_JSON_ARRAY) {
        for (size_t k = 0; k < mf_json_size(v) && c->status == MF_OK; k++) {
            int64_t i = 0;
            c->status = mf_json_i64(mf_json_at(v, k), 0, MF_MODEL_MAX_LAYERS, &i, c->e);
            map->at[i].ffn = i < m->layers ? MF_FFN_MOE : map->at[i].ffn;
        }
        return;
    }
    c->status = mf_json_string(v, &text, c->e);
    while (c->status == MF_OK && *text != '\0') {
        char *end = NULL;
        long i = strtol(text, &end, 10);
        if (end == text || i < 0 || (*end != ',' && *end != '\0')) {
            mf_config_fail(c, "moe_layers_enum", "\"moe_layers_enum\": expected layers, \"3,4,5\"");
            return;
        }
        if (i < m->layers) {
            map->at[i].ffn = MF_FFN_MOE;
        }
        text = *end == ',' ? end + 1 : end;
    }
}

static void read_step3(mf_config *c, mf_model *m) {
    m->q_lora_rank = mf_config_int(c, MF_KEYS("share_q_dim"), 1, MF_CONFIG_WIDTH_MAX);
    read_experts(c, m);
}

static void read_step3p5(mf_config *c, mf_model *m) {
    m->qk_norm = mf_config_opt_bool(c, MF_KEYS("use_qk_norm"), true);
    m->zero_centred_norm = mf_config_opt_bool(c, MF_KEYS("zero_centered"), true);
    bool gate = mf_config_opt_bool(c, MF_KEYS("use_head_wise_attn_gate"), false);
    m->attn_gate = gate ? MF_ATTN_GATE_HEAD : MF_ATTN_GATE_NONE;
    mf_model_read_scoring(c, m, "sigmoid");
    m->correction_bias = mf_config_opt_bool(c, MF_KEYS("use_moe_router_bias"), false);
    read_experts(c, m);
    mf_model_read_mtp(c, m);
}

/* An entry of a list by layer that also has entries for MTP blocks, or one number for all. */
static double listed(mf_config *c, const char *key, int64_t i, double fallback) {
    const mf_json_value *v = mf_config_value(c, MF_KEYS(key));
    double x = fallback;
    if (v != NULL && mf_json_value_type(v) == MF_JSON_ARRAY) {
        if ((size_t)i >= mf_json_size(v)) {
            mf_config_fail(c, key, "\"%s\" has %zu entries: none for layer %lld", key,
                           mf_json_size(v), (long long)i);
            return x;
        }
        v = mf_json_at(v, (size_t)i);
    }
    if (v != NULL && c->status == MF_OK) {
        c->status = mf_json_f64(v, 0, 1e18, &x, c->e);
    }
    return x;
}

/* Heads of window layers, where they are others. */
static void read_window(mf_config *c, const mf_model *m, mf_layer_class *x) {
    static const char *const known[] = {"attention_type", "head_dim", "num_attention_groups",
                                        "num_attention_heads", NULL};
    const mf_json_value *v = mf_config_object(c, "attention_other_setting", known);
    int64_t width = m->head_dim;
    x->window = mf_config_opt_int(c, MF_KEYS("sliding_window"), 1, INT64_C(1) << 40, 512);
    if (v == NULL || c->status != MF_OK) {
        return;
    }
    c->status = mf_json_opt_i64(v, "head_dim", 1, MF_CONFIG_WIDTH_MAX, &width, c->e);
    if (c->status == MF_OK && width != m->head_dim) {
        mf_config_fail(c, "attention_other_setting",
                       "window layers with heads of another width are not supported");
        return;
    }
    c->status = mf_json_opt_i64(v, "num_attention_heads", 1, MF_CONFIG_WIDTH_MAX, &x->heads, c->e);
    if (c->status == MF_OK) {
        c->status =
            mf_json_opt_i64(v, "num_attention_groups", 1, MF_CONFIG_WIDTH_MAX, &x->kv_heads, c->e);
    }
}

/* Lists have entries for the layers and, behind them, for MTP blocks, which are dense. */
static void layers_step3p5(mf_config *c, const mf_model *m, mf_layer_map *map) {
    mf_layer_class window = {.ffn = MF_FFN_DENSE};
    read_window(c, m, &window);
    map_experts(c, m, map);
    map->at[m->layers].ffn = MF_FFN_DENSE;
    const mf_json_value *types = mf_config_value(c, MF_KEYS("layer_types"));
    int64_t size = types != NULL ? (int64_t)mf_json_size(types) : 0;
    if (c->status == MF_OK && (size < m->layers || mf_json_value_type(types) != MF_JSON_ARRAY)) {
        mf_config_fail(c, "layer_types", "\"layer_types\" has %lld entries for %lld layers",
                       (long long)size, (long long)m->layers);
    }
    for (int64_t i = 0; i <= m->layers && c->status == MF_OK; i++) {
        int64_t entry = i < size ? i : size - 1;
        mf_layer_class *x = &map->at[i];
        mf_ffn_kind ffn = x->ffn;
        if (mf_model_layer_either(c, types, entry, "sliding_attention", "full_attention")) {
            *x = window;
            x->ffn = ffn;
        }
        x->rope_theta = listed(c, "rope_theta", entry, 0);
        x->partial_rotary = listed(c, "partial_rotary_factors", entry, 0);
    }
}

static const char *const unread[] = {"swiglu_limits", "swiglu_limits_shared"};

static void read_flash(mf_config *c, mf_model *m) {
    read_step3p5(c, m);
    for (size_t i = 0; i < sizeof unread / sizeof unread[0]; i++) {
        if (mf_config_value(c, MF_KEYS(unread[i])) != NULL) {
            mf_config_leave_out(c, "clamps of activations (\"%s\")", unread[i]);
        }
    }
}

const mf_model_family mf_family_step3_text = {
    .name = "step3_text",
    .no_bridge = true,
    .same = {"step3_vl"},
    .architectures = {"Step3VLForConditionalGeneration", "Step3TextForCausalLM"},
    .eps = 1e-5,
    .theta = 500000,
    .read = read_step3,
    .layers = map_experts,
    .hub = {.dense = "mlp",
            .shared = "share_expert",
            .router = "moe.gate",
            .expert = {"moe.experts.#.gate_proj", "moe.experts.#.up_proj",
                       "moe.experts.#.down_proj"}},
};

const mf_model_family mf_family_step3p5 = {
    .name = "step3p5",
    .same = {"step3p7"},
    .architectures = {"Step3p5ForCausalLM"},
    .eps = 1e-5,
    .theta = 10000,
    .rope_listed = true,
    .read = read_flash,
    .layers = layers_step3p5,
    .hub = {.shared = "share_expert",
            .router = "moe.gate",
            .correction = "moe.router_bias",
            .expert = {"moe.experts.#.gate_proj", "moe.experts.#.up_proj",
                       "moe.experts.#.down_proj"}},
};
