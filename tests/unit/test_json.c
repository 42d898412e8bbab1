/* JSON documents: values, getters, positions, duplicate and unknown keys, nearest words, files. */
#include "tests/support/test.h"

#include "core/base/json.h"
#include "core/base/json_write.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mf_json *parsed(const char *text) {
    mf_json *doc = NULL;
    mf_err e;
    mf_err_clear(&e);
    if (mf_json_parse("f.json", text, strlen(text), &doc, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return doc;
}

static void assert_refused(const char *text, const char *message) {
    mf_json *doc = NULL;
    mf_err e;
    assert_int_equal(mf_json_parse("f.json", text, strlen(text), &doc, &e), MF_INPUT);
    assert_null(doc);
    assert_string_equal(e.text, message);
}

static void values_come_back_as_written(void **state) {
    (void)state;
    mf_json *doc = parsed("{\"i\": -42, \"f\": 2.5e-3, \"t\": true, \"n\": null, \"s\": "
                          "\"a\\u00e9\\n\\uD834\\uDD1E\", \"l\": [1, 2, 3]}");
    const mf_json_value *root = mf_json_root(doc);
    int64_t i = 0;
    double f = 0;
    bool t = false;
    const char *s = NULL;
    assert_ok(mf_json_get_i64(root, "i", -100, 100, &i, NULL));
    assert_int_equal(i, -42);
    assert_ok(mf_json_get_f64(root, "f", 0, 1, &f, NULL));
    assert_true(f == 2.5e-3);
    assert_ok(mf_json_get_bool(root, "t", &t, NULL));
    assert_true(t);
    assert_ok(mf_json_get_string(root, "s", &s, NULL));
    assert_string_equal(s, "a\xc3\xa9\n\xf0\x9d\x84\x9e");
    assert_int_equal(mf_json_value_type(mf_json_find(root, "n")), MF_JSON_NULL);
    const mf_json_value *list = mf_json_find(root, "l");
    assert_int_equal(mf_json_size(list), 3);
    assert_ok(mf_json_i64(mf_json_at(list, 2), 0, 9, &i, NULL));
    assert_int_equal(i, 3);
    mf_json_destroy(doc);
}

static void members_keep_the_order_of_the_text(void **state) {
    (void)state;
    mf_json *doc = parsed("{\"z\":1,\"a\":2,\"m\":3,\"B\":4,\"k\":5}");
    const char *const keys[] = {"z", "a", "m", "B", "k"};
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(mf_json_key_at(mf_json_root(doc), i), keys[i]);
        assert_ptr_equal(mf_json_find(mf_json_root(doc), keys[i]),
                         mf_json_at(mf_json_root(doc), i));
    }
    mf_json_destroy(doc);
}

static void keys_are_found_by_exact_case_only(void **state) {
    (void)state;
    mf_json *doc = parsed("{\"Key\": 1, \"a\\u0000b\": 2}");
    assert_non_null(mf_json_find(mf_json_root(doc), "Key"));
    assert_null(mf_json_find(mf_json_root(doc), "key"));
    assert_null(mf_json_find(mf_json_root(doc), "KEY"));
    assert_null(mf_json_find(mf_json_root(doc), "Ke"));
    assert_null(mf_json_find(mf_json_root(doc), "a"));
    assert_null(mf_json_find(mf_json_find(mf_json_root(doc), "Key"), "x"));
    mf_json_destroy(doc);
}

/* A key that holds a NUL, quotes and control characters is written as it was read. */
static void keys_are_written_as_they_were_read(void **state) {
    (void)state;
    static const char text[] = "{\n  \"a\\u0000\\\"\\\\\\u0001\\n\xc3\xa9\": 2\n}\n";
    mf_json *doc = parsed(text);
    mf_json_writer w;
    char *out = NULL;
    size_t length = 0;
    mf_err e;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_i64(&w, mf_json_key_at(mf_json_root(doc), 0), 2);
    mf_json_write_end(&w);
    assert_ok(mf_json_writer_finish(&w, &out, &length, &e));
    assert_string_equal(out, text);
    free(out);
    mf_json_destroy(doc);
}

static void many_members_are_all_found(void **state) {
    (void)state;
    enum { COUNT = 5000 };
    static char text[COUNT * 24];
    size_t at = 0;
    text[at++] = '{';
    for (unsigned i = 0; i < COUNT; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s\"k%u\":%u", i ? "," : "",
                               i * 7919u % COUNT, i);
    }
    text[at++] = '}';
    text[at] = '\0';
    mf_json *doc = parsed(text);
    for (unsigned i = 0; i < COUNT; i++) {
        char key[16];
        int64_t value = -1;
        snprintf(key, sizeof key, "k%u", i * 7919u % COUNT);
        assert_ok(mf_json_get_i64(mf_json_root(doc), key, 0, COUNT, &value, NULL));
        assert_int_equal(value, i);
    }
    mf_json_destroy(doc);
}

static void positions_count_lines_and_characters(void **state) {
    (void)state;
    mf_json *doc = parsed("{\n  \"\xc3\xa9\xc3\xa9\": 1,\r\n\t\"b\": [\r 2, \"\xe6\xbc\xa2\", 3]}");
    const mf_json_value *root = mf_json_root(doc);
    const mf_json_value *first = mf_json_at(root, 0), *list = mf_json_at(root, 1);
    assert_int_equal(mf_json_line(root), 1);
    assert_int_equal(mf_json_column(root), 1);
    assert_int_equal(mf_json_line(first), 2);
    assert_int_equal(mf_json_column(first), 9);
    assert_int_equal(mf_json_line(list), 3);
    assert_int_equal(mf_json_column(list), 7);
    assert_int_equal(mf_json_line(mf_json_at(list, 2)), 4);
    assert_int_equal(mf_json_column(mf_json_at(list, 2)), 10);
    mf_json_destroy(doc);
}

static void long_numbers_keep_their_value(void **state) {
    (void)state;
    mf_json *doc =
        parsed("[0.1000000000000000055511151231257827021181583404541015625000000000000000000000,"
               "100000000000000000000000000000000000000000000000000000000000000000000000000e-74,"
               "9007199254740991, 1.7976931348623157e308]");
    double x = 0;
    int64_t i = 0;
    assert_ok(mf_json_f64(mf_json_at(mf_json_root(doc), 0), 0, 1, &x, NULL));
    assert_true(x == 0.1);
    assert_ok(mf_json_i64(mf_json_at(mf_json_root(doc), 1), 0, 1, &i, NULL));
    assert_int_equal(i, 1);
    assert_ok(mf_json_i64(mf_json_at(mf_json_root(doc), 2), 0, INT64_C(1) << 53, &i, NULL));
    assert_true(i == (INT64_C(1) << 53) - 1);
    assert_ok(mf_json_f64(mf_json_at(mf_json_root(doc), 3), 0, DBL_MAX, &x, NULL));
    assert_true(x == DBL_MAX);
    mf_json_destroy(doc);
}

static void overflow_is_an_error_at_the_number(void **state) {
    (void)state;
    assert_refused("{\"a\": [1, 1e999]}", "f.json:1:11: number too large for a double");
    char text[500];
    memset(text, '9', sizeof text);
    mf_json *doc = NULL;
    mf_err e;
    assert_int_equal(mf_json_parse("f", text, sizeof text, &doc, &e), MF_INPUT);
    assert_string_equal(e.text, "f:1:1: number too large for a double");
}

static void syntax_errors_say_what_was_expected(void **state) {
    (void)state;
    assert_refused("", "f.json:1:1: expected a value, found the end of the text");
    assert_refused("{\n  \"a\": 1\n  \"b\": 2\n}", "f.json:3:3: expected ',' or '}', found '\"'");
    assert_refused("[1, 2,]", "f.json:1:7: expected a value, found ']'");
    assert_refused("{\"a\": 007}", "f.json:1:8: a number must not have leading zeros");
    assert_refused("[\n \"abc", "f.json:2:2: this string is never closed");
    assert_refused("[1] 2", "f.json:1:5: expected nothing after the value, found '2'");
    assert_refused("{\"a\" 1}", "f.json:1:6: expected ':', found '1'");
    assert_refused("[\"\xc3\xa9\xff\"]", "f.json:1:4: not valid UTF-8");
}

static void a_duplicate_key_names_both_places(void **state) {
    (void)state;
    assert_refused("{\n \"a\": 1,\n \"b\": 2,\n   \"a\": 3}",
                   "f.json:4:4: key \"a\" stands twice, first at 2:2");
    assert_refused("{\"x\": [{\"k\": 0, \"l\": 0, \"k\": 0, \"l\": 0}]}",
                   "f.json:1:25: key \"k\" stands twice, first at 1:9");
    assert_refused("{\"x\": [{\"z\": 0, \"a\": 0, \"z\": 0, \"a\": 0}]}",
                   "f.json:1:25: key \"z\" stands twice, first at 1:9");
}

static void wrong_types_and_ranges_name_key_and_value(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
        int64_t lo, hi;
    } cases[] = {
        {"{\"n\": \"eight\"}", "f.json:1:7: \"n\": expected an integer > 0, got \"eight\"", 1,
         INT64_C(1) << 53},
        {"{\"n\": 0}", "f.json:1:7: \"n\": expected an integer > 0, got 0", 1, INT64_C(1) << 53},
        {"{\"n\": 1.5}", "f.json:1:7: \"n\": expected an integer in 1..9, got 1.5", 1, 9},
        {"{\"n\": 10}", "f.json:1:7: \"n\": expected an integer in 1..9, got 10", 1, 9},
        {"{\"n\": 1e300}", "f.json:1:7: \"n\": expected an integer >= 0, got 1e+300", 0,
         INT64_C(1) << 53},
        {"{\"n\": null}", "f.json:1:7: \"n\": expected an integer in 0..1, got null", 0, 1},
        {"{\"n\": true}", "f.json:1:7: \"n\": expected an integer in 0..1, got true", 0, 1},
        {"{\"n\": [1]}", "f.json:1:7: \"n\": expected an integer in 0..1, got an array", 0, 1},
        {"{\"n\": {}}", "f.json:1:7: \"n\": expected an integer in 0..1, got an object", 0, 1},
        {"{\"m\": 1}", "f.json:1:1: \"n\" is missing", 0, 1},
        {"[1]", "f.json:1:1: expected an object, got an array", 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_json *doc = parsed(cases[i].text);
        mf_err e;
        int64_t out = 77;
        assert_int_equal(
            mf_json_get_i64(mf_json_root(doc), "n", cases[i].lo, cases[i].hi, &out, &e), MF_INPUT);
        assert_string_equal(e.text, cases[i].message);
        assert_int_equal(out, 77);
        mf_json_destroy(doc);
    }
}

static void other_getters_check_their_types_too(void **state) {
    (void)state;
    mf_json *doc =
        parsed("{\"n\": 3, \"s\": \"x\", \"z\": \"a\\u0000b\", \"long\": "
               "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\\n\"}");
    const mf_json_value *root = mf_json_root(doc);
    mf_err e;
    double f;
    bool b;
    const char *s;
    assert_int_equal(mf_json_get_f64(root, "n", 0, 1, &f, &e), MF_INPUT);
    assert_string_equal(e.text, "f.json:1:7: \"n\": expected a number in 0..1, got 3");
    assert_int_equal(mf_json_get_f64(root, "n", 4, HUGE_VAL, &f, &e), MF_INPUT);
    assert_string_equal(e.text, "f.json:1:7: \"n\": expected a number >= 4, got 3");
    assert_int_equal(mf_json_get_bool(root, "n", &b, &e), MF_INPUT);
    assert_string_equal(e.text, "f.json:1:7: \"n\": expected true or false, got 3");
    assert_int_equal(mf_json_get_string(root, "n", &s, &e), MF_INPUT);
    assert_string_equal(e.text, "f.json:1:7: \"n\": expected a string, got 3");
    assert_int_equal(mf_json_get_string(root, "z", &s, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "without \\u0000"));
    assert_int_equal(mf_json_get_bool(root, "long", &b, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "aaa...\""));
    assert_int_equal(mf_json_bool(mf_json_find(root, "s"), &b, &e), MF_INPUT);
    assert_string_equal(e.text, "f.json:1:15: expected true or false, got \"x\"");
    assert_int_equal(mf_json_want(mf_json_find(root, "s"), MF_JSON_ARRAY, &e), MF_INPUT);
    assert_string_equal(e.text, "f.json:1:15: \"s\": expected an array, got \"x\"");
    mf_json_destroy(doc);
}

static void optional_members_leave_the_default_alone(void **state) {
    (void)state;
    mf_json *doc = parsed("{\"null\": null, \"bad\": \"x\", \"good\": 5}");
    const mf_json_value *root = mf_json_root(doc);
    int64_t i = 1;
    double f = 2;
    bool b = true;
    const char *s = "default";
    mf_err e;
    assert_ok(mf_json_opt_i64(root, "absent", 0, 9, &i, NULL));
    assert_ok(mf_json_opt_i64(root, "null", 0, 9, &i, NULL));
    assert_int_equal(i, 1);
    assert_ok(mf_json_opt_f64(root, "null", 0, 9, &f, NULL));
    assert_true(f == 2);
    assert_ok(mf_json_opt_bool(root, "null", &b, NULL));
    assert_true(b);
    assert_ok(mf_json_opt_string(root, "absent", &s, NULL));
    assert_string_equal(s, "default");
    assert_ok(mf_json_opt_i64(root, "good", 0, 9, &i, NULL));
    assert_int_equal(i, 5);
    assert_int_equal(mf_json_opt_i64(root, "bad", 0, 9, &i, &e), MF_INPUT);
    assert_int_equal(mf_json_opt_f64(root, "bad", 0, 9, &f, &e), MF_INPUT);
    assert_int_equal(mf_json_opt_bool(root, "bad", &b, &e), MF_INPUT);
    assert_int_equal(mf_json_opt_string(root, "good", &s, &e), MF_INPUT);
    mf_json_destroy(doc);
}

static void unknown_keys_are_refused_with_the_nearest_known(void **state) {
    (void)state;
    static const char *const known[] = {"hidden_size", "num_experts", "tp"};
    mf_json *doc = parsed("{\"tp\": 1,\n \"num_expert\": 2}");
    mf_err e;
    assert_int_equal(mf_json_check_keys(mf_json_root(doc), known, 3, &e), MF_INPUT);
    assert_string_equal(e.text,
                        "f.json:2:2: unknown key \"num_expert\"; did you mean \"num_experts\"?");
    mf_json_destroy(doc);
    doc = parsed("{\"hidden_size\": 1, \"zzz\": 2}");
    assert_int_equal(mf_json_check_keys(mf_json_root(doc), known, 3, &e), MF_INPUT);
    assert_string_equal(e.text, "f.json:1:20: unknown key \"zzz\"");
    mf_json_destroy(doc);
    doc = parsed("{\"tp\": 1, \"hidden_size\": 2}");
    assert_ok(mf_json_check_keys(mf_json_root(doc), known, 3, &e));
    mf_json_destroy(doc);
}

static void nearest_words_are_near(void **state) {
    (void)state;
    static const char *const known[] = {"deepseek-v2", "deepseek-v3", "mixtral-8x7b",
                                        "tp",          "pp",          "micro-batch"};
    size_t n = sizeof known / sizeof known[0];
    assert_string_equal(mf_nearest_word("deepseek-v3", known, n), "deepseek-v3");
    assert_string_equal(mf_nearest_word("DeepSeek_V3", known, n), "deepseek-v3");
    assert_string_equal(mf_nearest_word("deepsek-v2", known, n), "deepseek-v2");
    static const char *const letters[] = {"m", "nk"};
    static const char *const keys[] = {"num_experts", "num_hidden_layers", "hidden_size"};
    assert_string_equal(mf_nearest_word("num_layers", keys, 3), "num_hidden_layers");
    assert_string_equal(mf_nearest_word("d_model", keys, 3), "hidden_size");
    static const char *const software[] = {"moefold", "megatron-26.02", "megatron-30.01",
                                           "megatron-eager"};
    assert_string_equal(mf_nearest_word("mcore", software, 4), "megatron-30.01"); /* the newest */
    assert_null(mf_nearest_word("z", letters, 2)); /* one letter for another is no likeness */
    assert_string_equal(mf_nearest_word("nkk", letters, 2), "nk");
    assert_string_equal(mf_nearest_word("mixtral8x7b", known, n), "mixtral-8x7b");
    assert_string_equal(mf_nearest_word("mirco-batch", known, n), "micro-batch");
    assert_string_equal(mf_nearest_word("tpp", known, n), "tp");
    assert_null(mf_nearest_word("bananas", known, n));
    assert_null(mf_nearest_word("", known, n));
    assert_null(mf_nearest_word("ep", known + 5, 1));
    char endless[4000];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    assert_null(mf_nearest_word(endless, known, n));
}

static void files_are_read_and_missing_ones_named(void **state) {
    (void)state;
    mf_json *doc = NULL;
    mf_err e;
    assert_int_equal(mf_json_load("/no/such/file.json", &doc, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "/no/such/file.json: cannot be opened: "));
    assert_int_equal(mf_json_load("/", &doc, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "/: expected a file, not a folder"));
    assert_int_equal(mf_json_load("/dev/null", &doc, &e), MF_INPUT);
    assert_string_equal(e.text, "/dev/null:1:1: expected a value, found the end of the text");
    assert_int_equal(mf_json_load("/dev/zero", &doc, &e), MF_INPUT);
    assert_null(doc);
    char path[] = "/tmp/moefold-test-json-XXXXXX";
    int fd = mkstemp(path);
    assert_at_least(fd, 0);
    FILE *file = fdopen(fd, "wb");
    assert_non_null(file);
    fputs("{\"a\": [1, 2]}\n", file);
    fclose(file);
    assert_ok(mf_json_load(path, &doc, &e));
    remove(path);
    assert_int_equal(mf_json_size(mf_json_find(mf_json_root(doc), "a")), 2);
    mf_json_destroy(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_back_as_written),
        cmocka_unit_test(members_keep_the_order_of_the_text),
        cmocka_unit_test(keys_are_found_by_exact_case_only),
        cmocka_unit_test(keys_are_written_as_they_were_read),
        cmocka_unit_test(many_members_are_all_found),
        cmocka_unit_test(positions_count_lines_and_characters),
        cmocka_unit_test(long_numbers_keep_their_value),
        cmocka_unit_test(overflow_is_an_error_at_the_number),
        cmocka_unit_test(syntax_errors_say_what_was_expected),
        cmocka_unit_test(a_duplicate_key_names_both_places),
        cmocka_unit_test(wrong_types_and_ranges_name_key_and_value),
        cmocka_unit_test(other_getters_check_their_types_too),
        cmocka_unit_test(optional_members_leave_the_default_alone),
        cmocka_unit_test(unknown_keys_are_refused_with_the_nearest_known),
        cmocka_unit_test(nearest_words_are_near),
        cmocka_unit_test(files_are_read_and_missing_ones_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
