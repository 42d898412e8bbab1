/* family_llama4.c - Llama 4, its text: dense and MoE layers in turn, attention inside chunks but
 * for every fourth layer, which sees everything and knows no positions. */
#include "core/model/model_family.h"

static void read(mf_config *c, mf_model *m) {
    m->rope_interleave = true;
    m->qk_norm_plain = m->qk_norm_late = mf_config_opt_bool(c, MF_KEYS("use_qk_norm"), true);
    bool grows = mf_config_opt_bool(c, MF_KEYS("attn_temperature_tuning"), true);
    double scale = mf_config_opt_f64(c, MF_KEYS("attn_scale"), 0, 1e9, 0.1);
    m->temperature_scale = grows ? scale : 0;
    m->temperature_floor = mf_config_opt_f64(c, MF_KEYS("floor_scale"), 1, 1e12, 8192);
    mf_model_read_experts(c, m, "intermediate_size");
    m->router_score = MF_ROUTER_TOPK_SIGMOID;
    m->input_scaled = true;
    m->shared_ffn = m->moe_ffn;
}

/* "moe_layers" lists them; else every so manieth. */
static void map_experts(mf_config *c, const mf_model *m, mf_layer_map *map) {
    int64_t step = mf_config_opt_int(c, MF_KEYS("interleave_moe_layer_step"), 1, 1 << 20, 1);
    const mf_json_value *list = mf_config_value(c, MF_KEYS("moe_layers"));
    if (list != NULL && mf_json_value_type(list) != MF_JSON_ARRAY) {
        mf_config_fail(c, "moe_layers", "\"moe_layers\": expected an array");
    }
    for (int64_t i = 0; i <= m->layers; i++) {
        map->at[i].ffn = list == NULL && (i + 1) % step == 0 ? MF_FFN_MOE : MF_FFN_DENSE;
    }
    for (size_t k = 0; list != NULL && k < mf_json_size(list) && c->status == MF_OK; k++) {
        int64_t i = 0;
        c->status = mf_json_i64(mf_json_at(list, k), 0, MF_MODEL_MAX_LAYERS, &i, c->e);
        if (c->status == MF_OK && i < m->layers) {
            map->at[i].ffn = MF_FFN_MOE;
        }
    }
}

static void layers(mf_config *c, const mf_model *m, mf_layer_map *map) {
    map_experts(c, m, map);
    int64_t chunk =
        mf_config_opt_int(c, MF_KEYS("attention_chunk_size"), 0, INT64_C(1) << 40, 8192);
    int64_t interval = mf_config_opt_int(c, MF_KEYS("no_rope_layer_interval"), 1, 1 << 20, 4);
    const mf_json_value *rope = mf_config_value(c, MF_KEYS("no_rope_layers"));
    if (rope != NULL && mf_json_value_type(rope) == MF_JSON_ARRAY && mf_json_size(rope) == 0) {
        rope = NULL; /* as the file says that it is left to the interval */
    }
    rope = rope != NULL ? mf_model_layer_list(c, "no_rope_layers", m->layers) : NULL;
    const mf_json_value *types = mf_model_layer_list(c, "layer_types", m->layers);
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        bool rotated = rope != NULL ? mf_model_layer_flag(c, rope, i) : (i + 1) % interval != 0;
        bool chunked = types != NULL ? mf_model_layer_either(c, types, i, "chunked_attention",
                                                             "full_attention")
                                     : rotated;
        mf_layer_class *x = &map->at[i];
        x->no_rope = !rotated;
        x->no_qk_norm = !rotated;
        x->chunked = chunked && chunk > 0;
        x->window = x->chunked ? chunk : 0;
    }
}

const mf_model_family mf_family_llama4_text = {
    .name = "llama4_text",
    .no_bridge = true,
    .same = {"llama4"},
    .architectures = {"Llama4ForCausalLM", "Llama4ForConditionalGeneration"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .head_dim = 128,
    .eps = 1e-5,
    .theta = 500000,
    .dense_key = "intermediate_size_mlp",
    .read = read,
    .layers = layers,
    .hub = {.dense = "feed_forward",
            .shared = "feed_forward.shared_expert",
            .router = "feed_forward.router",
            .experts = MF_HUB_EXPERTS_COLUMNS,
            .expert = {"feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"}},
};
