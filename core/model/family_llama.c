/* family_llama.c - Llama and its dense kin; Mixtral: the same with experts. */
#include "core/model/model_family.h"

static void read_llama(mf_config *c, mf_model *m) {
    m->ffn_bias = mf_config_opt_bool(c, MF_KEYS("mlp_bias"), false);
}

static void read_mixtral(mf_config *c, mf_model *m) {
    mf_model_read_experts(c, m, "intermediate_size");
    m->norm_topk = true;
}

const mf_model_family mf_family_llama = {
    .name = "llama",
    .architectures = {"LlamaForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_llama,
};

const mf_model_family mf_family_mistral = {
    .name = "mistral",
    .architectures = {"MistralForCausalLM"},
    .window = MF_WINDOW_ALL,
    .window_default = 4096,
    .eps = 1e-6,
    .theta = 10000,
};

const mf_model_family mf_family_mixtral = {
    .name = "mixtral",
    .architectures = {"MixtralForCausalLM"},
    .window = MF_WINDOW_ALL,
    .moe = MF_MOE_ALL,
    .eps = 1e-5,
    .theta = 1e6,
    .read = read_mixtral,
    .hub = {.router = "block_sparse_moe.gate",
            .expert = {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3",
                       "block_sparse_moe.experts.#.w2"}},
};
