/* Fuzz target: any bytes as a software profile. What is accepted is inside the stated ranges. */
#include "tests/fuzz/driver.h"

#include "costmodel/cost.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_json *doc = NULL;
    mf_software s;
    mf_err e;
    mf_err_clear(&e);
    if (mf_json_parse("fuzz", (const char *)data, size, &doc, &e) != MF_OK) {
        return 0;
    }
    mf_status st = mf_software_from_json(doc, &s, &e);
    require(st == MF_OK || (st == MF_INPUT && strncmp(e.text, "fuzz:", 5) == 0));
    if (st == MF_OK) {
        require(s.memory_eff >= 0.01 && s.memory_eff <= 2 && s.band >= 0 && s.host_op_s >= 0);
        for (int i = 0; i < 5; i++) {
            require(s.overlap_exposed[i] >= 0 && s.overlap_exposed[i] <= 1);
        }
    }
    mf_json_destroy(doc);
    return 0;
}
