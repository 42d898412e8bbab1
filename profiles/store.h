/* store.h - the profile store: measured times of ops and collectives in one SQLite file.
 *
 * A point is (gpu, op key) -> time with spread, versions, date and source. Every row carries a
 * checksum over its fields; a row or page that does not check is reported and never used, and the
 * store is rebuilt from the shipped text (the CSV files of profiles/measured) with `moefold profile
 * --rebuild` (mf_store_rebuild). The schema is versioned; a store of a newer schema is refused, an
 * older one is rebuilt.
 *
 * An op key is canonical text, `op k1=v1 k2=v2 ...` with the keys in the order of the op's table
 * row, e.g. "gemm dtype=bf16 m=4096 n=7168 k=2048 layout=nt". The same spelling is what
 * `moefold price` takes.
 */
#ifndef MF_PROFILES_STORE_H
#define MF_PROFILES_STORE_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

#define MF_POINT_MAX_DIMS 12

typedef struct mf_store mf_store;

typedef struct mf_point_dim {
    char key[16];
    char text[24]; /* as written: "bf16", "4096" */
    double value;  /* number when it is one, else NaN */
} mf_point_dim;

typedef struct mf_point {
    int64_t id;   /* row; 0 = not stored yet */
    char gpu[32]; /* "h200" */
    char op[32];  /* "gemm", "grouped_gemm", "attention", "all_reduce", "copy_d2h", ... */
    int dims;
    mf_point_dim dim[MF_POINT_MAX_DIMS];
    double time_s;        /* median */
    double low_s, high_s; /* spread: 10th and 90th percentile; == time_s when not known */
    int64_t samples;
    char versions[160]; /* "cuda=13.0 cublas=13.1 nccl=2.28.9" */
    char date[16];      /* ISO date */
    char source[160];
    int64_t holdout; /* 1: kept out of every fit and interpolation (accuracy is judged on it) */
} mf_point;

/* Opens (creating) a store file, or ":memory:". Damaged files: MF_DAMAGED naming what is wrong and
 * the command that rebuilds. The handle is for one thread. */
mf_status mf_store_open(const char *path, mf_store **out, mf_err *e);
void mf_store_close(mf_store *s);

/* The default: in memory, filled from the shipped CSV files of profiles/measured. */
mf_status mf_store_open_shipped(mf_store **out, mf_err *e);

/* Inserts or replaces the point with the same (gpu, op, dims); begin/commit make bulk loads fast.
 */
mf_status mf_store_put(mf_store *s, const mf_point *p, mf_err *e);
mf_status mf_store_begin(mf_store *s, mf_err *e);
mf_status mf_store_commit(mf_store *s, mf_err *e);

/* Calls fn for every sound row of (gpu, op); op NULL = all, gpu NULL = all. Order: gpu, op, key.
 * Rows whose checksum fails are skipped and counted in *damaged (may be NULL). A non-zero return of
 * fn stops. */
typedef int (*mf_point_fn)(const mf_point *p, void *user);
mf_status mf_store_each(mf_store *s, const char *gpu, const char *op, mf_point_fn fn, void *user,
                        int64_t *damaged, mf_err *e);

/* Checks every page and row; MF_DAMAGED with the counts and the rebuild command. */
mf_status mf_store_check(mf_store *s, int64_t *rows, int64_t *damaged, mf_err *e);

/* Drops everything and loads the shipped text again. */
mf_status mf_store_rebuild(const char *path, mf_err *e);

/* CSV in and out: header gpu,op,dims,time_s,low_s,high_s,samples,versions,date,source,holdout.
 * Errors name file:line:column. *count = rows read. */
mf_status mf_store_import_csv(mf_store *s, const char *path, int64_t *count, mf_err *e);
mf_status mf_store_export_csv(mf_store *s, const char *path, mf_err *e);

/* nccl-tests output, text or JSON (-J), of one collective: out-of-place and in-place columns become
 * points "all_reduce bytes=.. ranks=.. domain=.. inplace=0|1". nodes = hosts the run spanned. */
mf_status mf_store_import_nccl_tests(mf_store *s, const char *path, const char *gpu, int64_t nodes,
                                     int64_t *count, mf_err *e);

/* Key text of a point's op and dims ("gemm dtype=bf16 m=..."); and back. */
mf_status mf_point_parse(const char *text, mf_point *out, mf_err *e);
void mf_point_format(const mf_point *p, char *out, size_t size);
const mf_point_dim *mf_point_find(const mf_point *p, const char *key); /* NULL when absent */

#endif
