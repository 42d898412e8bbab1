/* number_text.h - numbers as people read them, and as they write them on command lines and in
 * lists: each of these within [low, high]. Errors: MF_USAGE "expected ..., got ...". */
#ifndef MF_BASE_NUMBER_TEXT_H
#define MF_BASE_NUMBER_TEXT_H

#include "core/base/status.h"

#include <stdint.h>

/* A whole number as texts and pages show it: "1,024". printf("%s", mf_number_text(n).s) */
typedef struct mf_number {
    char s[32];
} mf_number;
mf_number mf_number_text(long long n);

mf_status mf_parse_i64(const char *text, int64_t low, int64_t high, int64_t *out, mf_err *e);
/* "4096", "4k", "1M": k is 1,024, M its square. */
mf_status mf_parse_size(const char *text, int64_t low, int64_t high, int64_t *out, mf_err *e);
mf_status mf_parse_f64(const char *text, double low, double high, double *out, mf_err *e);
/* "0.05" or "5%". */
mf_status mf_parse_share(const char *text, double low, double high, double *out, mf_err *e);
/* "15T" */
mf_status mf_parse_count(const char *text, double low, double high, double *out, mf_err *e);
/* "30d", in seconds. */
mf_status mf_parse_time(const char *text, double low, double high, double *out, mf_err *e);
/* "2027-01-31", in days since 1970-01-01. */
mf_status mf_parse_date(const char *text, int64_t *days, mf_err *e);
/* A time, or a date: seconds from now_s (since 1970) until it begins in UTC. */
mf_status mf_parse_until(const char *text, double now_s, double low, double high, double *out,
                         mf_err *e);

#endif
