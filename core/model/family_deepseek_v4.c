/* family_deepseek_v4.c - DeepSeek-V4: attention in a window and over compressed keys, of which
 * layers with a ratio of 4 choose some; four copies of the residual stream; experts by a table of
 * tokens in the first layers (core/program/lower_compressed.c, lower_hyper.c, lower_ffn.c). */
#include "core/model/model_family.h"

#include <string.h>

/* A root of softplus, with a selection-only bias. */
static void read_router(mf_config *c, mf_model *m) {
    const char *score = mf_config_opt_string(c, MF_KEYS("scoring_func"), "sqrtsoftplus");
    if (strcmp(score, "sqrtsoftplus") != 0) {
        mf_config_fail(c, "scoring_func", "\"scoring_func\": expected sqrtsoftplus");
    }
    m->router_score = MF_ROUTER_SQRTSOFTPLUS;
    m->correction_bias = true;
    m->norm_topk = true;
    m->routed_scaling = 1.5;
    mf_model_read_groups(c, m, 1, 1);
}

static void read(mf_config *c, mf_model *m) {
    m->q_lora_rank = mf_config_int(c, MF_KEYS("q_lora_rank"), 1, MF_CONFIG_WIDTH_MAX);
    m->qk_rope_head_dim = mf_config_opt_int(c, MF_KEYS("qk_rope_head_dim"), 0, m->head_dim, 64);
    m->o_groups = mf_config_int(c, MF_KEYS("o_groups"), 1, 65536);
    m->o_lora_rank = mf_config_int(c, MF_KEYS("o_lora_rank"), 1, MF_CONFIG_WIDTH_MAX);
    m->attn_sinks = true;
    m->index_heads = mf_config_int(c, MF_KEYS("index_n_heads"), 1, 65536);
    m->index_head_dim = mf_config_int(c, MF_KEYS("index_head_dim"), 1, 65536);
    m->index_topk = mf_config_int(c, MF_KEYS("index_topk"), 1, INT64_C(1) << 40);
    m->hyper_streams = mf_config_opt_int(c, MF_KEYS("hc_mult"), 0, 64, 4);
    mf_config_opt_f64(c, MF_KEYS("hc_eps"), 0, 1, 1e-6);
    mf_config_opt_int(c, MF_KEYS("hc_sinkhorn_iters"), 0, 1 << 20, 20);
    mf_config_opt_f64(c, MF_KEYS("compress_rope_theta"), 1, 1e18, 160000);
    m->swiglu_limit = mf_config_opt_f64(c, MF_KEYS("swiglu_limit"), 0, 1e6, 10);
    mf_model_read_experts(c, m, "moe_intermediate_size");
    read_router(c, m);
    mf_model_read_mtp(c, m);
    if (c->status == MF_OK && m->heads % m->o_groups != 0) {
        mf_config_fail(c, "o_groups", "\"o_groups\": %lld heads do not divide into %lld groups",
                       (long long)m->heads, (long long)m->o_groups);
    }
}

/* "compress_ratios" has an entry for each layer, and one for an MTP block behind them. */
static void read_ratios(mf_config *c, const mf_model *m, const mf_json_value *list,
                        mf_layer_map *map) {
    if (mf_json_value_type(list) != MF_JSON_ARRAY || (int64_t)mf_json_size(list) < m->layers) {
        mf_config_fail(c, "compress_ratios",
                       "\"compress_ratios\": expected an array with an entry for each layer");
    }
    for (int64_t i = 0; i <= m->layers && c->status == MF_OK; i++) {
        size_t at = i < m->layers ? (size_t)i : mf_json_size(list) - 1;
        c->status = mf_json_i64(mf_json_at(list, at), 0, 1 << 20, &map->at[i].compress, c->e);
    }
}

/* As transformers writes it: "layer_types", and the ratio of each type in "compress_rates". The
 * lists leave out MTP blocks, which have only their window. */
static void read_types(mf_config *c, const mf_model *m, mf_layer_map *map) {
    static const char *const types[] = {"sliding_attention", "compressed_sparse_attention",
                                        "heavily_compressed_attention", NULL};
    int64_t ratio[3] = {0, 4, 128};
    const mf_json_value *rates = mf_config_object(c, "compress_rates", types);
    for (int k = 1; k < 3 && rates != NULL && c->status == MF_OK; k++) {
        c->status = mf_json_opt_i64(rates, types[k], 1, 1 << 20, &ratio[k], c->e);
    }
    const mf_json_value *list = mf_model_layer_list(c, "layer_types", m->layers);
    if (c->status == MF_OK && list == NULL) {
        mf_config_fail(c, "compress_ratios",
                       "\"compress_ratios\": expected an array with an entry for each layer");
    }
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        int k = 0;
        while (types[k] != NULL && !mf_model_layer_is(c, list, i, types[k])) {
            k++;
        }
        if (c->status == MF_OK && types[k] == NULL) {
            c->status =
                mf_json_fail(mf_json_at(list, (size_t)i), c->e, "expected \"%s\", \"%s\" or \"%s\"",
                             types[0], types[1], types[2]);
        }
        map->at[i].compress = types[k] != NULL ? ratio[k] : 0;
    }
}

/* Where a table says which experts a token goes to: the first "num_hash_layers", or by
 * "mlp_layer_types". Never in an MTP block. */
static void read_hashed(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *list = mf_model_layer_list(c, "mlp_layer_types", m->layers);
    int64_t first = mf_config_opt_int(c, MF_KEYS("num_hash_layers"), 0, MF_MODEL_MAX_LAYERS, 3);
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        map->at[i].hashed =
            list != NULL ? mf_model_layer_either(c, list, i, "hash_moe", "moe") : i < first;
    }
}

static void layers(mf_config *c, const mf_model *m, mf_layer_map *map) {
    int64_t window = mf_config_opt_int(c, MF_KEYS("sliding_window"), 1, INT64_C(1) << 40, 128);
    for (int64_t i = 0; i <= m->layers; i++) {
        map->at[i] =
            (mf_layer_class){.ffn = MF_FFN_MOE, .mixer = MF_MIXER_COMPRESSED, .window = window};
    }
    const mf_json_value *ratios = mf_config_value(c, MF_KEYS("compress_ratios"));
    if (ratios != NULL) {
        read_ratios(c, m, ratios, map);
    } else {
        read_types(c, m, map);
    }
    read_hashed(c, m, map);
}

const mf_model_family mf_family_deepseek_v4 = {
    .name = "deepseek_v4",
    .same = {"deepseek_ref"},
    .architectures = {"DeepseekV4ForCausalLM"},
    .head_dim = 512,
    .eps = 1e-6,
    .theta = 10000,
    .read = read,
    .layers = layers,
};
