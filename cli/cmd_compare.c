/* cmd_compare.c - `moefold compare`: phase 3, what was predicted beside what a run measured. */
#include "cli/args_request.h"
#include "cli/compare_log.h"
#include "compare/compare.h"
#include "compare/compare_points.h"
#include "compare/compare_steps.h"
#include "compare/compare_verdict.h"
#include "job/load/prices.h"
#include "job/load/problem.h"
#include "report/basis/doubts.h"
#include "report/basis/host_copies_text.h"
#include "report/folder/report_folder.h"
#include "report/step/report.h"
#include "report/text/output.h"
#include "report/text/screen.h"
#include "report/text/show.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct verdict {
    const mf_job *job;
    const mf_compare *c;
    const mf_explanation *explanation;
    mf_compare_steps steps;
    mf_step_power power;
    mf_host_copies copies; /* of the plan */
    mf_doubts doubts;
    mf_verdict_text text;
    double tolerance;
    int top;
} verdict;

/* --- for people --------------------------------------------------------------------------------
 */

/* Passes as tables of kernels call them. */
static const char *short_pass(const char *pass) {
    return strcmp(pass, "forward") == 0           ? "fwd"
           : strcmp(pass, "recomputation") == 0   ? "again"
           : strcmp(pass, "input_gradient") == 0  ? "dgrad"
           : strcmp(pass, "weight_gradient") == 0 ? "wgrad"
                                                  : pass;
}

static int longer(int width, const char *text) {
    const int length = (int)strlen(text);
    return length > width ? length : width;
}

/* As wide as its words are, to 80 columns and where the terminal has fewer without the number of
 * times. */
static void print_ops(FILE *out, const verdict *v) {
    const int shown = v->c->nops < v->top ? v->c->nops : v->top;
    const bool times = mf_screen_columns(99) >= 72;
    int where = 5, name = 2;
    bool waits = false;
    for (int i = 0; i < shown; i++) {
        where = longer(where, v->c->op[i].where);
        name = longer(name, v->c->op[i].name);
        waits |= v->c->op[i].collective;
    }
    where = where < 20 ? where : 20;
    name = name < 18 ? name : 18;
    fprintf(out, "\nop by op, largest difference first (! outside %s)\n",
            mf_show_percent(v->tolerance).s);
    fprintf(out, "  %-*s %-*s%s %-5s%s %9s %9s %7s\n", where, "where", name, "op", waits ? " " : "",
            "pass", times ? "  times" : "", "predicted", "measured", "error");
    for (int i = 0; i < shown; i++) {
        const mf_compare_op *o = &v->c->op[i];
        char error[16] = "-", count[16] = "";
        if (isfinite(o->error)) {
            snprintf(error, sizeof error, "%+.0f%%", 100 * o->error);
        }
        if (times) {
            snprintf(count, sizeof count, " %6.0f", o->count);
        }
        fprintf(out, "%c %-*.*s %-*.*s%s %-5s%s %9s %9s %7s\n", o->outside ? '!' : ' ', where,
                where, o->where, name, name, o->name,
                !waits          ? ""
                : o->collective ? "*"
                                : " ",
                short_pass(o->pass), count, mf_show_time(o->predicted_s).s,
                mf_show_time(o->measured_s).s, error);
    }
    if (v->c->nops > v->top) {
        fprintf(out, "  and %d more: --top N or --json shows them\n", v->c->nops - v->top);
    }
    if (waits) {
        fputs("  * measured with the wait for other ranks\n", out);
    }
}

static void print_figure(FILE *out, const char *name, double predicted, double measured,
                         const char *unit) {
    fprintf(out, "%-11s predicted %.0f %s, measured %.0f %s: %+.1f %%\n", name, predicted, unit,
            measured, unit, 100 * (predicted / measured - 1));
}

/* Of rank 0's GPU, which is one of the first stage. */
static double predicted_B(const verdict *v) {
    return v->job->plan.prediction.stages > 0 ? v->job->plan.prediction.stage[0].peak_B
                                              : v->job->plan.prediction.peak_memory_B;
}

/* Memory, clock and energy, as the driver counted them behind the steps whose ops were timed. */
static void print_gpu(FILE *out, const verdict *v) {
    const mf_compare_steps *s = &v->steps;
    if (s->used_B > 0) {
        fprintf(out, "memory      predicted %s, measured %s: %+.1f %%\n",
                mf_show_bytes(predicted_B(v)).s, mf_show_bytes(s->used_B).s,
                100 * (predicted_B(v) / s->used_B - 1));
    }
    if (v->power.known && v->power.clock_Hz > 0 && s->clock_MHz > 0) {
        print_figure(out, "clock", 1e-6 * v->power.clock_Hz, s->clock_MHz, "MHz");
    }
    if (v->power.known && s->power_W > 0) {
        print_figure(out, "energy", v->power.energy_J, s->power_W * s->step_time_s, "J a step");
    }
}

/* A step less the sum of its ops: launches and waits add to it, ops beside each other take off. */
static const char *show_gap(double step_s, double ops_s, char text[40]) {
    const double gap = step_s - ops_s;
    snprintf(text, 40, "%s%s", gap < 0 ? "-" : "", mf_show_time(fabs(gap)).s);
    return text;
}

static void print_text(FILE *out, const verdict *v) {
    const mf_report r = mf_report_of(v->job, &v->job->plan);
    const mf_compare *c = v->c;
    char gap[2][40];
    mf_report_print_job(out, &r);
    fprintf(out, "step time   predicted %s, measured %s: %+.1f %%\n",
            mf_show_time(c->predicted_s).s, mf_show_time(c->measured_s).s, 100 * c->error);
    fprintf(out, "ops alone   predicted %s, measured %s in all\n",
            mf_show_time(c->ops_predicted_s).s, mf_show_time(c->ops_measured_s).s);
    fprintf(out, "gaps        predicted %s, measured %s: launches and waits, less overlap\n",
            show_gap(c->predicted_s, c->ops_predicted_s, gap[0]),
            show_gap(c->measured_s, c->ops_measured_s, gap[1]));
    print_gpu(out, v);
    mf_host_copies_print(out, &v->copies);
    fprintf(out, "outside     %d of %d ops that take %s of the step or more\n", c->noutside,
            c->nops, mf_show_percent(MF_COMPARE_SHARE).s);
    print_ops(out, v);
    mf_report_print_breakdown(out, &r);
    mf_report_print_remedies(out, v->explanation);
    mf_verdict_text_print(out, &v->text);
}

/* --- JSON --------------------------------------------------------------------------------------
 */

/* null: it is not known. */
static void write_known(mf_json_writer *w, const char *key, double value) {
    mf_json_write_f64(w, key, value > 0 ? value : (double)NAN);
}

static void write_members(mf_json_writer *w, const void *user) {
    const verdict *v = user;
    const mf_compare *c = v->c;
    mf_json_write_bool(w, "within_tolerance", !c->outside && c->noutside == 0);
    mf_json_write_f64(w, "tolerance", v->tolerance);
    mf_json_write_f64(w, "predicted_step_time_s", c->predicted_s);
    mf_json_write_f64(w, "measured_step_time_s", c->measured_s);
    mf_json_write_f64(w, "error", c->error);
    mf_json_write_f64(w, "predicted_gaps_s", c->predicted_s - c->ops_predicted_s);
    mf_json_write_f64(w, "measured_gaps_s", c->measured_s - c->ops_measured_s);
    if (v->steps.steps > 0) {
        mf_json_write_f64(w, "predicted_memory_B", predicted_B(v));
        write_known(w, "measured_memory_B", v->steps.used_B);
        write_known(w, "predicted_clock_MHz", 1e-6 * v->power.clock_Hz);
        write_known(w, "measured_clock_MHz", v->steps.clock_MHz);
        write_known(w, "predicted_energy_J", v->power.energy_J);
        write_known(w, "measured_energy_J", v->steps.power_W * v->steps.step_time_s);
    }
    mf_host_copies_json(w, &v->copies);
    mf_json_write_i64(w, "ops_outside", c->noutside);
    mf_json_write_array(w, "ops", false);
    for (int i = 0; i < c->nops; i++) {
        const mf_compare_op *o = &c->op[i];
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "where", o->where);
        mf_json_write_string(w, "op", o->name);
        mf_json_write_string(w, "pass", o->pass);
        mf_json_write_bool(w, "waits", o->collective);
        mf_json_write_f64(w, "count", o->count);
        mf_json_write_f64(w, "predicted_s", o->predicted_s);
        mf_json_write_f64(w, "measured_s", o->measured_s);
        mf_json_write_f64(w, "error", o->error);
        mf_json_write_bool(w, "outside", o->outside);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
    mf_report_json_remedies(w, v->explanation);
    mf_doubts_json(w, &v->doubts);
    mf_json_write_string(w, "verdict", v->text.decides);
}

/* For report.json. */
static void write_compare(mf_json_writer *w, const void *user) {
    mf_json_write_object(w, "compare", false);
    write_members(w, user);
    mf_json_write_end(w);
}

static void write_compared(FILE *f, const void *user) {
    const verdict *v = user;
    const mf_compare *c = v->c;
    const mf_compare_steps *s = &v->steps;
    mf_report_compared_row(f, "", "step time", "", "s", 1, c->predicted_s, c->measured_s);
    mf_report_compared_row(f, "", "ops alone", "", "s", 1, c->ops_predicted_s, c->ops_measured_s);
    if (s->steps > 0) {
        mf_report_compared_row(f, "", "memory", "", "B", 1, predicted_B(v), s->used_B);
        mf_report_compared_row(f, "", "clock", "", "Hz", 1, v->power.clock_Hz, 1e6 * s->clock_MHz);
        mf_report_compared_row(f, "", "energy", "", "J", 1, v->power.energy_J,
                               s->power_W * s->step_time_s);
    }
    for (int i = 0; i < c->nops; i++) {
        const mf_compare_op *o = &c->op[i];
        mf_report_compared_row(f, o->where, o->name, o->pass, "s", o->count, o->predicted_s,
                               o->measured_s);
    }
}

/* --- the command -------------------------------------------------------------------------------
 */

typedef mf_status points_fn(const mf_job *j, const mf_op_times *t, const char *run,
                            const char *path, int64_t *points, mf_err *e);

/* Measured points to where an option says. */
static mf_status pass_on(const mf_args *a, const mf_cli *cli, const mf_job *j, const mf_op_times *t,
                         mf_option_id id, points_fn *fn, mf_err *e) {
    const char *path = a->value[id].text;
    int64_t points = 0;
    if (!a->value[id].given) {
        return MF_OK;
    }
    mf_status s = fn(j, t, a->value[MF_OPT_RUN].text, path, &points, e);
    if (s == MF_OK) {
        fprintf(cli->err, "%s: %lld measured points\n", path, (long long)points);
    }
    return s;
}

static mf_status judge(const mf_args *a, const mf_cli *cli, mf_job *j, const mf_op_times *t,
                       mf_err *e) {
    const mf_sim_options o = {.cancel = cli->cancel};
    mf_problem problem;
    mf_explanation explanation = {0};
    mf_compare c = {0};
    verdict v = {.job = j, .c = &c, .explanation = &explanation};
    v.tolerance = a->value[MF_OPT_TOLERANCE].given ? a->value[MF_OPT_TOLERANCE].f : 0.1;
    v.top = a->value[MF_OPT_TOP].given ? (int)a->value[MF_OPT_TOP].i : 20;
    j->model.aux_loss_coef = t->aux_coef;
    j->plan.layout.aux_scope = t->aux_scope;
    mf_status s = mf_job_simulate(j, &o, e);
    if (s == MF_OK) {
        s = mf_compare_run(j, t, v.tolerance, &c, e);
        s = s == MF_OK ? s : mf_err_prefix(e, "%s/op_times.json", a->value[MF_OPT_RUN].text);
    }
    s = s == MF_OK ? mf_compare_steps_read(a->value[MF_OPT_RUN].text, t->first_step, &v.steps, e)
                   : s;
    s = s == MF_OK ? mf_step_power_of(j, &j->plan, &v.power, e) : s;
    s = s == MF_OK ? mf_host_copies_of_plan(j, &j->plan, &v.copies, e) : s;
    mf_compare_steps_use(&v.steps, v.tolerance, &c);
    s = s == MF_OK ? pass_on(a, cli, j, t, MF_OPT_EXPORT, mf_compare_export, e) : s;
    s = s == MF_OK ? pass_on(a, cli, j, t, MF_OPT_RECORD, mf_compare_record, e) : s;
    s = s == MF_OK ? mf_problem_from_job(j, &problem, e) : s;
    s = s == MF_OK
            ? mf_planner_explain(&problem, &j->plan.layout, &j->plan.assignment, &explanation, e)
            : s;
    s = s == MF_OK ? mf_step_power_add_waits(&explanation, j, &j->plan, &v.power, e) : s;
    if (s == MF_OK) {
        mf_doubts_of_plan(j, &j->plan, &v.doubts);
        mf_doubts_print(a->notes, &v.doubts);
        mf_verdict_text_compare(&v.text, &c,
                                &(mf_compared_run){.run = a->value[MF_OPT_RUN].text,
                                                   .plan = a->value[MF_OPT_PLAN].text,
                                                   .store = mf_args_text(a, MF_OPT_STORE, NULL),
                                                   .record = mf_args_text(a, MF_OPT_RECORD, NULL),
                                                   .tolerance = v.tolerance});
    }
    if (s == MF_OK && a->value[MF_OPT_JSON].given) {
        s = mf_output_object(cli->out, write_members, &v, e);
    } else if (s == MF_OK) {
        print_text(cli->out, &v);
    }
    if (s == MF_OK) {
        mf_report report = mf_report_of(j, &j->plan);
        report.power = v.power;
        report.copies = v.copies;
        const mf_report_step step = {.report = &report,
                                     .problem = &problem,
                                     .verdict = v.text.decides,
                                     .more = write_compare,
                                     .compared = write_compared,
                                     .user = &v};
        s = mf_report_folder_step(mf_args_report(a, cli), j, &step, e);
    }
    if (s == MF_OK && (c.outside || c.noutside > 0)) {
        s = mf_err_set(e, MF_TOLERANCE, "%s", ""); /* a result, which was printed */
    }
    mf_compare_clear(&c);
    return s;
}

static mf_status check_run(const char *dir, mf_err *e) {
    struct stat info;
    if (stat(dir, &info) != 0) {
        return mf_err_set(e, MF_INPUT, "--run: %s: %s", dir, strerror(errno));
    }
    return S_ISDIR(info.st_mode)
               ? MF_OK
               : mf_err_set(e, MF_INPUT, "--run: %s: expected the folder of a run", dir);
}

static mf_status run_folder(const mf_args *a, const mf_cli *cli, mf_err *e) {
    char times[4096], plan[4096], config[4096];
    mf_op_times t = {0};
    mf_args own = *a;
    mf_status s = mf_args_require(a, MF_OPT_RUN, e);
    s = s == MF_OK ? check_run(a->value[MF_OPT_RUN].text, e) : s;
    s = s == MF_OK ? mf_report_folder_create(mf_args_text(a, MF_OPT_REPORT, NULL), e) : s;
    if (s != MF_OK) {
        return s;
    }
    snprintf(times, sizeof times, "%s/op_times.json", a->value[MF_OPT_RUN].text);
    snprintf(plan, sizeof plan, "%s/plan.json", a->value[MF_OPT_RUN].text);
    if (!own.value[MF_OPT_PLAN].given) {
        own.value[MF_OPT_PLAN] = (mf_value){.given = true, .text = plan};
    }
    snprintf(config, sizeof config, "%s/config.json", a->value[MF_OPT_RUN].text);
    if (!own.value[MF_OPT_MODEL].given && access(config, R_OK) == 0) {
        own.value[MF_OPT_MODEL] = (mf_value){.given = true, .text = config};
    }
    mf_job *j = malloc(sizeof *j);
    if (j == NULL) {
        return mf_err_set(e, MF_NOMEM, "compare: out of memory");
    }
    s = mf_args_load(j, &own, mf_job_load_layout, e);
    s = s == MF_OK ? mf_op_times_load(times, &t, e) : s;
    s = s == MF_OK ? judge(&own, cli, j, &t, e) : s;
    mf_op_times_clear(&t);
    mf_job_clear(j);
    free(j);
    return s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    if (a->value[MF_OPT_CORRECT].given && !a->value[MF_OPT_LOG].given) {
        return mf_err_set(e, MF_USAGE, "--correct: expected --log FILE beside it");
    }
    return a->value[MF_OPT_LOG].given ? mf_compare_log(a, cli, e) : run_folder(a, cli, e);
}

static const mf_option_id options[] = {
    MF_OPT_LOG,     MF_OPT_OUT,    MF_OPT_PLAN,    MF_OPT_RUN,      MF_OPT_TOLERANCE, MF_OPT_MODEL,
    MF_OPT_SET,     MF_OPT_STRICT, MF_OPT_CLUSTER, MF_OPT_SOFTWARE, MF_OPT_STORE,     MF_OPT_TOP,
    MF_OPT_EXPORT,  MF_OPT_RECORD, MF_OPT_REPORT,  MF_OPT_VERBOSE,  MF_OPT_JSON,      MF_OPT_FORCE,
    MF_OPT_CORRECT, MF_OPT_HELP,   MF_OPT_COUNT,
};

const mf_command mf_cmd_compare = {
    .name = "compare",
    .summary = "predicted against measured, op by op, and what would help",
    .usage = {"[--plan FILE] --run DIR [options]",
              "--plan FILE --log FILE [--correct] [--out FILE] [options]"},
    .about =
        "Puts the op times that a training run measured (op_times.json in its --out) beside those "
        "predicted for its plan, largest difference first, and says where the step goes and what "
        "each remedy would gain. Without --plan it takes the plan that the run left in its folder. "
        "The measured time of a collective includes the wait for the slowest rank. Of a run on "
        "GPUs it also puts memory, clock and energy of rank 0's GPU, as its driver counted them, "
        "beside the prediction. The verdict comes last: what is off most, by how much, and what "
        "makes the prediction right. --record (--refit) adds the measured times to a profile "
        "store, from which plan, simulate and the others price with --store; --export writes them "
        "as text, which `moefold profile --import` "
        "reads.\nWith --log it reads the log "
        "of a Megatron job that ran the plan (or the job that `moefold import --out` made a plan "
        "of) and prints step times, throughput and memory beside the prediction. --correct "
        "keeps the correction for this software and cluster: plan, simulate, fit, explain, tune "
        "and capacity price by it from then on and say so, --no-corrections leaves it out, and the "
        "next one takes its place. --out writes it as a software profile, for --software FILE. A "
        "correction from a log whose step has other FLOPs than the plan's, or one below 0.5 or "
        "above 2, is more likely to be of another job, cluster or software: it is neither kept nor "
        "written without --force.\nThe exit code is 4 when "
        "the "
        "step, or an op that takes a hundredth of it or more, is predicted outside the tolerance.",
    .example = "moefold compare --run run --top 10",
    .options = options,
    .run = run,
};
