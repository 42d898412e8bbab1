/* family_qwen.c - Qwen2 and Qwen3, dense and with experts. */
#include "core/model/model_family.h"

static void read_qwen2_moe(mf_config *c, mf_model *m) {
    mf_model_read_experts(c, m, "moe_intermediate_size");
    m->norm_topk = mf_config_opt_bool(c, MF_KEYS("norm_topk_prob"), false);
    m->shared_ffn =
        mf_config_int(c, MF_KEYS("shared_expert_intermediate_size"), 0, MF_CONFIG_FFN_MAX);
    m->shared_gate = m->shared_ffn > 0;
}

static void read_qwen3(mf_config *c, mf_model *m) {
    (void)c;
    m->qk_norm = true;
}

static void read_qwen3_moe(mf_config *c, mf_model *m) {
    m->qk_norm = true;
    mf_config_opt_bool(c, MF_KEYS("use_qk_norm"), true); /* transformers norms in any case */
    mf_model_read_experts(c, m, "moe_intermediate_size");
    m->norm_topk = mf_config_opt_bool(c, MF_KEYS("norm_topk_prob"), false);
}

const mf_model_family mf_family_qwen2 = {
    .name = "qwen2",
    .same = {"qwen2_5_vl_text", "qwen2_vl_text"},
    .architectures = {"Qwen2ForCausalLM"},
    .bias = MF_BIAS_QKV,
    .window = MF_WINDOW_SWITCHED,
    .window_default = 4096,
    .eps = 1e-6,
    .theta = 10000,
};

const mf_model_family mf_family_qwen2_moe = {
    .name = "qwen2_moe",
    .architectures = {"Qwen2MoeForCausalLM"},
    .bias = MF_BIAS_QKV_KEY,
    .window = MF_WINDOW_SWITCHED,
    .window_default = 4096,
    .moe = MF_MOE_SPARSE_STEP,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_qwen2_moe,
    .hub = {.shared = "mlp.shared_expert"},
};

const mf_model_family mf_family_qwen3 = {
    .name = "qwen3",
    .same = {"qwen3_vl_text"},
    .architectures = {"Qwen3ForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .window = MF_WINDOW_SWITCHED,
    .window_default = 4096,
    .head_dim = 128,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_qwen3,
};

const mf_model_family mf_family_qwen3_moe = {
    .name = "qwen3_moe",
    .same = {"qwen3_vl_moe_text"},
    .architectures = {"Qwen3MoeForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .window = MF_WINDOW_SWITCHED,
    .window_default = 4096,
    .moe = MF_MOE_SPARSE_STEP,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_qwen3_moe,
};
