/* cmd_import.c - `moefold import`: a job that exists as a plan, and what its log measured. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "job/import_job.h"
#include "report/output.h"
#include "report/report.h"
#include "report/text/show.h"

#include <stdlib.h>
#include <string.h>

/* --- output ----------------------------------------------------------------------------------- */

static void print_unknown(FILE *out, mf_imported *x) {
    int left = x->read.unknown.count;
    for (int i = 0; i < x->found.sets; i++) {
        fprintf(out, "model       --set %s\n", x->found.set[i]);
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

static void print_measured(FILE *out, const mf_imported *x) {
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
    if (l->memory_B > 0) {
        fprintf(out, "            %s allocated at most; predicted %s\n",
                mf_show_bytes(l->memory_B).s,
                mf_show_bytes(x->job.plan.prediction.peak_memory_B).s);
    }
}

static mf_status print_json(FILE *out, const mf_imported *x, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_plan_write(&w, "plan", &x->job.plan);
    mf_json_write_array(&w, "set", false);
    for (int i = 0; i < x->found.sets; i++) {
        mf_json_write_string(&w, NULL, x->found.set[i]);
    }
    mf_json_write_end(&w);
    mf_json_write_object(&w, "not_read", false);
    for (int i = 0; i < x->read.unknown.count; i++) {
        mf_json_write_string(&w, x->read.unknown.item[i].name, x->read.unknown.item[i].value);
    }
    mf_json_write_end(&w);
    mf_json_write_object(&w, "measured", false);
    mf_json_write_i64(&w, "steps", x->log.steps);
    mf_json_write_f64(&w, "step_time_s", x->log.step_time_s);
    mf_json_write_f64(&w, "model_tflops_per_gpu", x->log.tflops);
    mf_json_write_f64(&w, "memory_B", x->log.memory_B);
    mf_json_write_end(&w);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

static mf_status print_text(FILE *out, mf_imported *x, mf_err *e) {
    mf_report report = mf_report_of(&x->job, &x->job.plan);
    mf_status s = mf_report_add_up(&report, &x->job, e);
    if (s != MF_OK) {
        return s;
    }
    mf_report_print(out, &report);
    putc('\n', out);
    print_unknown(out, x);
    print_measured(out, x);
    return MF_OK;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_imported *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_args_import(x, a, e);
    if (s == MF_OK && a->value[MF_OPT_JSON].given) {
        s = print_json(cli->out, x, e);
    } else if (s == MF_OK) {
        s = print_text(cli->out, x, e);
    }
    if (s == MF_OK && a->value[MF_OPT_OUT].given) {
        s = mf_plan_save(&x->job.plan, a->value[MF_OPT_OUT].text, e);
    }
    mf_import_clear(x);
    free(x);
    return s;
}

static const mf_option_id options[] = {MF_OPT_MODEL, MF_OPT_CLUSTER, MF_OPT_GPUS, MF_OPT_SOFTWARE,
                                       MF_OPT_STORE, MF_OPT_RECIPE,  MF_OPT_OUT,  MF_OPT_VERBOSE,
                                       MF_OPT_JSON,  MF_OPT_HELP,    MF_OPT_COUNT};

const mf_command mf_cmd_import = {
    .name = "import",
    .summary = "a Megatron job (script, flags, log, recipe) as a plan, and what it measured",
    .usage = {"FILE... [NAME=VALUE...] --cluster NAME [options]"},
    .about = "Reads what starts a job of Megatron-LM or Megatron-Bridge, or what the job printed: "
             "a script or command line, the argument dump of a log, flags in YAML with the "
             "variables of ModelZoo's launcher, overrides (model.pipeline_model_parallel_size=8), "
             "or a recipe in Python (--recipe names the function). Later words win over earlier "
             "ones; NAME=VALUE sets a variable that the text uses. Flags may follow --. With a "
             "recipe, the modules of its checkout that it imports are read, too; with a script of "
             "ModelZoo, the flags of its MODEL.\nMegatron's defaults hold for what the text does "
             "not say: expert tensor parallelism is that of attention, there is no distributed "
             "optimizer, tokens are gathered. Settings that moefold does not know are listed. Step "
             "times, throughput and memory of a log are printed beside the prediction.",
    .example = "moefold import launch.sh train.log --cluster h100 --out plan.json",
    .words = MF_ARGS_MAX_WORDS,
    .options = options,
    .run = run,
};
