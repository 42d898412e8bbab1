/* settings.c - an ordered list of names and texts. */
#include "launch/words/settings.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mf_settings_clear(mf_settings *s) {
    for (int i = 0; i < s->count; i++) {
        free(s->item[i].name);
        free(s->item[i].value);
    }
    free(s->item);
    *s = (mf_settings){0};
}

static mf_setting *find(mf_settings *s, const char *name) {
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->item[i].name, name) == 0) {
            return &s->item[i];
        }
    }
    return NULL;
}

/* Space for one more; false, and `failed`, where there is no memory. */
static bool grow(mf_settings *s) {
    if (s->count < s->allocated) {
        return true;
    }
    int allocated = s->allocated > 0 ? 2 * s->allocated : 64;
    mf_setting *item = realloc(s->item, (size_t)allocated * sizeof *item);
    if (item == NULL) {
        s->failed = true;
        return false;
    }
    s->item = item;
    s->allocated = allocated;
    return true;
}

/* Takes the value over; NULL: there was no memory for it. */
static void put(mf_settings *s, const char *name, char *value) {
    mf_setting *there = find(s, name);
    if (value == NULL) {
        s->failed = true;
        return;
    }
    if (there != NULL) {
        free(there->value);
        there->value = value;
        return;
    }
    char *copy = strdup(name);
    if (copy == NULL || !grow(s)) {
        s->failed = true;
        free(copy);
        free(value);
        return;
    }
    s->item[s->count++] = (mf_setting){.name = copy, .value = value};
}

void mf_settings_put(mf_settings *s, const char *name, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *value = length >= 0 ? malloc((size_t)length + 1) : NULL;
    if (value != NULL) {
        va_start(args, fmt);
        vsnprintf(value, (size_t)length + 1, fmt, args);
        va_end(args);
    }
    put(s, name, value);
}

void mf_settings_put_text(mf_settings *s, const char *name, const char *text) {
    put(s, name, strdup(text));
}

void mf_settings_drop(mf_settings *s, const char *name) {
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->item[i].name, name) == 0) {
            free(s->item[i].name);
            free(s->item[i].value);
            memmove(&s->item[i], &s->item[i + 1], (size_t)(--s->count - i) * sizeof s->item[0]);
            return;
        }
    }
}

void mf_settings_put_f64(mf_settings *s, const char *name, double value) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    mf_settings_put_text(s, name, text);
}

void mf_settings_on(mf_settings *s, const char *name) {
    mf_settings_put_text(s, name, "true");
}

const char *mf_settings_text(mf_settings *s, const char *name, const char *absent) {
    mf_setting *there = find(s, name);
    if (there == NULL) {
        return absent;
    }
    there->read = true;
    return there->value;
}

bool mf_settings_has(mf_settings *s, const char *name) {
    const char *text = mf_settings_text(s, name, NULL);
    return text != NULL && strcmp(text, "None") != 0;
}

bool mf_settings_is_on(mf_settings *s, const char *name) {
    const char *text = mf_settings_text(s, name, "false");
    return strcmp(text, "true") == 0 || strcmp(text, "True") == 0 || strcmp(text, "1") == 0 ||
           text[0] == '\0';
}

bool mf_settings_lists(mf_settings *s, const char *name, const char *word) {
    const char *text = mf_settings_text(s, name, "");
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        if ((at == text || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

mf_status mf_settings_f64(mf_settings *s, const char *name, double low, double high, double *out,
                          mf_err *e) {
    if (!mf_settings_has(s, name)) {
        return MF_OK;
    }
    const char *text = mf_settings_text(s, name, "");
    char *end = NULL;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(value >= low && value <= high)) {
        return mf_err_set(e, MF_INPUT,
                          "--%s: expected a number between %.10g and %.10g, got \"%s\"", name, low,
                          high, text);
    }
    *out = value;
    return MF_OK;
}

mf_status mf_settings_i64(mf_settings *s, const char *name, int64_t low, int64_t high, int64_t *out,
                          mf_err *e) {
    double value = (double)*out;
    mf_status status = mf_settings_f64(s, name, (double)low, (double)high, &value, e);
    if (status == MF_OK && value != (double)(int64_t)value) {
        return mf_err_set(e, MF_INPUT, "--%s: expected a whole number, got \"%s\"", name,
                          mf_settings_text(s, name, ""));
    }
    *out = status == MF_OK ? (int64_t)value : *out;
    return status;
}
