/* report_folder.h - what --report DIR writes: a result as files.
 *
 *   report.html     one page, drawn from report.json (report/page/page.h)
 *   report.json     title, command, command_line, generator, "files" (plans, traces and tables
 *                   beside it, each with its bytes and a mark), and
 *                   of a step: "verdict", "step" (as `simulate --json` prints it), "explanation",
 *                   "remedies", "prices_rest_on", "schedule"; of a search "search" and
 *                   "candidates"; of sizes: "capacity" (as `capacity --json`) and "plans": of
 *                   each cell that verdicts name "title", "model", "cell", "plan_file",
 *                   "trace_file", "search" and the members of a step
 *   inputs.json     the command line, what was read for model, cluster, software and prices, and
 *                   "files": each file that the command line names, with its bytes and a mark
 *   plan.json, trace.json   of the plan that is reported; of sizes: that of the first verdict
 *                   (the cheapest), and plan-h100-512.json, trace-h100-512.json of each other one
 *   candidates.csv  the plans, what `tune` tried, or the sizes, one a line
 * (report/search/candidates.h) compared.csv    of `compare`: each figure that was measured, beside
 * the predicted one
 *
 * Files of the same name are replaced, and those of the report before it that this one does not
 * have are removed, as "files" of the report.json there names them, unless they were changed since:
 * beside the new report they would seem to be of its job. Errors: MF_IO "--report: ...", MF_NOMEM.
 * Without a folder these functions do nothing.
 */
#ifndef MF_REPORT_REPORT_FOLDER_H
#define MF_REPORT_REPORT_FOLDER_H

#include "job/load/job.h"
#include "report/basis/doubts.h"
#include "report/capacity/capacity_table.h"
#include "report/step/report.h"

/* Where a report goes, and which command line it is of. */
typedef struct mf_report_folder {
    const char *dir;     /* NULL: nobody asked for a report */
    const char *command; /* its name; "" */
    int argc;            /* the whole command line */
    const char *const *argv;
    /* Files that the command line names, and the folder of a run; NULL. */
    const char *plan, *log, *run, *store;
    const char *const *word; /* [words]: those of them that are files */
    int words;
    const volatile int *cancel; /* as in mf_sim_options */
} mf_report_folder;

/* The plan.json of a folder; NULL: there is no folder. */
enum { MF_REPORT_FILE = 4160 };
const char *mf_report_plan_file(const char *dir, char path[MF_REPORT_FILE]);

/* Makes the folder before the work begins: a path that cannot be one is found out early. */
mf_status mf_report_folder_create(const char *dir, mf_err *e);

/* A predicted plan of the job, report->plan, and what a command has to say beside. */
typedef struct mf_report_step {
    const mf_report *report;
    const mf_problem *problem;
    const mf_search_result *found; /* what a search found, the plan first; NULL */
    bool saved;                    /* plan.json is there already */
    const char *verdict;           /* what to do, in a sentence; NULL */
    const char *runs_on;     /* whose options alone are proposed: as mf_runs_on_parse takes it */
    const mf_doubts *doubts; /* NULL: `more` says them, or nobody */
    /* Writes further members of report.json into the object that is open; NULL: there are none. */
    void (*more)(mf_json_writer *w, const void *user);
    /* Write candidates.csv in place of what `found` holds, and compared.csv; NULL. */
    void (*candidates)(FILE *f, const void *user);
    void (*compared)(FILE *f, const void *user);
    const void *user; /* of all of these */
} mf_report_step;

/* compared.csv: its head, and a line of it. pass and where: "" for what is none of an op's. */
void mf_report_compared_head(FILE *f);
void mf_report_compared_row(FILE *f, const char *where, const char *what, const char *pass,
                            const char *unit, double times, double predicted, double measured);

mf_status mf_report_folder_step(mf_report_folder to, const mf_job *j, const mf_report_step *step,
                                mf_err *e);

/* t: of z. */
mf_status mf_report_folder_capacity(mf_report_folder to, const mf_capacity *z,
                                    const mf_capacity_table *t, mf_err *e);

#endif
