/* model_reader.h - a config.json as the model families read it: several spellings of one key,
 * values under "text_config", and `--set key=value` texts laid over the file.
 *
 * Private to core/model/model*.c. The first failure sticks: later calls return their fallback and
 * leave the error alone, so that a family reads all its keys and checks c->status once.
 */
#ifndef MF_CORE_MODEL_READER_H
#define MF_CORE_MODEL_READER_H

#include "core/base/json.h"
#include "core/base/json_write.h"
#include "core/base/status.h"
#include "core/model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MF_CONFIG_MAX_TOUCHED 256
#define MF_CONFIG_KEY_MAX 64

/* Spellings of one key, newest or most common first. */
#define MF_KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

typedef struct mf_config_override {
    const char *text; /* "key=value" as given */
    char key[MF_CONFIG_KEY_MAX];
    mf_json *doc; /* {"key": value} */
} mf_config_override;

typedef struct mf_config {
    const mf_json_value *root;
    const mf_json_value *object; /* root, or its text_config */
    mf_config_override *overrides;
    size_t override_count;
    const char *touched[MF_CONFIG_MAX_TOUCHED]; /* keys that were asked for */
    size_t touched_count;
    const char *hidden[MF_CONFIG_MAX_TOUCHED]; /* spellings that an override stands for */
    size_t hidden_count;
    char left_out[MF_MODEL_LEFT_OUT]; /* mf_model.left_out */
    mf_status status;
    mf_err *e;
} mf_config;

/* Reads `count` "key=value" texts over `doc`; a value that is no JSON is taken as a string. Errors:
 * MF_INPUT (doc is no object), MF_USAGE (naming the text), MF_NOMEM. Close in every case. */
mf_status mf_config_open(mf_config *c, const mf_json *doc, const char *const *overrides,
                         size_t count, mf_err *e);
void mf_config_close(mf_config *c);
/* One of them (core/model/model_override.c). "a.b=value" changes one value inside the object under
 * "a" (of the file, or of an override before), "text_config." in front names the object that is
 * read. */
mf_status mf_config_read_override(const mf_config *c, mf_config_override *o, const char *text,
                                  mf_err *e);
/* The override of a key, the last of several; NULL: none. */
const mf_config_override *mf_config_override_of(const mf_config *c, const char *key);

/* The value under the first spelling that is present and not null, or NULL. */
const mf_json_value *mf_config_value(mf_config *c, const char *const *keys);
/* The object under a key; NULL when absent or after a failure, such as a value of another type.
 * Members that are not among `known` (NULL-terminated) are left out by name. */
const mf_json_value *mf_config_object(mf_config *c, const char *key, const char *const *known);
/* A text that is one of `words` (NULL-terminated), the first of them when absent. */
const char *mf_config_word(mf_config *c, const char *key, const char *const *words);
/* Whether the key is written at all, null included. */
bool mf_config_has(mf_config *c, const char *key);
bool mf_config_is_set(const mf_config *c, const char *key); /* by an override */

/* Values in a range; of two spellings with different values neither is believed. */
int64_t mf_config_int(mf_config *c, const char *const *keys, int64_t lo, int64_t hi);
int64_t mf_config_opt_int(mf_config *c, const char *const *keys, int64_t lo, int64_t hi,
                          int64_t fallback);
/* Where a file may give one number or a list with one for each layer: the number that all are.
 * Layers that differ are refused. */
int64_t mf_config_even_int(mf_config *c, const char *const *keys, int64_t lo, int64_t hi);
int64_t mf_config_opt_even_int(mf_config *c, const char *const *keys, int64_t lo, int64_t hi,
                               int64_t fallback);
double mf_config_opt_f64(mf_config *c, const char *const *keys, double lo, double hi,
                         double fallback);
bool mf_config_opt_bool(mf_config *c, const char *const *keys, bool fallback);
const char *mf_config_opt_string(mf_config *c, const char *const *keys, const char *fallback);

/* Records MF_INPUT at the key's value (MF_USAGE when an override gave it), at the object when the
 * key is absent. */
void mf_config_fail(mf_config *c, const char *key, const char *fmt, ...) MF_PRINTF(3, 4);

/* Says that the model leaves out what the text names, once. */
void mf_config_leave_out(mf_config *c, const char *fmt, ...) MF_PRINTF(2, 3);
/* Leaves out parts for other modalities, and every key that nobody has asked for and that may say
 * something about the architecture: neither one of those that never do nor null, false, 0 or empty
 * (core/model/model_unread.c). */
void mf_config_leave_out_unread(mf_config *c);

/* Every override must have been asked for, or at least stand in the file; else MF_USAGE with the
 * nearest known key. Returns c->status. */
mf_status mf_config_check_overrides(mf_config *c, const char *family);

/* mf_model_from_json with overrides (core/model/model_config.c). */
mf_status mf_model_from_config(const mf_json *doc, const char *name, const char *const *overrides,
                               size_t count, mf_model *out, mf_err *e);

/* The rest of reading, after the overrides: model *out of an open config. */
mf_status mf_model_read(mf_config *c, const char *name, mf_model *out);

/* The document with the overrides in it, after mf_model_read (core/model/model_merge.c). */
void mf_config_merge(const mf_config *c, mf_json_writer *w);
/* A value of a document as it stands. */
void mf_config_write_value(mf_json_writer *w, const char *key, const mf_json_value *v);

#endif
