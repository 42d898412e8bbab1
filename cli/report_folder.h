/* report_folder.h - what --report DIR writes: a result as files.
 *
 *   report.html     one page, drawn from report.json (cli/page/page.h)
 *   report.json     title, command, command_line, generator; of a step: "step" (as `simulate
 * --json` prints it), "explanation", "remedies", "prices_rest_on", "schedule", and of a search
 * "search" and "candidates"; of sizes: "capacity" (as `capacity --json`) inputs.json     the
 * command line, and what was read for model, cluster, software and prices plan.json, trace.json of
 * the plan that is reported candidates.csv  the plans, or the sizes, one a line
 *
 * Files of the same name are replaced. Errors: MF_IO "--report: ...", MF_NOMEM. Without --report
 * these functions do nothing.
 */
#ifndef MF_CLI_REPORT_FOLDER_H
#define MF_CLI_REPORT_FOLDER_H

#include "cli/capacity.h"
#include "cli/job.h"
#include "cli/report.h"

/* Makes the folder before the work begins: a path that cannot be one is found out early. */
mf_status mf_report_folder_create(const mf_args *a, mf_err *e);

/* A predicted plan of the job, report->plan, and what a command has to say beside. */
typedef struct mf_report_step {
    const mf_report *report;
    const mf_problem *problem;
    const mf_search_result *found; /* what a search found, the plan first; NULL */
    /* Writes further members of report.json into the object that is open; NULL: there are none. */
    void (*more)(mf_json_writer *w, const void *user);
    const void *user;
} mf_report_step;

mf_status mf_report_folder_step(const mf_args *a, const mf_cli *cli, const mf_job *j,
                                const mf_report_step *step, mf_err *e);

mf_status mf_report_folder_capacity(const mf_args *a, const mf_cli *cli, const mf_capacity_table *t,
                                    mf_err *e);

#endif
