/* args_request.h - a command line as a request for a job. */
#ifndef MF_CLI_ARGS_REQUEST_H
#define MF_CLI_ARGS_REQUEST_H

#include "cli/cli.h"
#include "cli/host_measure.h"
#include "job/exchange/import_job.h"
#include "job/load/job.h"
#include "report/folder/report_folder.h"

/* Texts are borrowed from the command line. Errors: MF_USAGE, naming a layout option. */
mf_status mf_args_request(const mf_args *a, mf_job_request *out, mf_err *e);

/* What the command line asks for, by mf_host_load_job. The job is to be cleared in any case. */
mf_status mf_args_load(mf_job *j, const mf_args *a, mf_job_load_fn load, mf_err *e);

/* The same, for a plan that layout options beside it change. */
mf_status mf_args_load_changed(mf_job *j, const mf_args *a, mf_err *e);

/* The same of the job that words of the command line describe: mf_import_load. */
mf_status mf_args_import(mf_imported *x, const mf_args *a, mf_err *e);

/* --gpus, --global-batch and --seq were given. */
mf_status mf_args_require_sizes(const mf_args *a, mf_err *e);

/* --effort in counted microseconds; *out stays where it is not given. Errors: MF_USAGE for 0, with
 * which `fit` alone does something. */
mf_status mf_args_effort(const mf_args *a, int64_t *out, mf_err *e);

/* Before a search: --out, where it is given, names no folder and lies in one that can be written.
 * Errors: MF_IO "--out: PATH: ...". */
mf_status mf_args_check_out(const mf_args *a, mf_err *e);

/* Where --report sends what. */
mf_report_folder mf_args_report(const mf_args *a, const mf_cli *cli);

/* An option's text, or `absent`. */
const char *mf_args_text(const mf_args *a, mf_option_id id, const char *absent);

#endif
