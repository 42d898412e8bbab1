/* compare_log.c - measured beside predicted, and the factor between them. */
#include "cli/compare_log.h"
#include "cli/args_request.h"
#include "compare/compare_verdict.h"

#include "job/problem.h"
#include "report/doubts.h"
#include "report/host_copies_text.h"
#include "report/report.h"
#include "report/report_folder.h"

#include "job/job.h"
#include "launch/correct.h"
#include "launch/log.h"
#include "report/output.h"
#include "report/text/show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void print_row(FILE *out, const char *what, const char *measured, const char *predicted,
                      double ratio) {
    fprintf(out, "%-12s %12s %12s   %+6.1f %%\n", what, measured, predicted, 100 * (ratio - 1));
}

typedef struct logged {
    const mf_job *j;
    const mf_log *l;
    double factor;         /* NAN: there is none */
    double memory_B;       /* predicted, as the program would print it */
    bool allocated;        /* that is what PyTorch allocated, not all that the GPU holds */
    mf_host_copies copies; /* of the plan */
    mf_doubts doubts;
    mf_verdict_text text;
} logged;

static void print_text(FILE *out, const logged *x, const char *path) {
    const mf_job *j = x->j;
    const mf_log *l = x->l;
    const mf_plan_prediction *p = &j->plan.prediction;
    char measured[32], predicted[32];
    const bool uneven = j->routing.kind != MF_ROUTING_BALANCED;
    fprintf(out, "%s on %lld x %s, %s%s%s; %d of %d steps\n\n%-12s %12s %12s\n", j->model.name,
            (long long)j->plan.layout.gpus, j->cluster.name, j->software.name,
            uneven ? ", routing " : "", uneven ? j->plan.provenance.routing : "", l->used, l->steps,
            "", "measured", "predicted");
    print_row(out, "step time", mf_show_time(l->step_time_s).s, mf_show_time(p->step_time_s).s,
              p->step_time_s / l->step_time_s);
    if (l->tflops > 0) {
        snprintf(measured, sizeof measured, "%.1f", l->tflops);
        snprintf(predicted, sizeof predicted, "%.1f", p->model_tflops_per_gpu);
        print_row(out, "TFLOP/s/GPU", measured, predicted, p->model_tflops_per_gpu / l->tflops);
    }
    if (l->memory_B > 0) {
        print_row(out, x->allocated ? "allocated" : "memory", mf_show_bytes(l->memory_B).s,
                  mf_show_bytes(x->memory_B).s, x->memory_B / l->memory_B);
    }
    if (x->copies.used) {
        putc('\n', out);
        mf_host_copies_print(out, &x->copies);
    }
    if (isnan(x->factor)) {
        fputs(
            "\ncorrection  none from a tenth to ten times explains it: another job, or machine?\n",
            out);
        mf_verdict_text_print(out, &x->text);
        return;
    }
    fprintf(
        out, "\ncorrection  with its efficiencies divided by %.3f %s says what was measured%s%s\n",
        x->factor, j->software.name, path != NULL ? ", written to " : "", path != NULL ? path : "");
    mf_verdict_text_print(out, &x->text);
}

static void write_members(mf_json_writer *w, const void *user) {
    const logged *x = user;
    const mf_job *j = x->j;
    const mf_log *l = x->l;
    mf_json_write_string(w, "software", j->software.name);
    mf_json_write_string(w, "cluster", j->cluster.name);
    mf_json_write_i64(w, "steps", l->steps);
    mf_json_write_f64(w, "measured_step_time_s", l->step_time_s);
    mf_json_write_f64(w, "predicted_step_time_s", j->plan.prediction.step_time_s);
    mf_json_write_f64(w, "measured_tflops_per_gpu", l->tflops);
    mf_json_write_f64(w, "predicted_tflops_per_gpu", j->plan.prediction.model_tflops_per_gpu);
    mf_json_write_f64(w, "measured_memory_B", l->memory_B);
    mf_json_write_f64(w, "predicted_memory_B", x->memory_B);
    mf_json_write_f64(w, "step_factor", x->factor);
    mf_json_write_f64(w, "error", j->plan.prediction.step_time_s / l->step_time_s - 1);
    mf_host_copies_json(w, &x->copies);
    mf_doubts_json(w, &x->doubts);
    mf_json_write_string(w, "verdict", x->text.decides);
}

/* For report.json. */
static void write_compare(mf_json_writer *w, const void *user) {
    mf_json_write_object(w, "compare", false);
    write_members(w, user);
    mf_json_write_end(w);
}

/* Logs print what the program counts, which a software profile may say. */
static mf_status find_memory(logged *x, mf_err *e) {
    mf_report report = mf_report_of(x->j, &x->j->plan);
    mf_status s = mf_report_add_up(&report, x->j, e);
    const uint32_t printed = x->j->software.memory_report;
    const bool known = printed != 0 && report.reported_B > 0;
    x->memory_B = known ? report.reported_B : x->j->plan.prediction.peak_memory_B;
    x->allocated = known && (printed & MF_REPORT_ALLOCATED) != 0;
    return s;
}

static mf_status write_folder(const mf_args *a, const mf_cli *cli, const logged *x, mf_err *e) {
    mf_problem problem;
    mf_report report = mf_report_of(x->j, &x->j->plan);
    const mf_report_step step = {.report = &report,
                                 .problem = &problem,
                                 .verdict = x->text.decides,
                                 .more = write_compare,
                                 .user = x};
    mf_status s = mf_problem_from_job(x->j, &problem, e);
    s = s == MF_OK ? mf_report_add_up(&report, x->j, e) : s;
    return s == MF_OK ? mf_report_folder_step(mf_args_report(a, cli), x->j, &step, e) : s;
}

mf_status mf_compare_log(const mf_args *a, const mf_cli *cli, mf_err *e) {
    const double tolerance = a->value[MF_OPT_TOLERANCE].given ? a->value[MF_OPT_TOLERANCE].f : 0.10;
    const char *out = a->value[MF_OPT_OUT].given ? a->value[MF_OPT_OUT].text : NULL;
    mf_log l = {0};
    double factor = 1;
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
        s = mf_correction_find(j->cost, j->program, &j->routing, l.step_time_s, &factor, e);
        if (s == MF_INPUT && out == NULL) { /* what was measured is to be seen all the same */
            factor = (double)NAN;
            s = MF_OK;
        }
    }
    if (s == MF_OK && out != NULL) {
        s = mf_correction_save(&j->software, j->cluster.name, factor, a->value[MF_OPT_LOG].text,
                               l.used, l.step_time_s, j->plan.prediction.step_time_s, out, e);
    }
    logged x = {.j = j, .l = &l, .factor = factor};
    s = s == MF_OK ? mf_host_copies_of_plan(j, &j->plan, &x.copies, e) : s;
    s = s == MF_OK ? find_memory(&x, e) : s;
    if (s == MF_OK) {
        mf_doubts_of_plan(j, &j->plan, &x.doubts);
        mf_doubts_print(a->notes, &x.doubts);
        mf_verdict_text_log(
            &x.text, j,
            &(mf_compared_log){
                .log = &l, .plan = a->value[MF_OPT_PLAN].text, .out = out, .tolerance = tolerance});
    }
    if (s == MF_OK && a->value[MF_OPT_JSON].given) {
        s = mf_output_object(cli->out, write_members, &x, e);
    } else if (s == MF_OK) {
        print_text(cli->out, &x, out);
    }
    s = s == MF_OK ? write_folder(a, cli, &x, e) : s;
    if (s == MF_OK && fabs(j->plan.prediction.step_time_s / l.step_time_s - 1) > tolerance) {
        s = mf_err_set(e, MF_TOLERANCE, "%s", ""); /* a result, which was printed */
    }
    mf_log_clear(&l);
    mf_job_clear(j);
    free(j);
    return s;
}
