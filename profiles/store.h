/* store.h - the profile store: measured times of ops and collectives in one SQLite file.
 *
 * A point is (gpu, op key) -> time with spread, versions, date and source. Every row carries a
 * checksum over its fields; a row or page that does not check is reported and never used, and the
 * store is rebuilt from the shipped text (the CSV files of profiles/measured) with `moefold profile
 * --rebuild` (mf_store_rebuild). The schema is versioned; a store of a newer schema is refused, an
 * older one is brought up to date when it is opened.
 *
 * Where it was measured a point has the energy of one run under the power cap beside its time.
 *
 * Beside points a store remembers choices: the algorithm of a library for a shape, found by
 * measurement. A choice is the kernel's own text (kernels/gemm/gemm_choice.h).
 *
 * An op key is canonical text, `op k1=v1 k2=v2 ...` with every key in the order of the op's row in
 * profiles/ops_table.h, e.g. "gemm dtype=bf16 m=4096 n=7168 k=2048 layout=nt acc=0". The same
 * spelling, in any order and without the dims that have a fallback, is what `moefold price` takes.
 */
#ifndef MF_PROFILES_STORE_H
#define MF_PROFILES_STORE_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MF_POINT_MAX_DIMS 12
#define MF_CHOICE_MAX 384

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
    /* Under the power cap, run after run without a rest: the energy of one, its time then. 0: not
     * measured; time_s is that of a GPU that rested before. */
    double energy_J, sustained_s;
    int64_t samples;
    char versions[160]; /* "cuda=13.0 cublas=13.1 nccl=2.28.9" */
    char date[16];      /* ISO: 2026-11-21, 2026-11, 2026 or "" */
    char source[160];
    int64_t holdout; /* 1: kept out of every fit and interpolation (accuracy is judged on it) */
} mf_point;

/* Opens (creating) a store file, or ":memory:". The file's structure is checked here, rows when
 * they are read. A store of an older schema keeps its rows and gets what is new. Errors: MF_DAMAGED
 * naming what is wrong and the command that rebuilds; MF_INPUT for a store of a newer schema or a
 * database that is something else; MF_IO. The handle is for one thread.
 */
mf_status mf_store_open(const char *path, mf_store **out, mf_err *e);
void mf_store_close(mf_store *s);

/* The default: in memory, filled from the shipped CSV files of profiles/measured. */
mf_status mf_store_open_shipped(mf_store **out, mf_err *e);

/* Inserts or replaces the point with the same (gpu, op, dims); dims may stand in any order.
 * begin/commit make bulk loads fast (close without commit drops them). Errors: MF_INPUT for a point
 * that is not sound (mf_point_check); MF_IO, MF_DAMAGED. */
mf_status mf_store_put(mf_store *s, const mf_point *p, mf_err *e);
mf_status mf_store_begin(mf_store *s, mf_err *e);
mf_status mf_store_commit(mf_store *s, mf_err *e);

/* Calls fn for every sound row of (gpu, op); op NULL = all, gpu NULL = all. Order: gpu, op, key.
 * Rows whose checksum fails are skipped and counted in *damaged (may be NULL); a damaged gpu or op
 * may hide a row from a filter, mf_store_check sees it. A non-zero return of fn stops. fn must not
 * change the store. */
typedef int (*mf_point_fn)(const mf_point *p, void *user);
mf_status mf_store_each(mf_store *s, const char *gpu, const char *op, mf_point_fn fn, void *user,
                        int64_t *damaged, mf_err *e);

/* Calls fn for every shipped point, straight from the text, in no order to rely on. Quick: nothing
 * is stored. Errors: MF_IO, MF_INPUT. */
mf_status mf_store_each_shipped(mf_point_fn fn, void *user, mf_err *e);

/* The choice for the gpu, op and dims of a point, one line of printable text; put replaces, with
 * p's date. MF_INPUT for another text or a point that is not canonical. Reading gives "" when there
 * is none, or when its checksum fails. */
mf_status mf_store_put_choice(mf_store *s, const mf_point *p, const char *choice, mf_err *e);
mf_status mf_store_choice(mf_store *s, const mf_point *p, char choice[MF_CHOICE_MAX], mf_err *e);

/* As mf_store_each, of choices: p has gpu, op, dims and date. */
typedef int (*mf_choice_fn)(const mf_point *p, const char *choice, void *user);
mf_status mf_store_each_choice(mf_store *s, const char *gpu, mf_choice_fn fn, void *user,
                               int64_t *damaged, mf_err *e);

/* Checks every page and row; MF_DAMAGED with the counts and the rebuild command. *rows: points. */
mf_status mf_store_check(mf_store *s, int64_t *rows, int64_t *damaged, mf_err *e);

/* Drops everything and loads the shipped text again. The new file takes the place of the old one at
 * the end; what was there before is kept as PATH.old. */
mf_status mf_store_rebuild(const char *path, mf_err *e);

/* CSV in and out: header gpu,op,dims,time_s,low_s,high_s,samples,versions,date,source,holdout,
 * choice,energy_J,sustained_s; "dims" is "k1=v1 k2=v2". Columns may stand in any order; low_s and
 * high_s (empty: == time_s), samples, versions, date, source, holdout, choice, energy_J and
 * sustained_s (empty or 0: not measured) may be left out. A time with a
 * source and without a spread counts as published, and prices leave it where the GPU itself was
 * measured; one without either is its user's own. A row with a choice and no time is a choice
 * alone. Lines that begin with # are comments. All or nothing: a file with an error leaves the
 * store as it was. Errors name file:line:column. *count = rows read. Export replaces the file
 * whole, sorted as mf_store_each; damaged rows are left out and reported as MF_DAMAGED after the
 * file is written. */
mf_status mf_store_import_csv(mf_store *s, const char *path, int64_t *count, mf_err *e);
mf_status mf_store_export_csv(mf_store *s, const char *path, mf_err *e);

/* The same from memory; `name` is used in error texts. */
mf_status mf_store_import_csv_text(mf_store *s, const char *name, const char *text, size_t length,
                                   int64_t *count, mf_err *e);

/* nccl-tests output, text or JSON (-J), of one collective: out-of-place and in-place columns become
 * points "all_reduce bytes=.. ranks=.. nodes=.. inplace=0|1 algo=auto". nodes = hosts the run
 * spanned (0: as many as the output names). Only rows of the first data type and reduction are
 * read. The collective is taken from the output, else from the file's name. All or nothing. Errors:
 * MF_INPUT with file:line; wrong results (#wrong > 0), CPU times (-C) and rows whose size, time and
 * bandwidths contradict each other are refused. *count = points. */
mf_status mf_store_import_nccl_tests(mf_store *s, const char *path, const char *gpu, int64_t nodes,
                                     int64_t *count, mf_err *e);
mf_status mf_store_import_nccl_tests_text(mf_store *s, const char *name, const char *text,
                                          size_t length, const char *gpu, int64_t nodes,
                                          int64_t *count, mf_err *e);

/* Key text of a point's op and dims ("gemm dtype=bf16 m=..."), truncated to size; and back: parse
 * fills op and dims, canonical, and zeroes the rest. Errors: MF_INPUT naming op, key or value, with
 * "did you mean". */
mf_status mf_point_parse(const char *text, mf_point *out, mf_err *e);
void mf_point_format(const mf_point *p, char *out, size_t size);
const mf_point_dim *mf_point_find(const mf_point *p, const char *key); /* NULL when absent */
double mf_point_value(const mf_point *p, const char *key);     /* NaN when absent or no number */
const char *mf_point_word(const mf_point *p, const char *key); /* "" when absent */
bool mf_point_is(const mf_point *p, const char *key, const char *word);
int64_t mf_point_int(const mf_point *p, const char *key, int64_t absent); /* no number: absent */

/* Building a point: an empty one, then dims in any order (replacing one of the same key). No more
 * than MF_POINT_MAX_DIMS dims; long texts are truncated, which canonical form then refuses. */
void mf_point_init(mf_point *p, const char *gpu, const char *op);
void mf_point_set(mf_point *p, const char *key, const char *text);
void mf_point_set_i64(mf_point *p, const char *key, int64_t value);
/* Brings dims into the order of the op's row, fills in fallbacks. Errors: as mf_point_parse. */
mf_status mf_point_canonical(mf_point *p, mf_err *e);
/* A point that may be stored: canonical dims, a gpu name, finite times > 0 with low <= time <=
 * high, printable UTF-8 texts, an ISO date. Errors: MF_INPUT. */
mf_status mf_point_check(const mf_point *p, mf_err *e);

#endif
