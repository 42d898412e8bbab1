/* Configs as nobody means them: every key of every shipped model gone or with another value, and
 * lists, words and objects that contradict the rest. Each is read whole or refused with its place.
 */
#include "core/base/paths.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include "core/base/json_write.h"
#include "core/model/model_reader.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "NAME:LINE:COLUMN: ..." in one line. */
static bool has_place(const char *text) {
    const char *at = strchr(text, ':');
    for (int i = 0; i < 2 && at != NULL; i++) {
        const char *digits = at + 1;
        for (at = digits; isdigit((unsigned char)*at); at++) {
        }
        at = at > digits && *at == ':' ? at : NULL;
    }
    return at != NULL && at[1] == ' ' && strpbrk(text, "\n\r") == NULL;
}

static int check_tensor(const mf_model_tensor *t, void *user) {
    int *calls = user;
    assert_above(t->rows, 0);
    assert_above(t->cols, 0);
    assert_above(t->active_share, 0);
    assert_at_most(t->active_share, 1);
    return ++*calls > 1000;
}

/* A model that was accepted has sums that make sense. */
static void check_model(const mf_model *m) {
    mf_model_counts c;
    int calls = 0;
    mf_model_count(m, &c);
    assert_above(c.total, 0);
    assert_at_most(c.total, INT64_C(1000000000000000));
    assert_above(c.active, 0);
    assert_at_most(c.active, c.total);
    assert_below(c.routed, c.total);
    assert_at_least(c.mtp, 0);
    double flops = mf_model_flops_per_token(m, 4096);
    assert_above(flops, 0);
    assert_below(flops, 1e19);
    mf_model_tensors(m, check_tensor, &calls);
}

/* What stands in a key's place; NULL: nothing. */
static const char *const values[] = {
    NULL,         "null",  "\"x\"", "-1",      "0",       "1",
    "3",          "7",     "0.5",   "1048576", "1e300",   "9007199254740993",
    "true",       "false", "[]",    "[1]",     "[\"a\"]", "{}",
    "{\"a\": 1}",
};
#define VALUES (sizeof values / sizeof values[0])

/* The shipped file with another value under one key of the object that is read, or inside the
 * object under it. */
static void write_variant(mf_json_writer *w, const mf_json_value *object, const char *key,
                          const char *inner, const mf_json_value *value) {
    for (size_t i = 0; i < mf_json_size(object); i++) {
        const char *name = mf_json_key_at(object, i);
        const mf_json_value *v = mf_json_at(object, i);
        if (strcmp(name, key) != 0) {
            mf_config_write_value(w, name, v);
        } else if (inner != NULL) {
            mf_json_write_object(w, name, false);
            write_variant(w, v, inner, NULL, value);
            mf_json_write_end(w);
        } else if (value != NULL) {
            mf_config_write_value(w, name, value);
        }
    }
}

static int refused, taken;

static void try_variant(const mf_json_value *root, const char *key, const char *inner,
                        const char *value) {
    mf_json *one = NULL, *doc = NULL;
    mf_json_writer w;
    char *text = NULL;
    size_t length = 0;
    mf_model m;
    mf_err e;
    if (value != NULL) {
        assert_ok(mf_json_parse("value", value, strlen(value), &one, &e));
    }
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, true);
    write_variant(&w, root, key, inner, one != NULL ? mf_json_root(one) : NULL);
    mf_json_write_end(&w);
    assert_ok(mf_json_writer_finish(&w, &text, &length, &e));
    assert_ok(mf_json_parse("config.json", text, length, &doc, &e));
    mf_status st = mf_model_from_json(doc, "x", &m, &e);
    if (st == MF_OK) {
        check_model(&m);
        taken++;
    } else if (st != MF_INPUT || !has_place(e.text)) {
        fail_msg("%s.%s = %s: %s", key, inner != NULL ? inner : "", value != NULL ? value : "gone",
                 e.text);
    } else {
        refused++;
    }
    mf_json_destroy(doc);
    mf_json_destroy(one);
    mf_json_writer_clear(&w);
    free(text);
}

static void every_key_of_every_model_may_be_wrong(void **state) {
    (void)state;
    size_t count, stride = (size_t)case_stride(7), number = 0;
    const char *const *names = mf_model_shipped(&count);
    for (size_t k = 0; k < count; k++) {
        mf_json *doc = NULL;
        char path[512];
        mf_err e;
        snprintf(path, sizeof path, "%s/models/%s.json", mf_data_dir(), names[k]);
        assert_ok(mf_json_load(path, &doc, &e));
        const mf_json_value *root = mf_json_root(doc);
        for (size_t i = 0; i < mf_json_size(root); i++) {
            const mf_json_value *v = mf_json_at(root, i);
            bool object = mf_json_value_type(v) == MF_JSON_OBJECT;
            for (size_t j = 0; j < VALUES; j++) {
                const char *key = mf_json_key_at(root, i);
                if (number++ % stride == 0) {
                    try_variant(root, key, NULL, values[j]);
                }
                for (size_t n = 0; object && n < mf_json_size(v); n++) {
                    if (number++ % stride == 0) {
                        try_variant(root, key, mf_json_key_at(v, n), values[j]);
                    }
                }
            }
        }
        mf_json_destroy(doc);
    }
    printf("%d refused with their place, %d read\n", refused, taken);
    assert_above(refused, 0);
    assert_above(taken, 0);
}

/* One shipped model with overrides ("|" between): what is said of them. */
static void contradictions_are_said(void **state) {
    (void)state;
    static const struct {
        const char *model, *set, *text;
    } cases[] = {
        {"nemotron-3.5-lightning", "layers_block_type=[]", "0 entries"},
        {"nemotron-3.5-lightning", "layers_block_type=[\"mamba\"]|num_hidden_layers=2",
         "1 entries for 2 layers"},
        {"nemotron-3.5-lightning", "layers_block_type=\"MM\"", "expected an array"},
        {"nemotron-3-nano", "hybrid_override_pattern=\"MX\"|num_hidden_layers=2",
         "layer 1: expected mamba"},
        {"nemotron-3-nano", "mlp_bias=true", "\"mlp_bias\" is not supported"},
        {"nemotron-3-nano", "mamba_hidden_act=gelu", "expected silu or swish, got \"gelu\""},
        {"granite-4.0-h-small", "position_embedding_type=alibi", "expected nope or rope"},
        {"granite-4.0-h-small", "normalization_function=layernorm", "expected rmsnorm"},
        {"granite-4.0-h-small", "layer_types=[\"rwkv\"]|num_hidden_layers=1",
         "expected \"mamba\" or \"attention\""},
        {"llama4-maverick", "moe_layers=5", "\"moe_layers\": expected an array"},
        {"glm-5.2", "indexer_types=[\"some\"]|num_hidden_layers=1",
         "expected \"shared\" or \"full\""},
        {"qwen3-next-80b-a3b", "layer_types=[\"mamba\"]|num_hidden_layers=1",
         "expected \"full_attention\" or \"linear_attention\""},
        {"gemma-4-26b-a4b", "layer_types=[\"mamba\"]|num_hidden_layers=1",
         "expected \"sliding_attention\" or \"full_attention\""},
        {"gemma-4-26b-a4b", "use_bidirectional_attention=all", "got \"all\""},
        {"kimi-linear-48b-a3b", "linear_attn_config.full_attn_layers=[3]",
         "layer 3 is listed twice"},
        {"kimi-linear-48b-a3b", "linear_attn_config.full_attn_layers=[]",
         "layer 4 stands in neither list"},
        {"kimi-linear-48b-a3b", "linear_attn_config=3", "expected an object"},
        {"kimi-linear-48b-a3b", "linear_attn_config=null", "\"linear_attn_config\" is missing"},
        {"minimax-m3", "sparse_attention_config=3", "expected an object"},
        {"minimax-m3", "sparse_attention_config.sparse_topk_blocks=0", "sparse_topk_blocks"},
        {"minimax-m3", "sparse_attention_config.sparse_attention_freq=[1]",
         "an entry for each layer"},
        {"minimax-m2.5", "qk_norm_type=per_token", "expected per_layer or per_head"},
        {"minimax-m2.5", "attn_type_list=[0]|num_hidden_layers=1", "expected 1, got 0"},
        {"step-3.5-flash", "attention_other_setting=3", "expected an object"},
        {"step-3.5-flash", "attention_other_setting.head_dim=64", "another width"},
        {"step-3.5-flash", "partial_rotary_factors=[0.5]", "none for layer 1"},
        {"hunyuan-a13b", "moe_intermediate_size=1024", "disagrees with \"intermediate_size\""},
        {"dots.llm1", "scoring_func=tanh", "expected noaux_tc or sigmoid"},
        {"llama3-8b", "rope_theta=[1e4]", "\"rope_theta\": expected a number"},
        {"llama3-8b", "rope_scaling=[1]", "\"rope_scaling\": expected an object"},
        {"kimi-k3", "routed_expert_hidden_size=1048576|moe_intermediate_size=16777216",
         "more than 1e+15 parameters"},
        {"deepseek-v4-flash", "compress_ratios=[4]", "an entry for each layer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        const char *set[4];
        size_t n = 0;
        mf_model m;
        mf_err e = {.text = ""};
        snprintf(text, sizeof text, "%s", cases[i].set);
        for (char *at = strtok(text, "|"); at != NULL; at = strtok(NULL, "|")) {
            set[n++] = at;
        }
        mf_status st = mf_model_load_with(cases[i].model, set, n, &m, &e);
        if ((st != MF_INPUT && st != MF_USAGE) || strstr(e.text, cases[i].text) == NULL) {
            fail_msg("%s, %s: expected \"%s\" in: %s", cases[i].model, cases[i].set, cases[i].text,
                     e.text);
        }
    }
}

/* Keys inside objects, kinds of positions and parts beside the text are named like any other. */
static void unread_keys_inside_objects_are_named(void **state) {
    (void)state;
    static const struct {
        const char *model, *set, *text;
    } cases[] = {
        {"kimi-linear-48b-a3b",
         "linear_attn_config={\"num_heads\": 32, \"head_dim\": 128, \"full_attn_layers\": [4, 8, "
         "12, 16, 20, 24, 27], \"new\": 1}",
         "\"linear_attn_config.new\", which nobody reads"},
        {"llama3-8b", "rope_scaling={\"rope_type\": \"spiral\", \"turns\": 3}",
         "\"rope_scaling.turns\", which nobody reads; rotary positions of the kind \"spiral\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_model m;
        mf_err e;
        assert_ok(mf_model_load_with(cases[i].model, &cases[i].set, 1, &m, &e));
        assert_string_equal(m.left_out, cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_every_model_may_be_wrong),
        cmocka_unit_test(contradictions_are_said),
        cmocka_unit_test(unread_keys_inside_objects_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
