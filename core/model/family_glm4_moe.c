/* family_glm4_moe.c - GLM-4.5: grouped queries, half of each head rotated, DeepSeek-V3's router. */
#include "core/model/model_family.h"

static void read(mf_config *c, mf_model *m) {
    m->qk_norm = mf_config_opt_bool(c, MF_KEYS("use_qk_norm"), false);
    mf_model_read_experts(c, m, "moe_intermediate_size");
    m->router_score = MF_ROUTER_SIGMOID;
    m->correction_bias = true;
    m->norm_topk = true;
    mf_model_read_groups(c, m, 1, 1);
    mf_model_read_mtp(c, m);
}

const mf_model_family mf_family_glm4_moe = {
    .name = "glm4_moe",
    .same = {"glm4v_moe_text"},
    .architectures = {"Glm4MoeForCausalLM"},
    .bias = MF_BIAS_ATTENTION_QKV,
    .moe = MF_MOE_FIRST_DENSE,
    .first_dense = 1,
    .head_dim = 128,
    .eps = 1e-5,
    .theta = 10000,
    .partial_rotary = 0.5,
    .read = read,
};
