/* family_ernie4_5_moe.c - ERNIE 4.5: rotated pairs side by side, softmax router with a selection
 * bias, shared experts. */
#include "core/model/model_family.h"

static void read(mf_config *c, mf_model *m) {
    m->rope_interleave = true;
    m->qkv_bias = m->o_bias = m->ffn_bias = m->head_bias =
        mf_config_opt_bool(c, MF_KEYS("use_bias"), false);
    if (m->ffn_bias) {
        mf_config_fail(c, "use_bias",
                       "\"use_bias\": biases beside experts without are not supported");
    }
    mf_model_read_experts(c, m, "moe_intermediate_size");
    m->correction_bias = mf_config_opt_bool(c, MF_KEYS("moe_use_aux_free"), true);
    m->norm_topk = true;
    mf_config_opt_f64(c, MF_KEYS("moe_norm_min"), 0, 1, 1e-12);
    m->shared_ffn =
        m->moe_ffn * mf_config_opt_int(c, MF_KEYS("moe_num_shared_experts"), 0, 1024, 2);
    int64_t depths = mf_config_opt_int(c, MF_KEYS("num_nextn_predict_layers"), 0, 1024, 0);
    if (depths > 0) {
        mf_config_leave_out(c, "%lld MTP depth, which transformers leaves out too",
                            (long long)depths);
    }
}

static void layers(mf_config *c, const mf_model *m, mf_layer_map *map) {
    int64_t first =
        mf_config_opt_even_int(c, MF_KEYS("moe_layer_start_index"), 0, MF_MODEL_MAX_LAYERS, 1);
    int64_t last =
        mf_config_opt_even_int(c, MF_KEYS("moe_layer_end_index"), -1, MF_MODEL_MAX_LAYERS, -1);
    int64_t interval = mf_config_opt_int(c, MF_KEYS("moe_layer_interval"), 1, 1 << 20, 1);
    last = last < 0 ? m->layers - 1 : last;
    for (int64_t i = 0; i <= m->layers; i++) {
        bool moe = (i + 1) % interval == 0 && i >= first && i <= last;
        map->at[i].ffn = moe ? MF_FFN_MOE : MF_FFN_DENSE;
    }
}

const mf_model_family mf_family_ernie4_5_moe = {
    .name = "ernie4_5_moe",
    .architectures = {"Ernie4_5_MoeForCausalLM"},
    .eps = 1e-5,
    .theta = 500000,
    .tied = true,
    .read = read,
    .layers = layers,
    .hub = {.correction = "mlp.moe_statics.e_score_correction_bias"},
};
