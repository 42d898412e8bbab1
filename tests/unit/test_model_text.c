/* A config.json with --set in it says what --set said: for every shipped model. */
#include "core/base/json.h"
#include "core/plan/plan.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* False where the model does not take the override at all. */
static bool says_the_same(const char *name, const char *const *set, size_t count) {
    mf_model said, read;
    mf_model_identity x, y;
    mf_json *doc = NULL;
    char *text = NULL;
    size_t length = 0;
    mf_err e;
    if (mf_model_load_with(name, set, count, &said, &e) != MF_OK) {
        assert_true(mf_model_config_text(name, set, count, &text, &length, &e) != MF_OK);
        assert_null(text);
        return false;
    }
    if (mf_model_config_text(name, set, count, &text, &length, &e) != MF_OK ||
        mf_json_parse("text", text, length, &doc, &e) != MF_OK ||
        mf_model_from_json(doc, name, &read, &e) != MF_OK) {
        fail_msg("%s with %s: %s", name, set[0], e.text);
    }
    mf_model_identify(&said, &x);
    mf_model_identify(&read, &y);
    assert_string_equal(x.fingerprint, y.fingerprint);
    mf_json_destroy(doc);
    free(text);
    return true;
}

static void a_written_config_says_what_was_set(void **state) {
    (void)state;
    static const char *const set[][3] = {
        {"num_hidden_layers=4"},
        {"vocab_size=1000", "vocab_size=512", "vocab_size=777"},
        {"rope_theta=4321.5"},
        {"rms_norm_eps=1.25e-7", "tie_word_embeddings=true"},
        {"num_experts=64"},
        {"n_routed_experts=64", "num_nextn_predict_layers=null", "first_k_dense_replace=0"},
        {"sliding_window=null"},
    };
    size_t models;
    const char *const *name = mf_model_shipped(&models);
    int taken[sizeof set / sizeof set[0]] = {0};
    for (size_t m = 0; m < models; m++) {
        for (size_t k = 0; k < sizeof set / sizeof set[0]; k++) {
            size_t count = set[k][2] != NULL ? 3 : set[k][1] != NULL ? 2 : 1;
            taken[k] += says_the_same(name[m], set[k], count);
        }
    }
    for (size_t k = 0; k < sizeof set / sizeof set[0]; k++) {
        assert_above(taken[k], 0);
    }
    assert_above(taken[0], (int)models / 2);
    assert_true(taken[1] == (int)models);
}

static void without_overrides_it_is_the_file(void **state) {
    (void)state;
    static const char path[] = "tests/data/hf/deepseek_v3/config.json";
    char *text = NULL, *file = NULL;
    size_t length = 0, size = 0;
    mf_err e;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    file = calloc(1, 1 << 16);
    size = fread(file, 1, 1 << 16, f);
    fclose(f);
    assert_ok(mf_model_config_text("tests/data/hf/deepseek_v3", NULL, 0, &text, &length, &e));
    assert_int_equal(length, size);
    assert_memory_equal(text, file, size);
    free(text);
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_written_config_says_what_was_set),
        cmocka_unit_test(without_overrides_it_is_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
