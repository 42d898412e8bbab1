/* cmd_import.c - `moefold import`: a job that exists as a plan, and what its log measured. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "job/exchange/import_job.h"
#include "report/basis/doubts.h"
#include "report/inputs/import_report.h"

#include <stdlib.h>

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_imported *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_doubts doubts = {0};
    mf_runs_on on = {0};
    mf_status s = mf_args_import(x, a, e);
    s = s == MF_OK ? mf_runs_on_parse("megatron", x->job.software.name, &on, e) : s;
    if (s == MF_OK) {
        mf_doubt_runner(&doubts, &x->job, &on); /* a job that was read is Megatron's */
        mf_doubts_print(a->notes, &doubts);
    }
    if (s == MF_OK && a->value[MF_OPT_JSON].given) {
        s = mf_import_report_json(cli->out, x, &doubts, e);
    } else if (s == MF_OK) {
        s = mf_import_report_print(cli->out, x, mf_args_text(a, MF_OPT_OUT, NULL), e);
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
