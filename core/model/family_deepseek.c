/* family_deepseek.c - DeepSeek-V2, DeepSeek-V3 and Kimi-K2: latent attention, experts in groups;
 * DeepSeek-V3.2 and GLM-5: the same with an indexer that chooses keys. */
#include "core/model/model_family.h"

#include <string.h>

static void read_deepseek_v2(mf_config *c, mf_model *m) {
    m->rope_interleave = true;
    mf_model_read_experts(c, m, "moe_intermediate_size");
    mf_model_read_scoring(c, m, "softmax");
    const char *method = mf_config_opt_string(c, MF_KEYS("topk_method"), "greedy");
    mf_model_read_groups(c, m, 1, 1);
    if (strcmp(method, "group_limited_greedy") != 0) {
        m->n_group = m->topk_group = 1; /* the groups of a greedy router are idle */
        if (strcmp(method, "greedy") != 0 && strcmp(method, "gready") != 0) {
            mf_config_fail(c, "topk_method",
                           "\"topk_method\": expected greedy or group_limited_greedy");
        }
    }
}

static void read_deepseek_v3(mf_config *c, mf_model *m) {
    m->rope_interleave = mf_config_opt_bool(c, MF_KEYS("rope_interleave"), true);
    mf_model_read_experts(c, m, "moe_intermediate_size");
    mf_model_read_scoring(c, m, "sigmoid");
    m->correction_bias =
        strcmp(mf_config_opt_string(c, MF_KEYS("topk_method"), "noaux_tc"), "noaux_tc") == 0;
    m->norm_topk = true;
    m->routed_scaling = 2.5;
    mf_model_read_groups(c, m, 8, 4);
    mf_model_read_mtp(c, m);
}

static void read_indexer(mf_config *c, mf_model *m) {
    m->index_heads = mf_config_int(c, MF_KEYS("index_n_heads"), 1, 65536);
    m->index_head_dim = mf_config_int(c, MF_KEYS("index_head_dim"), 1, 65536);
    m->index_topk = mf_config_int(c, MF_KEYS("index_topk"), 1, INT64_C(1) << 40);
    mf_config_opt_bool(c, MF_KEYS("indexer_rope_interleave"), true);
}

static void read_deepseek_v32(mf_config *c, mf_model *m) {
    read_deepseek_v3(c, m);
    read_indexer(c, m);
}

static void read_glm_moe_dsa(mf_config *c, mf_model *m) {
    m->rope_interleave = mf_config_opt_bool(c, MF_KEYS("rope_interleave"), true);
    mf_model_read_experts(c, m, "moe_intermediate_size");
    mf_model_read_scoring(c, m, "sigmoid");
    m->correction_bias = true;
    m->norm_topk = true;
    m->routed_scaling = 2.5;
    mf_model_read_groups(c, m, 1, 1);
    mf_model_read_mtp(c, m);
    read_indexer(c, m);
    mf_config_opt_bool(c, MF_KEYS("index_share_for_mtp_iteration"), false);
}

/* Layers that take the choice of the one before have no indexer: as "indexer_types" says, else the
 * first "index_skip_topk_offset" have one, and every so manieth of the others, counted from the
 * offset's last. */
static void layers_indexed(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *types = mf_model_layer_list(c, "indexer_types", m->layers);
    const mf_json_value *kinds = mf_model_layer_list(c, "layer_types", m->layers);
    for (int64_t i = 0; i < m->layers && kinds != NULL && c->status == MF_OK; i++) {
        if (!mf_model_layer_is(c, kinds, i, "deepseek_sparse_attention")) {
            mf_config_fail(c, "layer_types", "\"layer_types\": expected deepseek_sparse_attention");
        }
    }
    int64_t skip = mf_config_opt_int(c, MF_KEYS("index_skip_topk_offset"), 0, 1 << 20, 0);
    int64_t step = mf_config_opt_int(c, MF_KEYS("index_topk_freq"), 1, 1 << 20, 1);
    for (int64_t i = 0; i <= m->layers && c->status == MF_OK; i++) {
        bool shared = i >= skip && (i - skip + 1) % step != 0;
        if (types != NULL && i < m->layers) {
            shared = mf_model_layer_either(c, types, i, "shared", "full");
        }
        map->at[i].indexer = !shared || i == m->layers;
    }
}

const mf_model_family mf_family_deepseek_v2 = {
    .name = "deepseek_v2",
    .architectures = {"DeepseekV2ForCausalLM"},
    .attn = MF_ATTN_MLA,
    .moe = MF_MOE_FIRST_DENSE,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_deepseek_v2,
};

const mf_model_family mf_family_deepseek_v3 = {
    .name = "deepseek_v3",
    .architectures = {"DeepseekV3ForCausalLM"},
    .attn = MF_ATTN_MLA,
    .moe = MF_MOE_FIRST_DENSE,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_deepseek_v3,
};

const mf_model_family mf_family_kimi_k2 = {
    .name = "kimi_k2",
    .architectures = {"KimiK2ForCausalLM"},
    .attn = MF_ATTN_MLA,
    .moe = MF_MOE_FIRST_DENSE,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_deepseek_v3,
};

const mf_model_family mf_family_deepseek_v32 = {
    .name = "deepseek_v32",
    .no_bridge = true,
    .architectures = {"DeepseekV32ForCausalLM"},
    .attn = MF_ATTN_MLA,
    .moe = MF_MOE_FIRST_DENSE,
    .eps = 1e-6,
    .theta = 10000,
    .read = read_deepseek_v32,
    .layers = layers_indexed,
};

const mf_model_family mf_family_glm_moe_dsa = {
    .name = "glm_moe_dsa",
    .architectures = {"GlmMoeDsaForCausalLM"},
    .attn = MF_ATTN_MLA,
    .moe = MF_MOE_FIRST_DENSE,
    .first_dense = 3,
    .eps = 1e-5,
    .theta = 10000,
    .read = read_glm_moe_dsa,
    .layers = layers_indexed,
};
