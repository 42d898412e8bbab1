/* family_bailing_moe.c - Ling and Ring 2.0: one projection of q, k and v, norms by head, half of
 * each head rotated, DeepSeek-V3's router. */
#include "core/model/model_family.h"

void mf_model_read_ling_experts(mf_config *c, mf_model *m) {
    mf_model_read_experts(c, m, "moe_intermediate_size");
    mf_model_read_scoring(c, m, "sigmoid");
    m->correction_bias = mf_config_opt_bool(c, MF_KEYS("moe_router_enable_expert_bias"), true);
    m->norm_topk = true;
    m->routed_scaling = 2.5;
    mf_model_read_groups(c, m, 8, 4);
    m->shared_ffn = mf_config_opt_int(c, MF_KEYS("moe_shared_expert_intermediate_size"), 0,
                                      MF_CONFIG_FFN_MAX, m->shared_ffn);
    mf_model_read_mtp(c, m);
}

static void read(mf_config *c, mf_model *m) {
    m->qk_norm = mf_config_opt_bool(c, MF_KEYS("use_qk_norm"), true);
    m->qkv_bias = mf_config_opt_bool(c, MF_KEYS("use_qkv_bias"), false);
    m->o_bias = mf_config_opt_bool(c, MF_KEYS("use_bias"), false);
    mf_model_read_ling_experts(c, m);
    mf_config_word(c, "rotary_type", MF_KEYS("half"));
    if (!mf_config_opt_bool(c, MF_KEYS("use_rmsnorm"), true)) {
        mf_config_fail(c, "use_rmsnorm", "\"use_rmsnorm\": other norms are not supported");
    }
}

const mf_model_family mf_family_bailing_moe = {
    .name = "bailing_moe",
    .same = {"bailing_moe_v2"},
    .architectures = {"BailingMoeV2ForCausalLM", "BailingMoeForCausalLM"},
    .moe = MF_MOE_FIRST_DENSE,
    .eps = 1e-6,
    .theta = 600000,
    .partial_rotary = 0.5,
    .read = read,
    .hub = {.embedding = "model.word_embeddings",
            .qkv = "attention.query_key_value",
            .o = "attention.dense",
            .q_norm = "attention.query_layernorm",
            .k_norm = "attention.key_layernorm",
            .correction = "mlp.gate.expert_bias"},
};
