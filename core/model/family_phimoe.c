/* family_phimoe.c - Phi-3.5-MoE: LayerNorm, biases in attention and head, two choices by masked
 * softmaxes. */
#include "core/model/model_family.h"

static void read(mf_config *c, mf_model *m) {
    m->layer_norm = true;
    m->head_bias = mf_config_opt_bool(c, MF_KEYS("lm_head_bias"), false);
    mf_model_read_experts(c, m, "intermediate_size");
    m->router_score = MF_ROUTER_SPARSEMIXER;
    m->router_jitter = mf_config_opt_f64(c, MF_KEYS("router_jitter_noise"), 0, 1e6, 0.01);
}

const mf_model_family mf_family_phimoe = {
    .name = "phimoe",
    .no_bridge = true,
    .architectures = {"PhiMoEForCausalLM", "PhimoeForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .window = MF_WINDOW_ALL,
    .moe = MF_MOE_ALL,
    .eps = 1e-5,
    .theta = 1e6,
    .read = read,
    .hub = {.router = "block_sparse_moe.gate",
            .expert = {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3",
                       "block_sparse_moe.experts.#.w2"}},
};
