/* Fuzz target: any bytes as a plan file. What is accepted must come out in canonical form, read
 * back, and come out the same. */
#define MF_FUZZ_WORDS                                                                              \
    "{", "}", "[", "]", ",", ":", "\"", "null", "true", "-1", "0", "1", "64", "1e999", "0.5",      \
        "\"layout\"", "\"first\"", "\"from\"", "\"to\"", "\"moe\"", "\"none\"", "\"zb-v\"", "\xff"
#include "tests/fuzz/driver.h"

#include "core/plan/plan.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

/* Canonical text of a plan; NULL when the bytes are none. */
static char *canonical(const char *text, size_t length, size_t *out_length) {
    mf_json *doc = NULL;
    mf_plan plan;
    mf_err e;
    char *out = NULL;
    mf_err_clear(&e);
    if (mf_json_parse("fuzz", text, length, &doc, &e) != MF_OK) {
        return NULL;
    }
    mf_status s = mf_plan_from_json(doc, &plan, &e);
    if (s == MF_OK) {
        require(mf_plan_to_json(&plan, &out, out_length, &e) == MF_OK);
    } else {
        require(e.text[0] != '\0' && strpbrk(e.text, "\n\r\x1b") == NULL);
    }
    mf_plan_clear(&plan);
    mf_json_destroy(doc);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t first_length = 0, second_length = 0;
    char *first = canonical((const char *)data, size, &first_length);
    if (first == NULL) {
        return 0;
    }
    char *second = canonical(first, first_length, &second_length);
    require(second != NULL && second_length == first_length &&
            memcmp(first, second, first_length) == 0);
    free(first);
    free(second);
    return 0;
}
