/* model_reader.c - lookups in a config.json under overrides and several spellings. */
#include "core/model/model_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mf_status mf_config_open(mf_config *c, const mf_json *doc, const char *const *overrides,
                         size_t count, mf_err *e) {
    *c = (mf_config){.root = mf_json_root(doc), .e = e};
    c->status = mf_json_want(c->root, MF_JSON_OBJECT, e);
    if (c->status != MF_OK) {
        return c->status;
    }
    c->object = c->root;
    const mf_json_value *text = mf_json_find(c->root, "text_config");
    if (text != NULL && mf_json_value_type(text) == MF_JSON_OBJECT) {
        c->object = text;
    }
    if (count == 0) {
        return MF_OK;
    }
    c->overrides = calloc(count, sizeof *c->overrides);
    if (c->overrides == NULL) {
        return c->status = mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < count && c->status == MF_OK; i++) {
        c->override_count++;
        c->status = mf_config_read_override(c, &c->overrides[i], overrides[i], e);
    }
    return c->status;
}

void mf_config_close(mf_config *c) {
    for (size_t i = 0; i < c->override_count; i++) {
        mf_json_destroy(c->overrides[i].doc);
    }
    free(c->overrides);
    *c = (mf_config){0};
}

/* --- lookups -------------------------------------------------------------------------------- */

/* Where a key's value stands: a member of `object`. */
typedef struct place {
    const mf_json_value *object;
    const char *key;
    const mf_config_override *from; /* NULL: the file */
} place;

static void note(const char **list, size_t *count, const char *key) {
    for (size_t i = 0; i < *count; i++) {
        if (strcmp(list[i], key) == 0) {
            return;
        }
    }
    if (*count < MF_CONFIG_MAX_TOUCHED) {
        list[(*count)++] = key;
    }
}

static void touch(mf_config *c, const char *key) {
    note(c->touched, &c->touched_count, key);
}

static bool holds(const mf_json_value *object, const char *key) {
    const mf_json_value *v = mf_json_find(object, key);
    return v != NULL && mf_json_value_type(v) != MF_JSON_NULL;
}

/* False when no spelling is there. An override hides every spelling in the file, also with null. */
static bool find(mf_config *c, const char *const *keys, place *p) {
    for (size_t i = 0; keys[i] != NULL; i++) {
        touch(c, keys[i]);
    }
    for (size_t i = 0; keys[i] != NULL; i++) {
        const mf_config_override *o = mf_config_override_of(c, keys[i]);
        if (o != NULL) {
            for (size_t k = 0; keys[k] != NULL; k++) {
                note(c->hidden, &c->hidden_count, keys[k]);
            }
            *p = (place){mf_json_root(o->doc), keys[i], o};
            return holds(p->object, keys[i]);
        }
    }
    for (size_t i = 0; keys[i] != NULL; i++) {
        if (holds(c->object, keys[i])) {
            *p = (place){c->object, keys[i], NULL};
            return true;
        }
    }
    return false;
}

/* Keeps the first failure; one in an override is the command line's fault, not the file's. */
static void keep(mf_config *c, const place *p, mf_status st) {
    if (st == MF_OK || c->status != MF_OK) {
        return;
    }
    c->status = st;
    if (p->from != NULL && st == MF_INPUT) {
        c->status = MF_USAGE;
        if (c->e != NULL) {
            char text[MF_ERR_TEXT_MAX];
            memcpy(text, c->e->text, sizeof text);
            const char *tail = strstr(text, ": ");
            mf_err_set(c->e, MF_USAGE, "--set %.200s: %s", p->from->text,
                       tail != NULL ? tail + 2 : text);
        }
    }
}

const mf_json_value *mf_config_value(mf_config *c, const char *const *keys) {
    place p;
    return c->status == MF_OK && find(c, keys, &p) ? mf_json_find(p.object, p.key) : NULL;
}

bool mf_config_has(mf_config *c, const char *key) {
    touch(c, key);
    return mf_config_override_of(c, key) != NULL || mf_json_find(c->object, key) != NULL;
}

bool mf_config_is_set(const mf_config *c, const char *key) {
    return mf_config_override_of(c, key) != NULL;
}

static bool among(const char *word, const char *const *list) {
    for (size_t i = 0; list[i] != NULL; i++) {
        if (strcmp(word, list[i]) == 0) {
            return true;
        }
    }
    return false;
}

const mf_json_value *mf_config_object(mf_config *c, const char *key, const char *const *known) {
    const mf_json_value *v = mf_config_value(c, MF_KEYS(key));
    if (v != NULL && mf_json_value_type(v) != MF_JSON_OBJECT) {
        mf_config_fail(c, key, "\"%s\": expected an object", key);
        return NULL;
    }
    for (size_t i = 0; v != NULL && i < mf_json_size(v); i++) {
        const char *name = mf_json_key_at(v, i);
        if (!among(name, known) && mf_json_value_type(mf_json_at(v, i)) != MF_JSON_NULL) {
            mf_config_leave_out(c, "\"%s.%s\", which nobody reads", key, name);
        }
    }
    return v;
}

const char *mf_config_word(mf_config *c, const char *key, const char *const *words) {
    const char *word = mf_config_opt_string(c, MF_KEYS(key), words[0]);
    char list[256] = "";
    if (!among(word, words)) {
        for (size_t i = 0, at = 0; words[i] != NULL && at < sizeof list; i++) {
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i > 0 ? " or " : "",
                                   words[i]);
        }
        mf_config_fail(c, key, "\"%s\": expected %s, got \"%.40s\"", key, list, word);
        return words[0];
    }
    return word;
}

/* Other spellings in the file must agree with the one that was read. */
static void check_spellings(mf_config *c, const char *const *keys, const place *p, int64_t value) {
    for (size_t i = 0; keys[i] != NULL && p->from == NULL; i++) {
        if (strcmp(keys[i], p->key) == 0 || !holds(c->object, keys[i])) {
            continue;
        }
        int64_t other = value;
        if (mf_json_i64(mf_json_find(c->object, keys[i]), -(INT64_C(1) << 53), INT64_C(1) << 53,
                        &other, NULL) != MF_OK ||
            other != value) {
            mf_config_fail(c, keys[i], "\"%s\" disagrees with \"%s\"", keys[i], p->key);
        }
    }
}

static void fail_missing(mf_config *c, const char *const *keys) {
    if (keys[1] == NULL) {
        c->status = mf_json_fail(c->object, c->e, "\"%s\" is missing", keys[0]);
        return;
    }
    char others[256];
    size_t at = 0;
    for (size_t i = 1; keys[i] != NULL && at < sizeof others; i++) {
        at += (size_t)snprintf(others + at, sizeof others - at, "%s\"%s\"", i > 1 ? ", " : "",
                               keys[i]);
    }
    c->status = mf_json_fail(c->object, c->e, "\"%s\" (or %s) is missing", keys[0], others);
}

int64_t mf_config_opt_int(mf_config *c, const char *const *keys, int64_t lo, int64_t hi,
                          int64_t fallback) {
    place p;
    int64_t value = fallback;
    if (c->status == MF_OK && find(c, keys, &p)) {
        keep(c, &p, mf_json_get_i64(p.object, p.key, lo, hi, &value, c->e));
        if (c->status == MF_OK) {
            check_spellings(c, keys, &p, value);
        }
    }
    return value;
}

int64_t mf_config_int(mf_config *c, const char *const *keys, int64_t lo, int64_t hi) {
    place p;
    if (c->status == MF_OK && !find(c, keys, &p)) {
        fail_missing(c, keys);
    }
    return mf_config_opt_int(c, keys, lo, hi, lo);
}

int64_t mf_config_opt_even_int(mf_config *c, const char *const *keys, int64_t lo, int64_t hi,
                               int64_t fallback) {
    place p;
    int64_t value = fallback;
    if (c->status != MF_OK || !find(c, keys, &p)) {
        return fallback;
    }
    const mf_json_value *list = mf_json_find(p.object, p.key);
    if (mf_json_value_type(list) != MF_JSON_ARRAY || mf_json_size(list) == 0) {
        return mf_config_opt_int(c, keys, lo, hi, fallback);
    }
    for (size_t i = 0; i < mf_json_size(list) && c->status == MF_OK; i++) {
        int64_t one = 0;
        keep(c, &p, mf_json_i64(mf_json_at(list, i), lo, hi, &one, c->e));
        value = i == 0 ? one : value;
        if (c->status == MF_OK && one != value) {
            keep(c, &p,
                 mf_json_fail(mf_json_at(list, i), c->e,
                              "\"%s\": layers that differ in it are not supported", p.key));
        }
    }
    return value;
}

int64_t mf_config_even_int(mf_config *c, const char *const *keys, int64_t lo, int64_t hi) {
    place p;
    if (c->status == MF_OK && !find(c, keys, &p)) {
        fail_missing(c, keys);
    }
    return mf_config_opt_even_int(c, keys, lo, hi, lo);
}

double mf_config_opt_f64(mf_config *c, const char *const *keys, double lo, double hi,
                         double fallback) {
    place p;
    double value = fallback;
    if (c->status == MF_OK && find(c, keys, &p)) {
        keep(c, &p, mf_json_get_f64(p.object, p.key, lo, hi, &value, c->e));
    }
    return value;
}

bool mf_config_opt_bool(mf_config *c, const char *const *keys, bool fallback) {
    place p;
    bool value = fallback;
    if (c->status == MF_OK && find(c, keys, &p)) {
        keep(c, &p, mf_json_get_bool(p.object, p.key, &value, c->e));
    }
    return value;
}

const char *mf_config_opt_string(mf_config *c, const char *const *keys, const char *fallback) {
    place p;
    const char *value = fallback;
    if (c->status == MF_OK && find(c, keys, &p)) {
        keep(c, &p, mf_json_get_string(p.object, p.key, &value, c->e));
    }
    return value;
}

void mf_config_fail(mf_config *c, const char *key, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (c->status != MF_OK) {
        return;
    }
    place p = {0};
    const char *const keys[] = {key, NULL};
    bool found = find(c, keys, &p);
    keep(c, &p, mf_json_fail(found ? mf_json_find(p.object, key) : c->object, c->e, "%s", text));
}

mf_status mf_config_check_overrides(mf_config *c, const char *family) {
    for (size_t i = 0; i < c->override_count && c->status == MF_OK; i++) {
        const mf_config_override *o = &c->overrides[i];
        bool known = mf_json_find(c->object, o->key) != NULL;
        for (size_t t = 0; t < c->touched_count && !known; t++) {
            known = strcmp(c->touched[t], o->key) == 0;
        }
        if (known) {
            continue;
        }
        const char *near = mf_nearest_word(o->key, c->touched, c->touched_count);
        c->status =
            mf_err_set(c->e, MF_USAGE, "--set %.200s: \"%s\" says nothing about a %s model%s%s%s",
                       o->text, o->key, family, near != NULL ? "; did you mean \"" : "",
                       near != NULL ? near : "", near != NULL ? "\"?" : "");
    }
    return c->status;
}
