/* json_scan.c - recursive-descent scanner for RFC 8259 with positions (depth is bounded). */
#include "core/base/json_scan.h"

#include "core/base/json.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 60 /* cJSON before 1.7.19 reads numbers through a buffer of 64 bytes */

typedef struct scanner {
    const char *name;
    const unsigned char *at;
    const unsigned char *end;
    uint32_t line, column;
    mf_json_scan *out;
    size_t allocated; /* marks allocated */
    mf_err *e;
} scanner;

/* The error text of a fault that stands at the scanner's position. */
static mf_status fault(const scanner *s, const char *what) {
    return mf_err_set(s->e, MF_INPUT, "%s:%u:%u: %s", s->name, s->line, s->column, what);
}

/* "expected X, found Y" where Y names the byte at hand. */
static mf_status unexpected(const scanner *s, const char *expected) {
    char found[48];
    if (s->at == s->end) {
        snprintf(found, sizeof found, "the end of the text");
    } else if (*s->at > 0x20 && *s->at < 0x7f) {
        snprintf(found, sizeof found, "'%c'", *s->at);
    } else {
        snprintf(found, sizeof found, "byte 0x%02x", *s->at);
    }
    return mf_err_set(s->e, MF_INPUT, "%s:%u:%u: expected %s, found %s", s->name, s->line,
                      s->column, expected, found);
}

static void emit(scanner *s, const void *bytes, size_t count) {
    memcpy(s->out->text + s->out->length, bytes, count);
    s->out->length += count;
}

/* Takes one ASCII byte that is not a line end over to the output. */
static void take(scanner *s) {
    emit(s, s->at, 1);
    s->at++;
    s->column++;
}

static void skip_space(scanner *s) {
    for (; s->at < s->end; s->at++) {
        switch (*s->at) {
        case '\n':
            s->line++;
            s->column = 1;
            break;
        case '\r':
            if (s->at + 1 == s->end || s->at[1] != '\n') {
                s->line++;
                s->column = 1;
            }
            break;
        case ' ':
        case '\t':
            s->column++;
            break;
        default:
            return;
        }
    }
}

static bool digit_at(const scanner *s) {
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

static void take_digits(scanner *s) {
    while (digit_at(s)) {
        take(s);
    }
}

static mf_status scan_number(scanner *s) {
    size_t start = s->out->length;
    if (*s->at == '-') {
        take(s);
    }
    if (!digit_at(s)) {
        return unexpected(s, "a digit");
    }
    if (*s->at == '0') {
        take(s);
        if (digit_at(s)) {
            return fault(s, "a number must not have leading zeros");
        }
    } else {
        take_digits(s);
    }
    if (s->at < s->end && *s->at == '.') {
        take(s);
        if (!digit_at(s)) {
            return unexpected(s, "a digit after the decimal point");
        }
        take_digits(s);
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        take(s);
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) {
            take(s);
        }
        if (!digit_at(s)) {
            return unexpected(s, "a digit in the exponent");
        }
        take_digits(s);
    }
    if (s->out->length - start > NUMBER_MAX) {
        char *text = s->out->text + start;
        s->out->text[s->out->length] = '\0';
        char brief[40];
        double value = strtod(text, NULL);
        if (value - value != 0.0) { /* infinite: the overflow is reported with its position later */
            snprintf(brief, sizeof brief, "1e999");
        } else {
            snprintf(brief, sizeof brief, "%.17g", value);
        }
        s->out->length = start;
        emit(s, brief, strlen(brief));
    }
    return MF_OK;
}

static int hex_value(unsigned char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Four hex digits behind "\u" at `at`; -1 when they are not there. */
static int hex4(const scanner *s, const unsigned char *at) {
    if (s->end - at < 4) {
        return -1;
    }
    int unit = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_value(at[i]);
        if (digit < 0) {
            return -1;
        }
        unit = unit * 16 + digit;
    }
    return unit;
}

static mf_status scan_escape(scanner *s) {
    if (s->end - s->at < 2) {
        return fault(s, "the text ends inside an escape");
    }
    if (s->at[1] != 'u') {
        if (s->at[1] == '\0' || strchr("\"\\/bfnrt", s->at[1]) == NULL) {
            return fault(s, "unknown escape in a string");
        }
        take(s);
        take(s);
        return MF_OK;
    }
    int unit = hex4(s, s->at + 2);
    if (unit < 0) {
        return fault(s, "\\u needs four hexadecimal digits");
    }
    size_t length = 6;
    if (unit >= 0xdc00 && unit <= 0xdfff) {
        return fault(s, "low surrogate without a high one");
    }
    if (unit >= 0xd800 && unit <= 0xdbff) {
        int low =
            s->end - s->at >= 12 && s->at[6] == '\\' && s->at[7] == 'u' ? hex4(s, s->at + 8) : -1;
        if (low < 0xdc00 || low > 0xdfff) {
            return fault(s, "high surrogate without a low one");
        }
        length = 12;
    }
    if (unit == 0) {
        emit(s, "\xc0\x80", 2);
    } else {
        emit(s, s->at, length);
    }
    s->at += length;
    s->column += (uint32_t)length;
    return MF_OK;
}

/* Bytes of the well-formed UTF-8 sequence at s->at (Unicode table 3-7), 0 when it is ill-formed. */
static size_t utf8_length(const scanner *s) {
    const unsigned char *p = s->at;
    unsigned char lo = 0x80, hi = 0xbf;
    size_t length;
    if (p[0] < 0x80) {
        return 1;
    }
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        length = 2;
    } else if ((p[0] & 0xf0) == 0xe0) {
        length = 3;
        lo = p[0] == 0xe0 ? 0xa0 : lo; /* no overlong forms */
        hi = p[0] == 0xed ? 0x9f : hi; /* no surrogates */
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        length = 4;
        lo = p[0] == 0xf0 ? 0x90 : lo;
        hi = p[0] == 0xf4 ? 0x8f : hi; /* not beyond U+10FFFF */
    } else {
        return 0;
    }
    if ((size_t)(s->end - p) < length || p[1] < lo || p[1] > hi) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return length;
}

static mf_status scan_string(scanner *s) {
    uint32_t line = s->line, column = s->column;
    take(s);
    while (s->at < s->end && *s->at != '"') {
        if (*s->at == '\\') {
            mf_status st = scan_escape(s);
            if (st != MF_OK) {
                return st;
            }
            continue;
        }
        if (*s->at < 0x20) {
            return fault(s, *s->at == '\n' || *s->at == '\r'
                                ? "a string must end on its line (write \\n for a line end)"
                                : "a control character in a string must be escaped");
        }
        size_t length = utf8_length(s);
        if (length == 0) {
            return fault(s, "not valid UTF-8");
        }
        emit(s, s->at, length);
        s->at += length;
        s->column++;
    }
    if (s->at == s->end) {
        s->line = line, s->column = column;
        return fault(s, "this string is never closed");
    }
    take(s);
    return MF_OK;
}

static mf_status scan_word(scanner *s) {
    static const char *const words[] = {"null", "true", "false"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(s->end - s->at) >= length && memcmp(s->at, words[i], length) == 0) {
            emit(s, words[i], length);
            s->at += length;
            s->column += (uint32_t)length;
            return MF_OK;
        }
    }
    return unexpected(s, "a value");
}

static mf_status add_mark(scanner *s, const mf_json_mark *key, size_t *index) {
    mf_json_scan *out = s->out;
    if (out->count == MF_JSON_MAX_VALUES) {
        return fault(s, "too many values in one document");
    }
    if (out->count == s->allocated) {
        size_t allocated = s->allocated < 64 ? 64 : s->allocated * 2;
        mf_json_mark *marks = realloc(out->marks, allocated * sizeof *marks);
        if (marks == NULL) {
            return mf_err_set(s->e, MF_NOMEM, "%s: out of memory", s->name);
        }
        out->marks = marks;
        s->allocated = allocated;
    }
    *index = out->count++;
    out->marks[*index] = (mf_json_mark){s->line, s->column, key->key_line, key->key_column};
    return MF_OK;
}

static mf_status scan_value(scanner *s, const mf_json_mark *key, int depth);

/* Members up to the closing bracket; s->at stands on the opening one. */
static mf_status scan_members(scanner *s, bool object, int depth) {
    const unsigned char close = object ? '}' : ']';
    if (depth > MF_JSON_MAX_DEPTH) {
        return mf_err_set(s->e, MF_INPUT, "%s:%u:%u: nested deeper than %d levels", s->name,
                          s->line, s->column, MF_JSON_MAX_DEPTH);
    }
    take(s);
    skip_space(s);
    if (s->at < s->end && *s->at == close) {
        take(s);
        return MF_OK;
    }
    for (;;) {
        mf_json_mark key = {0};
        mf_status st;
        if (object) {
            if (s->at == s->end || *s->at != '"') {
                return unexpected(s, "a key in double quotes");
            }
            key.key_line = s->line;
            key.key_column = s->column;
            if ((st = scan_string(s)) != MF_OK) {
                return st;
            }
            skip_space(s);
            if (s->at == s->end || *s->at != ':') {
                return unexpected(s, "':'");
            }
            take(s);
            skip_space(s);
        }
        if ((st = scan_value(s, &key, depth)) != MF_OK) {
            return st;
        }
        skip_space(s);
        if (s->at < s->end && *s->at == close) {
            take(s);
            return MF_OK;
        }
        if (s->at == s->end || *s->at != ',') {
            return unexpected(s, object ? "',' or '}'" : "',' or ']'");
        }
        take(s);
        skip_space(s);
    }
}

/* One value that starts at s->at; depth = brackets open around it. */
static mf_status scan_value(scanner *s, const mf_json_mark *key, int depth) {
    size_t index;
    mf_status st = add_mark(s, key, &index);
    if (st != MF_OK) {
        return st;
    }
    if (s->at == s->end) {
        return unexpected(s, "a value");
    }
    switch (*s->at) {
    case '{':
        return scan_members(s, true, depth + 1);
    case '[':
        return scan_members(s, false, depth + 1);
    case '"':
        return scan_string(s);
    default:
        return *s->at == '-' || digit_at(s) ? scan_number(s) : scan_word(s);
    }
}

mf_status mf_json_scan_text(const char *name, const char *text, size_t length, mf_json_scan *out,
                            mf_err *e) {
    *out = (mf_json_scan){0};
    if (length > MF_JSON_MAX_BYTES) {
        return mf_err_set(e, MF_INPUT, "%s: larger than %u bytes", name, MF_JSON_MAX_BYTES);
    }
    scanner s = {.name = name, .line = 1, .column = 1, .out = out, .e = e};
    s.at = (const unsigned char *)text;
    s.end = s.at + length;
    mf_status st;
    out->text = malloc(length + 1);
    if (out->text == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", name);
    }
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        st = fault(&s, "starts with a byte order mark; JSON text must not");
        goto out;
    }
    skip_space(&s);
    st = scan_value(&s, &(mf_json_mark){0}, 0);
    if (st != MF_OK) {
        goto out;
    }
    skip_space(&s);
    if (s.at < s.end) {
        st = unexpected(&s, "nothing after the value");
        goto out;
    }
    out->text[out->length] = '\0';
out:
    if (st != MF_OK) {
        mf_json_scan_clear(out);
    }
    return st;
}

void mf_json_scan_clear(mf_json_scan *scan) {
    free(scan->marks);
    free(scan->text);
    *scan = (mf_json_scan){0};
}
