/* family_gpt_oss.c - GPT-OSS: windows in every other layer, sinks, biases everywhere. */
#include "core/model/model_family.h"

static void read(mf_config *c, mf_model *m) {
    m->attn_sinks = true;
    m->ffn_bias = true;
    m->router_bias = true;
    m->router_score = MF_ROUTER_TOPK_SOFTMAX;
    mf_model_read_experts(c, m, "intermediate_size");
    m->swiglu_limit = mf_config_opt_f64(c, MF_KEYS("swiglu_limit"), 0, 1e6, 7.0);
}

const mf_model_family mf_family_gpt_oss = {
    .name = "gpt_oss",
    .architectures = {"GptOssForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .window = MF_WINDOW_ALTERNATING,
    .window_default = 128,
    .moe = MF_MOE_ALL,
    .head_dim = 64,
    .eps = 1e-5,
    .theta = 150000,
    .read = read,
    .hub = {.router = "mlp.router",
            .experts = MF_HUB_EXPERTS_INTERLEAVED,
            .expert = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}},
};
