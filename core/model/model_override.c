/* model_override.c - parses `--set key=value` and `--set a.b=value`, whose values take precedence
 * over the file's. */
#include "core/model/model_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes {"key": value}, with value parsed as JSON or, if that fails, taken as a string. */
static mf_status parse_value(const char *said, const char *key, const char *value, mf_json **doc,
                             mf_err *e) {
    size_t size = strlen(key) + 6 * strlen(value) + 16;
    char *text = malloc(size);
    if (text == NULL) {
        return mf_err_set(e, MF_NOMEM, "--set %s: out of memory", said);
    }
    int length = snprintf(text, size, "{\"%s\": %s\n}", key, value);
    mf_status st = mf_json_parse("--set", text, (size_t)length, doc, NULL);
    if (st == MF_OK && mf_json_size(mf_json_root(*doc)) != 1) {
        mf_json_destroy(*doc);
        *doc = NULL;
        st = MF_INPUT;
    }
    if (st == MF_INPUT) {
        size_t at = (size_t)snprintf(text, size, "{\"%s\": \"", key);
        for (const char *c = value; *c != '\0'; c++) {
            if ((unsigned char)*c < 0x20) {
                at += (size_t)snprintf(text + at, size - at, "\\u%04x", (unsigned)*c);
            } else {
                if (*c == '"' || *c == '\\') {
                    text[at++] = '\\';
                }
                text[at++] = *c;
            }
        }
        at += (size_t)snprintf(text + at, size - at, "\"}");
        st = mf_json_parse("--set", text, at, doc, NULL);
    }
    free(text);
    if (st == MF_NOMEM) {
        return mf_err_set(e, MF_NOMEM, "--set %s: out of memory", said);
    }
    return st == MF_OK ? MF_OK : mf_err_set(e, MF_USAGE, "--set %s: not valid UTF-8", said);
}

/* --- inside an object ------------------------------------------------------------------------- */

/* Takes the next part of a path "a.b.c" whose rest is at *at. */
static bool next_part(const char **at, char *part, size_t size) {
    size_t length = strcspn(*at, ".");
    snprintf(part, size, "%.*s", (int)length, *at);
    *at += length + ((*at)[length] == '.');
    return **at != '\0';
}

/* Writes an object with the value at `path` inside it replaced. */
static mf_status write_with(mf_json_writer *w, const char *key, const mf_json_value *object,
                            const char *path, const mf_json_value *value, const char *said,
                            mf_err *e) {
    char part[MF_CONFIG_KEY_MAX];
    bool deeper = next_part(&path, part, sizeof part);
    const mf_json_value *old = object != NULL ? mf_json_find(object, part) : NULL;
    bool is_object = old != NULL && mf_json_value_type(old) == MF_JSON_OBJECT;
    bool other = old != NULL && !is_object && mf_json_value_type(old) != MF_JSON_NULL;
    if (deeper && other) {
        return mf_err_set(e, MF_USAGE, "--set %.200s: \"%s\" holds no keys", said, part);
    }
    if (object != NULL && old == NULL) {
        return mf_err_set(e, MF_USAGE,
                          "--set %.200s: no \"%s\" stands there; to add one, give the whole object "
                          "as JSON",
                          said, part);
    }
    mf_json_write_object(w, key, false);
    for (size_t i = 0; object != NULL && i < mf_json_size(object); i++) {
        const char *name = mf_json_key_at(object, i);
        if (strcmp(name, part) != 0) {
            mf_config_write_value(w, name, mf_json_at(object, i));
        }
    }
    mf_status st = MF_OK;
    if (deeper) {
        st = write_with(w, part, is_object ? old : NULL, path, value, said, e);
    } else {
        mf_config_write_value(w, part, value);
    }
    mf_json_write_end(w);
    return st;
}

/* Makes a copy of the object under o->key, from the file or an earlier override, with one value
 * changed. */
static mf_status read_nested(const mf_config *c, mf_config_override *o, const char *path,
                             const char *value, mf_err *e) {
    const mf_config_override *before = mf_config_override_of(c, o->key);
    const mf_json_value *object =
        before != NULL ? mf_json_at(mf_json_root(before->doc), 0) : mf_json_find(c->object, o->key);
    const char *leaf = strrchr(path, '.');
    mf_json *one = NULL;
    mf_json_writer w;
    char *text = NULL, said[128];
    size_t length = 0;
    if (object != NULL && mf_json_value_type(object) == MF_JSON_NULL) {
        object = NULL;
    }
    if (object != NULL && mf_json_value_type(object) != MF_JSON_OBJECT) {
        return mf_err_set(e, MF_USAGE, "--set %.200s: \"%s\" holds no keys", o->text, o->key);
    }
    mf_status st = parse_value(o->text, leaf != NULL ? leaf + 1 : path, value, &one, e);
    mf_json_writer_init(&w);
    if (st == MF_OK) {
        mf_json_write_object(&w, NULL, true);
        st = write_with(&w, o->key, object, path, mf_json_at(mf_json_root(one), 0), o->text, e);
        mf_json_write_end(&w);
    }
    if (st == MF_OK) {
        st = mf_json_writer_finish(&w, &text, &length, e);
    }
    snprintf(said, sizeof said, "--set %.100s", o->text);
    st = st == MF_OK ? mf_json_parse(said, text, length, &o->doc, e) : st;
    mf_json_writer_clear(&w);
    mf_json_destroy(one);
    free(text);
    return st;
}

/* --- one text --------------------------------------------------------------------------------- */

static bool is_key_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Keys of letters, digits and underscores, separated by single dots. */
static bool is_path(const char *text, size_t length) {
    bool plain = length > 0 && text[0] != '.' && text[length - 1] != '.';
    for (size_t i = 0; i < length && plain; i++) {
        plain = is_key_letter(text[i]) || (text[i] == '.' && text[i + 1] != '.');
    }
    return plain;
}

mf_status mf_config_read_override(const mf_config *c, mf_config_override *o, const char *text,
                                  mf_err *e) {
    static const char part[] = "text_config.";
    char path[4 * MF_CONFIG_KEY_MAX];
    const char *equals = strchr(text, '='), *at = path;
    size_t length = equals == NULL ? 0 : (size_t)(equals - text);
    if (!is_path(text, length)) {
        return mf_err_set(e, MF_USAGE, "--set %s: expected key=value", text);
    }
    if (length >= sizeof path) {
        return mf_err_set(e, MF_USAGE, "--set %s: unknown key", text);
    }
    memcpy(path, text, length);
    path[length] = '\0';
    if (c->object != c->root && strncmp(path, part, sizeof part - 1) == 0) {
        at += sizeof part - 1; /* the object that is read */
    }
    size_t first = strcspn(at, ".");
    if (first >= sizeof o->key) {
        return mf_err_set(e, MF_USAGE, "--set %s: unknown key", text);
    }
    o->text = text;
    snprintf(o->key, sizeof o->key, "%.*s", (int)first, at);
    return at[first] == '.' ? read_nested(c, o, at + first + 1, equals + 1, e)
                            : parse_value(text, o->key, equals + 1, &o->doc, e);
}

const mf_config_override *mf_config_override_of(const mf_config *c, const char *key) {
    for (size_t i = c->override_count; i > 0; i--) { /* the last one wins */
        const mf_config_override *o = &c->overrides[i - 1];
        if (o->doc != NULL && strcmp(o->key, key) == 0) {
            return o;
        }
    }
    return NULL;
}
