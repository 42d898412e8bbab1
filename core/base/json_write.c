/* json_write.c - writes JSON text into one growing buffer. */
#include "core/base/json_write.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mf_json_writer_init(mf_json_writer *w) {
    memset(w, 0, sizeof *w);
}

void mf_json_writer_clear(mf_json_writer *w) {
    free(w->text);
    memset(w, 0, sizeof *w);
}

static void put(mf_json_writer *w, const char *text, size_t length) {
    if (w->failed) {
        return;
    }
    if (w->length + length + 1 > w->allocated) {
        size_t allocated = w->allocated ? w->allocated : 1024;
        while (allocated < w->length + length + 1) {
            allocated *= 2;
        }
        char *grown = realloc(w->text, allocated);
        if (!grown) {
            w->failed = true;
            return;
        }
        w->text = grown;
        w->allocated = allocated;
    }
    memcpy(w->text + w->length, text, length);
    w->length += length;
    w->text[w->length] = '\0';
}

static void put_char(mf_json_writer *w, char c) {
    put(w, &c, 1);
}

static void put_quoted(mf_json_writer *w, const char *s) {
    put_char(w, '"');
    for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
        if (*p == '"' || *p == '\\') {
            put_char(w, '\\');
            put_char(w, (char)*p);
        } else if (p[0] == 0xc0 && p[1] == 0x80) { /* what the reader makes of a NUL */
            put(w, "\\u0000", 6);
            p++;
        } else if (*p == '\n') {
            put(w, "\\n", 2);
        } else if (*p == '\t') {
            put(w, "\\t", 2);
        } else if (*p < 0x20) {
            char escape[8];
            int n = snprintf(escape, sizeof escape, "\\u%04x", *p);
            put(w, escape, (size_t)n);
        } else {
            put_char(w, (char)*p);
        }
    }
    put_char(w, '"');
}

static void put_line(mf_json_writer *w) {
    put_char(w, '\n');
    for (int i = 0; i < w->depth; i++) {
        put(w, "  ", 2);
    }
}

/* Separator, indentation and key in front of a value. */
static void begin_value(mf_json_writer *w, const char *key) {
    if (w->depth > 0) {
        bool flat = w->flat[w->depth - 1];
        if (w->started[w->depth - 1]) {
            put(w, flat ? ", " : ",", flat ? 2 : 1);
        }
        w->started[w->depth - 1] = true;
        if (!flat) {
            put_line(w);
        }
    }
    if (key) {
        put_quoted(w, key);
        put(w, ": ", 2);
    }
}

static void open_container(mf_json_writer *w, const char *key, bool flat, char bracket) {
    assert(w->depth < MF_JSON_WRITER_MAX_DEPTH);
    begin_value(w, key);
    put_char(w, bracket);
    w->flat[w->depth] = flat || (w->depth > 0 && w->flat[w->depth - 1]);
    w->started[w->depth] = false;
    w->array[w->depth] = bracket == '[';
    w->depth++;
}

void mf_json_write_object(mf_json_writer *w, const char *key, bool flat) {
    open_container(w, key, flat, '{');
}

void mf_json_write_array(mf_json_writer *w, const char *key, bool flat) {
    open_container(w, key, flat, '[');
}

void mf_json_write_end(mf_json_writer *w) {
    assert(w->depth > 0);
    w->depth--;
    if (w->started[w->depth] && !w->flat[w->depth]) {
        put_line(w);
    }
    put_char(w, w->array[w->depth] ? ']' : '}');
}

void mf_json_write_i64(mf_json_writer *w, const char *key, int64_t value) {
    char text[32];
    int n = snprintf(text, sizeof text, "%" PRId64, value);
    begin_value(w, key);
    put(w, text, (size_t)n);
}

void mf_json_write_f64(mf_json_writer *w, const char *key, double value) {
    char text[40];
    int n = 0;
    if (!isfinite(value)) {
        mf_json_write_null(w, key);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        n = snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) { /* exact: the same bits are wanted back */
            break;
        }
    }
    begin_value(w, key);
    put(w, text, (size_t)n);
}

void mf_json_write_bool(mf_json_writer *w, const char *key, bool value) {
    begin_value(w, key);
    put(w, value ? "true" : "false", value ? 4 : 5);
}

void mf_json_write_null(mf_json_writer *w, const char *key) {
    begin_value(w, key);
    put(w, "null", 4);
}

void mf_json_write_string(mf_json_writer *w, const char *key, const char *value) {
    if (!value) {
        mf_json_write_null(w, key);
        return;
    }
    begin_value(w, key);
    put_quoted(w, value);
}

mf_status mf_json_writer_finish(mf_json_writer *w, char **out, size_t *length, mf_err *e) {
    assert(w->depth == 0);
    put_char(w, '\n');
    if (w->failed) {
        mf_json_writer_clear(w);
        return mf_err_set(e, MF_NOMEM, "out of memory while writing JSON");
    }
    *out = w->text;
    if (length) {
        *length = w->length;
    }
    memset(w, 0, sizeof *w);
    return MF_OK;
}
