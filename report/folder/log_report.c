/* log_report.c - measured beside predicted, and the factor between them. */
#include "report/folder/log_report.h"

#include "report/folder/report_folder.h"

#include "report/text/show.h"

#include <math.h>

static void print_row(FILE *out, const char *what, const char *measured, const char *predicted,
                      double ratio) {
    fprintf(out, "%-12s %12s %12s   %+6.1f %%\n", what, measured, predicted, 100 * (ratio - 1));
}

void mf_log_report_print(FILE *out, const mf_log_report *x, const char *path) {
    const mf_job *j = x->j;
    const mf_log *l = x->l;
    const mf_plan_prediction *p = &j->plan.prediction;
    char measured[32], predicted[32];
    const bool uneven = j->routing.kind != MF_ROUTING_BALANCED;
    fprintf(out, "%s on %s x %s, %s%s%s; %d of %d steps\n\n%-12s %12s %12s\n", j->model.name,
            mf_show_i64(j->plan.layout.gpus).s, j->cluster.name, j->software.name,
            uneven ? ", routing " : "", uneven ? j->plan.provenance.routing : "", l->used, l->steps,
            "", "measured", "predicted");
    print_row(out, "step time", mf_show_time(l->step_time_s).s, mf_show_time(p->step_time_s).s,
              p->step_time_s / l->step_time_s);
    if (l->tflops > 0) {
        snprintf(measured, sizeof measured, "%.1f", l->tflops);
        snprintf(predicted, sizeof predicted, "%.1f", p->model_tflops_per_gpu);
        print_row(out, "TFLOP/s/GPU", measured, predicted, p->model_tflops_per_gpu / l->tflops);
    }
    if (l->memory_B > 0 && x->allocated) {
        print_row(out, "allocated", mf_show_bytes(l->memory_B).s, mf_show_bytes(x->memory_B).s,
                  x->memory_B / l->memory_B);
    } else if (l->memory_B > 0) {
        fprintf(out,
                "%-12s %12s %12s   measured: what PyTorch allocated\n%41spredicted: all that the "
                "GPU holds\n",
                "memory", mf_show_bytes(l->memory_B).s, mf_show_bytes(x->memory_B).s, "");
    }
    if (x->copies.used) {
        putc('\n', out);
        mf_host_copies_print(out, &x->copies);
    }
    if (isnan(x->factor)) {
        const bool less = l->step_time_s < x->nearest_s;
        fprintf(out,
                "\ncorrection  none explains it: with %s the time of %s the step takes %s%s;\n"
                "            another job, or machine?\n",
                less ? "a tenth of" : "ten times", j->software.name, mf_show_time(x->nearest_s).s,
                less ? ",\n            no op being faster than its links and GPU allow" : "");
        mf_verdict_text_print(out, &x->text);
        return;
    }
    char text[768];
    size_t used = (size_t)snprintf(
        text, sizeof text,
        "with its efficiencies divided by %.3f %s says what was measured%s%.300s", x->factor,
        j->software.name,
        path == NULL   ? ""
        : !x->withheld ? "; written to\n"
        : x->doubtful
            ? "\nnot written: the log may be of another job, cluster or software; --force "
              "writes\n"
            : "\nnot written: the log may be of another job; --force writes\n",
        path != NULL ? path : "");
    if (x->kept != NULL) {
        snprintf(
            text + used, sizeof text - used,
            "\nplan, simulate, fit, explain, tune and capacity price %s on %s by it from now on",
            j->software.name, j->cluster.name);
    }
    fputs("\ncorrection  ", out);
    mf_show_wrap(out, text, 12, 12, 99);
    mf_verdict_text_print(out, &x->text);
}

void mf_log_report_json(mf_json_writer *w, const void *user) {
    const mf_log_report *x = user;
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
    mf_json_write_bool(w, "allocated", x->allocated); /* both, else the prediction is of all */
    mf_json_write_f64(w, "step_factor", x->factor);
    mf_json_write_bool(w, "withheld", x->withheld);
    if (x->kept != NULL) {
        mf_json_write_string(w, "kept", x->kept);
    }
    mf_json_write_f64(w, "error", j->plan.prediction.step_time_s / l->step_time_s - 1);
    mf_host_copies_json(w, &x->copies);
    mf_doubts_json(w, &x->doubts);
    mf_json_write_string(w, "verdict", x->text.decides);
}

void mf_log_report_csv(FILE *f, const void *user) {
    const mf_log_report *x = user;
    const mf_log *l = x->l;
    const mf_plan_prediction *p = &x->j->plan.prediction;
    mf_report_compared_row(f, "", "step time", "", "s", 1, p->step_time_s, l->step_time_s);
    mf_report_compared_row(f, "", "model FLOP/s of a GPU", "", "FLOP/s", 1,
                           1e12 * p->model_tflops_per_gpu, 1e12 * l->tflops);
    const double none = 0;
    mf_report_compared_row(f, "", "allocated memory", "", "B", 1, x->allocated ? x->memory_B : none,
                           l->memory_B);
    mf_report_compared_row(f, "", "memory", "", "B", 1, x->allocated ? none : x->memory_B, none);
}
