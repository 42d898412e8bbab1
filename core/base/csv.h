/* csv.h - a strict CSV reader (RFC 4180) with positions: comma-separated, "quoted" fields with ""
 * for a quote, LF or CRLF, UTF-8. Lines that are blank or whose first text is a # are skipped.
 * Anything else (control characters, a lone quote, text behind a closing quote, too many fields) is
 * refused with name:line:column.
 */
#ifndef MF_CORE_BASE_CSV_H
#define MF_CORE_BASE_CSV_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Fields of a record, unless mf_csv_allow says otherwise. */
#define MF_CSV_MAX_FIELDS 64

typedef struct mf_csv mf_csv;

/* Over a copy of `text`; `name` is used in error texts (copied). Errors: MF_NOMEM, MF_INPUT. */
mf_status mf_csv_open_text(const char *name, const char *text, size_t length, mf_csv **out,
                           mf_err *e);
/* Over a file. Errors: MF_INPUT when it cannot be read or is too long. */
mf_status mf_csv_open(const char *path, mf_csv **out, mf_err *e);
void mf_csv_close(mf_csv *c);
/* So many fields in the records to come. */
void mf_csv_allow(mf_csv *c, int most);

/* Moves to the next record; *more is false behind the last. Fields stay valid until the next call.
 * Errors: MF_INPUT with position, MF_NOMEM. */
mf_status mf_csv_next(mf_csv *c, bool *more, mf_err *e);
int mf_csv_fields(const mf_csv *c);
/* Text of a field, NUL-terminated; "" beyond the last. */
const char *mf_csv_field(const mf_csv *c, int index);

/* Records MF_INPUT with the position of a field of the current record; returns MF_INPUT. */
mf_status mf_csv_fail(const mf_csv *c, int index, mf_err *e, const char *fmt, ...) MF_PRINTF(4, 5);

#endif
