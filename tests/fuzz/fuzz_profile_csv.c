/* Fuzz target: any bytes through the CSV importer. What was taken is sound, is written out and read
 * back the same; a refusal is one line that leaves the store empty. */
#define MF_FUZZ_WORDS                                                                              \
    "gpu,op,dims,time_s\n", ",", "\"", "\"\"", "\n", "\r\n", "#", "h200,", "copy,", "bytes=", "=", \
        " ", "1e-6", "1e999", "-", "16MiB", "9007199254740993", "\xef\xbb\xbf", "\xff"
#include "tests/fuzz/driver.h"

#include "tests/fuzz/store.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

static int again(const mf_point *p, void *user) {
    char key[640];
    mf_point parsed;
    (void)user;
    require(mf_point_check(p, NULL) == MF_OK);
    mf_point_format(p, key, sizeof key);
    require(mf_point_parse(key, &parsed, NULL) == MF_OK && parsed.dims == p->dims);
    require(memcmp(parsed.dim, p->dim, sizeof p->dim[0] * (size_t)p->dims) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_store *s = fuzz_store();
    mf_err e;
    int64_t count = -1, rows = -1, damaged = -1;
    mf_err_clear(&e);
    mf_status st = mf_store_import_csv_text(s, "fuzz", (const char *)data, size, &count, &e);
    if (st != MF_OK) {
        require(st == MF_INPUT && count == 0 && strncmp(e.text, "fuzz:", 5) == 0);
        require(fuzz_store_rows() == 0);
        return 0;
    }
    require(mf_store_each(s, NULL, NULL, again, NULL, &damaged, &e) == MF_OK && damaged == 0);
    require(mf_store_check(s, &rows, NULL, &e) == MF_OK);
    require(rows <= count);
    return 0;
}
