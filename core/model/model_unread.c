/* model_unread.c - what a config.json speaks of and a model leaves out, so that nothing is dropped
 * in silence. */
#include "core/model/model_family.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mf_config_leave_out(mf_config *c, const char *fmt, ...) {
    char text[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    size_t at = strlen(c->left_out);
    if (strstr(c->left_out, text) != NULL || at + strlen(text) + 3 > sizeof c->left_out) {
        return;
    }
    snprintf(c->left_out + at, sizeof c->left_out - at, "%s%s", at > 0 ? "; " : "", text);
}

/* Keys that say nothing about what is trained: tokens, files, generation, storage, dropout, and
 * sizes that repeat others. */
static const char *const idle[] = {
    "architectures",
    "attn_implementation",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "auto_map",
    "aux_loss_alpha",
    "batch_first",
    "cache_implementation",
    "chat_template",
    "compression_config",
    "dtype",
    "embd_pdrop",
    "embedding_dropout",
    "enable_moe_fp32_combine",
    "ep_size",
    "expert_dtype",
    "fp32_residual_connection",
    "group_norm_size",
    "head_dim", /* decoys beside latent attention */
    "hidden_dropout",
    "hidden_dropout_prob",
    "initializer_factor",
    "initializer_range",
    "input_jitter_noise",
    "is_decoder",
    "is_encoder_decoder",
    "kv_cache_scheme",
    "max_position_embeddings",
    "max_sequence_length",
    "max_window_layers",
    "model_type",
    "moe_dropout",
    "moe_router_dtype",
    "name_or_path",
    "need_fp32_gate",
    "num_experts_shared",
    "num_key_value_heads",
    "output_attentions",
    "output_dropout",
    "output_hidden_states",
    "output_router_logits",
    "pretraining_tp",
    "qk_head_dim",
    "quantization",
    "quantization_config",
    "rescale_prenorm_residual",
    "resid_pdrop",
    "residual_in_fp32",
    "return_dict",
    "router_aux_loss_coef",
    "router_dtype",
    "router_jitter_noise",
    "router_z_loss_coef",
    "scoring_dtype",
    "seq_aux",
    "seq_length",
    "special_tokens",
    "task_specific_params",
    "time_step_floor",
    "time_step_limit",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
    "tokenizer_class",
    "topk_method",
    "torch_dtype",
    "transformers_version",
    "unsloth_version",
    "use_cache",
    "use_flash_attn",
    "use_mamba_kernels",
};

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static bool is_idle(const char *key) {
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) {
        if (strcmp(key, idle[i]) == 0) {
            return true;
        }
    }
    return key[0] == '_' || ends_with(key, "_token_id") || ends_with(key, "_token_ids") ||
           ends_with(key, "_token_index") || ends_with(key, "_token") ||
           ends_with(key, "_token_type_ids") || ends_with(key, "_dropout");
}

/* null, false, 0, "" and what holds nothing. */
static bool says_nothing(const mf_json_value *v) {
    bool truth = false;
    double x = 1.0;
    const char *text = "";
    switch (mf_json_value_type(v)) {
    case MF_JSON_NULL:
        return true;
    case MF_JSON_BOOL:
        mf_json_bool(v, &truth, NULL);
        return !truth;
    case MF_JSON_NUMBER:
        mf_json_f64(v, -1e300, 1e300, &x, NULL);
        return !(x < 0.0) && !(x > 0.0);
    case MF_JSON_STRING:
        mf_json_string(v, &text, NULL);
        return text[0] == '\0';
    case MF_JSON_ARRAY:
    case MF_JSON_OBJECT:
        break;
    }
    return mf_json_size(v) == 0;
}

static void leave_out_towers(mf_config *c) {
    static const char *const towers[][2] = {
        {"vision_config", "a vision tower"},
        {"audio_config", "an audio tower"},
        {"vision_tower", "a vision tower"},
        {"talker_config", "a part that speaks"},
    };
    for (size_t i = 0; i < sizeof towers / sizeof towers[0]; i++) {
        const mf_json_value *v = mf_json_find(c->root, towers[i][0]);
        if (v != NULL && !says_nothing(v)) {
            mf_config_leave_out(c, "%s (\"%s\")", towers[i][1], towers[i][0]);
        }
    }
}

static bool is_touched(const mf_config *c, const char *key) {
    for (size_t i = 0; i < c->touched_count; i++) {
        if (strcmp(c->touched[i], key) == 0) {
            return true;
        }
    }
    return false;
}

void mf_config_leave_out_unread(mf_config *c) {
    if (c->status != MF_OK) {
        return;
    }
    leave_out_towers(c);
    int more = 0;
    for (size_t i = 0; i < mf_json_size(c->object); i++) {
        const char *key = mf_json_key_at(c->object, i);
        bool tower = c->object == c->root && (ends_with(key, "_config") || ends_with(key, "tower"));
        if (is_touched(c, key) || is_idle(key) || tower || says_nothing(mf_json_at(c->object, i))) {
            continue;
        }
        size_t before = strlen(c->left_out);
        if (before + strlen(key) + 64 < sizeof c->left_out) {
            mf_config_leave_out(c, "\"%s\", which nobody reads", key);
        } else {
            more++;
        }
    }
    if (more > 0) {
        mf_config_leave_out(c, "%d more keys", more);
    }
}
