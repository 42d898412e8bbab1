/* family_kimi_linear.c - Kimi Linear and Kimi-K3: three layers of delta attention with a decay for
 * each channel to one of latent attention; Ling 2.6 and MiniMax-Text-01: lightning attention. */
#include "core/model/model_family.h"

#include <string.h>

static const mf_json_value *linear_config(mf_config *c) {
    static const char *const known[] = {
        "full_attn_layers", "gate_lower_bound",       "head_dim",           "kda_layers",
        "num_heads",        "short_conv_kernel_size", "use_full_rank_gate", NULL};
    const mf_json_value *v = mf_config_object(c, "linear_attn_config", known);
    if (v == NULL && c->status == MF_OK) {
        mf_config_fail(c, "linear_attn_config", "\"linear_attn_config\" is missing");
    }
    return v;
}

/* Sets the mixer of the layers that a list names, counted from 1. */
static void set_mixer(mf_config *c, const mf_json_value *list, const mf_model *m,
                      mf_mixer_kind mixer, mf_layer_map *map) {
    for (size_t k = 0; k < mf_json_size(list) && c->status == MF_OK; k++) {
        int64_t i = 0;
        c->status = mf_json_i64(mf_json_at(list, k), 1, MF_MODEL_MAX_LAYERS, &i, c->e);
        if (c->status == MF_OK && i <= m->layers && map->at[i - 1].mixer != MF_MIXER_NONE) {
            c->status =
                mf_json_fail(mf_json_at(list, k), c->e, "layer %lld is listed twice", (long long)i);
        } else if (c->status == MF_OK && i <= m->layers) {
            map->at[i - 1].mixer = mixer;
        }
    }
}

/* Each layer stands in one of two lists; without "kda_layers" it has those that the other lacks. */
static void layers_kimi(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *v = linear_config(c);
    const mf_json_value *full = v != NULL ? mf_json_find(v, "full_attn_layers") : NULL;
    const mf_json_value *delta = v != NULL ? mf_json_find(v, "kda_layers") : NULL;
    bool nope = mf_config_opt_bool(c, MF_KEYS("mla_use_nope"), true);
    if (c->status != MF_OK) {
        return;
    }
    if (full == NULL || mf_json_value_type(full) != MF_JSON_ARRAY ||
        (delta != NULL && mf_json_value_type(delta) != MF_JSON_ARRAY)) {
        mf_config_fail(c, "linear_attn_config",
                       "\"full_attn_layers\" and \"kda_layers\": expected arrays");
        return;
    }
    for (int64_t i = 0; i < m->layers; i++) {
        map->at[i].mixer = MF_MIXER_NONE;
    }
    set_mixer(c, full, m, MF_MIXER_ATTENTION, map);
    if (delta != NULL) {
        set_mixer(c, delta, m, MF_MIXER_KDA, map);
    }
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        mf_layer_class *x = &map->at[i];
        if (x->mixer == MF_MIXER_NONE && delta != NULL) {
            mf_config_fail(c, "linear_attn_config", "layer %lld stands in neither list",
                           (long long)i + 1);
        }
        x->mixer = x->mixer == MF_MIXER_NONE ? MF_MIXER_KDA : x->mixer;
        x->no_rope = nope && x->mixer == MF_MIXER_ATTENTION;
    }
}

static void read_delta(mf_config *c, mf_model *m) {
    const mf_json_value *v = linear_config(c);
    int64_t heads = 0, width = 0, taps = 4;
    bool full = false;
    if (v == NULL) {
        return;
    }
    mf_status st = mf_json_get_i64(v, "num_heads", 1, 65536, &heads, c->e);
    st = st == MF_OK ? mf_json_get_i64(v, "head_dim", 1, 65536, &width, c->e) : st;
    st = st == MF_OK ? mf_json_opt_i64(v, "short_conv_kernel_size", 1, 1024, &taps, c->e) : st;
    c->status = st == MF_OK ? mf_json_opt_bool(v, "use_full_rank_gate", &full, c->e) : st;
    m->mixer = (mf_mixer_shape){.key_heads = heads,
                                .key_dim = width,
                                .value_heads = heads,
                                .value_dim = width,
                                .conv = taps,
                                .full_rank_gate = full,
                                .chunk = 64};
}

static void read_kimi(mf_config *c, mf_model *m) {
    read_delta(c, m);
    bool gate = mf_config_opt_bool(c, MF_KEYS("mla_use_output_gate"), false);
    m->attn_gate = gate ? MF_ATTN_GATE_CHANNEL : MF_ATTN_GATE_NONE;
    mf_model_read_experts(c, m, "moe_intermediate_size");
    mf_model_read_scoring(c, m, "sigmoid");
    m->correction_bias = true;
    m->norm_topk = true;
    mf_model_read_groups(c, m, 1, 1);
    mf_config_opt_bool(c, MF_KEYS("use_grouped_topk"), true);
    m->moe_latent =
        mf_config_opt_int(c, MF_KEYS("routed_expert_hidden_size"), 0, MF_CONFIG_WIDTH_MAX, 0);
    m->latent_norm = mf_config_opt_bool(c, MF_KEYS("latent_moe_use_norm"), false);
    mf_model_read_mtp(c, m);
    if (mf_config_opt_int(c, MF_KEYS("attn_res_block_size"), 0, 1024, 0) > 0) {
        mf_config_leave_out(c, "attention residuals (\"attn_res_block_size\")");
    }
    const char *act = mf_config_opt_string(c, MF_KEYS("hidden_act"), "silu");
    if (strcmp(act, "situ") == 0) {
        mf_config_leave_out(c, "its activation (\"hidden_act\": situ), read as a SwiGLU");
    } else if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0) {
        mf_config_fail(c, "hidden_act", "\"hidden_act\": expected silu or situ, got \"%.40s\"",
                       act);
    }
    mf_config_opt_f64(c, MF_KEYS("activation_situ_beta"), 0, 1e6, 0);
    mf_config_opt_f64(c, MF_KEYS("activation_situ_linear_beta"), 0, 1e6, 0);
}

#define KIMI                                                                                       \
    .attn = MF_ATTN_MLA, .moe = MF_MOE_FIRST_DENSE, .eps = 1e-5, .theta = 10000, .act = "",        \
    .read = read_kimi, .layers = layers_kimi

const mf_model_family mf_family_kimi_linear = {
    .name = "kimi_linear",
    .no_bridge = true,
    .architectures = {"KimiLinearForCausalLM"},
    KIMI,
};

/* Its text says kimi_linear. */
const mf_model_family mf_family_kimi_k3 = {
    .name = "kimi_k3",
    .same = {"kimi_linear"},
    .architectures = {"KimiK3ForConditionalGeneration", "KimiK3ForCausalLM"},
    KIMI,
};

/* --- lightning attention ---------------------------------------------------------------------- */

static void set_lightning(mf_model *m, int64_t width) {
    m->mixer = (mf_mixer_shape){.key_heads = m->heads,
                                .key_dim = width,
                                .value_heads = m->heads,
                                .value_dim = width,
                                .chunk = 256};
}

static void read_ling(mf_config *c, mf_model *m) {
    set_lightning(m, mf_config_int(c, MF_KEYS("head_dim"), 1, 65536));
    mf_config_opt_bool(c, MF_KEYS("use_qk_norm"), true);
    mf_model_read_ling_experts(c, m);
}

/* The last layer of each group attends, and so do the layers of a group that the end of the model
 * truncates. */
static void layers_ling(mf_config *c, const mf_model *m, mf_layer_map *map) {
    int64_t group = mf_config_opt_int(c, MF_KEYS("layer_group_size"), 1, 1 << 20, 8);
    int64_t whole = m->layers / group * group;
    for (int64_t i = 0; i < m->layers; i++) {
        bool attends = (i + 1) % group == 0 || i >= whole;
        map->at[i].mixer = attends ? MF_MIXER_ATTENTION : MF_MIXER_LIGHTNING;
    }
}

const mf_model_family mf_family_bailing_hybrid = {
    .name = "bailing_hybrid",
    .no_bridge = true,
    .architectures = {"BailingMoeV2_5ForCausalLM"},
    .attn = MF_ATTN_MLA,
    .moe = MF_MOE_FIRST_DENSE,
    .eps = 1e-6,
    .theta = 600000,
    .read = read_ling,
    .layers = layers_ling,
    .hub = {.embedding = "model.word_embeddings", .correction = "mlp.gate.expert_bias"},
};

static void read_minimax(mf_config *c, mf_model *m) {
    int64_t rotary = mf_config_opt_int(c, MF_KEYS("rotary_dim"), 0, MF_CONFIG_WIDTH_MAX, 0);
    if (c->status == MF_OK && rotary > 0 && rotary <= m->head_dim) {
        m->partial_rotary = (double)rotary / (double)m->head_dim;
    }
    set_lightning(m, m->head_dim);
    mf_model_read_experts(c, m, "intermediate_size");
    m->norm_topk = true;
    m->shared_ffn =
        mf_config_opt_int(c, MF_KEYS("shared_intermediate_size"), 0, MF_CONFIG_FFN_MAX, 0);
    if (mf_config_opt_bool(c, MF_KEYS("postnorm"), false)) {
        mf_config_leave_out(c, "norms behind the halves of a layer (\"postnorm\")");
    }
}

static void layers_minimax(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *types = mf_model_layer_list(c, "attn_type_list", m->layers);
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        bool attends = types == NULL ? (i + 1) % 8 == 0 : mf_model_layer_flag(c, types, i);
        map->at[i].mixer = attends ? MF_MIXER_ATTENTION : MF_MIXER_LIGHTNING;
    }
}

const mf_model_family mf_family_minimax_text_01 = {
    .name = "minimax_text_01",
    .no_bridge = true,
    .same = {"minimax"},
    .architectures = {"MiniMaxText01ForCausalLM", "MiniMaxForCausalLM"},
    .moe = MF_MOE_ALL,
    .eps = 1e-5,
    .theta = 1e7,
    .read = read_minimax,
    .layers = layers_minimax,
    .hub = {.router = "block_sparse_moe.gate",
            .expert = {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3",
                       "block_sparse_moe.experts.#.w2"}},
};
