/* Fuzz target: any bytes as an index of Megatron-LM beside a .bin of 64 bytes. What was accepted
 * must cover that file. */
#include "tests/fuzz/driver.h"

#include "executor/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_data_index index;
    mf_err e;
    mf_err_clear(&e);
    mf_status status = mf_data_index_parse("fuzz", data, size, 64, &index, &e);
    if (status == MF_OK ? index.tokens * index.element_B != 64
                        : status != MF_INPUT || strncmp(e.text, "fuzz: offset", 12) != 0) {
        abort();
    }
    return 0;
}
