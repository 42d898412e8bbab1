/* compare_log.c - measured beside predicted, and the factor between them. */
#include "cli/compare_log.h"
#include "cli/args_request.h"
#include "compare/compare_correction.h"
#include "compare/compare_verdict.h"

#include "job/load/problem.h"
#include "report/basis/doubts.h"
#include "report/folder/log_report.h"
#include "report/folder/report_folder.h"

#include "job/load/job.h"
#include "launch/log/log.h"
#include "report/text/output.h"

#include <math.h>
#include <stdlib.h>

/* For report.json. */
static void write_compare(mf_json_writer *w, const void *user) {
    mf_json_write_object(w, "compare", false);
    mf_log_report_json(w, user);
    mf_json_write_end(w);
}

static mf_status find_memory(mf_log_report *x, mf_err *e) {
    mf_report report = mf_report_of(x->j, &x->j->plan);
    mf_status s = mf_report_add_up(&report, x->j, e);
    x->memory_B = mf_report_logged_memory(&report, &x->allocated);
    return s;
}

static mf_status write_folder(const mf_args *a, const mf_cli *cli, const mf_log_report *x,
                              mf_err *e) {
    mf_problem problem;
    mf_report report = mf_report_of(x->j, &x->j->plan);
    const mf_report_step step = {.report = &report,
                                 .problem = &problem,
                                 .verdict = x->text.decides,
                                 .more = write_compare,
                                 .compared = mf_log_report_csv,
                                 .user = x};
    mf_status s = mf_problem_from_job(x->j, &problem, e);
    s = s == MF_OK ? mf_report_add_up(&report, x->j, e) : s;
    return s == MF_OK ? mf_report_folder_step(mf_args_report(a, cli), x->j, &step, e) : s;
}

/* What stands beside the figures: doubts and the verdict. */
static void judge(mf_log_report *x, const mf_args *a, const mf_log_correction_request *r,
                  double tolerance) {
    mf_doubts_of_plan(x->j, &x->j->plan, &x->doubts);
    mf_doubt_runner(&x->doubts, x->j, &(mf_runs_on){.limited = true, .target = MF_TARGET_MEGATRON});
    if (x->doubtful) {
        mf_doubt(&x->doubts,
                 "a correction of %.3f: the log is of another job, cluster or software more "
                 "likely than of a machine that is so %s",
                 x->factor, x->factor > 1 ? "slow" : "fast");
    }
    mf_doubts_print(a->notes, &x->doubts);
    mf_verdict_text_log(&x->text, x->j,
                        &(mf_compared_log){.log = x->l,
                                           .plan = a->value[MF_OPT_PLAN].text,
                                           .out = x->withheld ? NULL : r->out,
                                           .doubtful = x->doubtful,
                                           .kept = x->kept != NULL,
                                           .unexplained = isnan(x->factor),
                                           .tolerance = tolerance,
                                           .memory_B = x->memory_B,
                                           .allocated = x->allocated});
}

mf_status mf_compare_log(const mf_args *a, const mf_cli *cli, mf_err *e) {
    const double tolerance = a->value[MF_OPT_TOLERANCE].given ? a->value[MF_OPT_TOLERANCE].f : 0.10;
    const mf_log_correction_request r = {.log = a->value[MF_OPT_LOG].text,
                                         .out = mf_args_text(a, MF_OPT_OUT, NULL),
                                         .keep = a->value[MF_OPT_CORRECT].given,
                                         .force = a->value[MF_OPT_FORCE].given};
    mf_log_correction found = {.factor = 1};
    mf_log l = {0};
    mf_job *j = calloc(1, sizeof *j);
    if (j == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_args_require(a, MF_OPT_PLAN, e);
    s = s == MF_OK ? mf_report_folder_create(mf_args_text(a, MF_OPT_REPORT, NULL), e) : s;
    s = s == MF_OK ? mf_log_load(&l, r.log, e) : s;
    s = s == MF_OK ? mf_args_load(j, a, mf_job_load_layout, e) : s;
    s = s == MF_OK ? mf_job_simulate(j, &(mf_sim_options){0}, e) : s;
    s = s == MF_OK ? mf_compare_correct(j, &l, &r, &found, e) : s;
    mf_log_report x = {.j = j,
                       .l = &l,
                       .factor = found.factor,
                       .nearest_s = found.nearest_s,
                       .doubtful = found.doubtful,
                       .withheld = found.withheld,
                       .kept = r.keep && !found.withheld ? found.kept : NULL};
    s = s == MF_OK ? mf_host_copies_of_plan(j, &j->plan, &x.copies, e) : s;
    s = s == MF_OK ? find_memory(&x, e) : s;
    if (s == MF_OK) {
        judge(&x, a, &r, tolerance);
    }
    if (s == MF_OK && a->value[MF_OPT_JSON].given) {
        s = mf_output_object(cli->out, mf_log_report_json, &x, e);
    } else if (s == MF_OK) {
        mf_log_report_print(cli->out, &x, r.out != NULL || !r.keep ? r.out : found.kept);
    }
    s = s == MF_OK ? write_folder(a, cli, &x, e) : s;
    if (s == MF_OK &&
        (found.withheld || fabs(j->plan.prediction.step_time_s / l.step_time_s - 1) > tolerance)) {
        s = mf_err_set(e, MF_TOLERANCE, "%s", ""); /* a result, which was printed */
    }
    mf_log_clear(&l);
    mf_job_clear(j);
    free(j);
    return s;
}
