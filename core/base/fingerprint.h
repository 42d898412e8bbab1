/* fingerprint.h - short marks of many fields: two things with the same mark are the same.
 *
 * FNV-1a over the decimal text of each field, so that padding and byte order do not matter.
 */
#ifndef MF_BASE_FINGERPRINT_H
#define MF_BASE_FINGERPRINT_H

#include <stdint.h>

#define MF_FINGERPRINT_SEED UINT64_C(14695981039346656037)

/* h with one more field in it. */
uint64_t mf_fingerprint_text(uint64_t h, const char *text);
uint64_t mf_fingerprint_i64(uint64_t h, int64_t value);
uint64_t mf_fingerprint_f64(uint64_t h, double value);

#endif
