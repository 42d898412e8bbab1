/* status.c - statuses and the error text that callers prefix. */
#include "core/base/status.h"

#include <stdio.h>
#include <string.h>

void mf_err_clear(mf_err *e) {
    if (e == NULL) {
        return;
    }
    e->status = MF_OK;
    e->text[0] = '\0';
}

/* What users wrote may come back in a text; it must not break the line or drive the terminal. What
 * the JSON reader makes of a NUL (c0 80) is no UTF-8. */
static void keep_one_line(char *text) {
    for (; *text != '\0'; text++) {
        if (text[0] == '\xc0' && text[1] == '\x80') {
            text[0] = text[1] = '?';
        }
        if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            *text = '?';
        }
    }
}

mf_status mf_err_vset(mf_err *e, mf_status status, const char *fmt, va_list args) {
    if (e != NULL) {
        e->status = status;
        vsnprintf(e->text, sizeof e->text, fmt, args);
        keep_one_line(e->text);
    }
    return status;
}

mf_status mf_err_set(mf_err *e, mf_status status, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    mf_err_vset(e, status, fmt, args);
    va_end(args);
    return status;
}

mf_status mf_err_prefix(mf_err *e, const char *fmt, ...) {
    if (e == NULL) {
        return MF_INTERNAL;
    }
    char prefix[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    keep_one_line(prefix);
    char old[MF_ERR_TEXT_MAX];
    memcpy(old, e->text, sizeof old);
    int left = (int)(sizeof e->text - strlen(prefix) - 3);
    snprintf(e->text, sizeof e->text, "%s: %.*s", prefix, left, old);
    return e->status;
}

const char *mf_status_text(mf_status s) {
    static const char *const text[] = {
#define X(name, code, text) text,
        MF_STATUS_MAP(X)
#undef X
    };
    return (unsigned)s < sizeof text / sizeof text[0] ? text[s] : "unknown status";
}

int mf_status_exit_code(mf_status s) {
    static const int code[] = {
#define X(name, code, text) code,
        MF_STATUS_MAP(X)
#undef X
    };
    return (unsigned)s < sizeof code / sizeof code[0] ? code[s] : 1;
}
