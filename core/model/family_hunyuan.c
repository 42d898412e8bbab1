/* family_hunyuan.c - Hunyuan-A13B (norms of q and k behind the rotation, one shared expert) and
 * Hy3 (DeepSeek-V3's router without groups). */
#include "core/model/model_family.h"

#include <math.h>

/* "dynamic" with "alpha": a greater base from the first token on. */
static void read_alpha(mf_config *c, mf_model *m) {
    const mf_json_value *v = mf_config_value(c, MF_KEYS("rope_scaling", "rope_parameters"));
    double alpha = 0, d = (double)m->head_dim;
    if (v == NULL || c->status != MF_OK || mf_json_value_type(v) != MF_JSON_OBJECT) {
        return;
    }
    c->status = mf_json_opt_f64(v, "alpha", 0, 1e9, &alpha, c->e);
    if (c->status == MF_OK && alpha > 0 && m->head_dim > 2) {
        m->rope_theta *= pow(alpha, d / (d - 2));
        m->rope_scaling.kind = MF_ROPE_PLAIN;
    }
}

static void read_v1(mf_config *c, mf_model *m) {
    m->qk_norm = mf_config_opt_bool(c, MF_KEYS("use_qk_norm"), true);
    m->qk_norm_late = m->qk_norm;
    read_alpha(c, m);
    mf_model_read_experts(c, m, "intermediate_size");
    if (mf_config_opt_even_int(c, MF_KEYS("moe_intermediate_size"), 1, MF_CONFIG_FFN_MAX,
                               m->moe_ffn) != m->moe_ffn) {
        mf_config_fail(c, "moe_intermediate_size",
                       "\"moe_intermediate_size\" disagrees with \"intermediate_size\"");
    }
    m->norm_topk = true;
    mf_config_opt_bool(c, MF_KEYS("use_mixed_mlp_moe"), true);
    m->shared_ffn =
        m->moe_ffn * mf_config_opt_even_int(c, MF_KEYS("num_shared_expert"), 0, 1024, 1);
    m->ffn_bias = mf_config_opt_bool(c, MF_KEYS("mlp_bias"), false);
    if (mf_config_opt_bool(c, MF_KEYS("use_cla"), false)) {
        mf_config_fail(c, "use_cla", "\"use_cla\": keys shared by layers are not supported");
    }
}

static void read_v3(mf_config *c, mf_model *m) {
    m->qk_norm = mf_config_opt_bool(c, MF_KEYS("qk_norm"), true);
    mf_model_read_experts(c, m, "moe_intermediate_size");
    bool sigmoid = mf_config_opt_bool(c, MF_KEYS("moe_router_use_sigmoid"), true);
    m->router_score = sigmoid ? MF_ROUTER_SIGMOID : MF_ROUTER_SOFTMAX;
    m->correction_bias = mf_config_opt_bool(c, MF_KEYS("moe_router_enable_expert_bias"), true);
    m->norm_topk = true;
    mf_model_read_groups(c, m, 1, 1);
    mf_model_read_mtp(c, m);
}

const mf_model_family mf_family_hunyuan_v1_moe = {
    .name = "hunyuan_v1_moe",
    .no_bridge = true,
    .same = {"hunyuan"},
    .architectures = {"HunYuanMoEV1ForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .moe = MF_MOE_ALL,
    .eps = 1e-5,
    .theta = 10000,
    .read = read_v1,
    .hub = {.q_norm = "self_attn.query_layernorm",
            .k_norm = "self_attn.key_layernorm",
            .shared = "mlp.shared_mlp",
            .router = "mlp.gate.wg"},
};

const mf_model_family mf_family_hy_v3 = {
    .name = "hy_v3",
    .architectures = {"HYV3ForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .moe = MF_MOE_FIRST_DENSE,
    .first_dense = 1,
    .head_dim = 128,
    .eps = 1e-5,
    .theta = 11158840,
    .read = read_v3,
    .hub = {.shared = "mlp.shared_mlp",
            .router = "mlp.router.gate",
            .correction = "mlp.expert_bias"},
};
