/* Fuzz target: any bytes as checksums of blocks. What was accepted must be written back as it was,
 * and say of every block whether it is right; what was not must say where it is wrong. */
#include "executor/files/block_checksums.h"

#include <stdlib.h>
#include <string.h>

#define MF_FUZZ_WORDS                                                                              \
    "moefold-seal 1\n", "size ", "block ", "seal ", "\n", "0", "9", "ffffffff\n", "00000000\n",    \
        "999999999999999999", "-1", " "
#include "tests/fuzz/driver.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_block_checksums *s = NULL;
    mf_err e;
    mf_err_clear(&e);
    mf_status status = mf_block_checksums_parse("fuzz", (const char *)data, size, &s, &e);
    if (status != MF_OK) {
        if (status != MF_INPUT || s != NULL || strncmp(e.text, "fuzz: offset", 12) != 0) {
            abort();
        }
        return 0;
    }
    if (s->size_B < 0 || s->blocks != (s->size_B + s->block_B - 1) / s->block_B ||
        (size_t)(9 * s->blocks) > size) {
        abort();
    }
    void *zeros = s->size_B < 1 << 16 ? calloc(1, (size_t)s->size_B + 1) : NULL;
    if (zeros != NULL) {
        (void)mf_block_checksums_check(s, "file", 0, zeros, 0, s->size_B, &e);
    }
    free(zeros);
    mf_block_checksums_destroy(s);
    return 0;
}
