/* text.h - text that comes from outside: UTF-8, plain numbers, small questions about words. */
#ifndef MF_CORE_BASE_TEXT_H
#define MF_CORE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MF_TEXT_MAX_BYTES (64u << 20) /* longest file that is read */

/* True for well-formed UTF-8 without control characters (tab is allowed). */
bool mf_text_is_clean(const char *text, size_t length);

/* A decimal number as people write it: digits, an optional fraction and exponent, an optional
 * minus; no blanks, hexadecimal, "inf" or "nan". False when `text` is anything else or overflows.
 */
bool mf_text_f64(const char *text, double *value);
bool mf_text_i64(const char *text, int64_t *value);

/* Shortest decimal text that reads back as exactly `value` (finite). */
void mf_text_format_f64(double value, char *out, size_t size);

/* Copies text into out, truncated to size. What snprintf("%s") does, for places that run for every
 * row.
 */
void mf_text_copy(char *out, size_t size, const char *text);

static inline bool mf_text_ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

#endif
