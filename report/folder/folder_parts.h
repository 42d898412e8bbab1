/* folder_parts.h - private to report_folder.c, capacity_folder.c and folder_old.c: files of a
 * report, and the parts of report.json that reports of all kinds have. */
#ifndef MF_REPORT_FOLDER_PARTS_H
#define MF_REPORT_FOLDER_PARTS_H

#include "report/folder/report_folder.h"

/* Opens a file of the folder for writing; closes it, whether the status so far is s or not, and
 * puts it in its place where all of it was written. f NULL: nothing is done. Errors: MF_IO. */
mf_status mf_folder_open(const char *dir, const char *name, FILE **out, mf_err *e);
mf_status mf_folder_close(const char *dir, const char *name, FILE *f, mf_status s, mf_err *e);

/* A field of a CSV line behind a comma, empty where it is not known. */
void mf_folder_field(FILE *f, double value, bool known);

/* inputs.json; j NULL: of several jobs. */
mf_status mf_folder_inputs(mf_report_folder to, const mf_job *j, mf_err *e);
/* The command line, as members of the object that is open. */
void mf_folder_command(mf_json_writer *w, mf_report_folder to);
/* By what a file is known again. */
typedef struct mf_folder_mark {
    int64_t bytes;
    char crc32c[24]; /* "": the file cannot be read */
} mf_folder_mark;

/* False: there is no such file, or it is a folder or a device. */
bool mf_folder_mark_file(const char *path, mf_folder_mark *out);
/* "bytes" and "crc32c" of the object that is open. */
void mf_folder_mark_write(mf_json_writer *w, const mf_folder_mark *mark);

/* Removes the files that the report before this one left in the folder and that this one has not
 * written, and lists those of this one as "files" in the object that is open. Which these are says
 * the old report.json, with their marks: a file that is not as it was written stays, as does one
 * that the command line names as input. (Lists of reports up to 2026-11 have no marks: theirs
 * stay.) Files that all reports have, such as report.html, are in no list. Called when everything
 * but report.json and the page is written. */
void mf_folder_settle(mf_report_folder to, const char *const *written, size_t count,
                      mf_json_writer *w);
/* report.json and the page that is drawn from it; w is empty afterwards. */
mf_status mf_folder_page(const char *dir, mf_json_writer *w, mf_err *e);

/* How files of a plan are called. */
typedef struct mf_folder_names {
    const char *plan, *trace;
} mf_folder_names;

/* The files of step->report->plan, unless step->saved without that of the plan, and what
 * report.json says of it: "step", "explanation", "remedies", "prices_rest_on" and "schedule" in the
 * object that is open. Of the step the report, the problem and runs_on are read. */
mf_status mf_folder_step(mf_report_folder to, const mf_folder_names *names, const mf_job *j,
                         const mf_report_step *step, mf_json_writer *w, mf_err *e);

#endif
