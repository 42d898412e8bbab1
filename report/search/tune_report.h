/* tune_report.h - what `tune` found, for people and as JSON. */
#ifndef MF_REPORT_TUNE_REPORT_H
#define MF_REPORT_TUNE_REPORT_H

#include "core/base/json_write.h"
#include "job/exchange/import_job.h"
#include "job/search/tune.h"
#include "planner/explain/plausible.h"
#include "report/step/verdict_text.h"

#include <stdio.h>

typedef struct mf_tune_report {
    const mf_tuning *found;
    const mf_imported *job;  /* with its log; of a plan: nothing was read, and no log */
    const mf_doubts *doubts; /* of the best plan and of the present layout */
    mf_verdict_text verdict;
} mf_tune_report;

/* Sets the verdict. saved: the file that the best plan goes to; NULL: nobody asked for one. */
void mf_tune_report_decide(mf_tune_report *r, const char *saved);

void mf_tune_report_print(FILE *out, const mf_tune_report *r);
/* Members of the object that is open in w. */
void mf_tune_report_json(mf_json_writer *w, const mf_tune_report *r);

#endif
