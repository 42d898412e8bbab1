/* import_report.c - text and JSON of a job that was read. */
#include "report/inputs/import_report.h"

#include "job/figures/reported_flops.h"
#include "report/step/report.h"
#include "report/step/verdict_text.h"
#include "report/text/output.h"
#include "report/text/show.h"

#include <math.h>
#include <string.h>

/* Of a prediction against a log, as `compare` tolerates. */
#define MOST_ERROR 0.1

void mf_import_report_unread(FILE *out, const mf_imported *x) {
    int left = x->read.unknown.count;
    for (int i = 0; i < x->found.sets; i++) {
        fprintf(out, "model       --set %s\n", x->found.set[i]);
    }
    if (x->read.assumed) {
        fputs("assumed     ", out);
        mf_show_wrap(out,
                     "what Megatron-Bridge's recipes begin with, where no override says otherwise: "
                     "bf16, a distributed optimizer beside compute, all-to-all dispatch, ETP 1; "
                     "with the recipe's file in front import reads what it says",
                     12, 12, 99);
    }
    if (x->read.launches > 1) {
        fprintf(out,
                "launches    %d stand in the text, one was read: --recipe N takes the Nth, [%d]\n",
                x->read.launches, x->read.launches);
    }
    if (left > 0) {
        fprintf(out, "not read    %d setting%s that moefold does not know:", left,
                left == 1 ? "" : "s");
        for (int i = 0; i < left; i++) {
            fprintf(out, "%s%s %s", i % 4 == 0 ? "\n            " : ", ",
                    x->read.unknown.item[i].name, x->read.unknown.item[i].value);
        }
        putc('\n', out);
    }
}

/* Logs print what PyTorch allocated: held against the same, where the profile says what that is. */
static void print_memory(FILE *out, const mf_report *r, const mf_log *l) {
    bool allocated;
    const double predicted_B = mf_report_logged_memory(r, &allocated);
    fprintf(out, "            %s allocated at most; predicted %s", mf_show_bytes(l->memory_B).s,
            mf_show_bytes(predicted_B).s);
    if (allocated) {
        fprintf(out, " of that (%+.1f %%)\n", 100 * (predicted_B / l->memory_B - 1));
    } else {
        fputs(" of all that the GPU holds, CUDA context\n            and buffers of NCCL, too\n",
              out);
    }
}

static void print_measured(FILE *out, const mf_imported *x, const mf_report *r) {
    const mf_log *l = &x->log;
    const double predicted_s = x->job.plan.prediction.step_time_s;
    if (l->steps > 0) {
        fprintf(out, "measured    %s a step, median of %d steps of %d; predicted %s (%+.1f %%)\n",
                mf_show_time(l->step_time_s).s, l->used, l->steps, mf_show_time(predicted_s).s,
                100 * (predicted_s / l->step_time_s - 1));
    }
    if (l->tflops > 0) {
        fprintf(out, "            %.1f TFLOP/s/GPU as the log counts\n", l->tflops);
    }
    if (mf_reported_is_other_job(&x->job, l)) {
        char other[240];
        mf_reported_say_other_job(&x->job, l, "the job's", other, sizeof other);
        fputs("            ", out);
        mf_show_wrap(out, other, 12, 12, 99);
    }
    if (l->memory_B > 0) {
        print_memory(out, r, l);
    }
}

/* Whether the job fits, how long its step takes, and how near a log comes to that; next its log,
 * where the prediction is far off, else what would be faster. */
static void decide(const mf_imported *x, const mf_report *r, const char *saved,
                   mf_verdict_text *v) {
    const mf_log *l = &x->log;
    const double predicted_s = x->job.plan.prediction.step_time_s;
    const double error = l->steps > 0 ? predicted_s / l->step_time_s - 1 : 0;
    mf_verdict_text_simulate(v, r, saved);
    if (l->steps > 0) {
        const size_t said = strlen(v->decides);
        snprintf(v->decides + said, sizeof v->decides - said,
                 "; its log measured %s, which is predicted %s too %s",
                 mf_show_time(l->step_time_s).s, mf_show_percent(fabs(error)).s,
                 error > 0 ? "long" : "short");
    }
    if (mf_reported_is_other_job(&x->job, l)) {
        const size_t said = strlen(v->decides);
        char other[240];
        mf_reported_say_other_job(&x->job, l, "the job's", other, sizeof other);
        snprintf(v->decides + said, sizeof v->decides - said, "; but %s", other);
        snprintf(v->next, sizeof v->next,
                 "the same with the log of this job, or the script of the "
                 "log's");
    } else if (fabs(error) > MOST_ERROR) {
        snprintf(v->next, sizeof v->next, "%smoefold compare --plan %.256s --log LOG",
                 saved == NULL ? "the same with --out now.json, then " : "",
                 saved == NULL ? "now.json" : saved);
    } else if (saved == NULL) {
        snprintf(v->next, sizeof v->next, "moefold tune with the same words");
    }
}

void mf_import_report_unread_json(mf_json_writer *w, const mf_imported *x) {
    mf_json_write_object(w, "not_read", false);
    for (int i = 0; i < x->read.unknown.count; i++) {
        mf_json_write_string(w, x->read.unknown.item[i].name, x->read.unknown.item[i].value);
    }
    mf_json_write_end(w);
}

mf_status mf_import_report_json(FILE *out, const mf_imported *x, const mf_doubts *d, mf_err *e) {
    mf_report r = mf_report_of(&x->job, &x->job.plan);
    mf_verdict_text verdict;
    bool allocated;
    mf_json_writer w;
    mf_status s = mf_report_add_up(&r, &x->job, e);
    if (s != MF_OK) {
        return s;
    }
    const double predicted_B = mf_report_logged_memory(&r, &allocated);
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_plan_write(&w, "plan", &x->job.plan);
    mf_json_write_array(&w, "set", false);
    for (int i = 0; i < x->found.sets; i++) {
        mf_json_write_string(&w, NULL, x->found.set[i]);
    }
    mf_json_write_end(&w);
    mf_import_report_unread_json(&w, x);
    mf_json_write_object(&w, "measured", false);
    mf_json_write_i64(&w, "steps", x->log.steps);
    mf_json_write_f64(&w, "step_time_s", x->log.step_time_s);
    mf_json_write_f64(&w, "model_tflops_per_gpu", x->log.tflops);
    mf_json_write_f64(&w, "flops_ratio", mf_reported_flops_ratio(&x->job, &x->log));
    mf_json_write_bool(&w, "other_job", mf_reported_is_other_job(&x->job, &x->log));
    mf_json_write_f64(&w, "memory_B", x->log.memory_B);
    mf_json_write_f64(&w, "predicted_memory_B", x->log.memory_B > 0 ? predicted_B : (double)NAN);
    mf_json_write_bool(&w, "allocated", allocated); /* both, else the prediction is of all */
    mf_json_write_end(&w);
    mf_doubts_json(&w, d);
    decide(x, &r, NULL, &verdict);
    mf_json_write_string(&w, "verdict", verdict.decides);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

mf_status mf_import_report_print(FILE *out, mf_imported *x, const char *saved, mf_err *e) {
    mf_verdict_text verdict;
    mf_report report = mf_report_of(&x->job, &x->job.plan);
    mf_status s = mf_report_add_up(&report, &x->job, e);
    if (s != MF_OK) {
        return s;
    }
    mf_report_print(out, &report);
    if (x->found.sets > 0 || x->read.assumed || x->read.launches > 1 || x->read.unknown.count > 0 ||
        x->log.steps > 0) {
        putc('\n', out);
    }
    mf_import_report_unread(out, x);
    print_measured(out, x, &report);
    decide(x, &report, saved, &verdict);
    mf_verdict_text_print(out, &verdict);
    return MF_OK;
}
