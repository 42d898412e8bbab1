/* family_dots1.c - dots.llm1: norms of q and k by head, DeepSeek-V3's router. */
#include "core/model/model_family.h"

static void read(mf_config *c, mf_model *m) {
    m->qk_norm = true;
    mf_model_read_experts(c, m, "moe_intermediate_size");
    /* The published file says "noaux_tc" of its scores: sigmoid, with a selection bias. */
    mf_config_word(c, "scoring_func", MF_KEYS("noaux_tc", "sigmoid"));
    m->router_score = MF_ROUTER_SIGMOID;
    m->correction_bias = true;
    m->norm_topk = true;
    mf_model_read_groups(c, m, 1, 1);
    mf_model_read_mtp(c, m);
}

const mf_model_family mf_family_dots1 = {
    .name = "dots1",
    .no_bridge = true,
    .architectures = {"Dots1ForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .window = MF_WINDOW_SWITCHED,
    .window_default = 4096,
    .moe = MF_MOE_FIRST_DENSE,
    .eps = 1e-6,
    .theta = 10000,
    .read = read,
};
