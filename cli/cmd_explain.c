/* cmd_explain.c - `moefold explain`: why a layout fits or does not, where its time goes, and what
 * would help. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "job/figures/account.h"
#include "job/load/problem.h"
#include "job/search/runs_on.h"
#include "report/basis/doubts.h"
#include "report/search/to_fit.h"
#include "report/step/account_report.h"
#include "report/step/report.h"
#include "report/step/verdict_text.h"
#include "report/text/show.h"

#include <stdlib.h>
#include <string.h>

typedef struct findings {
    const mf_job *job;
    mf_report report;
    const mf_explanation *explanation;
    const mf_account *account;
    const mf_doubts *doubts;
    int top;
    const mf_steps *to_fit; /* what makes it fit; NULL: it does */
    mf_verdict_text verdict;
} findings;

/* --- for people ------------------------------------------------------------------------------- */

static void print_text(FILE *out, const findings *f) {
    const mf_explanation *x = f->explanation;
    mf_report_print_job(out, &f->report);
    mf_report_print_time(out, &f->report);
    putc('\n', out);
    mf_show_wrap(out, x->memory, 0, 0, 99);
    mf_report_print_stages(out, &f->report);
    putc('\n', out);
    mf_show_wrap(out, x->time, 0, 0, 99);
    mf_report_print_breakdown(out, &f->report);
    if (f->to_fit != NULL) {
        mf_to_fit_print(out, f->job, f->to_fit, f->report.plan->prediction.step_time_s);
    }
    mf_report_print_remedies(out, x);
    mf_account_report_print(out, f->account, f->top);
    mf_verdict_text_print(out, &f->verdict);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static mf_status print_json(FILE *out, const findings *f, mf_err *e) {
    const mf_explanation *x = f->explanation;
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_report_json(&w, &f->report);
    mf_report_json_explanation(&w, x);
    if (f->to_fit != NULL) {
        mf_to_fit_json(&w, f->job, f->to_fit);
    }
    mf_account_report_json(&w, f->account, f->top);
    mf_doubts_json(&w, f->doubts);
    mf_json_write_string(&w, "verdict", f->verdict.decides);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

/* --- the command ------------------------------------------------------------------------------ */

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_job j;
    mf_problem problem;
    mf_explanation explanation;
    mf_steps to_fit = {0};
    mf_runs_on on = {0};
    mf_doubts doubts;
    const mf_sim_options o = {.cancel = cli->cancel};
    bool json = a->value[MF_OPT_JSON].given;
    mf_account *account = calloc(1, sizeof *account);
    if (account == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_args_load_changed(&j, a, e);
    if (s == MF_OK) {
        s = mf_job_simulate(&j, &o, e);
    }
    if (s == MF_OK) {
        s = mf_problem_from_job(&j, &problem, e);
    }
    if (s == MF_OK) {
        s = mf_runs_on_parse(NULL, j.software.name, &on, e);
    }
    if (s == MF_OK) {
        s = mf_planner_explain(&problem, &j.plan.layout, &j.plan.assignment, &explanation, e);
    }
    if (s == MF_OK && on.limited) {
        mf_steps_keep_said(on.target, &j.model, &j.plan.layout, &j.plan.assignment, &explanation);
    }
    if (s == MF_OK && !j.plan.prediction.fits) {
        s = mf_steps_to_fit(&problem, &j.plan.layout, &j.plan.assignment, NULL, cli->cancel,
                            MF_TO_FIT_SHOWN, &to_fit, e);
    }
    if (s == MF_OK) {
        mf_account_stage(j.program, j.cost, &j.routing, j.sim->critical_stage, account);
        mf_doubts_of_plan(&j, &j.plan, &doubts);
        mf_doubts_print(a->notes, &doubts);
        findings f = {
            .job = &j,
            .report = mf_report_of(&j, &j.plan),
            .explanation = &explanation,
            .account = account,
            .doubts = &doubts,
            .to_fit = j.plan.prediction.fits ? NULL : &to_fit,
            .top = a->value[MF_OPT_TOP].given ? (int)a->value[MF_OPT_TOP].i : 12,
        };
        s = mf_report_add_up(&f.report, &j, e);
        s = s == MF_OK ? mf_step_power_add_waits(&explanation, &j, &j.plan, &f.report.power, e) : s;
        const bool changed = j.asked.beside_plan != NULL;
        mf_verdict_text_explain(&f.verdict, &f.report, &explanation, f.to_fit,
                                changed ? NULL : mf_args_text(a, MF_OPT_PLAN, NULL));
        if (s == MF_OK && json) {
            s = print_json(cli->out, &f, e);
        } else if (s == MF_OK) {
            print_text(cli->out, &f);
        }
    }
    mf_steps_clear(&to_fit);
    free(account);
    mf_job_clear(&j);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_PLAN,           MF_OPT_MODEL,        MF_OPT_SET,     MF_OPT_STRICT,   MF_OPT_CLUSTER,
    MF_OPT_GPUS,           MF_OPT_GLOBAL_BATCH, MF_OPT_SEQ,     MF_OPT_SOFTWARE, MF_OPT_STORE,
    MF_OPT_NO_CORRECTIONS, MF_OPTS_LAYOUT,      MF_OPT_ROUTING, MF_OPT_TOP,      MF_OPT_VERBOSE,
    MF_OPT_JSON,           MF_OPT_HELP,         MF_OPT_COUNT,
};

const mf_command mf_cmd_explain = {
    .name = "explain",
    .summary = "why this layout fits or does not, and where its time goes",
    .usage = {"--model NAME --cluster NAME --gpus N --global-batch N --seq N [layout options]",
              "--plan FILE [layout options]"},
    .about = "Says in words what fills the memory and where the step time goes, what more memory "
             "or bandwidth would gain, which modules and ops cost most on the busiest stage, and "
             "what their prices rest on. --top sets how many ops are listed. Under a megatron-* "
             "profile only options that Megatron can express are proposed.",
    .example = "moefold explain --plan plan.json",
    .options = options,
    .run = run,
};
