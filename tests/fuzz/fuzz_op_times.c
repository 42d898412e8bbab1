/* Fuzz target: any bytes as the op_times.json of a run. What was accepted keeps the ranges that
 * `compare` counts on; what was not says where it is wrong. */
#define MF_FUZZ_WORDS                                                                              \
    "{", "}", "[", "]", ",", ":", "\"", "null", "-1", "0", "1e999", "9007199254740993", "\"ops\"", \
        "\"once\"", "\"step_time_s\"", "\"count\"", "\"block\"", "\"global\""
#include "tests/fuzz/driver.h"

#include "executor/train/op_times.h"
#include "tests/fuzz/file.h"

#include <math.h>

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_op_times t;
    mf_err e;
    const char *path = fuzz_file("op_times.json", data, size);
    mf_err_clear(&e);
    mf_status status = mf_op_times_load(path, &t, &e);
    if (status != MF_OK) {
        require(status == MF_INPUT && strncmp(e.text, path, strlen(path)) == 0);
    } else {
        require(t.ranks >= 1 && t.steps >= 0 && t.step_time_s >= 0 && isfinite(t.step_time_s));
        require(t.count >= 0 && t.step_end_count >= 0 && t.step_end_count <= MF_OP_TIMES_STEP_END);
        for (int64_t i = 0; i < t.count; i++) {
            const mf_op_time_row *r = &t.row[i];
            require(r->block >= 0 && r->op >= 0 && r->count >= 1 && r->mean_s >= 0 &&
                    isfinite(r->mean_s) && r->min_s >= 0 && isfinite(r->max_s));
        }
    }
    mf_op_times_clear(&t);
    return 0;
}
