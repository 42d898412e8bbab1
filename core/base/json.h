/* json.h - a strict JSON front with positions: our own scanner in front of cJSON.
 *
 * The scanner accepts exactly RFC 8259 (UTF-8, no trailing text, no duplicate keys, no hex, no
 * leading zeros, lone surrogates refused) within the limits below and records line and column of
 * every value; cJSON then builds the tree. Every error text starts with "file:line:col: ".
 * A document is immutable after parsing and may be read from several threads.
 */
#ifndef MF_CORE_JSON_H
#define MF_CORE_JSON_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MF_JSON_MAX_BYTES (64u << 20) /* longest text that is read */
#define MF_JSON_MAX_DEPTH 64          /* deepest nesting of arrays and objects */
#define MF_JSON_MAX_VALUES (4u << 20) /* most values in one document */

typedef struct mf_json mf_json;             /* a document; owns everything reached through it */
typedef struct mf_json_value mf_json_value; /* one value in it, with its position */

typedef enum mf_json_type {
    MF_JSON_NULL,
    MF_JSON_BOOL,
    MF_JSON_NUMBER,
    MF_JSON_STRING,
    MF_JSON_ARRAY,
    MF_JSON_OBJECT,
} mf_json_type;

/* Parses `length` bytes. `name` is used in error texts (copied). The caller destroys *out.
 * Errors: MF_INPUT with position; MF_NOMEM. */
mf_status mf_json_parse(const char *name, const char *text, size_t length, mf_json **out,
                        mf_err *e);
/* Reads and parses a file. Errors: as above, MF_INPUT when the file cannot be read or is larger
 * than MF_JSON_MAX_BYTES (a missing input file is bad usage: exit 2). */
mf_status mf_json_load(const char *path, mf_json **out, mf_err *e);
void mf_json_destroy(mf_json *doc);

const mf_json_value *mf_json_root(const mf_json *doc);
mf_json_type mf_json_value_type(const mf_json_value *v);
int mf_json_line(const mf_json_value *v);
int mf_json_column(const mf_json_value *v);

/* Members of an array or object in text order. index in [0, mf_json_size). */
size_t mf_json_size(const mf_json_value *v);
const mf_json_value *mf_json_at(const mf_json_value *v, size_t index);
const char *mf_json_key_at(const mf_json_value *object, size_t index);
/* Member by exact, case-sensitive key; NULL when absent. */
const mf_json_value *mf_json_find(const mf_json_value *object, const char *key);

/* Values themselves. Errors: MF_INPUT "file:line:col: expected ..., got ...". Integers must be
 * whole and in [lo, hi] (which must lie within +-2^53); strings are owned by the document, and one
 * that holds U+0000 is refused (it would end early as a C string). */
mf_status mf_json_i64(const mf_json_value *v, int64_t lo, int64_t hi, int64_t *out, mf_err *e);
mf_status mf_json_f64(const mf_json_value *v, double lo, double hi, double *out, mf_err *e);
mf_status mf_json_bool(const mf_json_value *v, bool *out, mf_err *e);
mf_status mf_json_string(const mf_json_value *v, const char **out, mf_err *e);

/* Members of an object. `get` requires the key; `opt` leaves *out alone when the key is absent or
 * null. Errors name the key: file:line:col: "key": expected ..., got ... */
mf_status mf_json_get_i64(const mf_json_value *object, const char *key, int64_t lo, int64_t hi,
                          int64_t *out, mf_err *e);
mf_status mf_json_opt_i64(const mf_json_value *object, const char *key, int64_t lo, int64_t hi,
                          int64_t *out, mf_err *e);
mf_status mf_json_get_f64(const mf_json_value *object, const char *key, double lo, double hi,
                          double *out, mf_err *e);
mf_status mf_json_opt_f64(const mf_json_value *object, const char *key, double lo, double hi,
                          double *out, mf_err *e);
mf_status mf_json_get_bool(const mf_json_value *object, const char *key, bool *out, mf_err *e);
mf_status mf_json_opt_bool(const mf_json_value *object, const char *key, bool *out, mf_err *e);
mf_status mf_json_get_string(const mf_json_value *object, const char *key, const char **out,
                             mf_err *e);
mf_status mf_json_opt_string(const mf_json_value *object, const char *key, const char **out,
                             mf_err *e);
/* Checks that v is an object / array. */
mf_status mf_json_want(const mf_json_value *v, mf_json_type type, mf_err *e);

/* Refuses members whose key is not among `known` (count entries), with "did you mean". */
mf_status mf_json_check_keys(const mf_json_value *object, const char *const *known, size_t count,
                             mf_err *e);

/* Records MF_INPUT with v's position in front of the text; returns MF_INPUT. */
mf_status mf_json_fail(const mf_json_value *v, mf_err *e, const char *fmt, ...) MF_PRINTF(3, 4);

/* The entry of `known` that other programs and people call `word` ("tensor_parallel_degree" for
 * "tp"), or NULL. */
const char *mf_word_elsewhere(const char *word, const char *const *known, size_t count);

/* That entry, else the only one that begins with `word`, else the nearest by edit distance, or NULL
 * when none is near: for "did you mean" texts everywhere (keys, options, names). */
const char *mf_nearest_word(const char *word, const char *const *known, size_t count);

#endif
