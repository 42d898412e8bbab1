/* family_nemotron_h.c - Nemotron-H and Nemotron 3: each layer is Mamba-2, attention, experts or an
 * MLP alone; FFNs of two matrices with squared relu; Granite 4: Mamba-2 or attention, then experts.
 */
#include "core/model/model_family.h"

#include <string.h>

/* The same shape under the keys of Nemotron-H (heads, width, state, groups) and of Granite 4. */
static void read_mamba(mf_config *c, mf_model *m) {
    m->mixer = (mf_mixer_shape){
        .value_heads = mf_config_int(c, MF_KEYS("mamba_num_heads", "mamba_n_heads"), 1, 65536),
        .value_dim = mf_config_int(c, MF_KEYS("mamba_head_dim", "mamba_d_head"), 1, 65536),
        .key_dim = mf_config_int(c, MF_KEYS("ssm_state_size", "mamba_d_state"), 1, 65536),
        .key_heads = mf_config_int(c, MF_KEYS("n_groups", "mamba_n_groups"), 1, 65536),
        .conv = mf_config_opt_int(c, MF_KEYS("conv_kernel", "mamba_d_conv"), 1, 1024, 4),
        .conv_bias = mf_config_opt_bool(c, MF_KEYS("use_conv_bias", "mamba_conv_bias"), true),
        .chunk = mf_config_opt_int(c, MF_KEYS("chunk_size", "mamba_chunk_size"), 1, 1 << 20, 128),
    };
    mf_config_opt_int(c, MF_KEYS("expand", "mamba_expand"), 1, 1024, 2); /* heads x width says it */
    mf_config_word(c, "mamba_hidden_act", MF_KEYS("silu", "swish"));
    if (mf_config_opt_bool(c, MF_KEYS("mamba_proj_bias", "use_bias"), false)) {
        mf_config_fail(c, "mamba_proj_bias", "\"mamba_proj_bias\" is not supported");
    }
}

/* What layer i is: a letter of the pattern or a word of the list. */
static char letter_at(mf_config *c, int64_t i) {
    const mf_json_value *list = mf_config_value(c, MF_KEYS("layers_block_type"));
    const char *text = NULL, *word = "";
    if (list != NULL) {
        c->status = mf_json_string(mf_json_at(list, (size_t)i), &word, c->e);
        return strcmp(word, "mamba") == 0       ? 'M'
               : strcmp(word, "moe") == 0       ? 'E'
               : strcmp(word, "attention") == 0 ? '*'
               : strcmp(word, "mlp") == 0       ? '-'
                                                : '?';
    }
    text = mf_config_opt_string(c, MF_KEYS("hybrid_override_pattern"), "");
    return (size_t)i < strlen(text) ? text[i] : '?';
}

/* Whether list or pattern has an entry for each layer. */
static bool counts_layers(mf_config *c, const mf_model *m) {
    const mf_json_value *list = mf_config_value(c, MF_KEYS("layers_block_type"));
    if (list != NULL && mf_json_value_type(list) != MF_JSON_ARRAY) {
        mf_config_fail(c, "layers_block_type", "\"layers_block_type\": expected an array");
        return false;
    }
    const char *text = mf_config_opt_string(c, MF_KEYS("hybrid_override_pattern"), "");
    int64_t size = list != NULL ? (int64_t)mf_json_size(list) : (int64_t)strlen(text);
    bool shortened = size > m->layers && mf_config_is_set(c, "num_hidden_layers");
    if (c->status == MF_OK && size != m->layers && !shortened) {
        mf_config_fail(c, list != NULL ? "layers_block_type" : "hybrid_override_pattern",
                       "%lld entries for %lld layers", (long long)size, (long long)m->layers);
    }
    return c->status == MF_OK;
}

static void layers(mf_config *c, const mf_model *m, mf_layer_map *map) {
    if (!counts_layers(c, m)) {
        return;
    }
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        mf_layer_class *x = &map->at[i];
        x->no_rope = true;
        switch (letter_at(c, i)) {
        case 'M':
            *x = (mf_layer_class){.mixer = MF_MIXER_MAMBA2, .ffn = MF_FFN_NONE};
            break;
        case 'E':
            *x = (mf_layer_class){.mixer = MF_MIXER_NONE, .ffn = MF_FFN_MOE};
            break;
        case '-':
            *x = (mf_layer_class){.mixer = MF_MIXER_NONE, .ffn = MF_FFN_DENSE};
            break;
        case '*':
            x->ffn = MF_FFN_NONE;
            break;
        default:
            mf_config_fail(c, "hybrid_override_pattern",
                           "layer %lld: expected mamba (M), moe (E), attention (*) or mlp (-)",
                           (long long)i);
        }
    }
    map->at[m->layers] = (mf_layer_class){.ffn = MF_FFN_MOE, .no_rope = true};
}

static bool has_experts(mf_config *c, const mf_model *m) {
    bool counted = counts_layers(c, m);
    for (int64_t i = 0; counted && i < m->layers && c->status == MF_OK; i++) {
        if (letter_at(c, i) == 'E') {
            return true;
        }
    }
    return false;
}

/* An MTP block is attention and experts: "*E". */
static void read_mtp_pattern(mf_config *c) {
    const char *text = mf_config_opt_string(c, MF_KEYS("mtp_hybrid_override_pattern"), "*E");
    const mf_json_value *list = mf_config_value(c, MF_KEYS("mtp_layers_block_type"));
    bool usual =
        list == NULL || (mf_json_size(list) == 2 && mf_model_layer_is(c, list, 0, "attention") &&
                         mf_model_layer_is(c, list, 1, "moe"));
    if (c->status == MF_OK && (strcmp(text, "*E") != 0 || !usual)) {
        mf_config_fail(c, "mtp_layers_block_type", "MTP blocks other than attention and moe");
    }
}

static void read(mf_config *c, mf_model *m) {
    m->ungated = true;
    read_mamba(c, m);
    if (mf_config_opt_bool(c, MF_KEYS("mlp_bias"), false)) {
        mf_config_fail(c, "mlp_bias", "\"mlp_bias\" is not supported");
    }
    if (!has_experts(c, m)) {
        return;
    }
    mf_model_read_experts(c, m, "moe_intermediate_size");
    m->router_score = MF_ROUTER_SIGMOID;
    m->correction_bias = true;
    m->norm_topk = true;
    mf_model_read_groups(c, m, 1, 1);
    m->shared_ffn = mf_config_opt_int(c, MF_KEYS("moe_shared_expert_intermediate_size"), 0,
                                      MF_CONFIG_FFN_MAX, m->shared_ffn);
    m->moe_latent = mf_config_opt_int(c, MF_KEYS("moe_latent_size"), 0, MF_CONFIG_WIDTH_MAX, 0);
    mf_model_read_mtp(c, m);
    read_mtp_pattern(c);
    mf_config_has(c, "intermediate_size");
    mf_config_has(c, "partial_rotary_factor");
}

const mf_model_family mf_family_nemotron_h = {
    .name = "nemotron_h",
    .architectures = {"NemotronHForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .eps = 1e-5,
    .theta = 10000,
    .act = "relu2",
    .layers_key = "layers_block_type",
    .read = read,
    .layers = layers,
    .hub = {.embedding = "backbone.embeddings",
            .norm = "backbone.norm_f",
            .input_norm = "norm",
            .dense = "mixer",
            .shared = "mixer.shared_experts",
            .router = "mixer.gate",
            .correction = "mixer.gate.e_score_correction_bias",
            .q = "mixer.q_proj",
            .k = "mixer.k_proj",
            .v = "mixer.v_proj",
            .o = "mixer.o_proj",
            .expert = {"mixer.experts.#.gate_proj", "mixer.experts.#.up_proj",
                       "mixer.experts.#.down_proj"}},
};

/* --- Granite 4 -------------------------------------------------------------------------------- */

static void read_granite(mf_config *c, mf_model *m) {
    static const char *const expert_keys[] = {"num_local_experts", "num_experts",
                                              "n_routed_experts", "moe_num_experts", NULL};
    mf_model_read_granite_factors(c, m);
    read_mamba(c, m);
    m->shared_ffn =
        mf_config_opt_int(c, MF_KEYS("shared_intermediate_size"), 0, MF_CONFIG_FFN_MAX, 1024);
    if (mf_config_opt_int(c, expert_keys, 0, MF_CONFIG_EXPERTS_MAX, 0) > 0) {
        mf_model_read_experts(c, m, "intermediate_size");
        m->router_score = MF_ROUTER_TOPK_SOFTMAX;
    }
    mf_config_word(c, "normalization_function", MF_KEYS("rmsnorm"));
}

static void layers_granite(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *types = mf_model_layer_list(c, "layer_types", m->layers);
    const char *positions = mf_config_word(c, "position_embedding_type", MF_KEYS("nope", "rope"));
    bool nope = strcmp(positions, "nope") == 0;
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        mf_layer_class *x = &map->at[i];
        x->ffn = m->experts > 0 ? MF_FFN_MOE : MF_FFN_DENSE;
        if (types != NULL && mf_model_layer_either(c, types, i, "mamba", "attention")) {
            x->mixer = MF_MIXER_MAMBA2;
        } else {
            x->no_rope = nope;
        }
    }
}

const mf_model_family mf_family_granitemoehybrid = {
    .name = "granitemoehybrid",
    .no_bridge = true,
    .architectures = {"GraniteMoeHybridForCausalLM"},
    .bias = MF_BIAS_ATTENTION_ALL,
    .eps = 1e-5,
    .theta = 10000,
    .dense_key = "shared_intermediate_size",
    .read = read_granite,
    .layers = layers_granite,
    .hub = {.shared = "shared_mlp",
            .shared_gate_up = "input_linear",
            .shared_down = "output_linear",
            .router = "block_sparse_moe.router.layer",
            .experts = MF_HUB_EXPERTS_ROWS,
            .expert = {"block_sparse_moe.input_linear.weight",
                       "block_sparse_moe.output_linear.weight"}},
};
