/* model.h - what is trained: a decoder-only transformer, dense or Mixture-of-Experts, read from a
 * Hugging Face config.json (old and new key spellings, values nested under "text_config").
 *
 * An mf_model is plain data without pointers: copy it freely; reading it is thread-safe.
 * Widths are counts of elements. Parameter counts are summed tensor by tensor (mf_model_tensors),
 * never from a closed formula, so that they can be held against the public totals.
 */
#ifndef MF_CORE_MODEL_H
#define MF_CORE_MODEL_H

#include "core/base/json.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define MF_MODEL_MAX_LAYERS 512
#define MF_MODEL_MAX_CLASSES 8

typedef enum mf_attn_kind {
    MF_ATTN_GQA, /* grouped-query (multi-head when kv_heads == heads) */
    MF_ATTN_MLA, /* multi-head latent attention: low-rank q and kv, split rope / no-rope parts */
} mf_attn_kind;

typedef enum mf_ffn_kind {
    MF_FFN_DENSE,
    MF_FFN_MOE,
    MF_FFN_NONE, /* the layer is a mixer alone (Nemotron-H) */
} mf_ffn_kind;

/* The op that mixes the tokens of a sample in a layer. All but attention keep a state of fixed
 * size. */
typedef enum mf_mixer_kind {
    MF_MIXER_ATTENTION,
    MF_MIXER_NONE,       /* the layer is an FFN alone (Nemotron-H) */
    MF_MIXER_GDN,        /* gated delta net (Qwen3-Next) */
    MF_MIXER_KDA,        /* the same with a decay for each channel (Kimi Linear) */
    MF_MIXER_MAMBA2,     /* state-space duality (Nemotron-H, Granite 4) */
    MF_MIXER_LIGHTNING,  /* linear attention with a fixed decay for each head (MiniMax-Text-01) */
    MF_MIXER_COMPRESSED, /* attention in a window and over compressed keys (DeepSeek-V4) */
} mf_mixer_kind;

typedef enum mf_router_score {
    MF_ROUTER_SOFTMAX,      /* probabilities over all experts, then top-k */
    MF_ROUTER_TOPK_SOFTMAX, /* top-k of logits, softmax over the chosen ones (GPT-OSS) */
    MF_ROUTER_SIGMOID,      /* DeepSeek-V3, Kimi-K2, GLM-4.5: with a selection-only bias */
    MF_ROUTER_TOPK_SIGMOID, /* top-k of logits, sigmoid of the chosen ones (Llama 4) */
    MF_ROUTER_SPARSEMIXER,  /* each choice by a softmax over those near the best (Phi-3.5-MoE);
                               how near: router_jitter */
    MF_ROUTER_SQRTSOFTPLUS, /* root of softplus, with a selection-only bias (DeepSeek-V4) */
} mf_router_score;

/* A sigmoid on the output of core attention, of its own rows of the projection. */
typedef enum mf_attn_gate {
    MF_ATTN_GATE_NONE,
    MF_ATTN_GATE_HEAD,    /* one number a head (Step-3.5) */
    MF_ATTN_GATE_CHANNEL, /* one number a channel (Qwen3-Next) */
} mf_attn_gate;

/* How rotary positions are stretched past the length that a model was first trained on. */
typedef enum mf_rope_kind {
    MF_ROPE_PLAIN,
    MF_ROPE_LINEAR, /* every frequency divided by the factor */
    MF_ROPE_LLAMA3, /* slow ones divided, fast ones kept, a ramp between (Llama 3.1) */
    MF_ROPE_YARN,   /* the same with a ramp over dimensions (Peng et al. 2023) */
    MF_ROPE_OTHER,  /* known to the config, not to the executor (dynamic, longrope) */
} mf_rope_kind;

typedef struct mf_rope_scaling {
    mf_rope_kind kind;
    double factor;
    double original;         /* positions of the first training */
    double low_freq_factor;  /* LLAMA3 */
    double high_freq_factor; /* LLAMA3 */
    double beta_fast;        /* YARN: rotations over `original` above which nothing changes */
    double beta_slow;        /* YARN: below which the factor holds in full */
    bool truncate;           /* YARN: ends of the ramp rounded to whole dimensions */
    double table_scale;      /* of cosines and sines; 1 but for YARN */
    double softmax_scale;    /* on top of 1 / sqrt(head_dim); 1 but for YARN with MLA */
} mf_rope_scaling;

/* One kind of decoder layer. Models have few; layer_class[] says which layer is of which. Zero
 * means as the model says. */
typedef struct mf_layer_class {
    mf_ffn_kind ffn;
    int64_t window;      /* attention reaches this many keys back; 0 = all */
    mf_mixer_kind mixer; /* other than attention: the fields below are not used */
    bool chunked;        /* attention stays inside chunks of `window` positions (Llama 4) */
    bool no_rope;        /* positions are not rotated */
    bool no_qk_norm;
    bool no_sinks;
    bool indexer;            /* sparse attention whose scores this layer makes itself */
    int64_t heads, kv_heads; /* of this class */
    int64_t head_dim;        /* of q, k and v of this class */
    bool k_is_v;             /* values are the projected keys (Gemma 4) */
    int64_t compress;        /* COMPRESSED: keys that one stands for; 0: the window alone */
    bool hashed;             /* a table says which experts a token goes to; the router says how much
                                of each (DeepSeek-V4) */
    double rope_theta, partial_rotary;
} mf_layer_class;

/* Widths of the mixers that are not attention; all such layers of a model are alike. */
typedef struct mf_mixer_shape {
    int64_t key_heads, key_dim;     /* GDN, KDA, lightning. Mamba-2: groups, state size */
    int64_t value_heads, value_dim; /* Mamba-2: heads, width of a head */
    int64_t conv;                   /* taps of the short convolution */
    bool conv_bias;
    bool full_rank_gate; /* KDA: the output gate is one matrix, not two of low rank */
    int64_t chunk;       /* positions that the chunked scan takes together */
} mf_mixer_shape;

#define MF_MODEL_LEFT_OUT 320
#define MF_MODEL_SET 1024 /* bytes of overrides that a model keeps */
#define MF_MODEL_SETS 64

#define MF_MODEL_MAX_MTP 16

typedef struct mf_model {
    char name[96];   /* shipped name, or the folder / file it came from */
    char family[32]; /* "llama", "mixtral", "qwen2_moe", ... : model_type, normalised */

    int64_t layers;     /* decoder layers, MTP not counted */
    int64_t mtp_layers; /* multi-token-prediction depths, each one more layer (of mtp_class); up to
                         * MF_MODEL_MAX_MTP */
    int64_t hidden;
    int64_t vocab;
    bool tied_embeddings;
    bool head_bias;
    double rms_norm_eps;
    bool layer_norm;        /* LayerNorm with a bias in place of RMSNorm (Phi-3.5-MoE) */
    bool zero_centred_norm; /* a norm multiplies by 1 + weight */
    /* Factors on embeddings, on what a layer's halves add, on logits; 0 = none (Granite) */
    double embedding_multiplier, residual_multiplier, logits_multiplier;
    double rope_theta;
    mf_rope_scaling rope_scaling;
    int64_t max_position;

    /* attention */
    mf_attn_kind attn;
    int64_t heads;
    int64_t kv_heads;    /* GQA; == heads for MLA */
    int64_t head_dim;    /* GQA: of q, k, v. MLA: qk_nope + qk_rope */
    int64_t q_lora_rank; /* MLA; 0 = q is projected directly */
    int64_t kv_lora_rank;
    int64_t qk_nope_head_dim;
    int64_t qk_rope_head_dim;
    int64_t v_head_dim; /* == head_dim for GQA */
    bool qk_norm;       /* RMSNorm over head_dim on q and k (Qwen3, GLM-4.5 large) */
    bool qk_norm_full;  /* RMSNorm over the whole q / k projection (OLMoE) */
    bool qk_norm_plain; /* by head, without weights (Llama 4) */
    bool qk_norm_late;  /* after the rotation (Hunyuan, Llama 4) */
    bool qkv_bias;
    bool o_bias;
    bool attn_sinks;       /* one learned logit per head (GPT-OSS) */
    double partial_rotary; /* share of head_dim that is rotated, 1 = all; MLA: rope / head_dim */
    bool rope_interleave;  /* pairs are (2i, 2i+1) rather than halves (DeepSeek) */
    mf_attn_gate attn_gate;
    double attention_multiplier; /* on scores, in place of 1 / sqrt(head_dim); 0 = none (Granite) */
    double value_scale;          /* on v; 0 = none (MiMo-V2) */
    /* q of unrotated layers at position p is multiplied by 1 + scale ln(1 + floor((p + 1) / floor))
     * (Llama 4); scale 0: it is not */
    double temperature_scale, temperature_floor;
    /* sparse attention: an indexer scores all keys and keeps index_topk of them; 0 = none */
    int64_t index_heads, index_head_dim, index_topk;
    mf_mixer_shape mixer; /* of layers whose class says so */
    /* DeepSeek-V4: the output's projection of low rank, by groups of heads; copies of the residual
     * stream that each layer mixes, 0 = none */
    int64_t o_groups, o_lora_rank, hyper_streams;

    /* feed-forward (gated SwiGLU unless `ungated`) */
    bool ungated;        /* two matrices and relu squared (Nemotron-H) */
    bool gelu;           /* GELU in place of SiLU (Gemma) */
    double logit_cap;    /* logits are cap x tanh(logits / cap) (Gemma); 0 = none */
    int64_t ffn;         /* dense layers: intermediate width; 0 when there are none */
    bool ffn_bias;       /* biases in the MLP / experts (GPT-OSS) */
    double swiglu_limit; /* GPT-OSS clamp; 0 = none */
    int64_t moe_ffn;     /* width of one routed expert */
    int64_t experts;     /* routed experts per MoE layer; 0 = a dense model */
    int64_t top_k;
    int64_t shared_ffn; /* total width of the shared expert(s); 0 = none */
    bool shared_gate;   /* sigmoid gate on the shared expert (Qwen2-MoE) */
    mf_router_score router_score;
    bool norm_topk;        /* divide the chosen probabilities by their sum */
    double router_jitter;  /* SPARSEMIXER */
    double routed_scaling; /* factor on the combine weights */
    int64_t n_group;       /* group-limited routing: groups, 1 = none */
    int64_t topk_group;    /* ... of which this many may be chosen */
    bool router_bias;      /* bias in the router's linear map (GPT-OSS) */
    bool correction_bias;  /* e_score_correction_bias: selection only (auxiliary-loss free) */
    bool input_scaled;     /* an expert's probability multiplies what it reads (Llama 4) */
    int64_t moe_latent;    /* routed experts work in a space of this width; 0 = hidden */
    bool latent_norm;      /* ... with a norm on the way back */
    double aux_loss_coef;

    /* layers by class */
    int classes;
    mf_layer_class layer_classes[MF_MODEL_MAX_CLASSES];
    uint8_t layer_class[MF_MODEL_MAX_LAYERS]; /* [layers] index into layer_classes */
    uint8_t mtp_class;                        /* class of the layer inside an MTP block */

    /* What config.json mentions and this model leaves out, "; " between: a vision tower, keys that
     * nobody reads. Empty: nothing. */
    char left_out[MF_MODEL_LEFT_OUT];
    /* The overrides it was read with, KEY=VALUE a line; empty where there were none, or more than
     * fit here. */
    char set[MF_MODEL_SET];
} mf_model;

/* Such lines as an array: splits `set` in place; returns how many of out[MF_MODEL_SETS]. */
int mf_model_split_set(char set[MF_MODEL_SET], const char *out[MF_MODEL_SETS]);

/* Heads of a layer class. */
static inline int64_t mf_model_heads(const mf_model *m, const mf_layer_class *c) {
    return c->heads > 0 ? c->heads : m->heads;
}
static inline int64_t mf_model_kv_heads(const mf_model *m, const mf_layer_class *c) {
    return c->kv_heads > 0 ? c->kv_heads : m->kv_heads;
}
static inline int64_t mf_model_head_dim(const mf_model *m, const mf_layer_class *c) {
    return c->head_dim > 0 ? c->head_dim : m->head_dim;
}
static inline int64_t mf_model_value_dim(const mf_model *m, const mf_layer_class *c) {
    return c->head_dim > 0 ? c->head_dim : m->v_head_dim;
}
/* Layers in which a table says which experts a token goes to. */
static inline int64_t mf_model_hashed_layers(const mf_model *m) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->layers; i++) {
        n += m->layer_classes[m->layer_class[i]].hashed;
    }
    return n;
}
/* True when the layer's router has a bias that only chooses experts. */
static inline bool mf_model_has_correction(const mf_model *m, const mf_layer_class *c) {
    return m->correction_bias && c->ffn == MF_FFN_MOE && !c->hashed;
}
/* True when the layer norms q and k. */
static inline bool mf_model_has_qk_norm(const mf_model *m, const mf_layer_class *c) {
    return (m->qk_norm || m->qk_norm_full || m->qk_norm_plain) && !c->no_qk_norm;
}

/* The angles by which rotary positions turn the first `width` columns of a head. Layers of several
 * classes may have the same. */
typedef struct mf_rope_table {
    double theta;
    int64_t width;    /* even */
    bool temperature; /* q alone is multiplied, and nothing turned (attention temperature) */
} mf_rope_table;

/* The tables of a model's layers, MTP blocks included, without repetitions; returns how many. */
int mf_model_rope_tables(const mf_model *m, mf_rope_table out[MF_MODEL_MAX_CLASSES]);
/* The index of the table that a class reads; -1: its positions are not rotated. */
int mf_model_rope_table_of(const mf_model *m, const mf_layer_class *c);

/* True when layers of two classes mix tokens in the same way, whatever their FFN. */
bool mf_layer_class_mixes_alike(const mf_layer_class *a, const mf_layer_class *b);

/* In words, the part of the model that lowering has no ops for: it can be read and counted, not
 * planned. NULL: nothing. */
const char *mf_model_not_lowered(const mf_model *m);
/* What routers of the executor's backends take. */
#define MF_MODEL_MOST_EXPERTS_RUN 512
#define MF_MODEL_MOST_CHOICES_RUN 16

/* In words, the part that no backend of the executor can run yet: it cannot be trained. NULL:
 * nothing. */
const char *mf_model_not_executed(const mf_model *m);
/* The same as a status: MF_INFEASIBLE, naming the model. */
mf_status mf_model_check_executed(const mf_model *m, mf_err *e);
/* In words, the part that GPUs have no kernel for yet, beside that; NULL: nothing. */
const char *mf_model_not_on_gpu(const mf_model *m);
/* Does Megatron-Bridge know the family, so that an exported plan finds its model there? */
bool mf_model_in_bridge(const mf_model *m);

/* A weight tensor of the model, as an unsharded model has it. */
typedef enum mf_weight_part {
    MF_PART_EMBEDDING,
    MF_PART_ATTENTION, /* projections, their biases, sinks */
    MF_PART_NORM,      /* every norm weight, replicated over TP */
    MF_PART_DENSE_FFN,
    MF_PART_ROUTER,
    MF_PART_SHARED_EXPERT, /* with its gate */
    MF_PART_EXPERT,        /* routed experts */
    MF_PART_HEAD,          /* output projection; absent when tied */
    MF_PART_MTP,           /* eh_proj, enorm, hnorm and shared_head.norm of an MTP block */
    MF_PART_MIXER,         /* of layers without attention: projections, convolution, decay */
    MF_PART_INDEXER,       /* of sparse attention */
} mf_weight_part;

typedef struct mf_model_tensor {
    char name[128]; /* hub name, e.g. "model.layers.3.self_attn.q_proj.weight" */
    mf_weight_part part;
    int64_t layer;       /* decoder layer, layers + d for MTP depth d, -1 outside layers */
    int64_t rows, cols;  /* cols == 1 for vectors; elements = rows * cols */
    double active_share; /* of its elements, how many one token uses (top_k/experts for experts) */
    bool buffer;         /* not trained (e_score_correction_bias, tid2eid) */
    int fused;           /* of a slice NAME[expert]: the mf_hub_experts that NAME is kept by */
} mf_model_tensor;

/* Called for every tensor: embedding, layers, final norm, head, MTP layers; a non-zero return stops
 * the walk. Expert tensors are reported one by one; where the hub keeps those of a layer in one
 * tensor over experts (GPT-OSS: [experts, in, out], gate and up interleaved by columns), each slice
 * is reported as NAME[expert] with the slice's shape. */
typedef int (*mf_model_tensor_fn)(const mf_model_tensor *t, void *user);
void mf_model_tensors(const mf_model *m, mf_model_tensor_fn fn, void *user);

typedef struct mf_model_counts {
    int64_t total;  /* trained parameters, MTP left out (the public "671B") */
    int64_t active; /* of those, used by one token; the whole embedding and head count (the public
                     * "37B"; GPT-OSS's card leaves the embedding out) */
    int64_t mtp;    /* parameters of the MTP blocks, without copies of embedding and head */
    int64_t routed; /* parameters in routed experts, MTP left out */
} mf_model_counts;
void mf_model_count(const mf_model *m, mf_model_counts *out);

/* FLOPs of one token's forward and backward pass as Megatron-LM counts them today: 3 x forward;
 * GEMMs 2 per multiply-add; causal attention counted as half (windows by the keys that they reach);
 * activated experts, logits, MTP; no router GEMM, no recomputation. seq = tokens per sample. */
double mf_model_flops_per_token(const mf_model *m, int64_t seq);

/* Rows of the embedding and of the head that each of `tp` ranks holds, those beyond the vocabulary
 * padding: whole groups of MF_VOCAB_ROWS, so that a row of 16-bit logits begins on 16 bytes, unless
 * that would leave the last rank without any. Products with rows that begin elsewhere take 4 to 7
 * times as long (cuBLASLt, H200, 128,167 columns). */
enum { MF_VOCAB_ROWS = 8 };
int64_t mf_model_local_vocab(const mf_model *m, int64_t tp);

/* Model from a parsed config.json. `name` names it in outputs. Families that are not known are
 * refused with the list of known ones; a key that the family needs and that is absent, of the wrong
 * type or out of range is an error with file:line:col; other absent keys mean what the family's
 * class in transformers takes for them. Keys that say nothing about the
 * architecture are ignored. Errors: MF_INPUT. */
mf_status mf_model_from_json(const mf_json *doc, const char *name, mf_model *out, mf_err *e);

/* Model by shipped name (profiles/models/NAME.json) or by path to a config.json or to a folder
 * that holds one. Unknown names: MF_USAGE with the nearest known name. */
mf_status mf_model_load(const char *name_or_path, mf_model *out, mf_err *e);

/* `--set key=value` with the config's own spelling, applied before interpretation: overrides is an
 * array of count "key=value" texts, or "a.b=value" for one value inside the object under "a";
 * the value is JSON or else a string, null takes a key away, any
 * spelling of the key will do, the last of two wins. Lists with one entry per layer are truncated
 * when num_hidden_layers shortens the model. Errors: MF_USAGE naming the override. */
mf_status mf_model_load_with(const char *name_or_path, const char *const *overrides, size_t count,
                             mf_model *out, mf_err *e);

/* The config.json that says what mf_model_load_with reads: the file as it is, or with the overrides
 * in it. The caller frees *text. Errors: as there; MF_USAGE when no file could say it. */
mf_status mf_model_config_text(const char *name_or_path, const char *const *overrides, size_t count,
                               char **text, size_t *length, mf_err *e);

/* Shipped names in alphabetical order; *count entries, static lifetime. */
const char *const *mf_model_shipped(size_t *count);

/* Enough to load a model again and to notice that it has changed. */
typedef struct mf_model_identity {
    char name[96]; /* as mf_model_load takes it */
    char family[32];
    char fingerprint[20]; /* of every field that shapes times or tensors, hexadecimal */
    int64_t layers, mtp_layers, hidden, experts, parameters;
    char set[MF_MODEL_SET]; /* as in mf_model: what the named model was changed by */
} mf_model_identity;

/* The fingerprint leaves out names and prose, and is stable across machines and builds. */
void mf_model_identify(const mf_model *m, mf_model_identity *out);

#endif
