/* json_scan.h - the strict half of core/base/json: one pass over the text that refuses everything
 * that RFC 8259 (plus the limits of json.h) refuses, and notes where each value stands.
 *
 * Private to core/base/json*.c.
 */
#ifndef MF_CORE_JSON_SCAN_H
#define MF_CORE_JSON_SCAN_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Line and column of a value, and of its key when it is a member of an object. Columns count
 * characters (code points) from 1. */
typedef struct mf_json_mark {
    uint32_t line, column;
    uint32_t key_line, key_column; /* 0 outside objects */
} mf_json_mark;

typedef struct mf_json_scan {
    mf_json_mark *marks; /* [count] values in the order in which they start */
    size_t count;
    char *text; /* the same document in the form that cJSON reads without loss, NUL-terminated:
                 * no white space; numbers of at most 60 characters; the escape of U+0000 written as
                 * the two bytes C0 80, which valid UTF-8 never holds */
    size_t length;
} mf_json_scan;

/* Scans `length` bytes. Errors: MF_INPUT "name:line:col: ..."; MF_NOMEM. On failure *out is empty.
 * On success the caller clears *out. */
mf_status mf_json_scan_text(const char *name, const char *text, size_t length, mf_json_scan *out,
                            mf_err *e);
void mf_json_scan_clear(mf_json_scan *scan);

#endif
