/* Fuzz target: any bytes through the JSON front and every getter. A document that was accepted
 * must hold together: members are found by their keys, types agree with getters. */
#include "tests/fuzz/driver.h"

#include "core/base/json.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

static void visit(const mf_json_value *v, int depth) {
    mf_err e;
    int64_t i;
    double f;
    bool b;
    const char *s;
    require(depth <= MF_JSON_MAX_DEPTH + 1 && mf_json_line(v) > 0 && mf_json_column(v) > 0);
    mf_json_type type = mf_json_value_type(v);
    mf_status st = mf_json_i64(v, -(INT64_C(1) << 53), INT64_C(1) << 53, &i, &e);
    require(st == MF_INPUT || type == MF_JSON_NUMBER);
    st = mf_json_f64(v, -1e308, 1e308, &f, &e);
    require(st == MF_INPUT || (type == MF_JSON_NUMBER && f - f == 0.0));
    st = mf_json_bool(v, &b, &e);
    require((st == MF_OK) == (type == MF_JSON_BOOL));
    st = mf_json_string(v, &s, &e);
    require(st == MF_INPUT || type == MF_JSON_STRING);
    if (type != MF_JSON_ARRAY && type != MF_JSON_OBJECT) {
        require(mf_json_size(v) == 0);
    }
    for (size_t k = 0; k < mf_json_size(v); k++) {
        const mf_json_value *child = mf_json_at(v, k);
        if (type == MF_JSON_OBJECT) {
            require(mf_json_find(v, mf_json_key_at(v, k)) == child);
        }
        visit(child, depth + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const known[] = {"hidden_size", "a"};
    mf_json *doc = NULL;
    mf_err e;
    mf_err_clear(&e);
    mf_status st = mf_json_parse("fuzz", (const char *)data, size, &doc, &e);
    if (st != MF_OK) {
        require(st == MF_INPUT && doc == NULL && strncmp(e.text, "fuzz:", 5) == 0 &&
                strpbrk(e.text, "\n\r\x1b") == NULL);
        return 0;
    }
    visit(mf_json_root(doc), 1);
    if (mf_json_value_type(mf_json_root(doc)) == MF_JSON_OBJECT) {
        mf_json_check_keys(mf_json_root(doc), known, 2, &e);
    }
    mf_json_destroy(doc);
    return 0;
}
