/* json_write.h - writes JSON text: the counterpart of core/base/json.h, for plans and for `--json`.
 *
 * One growing buffer, two-space indentation, members in the order of the calls. The same calls give
 * the same bytes: doubles are written with the fewest digits (15 to 17) that read back to the same
 * value, and values that JSON cannot hold (NaN, infinities) as null. Running out of memory is
 * remembered and reported once by mf_json_writer_finish. A writer belongs to one thread.
 */
#ifndef MF_CORE_JSON_WRITE_H
#define MF_CORE_JSON_WRITE_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MF_JSON_WRITER_MAX_DEPTH 64

typedef struct mf_json_writer {
    char *text; /* NUL-terminated after the first write; owned until finish hands it over */
    size_t length, allocated;
    int depth;
    bool array[MF_JSON_WRITER_MAX_DEPTH];   /* an array, else an object */
    bool flat[MF_JSON_WRITER_MAX_DEPTH];    /* this container stands on one line */
    bool started[MF_JSON_WRITER_MAX_DEPTH]; /* it has a member already */
    bool failed;                            /* out of memory */
} mf_json_writer;

void mf_json_writer_init(mf_json_writer *w);
void mf_json_writer_clear(mf_json_writer *w);

/* Containers. key: name of the member inside an object, NULL inside an array and at the top.
 * flat: the container and all inside it stand on one line. */
void mf_json_write_object(mf_json_writer *w, const char *key, bool flat);
void mf_json_write_array(mf_json_writer *w, const char *key, bool flat);
void mf_json_write_end(mf_json_writer *w); /* closes what was opened last */

/* Values. Strings must be UTF-8; NULL is written as null. */
void mf_json_write_i64(mf_json_writer *w, const char *key, int64_t value);
void mf_json_write_f64(mf_json_writer *w, const char *key, double value);
void mf_json_write_bool(mf_json_writer *w, const char *key, bool value);
void mf_json_write_string(mf_json_writer *w, const char *key, const char *value);
void mf_json_write_null(mf_json_writer *w, const char *key);

/* Ends the text with a newline and hands it over: *out (to be freed) holds *length bytes and a NUL.
 * Every container must be closed. Errors: MF_NOMEM. The writer is empty afterwards. */
mf_status mf_json_writer_finish(mf_json_writer *w, char **out, size_t *length, mf_err *e);

#endif
