/* import_report.h - a job that was read, for people and as JSON. */
#ifndef MF_REPORT_IMPORT_REPORT_H
#define MF_REPORT_IMPORT_REPORT_H

#include "core/base/json_write.h"
#include "job/exchange/import_job.h"
#include "report/basis/doubts.h"

#include <stdio.h>

/* The report of its plan, what was not read of it, what its log measured, and the verdict. saved:
 * the file that the plan goes to; NULL: nobody asked for one. */
mf_status mf_import_report_print(FILE *out, mf_imported *x, const char *saved, mf_err *e);
/* {"plan", "set", "not_read", "measured", "warnings", "verdict"} */
mf_status mf_import_report_json(FILE *out, const mf_imported *x, const mf_doubts *d, mf_err *e);

/* What of a job's text was not read as it stands there: model overrides, what was assumed, which of
 * several launches, and settings that moefold does not know. Nothing of a job that was not read. */
void mf_import_report_unread(FILE *out, const mf_imported *x);
/* "not_read": {name: value} of these settings. */
void mf_import_report_unread_json(mf_json_writer *w, const mf_imported *x);

#endif
