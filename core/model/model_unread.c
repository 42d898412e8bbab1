/* model_unread.c - names what a config.json states and the model leaves out, so that nothing is
 * dropped silently. */
#include "core/base/text.h"
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

/* Keys that do not affect training: tokens, files, generation, storage, dropout, and sizes that
 * repeat others. */
static const char *const idle[] = {
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",
    "bad_words_ids",
    "batch_first",
    "begin_suppress_tokens",
    "cache_implementation",
    "chat_template",
    "chunk_size_feed_forward",
    "compression_config",
    "cross_attention_hidden_size",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "embedding_dropout",
    "enable_moe_fp32_combine",
    "encoder_no_repeat_ngram_size",
    "ep_size",
    "expert_dtype",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "fp32_residual_connection",
    "generation_config",
    "group_norm_size",
    "head_dim", /* not used by latent attention */
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "init_method",
    "initial_context_length",
    "initializer_factor",
    "initializer_range",
    "input_jitter_noise",
    "is_decoder",
    "is_encoder_decoder",
    "kv_cache_scheme",
    "label2id",
    "length_penalty",
    "mamba_ssm_cache_dtype",
    "mamba_ssm_dtype",
    "max_length",
    "max_position_embeddings",
    "max_sequence_length",
    "max_window_layers",
    "min_length",
    "model_type",
    "moe_capacity", /* of ERNIE's own trainer */
    "moe_dropout",
    "moe_router_dtype",
    "moe_shared_expert_overlap",
    "name_or_path",
    "need_fp32_gate",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_experts_shared",
    "num_key_value_heads",
    "num_logits_to_keep",
    "num_return_sequences",
    "output_attentions",
    "output_dropout",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "qk_head_dim",
    "quantization",
    "quantization_config",
    "remove_invalid_values",
    "repetition_penalty",
    "rescale_prenorm_residual",
    "resid_pdrop",
    "residual_in_fp32",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_dtype",
    "router_jitter_noise",
    "router_z_loss_coef",
    "scoring_dtype",
    "seq_aux",
    "seq_length",
    "special_tokens",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "time_step_floor",
    "time_step_limit",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
    "tokenizer_class",
    "top_k",
    "top_p",
    "topk_method",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attn",
    "use_mamba_kernels",
};

static bool is_idle(const char *key) {
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) {
        if (strcmp(key, idle[i]) == 0) {
            return true;
        }
    }
    return key[0] == '_' || mf_text_ends_with(key, "_token_id") ||
           mf_text_ends_with(key, "_token_ids") || mf_text_ends_with(key, "_token_index") ||
           mf_text_ends_with(key, "_token") || mf_text_ends_with(key, "_token_type_ids") ||
           mf_text_ends_with(key, "_dropout");
}

/* null, false, 0, "", [] and {}. */
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

static const char *const parts[][2] = {
    {"vision_config", "a vision tower"},
    {"audio_config", "an audio tower"},
    {"vision_tower", "a vision tower"},
    {"talker_config", "a part that speaks"},
};

static const char *part_of(const char *key) {
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strcmp(key, parts[i][0]) == 0) {
            return parts[i][1];
        }
    }
    return NULL;
}

/* An empty object counts as a part: Hugging Face builds it from its defaults. */
static bool is_there(const mf_json_value *v) {
    return mf_json_value_type(v) == MF_JSON_OBJECT || !says_nothing(v);
}

/* Leaves out the known parts and any other object with a config of its own besides "text_config".
 */
static void leave_out_parts(mf_config *c) {
    for (size_t i = 0; i < mf_json_size(c->root); i++) {
        const char *key = mf_json_key_at(c->root, i), *part = part_of(key);
        const mf_json_value *v = mf_json_at(c->root, i);
        bool another = part == NULL && c->object != c->root && v != c->object &&
                       (mf_text_ends_with(key, "_config") || mf_text_ends_with(key, "tower")) &&
                       !is_idle(key);
        if ((part != NULL || another) && is_there(v)) {
            mf_config_leave_out(c, "%s (\"%s\")", another ? "another part" : part, key);
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
    leave_out_parts(c);
    int more = 0;
    for (size_t i = 0; i < mf_json_size(c->object); i++) {
        const char *key = mf_json_key_at(c->object, i);
        if (is_touched(c, key) || is_idle(key) || part_of(key) != NULL ||
            says_nothing(mf_json_at(c->object, i))) {
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
