/* How config.json files are read: families, spellings old and new, nesting, layer patterns,
 * overrides, and what is refused with which words. */
#include "tests/support/test.h"

#include "core/model/model.h"
#include "core/model/model_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses `text` with overrides (NULL-terminated); the status, and the text of the error. */
static mf_status read_with(const char *text, const char *const *set, mf_model *m, mf_err *e) {
    mf_json *doc = NULL;
    size_t count = 0;
    while (set != NULL && set[count] != NULL) {
        count++;
    }
    mf_err_clear(e);
    mf_status st = mf_json_parse("c.json", text, strlen(text), &doc, e);
    if (st == MF_OK) {
        st = mf_model_from_config(doc, "test", set, count, m, e);
    }
    mf_json_destroy(doc);
    return st;
}

static mf_model model_of(const char *text) {
    mf_model m;
    mf_err e;
    if (read_with(text, NULL, &m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return m;
}

static void assert_refused(const char *text, const char *message) {
    mf_model m;
    mf_err e;
    assert_int_equal(read_with(text, NULL, &m, &e), MF_INPUT);
    if (strstr(e.text, message) == NULL) {
        fail_msg("expected \"%s\" in: %s", message, e.text);
    }
}

static mf_model shipped(const char *name) {
    mf_model m;
    mf_err e;
    if (mf_model_load(name, &m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return m;
}

#define LLAMA                                                                                      \
    "\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "                   \
    "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 256"
#define QWEN3_MOE                                                                                  \
    "\"model_type\": \"qwen3_moe\", \"hidden_size\": 64, \"num_hidden_layers\": 6, "               \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, "                   \
    "\"intermediate_size\": 96, \"moe_intermediate_size\": 24, \"vocab_size\": 256"
#define DEEPSEEK_V3                                                                                \
    "\"model_type\": \"deepseek_v3\", \"hidden_size\": 64, \"num_hidden_layers\": 4, "             \
    "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"moe_intermediate_size\": 24, "       \
    "\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"kv_lora_rank\": 16, "                 \
    "\"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"vocab_size\": 256"

/* --- families -------------------------------------------------------------------------------- */

static void deepseek_v3_is_read_whole(void **state) {
    (void)state;
    mf_model m = shipped("deepseek-v3");
    assert_string_equal(m.family, "deepseek_v3");
    assert_int_equal(m.attn, MF_ATTN_MLA);
    assert_int_equal(m.layers, 61);
    assert_int_equal(m.mtp_layers, 1);
    assert_int_equal(m.head_dim, 192);
    assert_int_equal(m.v_head_dim, 128);
    assert_int_equal(m.kv_heads, 128);
    assert_int_equal(m.q_lora_rank, 1536);
    assert_int_equal(m.experts, 256);
    assert_int_equal(m.top_k, 8);
    assert_int_equal(m.shared_ffn, 2048);
    assert_int_equal(m.n_group, 8);
    assert_int_equal(m.topk_group, 4);
    assert_int_equal(m.router_score, MF_ROUTER_SIGMOID);
    assert_true(m.correction_bias);
    assert_true(m.norm_topk);
    assert_true(m.rope_interleave);
    assert_true(!m.shared_gate);
    assert_true(m.routed_scaling == 2.5);
    assert_int_equal(m.ffn, 18432);
    assert_int_equal(m.classes, 2);
    for (int i = 0; i < 61; i++) {
        assert_int_equal(m.layer_classes[m.layer_class[i]].ffn, i < 3 ? MF_FFN_DENSE : MF_FFN_MOE);
    }
    assert_int_equal(m.layer_classes[m.mtp_class].ffn, MF_FFN_MOE);
}

static void deepseek_v2_scores_by_softmax_and_lite_has_no_groups(void **state) {
    (void)state;
    mf_model m = shipped("deepseek-v2");
    assert_int_equal(m.router_score, MF_ROUTER_SOFTMAX);
    assert_int_equal(m.n_group, 8);
    assert_int_equal(m.topk_group, 3);
    assert_int_equal(m.shared_ffn, 2 * 1536);
    assert_true(m.routed_scaling == 16.0);
    assert_true(!m.norm_topk);
    assert_true(!m.correction_bias);
    m = shipped("deepseek-v2-lite");
    assert_int_equal(m.q_lora_rank, 0);
    assert_int_equal(m.n_group, 1);
}

static void gpt_oss_alternates_windows_and_has_biases(void **state) {
    (void)state;
    mf_model m = shipped("gpt-oss-20b");
    assert_true(m.attn_sinks);
    assert_true(m.qkv_bias);
    assert_true(m.o_bias);
    assert_true(m.ffn_bias);
    assert_true(m.router_bias);
    assert_int_equal(m.router_score, MF_ROUTER_TOPK_SOFTMAX);
    assert_true(m.swiglu_limit == 7.0);
    assert_int_equal(m.ffn, 0); /* no dense layers */
    assert_int_equal(m.moe_ffn, 2880);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(m.layer_classes[m.layer_class[i]].window, i % 2 == 0 ? 128 : 0);
    }
}

static void gpt_oss_without_layer_types_alternates_by_itself(void **state) {
    (void)state;
    mf_model m = model_of("{\"model_type\": \"gpt_oss\", \"hidden_size\": 64, "
                          "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"vocab_size\": "
                          "256, \"intermediate_size\": 32, \"num_local_experts\": 4, "
                          "\"experts_per_token\": 2, \"sliding_window\": 16}");
    assert_int_equal(m.head_dim, 64);
    assert_int_equal(m.top_k, 2);
    assert_true(m.qkv_bias);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(m.layer_classes[m.layer_class[i]].window, i % 2 == 0 ? 16 : 0);
    }
}

static void other_families_are_recognised(void **state) {
    (void)state;
    mf_model m = shipped("glm-4.5");
    assert_true(m.qkv_bias);
    assert_true(!m.o_bias);
    assert_true(m.qk_norm);
    assert_true(m.correction_bias);
    assert_true(m.partial_rotary == 0.5);
    assert_int_equal(m.mtp_layers, 1);
    m = shipped("olmoe-1b-7b");
    assert_true(m.qk_norm_full);
    assert_true(!m.qk_norm);
    assert_true(!m.norm_topk);
    assert_int_equal(m.moe_ffn, 1024);
    m = shipped("qwen2-57b-a14b");
    assert_true(m.qkv_bias);
    assert_true(!m.o_bias);
    assert_true(m.shared_gate);
    assert_int_equal(m.shared_ffn, 20480);
    m = shipped("qwen3-30b-a3b");
    assert_true(m.qk_norm);
    assert_true(!m.qkv_bias);
    assert_true(m.norm_topk);
    m = shipped("qwen2.5-7b");
    assert_true(m.qkv_bias);
    assert_true(!m.o_bias);
    assert_true(m.experts == 0);
    assert_true(m.classes == 1);
    m = shipped("mixtral-8x7b");
    assert_true(m.norm_topk);
    assert_true(m.shared_ffn == 0);
    assert_true(m.ffn == 0);
    m = shipped("kimi-k2");
    assert_string_equal(m.family, "kimi_k2");
    assert_true(m.rope_theta == 50000);
    assert_true(m.n_group == 1);
    assert_true(m.mtp_layers == 0);
    m = shipped("llama2-7b");
    assert_true(m.rope_theta == 10000);
    assert_true(m.kv_heads == 32);
    m = shipped("llama3-8b");
    assert_true(m.rope_theta == 500000);
    assert_true(m.kv_heads == 8);
    assert_true(m.head_dim == 128);
}

static void mistral_slides_unless_null_says_otherwise(void **state) {
    (void)state;
#define MISTRAL                                                                                    \
    "\"model_type\": \"mistral\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "                 \
    "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 256"
    assert_int_equal(model_of("{" MISTRAL "}").layer_classes[0].window, 4096);
    assert_int_equal(model_of("{" MISTRAL ", \"sliding_window\": 8}").layer_classes[0].window, 8);
    assert_int_equal(model_of("{" MISTRAL ", \"sliding_window\": null}").layer_classes[0].window,
                     0);
}

static void qwen_windows_start_at_their_layer(void **state) {
    (void)state;
    mf_model m = model_of("{" QWEN3_MOE ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "
                          "\"use_sliding_window\": true, \"sliding_window\": 32, "
                          "\"max_window_layers\": 4}");
    for (int i = 0; i < 6; i++) {
        assert_int_equal(m.layer_classes[m.layer_class[i]].window, i >= 4 ? 32 : 0);
    }
    m = model_of("{" QWEN3_MOE ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "
                 "\"use_sliding_window\": false, \"sliding_window\": 32, \"max_window_layers\": "
                 "0}");
    assert_int_equal(m.classes, 1);
    assert_int_equal(m.layer_classes[0].window, 0);
}

/* --- patterns of layers ---------------------------------------------------------------------- */

static void sparse_step_and_mlp_only_layers_pick_the_moe_layers(void **state) {
    (void)state;
    mf_model m = model_of("{" QWEN3_MOE ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "
                          "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [3]}");
    const bool moe[] = {false, true, false, false, false, true};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(m.layer_classes[m.layer_class[i]].ffn, moe[i] ? MF_FFN_MOE : MF_FFN_DENSE);
    }
    assert_int_equal(m.layer_classes[0].ffn, MF_FFN_DENSE); /* in order of first appearance */
    assert_int_equal(m.layer_classes[1].ffn, MF_FFN_MOE);
    assert_int_equal(m.ffn, 96);
}

static void first_dense_layers_and_frequency_pick_the_moe_layers(void **state) {
    (void)state;
    mf_model m = model_of("{" DEEPSEEK_V3 ", \"first_k_dense_replace\": 1, \"moe_layer_freq\": 2}");
    const bool by_step[] = {false, false, true, false};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(m.layer_classes[m.layer_class[i]].ffn,
                         by_step[i] ? MF_FFN_MOE : MF_FFN_DENSE);
    }
    m = model_of("{" DEEPSEEK_V3 ", \"moe_layer_freq\": [0, 1, 1, 0]}");
    const bool by_list[] = {false, true, true, false};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(m.layer_classes[m.layer_class[i]].ffn,
                         by_list[i] ? MF_FFN_MOE : MF_FFN_DENSE);
    }
    assert_refused("{" DEEPSEEK_V3 ", \"moe_layer_freq\": [0, 1]}",
                   "\"moe_layer_freq\" has 2 entries for 4 layers");
}

static void a_moe_family_with_dense_layers_only_is_dense(void **state) {
    (void)state;
    mf_model m = model_of("{" DEEPSEEK_V3 ", \"first_k_dense_replace\": 9}");
    assert_int_equal(m.experts, 0);
    assert_int_equal(m.top_k, 0);
    assert_int_equal(m.classes, 1);
    mf_model_counts c;
    mf_model_count(&m, &c);
    assert_int_equal(c.routed, 0);
    assert_int_equal(c.active, c.total);
}

/* --- spellings ------------------------------------------------------------------------------- */

static void experts_are_found_under_every_spelling(void **state) {
    (void)state;
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts",
                                       "moe_num_experts"};
    for (size_t i = 0; i < 3; i++) {
        char text[512];
        snprintf(text, sizeof text, "{" QWEN3_MOE ", \"%s\": 16, \"num_experts_per_tok\": 4}",
                 keys[i]);
        assert_int_equal(model_of(text).experts, 16);
    }
    assert_refused("{" QWEN3_MOE ", \"num_experts_per_tok\": 4}",
                   "c.json:1:1: \"num_experts\" (or \"num_local_experts\", \"n_routed_experts\", "
                   "\"moe_num_experts\") is "
                   "missing");
    assert_refused("{" QWEN3_MOE ", \"num_experts\": 8, \"num_local_experts\": 16, "
                   "\"num_experts_per_tok\": 4}",
                   "\"num_local_experts\" disagrees with \"num_experts\"");
}

/* Temperatures as DeepSeek-V3 (mscale 1 on both sides) and GPT-OSS (none given) have them. */
static void rope_scaling_is_read_with_its_temperatures(void **state) {
    (void)state;
    mf_model m = model_of("{" LLAMA ", \"max_position_embeddings\": 131072, \"rope_scaling\": "
                          "{\"type\": \"yarn\", \"factor\": 32}}");
    assert_int_equal(m.rope_scaling.kind, MF_ROPE_YARN);
    assert_close(m.rope_scaling.table_scale, 0.1 * log(32.0) + 1.0, 1e-12);
    assert_true(m.rope_scaling.original == 131072);
    assert_true(m.rope_scaling.truncate);
    assert_true(m.rope_scaling.beta_fast == 32);
    assert_true(m.rope_scaling.softmax_scale == 1);
    mf_err e;
    assert_ok(mf_model_load("deepseek-v3", &m, &e));
    double t = 0.1 * log(40.0) + 1.0;
    assert_close(m.rope_scaling.table_scale, 1.0, 1e-12);
    assert_close(m.rope_scaling.softmax_scale, t * t, 1e-12);
    assert_ok(mf_model_load("gpt-oss-20b", &m, &e));
    assert_close(m.rope_scaling.table_scale, 0.1 * log(32.0) + 1.0, 1e-12);
    assert_false(m.rope_scaling.truncate);
    assert_ok(mf_model_load("llama3-405b", &m, &e));
    assert_int_equal(m.rope_scaling.kind, MF_ROPE_LLAMA3);
    assert_true(m.rope_scaling.factor == 8);
    assert_true(m.rope_scaling.original == 8192);
    assert_ok(mf_model_load("llama3-8b", &m, &e));
    assert_int_equal(m.rope_scaling.kind, MF_ROPE_PLAIN);
}

static void rope_is_read_from_old_and_new_places(void **state) {
    (void)state;
    assert_true(model_of("{" LLAMA ", \"rope_theta\": 5e5}").rope_theta == 5e5);
    assert_true(model_of("{" LLAMA ", \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": "
                         "\"default\"}}")
                    .rope_theta == 5e5);
    assert_true(model_of("{" LLAMA "}").rope_theta == 1e4);
    assert_true(model_of("{" LLAMA ", \"rope_parameters\": {\"partial_rotary_factor\": 0.25}}")
                    .partial_rotary == 0.25);
}

static void text_config_is_looked_into(void **state) {
    (void)state;
    mf_model m = model_of("{\"model_type\": \"kimi_k25\", \"tie_word_embeddings\": true, "
                          "\"vision_config\": {\"hidden_size\": 8}, \"text_config\": {" LLAMA "}}");
    assert_string_equal(m.family, "llama");
    assert_int_equal(m.hidden, 64);
    assert_true(m.tied_embeddings);
    assert_refused("{\"model_type\": \"llama\", \"hidden_size\": 64, \"text_config\": "
                   "{\"model_type\": \"llama\"}}",
                   "c.json:1:59: \"num_hidden_layers\" is missing");
}

static void text_parts_of_multimodal_models_are_their_family(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"glm4v_moe_text", "glm4_moe"},     {"qwen2_5_vl_text", "qwen2"},
        {"qwen2_vl_text", "qwen2"},         {"qwen3_vl_text", "qwen3"},
        {"qwen3_vl_moe_text", "qwen3_moe"},
    };
    static const char keys[] =
        "\"hidden_size\": 64, \"num_hidden_layers\": 6, \"num_attention_heads\": 4, "
        "\"intermediate_size\": 96, \"moe_intermediate_size\": 24, \"vocab_size\": 256, "
        "\"num_experts\": 8, \"num_experts_per_tok\": 2";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512], nested[512];
        snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s}", cases[i][1], keys);
        snprintf(nested, sizeof nested,
                 "{\"model_type\": \"made_up_vl\", \"vision_config\": {}, "
                 "\"text_config\": {\"model_type\": \"%s\", %s}}",
                 cases[i][0], keys);
        mf_model plain = model_of(text), m = model_of(nested);
        assert_string_equal(m.family, cases[i][1]);
        const char *tower = "a vision tower (\"vision_config\")";
        assert_memory_equal(m.left_out, tower, strlen(tower));
        memset(m.left_out, 0, sizeof m.left_out);
        memset(plain.left_out, 0, sizeof plain.left_out);
        assert_memory_equal(&m, &plain, sizeof m);
    }
}

static void architecture_replaces_a_missing_model_type(void **state) {
    (void)state;
    mf_model m = model_of("{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, "
                          "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                          "\"intermediate_size\": 96, \"vocab_size\": 256}");
    assert_string_equal(m.family, "llama");
}

static void dtypes_and_other_keys_say_nothing(void **state) {
    (void)state;
    mf_model plain = model_of("{" LLAMA "}");
    mf_model m = model_of("{" LLAMA ", \"torch_dtype\": \"bfloat16\", \"dtype\": \"float32\", "
                          "\"use_cache\": false, \"quantization_config\": {\"fmt\": \"e4m3\"}, "
                          "\"bos_token_id\": null, \"made_up\": [], \"another\": 0}");
    assert_memory_equal(&m, &plain, sizeof m);
}

#define LING                                                                                       \
    "\"model_type\": \"bailing_moe\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "             \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "                   \
    "\"intermediate_size\": 128, \"vocab_size\": 100, \"num_experts\": 16, "                       \
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"num_shared_experts\": 1, "       \
    "\"first_k_dense_replace\": 1"
#define ERNIE                                                                                      \
    "\"model_type\": \"ernie4_5_moe\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "            \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 128, "         \
    "\"vocab_size\": 100, \"moe_num_experts\": 8, \"moe_k\": 2, \"moe_intermediate_size\": 32"

/* Keys of files on the hub. */
static void keys_that_say_nothing_are_not_left_out_and_others_are_refused(void **state) {
    (void)state;
    assert_string_equal(
        model_of("{" LING ", \"rotary_type\": \"half\", \"use_rmsnorm\": true}").left_out, "");
    assert_string_equal(model_of("{" ERNIE ", \"moe_capacity\": [64, 64, 64]}").left_out, "");
    assert_string_equal(model_of("{" LLAMA ", \"init_method\": \"mup\"}").left_out, "");
    assert_refused("{" LING ", \"rotary_type\": \"full\"}", "rotary_type");
    assert_refused("{" LING ", \"use_rmsnorm\": false}", "use_rmsnorm");
}

static void what_a_model_leaves_out_is_named(void **state) {
    (void)state;
    assert_string_equal(model_of("{" LLAMA "}").left_out, "");
    assert_string_equal(model_of("{" LLAMA ", \"made_up\": [1, 2]}").left_out,
                        "\"made_up\", which nobody reads");
    mf_model m = model_of("{\"model_type\": \"made_up\", \"vision_config\": {\"depth\": 2}, "
                          "\"text_config\": {" LLAMA ", \"new_gate\": true}}");
    assert_string_equal(m.left_out,
                        "a vision tower (\"vision_config\"); \"new_gate\", which nobody reads");
    /* An empty one is built by its defaults; none is none. */
    m = model_of("{" LLAMA ", \"vision_config\": {}, \"audio_config\": null}");
    assert_string_equal(m.left_out, "a vision tower (\"vision_config\")");
    char text[4096];
    size_t at = (size_t)snprintf(text, sizeof text, "{" LLAMA);
    for (int i = 0; i < 100; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, ", \"made_up_%d\": 1", i);
    }
    snprintf(text + at, sizeof text - at, "}");
    assert_non_null(strstr(model_of(text).left_out, " more keys"));
}

/* --- refusals -------------------------------------------------------------------------------- */

static void an_unknown_family_is_refused_with_the_known_ones(void **state) {
    (void)state;
    assert_refused(
        "{\"model_type\": \"mamba2\"}",
        "c.json:1:16: unknown model family \"mamba2\"; known: bailing_hybrid, bailing_moe, ");
    assert_refused("{\"model_type\": \"mamba2\"}", ", qwen3_moe, qwen3_next, ");
    assert_refused("{\"architectures\": [\"GPT2LMHeadModel\"]}", "\"GPT2LMHeadModel\"");
    assert_refused("{}", "c.json:1:1: \"model_type\" is missing");
    assert_refused("{\"model_type\": 7}", "\"model_type\": expected a string, got 7");
    assert_refused("[]", "expected an object, got an array");
}

static void wrong_values_name_key_and_place(void **state) {
    (void)state;
    assert_refused("{" QWEN3_MOE ",\n \"num_experts\": \"eight\", \"num_experts_per_tok\": 2}",
                   "c.json:2:17: \"num_experts\": expected an integer in 1..8192, got \"eight\"");
    assert_refused("{" QWEN3_MOE ", \"num_experts\": 4, \"num_experts_per_tok\": 5}",
                   "5 of 4 experts per token");
    assert_refused("{" LLAMA ", \"num_key_value_heads\": 3}",
                   "4 heads do not divide into 3 groups");
    assert_refused("{\"model_type\": \"llama\", \"hidden_size\": 65, \"num_hidden_layers\": 2, "
                   "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 256}",
                   "65 does not divide into 4 heads");
    assert_refused("{" LLAMA ", \"hidden_act\": \"gelu\"}", "expected silu, got \"gelu\"");
    assert_refused("{" DEEPSEEK_V3 ", \"n_group\": 3}", "16 experts do not divide into 3 groups");
    assert_refused("{" DEEPSEEK_V3 ", \"n_group\": 4, \"topk_group\": 5}",
                   "\"topk_group\": 5 of 4 groups");
    assert_refused("{" DEEPSEEK_V3 ", \"n_group\": 8, \"topk_group\": 1}",
                   "1 groups of 2 experts hold fewer than 4 experts");
    assert_refused("{" DEEPSEEK_V3 ", \"attention_bias\": true}", "not supported with MLA");
    assert_refused("{" DEEPSEEK_V3 ", \"scoring_func\": \"tanh\"}", "softmax or sigmoid");
    assert_refused("{" LLAMA ", \"layer_types\": [\"full_attention\"]}",
                   "\"layer_types\" has 1 entries for 2 layers");
    assert_refused("{" LLAMA ", \"layer_types\": [\"full_attention\", \"linear_attention\"]}",
                   "layer type \"linear_attention\" is not supported for llama");
    assert_refused("{" LLAMA ", \"layer_types\": {}}", "\"layer_types\": expected an array");
    assert_refused("{" LLAMA ", \"rope_parameters\": 3}",
                   "\"rope_parameters\": expected an object, got 3");
    assert_refused("{" LLAMA ", \"tie_word_embeddings\": 1}", "expected true or false, got 1");
}

static void sizes_beyond_reason_are_refused(void **state) {
    (void)state;
    assert_refused("{\"model_type\": \"llama\", \"num_hidden_layers\": 513}",
                   "\"num_hidden_layers\": expected an integer in 1..512, got 513");
    assert_refused("{\"model_type\": \"mixtral\", \"hidden_size\": 1048576, "
                   "\"num_hidden_layers\": 512, \"num_attention_heads\": 1024, "
                   "\"intermediate_size\": 16777216, \"vocab_size\": 1000, "
                   "\"num_local_experts\": 8192, \"num_experts_per_tok\": 2}",
                   "more than 1e+15 parameters");
}

/* --- overrides ------------------------------------------------------------------------------- */

static void overrides_change_what_the_file_says(void **state) {
    (void)state;
    mf_model m;
    mf_err e;
    const char *const set[] = {
        "num_hidden_layers=4", "first_k_dense_replace=1", "num_nextn_predict_layers=0",
        "q_lora_rank=null",    "num_experts=64",          "rope_theta=5e4",
        "num_hidden_layers=5"};
    assert_ok(mf_model_load_with("deepseek-v3", set, 7, &m, &e));
    assert_string_equal(m.name, "deepseek-v3");
    assert_int_equal(m.layers, 5); /* the last one wins */
    assert_int_equal(m.mtp_layers, 0);
    assert_int_equal(m.q_lora_rank, 0);
    assert_int_equal(m.experts, 64); /* under any spelling of the key */
    assert_true(m.rope_theta == 5e4);
    assert_int_equal(m.layer_classes[m.layer_class[1]].ffn, MF_FFN_MOE);
}

static void a_shortened_model_keeps_the_head_of_its_lists(void **state) {
    (void)state;
    mf_model m;
    mf_err e;
    const char *const shorter[] = {"num_hidden_layers=3"};
    assert_ok(mf_model_load_with("gpt-oss-20b", shorter, 1, &m, &e));
    assert_int_equal(m.layer_classes[m.layer_class[1]].window, 0);
    assert_int_equal(m.layer_classes[m.layer_class[2]].window, 128);
    const char *const longer[] = {"num_hidden_layers=30"};
    assert_int_equal(mf_model_load_with("gpt-oss-20b", longer, 1, &m, &e), MF_INPUT);
    const char *const both[] = {"num_hidden_layers=2",
                                "layer_types=[\"full_attention\", \"sliding_attention\"]"};
    assert_ok(mf_model_load_with("gpt-oss-20b", both, 2, &m, &e));
    assert_int_equal(m.layer_classes[m.layer_class[1]].window, 128);
}

/* "a.b=value": one value inside an object, of the file or of an override before. */
static void overrides_reach_inside_objects(void **state) {
    (void)state;
    mf_model m;
    mf_err e;
    const char *const set[] = {"linear_attn_config.num_heads=16", "linear_attn_config.head_dim=64",
                               "linear_attn_config.num_heads=8"};
    assert_ok(mf_model_load_with("kimi-linear-48b-a3b", set, 3, &m, &e));
    assert_int_equal(m.mixer.key_heads, 8);
    assert_int_equal(m.mixer.key_dim, 64);
    assert_int_equal(m.layer_classes[m.layer_class[26]].mixer, MF_MIXER_ATTENTION); /* untouched */
    const char *const inner[] = {"text_config.hidden_size=2048",
                                 "text_config.rope_parameters.rope_theta=5e4"};
    assert_ok(mf_model_load_with("qwen3.5-397b-a17b", inner, 0, &m, &e));
    double theta = m.rope_theta;
    assert_ok(mf_model_load_with("qwen3.5-397b-a17b", inner + 1, 1, &m, &e));
    assert_true(m.rope_theta == 5e4);
    assert_true(theta != 5e4);
    assert_true(m.partial_rotary == 0.25);
    static const struct {
        const char *set, *text;
    } refused[] = {
        {"linear_attn_config.num_head=16", "no \"num_head\" stands there"},
        {"linear_attn_config.a.b=16", "no \"a\" stands there"},
        {"hidden_size.a=16", "\"hidden_size\" holds no keys"},
        {"linear_attn_config..a=16", "expected key=value"},
        {".a=16", "expected key=value"},
        {"a.=16", "expected key=value"},
        {"linear_attn_config.num_heads=x", "expected an integer"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        mf_status s = mf_model_load_with("kimi-linear-48b-a3b", &refused[i].set, 1, &m, &e);
        assert_true(s == MF_USAGE || s == MF_INPUT);
        assert_non_null(strstr(e.text, refused[i].text));
    }
}

/* The file that says the same reads the same. */
static void a_file_with_inner_overrides_reads_the_same(void **state) {
    (void)state;
    const char *const set[] = {"linear_attn_config.num_heads=16"};
    char *text = NULL;
    size_t length = 0;
    mf_json *doc = NULL;
    mf_model m;
    mf_err e;
    assert_ok(mf_model_config_text("kimi-linear-48b-a3b", set, 1, &text, &length, &e));
    assert_ok(mf_json_parse("config.json", text, length, &doc, &e));
    assert_ok(mf_model_from_json(doc, "x", &m, &e));
    assert_int_equal(m.mixer.key_heads, 16);
    mf_json_destroy(doc);
    free(text);
}

static void assert_override_refused(const char *set, const char *message) {
    mf_model m;
    mf_err e;
    const char *const list[] = {set};
    assert_int_equal(mf_model_load_with("deepseek-v3", list, 1, &m, &e), MF_USAGE);
    if (strcmp(e.text, message) != 0) {
        fail_msg("expected \"%s\", got \"%s\"", message, e.text);
    }
}

static void bad_overrides_are_bad_usage_and_named(void **state) {
    (void)state;
    assert_override_refused("num_experts_per_tokn=4",
                            "--set num_experts_per_tokn=4: \"num_experts_per_tokn\" says nothing "
                            "about a deepseek_v3 model; did you mean \"num_experts_per_tok\"?");
    assert_override_refused("sliding_window=4",
                            "--set sliding_window=4: \"sliding_window\" says nothing about a "
                            "deepseek_v3 model");
    assert_override_refused("hidden_size=many", "--set hidden_size=many: \"hidden_size\": expected "
                                                "an integer in 1..1048576, got \"many\"");
    assert_override_refused("hidden_size=1,\"x\":2",
                            "--set hidden_size=1,\"x\":2: \"hidden_size\": expected an integer in "
                            "1..1048576, got \"1,\"x\":2\"");
    assert_override_refused(
        "n_group=7", "--set n_group=7: \"n_group\": 256 experts do not divide into 7 groups");
    assert_override_refused("hidden_size", "--set hidden_size: expected key=value");
    assert_override_refused("=3", "--set =3: expected key=value");
    assert_override_refused("", "--set : expected key=value");
    assert_override_refused("a b=3", "--set a b=3: expected key=value");
    assert_override_refused("hidden_size=\xff", "--set hidden_size=\xff: not valid UTF-8");
}

static void an_override_of_a_key_that_says_nothing_here_is_taken(void **state) {
    (void)state;
    mf_model m;
    const char *const set[] = {"torch_dtype=float32"};
    assert_ok(mf_model_load_with("deepseek-v3", set, 1, &m, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overrides_reach_inside_objects),
        cmocka_unit_test(a_file_with_inner_overrides_reads_the_same),
        cmocka_unit_test(deepseek_v3_is_read_whole),
        cmocka_unit_test(deepseek_v2_scores_by_softmax_and_lite_has_no_groups),
        cmocka_unit_test(gpt_oss_alternates_windows_and_has_biases),
        cmocka_unit_test(gpt_oss_without_layer_types_alternates_by_itself),
        cmocka_unit_test(other_families_are_recognised),
        cmocka_unit_test(mistral_slides_unless_null_says_otherwise),
        cmocka_unit_test(qwen_windows_start_at_their_layer),
        cmocka_unit_test(sparse_step_and_mlp_only_layers_pick_the_moe_layers),
        cmocka_unit_test(first_dense_layers_and_frequency_pick_the_moe_layers),
        cmocka_unit_test(a_moe_family_with_dense_layers_only_is_dense),
        cmocka_unit_test(experts_are_found_under_every_spelling),
        cmocka_unit_test(rope_is_read_from_old_and_new_places),
        cmocka_unit_test(rope_scaling_is_read_with_its_temperatures),
        cmocka_unit_test(text_config_is_looked_into),
        cmocka_unit_test(text_parts_of_multimodal_models_are_their_family),
        cmocka_unit_test(architecture_replaces_a_missing_model_type),
        cmocka_unit_test(dtypes_and_other_keys_say_nothing),
        cmocka_unit_test(what_a_model_leaves_out_is_named),
        cmocka_unit_test(keys_that_say_nothing_are_not_left_out_and_others_are_refused),
        cmocka_unit_test(an_unknown_family_is_refused_with_the_known_ones),
        cmocka_unit_test(wrong_values_name_key_and_place),
        cmocka_unit_test(sizes_beyond_reason_are_refused),
        cmocka_unit_test(overrides_change_what_the_file_says),
        cmocka_unit_test(a_shortened_model_keeps_the_head_of_its_lists),
        cmocka_unit_test(bad_overrides_are_bad_usage_and_named),
        cmocka_unit_test(an_override_of_a_key_that_says_nothing_here_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
