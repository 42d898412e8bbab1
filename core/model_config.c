/* model_config.c - what each model family's config.json says, as an mf_model.
 *
 * A family is one line of the table below; absent keys mean what the family's configuration class
 * in Hugging Face transformers takes for them. Sizes that shape the weights are never guessed.
 */
#include "core/model_reader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH_MAX (INT64_C(1) << 20) /* hidden, heads x head_dim, one expert */
#define FFN_MAX (INT64_C(1) << 24)
#define VOCAB_MAX (INT64_C(1) << 26)
#define EXPERTS_MAX 8192
#define PARAMETERS_MAX 1e15

typedef enum bias_rule {
    BIAS_NONE,
    BIAS_QKV,           /* always on q, k, v (Qwen2) */
    BIAS_QKV_KEY,       /* "qkv_bias", on unless it says otherwise (Qwen2-MoE) */
    BIAS_ATTENTION_QKV, /* "attention_bias" puts it on q, k, v (GLM-4.5) */
    BIAS_ATTENTION_ALL, /* "attention_bias" puts it on q, k, v and o */
} bias_rule;

typedef enum window_rule {
    WINDOW_NONE,
    WINDOW_ALL,         /* "sliding_window" in every layer */
    WINDOW_SWITCHED,    /* "use_sliding_window", from layer "max_window_layers" on (Qwen) */
    WINDOW_ALTERNATING, /* even layers (GPT-OSS) */
} window_rule;

typedef enum moe_rule {
    MOE_NONE,
    MOE_ALL,
    MOE_SPARSE_STEP, /* "decoder_sparse_step" and "mlp_only_layers" (Qwen) */
    MOE_FIRST_DENSE, /* "first_k_dense_replace" and "moe_layer_freq" (DeepSeek, GLM) */
} moe_rule;

typedef struct family {
    const char *name;         /* model_type */
    const char *architecture; /* what files without a model_type give */
    mf_attn_kind attn;
    bias_rule bias;
    window_rule window;
    moe_rule moe;
    int64_t head_dim; /* when not given; 0 = hidden / heads */
    int64_t window_default;
    double eps, theta;
    void (*read)(mf_config *c, mf_model *m); /* the rest; NULL = nothing more */
} family;

static const char *const *const expert_keys =
    (const char *const[]){"num_experts", "num_local_experts", "n_routed_experts", NULL};
static const char *const *const top_k_keys =
    (const char *const[]){"num_experts_per_tok", "experts_per_token", NULL};

/* --- pieces that families share ------------------------------------------------------------- */

static void read_experts(mf_config *c, mf_model *m, const char *width_key) {
    m->experts = mf_config_int(c, expert_keys, 1, EXPERTS_MAX);
    m->top_k = mf_config_int(c, top_k_keys, 1, EXPERTS_MAX);
    m->moe_ffn = mf_config_int(c, MF_KEYS(width_key), 1, FFN_MAX);
    m->aux_loss_coef =
        mf_config_opt_f64(c, MF_KEYS("router_aux_loss_coef", "aux_loss_alpha"), 0, 1e6, 0.001);
    if (c->status == MF_OK && m->top_k > m->experts) {
        mf_config_fail(c, "num_experts_per_tok", "%lld of %lld experts per token",
                       (long long)m->top_k, (long long)m->experts);
    }
}

/* Group-limited routing, scaling and shared experts, as DeepSeek and GLM write them. */
static void read_deepseek_router(mf_config *c, mf_model *m, int64_t n_group, int64_t topk_group) {
    m->routed_scaling =
        mf_config_opt_f64(c, MF_KEYS("routed_scaling_factor"), 0, 1e6, m->routed_scaling);
    m->norm_topk = mf_config_opt_bool(c, MF_KEYS("norm_topk_prob"), m->norm_topk);
    m->n_group = mf_config_opt_int(c, MF_KEYS("n_group"), 0, EXPERTS_MAX, n_group);
    m->topk_group = mf_config_opt_int(c, MF_KEYS("topk_group"), 0, EXPERTS_MAX, topk_group);
    int64_t shared = mf_config_opt_int(c, MF_KEYS("n_shared_experts"), 0, 1024, 0);
    m->shared_ffn = shared * m->moe_ffn;
    if (m->n_group == 0) {
        m->n_group = 1;
    }
    if (m->topk_group == 0) {
        m->topk_group = m->n_group;
    }
    if (c->status != MF_OK) {
        return;
    }
    if (m->experts % m->n_group != 0) {
        mf_config_fail(c, "n_group", "%lld experts do not divide into %lld groups",
                       (long long)m->experts, (long long)m->n_group);
    } else if (m->topk_group > m->n_group) {
        mf_config_fail(c, "topk_group", "%lld of %lld groups", (long long)m->topk_group,
                       (long long)m->n_group);
    } else if (m->top_k > m->topk_group * (m->experts / m->n_group)) {
        mf_config_fail(c, "topk_group", "%lld groups of %lld experts hold fewer than %lld experts",
                       (long long)m->topk_group, (long long)(m->experts / m->n_group),
                       (long long)m->top_k);
    }
}

static void read_scoring(mf_config *c, mf_model *m, const char *fallback) {
    const char *score = mf_config_opt_string(c, MF_KEYS("scoring_func"), fallback);
    if (strcmp(score, "softmax") == 0) {
        m->router_score = MF_ROUTER_SOFTMAX;
    } else if (strcmp(score, "sigmoid") == 0) {
        m->router_score = MF_ROUTER_SIGMOID;
    } else {
        mf_config_fail(c, "scoring_func", "\"scoring_func\": expected softmax or sigmoid");
    }
}

static void read_mtp(mf_config *c, mf_model *m) {
    m->mtp_layers = mf_config_opt_int(c, MF_KEYS("num_nextn_predict_layers"), 0, 16, 0);
}

/* --- families ------------------------------------------------------------------------------- */

static void read_llama(mf_config *c, mf_model *m) {
    m->ffn_bias = mf_config_opt_bool(c, MF_KEYS("mlp_bias"), false);
}

static void read_mixtral(mf_config *c, mf_model *m) {
    read_experts(c, m, "intermediate_size");
    m->norm_topk = true;
}

static void read_qwen2_moe(mf_config *c, mf_model *m) {
    read_experts(c, m, "moe_intermediate_size");
    m->norm_topk = mf_config_opt_bool(c, MF_KEYS("norm_topk_prob"), false);
    m->shared_ffn = mf_config_int(c, MF_KEYS("shared_expert_intermediate_size"), 0, FFN_MAX);
    m->shared_gate = m->shared_ffn > 0;
}

static void read_qwen3(mf_config *c, mf_model *m) {
    (void)c;
    m->qk_norm = true;
}

static void read_qwen3_moe(mf_config *c, mf_model *m) {
    m->qk_norm = true;
    read_experts(c, m, "moe_intermediate_size");
    m->norm_topk = mf_config_opt_bool(c, MF_KEYS("norm_topk_prob"), false);
}

static void read_olmoe(mf_config *c, mf_model *m) {
    m->qk_norm_full = true;
    read_experts(c, m, "intermediate_size");
    m->norm_topk = mf_config_opt_bool(c, MF_KEYS("norm_topk_prob"), false);
    if (mf_config_value(c, MF_KEYS("clip_qkv")) != NULL) {
        mf_config_fail(c, "clip_qkv", "\"clip_qkv\": clipped projections are not supported");
    }
}

static void read_deepseek_v2(mf_config *c, mf_model *m) {
    m->rope_interleave = true;
    read_experts(c, m, "moe_intermediate_size");
    read_scoring(c, m, "softmax");
    const char *method = mf_config_opt_string(c, MF_KEYS("topk_method"), "greedy");
    read_deepseek_router(c, m, 1, 1);
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
    read_experts(c, m, "moe_intermediate_size");
    read_scoring(c, m, "sigmoid");
    m->correction_bias =
        strcmp(mf_config_opt_string(c, MF_KEYS("topk_method"), "noaux_tc"), "noaux_tc") == 0;
    m->norm_topk = true;
    m->routed_scaling = 2.5;
    read_deepseek_router(c, m, 8, 4);
    read_mtp(c, m);
}

static void read_glm4_moe(mf_config *c, mf_model *m) {
    m->qk_norm = mf_config_opt_bool(c, MF_KEYS("use_qk_norm"), false);
    read_experts(c, m, "moe_intermediate_size");
    m->router_score = MF_ROUTER_SIGMOID;
    m->correction_bias = true;
    m->norm_topk = true;
    read_deepseek_router(c, m, 1, 1);
    read_mtp(c, m);
}

static void read_gpt_oss(mf_config *c, mf_model *m) {
    m->attn_sinks = true;
    m->ffn_bias = true;
    m->router_bias = true;
    m->router_score = MF_ROUTER_TOPK_SOFTMAX;
    read_experts(c, m, "intermediate_size");
    m->swiglu_limit = mf_config_opt_f64(c, MF_KEYS("swiglu_limit"), 0, 1e6, 7.0);
}

static const family families[] = {
    {"deepseek_v2", "DeepseekV2ForCausalLM", MF_ATTN_MLA, BIAS_NONE, WINDOW_NONE, MOE_FIRST_DENSE,
     0, 0, 1e-6, 10000, read_deepseek_v2},
    {"deepseek_v3", "DeepseekV3ForCausalLM", MF_ATTN_MLA, BIAS_NONE, WINDOW_NONE, MOE_FIRST_DENSE,
     0, 0, 1e-6, 10000, read_deepseek_v3},
    {"glm4_moe", "Glm4MoeForCausalLM", MF_ATTN_GQA, BIAS_ATTENTION_QKV, WINDOW_NONE,
     MOE_FIRST_DENSE, 128, 0, 1e-5, 10000, read_glm4_moe},
    {"gpt_oss", "GptOssForCausalLM", MF_ATTN_GQA, BIAS_ATTENTION_ALL, WINDOW_ALTERNATING, MOE_ALL,
     64, 128, 1e-5, 150000, read_gpt_oss},
    {"kimi_k2", "KimiK2ForCausalLM", MF_ATTN_MLA, BIAS_NONE, WINDOW_NONE, MOE_FIRST_DENSE, 0, 0,
     1e-6, 10000, read_deepseek_v3},
    {"llama", "LlamaForCausalLM", MF_ATTN_GQA, BIAS_ATTENTION_ALL, WINDOW_NONE, MOE_NONE, 0, 0,
     1e-6, 10000, read_llama},
    {"mistral", "MistralForCausalLM", MF_ATTN_GQA, BIAS_NONE, WINDOW_ALL, MOE_NONE, 0, 4096, 1e-6,
     10000, NULL},
    {"mixtral", "MixtralForCausalLM", MF_ATTN_GQA, BIAS_NONE, WINDOW_ALL, MOE_ALL, 0, 0, 1e-5, 1e6,
     read_mixtral},
    {"olmoe", "OlmoeForCausalLM", MF_ATTN_GQA, BIAS_ATTENTION_ALL, WINDOW_NONE, MOE_ALL, 0, 0, 1e-5,
     10000, read_olmoe},
    {"qwen2", "Qwen2ForCausalLM", MF_ATTN_GQA, BIAS_QKV, WINDOW_SWITCHED, MOE_NONE, 0, 4096, 1e-6,
     10000, NULL},
    {"qwen2_moe", "Qwen2MoeForCausalLM", MF_ATTN_GQA, BIAS_QKV_KEY, WINDOW_SWITCHED,
     MOE_SPARSE_STEP, 0, 4096, 1e-6, 10000, read_qwen2_moe},
    {"qwen3", "Qwen3ForCausalLM", MF_ATTN_GQA, BIAS_ATTENTION_ALL, WINDOW_SWITCHED, MOE_NONE, 128,
     4096, 1e-6, 10000, read_qwen3},
    {"qwen3_moe", "Qwen3MoeForCausalLM", MF_ATTN_GQA, BIAS_ATTENTION_ALL, WINDOW_SWITCHED,
     MOE_SPARSE_STEP, 0, 4096, 1e-6, 10000, read_qwen3_moe},
};
#define FAMILY_COUNT (sizeof families / sizeof families[0])

/* model_type of the text part, else of the whole, else architectures[0]; NULL after a failure. */
static const family *find_family(mf_config *c) {
    const char *word = mf_config_opt_string(c, MF_KEYS("model_type"), NULL);
    const mf_json_value *v = mf_config_value(c, MF_KEYS("model_type"));
    if (c->status == MF_OK && word == NULL && c->object != c->root) {
        c->status = mf_json_opt_string(c->root, "model_type", &word, c->e);
        v = mf_json_find(c->root, "model_type");
    }
    const mf_json_value *list = mf_config_value(c, MF_KEYS("architectures"));
    bool by_architecture = word == NULL;
    if (c->status == MF_OK && by_architecture && list != NULL &&
        mf_json_value_type(list) == MF_JSON_ARRAY && mf_json_size(list) > 0) {
        v = mf_json_at(list, 0);
        c->status = mf_json_string(v, &word, c->e);
    }
    if (c->status != MF_OK) {
        return NULL;
    }
    char known[256];
    size_t at = 0;
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        const family *f = &families[i];
        if (word != NULL && strcmp(word, by_architecture ? f->architecture : f->name) == 0) {
            return f;
        }
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i > 0 ? ", " : "", f->name);
    }
    if (word == NULL) {
        c->status = mf_json_fail(c->object, c->e, "\"model_type\" is missing");
    } else {
        c->status = mf_json_fail(v, c->e, "unknown model family \"%.60s\"; known: %s", word, known);
    }
    return NULL;
}

/* --- what all families have ------------------------------------------------------------------ */

static void read_common(mf_config *c, const family *f, mf_model *m) {
    m->layers = mf_config_int(c, MF_KEYS("num_hidden_layers"), 1, MF_MODEL_MAX_LAYERS);
    m->hidden = mf_config_int(c, MF_KEYS("hidden_size"), 1, WIDTH_MAX);
    m->vocab = mf_config_int(c, MF_KEYS("vocab_size"), 1, VOCAB_MAX);
    m->rms_norm_eps = mf_config_opt_f64(c, MF_KEYS("rms_norm_eps"), 0, 1, f->eps);
    m->max_position =
        mf_config_opt_int(c, MF_KEYS("max_position_embeddings"), 1, INT64_C(1) << 40, 4096);
    bool tied = false;
    if (c->status == MF_OK && c->object != c->root) {
        c->status = mf_json_opt_bool(c->root, "tie_word_embeddings", &tied, c->e);
    }
    m->tied_embeddings = mf_config_opt_bool(c, MF_KEYS("tie_word_embeddings"), tied);
    const char *act = mf_config_opt_string(c, MF_KEYS("hidden_act"), "silu");
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0) {
        mf_config_fail(c, "hidden_act", "\"hidden_act\": expected silu, got \"%.40s\"", act);
    }
}

/* Temperature that YaRN gives attention: 0.1 m ln(factor) + 1. */
static double yarn_temperature(double factor, double m) {
    return factor > 1.0 ? 0.1 * m * log(factor) + 1.0 : 1.0;
}

static void read_yarn(mf_config *c, const mf_json_value *v, bool mla, mf_rope_scaling *s) {
    double mscale = 0, all_dim = 0, given = 0;
    s->kind = MF_ROPE_YARN;
    s->beta_fast = 32;
    s->beta_slow = 1;
    s->truncate = true;
    mf_status st = mf_json_opt_f64(v, "beta_fast", 0, 1e9, &s->beta_fast, c->e);
    st = st == MF_OK ? mf_json_opt_f64(v, "beta_slow", 0, 1e9, &s->beta_slow, c->e) : st;
    st = st == MF_OK ? mf_json_opt_bool(v, "truncate", &s->truncate, c->e) : st;
    st = st == MF_OK ? mf_json_opt_f64(v, "mscale", 0, 1e3, &mscale, c->e) : st;
    st = st == MF_OK ? mf_json_opt_f64(v, "mscale_all_dim", 0, 1e3, &all_dim, c->e) : st;
    st = st == MF_OK ? mf_json_opt_f64(v, "attention_factor", 0, 1e3, &given, c->e) : st;
    c->status = st;
    s->table_scale = yarn_temperature(s->factor, 1.0);
    if (given > 0) {
        s->table_scale = given;
    } else if (mscale > 0 && all_dim > 0) {
        s->table_scale = yarn_temperature(s->factor, mscale) / yarn_temperature(s->factor, all_dim);
    }
    if (mla && all_dim > 0) { /* DeepSeek: on both sides of the product */
        double t = yarn_temperature(s->factor, all_dim);
        s->softmax_scale = t * t;
    }
}

static void read_llama3(mf_config *c, const mf_json_value *v, mf_rope_scaling *s) {
    s->kind = MF_ROPE_LLAMA3;
    s->low_freq_factor = 1;
    s->high_freq_factor = 4;
    mf_status st = mf_json_opt_f64(v, "low_freq_factor", 1e-6, 1e6, &s->low_freq_factor, c->e);
    st = st == MF_OK ? mf_json_opt_f64(v, "high_freq_factor", 1e-6, 1e6, &s->high_freq_factor, c->e)
                     : st;
    c->status = st;
    if (st == MF_OK && s->high_freq_factor <= s->low_freq_factor) {
        c->status = mf_json_fail(v, c->e, "\"high_freq_factor\" is not above \"low_freq_factor\"");
    }
}

/* "rope_scaling", or the same keys inside "rope_parameters". */
static void read_rope_scaling(mf_config *c, const family *f, mf_model *m) {
    mf_rope_scaling s = {.factor = 1, .table_scale = 1, .softmax_scale = 1};
    const mf_json_value *v = mf_config_value(c, MF_KEYS("rope_scaling", "rope_parameters"));
    const char *kind = "default";
    m->rope_scaling = s;
    if (v == NULL || c->status != MF_OK || mf_json_value_type(v) != MF_JSON_OBJECT) {
        return;
    }
    mf_status st = mf_json_opt_string(v, "type", &kind, c->e);
    st = st == MF_OK ? mf_json_opt_string(v, "rope_type", &kind, c->e) : st;
    st = st == MF_OK ? mf_json_opt_f64(v, "factor", 1, 1e6, &s.factor, c->e) : st;
    s.original = (double)m->max_position;
    st = st == MF_OK
             ? mf_json_opt_f64(v, "original_max_position_embeddings", 1, 1e12, &s.original, c->e)
             : st;
    c->status = st;
    if (st != MF_OK || strcmp(kind, "default") == 0) {
        return;
    }
    if (strcmp(kind, "yarn") == 0) {
        read_yarn(c, v, f->attn == MF_ATTN_MLA, &s);
    } else if (strcmp(kind, "llama3") == 0) {
        read_llama3(c, v, &s);
    } else {
        s.kind = strcmp(kind, "linear") == 0 ? MF_ROPE_LINEAR : MF_ROPE_OTHER;
    }
    m->rope_scaling = s;
}

/* rope_theta and partial_rotary_factor: beside the other keys, or inside "rope_parameters". */
static void read_rope(mf_config *c, const family *f, mf_model *m) {
    double theta = f->theta;
    double partial = strcmp(f->name, "glm4_moe") == 0 ? 0.5 : 1.0;
    const mf_json_value *nested = mf_config_value(c, MF_KEYS("rope_parameters"));
    if (nested != NULL && c->status == MF_OK) {
        c->status = mf_json_opt_f64(nested, "rope_theta", 1, 1e18, &theta, c->e);
        if (c->status == MF_OK) {
            c->status = mf_json_opt_f64(nested, "partial_rotary_factor", 0, 1, &partial, c->e);
        }
    }
    m->rope_theta = mf_config_opt_f64(c, MF_KEYS("rope_theta"), 1, 1e18, theta);
    m->partial_rotary = mf_config_opt_f64(c, MF_KEYS("partial_rotary_factor"), 0, 1, partial);
    read_rope_scaling(c, f, m);
}

static void read_bias(mf_config *c, const family *f, mf_model *m) {
    bool on = false;
    switch (f->bias) {
    case BIAS_NONE:
        if (f->attn == MF_ATTN_MLA && mf_config_opt_bool(c, MF_KEYS("attention_bias"), false)) {
            mf_config_fail(c, "attention_bias", "\"attention_bias\": not supported with MLA");
        }
        break;
    case BIAS_QKV:
        m->qkv_bias = true;
        break;
    case BIAS_QKV_KEY:
        m->qkv_bias = mf_config_opt_bool(c, MF_KEYS("qkv_bias"), true);
        break;
    case BIAS_ATTENTION_QKV:
    case BIAS_ATTENTION_ALL:
        on = mf_config_opt_bool(c, MF_KEYS("attention_bias"), f->window == WINDOW_ALTERNATING);
        m->qkv_bias = on;
        m->o_bias = on && f->bias == BIAS_ATTENTION_ALL;
        break;
    }
}

static void read_gqa(mf_config *c, const family *f, mf_model *m) {
    m->kv_heads = mf_config_opt_int(c, MF_KEYS("num_key_value_heads"), 1, WIDTH_MAX, m->heads);
    m->head_dim = mf_config_opt_int(c, MF_KEYS("head_dim"), 1, WIDTH_MAX, f->head_dim);
    if (c->status != MF_OK) {
        return;
    }
    if (m->head_dim == 0) {
        if (m->hidden % m->heads != 0) {
            mf_config_fail(c, "num_attention_heads",
                           "\"hidden_size\" %lld does not divide into %lld heads, and \"head_dim\" "
                           "is missing",
                           (long long)m->hidden, (long long)m->heads);
        }
        m->head_dim = m->hidden / m->heads;
    }
    if (m->heads % m->kv_heads != 0) {
        mf_config_fail(c, "num_key_value_heads", "%lld heads do not divide into %lld groups",
                       (long long)m->heads, (long long)m->kv_heads);
    }
    m->v_head_dim = m->head_dim;
}

static void read_mla(mf_config *c, mf_model *m) {
    m->kv_heads = m->heads;
    m->q_lora_rank = mf_config_opt_int(c, MF_KEYS("q_lora_rank"), 0, WIDTH_MAX, 0);
    m->kv_lora_rank = mf_config_int(c, MF_KEYS("kv_lora_rank"), 1, WIDTH_MAX);
    m->qk_nope_head_dim = mf_config_int(c, MF_KEYS("qk_nope_head_dim"), 1, WIDTH_MAX);
    m->qk_rope_head_dim = mf_config_int(c, MF_KEYS("qk_rope_head_dim"), 1, WIDTH_MAX);
    m->v_head_dim = mf_config_int(c, MF_KEYS("v_head_dim"), 1, WIDTH_MAX);
    m->head_dim = m->qk_nope_head_dim + m->qk_rope_head_dim;
    m->partial_rotary = (double)m->qk_rope_head_dim / (double)m->head_dim;
}

static void read_attention(mf_config *c, const family *f, mf_model *m) {
    m->attn = f->attn;
    m->heads = mf_config_int(c, MF_KEYS("num_attention_heads"), 1, WIDTH_MAX);
    read_rope(c, f, m);
    read_bias(c, f, m);
    if (f->attn == MF_ATTN_MLA) {
        read_mla(c, m);
    } else {
        read_gqa(c, f, m);
    }
    if (c->status == MF_OK && m->heads * m->head_dim > WIDTH_MAX) {
        mf_config_fail(c, "num_attention_heads", "%lld heads of width %lld: too wide",
                       (long long)m->heads, (long long)m->head_dim);
    }
}

/* --- which layer is of which class ----------------------------------------------------------- */

typedef struct layer_map {
    int64_t window[MF_MODEL_MAX_LAYERS + 1]; /* [layers + 1]; the last stands for an MTP block */
    bool moe[MF_MODEL_MAX_LAYERS + 1];
} layer_map;

/* The list under `key`, checked to have one entry per layer (or more, when --set has shortened the
 * model); NULL when absent or after a failure. */
static const mf_json_value *layer_list(mf_config *c, const char *key, int64_t layers) {
    const mf_json_value *list = mf_config_value(c, MF_KEYS(key));
    if (list == NULL) {
        return NULL;
    }
    int64_t size = (int64_t)mf_json_size(list);
    if (mf_json_value_type(list) != MF_JSON_ARRAY) {
        mf_config_fail(c, key, "\"%s\": expected an array", key);
    } else if (size != layers && !(size > layers && mf_config_is_set(c, "num_hidden_layers"))) {
        mf_config_fail(c, key, "\"%s\" has %lld entries for %lld layers", key, (long long)size,
                       (long long)layers);
    }
    return c->status == MF_OK ? list : NULL;
}

static void map_windows(mf_config *c, const family *f, const mf_model *m, layer_map *map) {
    int64_t window = 0, from = 0;
    if (f->window != WINDOW_NONE) {
        /* null switches the window off where no key would mean the family's own */
        int64_t absent = mf_config_has(c, "sliding_window") ? 0 : f->window_default;
        window = mf_config_opt_int(c, MF_KEYS("sliding_window"), 0, INT64_C(1) << 40, absent);
    }
    if (f->window == WINDOW_SWITCHED) {
        from = mf_config_opt_int(c, MF_KEYS("max_window_layers"), 0, INT64_C(1) << 40, 28);
        window = mf_config_opt_bool(c, MF_KEYS("use_sliding_window"), false) ? window : 0;
    }
    const mf_json_value *types = layer_list(c, "layer_types", m->layers);
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        bool sliding = f->window == WINDOW_ALTERNATING ? i % 2 == 0 : i >= from;
        if (types != NULL) {
            const mf_json_value *v = mf_json_at(types, (size_t)i);
            const char *word = "";
            c->status = mf_json_string(v, &word, c->e);
            sliding = strcmp(word, "sliding_attention") == 0 && f->window != WINDOW_NONE;
            if (c->status == MF_OK && !sliding && strcmp(word, "full_attention") != 0) {
                c->status = mf_json_fail(v, c->e, "layer type \"%.40s\" is not supported for %s",
                                         word, f->name);
            }
        }
        map->window[i] = sliding ? window : 0;
    }
    map->window[m->layers] = map->window[m->layers - 1];
}

static void map_sparse_step(mf_config *c, const mf_model *m, layer_map *map) {
    int64_t step = mf_config_opt_int(c, MF_KEYS("decoder_sparse_step"), 1, 1 << 20, 1);
    for (int64_t i = 0; i <= m->layers; i++) {
        map->moe[i] = (i + 1) % step == 0;
    }
    const mf_json_value *dense = mf_config_value(c, MF_KEYS("mlp_only_layers"));
    if (dense != NULL && mf_json_value_type(dense) != MF_JSON_ARRAY) {
        mf_config_fail(c, "mlp_only_layers", "\"mlp_only_layers\": expected an array");
        return;
    }
    for (size_t k = 0; dense != NULL && k < mf_json_size(dense) && c->status == MF_OK; k++) {
        int64_t i = 0;
        c->status = mf_json_i64(mf_json_at(dense, k), 0, INT64_C(1) << 40, &i, c->e);
        if (c->status == MF_OK && i <= m->layers) {
            map->moe[i] = false;
        }
    }
}

static void map_first_dense(mf_config *c, const family *f, const mf_model *m, layer_map *map) {
    int64_t first = mf_config_opt_int(c, MF_KEYS("first_k_dense_replace"), 0, INT64_C(1) << 40,
                                      strcmp(f->name, "glm4_moe") == 0 ? 1 : 0);
    int64_t step = 1;
    const mf_json_value *list = mf_config_value(c, MF_KEYS("moe_layer_freq"));
    if (list != NULL && mf_json_value_type(list) == MF_JSON_ARRAY) {
        list = layer_list(c, "moe_layer_freq", m->layers);
    } else {
        list = NULL;
        step = mf_config_opt_int(c, MF_KEYS("moe_layer_freq"), 1, 1 << 20, 1);
    }
    for (int64_t i = 0; i <= m->layers && c->status == MF_OK; i++) {
        int64_t one = i >= first && i % step == 0;
        if (list != NULL) {
            int64_t entry = i < m->layers ? i : m->layers - 1;
            c->status = mf_json_i64(mf_json_at(list, (size_t)entry), 0, 1, &one, c->e);
        }
        map->moe[i] = one != 0;
    }
}

static void map_experts(mf_config *c, const family *f, const mf_model *m, layer_map *map) {
    switch (f->moe) {
    case MOE_NONE:
        break;
    case MOE_ALL:
        for (int64_t i = 0; i <= m->layers; i++) {
            map->moe[i] = true;
        }
        break;
    case MOE_SPARSE_STEP:
        map_sparse_step(c, m, map);
        break;
    case MOE_FIRST_DENSE:
        map_first_dense(c, f, m, map);
        break;
    }
}

static uint8_t add_class(mf_model *m, bool moe, int64_t window) {
    mf_ffn_kind ffn = moe ? MF_FFN_MOE : MF_FFN_DENSE;
    int i = 0;
    while (i < m->classes &&
           (m->layer_classes[i].ffn != ffn || m->layer_classes[i].window != window)) {
        i++;
    }
    if (i == m->classes) { /* two kinds of FFN and two of windows: never more than four */
        m->layer_classes[m->classes++] = (mf_layer_class){ffn, window};
    }
    return (uint8_t)i;
}

static void read_layers(mf_config *c, const family *f, mf_model *m) {
    layer_map map = {0};
    if (c->status != MF_OK) {
        return;
    }
    map_windows(c, f, m, &map);
    map_experts(c, f, m, &map);
    bool any_dense = false, any_moe = false;
    int64_t count = m->layers + (m->mtp_layers > 0);
    for (int64_t i = 0; i < count && c->status == MF_OK; i++) {
        uint8_t id = add_class(m, map.moe[i], map.window[i]);
        any_dense = any_dense || !map.moe[i];
        any_moe = any_moe || map.moe[i];
        if (i < m->layers) {
            m->layer_class[i] = id;
        } else {
            m->mtp_class = id;
        }
    }
    if (any_dense) {
        m->ffn = mf_config_int(c, MF_KEYS("intermediate_size"), 1, FFN_MAX);
    } else {
        mf_config_has(c, "intermediate_size");
    }
    if (!any_moe) {
        m->experts = m->top_k = m->moe_ffn = m->shared_ffn = 0;
        m->shared_gate = m->correction_bias = m->router_bias = false;
    }
}

/* --- entry ----------------------------------------------------------------------------------- */

/* An upper bound that cannot overflow: every sum of parameters then fits an int64_t. */
static double parameters_bound(const mf_model *m) {
    double h = (double)m->hidden, per_layer = 0;
    double heads = (double)m->heads * (double)(m->head_dim + m->v_head_dim);
    per_layer +=
        4 * h * heads + ((double)m->q_lora_rank + (double)m->kv_lora_rank) * (h + 3 * heads);
    per_layer += 4 * h * ((double)m->ffn + (double)m->shared_ffn);
    per_layer += 4 * h * (double)m->moe_ffn * (double)m->experts;
    return ((double)m->layers + (double)m->mtp_layers) * per_layer + 2 * h * (double)m->vocab;
}

mf_status mf_model_from_config(const mf_json *doc, const char *name, const char *const *overrides,
                               size_t count, mf_model *out, mf_err *e) {
    mf_config c;
    mf_model m = {.routed_scaling = 1.0, .n_group = 1, .topk_group = 1};
    mf_status st = mf_config_open(&c, doc, overrides, count, e);
    const family *f = st == MF_OK ? find_family(&c) : NULL;
    if (f == NULL) {
        st = c.status;
        goto out;
    }
    snprintf(m.name, sizeof m.name, "%s", name);
    snprintf(m.family, sizeof m.family, "%s", f->name);
    read_common(&c, f, &m);
    read_attention(&c, f, &m);
    if (f->read != NULL) {
        f->read(&c, &m);
    }
    read_layers(&c, f, &m);
    if (c.status == MF_OK && parameters_bound(&m) > PARAMETERS_MAX) {
        c.status = mf_json_fail(c.object, e, "more than %.0e parameters", PARAMETERS_MAX);
    }
    st = mf_config_check_overrides(&c, f->name);
    if (st == MF_OK) {
        *out = m;
    }
out:
    mf_config_close(&c);
    return st;
}

mf_status mf_model_from_json(const mf_json *doc, const char *name, mf_model *out, mf_err *e) {
    return mf_model_from_config(doc, name, NULL, 0, out, e);
}
