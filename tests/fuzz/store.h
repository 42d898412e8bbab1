/* store.h - for targets that import into a profile store: one in memory that is emptied, not made
 * anew, for each input, and that asks without a statement to parse whether it is empty. A fourth of
 * the time of a store of its own for each.
 */
#ifndef MF_TESTS_FUZZ_STORE_H
#define MF_TESTS_FUZZ_STORE_H

#include "profiles/store_private.h"

#include <stdlib.h>

/* File-level because LLVMFuzzerTestOneInput takes no context. */
static mf_store *fuzz_store_only;
static sqlite3_stmt *fuzz_store_count;

static inline void fuzz_store_drop(void) {
    sqlite3_finalize(fuzz_store_count);
    mf_store_close(fuzz_store_only);
}

/* Rows of every table that an import fills. */
static inline int64_t fuzz_store_rows(void) {
    if (sqlite3_step(fuzz_store_count) != SQLITE_ROW) {
        abort();
    }
    int64_t rows = sqlite3_column_int64(fuzz_store_count, 0);
    sqlite3_reset(fuzz_store_count);
    return rows;
}

/* The store, empty. */
static inline mf_store *fuzz_store(void) {
    static const char count[] = "SELECT (SELECT count(*) FROM point) + (SELECT count(*) FROM "
                                "choice) + (SELECT count(*) FROM energy)";
    if (fuzz_store_only == NULL) {
        if (mf_store_open(":memory:", &fuzz_store_only, NULL) != MF_OK ||
            sqlite3_prepare_v2(fuzz_store_only->db, count, -1, &fuzz_store_count, NULL) !=
                SQLITE_OK ||
            atexit(fuzz_store_drop) != 0) {
            abort();
        }
    }
    if (fuzz_store_rows() != 0 &&
        sqlite3_exec(fuzz_store_only->db,
                     "DELETE FROM point; DELETE FROM choice; DELETE FROM energy", NULL, NULL,
                     NULL) != SQLITE_OK) {
        abort();
    }
    return fuzz_store_only;
}

#endif
