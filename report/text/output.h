/* output.h - the end of every --json, and the words that stand beside every FLOP rate. */
#ifndef MF_REPORT_OUTPUT_H
#define MF_REPORT_OUTPUT_H

#include "core/base/json_write.h"
#include "core/base/status.h"

#include <stdio.h>

/* How model FLOPs are counted, for every place that prints a rate. */
extern const char mf_flops_convention[];

/* Ends the JSON text and prints it; w is empty afterwards. Whether `out` took it is checked once,
 * at the end of the program. Errors: MF_NOMEM. */
mf_status mf_output_json(mf_json_writer *w, FILE *out, mf_err *e);

/* Prints one object, whose members `members` writes from `user`. Errors: MF_NOMEM. */
typedef void (*mf_json_members_fn)(mf_json_writer *w, const void *user);
mf_status mf_output_object(FILE *out, mf_json_members_fn members, const void *user, mf_err *e);

#endif
