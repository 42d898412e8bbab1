/* Fuzz target: any bytes as a file of routing counts. What is accepted has whole, finite counts and
 * some of them in every row; a refusal names the file and is one line. */
#define MF_FUZZ_WORDS                                                                              \
    "1,", "0,", "\n", "#", "[[", "],[", "]]", "{", "\"counts\"", "1e15", "1e16", "1e999", "-1",    \
        "0.5", "nan", "inf", ",,", " ", "\t", "\xef\xbb\xbf", "\xff", "\\"
#include "tests/fuzz/driver.h"

#include "simulator/sim.h"
#include "tests/fuzz/file.h"

#include <math.h>

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

static void check(const mf_routing *r) {
    require(r->kind == MF_ROUTING_HISTOGRAM && r->layers >= 1 && r->experts >= 1);
    for (int64_t layer = 0; layer < r->layers; layer++) {
        double sum = 0;
        for (int64_t i = 0; i < r->experts; i++) {
            double count = r->counts[layer * r->experts + i];
            require(isfinite(count) && count >= 0);
            sum += count;
        }
        require(sum > 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_routing r;
    mf_err e;
    mf_err_clear(&e);
    const char *path = fuzz_file("routing.csv", data, size);
    mf_status s = mf_routing_parse(path, &r, &e);
    require(s == MF_OK || s == MF_INPUT);
    if (s == MF_OK) {
        check(&r);
    } else {
        require(strchr(e.text, '\n') == NULL && strstr(e.text, path) != NULL);
    }
    mf_routing_clear(&r);
    return 0;
}
