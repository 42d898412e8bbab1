/* family_minimax_m2.c - MiniMax-M2: norms over all of q and k, half of each head rotated, sigmoid
 * router with a selection bias; MiniMax-M3: norms by head and an indexer that chooses blocks. */
#include "core/model/model_family.h"

#include <string.h>

static void read(mf_config *c, mf_model *m) {
    const char *norm = mf_config_word(c, "qk_norm_type", MF_KEYS("per_layer", "per_head"));
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
    /* The file mentions modules of multi-token prediction, but no checkpoint has them. */
    int64_t modules = mf_config_opt_int(c, MF_KEYS("num_mtp_modules"), 0, 1024, 0);
    mf_config_opt_int(c, MF_KEYS("mtp_transformer_layers"), 0, 1024, 1);
    if (mf_config_opt_bool(c, MF_KEYS("use_mtp"), false) && modules > 0) {
        mf_config_leave_out(c, "%lld MTP modules, which the published weights lack",
                            (long long)modules);
    }
}

/* "attn_type_list": 1 is softmax attention, all that M2 has. */
static void layers_m2(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *types = mf_model_layer_list(c, "attn_type_list", m->layers);
    (void)map;
    for (int64_t i = 0; i < m->layers && types != NULL && c->status == MF_OK; i++) {
        int64_t one = 1;
        c->status = mf_json_i64(mf_json_at(types, (size_t)i), 1, 1, &one, c->e);
    }
}

const mf_model_family mf_family_minimax_m2 = {
    .name = "minimax_m2",
    .architectures = {"MiniMaxM2ForCausalLM"},
    .moe = MF_MOE_ALL,
    .eps = 1e-6,
    .theta = 5e6,
    .read = read,
    .layers = layers_m2,
    .hub = {.router = "block_sparse_moe.gate",
            .correction = "block_sparse_moe.e_score_correction_bias",
            .expert = {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3",
                       "block_sparse_moe.experts.#.w2"}},
};

/* --- MiniMax-M3 ------------------------------------------------------------------------------- */

/* Blocks that count in any case (the first ones, the own one) are among the chosen. */
static const mf_json_value *sparse_config(mf_config *c) {
    static const char *const known[] = {"sparse_attention_freq",
                                        "sparse_block_size",
                                        "sparse_disable_index_value",
                                        "sparse_index_dim",
                                        "sparse_init_block",
                                        "sparse_local_block",
                                        "sparse_num_index_heads",
                                        "sparse_score_type",
                                        "sparse_topk_blocks",
                                        "use_sparse_attention",
                                        NULL};
    return mf_config_object(c, "sparse_attention_config", known);
}

static int64_t of_sparse(mf_config *c, const mf_json_value *v, const char *key) {
    int64_t x = 0;
    if (c->status == MF_OK) {
        c->status = mf_json_get_i64(v, key, 1, 1 << 20, &x, c->e);
    }
    return x;
}

static bool is_sparse(mf_config *c, const mf_json_value *v) {
    bool on = v != NULL;
    if (on && c->status == MF_OK) {
        c->status = mf_json_opt_bool(v, "use_sparse_attention", &on, c->e);
    }
    return on;
}

static void read_m3(mf_config *c, mf_model *m) {
    read(c, m);
    m->zero_centred_norm = mf_config_opt_bool(c, MF_KEYS("use_gemma_norm"), false);
    m->swiglu_limit = mf_config_opt_f64(c, MF_KEYS("swiglu_limit"), 0, 1e6, 7.0);
    if (mf_config_opt_int(c, MF_KEYS("moe_intermediate_size"), 1, MF_CONFIG_FFN_MAX, m->moe_ffn) !=
        m->moe_ffn) {
        mf_config_fail(c, "moe_intermediate_size",
                       "\"moe_intermediate_size\" disagrees with \"intermediate_size\"");
    }
    mf_config_opt_f64(c, MF_KEYS("swiglu_alpha"), 0, 1e6, 1.702);
    int64_t shared = m->shared_ffn;
    mf_model_read_groups(c, m, 1, 1);
    m->shared_ffn = shared > 0 ? shared : m->shared_ffn;
    const mf_json_value *sparse = sparse_config(c);
    if (is_sparse(c, sparse)) {
        m->index_heads = of_sparse(c, sparse, "sparse_num_index_heads");
        m->index_head_dim = of_sparse(c, sparse, "sparse_index_dim");
        m->index_topk =
            of_sparse(c, sparse, "sparse_topk_blocks") * of_sparse(c, sparse, "sparse_block_size");
        mf_config_leave_out(c, "the choice of blocks of keys: attention goes over all keys");
    }
    int64_t modules = mf_config_opt_int(c, MF_KEYS("num_mtp_modules"), 0, 1024, 0);
    modules += mf_config_opt_int(c, MF_KEYS("num_nextn_predict_layers"), 0, 1024, 0);
    if (modules > 0) {
        mf_config_leave_out(c, "MTP modules, which the published weights lack");
    }
}

static void layers_m3(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *v = sparse_config(c);
    const mf_json_value *list = v != NULL ? mf_json_find(v, "sparse_attention_freq") : NULL;
    if (!is_sparse(c, v)) {
        return;
    }
    if (list == NULL || mf_json_value_type(list) != MF_JSON_ARRAY ||
        (int64_t)mf_json_size(list) < m->layers) {
        mf_config_fail(c, "sparse_attention_config",
                       "\"sparse_attention_freq\": expected an array with an entry for each layer");
    }
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        map->at[i].indexer = mf_model_layer_flag(c, list, i);
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
