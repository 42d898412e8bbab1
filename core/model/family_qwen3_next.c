/* family_qwen3_next.c - Qwen3-Next and Qwen3.5: three gated delta nets to one layer of gated
 * attention; the one with experts, the other with and without. */
#include "core/model/model_family.h"

/* Both kinds of layer. */
static void read_mixers(mf_config *c, mf_model *m) {
    m->qk_norm = true;
    m->zero_centred_norm = true;
    bool gate = mf_config_opt_bool(c, MF_KEYS("attn_output_gate"), true);
    m->attn_gate = gate ? MF_ATTN_GATE_CHANNEL : MF_ATTN_GATE_NONE;
    m->mixer = (mf_mixer_shape){
        .key_heads = mf_config_int(c, MF_KEYS("linear_num_key_heads"), 1, 65536),
        .key_dim = mf_config_int(c, MF_KEYS("linear_key_head_dim"), 1, 65536),
        .value_heads = mf_config_int(c, MF_KEYS("linear_num_value_heads"), 1, 65536),
        .value_dim = mf_config_int(c, MF_KEYS("linear_value_head_dim"), 1, 65536),
        .conv = mf_config_opt_int(c, MF_KEYS("linear_conv_kernel_dim"), 1, 1024, 4),
        .chunk = 64,
    };
}

static void read_experts(mf_config *c, mf_model *m) {
    mf_model_read_experts(c, m, "moe_intermediate_size");
    m->norm_topk = mf_config_opt_bool(c, MF_KEYS("norm_topk_prob"), true);
    m->shared_ffn =
        mf_config_int(c, MF_KEYS("shared_expert_intermediate_size"), 0, MF_CONFIG_FFN_MAX);
    m->shared_gate = m->shared_ffn > 0;
}

/* The file says nothing of it; the checkpoint has one depth. */
static void read_next(mf_config *c, mf_model *m) {
    read_mixers(c, m);
    read_experts(c, m);
    m->mtp_layers =
        mf_config_opt_int(c, MF_KEYS("num_nextn_predict_layers"), 0, MF_MODEL_MAX_MTP, 1);
}

static void read_35(mf_config *c, mf_model *m) {
    read_mixers(c, m);
    mf_model_read_mtp(c, m);
    mf_config_word(c, "output_gate_type", MF_KEYS("swish", "silu")); /* of delta nets */
    mf_config_opt_bool(c, MF_KEYS("mtp_use_dedicated_embeddings"), false);
}

static void read_35_moe(mf_config *c, mf_model *m) {
    read_35(c, m);
    read_experts(c, m);
}

static void layers(mf_config *c, const mf_model *m, mf_layer_map *map) {
    int64_t interval = mf_config_opt_int(c, MF_KEYS("full_attention_interval"), 1, 1 << 20, 4);
    const mf_json_value *types = mf_model_layer_list(c, "layer_types", m->layers);
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        bool full = types != NULL
                        ? mf_model_layer_either(c, types, i, "full_attention", "linear_attention")
                        : (i + 1) % interval == 0;
        map->at[i].mixer = full ? MF_MIXER_ATTENTION : MF_MIXER_GDN;
    }
}

const mf_model_family mf_family_qwen3_next = {
    .name = "qwen3_next",
    .architectures = {"Qwen3NextForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .moe = MF_MOE_SPARSE_STEP,
    .head_dim = 256,
    .eps = 1e-6,
    .theta = 10000,
    .partial_rotary = 0.25,
    .read = read_next,
    .layers = layers,
    .hub = {.shared = "mlp.shared_expert"},
};

const mf_model_family mf_family_qwen3_5 = {
    .name = "qwen3_5",
    .same = {"qwen3_5_text"},
    .architectures = {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .head_dim = 256,
    .eps = 1e-6,
    .theta = 10000,
    .partial_rotary = 0.25,
    .read = read_35,
    .layers = layers,
};

const mf_model_family mf_family_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .same = {"qwen3_5_moe_text"},
    .architectures = {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .moe = MF_MOE_SPARSE_STEP,
    .head_dim = 256,
    .eps = 1e-6,
    .theta = 10000,
    .partial_rotary = 0.25,
    .read = read_35_moe,
    .layers = layers,
    .hub = {.shared = "mlp.shared_expert"},
};
