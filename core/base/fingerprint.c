/* fingerprint.c - FNV-1a over the text of fields. */
#include "core/base/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>

uint64_t mf_fingerprint_text(uint64_t h, const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        h = (h ^ *p) * UINT64_C(1099511628211);
    }
    return (h ^ 0xffu) * UINT64_C(1099511628211);
}

uint64_t mf_fingerprint_i64(uint64_t h, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return mf_fingerprint_text(h, text);
}

uint64_t mf_fingerprint_f64(uint64_t h, double value) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return mf_fingerprint_text(h, text);
}
