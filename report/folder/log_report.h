/* log_report.h - what `compare --log` says: a plan's prediction beside what a Megatron job printed.
 */
#ifndef MF_REPORT_LOG_REPORT_H
#define MF_REPORT_LOG_REPORT_H

#include "job/load/job.h"
#include "launch/log/log.h"
#include "report/basis/doubts.h"
#include "report/basis/host_copies_text.h"
#include "report/step/verdict_text.h"

#include <stdio.h>

typedef struct mf_log_report {
    const mf_job *j;
    const mf_log *l;
    double factor;    /* NAN: there is none */
    double nearest_s; /* the step nearest to what was measured that factors give */
    const char *kept; /* file that commands find by themselves (job/kept/corrections.h); NULL */
    bool doubtful;    /* the factor is (launch/log/correct.h) */
    bool withheld;    /* it was not written: the log may be of another job */
    double memory_B;  /* predicted, as the program would print it */
    bool allocated;   /* that is what PyTorch allocated, not all that the GPU holds */
    mf_host_copies copies; /* of the plan */
    mf_doubts doubts;
    mf_verdict_text text;
} mf_log_report;

/* path: the file that was asked for, which holds the correction unless it is withheld; NULL. */
void mf_log_report_print(FILE *out, const mf_log_report *x, const char *path);
/* The members of its JSON object; user is the mf_log_report. */
void mf_log_report_json(mf_json_writer *w, const void *user);
/* The lines of its compared.csv (report/folder/report_folder.h). */
void mf_log_report_csv(FILE *f, const void *user);

#endif
