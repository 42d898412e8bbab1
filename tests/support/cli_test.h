/* cli_test.h - runs a moefold command line inside a test and keeps what it printed. */
#ifndef MF_TESTS_CLI_TEST_H
#define MF_TESTS_CLI_TEST_H

#include "tests/support/test.h"

#include "cli/cli.h"
#include "core/base/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct cli_result {
    int code;
    char *out, *err; /* owned */
    mf_json *json;   /* of out, when asked for */
} cli_result;

/* `line` is split at blanks. cancel may be NULL. */
static inline cli_result cli_run(const char *line, const volatile int *cancel) {
    cli_result r = {0};
    size_t out_size, err_size;
    const char *argv[64] = {"moefold"};
    int argc = 1;
    char *words = strdup(line), *rest = NULL;
    assert_non_null(words);
    for (char *w = strtok_r(words, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
        assert_below(argc, 64);
        argv[argc++] = w;
    }
    mf_cli cli = {.out = open_memstream(&r.out, &out_size),
                  .err = open_memstream(&r.err, &err_size),
                  .cancel = cancel};
    assert_non_null(cli.out);
    assert_non_null(cli.err);
    r.code = mf_cli_run(argc, argv, &cli);
    fclose(cli.out);
    fclose(cli.err);
    free(words);
    return r;
}

/* The same for a line that must succeed and print JSON. */
static inline cli_result cli_json(const char *line) {
    cli_result r = cli_run(line, NULL);
    mf_err e;
    if (r.code != 0) {
        fail_msg("%s: exit %d: %s", line, r.code, r.err);
    }
    mf_err_clear(&e);
    if (mf_json_parse("output", r.out, strlen(r.out), &r.json, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return r;
}

static inline void cli_free(cli_result *r) {
    mf_json_destroy(r->json);
    free(r->out);
    free(r->err);
}

static inline const mf_json_value *cli_member(const mf_json_value *object, const char *key) {
    const mf_json_value *v = mf_json_find(object, key);
    if (v == NULL) {
        fail_msg("no member \"%s\"", key);
    }
    return v;
}

static inline double cli_number(const mf_json_value *object, const char *key) {
    double x = 0;
    if (mf_json_f64(cli_member(object, key), -1e300, 1e300, &x, NULL) != MF_OK) {
        fail_msg("\"%s\" is no number", key);
    }
    return x;
}

static inline const char *cli_text(const mf_json_value *object, const char *key) {
    const char *x = NULL;
    if (mf_json_get_string(object, key, &x, NULL) != MF_OK) {
        fail_msg("%s is no text", key);
    }
    return x;
}

static inline bool cli_bool(const mf_json_value *object, const char *key) {
    bool x = false;
    if (mf_json_bool(cli_member(object, key), &x, NULL) != MF_OK) {
        fail_msg("\"%s\" is no boolean", key);
    }
    return x;
}

/* Sum of the numbers of an object. */
static inline double cli_sum(const mf_json_value *object) {
    double sum = 0, x;
    for (size_t i = 0; i < mf_json_size(object); i++) {
        assert_int_equal(mf_json_f64(mf_json_at(object, i), -1e300, 1e300, &x, NULL), MF_OK);
        sum += x;
    }
    return sum;
}
#endif
