/* model_family.c - model families: one line each, and what only they read of a config.json. */
#include "core/model_family.h"

#include <stdio.h>
#include <string.h>

#define EXPERTS_MAX 8192

static const char *const *const expert_keys =
    (const char *const[]){"num_experts", "num_local_experts", "n_routed_experts", NULL};
static const char *const *const top_k_keys =
    (const char *const[]){"num_experts_per_tok", "experts_per_token", NULL};

/* --- pieces that families share ------------------------------------------------------------- */

static void read_experts(mf_config *c, mf_model *m, const char *width_key) {
    m->experts = mf_config_int(c, expert_keys, 1, EXPERTS_MAX);
    m->top_k = mf_config_int(c, top_k_keys, 1, EXPERTS_MAX);
    m->moe_ffn = mf_config_int(c, MF_KEYS(width_key), 1, MF_CONFIG_FFN_MAX);
    m->aux_loss_coef =
        mf_config_opt_f64(c, MF_KEYS("router_aux_loss_coef", "aux_loss_alpha"), 0, 1e6, 0.001);
    if (c->status == MF_OK && m->top_k > m->experts) {
        mf_config_fail(c, "num_experts_per_tok",
                       "\"num_experts_per_tok\": %lld of %lld experts per token",
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
        mf_config_fail(c, "n_group", "\"n_group\": %lld experts do not divide into %lld groups",
                       (long long)m->experts, (long long)m->n_group);
    } else if (m->topk_group > m->n_group) {
        mf_config_fail(c, "topk_group", "\"topk_group\": %lld of %lld groups",
                       (long long)m->topk_group, (long long)m->n_group);
    } else if (m->top_k > m->topk_group * (m->experts / m->n_group)) {
        mf_config_fail(c, "topk_group",
                       "\"topk_group\": %lld groups of %lld experts hold fewer than %lld experts",
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
    m->mtp_layers =
        mf_config_opt_int(c, MF_KEYS("num_nextn_predict_layers"), 0, MF_MODEL_MAX_MTP, 0);
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
    m->shared_ffn =
        mf_config_int(c, MF_KEYS("shared_expert_intermediate_size"), 0, MF_CONFIG_FFN_MAX);
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

static const mf_model_family families[] = {
    {"deepseek_v2", "DeepseekV2ForCausalLM", MF_ATTN_MLA, MF_BIAS_NONE, MF_WINDOW_NONE,
     MF_MOE_FIRST_DENSE, 0, 0, 1e-6, 10000, read_deepseek_v2},
    {"deepseek_v3", "DeepseekV3ForCausalLM", MF_ATTN_MLA, MF_BIAS_NONE, MF_WINDOW_NONE,
     MF_MOE_FIRST_DENSE, 0, 0, 1e-6, 10000, read_deepseek_v3},
    {"glm4_moe", "Glm4MoeForCausalLM", MF_ATTN_GQA, MF_BIAS_ATTENTION_QKV, MF_WINDOW_NONE,
     MF_MOE_FIRST_DENSE, 128, 0, 1e-5, 10000, read_glm4_moe},
    {"gpt_oss", "GptOssForCausalLM", MF_ATTN_GQA, MF_BIAS_ATTENTION_ALL, MF_WINDOW_ALTERNATING,
     MF_MOE_ALL, 64, 128, 1e-5, 150000, read_gpt_oss},
    {"kimi_k2", "KimiK2ForCausalLM", MF_ATTN_MLA, MF_BIAS_NONE, MF_WINDOW_NONE, MF_MOE_FIRST_DENSE,
     0, 0, 1e-6, 10000, read_deepseek_v3},
    {"llama", "LlamaForCausalLM", MF_ATTN_GQA, MF_BIAS_ATTENTION_ALL, MF_WINDOW_NONE, MF_MOE_NONE,
     0, 0, 1e-6, 10000, read_llama},
    {"mistral", "MistralForCausalLM", MF_ATTN_GQA, MF_BIAS_NONE, MF_WINDOW_ALL, MF_MOE_NONE, 0,
     4096, 1e-6, 10000, NULL},
    {"mixtral", "MixtralForCausalLM", MF_ATTN_GQA, MF_BIAS_NONE, MF_WINDOW_ALL, MF_MOE_ALL, 0, 0,
     1e-5, 1e6, read_mixtral},
    {"olmoe", "OlmoeForCausalLM", MF_ATTN_GQA, MF_BIAS_ATTENTION_ALL, MF_WINDOW_NONE, MF_MOE_ALL, 0,
     0, 1e-5, 10000, read_olmoe},
    {"qwen2", "Qwen2ForCausalLM", MF_ATTN_GQA, MF_BIAS_QKV, MF_WINDOW_SWITCHED, MF_MOE_NONE, 0,
     4096, 1e-6, 10000, NULL},
    {"qwen2_moe", "Qwen2MoeForCausalLM", MF_ATTN_GQA, MF_BIAS_QKV_KEY, MF_WINDOW_SWITCHED,
     MF_MOE_SPARSE_STEP, 0, 4096, 1e-6, 10000, read_qwen2_moe},
    {"qwen3", "Qwen3ForCausalLM", MF_ATTN_GQA, MF_BIAS_ATTENTION_ALL, MF_WINDOW_SWITCHED,
     MF_MOE_NONE, 128, 4096, 1e-6, 10000, read_qwen3},
    {"qwen3_moe", "Qwen3MoeForCausalLM", MF_ATTN_GQA, MF_BIAS_ATTENTION_ALL, MF_WINDOW_SWITCHED,
     MF_MOE_SPARSE_STEP, 0, 4096, 1e-6, 10000, read_qwen3_moe},
};
#define FAMILY_COUNT (sizeof families / sizeof families[0])

/* Text parts of multimodal models that name themselves apart and are a family's decoder
 * (transformers: configuration_*.py of each). */
static const struct {
    const char *model_type, *family;
} text_parts[] = {
    {"glm4v_moe_text", "glm4_moe"},     {"qwen2_5_vl_text", "qwen2"}, {"qwen2_vl_text", "qwen2"},
    {"qwen3_vl_moe_text", "qwen3_moe"}, {"qwen3_vl_text", "qwen3"},
};

static const char *family_of_text_part(const char *model_type) {
    for (size_t i = 0; i < sizeof text_parts / sizeof text_parts[0]; i++) {
        if (strcmp(model_type, text_parts[i].model_type) == 0) {
            return text_parts[i].family;
        }
    }
    return model_type;
}

/* model_type of the text part, else of the whole, else architectures[0]; NULL after a failure. */
const mf_model_family *mf_model_family_find(mf_config *c) {
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
    const char *name = word != NULL ? family_of_text_part(word) : NULL;
    char known[256];
    size_t at = 0;
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        const mf_model_family *f = &families[i];
        if (name != NULL && strcmp(name, by_architecture ? f->architecture : f->name) == 0) {
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
