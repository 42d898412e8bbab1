/* family_olmoe.c - OLMoE: norms over all of q and all of k. */
#include "core/model/model_family.h"

static void read(mf_config *c, mf_model *m) {
    m->qk_norm_full = true;
    mf_model_read_experts(c, m, "intermediate_size");
    m->norm_topk = mf_config_opt_bool(c, MF_KEYS("norm_topk_prob"), false);
    if (mf_config_value(c, MF_KEYS("clip_qkv")) != NULL) {
        mf_config_fail(c, "clip_qkv", "\"clip_qkv\": clipped projections are not supported");
    }
}

const mf_model_family mf_family_olmoe = {
    .name = "olmoe",
    .architectures = {"OlmoeForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .moe = MF_MOE_ALL,
    .eps = 1e-5,
    .theta = 10000,
    .read = read,
};
