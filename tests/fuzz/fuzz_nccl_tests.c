/* Fuzz target: any bytes through the nccl-tests importer. Points that were taken are sound, and a
 * refusal is one line that leaves the store empty. */
#define MF_FUZZ_WORDS                                                                              \
    "#  Rank  7 Group  0 Pid 1 on a device  0 [0x1b] X\n",                                         \
        "# Collective test starting: ", "all_reduce_perf", "alltoall_perf\n", " size ", " count ", \
        " time ", "#wrong", "N/A", "timestamp", " 100.00  41.94  41.94  0", "nThread 1 nGpus 8",   \
        "[1,0]<stdout>:", "0: ", "\"results\":[", "null", "1e999", "9007199254740993", "\n",       \
        "\xff"
#include "tests/fuzz/driver.h"

#include "tests/fuzz/store.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

static int check(const mf_point *p, void *user) {
    (void)user;
    require(mf_point_check(p, NULL) == MF_OK && p->time_s < 1e10);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_store *s = fuzz_store();
    mf_err e;
    int64_t count = -1, rows = -1, damaged = -1;
    mf_err_clear(&e);
    mf_status st =
        mf_store_import_nccl_tests_text(s, "fuzz", (const char *)data, size, "h200", 0, &count, &e);
    require(st == MF_OK || st == MF_INPUT);
    if (st != MF_OK) {
        require(count == 0 && strncmp(e.text, "fuzz:", 5) == 0 && fuzz_store_rows() == 0);
        return 0;
    }
    require(mf_store_each(s, NULL, NULL, check, NULL, &damaged, &e) == MF_OK && damaged == 0);
    require(mf_store_check(s, &rows, NULL, &e) == MF_OK);
    require(rows > 0 && rows <= count);
    return 0;
}
