/* model_family.h - private to core/model: the table of model families and who reads which part of a
 * config.json.
 *
 * A family is one file (family_NAME.c; kin are in one) and one row of MF_FAMILY_MAP. Its
 * mf_model_family says by which rules the common parts are read, and what only it reads. Absent
 * keys mean what the family's configuration class in Hugging Face transformers takes for them;
 * sizes that shape the weights are never guessed. A mistake sticks in c->status.
 */
#ifndef MF_CORE_MODEL_FAMILY_H
#define MF_CORE_MODEL_FAMILY_H

#include "core/model/hub_names.h"
#include "core/model/model_reader.h"

#define MF_CONFIG_WIDTH_MAX (INT64_C(1) << 20) /* hidden, heads x head_dim, one expert */
#define MF_CONFIG_FFN_MAX (INT64_C(1) << 24)
#define MF_CONFIG_EXPERTS_MAX 8192

/* In the order in which error texts list them. */
#define MF_FAMILY_MAP(X)                                                                           \
    X(bailing_hybrid)                                                                              \
    X(bailing_moe)                                                                                 \
    X(deepseek_v2)                                                                                 \
    X(deepseek_v3)                                                                                 \
    X(deepseek_v32)                                                                                \
    X(deepseek_v4)                                                                                 \
    X(dots1)                                                                                       \
    X(ernie4_5_moe)                                                                                \
    X(gemma4)                                                                                      \
    X(glm4_moe)                                                                                    \
    X(glm_moe_dsa)                                                                                 \
    X(gpt_oss)                                                                                     \
    X(granitemoe)                                                                                  \
    X(granitemoehybrid)                                                                            \
    X(granitemoeshared)                                                                            \
    X(hunyuan_v1_moe)                                                                              \
    X(hy_v3)                                                                                       \
    X(kimi_k2)                                                                                     \
    X(kimi_k3)                                                                                     \
    X(kimi_linear)                                                                                 \
    X(llama)                                                                                       \
    X(llama4_text)                                                                                 \
    X(mimo)                                                                                        \
    X(mimo_v2_flash)                                                                               \
    X(minimax_m2)                                                                                  \
    X(minimax_m3)                                                                                  \
    X(minimax_text_01)                                                                             \
    X(mistral)                                                                                     \
    X(mixtral)                                                                                     \
    X(nemotron_h)                                                                                  \
    X(olmoe)                                                                                       \
    X(phimoe)                                                                                      \
    X(qwen2)                                                                                       \
    X(qwen2_moe)                                                                                   \
    X(qwen3)                                                                                       \
    X(qwen3_5)                                                                                     \
    X(qwen3_5_moe)                                                                                 \
    X(qwen3_moe)                                                                                   \
    X(qwen3_next)                                                                                  \
    X(step3_text)                                                                                  \
    X(step3p5)

typedef enum mf_bias_rule {
    MF_BIAS_NONE,          /* none, or the family's reader says */
    MF_BIAS_QKV,           /* always on q, k, v (Qwen2) */
    MF_BIAS_QKV_KEY,       /* "qkv_bias", on unless it says otherwise (Qwen2-MoE) */
    MF_BIAS_ATTENTION_QKV, /* "attention_bias" puts it on q, k, v (GLM-4.5) */
    MF_BIAS_ATTENTION_ALL, /* "attention_bias" puts it on q, k, v and o */
} mf_bias_rule;

typedef enum mf_window_rule {
    MF_WINDOW_NONE,        /* none, or the family's `layers` says */
    MF_WINDOW_ALL,         /* "sliding_window" in every layer */
    MF_WINDOW_SWITCHED,    /* "use_sliding_window", from layer "max_window_layers" on (Qwen) */
    MF_WINDOW_ALTERNATING, /* even layers (GPT-OSS) */
} mf_window_rule;

typedef enum mf_moe_rule {
    MF_MOE_NONE, /* none, or the family's `layers` says */
    MF_MOE_ALL,
    MF_MOE_SPARSE_STEP, /* "decoder_sparse_step" and "mlp_only_layers" (Qwen) */
    MF_MOE_FIRST_DENSE, /* "first_k_dense_replace" and "moe_layer_freq", or "mlp_layer_types"
                           (DeepSeek, GLM) */
} mf_moe_rule;

/* What each layer is; entry [layers] stands for the layer inside an MTP block. */
typedef struct mf_layer_map {
    mf_layer_class at[MF_MODEL_MAX_LAYERS + 1];
} mf_layer_map;

typedef struct mf_model_family {
    const char *name;    /* model_type */
    const char *same[4]; /* model_types that are the same, text parts of others among them */
    const char *architectures[3]; /* what files without a model_type give */
    mf_attn_kind attn;
    mf_bias_rule bias;
    mf_window_rule window;
    int64_t window_default;
    mf_moe_rule moe;
    int64_t first_dense;    /* "first_k_dense_replace" when absent */
    int64_t head_dim;       /* when not given; 0 = hidden / heads */
    double eps, theta;      /* when not given */
    double partial_rotary;  /* when not given; 0 = 1 */
    bool tied;              /* when not given */
    bool rope_listed;       /* "rope_theta" may be a list by layer, which `layers` reads */
    bool no_bridge;         /* Megatron-Bridge does not know it (its models/ of 2026-08) */
    const char *act;        /* "hidden_act"; NULL: silu */
    const char *dense_key;  /* width of dense layers; NULL: intermediate_size */
    const char *layers_key; /* list or text with an entry a layer; counts layers where no
                               "num_hidden_layers" does */
    void (*read)(mf_config *c, mf_model *m); /* the rest; NULL = nothing more */
    /* Sets what the rules do not say about the layers, after them; NULL = nothing. */
    void (*layers)(mf_config *c, const mf_model *m, mf_layer_map *map);
    mf_hub_names hub; /* names that differ from the common ones */
} mf_model_family;

#define X(name) extern const mf_model_family mf_family_##name;
MF_FAMILY_MAP(X)
#undef X

/* By model_type of the text part, else of the whole, else architectures[0]. NULL after a failure,
 * which names the known families. */
const mf_model_family *mf_model_family_find(mf_config *c);
/* By mf_model.family; NULL when there is none of that name. */
const mf_model_family *mf_model_family_named(const char *name);

/* Rotary positions: base, rotated fraction of a head, scaling (model_rope.c). */
void mf_model_read_rope(mf_config *c, const mf_model_family *f, mf_model *m);

/* Which layer has which FFN and window (model_layers.c). */
void mf_model_read_layers(mf_config *c, const mf_model_family *f, mf_model *m);
/* The list under `key`, checked to have an entry for each of `layers` layers (or more, when --set
 * has shortened the model); NULL when absent or after a failure. */
const mf_json_value *mf_model_layer_list(mf_config *c, const char *key, int64_t layers);
/* Whether entry i of a list of texts is `word`; false after a failure. */
bool mf_model_layer_is(mf_config *c, const mf_json_value *list, int64_t i, const char *word);
/* The same, where anything but `word` and `other` is a failure. */
bool mf_model_layer_either(mf_config *c, const mf_json_value *list, int64_t i, const char *word,
                           const char *other);
/* Whether entry i of a list of 0 and 1 is 1. */
bool mf_model_layer_flag(mf_config *c, const mf_json_value *list, int64_t i);

/* --- pieces of several families (model_experts.c) ------------------------------------------------
 */

/* Experts, how many a token uses, the width of one, the coefficient of the auxiliary loss. */
void mf_model_read_experts(mf_config *c, mf_model *m, const char *width_key);
/* Group-limited routing, scaling and shared experts, as DeepSeek and GLM write them. */
void mf_model_read_groups(mf_config *c, mf_model *m, int64_t n_group, int64_t topk_group);
/* Experts and router of Ling's families: sigmoid scores, correction bias, groups, shared experts;
 * and MTP depths (family_bailing_moe.c). */
void mf_model_read_ling_experts(mf_config *c, mf_model *m);
/* Base and rotated fraction of a class of layers, where "rope_parameters" has an object under
 * `type`. */
void mf_model_read_typed_rope(mf_config *c, const char *type, mf_layer_class *x);
/* "scoring_func": softmax or sigmoid (also spelt score_function, moe_router_activation_func). */
void mf_model_read_scoring(mf_config *c, mf_model *m, const char *fallback);
void mf_model_read_mtp(mf_config *c, mf_model *m);
/* Factors on embeddings, residuals, scores and logits (family_granite.c). */
void mf_model_read_granite_factors(mf_config *c, mf_model *m);

#endif
