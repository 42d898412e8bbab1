/* store_private.h - what the files of the store share; not for other folders. */
#ifndef MF_PROFILES_STORE_PRIVATE_H
#define MF_PROFILES_STORE_PRIVATE_H

#include "profiles/store.h"

#include <sqlite3.h>
#include <stdbool.h>

/* Schemas: 1 points; 2 and choices; 3 and energies. */
#define MF_STORE_SCHEMA 3
#define MF_STORE_KEY_MAX 640
/* Takes the path of the store. */
#define MF_STORE_REBUILD_HINT "rebuild it with: moefold profile --rebuild --store %s"

struct mf_store {
    sqlite3 *db;
    char *path;
    sqlite3_stmt *put, *put_choice, *choice, *put_energy, *drop_energy;
};

/* Records what SQLite says about `code`, in its own words, behind "path: what: ". Damage becomes
 * MF_DAMAGED with the rebuild hint, lack of memory MF_NOMEM, the rest MF_IO. */
mf_status mf_store_fail(const mf_store *s, int code, const char *what, mf_err *e);
#define MF_SQL(s, call, what)                                                                      \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_ != SQLITE_OK) {                                                                  \
            st = mf_store_fail((s), code_, (what), e);                                             \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* As mf_store_open, for a program whose schema is `schema` (tests play an older and a newer one).
 */
mf_status mf_store_open_schema(const char *path, int schema, mf_store **out, mf_err *e);

/* A transaction that may lie inside another: all or nothing. */
mf_status mf_store_save(mf_store *s, mf_err *e);
/* Ends it: keeps what was done when st is MF_OK, else undoes it. Returns st, or what went wrong. */
mf_status mf_store_settle(mf_store *s, mf_status st, mf_err *e);

/* 64-bit checksum of a row: every field that a reader uses, each with its length in front. */
uint64_t mf_store_row_sum(const char *gpu, const char *op, const char *key, const mf_point *p);

/* The checksum of the row of a point's energy. */
uint64_t mf_store_energy_sum(const char *gpu, const char *op, const char *key, const mf_point *p);

/* The energy of a canonical point takes the place of the one that was there; none drops it. */
mf_status mf_store_put_energy(mf_store *s, const mf_point *p, const char *key, mf_err *e);

/* The same of any texts. */
uint64_t mf_store_text_sum(const char *const *text, size_t n);

/* Dims of a canonical point without the op in front. */
void mf_store_key(const mf_point *p, char *key, size_t size);
/* Text of a column into a field of `size`; false for another type, a NUL inside or too long. */
bool mf_store_column_text(sqlite3_stmt *q, int column, char *out, size_t size);

/* Brings the keys of sound rows into today's spelling, which has dims that an older program did not
 * know: with their fallbacks. Others are left alone. Inside a transaction. */
mf_status mf_store_respell(mf_store *s, mf_err *e);

/* Whether there is a sound row of this canonical point's gpu, op and dims. */
mf_status mf_store_has(mf_store *s, const mf_point *p, bool *there, mf_err *e);

/* Loads the measured/ CSV files under mf_data_dir(), in the order of their names, then
 * those of measured/choices/. */
mf_status mf_store_load_shipped(mf_store *s, mf_err *e);

/* Calls fn for every row of a CSV file, in its order, without storing or checking more than its
 * grammar. A non-zero return of fn stops. */
mf_status mf_store_csv_each(const char *path, mf_point_fn fn, void *user, mf_err *e);

#endif
