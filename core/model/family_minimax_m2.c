/* family_minimax_m2.c - MiniMax-M2: norms over all of q and k, half of each head rotated, sigmoid
 * router with a selection bias; MiniMax-M3: norms by head and an indexer that chooses blocks. */
#include "core/model/model_family.h"

#include <string.h>

static void read(mf_config *c, mf_model *m) {
    const char *norm = mf_config_opt_string(c, MF_KEYS("qk_norm_type"), "per_layer");
    bool normed = mf_config_opt_bool(c, MF_KEYS("use_qk_norm"), true);
    m->qk_norm_full = normed && strcmp(norm, "per_layer") == 0;
    m->qk_norm = normed && !m->qk_norm_full;
    mf_model_read_experts(c, m, "intermediate_size");
    mf_model_read_scoring(c, m, "sigmoid");
    m->correction_bias = mf_config_opt_bool(c, MF_KEYS("use_routing_bias"), true);
    m->norm_topk = true;
    m->shared_ffn =
        mf_config_opt_int(c, MF_KEYS("shared_intermediate_size"), 0, MF_CONFIG_FFN_MAX, 0);
    int64_t rotary = mf_config_opt_int(c, MF_KEYS("rotary_dim"), 0, MF_CONFIG_WIDTH_MAX, 0);
    if (c->status == MF_OK && rotary > m->head_dim) {
        mf_config_fail(c, "rotary_dim", "\"rotary_dim\": %lld of heads of width %lld",
                       (long long)rotary, (long long)m->head_dim);
    } else if (rotary > 0) {
        m->partial_rotary = (double)rotary / (double)m->head_dim;
    }
    /* Modules of multi-token prediction are spoken of, and no checkpoint has them. */
    int64_t modules = mf_config_opt_int(c, MF_KEYS("num_mtp_modules"), 0, 1024, 0);
    mf_config_opt_int(c, MF_KEYS("mtp_transformer_layers"), 0, 1024, 1);
    if (mf_config_opt_bool(c, MF_KEYS("use_mtp"), false) && modules > 0) {
        mf_config_leave_out(c, "%lld MTP modules, which the published weights lack",
                            (long long)modules);
    }
}

const mf_model_family mf_family_minimax_m2 = {
    .name = "minimax_m2",
    .architectures = {"MiniMaxM2ForCausalLM"},
    .moe = MF_MOE_ALL,
    .eps = 1e-6,
    .theta = 5e6,
    .read = read,
    .hub = {.router = "block_sparse_moe.gate",
            .correction = "block_sparse_moe.e_score_correction_bias",
            .expert = {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3",
                       "block_sparse_moe.experts.#.w2"}},
};

/* --- MiniMax-M3 ------------------------------------------------------------------------------- */

static int64_t of_sparse(mf_config *c, const char *key) {
    const mf_json_value *v = mf_config_value(c, MF_KEYS("sparse_attention_config"));
    int64_t x = 0;
    if (v != NULL && c->status == MF_OK && mf_json_value_type(v) == MF_JSON_OBJECT) {
        c->status = mf_json_opt_i64(v, key, 0, 1 << 20, &x, c->e);
    }
    return x;
}

static void read_m3(mf_config *c, mf_model *m) {
    read(c, m);
    m->zero_centred_norm = mf_config_opt_bool(c, MF_KEYS("use_gemma_norm"), false);
    m->swiglu_limit = mf_config_opt_f64(c, MF_KEYS("swiglu_limit"), 0, 1e6, 7.0);
    mf_config_opt_f64(c, MF_KEYS("swiglu_alpha"), 0, 1e6, 1.702);
    int64_t shared = m->shared_ffn;
    mf_model_read_groups(c, m, 1, 1);
    m->shared_ffn = shared > 0 ? shared : m->shared_ffn;
    m->index_heads = of_sparse(c, "sparse_num_index_heads");
    m->index_head_dim = of_sparse(c, "sparse_index_dim");
    m->index_topk = of_sparse(c, "sparse_topk_blocks") * of_sparse(c, "sparse_block_size");
    if (m->index_topk > 0) {
        mf_config_leave_out(c, "the choice of blocks of keys: attention goes over all keys");
    }
    int64_t modules = mf_config_opt_int(c, MF_KEYS("num_mtp_modules"), 0, 1024, 0);
    if (modules > 0) {
        mf_config_leave_out(c, "MTP modules, which the published weights lack");
    }
}

static void layers_m3(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *v = mf_config_value(c, MF_KEYS("sparse_attention_config"));
    const mf_json_value *list = v != NULL ? mf_json_find(v, "sparse_attention_freq") : NULL;
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        bool listed = list != NULL && (size_t)i < mf_json_size(list);
        map->at[i].indexer = listed && mf_model_layer_flag(c, list, i);
    }
}

const mf_model_family mf_family_minimax_m3 = {
    .name = "minimax_m3",
    .same = {"minimax_m3_vl"},
    .architectures = {"MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"},
    .moe = MF_MOE_FIRST_DENSE,
    .eps = 1e-6,
    .theta = 5e6,
    .act = "swigluoai",
    .dense_key = "dense_intermediate_size",
    .read = read_m3,
    .layers = layers_m3,
    .hub = {.router = "block_sparse_moe.gate",
            .shared = "block_sparse_moe.shared_experts",
            .correction = "block_sparse_moe.e_score_correction_bias",
            .expert = {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3",
                       "block_sparse_moe.experts.#.w2"}},
};
