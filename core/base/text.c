/* text.c - UTF-8, plain numbers. */
#include "core/base/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the well-formed UTF-8 character at p (at most `left` long), 0 when it is none. */
static size_t utf8_size(const unsigned char *p, size_t left) {
    static const struct {
        unsigned char first_lo, first_hi, second_lo, second_hi;
        size_t size;
    } forms[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
        {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    if (p[0] < 0x80) {
        return 1;
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (p[0] >= forms[i].first_lo && p[0] <= forms[i].first_hi && forms[i].size <= left &&
            p[1] >= forms[i].second_lo && p[1] <= forms[i].second_hi) {
            for (size_t k = 2; k < forms[i].size; k++) {
                if ((p[k] & 0xc0) != 0x80) {
                    return 0;
                }
            }
            return forms[i].size;
        }
    }
    return 0;
}

bool mf_text_is_clean(const char *text, size_t length) {
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0; i < length;) {
        size_t n = utf8_size(p + i, length - i);
        if (n == 0 || (p[i] < 0x20 && p[i] != '\t') || p[i] == 0x7f) {
            return false;
        }
        i += n;
    }
    return true;
}

static const char *skip_digits(const char *p) {
    return p + strspn(p, "0123456789");
}

bool mf_text_f64(const char *text, double *value) {
    const char *p = text + (text[0] == '-');
    const char *digits = p;
    p = skip_digits(p);
    size_t count = (size_t)(p - digits);
    if (*p == '.') {
        const char *fraction = ++p;
        p = skip_digits(p);
        count += (size_t)(p - fraction);
    }
    if (count == 0) {
        return false;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '+' || *p == '-';
        const char *exponent = p;
        p = skip_digits(p);
        if (p == exponent) {
            return false;
        }
    }
    *value = strtod(text, NULL);
    return *p == '\0' && isfinite(*value);
}

bool mf_text_i64(const char *text, int64_t *value) {
    const char *digits = text + (text[0] == '-');
    if (digits[0] == '\0' || *skip_digits(digits) != '\0') {
        return false;
    }
    errno = 0;
    *value = strtoll(text, NULL, 10);
    return errno == 0;
}

void mf_text_format_f64(double value, char *out, size_t size) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        if (strtod(out, NULL) == value) { /* NOLINT: exactness is the point */
            return;
        }
    }
}

void mf_text_copy(char *out, size_t size, const char *text) {
    size_t n = strlen(text);
    n = n < size ? n : size - 1;
    memcpy(out, text, n);
    out[n] = '\0';
}
