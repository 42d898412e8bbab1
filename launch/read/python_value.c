/* python_value.c - values of Python as texts. */
#include "launch/read/python_reader.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXT_B = 64 << 20 };

const char *mf_python_keep(mf_python_reader *p, const char *s, size_t length) {
    mf_python_kept *t = p->used_B + length < MOST_TEXT_B ? malloc(sizeof *t + length + 1) : NULL;
    if (t == NULL) {
        return "?";
    }
    memcpy(t->s, s, length);
    t->s[length] = '\0';
    t->next = p->texts;
    p->texts = t;
    p->used_B += length + sizeof *t;
    return t->s;
}

const char *mf_python_trimmed(mf_python_reader *p, const char *s, size_t length) {
    while (length > 0 && isspace((unsigned char)s[0])) {
        s++;
        length--;
    }
    while (length > 0 && isspace((unsigned char)s[length - 1])) {
        length--;
    }
    return mf_python_keep(p, s, length);
}

const char *mf_python_joined(mf_python_reader *p, const char *a, const char *b, const char *c) {
    const size_t la = strlen(a), lb = strlen(b), lc = strlen(c);
    char *all = la + lb + lc < MOST_TEXT_B ? malloc(la + lb + lc + 1) : NULL;
    if (all == NULL) {
        return "?";
    }
    snprintf(all, la + lb + lc + 1, "%s%s%s", a, b, c);
    const char *out = mf_python_keep(p, all, la + lb + lc);
    free(all);
    return out;
}

bool mf_python_is(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

bool mf_python_is_text(const char *v) {
    return v[0] == '"' || v[0] == '\'';
}

bool mf_python_is_whole(const char *v, long *out) {
    char *end = NULL;
    *out = strtol(v, &end, 10);
    return end != v && *end == '\0' && *out > -(1L << 40) && *out < (1L << 40);
}

bool mf_python_is_list(const char *v) {
    return v[0] == '[' && v[1 + mf_python_span(v + 1, "")] == ']';
}

mf_python_truth mf_python_truth_of(const char *v) {
    long n;
    if (mf_python_is(v, "None") || mf_python_is(v, "False") || mf_python_is(v, "\"\"") ||
        mf_python_is(v, "''") || mf_python_is(v, "[]") || mf_python_is(v, "{}") ||
        mf_python_is(v, "()")) {
        return MF_PYTHON_NO;
    }
    if (mf_python_is_whole(v, &n)) {
        return n != 0 ? MF_PYTHON_YES : MF_PYTHON_NO;
    }
    return mf_python_is(v, "True") || mf_python_is_text(v) || mf_python_is_list(v) || v[0] == '@'
               ? MF_PYTHON_YES
               : MF_PYTHON_UNKNOWN;
}

/* Nothing that depends on what is not there. */
bool mf_python_is_plain(const char *v) {
    long n;
    return mf_python_is_text(v) || mf_python_is_whole(v, &n) || mf_python_is(v, "None") ||
           mf_python_is(v, "True") || mf_python_is(v, "False") || v[0] == '@' || v[0] == '(' ||
           mf_python_is_list(v);
}

mf_python_truth mf_python_equal(const char *a, const char *b) {
    if (mf_python_is_text(a) && mf_python_is_text(b)) {
        const size_t n = strlen(a);
        return n == strlen(b) && n >= 2 && strncmp(a + 1, b + 1, n - 2) == 0 ? MF_PYTHON_YES
                                                                             : MF_PYTHON_NO;
    }
    return mf_python_is_plain(a) && mf_python_is_plain(b)
               ? (mf_python_is(a, b) ? MF_PYTHON_YES : MF_PYTHON_NO)
               : MF_PYTHON_UNKNOWN;
}

/* Items of "a, b, c" up to the bracket that closes it; returns how many. */
int mf_python_items(mf_python_reader *p, const char *s, const char **item) {
    int n = 0;
    while (n < MF_PYTHON_MOST_ITEMS) {
        const size_t length = mf_python_span(s, ",");
        const char *one = mf_python_trimmed(p, s, length);
        if (one[0] != '\0') {
            item[n++] = one;
        }
        if (s[length] != ',') {
            break;
        }
        s += length + 1;
    }
    return n;
}

const char *mf_python_truth_text(mf_python_truth t) {
    return t == MF_PYTHON_YES ? "True" : t == MF_PYTHON_NO ? "False" : "?";
}

/* Texts one behind the other, in double quotes. */
const char *mf_python_text_behind(mf_python_reader *p, const char *a, const char *b) {
    const char *own = mf_python_joined(p, "\"", mf_python_keep(p, a + 1, strlen(a) - 2),
                                       mf_python_keep(p, b + 1, strlen(b) - 2));
    return mf_python_joined(p, own, "\"", "");
}

/* "a + b" and "a * b" of numbers, texts and lists, "a // b", "a - b". */
const char *mf_python_reckon(mf_python_reader *p, const char *a, const char *op, const char *b) {
    long x, y;
    const bool numbers = mf_python_is_whole(a, &x) && mf_python_is_whole(b, &y);
    char out[32];
    if (numbers && (op[1] != '/' || y != 0) && labs(x) < 1L << 30 && labs(y) < 1L << 30) {
        const long n = op[1] == '+'   ? x + y
                       : op[1] == '-' ? x - y
                       : op[1] == '*' ? x * y
                                      : x / y; /* sizes: neither is negative */
        snprintf(out, sizeof out, "%ld", n);
        return mf_python_keep(p, out, strlen(out));
    }
    if (op[1] == '+' && mf_python_is_list(a) && mf_python_is_list(b)) {
        const char *own = mf_python_keep(p, a, strlen(a) - 1);
        return mf_python_is(a, "[]")   ? b
               : mf_python_is(b, "[]") ? a
                                       : mf_python_joined(p, own, ", ", b + 1);
    }
    if (op[1] == '+' && mf_python_is_text(a) && mf_python_is_text(b)) {
        return mf_python_text_behind(p, a, b);
    }
    if (op[1] == '*' && (mf_python_is_list(a) || mf_python_is_text(a)) &&
        mf_python_is_whole(b, &y) && y >= 0 && y <= MF_PYTHON_MOST_ITEMS) {
        const char *all = mf_python_is_text(a) ? "\"\"" : "[]";
        for (long i = 0; i < y && strlen(all) < 1 << 16; i++) {
            all = mf_python_reckon(p, all, " + ", a);
        }
        return all;
    }
    return "?";
}

/* Settings may be replaced while their values are at work. */
const char *mf_python_keep_text(mf_python_reader *p, const char *s) {
    return s != NULL ? mf_python_keep(p, s, strlen(s)) : NULL;
}
