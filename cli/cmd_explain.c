/* cmd_explain.c - `moefold explain`: why a layout fits or does not, where its time goes, and what
 * would help. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "job/account.h"
#include "job/problem.h"
#include "report/doubts.h"
#include "report/report.h"
#include "report/text/show.h"
#include "report/to_fit.h"

#include <stdlib.h>
#include <string.h>

typedef struct findings {
    mf_report report;
    const mf_explanation *explanation;
    const mf_account *account;
    const mf_doubts *doubts;
    int top;
    const mf_steps *to_fit; /* what makes it fit; NULL: it does */
} findings;

static const char *pass_text(uint8_t pass) {
    switch (pass) {
    case MF_PASS_F:
        return "forward";
    case MF_PASS_R:
        return "recompute";
    case MF_PASS_B:
        return "input gradient";
    case MF_PASS_W:
        return "weight gradient";
    default:
        return "once a step";
    }
}

/* --- for people ------------------------------------------------------------------------------- */

static void print_modules(FILE *out, const mf_account *a) {
    fprintf(out,
            "\nwhat the ops of stage %lld cost one by one (no overlap, no waiting)\n"
            "  %-14s %10s %14s\n",
            (long long)a->stage, "module", "compute", "communication");
    for (int m = 0; m < MF_MODULE_COUNT; m++) {
        double both = a->compute_s[m] + a->communication_s[m];
        if (both < 0.0005 * a->total_s) {
            continue;
        }
        fprintf(out, "  %-14s %10s %14s  %7s", mf_module_text((mf_module)m),
                mf_show_time(a->compute_s[m]).s, mf_show_time(a->communication_s[m]).s,
                mf_show_percent(both / a->total_s).s);
        mf_show_bar(out, both, a->total_s, 32);
        putc('\n', out);
    }
}

static void print_ops(FILE *out, const mf_account *a, int top) {
    fprintf(out, "\nits costliest ops\n  %-18s %-16s %9s %10s %10s %7s  %s\n", "op", "pass",
            "times", "each", "in all", "limit", "rests on");
    for (int i = 0; i < a->nops && i < top; i++) {
        const mf_account_op *o = &a->op[i];
        fprintf(out, "  %-18s %-16s %9s %10s %10s %7s  %s\n", o->name, pass_text(o->pass),
                mf_show_i64(o->count).s, mf_show_time(o->time_s / (double)o->count).s,
                mf_show_time(o->time_s).s, mf_show_percent(o->limit_s / o->time_s).s,
                mf_basis_text((mf_basis)o->basis));
    }
    fputs("prices rest on:", out);
    const char *gap = " ";
    for (int b = 0; b < MF_BASIS_COUNT; b++) {
        if (a->basis_s[b] >= 0.0005 * a->total_s && a->total_s > 0) {
            fprintf(out, "%s%s: %s", gap, mf_basis_text((mf_basis)b),
                    mf_show_percent(a->basis_s[b] / a->total_s).s);
            gap = "; ";
        }
    }
    putc('\n', out);
}

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
        mf_to_fit_print(out, f->to_fit, f->report.plan->prediction.step_time_s);
    }
    mf_report_print_remedies(out, x);
    print_modules(out, f->account);
    print_ops(out, f->account, f->top);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void json_account(mf_json_writer *w, const mf_account *a, int top) {
    mf_json_write_i64(w, "account_stage", a->stage);
    mf_json_write_array(w, "modules", false);
    for (int m = 0; m < MF_MODULE_COUNT; m++) {
        if (a->compute_s[m] + a->communication_s[m] > 0) {
            mf_json_write_object(w, NULL, true);
            mf_json_write_string(w, "module", mf_module_text((mf_module)m));
            mf_json_write_f64(w, "compute_s", a->compute_s[m]);
            mf_json_write_f64(w, "communication_s", a->communication_s[m]);
            mf_json_write_end(w);
        }
    }
    mf_json_write_end(w);
    mf_json_write_array(w, "ops", false);
    for (int i = 0; i < a->nops && i < top; i++) {
        const mf_account_op *o = &a->op[i];
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "op", o->name);
        mf_json_write_string(w, "kind", mf_op_text((mf_op_kind)o->kind));
        mf_json_write_string(w, "module", mf_module_text((mf_module)o->module));
        mf_json_write_string(w, "pass", pass_text(o->pass));
        mf_json_write_i64(w, "count", o->count);
        mf_json_write_f64(w, "time_s", o->time_s);
        mf_json_write_f64(w, "limit_s", o->limit_s);
        mf_json_write_string(w, "basis", mf_basis_text((mf_basis)o->basis));
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
    mf_json_write_array(w, "prices_rest_on", false);
    for (int b = 0; b < MF_BASIS_COUNT; b++) {
        if (a->basis_s[b] > 0) {
            mf_json_write_object(w, NULL, true);
            mf_json_write_string(w, "basis", mf_basis_text((mf_basis)b));
            mf_json_write_f64(w, "time_s", a->basis_s[b]);
            mf_json_write_f64(w, "share", a->basis_s[b] / a->total_s);
            mf_json_write_end(w);
        }
    }
    mf_json_write_end(w);
}

static mf_status print_json(FILE *out, const findings *f, mf_err *e) {
    const mf_explanation *x = f->explanation;
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_report_json(&w, &f->report);
    mf_json_write_object(&w, "explanation", false);
    mf_json_write_string(&w, "memory", x->memory);
    mf_json_write_string(&w, "time", x->time);
    mf_json_write_end(&w);
    mf_json_write_array(&w, "remedies", false);
    for (int i = 0; i < x->remedies; i++) {
        mf_json_write_object(&w, NULL, true);
        mf_json_write_string(&w, "what", x->remedy[i].what);
        mf_json_write_f64(&w, "step_time_s", x->remedy[i].step_time_s);
        mf_json_write_f64(&w, "gain", x->remedy[i].gain);
        mf_json_write_string(&w, "basis", x->remedy[i].basis);
        mf_json_write_end(&w);
    }
    mf_json_write_end(&w);
    if (f->to_fit != NULL) {
        mf_to_fit_json(&w, f->to_fit);
    }
    json_account(&w, f->account, f->top);
    mf_doubts_json(&w, f->doubts);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

/* --- the command ------------------------------------------------------------------------------ */

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_job j;
    mf_problem problem;
    mf_explanation explanation;
    mf_steps to_fit = {0};
    mf_doubts doubts;
    const mf_sim_options o = {.cancel = cli->cancel};
    bool json = a->value[MF_OPT_JSON].given;
    mf_account *account = calloc(1, sizeof *account);
    if (account == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_args_load(&j, a, mf_job_load_layout, e);
    if (s == MF_OK) {
        s = mf_job_simulate(&j, &o, e);
    }
    if (s == MF_OK) {
        s = mf_problem_from_job(&j, &problem, e);
    }
    if (s == MF_OK) {
        s = mf_planner_explain(&problem, &j.plan.layout, &j.plan.assignment, &explanation, e);
    }
    if (s == MF_OK && !j.plan.prediction.fits) {
        s = mf_steps_to_fit(&problem, &j.plan.layout, &j.plan.assignment, NULL, cli->cancel,
                            MF_TO_FIT_SHOWN, &to_fit, e);
    }
    if (s == MF_OK) {
        mf_account_stage(j.program, j.cost, &j.routing, j.sim->critical_stage, account);
        mf_doubts_of_plan(&j, &j.plan, &doubts);
        mf_doubts_print(a->notes, &doubts);
        const findings f = {
            .report = mf_report_of(&j, &j.plan),
            .explanation = &explanation,
            .account = account,
            .doubts = &doubts,
            .to_fit = j.plan.prediction.fits ? NULL : &to_fit,
            .top = a->value[MF_OPT_TOP].given ? (int)a->value[MF_OPT_TOP].i : 12,
        };
        if (json) {
            s = print_json(cli->out, &f, e);
        } else {
            print_text(cli->out, &f);
        }
    }
    mf_steps_clear(&to_fit);
    free(account);
    mf_job_clear(&j);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_PLAN,    MF_OPT_MODEL,        MF_OPT_SET, MF_OPT_STRICT,   MF_OPT_CLUSTER,
    MF_OPT_GPUS,    MF_OPT_GLOBAL_BATCH, MF_OPT_SEQ, MF_OPT_SOFTWARE, MF_OPT_STORE,
    MF_OPTS_LAYOUT, MF_OPT_ROUTING,      MF_OPT_TOP, MF_OPT_VERBOSE,  MF_OPT_JSON,
    MF_OPT_HELP,    MF_OPT_COUNT,
};

const mf_command mf_cmd_explain = {
    .name = "explain",
    .summary = "why this layout fits or does not, and where its time goes",
    .usage = {"--model NAME --cluster NAME --gpus N --global-batch N --seq N [layout options]",
              "--plan FILE [options]"},
    .about =
        "Says in words what fills the memory and what the step time consists of, what more memory "
        "or bandwidth would buy, which modules and ops cost most on the busiest stage, and what "
        "their prices rest on. --top sets how many ops are listed.",
    .example = "moefold explain --plan plan.json",
    .options = options,
    .run = run,
};
