/* compare_log.c - measured beside predicted, and the factor between them. */
#include "cli/compare_log.h"
#include "cli/args_request.h"
#include "compare/compare_verdict.h"

#include "job/figures/reported_flops.h"
#include "job/load/problem.h"
#include "report/basis/doubts.h"
#include "report/folder/log_report.h"
#include "report/folder/report_folder.h"

#include "job/load/job.h"
#include "launch/log/correct.h"
#include "launch/log/log.h"
#include "report/text/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

mf_status mf_compare_log(const mf_args *a, const mf_cli *cli, mf_err *e) {
    const double tolerance = a->value[MF_OPT_TOLERANCE].given ? a->value[MF_OPT_TOLERANCE].f : 0.10;
    const char *out = a->value[MF_OPT_OUT].given ? a->value[MF_OPT_OUT].text : NULL;
    const bool keep = a->value[MF_OPT_CORRECT].given;
    char kept[1024] = "";
    mf_log l = {0};
    double factor = 1, nearest_s = 0;
    mf_job *j = calloc(1, sizeof *j);
    if (j == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_args_require(a, MF_OPT_PLAN, e);
    s = s == MF_OK ? mf_report_folder_create(mf_args_text(a, MF_OPT_REPORT, NULL), e) : s;
    s = s == MF_OK ? mf_log_load(&l, a->value[MF_OPT_LOG].text, e) : s;
    s = s == MF_OK ? mf_args_load(j, a, mf_job_load_layout, e) : s;
    s = s == MF_OK ? mf_job_simulate(j, &(mf_sim_options){0}, e) : s;
    if (s == MF_OK) {
        s = mf_correction_find(j->cost, j->program, &j->routing, l.step_time_s, &factor, &nearest_s,
                               e);
        if (s == MF_INPUT && out == NULL &&
            !keep) { /* what was measured is to be seen all the same */
            factor = (double)NAN;
            s = MF_OK;
        }
    }
    const bool withheld = s == MF_OK && (out != NULL || keep) && !a->value[MF_OPT_FORCE].given &&
                          (mf_reported_is_other_job(j, &l) || mf_correction_is_doubtful(factor));
    if (s == MF_OK && keep) {
        s = mf_corrections_path(&j->asked, &j->cluster, &j->software, !withheld, kept, e);
        s = s == MF_OK ? s : mf_err_prefix(e, "--correct");
    }
    if (s == MF_OK && !withheld) {
        const mf_correction_basis on = {.cluster = j->cluster.name,
                                        .log = a->value[MF_OPT_LOG].text,
                                        .steps = l.used,
                                        .measured_s = l.step_time_s,
                                        .predicted_s = j->plan.prediction.step_time_s};
        s = out != NULL ? mf_correction_save(&j->software, factor, &on, out, e) : s;
        s = s == MF_OK && keep ? mf_correction_save(&j->software, factor, &on, kept, e) : s;
    }
    mf_log_report x = {.j = j,
                       .l = &l,
                       .factor = factor,
                       .nearest_s = nearest_s,
                       .doubtful = mf_correction_is_doubtful(factor),
                       .withheld = withheld,
                       .kept = keep && !withheld ? kept : NULL};
    s = s == MF_OK ? mf_host_copies_of_plan(j, &j->plan, &x.copies, e) : s;
    s = s == MF_OK ? find_memory(&x, e) : s;
    if (s == MF_OK) {
        mf_doubts_of_plan(j, &j->plan, &x.doubts);
        mf_doubt_runner(&x.doubts, j, &(mf_runs_on){.limited = true, .target = MF_TARGET_MEGATRON});
        if (x.doubtful) {
            mf_doubt(&x.doubts,
                     "a correction of %.3f: the log is of another job, cluster or software more "
                     "likely than of a machine that is so %s",
                     factor, factor > 1 ? "slow" : "fast");
        }
        mf_doubts_print(a->notes, &x.doubts);
        mf_verdict_text_log(&x.text, j,
                            &(mf_compared_log){.log = &l,
                                               .plan = a->value[MF_OPT_PLAN].text,
                                               .out = withheld ? NULL : out,
                                               .doubtful = x.doubtful,
                                               .kept = x.kept != NULL,
                                               .unexplained = isnan(factor),
                                               .tolerance = tolerance,
                                               .memory_B = x.memory_B,
                                               .allocated = x.allocated});
    }
    if (s == MF_OK && a->value[MF_OPT_JSON].given) {
        s = mf_output_object(cli->out, mf_log_report_json, &x, e);
    } else if (s == MF_OK) {
        mf_log_report_print(cli->out, &x, out != NULL || !keep ? out : kept);
    }
    s = s == MF_OK ? write_folder(a, cli, &x, e) : s;
    if (s == MF_OK &&
        (withheld || fabs(j->plan.prediction.step_time_s / l.step_time_s - 1) > tolerance)) {
        s = mf_err_set(e, MF_TOLERANCE, "%s", ""); /* a result, which was printed */
    }
    mf_log_clear(&l);
    mf_job_clear(j);
    free(j);
    return s;
}
