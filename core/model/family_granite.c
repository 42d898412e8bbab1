/* family_granite.c - Granite 3 MoE: factors on embeddings, scores, residuals and logits; with and
 * without a shared expert. */
#include "core/model/model_family.h"

void mf_model_read_granite_factors(mf_config *c, mf_model *m) {
    m->embedding_multiplier = mf_config_opt_f64(c, MF_KEYS("embedding_multiplier"), 1e-9, 1e9, 1.0);
    m->residual_multiplier = mf_config_opt_f64(c, MF_KEYS("residual_multiplier"), 1e-9, 1e9, 1.0);
    m->attention_multiplier = mf_config_opt_f64(c, MF_KEYS("attention_multiplier"), 1e-9, 1e9, 1.0);
    m->logits_multiplier = 1.0 / mf_config_opt_f64(c, MF_KEYS("logits_scaling"), 1e-9, 1e9, 1.0);
}

static void read(mf_config *c, mf_model *m) {
    mf_model_read_granite_factors(c, m);
    mf_model_read_experts(c, m, "intermediate_size");
    m->router_score = MF_ROUTER_TOPK_SOFTMAX;
}

static void read_shared(mf_config *c, mf_model *m) {
    read(c, m);
    m->shared_ffn =
        mf_config_opt_int(c, MF_KEYS("shared_intermediate_size"), 0, MF_CONFIG_FFN_MAX, 1024);
}

#define GRANITE_NAMES                                                                              \
    .shared = "shared_mlp", .shared_gate_up = "input_linear", .shared_down = "output_linear",      \
    .router = "block_sparse_moe.router.layer", .experts = MF_HUB_EXPERTS_ROWS,                     \
    .expert = {"block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"}

const mf_model_family mf_family_granitemoe = {
    .name = "granitemoe",
    .no_bridge = true,
    .architectures = {"GraniteMoeForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .moe = MF_MOE_ALL,
    .eps = 1e-6,
    .theta = 10000,
    .read = read,
    .hub = {GRANITE_NAMES},
};

const mf_model_family mf_family_granitemoeshared = {
    .name = "granitemoeshared",
    .no_bridge = true,
    .architectures = {"GraniteMoeSharedForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .moe = MF_MOE_ALL,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_shared,
    .hub = {GRANITE_NAMES},
};
