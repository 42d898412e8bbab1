/* number_text.c - numbers as people write them. */
#include "core/base/number_text.h"

#include "core/base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXACT_MAX 9007199254740992.0 /* 2^53 */

static mf_status int_range(const char *text, double low, double high, mf_err *e) {
    if (high >= (double)(1 << 28)) {
        return mf_err_set(e, MF_USAGE, "expected an integer %s, got \"%s\"",
                          low >= 1 ? "> 0" : ">= 0", text);
    }
    return mf_err_set(e, MF_USAGE, "expected an integer from %.0f to %.0f, got \"%s\"", low, high,
                      text);
}

mf_number mf_number_text(long long n) {
    char plain[24];
    mf_number t;
    size_t used = 0;
    const int length = snprintf(plain, sizeof plain, "%lld", n);
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && plain[i - 1] != '-') {
            t.s[used++] = ',';
        }
        t.s[used++] = plain[i];
    }
    t.s[used] = '\0';
    return t;
}

mf_status mf_parse_i64(const char *text, int64_t low, int64_t high, int64_t *out, mf_err *e) {
    const char *digits = text[0] == '-' ? text + 1 : text;
    size_t length = strspn(digits, "0123456789");
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (length == 0 || digits[length] != '\0') {
        return int_range(text, (double)low, (double)high, e);
    }
    if (errno == ERANGE || value < low || value > high) {
        if (value > high && high >= (1 << 28)) {
            return mf_err_set(e, MF_USAGE, "expected an integer of at most %lld, got \"%s\"",
                              (long long)high, text);
        }
        return int_range(text, (double)low, (double)high, e);
    }
    *out = value;
    return MF_OK;
}

mf_status mf_parse_size(const char *text, int64_t low, int64_t high, int64_t *out, mf_err *e) {
    char digits[24];
    const size_t length = strlen(text);
    const char last = length > 1 ? text[length - 1] : '\0';
    const int64_t factor = last == 'k' || last == 'K'   ? 1024
                           : last == 'M' || last == 'm' ? 1048576
                                                        : 1;
    if (factor == 1 || length >= sizeof digits) {
        const bool digits_only = text[strspn(text, "-0123456789")] == '\0';
        return length == 0 || digits_only
                   ? mf_parse_i64(text, low, high, out, e)
                   : mf_err_set(e, MF_USAGE, "expected an integer such as 4096 or 4k, got \"%s\"",
                                text);
    }
    int64_t value = 0;
    snprintf(digits, sizeof digits, "%.*s", (int)length - 1, text);
    if (mf_parse_i64(digits, 0, high / factor, &value, NULL) != MF_OK || value * factor < low) {
        return mf_err_set(e, MF_USAGE,
                          "expected an integer from %lld to %lld such as 4096 or 4k, got \"%s\"",
                          (long long)low, (long long)high, text);
    }
    *out = value * factor;
    return MF_OK;
}

/* Decimal notation only: no hexadecimal, no "nan", no blanks in front. *end is what follows. */
static bool read_decimal(const char *text, double *out, const char **end) {
    const char *p = text[0] == '-' || text[0] == '+' ? text + 1 : text;
    size_t digits = strspn(p, "0123456789.");
    if (digits == 0 || p[strspn(p, ".")] == '\0') {
        return false;
    }
    if (p[0] == '0' && (p[1] == 'x' || p[1] == 'X')) {
        return false;
    }
    char *stop = NULL;
    *out = strtod(text, &stop);
    *end = stop;
    return stop != text && isfinite(*out);
}

mf_status mf_parse_f64(const char *text, double low, double high, double *out, mf_err *e) {
    double value = 0;
    const char *end = "";
    if (!read_decimal(text, &value, &end) || *end != '\0' || value < low || value > high) {
        if (high >= 1e6 && value <= high) {
            return mf_err_set(e, MF_USAGE, "expected a number >= %g, got \"%s\"", low, text);
        }
        return mf_err_set(e, MF_USAGE, "expected a number from %g to %g, got \"%s\"", low, high,
                          text);
    }
    *out = value;
    return MF_OK;
}

/* A larger share without a percent sign is one whose sign was forgotten: 90 is no 9,000 %. */
#define MOST_SHARE 3.0

mf_status mf_parse_share(const char *text, double low, double high, double *out, mf_err *e) {
    double value = 0;
    const char *end = "";
    bool number = read_decimal(text, &value, &end);
    const bool percent = number && strcmp(end, "%") == 0;
    if (percent) {
        value /= 100;
        end = "";
    }
    if (!number || *end != '\0') {
        return mf_err_set(e, MF_USAGE, "expected a share such as 0.05 or 5%%, got \"%s\"", text);
    }
    const bool forgotten =
        !percent && value > fmin(high, MOST_SHARE) && value / 100 >= low && value / 100 <= high;
    if (!forgotten && value >= low && value <= high) {
        *out = value;
        return MF_OK;
    }
    char range[80] = "such as 0.05 or 5%", hint[80] = "";
    if (!forgotten || high <= 1) { /* a range that tells why */
        snprintf(range, sizeof range, "from %g to %g (or %g%% to %g%%)", low, high, 100 * low,
                 100 * high);
    }
    if (forgotten) {
        snprintf(hint, sizeof hint, ": write %.40s%% or %g", text, value / 100);
    }
    return mf_err_set(e, MF_USAGE, "expected a share %s, got \"%s\"%s", range, text, hint);
}

typedef struct suffix {
    const char *text;
    double factor;
} suffix;

/* A number and one of the suffixes; false when it is none, or not finite. */
static bool read_scaled(const char *text, const suffix *known, size_t count, double *out) {
    const char *end = "";
    if (!read_decimal(text, out, &end)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(end, known[i].text) == 0) {
            *out *= known[i].factor;
            return isfinite(*out);
        }
    }
    return false;
}

mf_status mf_parse_count(const char *text, double low, double high, double *out, mf_err *e) {
    static const suffix known[] = {{"", 1},    {"k", 1e3}, {"K", 1e3},  {"m", 1e6}, {"M", 1e6},
                                   {"b", 1e9}, {"B", 1e9}, {"t", 1e12}, {"T", 1e12}};
    double value = 0;
    if (!read_scaled(text, known, sizeof known / sizeof known[0], &value) || value < low ||
        value > high) {
        return mf_err_set(e, MF_USAGE,
                          "expected a number > 0 such as 300B, 15T or 1.5e12, got \"%s\"", text);
    }
    *out = value;
    return MF_OK;
}

static bool read_time(const char *text, double low, double high, double *out) {
    static const suffix known[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    double value = 0;
    if (!read_scaled(text, known, sizeof known / sizeof known[0], &value) || value < low ||
        value > high) {
        return false;
    }
    *out = value;
    return true;
}

mf_status mf_parse_time(const char *text, double low, double high, double *out, mf_err *e) {
    return read_time(text, low, high, out)
               ? MF_OK
               : mf_err_set(e, MF_USAGE, "expected a time such as 90s, 20m, 12h or 30d, got \"%s\"",
                            text);
}

/* Days since 1970-01-01 of a date of the Gregorian calendar, counted in years that begin in March.
 */
static int64_t days_of(int64_t year, int64_t month, int64_t day) {
    const int64_t y = month > 2 ? year : year - 1, m = (month + 9) % 12;
    return 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719468;
}

/* Ten characters, digits and two dashes in their places: a date or a wrong one. */
static bool looks_like_date(const char *text) {
    return strlen(text) == 10 && strspn(text, "0123456789-") == 10 && text[4] == '-' &&
           text[7] == '-';
}

mf_status mf_parse_date(const char *text, int64_t *days, mf_err *e) {
    static const int64_t lengths[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int year = 0, month = 0, day = 0, used = 0;
    if (!looks_like_date(text)) {
        return mf_err_set(e, MF_USAGE, "expected a date such as 2027-01-31, got \"%s\"", text);
    }
    if (sscanf(text, "%4d-%2d-%2d%n", &year, &month, &day, &used) != 3 || used != 10 ||
        year < 1970 || month < 1 || month > 12 || day < 1 || day > lengths[month - 1] ||
        (month == 2 && day == 29 && (year % 4 != 0 || (year % 100 == 0 && year % 400 != 0)))) {
        return mf_err_set(e, MF_USAGE, "\"%s\" is no date of the calendar", text);
    }
    *days = days_of(year, month, day);
    return MF_OK;
}

mf_status mf_parse_until(const char *text, double now_s, double low, double high, double *out,
                         mf_err *e) {
    int64_t days = 0;
    if (!looks_like_date(text)) {
        return read_time(text, low, high, out)
                   ? MF_OK
                   : mf_err_set(
                         e, MF_USAGE,
                         "expected a time such as 30d or a date such as 2027-01-31, got \"%s\"",
                         text);
    }
    mf_status s = mf_parse_date(text, &days, e);
    if (s != MF_OK) {
        return s;
    }
    *out = (double)days * 86400 - now_s;
    if (*out < low || *out > high) {
        return mf_err_set(e, MF_USAGE, "%s is over", text);
    }
    return MF_OK;
}
