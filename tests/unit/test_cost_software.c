/* test_cost_software.c - software profiles: what ships is sound, names resolve by release, and
 * files that say too little or too much are refused. */
#include "core/base/paths.h"
#include "costmodel/cost.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void every_shipped_profile_loads_under_its_own_name(void **state) {
    (void)state;
    size_t count;
    const char *const *names = mf_software_shipped(&count);
    assert_at_least(count, 8);
    for (size_t i = 0; i < count; i++) {
        mf_software s;
        mf_err e = {.text = ""};
        if (mf_software_load(names[i], &s, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        assert_string_equal(s.name, names[i]);
        assert_true(strncmp(names[i], "megatron-", 9) != 0 || strcmp(s.release, names[i] + 9) == 0);
        for (int m = 0; m < MF_MATH_COUNT; m++) {
            assert_above(s.gemm_eff[m], 0);
        }
        assert_at_most(s.host_graph[MF_GRAPH_STEP], s.host_graph[MF_GRAPH_NONE]);
        /* Scans are derived, not measured: only "ideal" may take them as derived. */
        assert_true(s.scan_eff > 0 ? s.scan_eff < 1 : strcmp(s.name, "ideal") == 0);
    }
}

static void a_release_resolves_to_the_newest_profile_not_newer(void **state) {
    (void)state;
    static const struct {
        const char *asked, *got;
    } want[] = {{"megatron-25.05", "megatron-25.05"}, {"megatron-25.07", "megatron-25.05"},
                {"megatron-25.12", "megatron-25.11"}, {"megatron-26.05", "megatron-26.04"},
                {"megatron-27.01", "megatron-26.06"}, {"megatron-24.09", "megatron-24.09"}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mf_software s;
        assert_ok(mf_software_load(want[i].asked, &s, NULL));
        assert_string_equal(s.name, want[i].got);
    }
    mf_software s;
    assert_ok(mf_software_load(NULL, &s, NULL));
    assert_string_equal(s.name, "moefold");
    assert_false(s.nvls);
}

static void unknown_names_list_the_known_ones(void **state) {
    (void)state;
    static const char *const bad[] = {"megatron-23.01", "megatron-25",    "megatron-25.13",
                                      "megatron-25.5",  "deepspeed-0.9",  "",
                                      "megatrn-25.05",  "megatron-25.055"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_software s;
        mf_err e = {.text = ""};
        assert_int_equal(mf_software_load(bad[i], &s, &e), MF_USAGE);
        assert_non_null(strstr(e.text, "megatron-26.06"));
        assert_non_null(strstr(e.text, "moefold"));
    }
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 16);
    assert_non_null(f);
    assert_non_null(text);
    assert_above(fread(text, 1, (1 << 16) - 1, f), 0);
    fclose(f);
    return text;
}

static void files_that_say_too_much_or_too_little_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } edits[] = {
        {"\"grouped_eff\"", "\"groupd_eff\"", "groupd_eff"},
        {"\"grouped_eff\": {\"value\": 1", "\"grouped_eff\": {\"value\": 3", "\"value\""},
        {"\"fp8\": {\"value\"", "\"fp7\": {\"value\"", "fp7"},
        {"\"band\": {\"value\": 0.03, ", "\"band\": {", "\"value\""},
        {"\"attention_eff\": {\"value\": 1, \"source\": \"as measured\"}",
         "\"attention_eff\": {\"value\": 1, \"source\": \"\"}", "source"},
        {"\"memory_eff\": {\"value\": 1, \"source\": \"as measured\"}", "\"memory_eff\": 1",
         "expected"},
        {"\"name\": \"moefold\"", "\"name\": \"a name that is far too long for a profile\"",
         "\"name\""},
        {"\"band\"", "\"memory_report\": {\"value\": \"allocated\"}, \"band\"", "source"},
        {"\"band\"",
         "\"memory_report\": {\"value\": \"allocated,heap\", \"source\": \"x\"}, \"band\"",
         "got \"heap\""},
    };
    char path[2048];
    snprintf(path, sizeof path, "%s/software/moefold.json", mf_data_dir());
    char *text = read_file(path);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        char *at = strstr(text, edits[i].from), *edited = calloc(1, 1 << 17);
        if (at == NULL || edited == NULL) {
            fail_msg("\"%s\" is not in %s", edits[i].from, path);
            return;
        }
        snprintf(edited, 1 << 17, "%.*s%s%s", (int)(at - text), text, edits[i].to,
                 at + strlen(edits[i].from));
        mf_json *doc = NULL;
        mf_software s;
        mf_err e = {.text = ""};
        assert_ok(mf_json_parse("x.json", edited, strlen(edited), &doc, &e));
        assert_int_equal(mf_software_from_json(doc, &s, &e), MF_INPUT);
        if (strstr(e.text, edits[i].says) == NULL || strstr(e.text, "x.json:") != e.text) {
            fail_msg("edit %zu: \"%s\"", i, e.text);
        }
        mf_json_destroy(doc);
        free(edited);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shipped_profile_loads_under_its_own_name),
        cmocka_unit_test(a_release_resolves_to_the_newest_profile_not_newer),
        cmocka_unit_test(unknown_names_list_the_known_ones),
        cmocka_unit_test(files_that_say_too_much_or_too_little_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
