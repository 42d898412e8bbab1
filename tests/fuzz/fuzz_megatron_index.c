/* Fuzz target: any bytes as an index of Megatron-LM beside .bin files of several sizes. What was
 * accepted must cover its file; what was not must say where it is wrong. */
#include "executor/data/data.h"

#include <string.h>

/* Counts and lengths that overflow, signs, element types. */
#define MF_FUZZ_WORDS                                                                              \
    "\xff\xff\xff\xff\xff\xff\xff\x7f", "\xff\xff\xff\xff\xff\xff\xff\xff",                        \
        "\x55\x55\x55\x55\x55\x55\x55\x15", "\xff\xff\xff\x7f", "\x80", "\1", "\2", "\3", "\4",    \
        "\5", "\6", "\7", "\x08"
#include "tests/fuzz/driver.h"

static void parse(const uint8_t *data, size_t size, int64_t bin_B) {
    mf_data_index index;
    mf_err e;
    mf_err_clear(&e);
    mf_status status = mf_data_index_parse("fuzz", data, size, bin_B, &index, &e);
    if (status != MF_OK) {
        if (status != MF_INPUT || strncmp(e.text, "fuzz: offset", 12) != 0) {
            abort();
        }
        return;
    }
    /* Space for every sequence and document it speaks of, tokens for every byte. */
    if (index.tokens * index.element_B != bin_B || index.tokens < 0 || index.sequences < 0 ||
        12 * index.sequences + 8 * index.documents + 34 != (int64_t)size) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int64_t bin_B[] = {0, 1, 18, 64, INT64_C(1) << 40, INT64_MAX};
    for (size_t i = 0; i < sizeof bin_B / sizeof bin_B[0]; i++) {
        parse(data, size, bin_B[i]);
    }
    return 0;
}
