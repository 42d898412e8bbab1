/* model_family.h - private to core/model_*.c: the table of model families and who reads which part
 * of a config.json. Absent keys mean what the family's configuration class in Hugging Face
 * transformers takes for them; sizes that shape the weights are never guessed. A mistake sticks in
 * c->status.
 */
#ifndef MF_CORE_MODEL_FAMILY_H
#define MF_CORE_MODEL_FAMILY_H

#include "core/model_reader.h"

#define MF_CONFIG_WIDTH_MAX (INT64_C(1) << 20) /* hidden, heads x head_dim, one expert */
#define MF_CONFIG_FFN_MAX (INT64_C(1) << 24)

typedef enum mf_bias_rule {
    MF_BIAS_NONE,
    MF_BIAS_QKV,           /* always on q, k, v (Qwen2) */
    MF_BIAS_QKV_KEY,       /* "qkv_bias", on unless it says otherwise (Qwen2-MoE) */
    MF_BIAS_ATTENTION_QKV, /* "attention_bias" puts it on q, k, v (GLM-4.5) */
    MF_BIAS_ATTENTION_ALL, /* "attention_bias" puts it on q, k, v and o */
} mf_bias_rule;

typedef enum mf_window_rule {
    MF_WINDOW_NONE,
    MF_WINDOW_ALL,         /* "sliding_window" in every layer */
    MF_WINDOW_SWITCHED,    /* "use_sliding_window", from layer "max_window_layers" on (Qwen) */
    MF_WINDOW_ALTERNATING, /* even layers (GPT-OSS) */
} mf_window_rule;

typedef enum mf_moe_rule {
    MF_MOE_NONE,
    MF_MOE_ALL,
    MF_MOE_SPARSE_STEP, /* "decoder_sparse_step" and "mlp_only_layers" (Qwen) */
    MF_MOE_FIRST_DENSE, /* "first_k_dense_replace" and "moe_layer_freq" (DeepSeek, GLM) */
} mf_moe_rule;

/* A row of the table of families. */
typedef struct mf_model_family {
    const char *name;         /* model_type */
    const char *architecture; /* what files without a model_type give */
    mf_attn_kind attn;
    mf_bias_rule bias;
    mf_window_rule window;
    mf_moe_rule moe;
    int64_t head_dim; /* when not given; 0 = hidden / heads */
    int64_t window_default;
    double eps, theta;
    void (*read)(mf_config *c, mf_model *m); /* the rest; NULL = nothing more */
} mf_model_family;

/* By model_type of the text part, else of the whole, else architectures[0]. NULL after a failure,
 * which names the known families. */
const mf_model_family *mf_model_family_find(mf_config *c);

/* Rotary positions: base, share of the head, scaling (model_rope.c). */
void mf_model_read_rope(mf_config *c, const mf_model_family *f, mf_model *m);

/* Which layer has which FFN and window (model_layers.c). */
void mf_model_read_layers(mf_config *c, const mf_model_family *f, mf_model *m);

#endif
