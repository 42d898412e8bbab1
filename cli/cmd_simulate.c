/* cmd_simulate.c - `moefold simulate`: one layout or one plan, played against time. */
#include "cli/args_request.h"
#include "job/load/job.h"
#include "job/load/problem.h"
#include "report/basis/doubts.h"
#include "report/folder/report_folder.h"
#include "report/step/report.h"
#include "report/step/verdict_text.h"

#include <errno.h>
#include <string.h>

static mf_status open_trace(const mf_args *a, FILE **out, mf_err *e) {
    const char *path = a->value[MF_OPT_TRACE].text;
    if (!a->value[MF_OPT_TRACE].given) {
        return MF_OK;
    }
    *out = fopen(path, "wb");
    return *out != NULL ? MF_OK : mf_err_set(e, MF_IO, "--trace: %s: %s", path, strerror(errno));
}

/* A trace that did not reach the disk is no trace. */
static mf_status close_trace(const mf_args *a, FILE *trace, mf_status s, mf_err *e) {
    if (trace == NULL) {
        return s;
    }
    bool written = !ferror(trace);
    written = fclose(trace) == 0 && written;
    if (s == MF_OK && !written) {
        s = mf_err_set(e, MF_IO, "cannot write");
    }
    return s == MF_IO ? mf_err_prefix(e, "--trace: %s", a->value[MF_OPT_TRACE].text) : s;
}

static mf_status print(const mf_args *a, const mf_cli *cli, const mf_job *j, mf_err *e) {
    mf_under_megatron megatron;
    mf_doubts doubts;
    mf_verdict_text verdict;
    mf_report r = mf_report_of(j, &j->plan);
    mf_status found = mf_report_add_up(&r, j, e);
    if (found != MF_OK) {
        return found;
    }
    mf_doubts_of_plan(j, &j->plan, &doubts);
    mf_doubts_print(a->notes, &doubts);
    if (strcmp(j->software.name, "moefold") == 0 && !mf_cluster_is_cpu(&j->cluster)) {
        mf_status s = mf_job_under_megatron(j, &j->plan, &megatron, e);
        if (s != MF_OK) {
            return s;
        }
        r.megatron = &megatron;
    }
    char path[MF_REPORT_FILE];
    const char *plan = mf_report_plan_file(mf_args_text(a, MF_OPT_REPORT, NULL), path);
    plan = j->asked.beside_plan == NULL ? mf_args_text(a, MF_OPT_PLAN, plan) : plan;
    mf_verdict_text_simulate(&verdict, &r, mf_args_text(a, MF_OPT_OUT, plan));
    if (a->value[MF_OPT_REPORT].given) {
        mf_problem problem;
        mf_status s = mf_problem_from_job(j, &problem, e);
        const mf_report_step step = {
            .report = &r, .problem = &problem, .verdict = verdict.decides, .doubts = &doubts};
        s = s == MF_OK ? mf_report_folder_step(mf_args_report(a, cli), j, &step, e) : s;
        if (s != MF_OK) {
            return s;
        }
    }
    if (!a->value[MF_OPT_JSON].given) {
        mf_report_print(cli->out, &r);
        mf_verdict_text_print(cli->out, &verdict);
        return MF_OK;
    }
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_report_json(&w, &r);
    mf_doubts_json(&w, &doubts);
    mf_json_write_string(&w, "verdict", verdict.decides);
    mf_json_write_end(&w);
    return mf_output_json(&w, cli->out, e);
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_job j;
    FILE *trace = NULL;
    mf_status s = mf_args_load_changed(&j, a, e);
    s = s == MF_OK ? mf_report_folder_create(mf_args_text(a, MF_OPT_REPORT, NULL), e) : s;
    s = s == MF_OK ? open_trace(a, &trace, e) : s;
    if (s == MF_OK) {
        const mf_sim_options o = {
            .every_rank = a->value[MF_OPT_EVERY_RANK].given, .trace = trace, .cancel = cli->cancel};
        s = close_trace(a, trace, mf_job_simulate(&j, &o, e), e);
    }
    if (s == MF_OK && a->value[MF_OPT_OUT].given) {
        s = mf_plan_save(&j.plan, a->value[MF_OPT_OUT].text, e);
    }
    s = s == MF_OK ? print(a, cli, &j, e) : s;
    mf_job_clear(&j);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_PLAN,
    MF_OPT_MODEL,
    MF_OPT_SET,
    MF_OPT_STRICT,
    MF_OPT_CLUSTER,
    MF_OPT_GPUS,
    MF_OPT_GLOBAL_BATCH,
    MF_OPT_SEQ,
    MF_OPT_SOFTWARE,
    MF_OPT_STORE,
    MF_OPT_NO_CORRECTIONS,
    MF_OPTS_LAYOUT,
    MF_OPT_ROUTING,
    MF_OPT_EVERY_RANK,
    MF_OPT_TRACE,
    MF_OPT_OUT,
    MF_OPT_REPORT,
    MF_OPT_VERBOSE,
    MF_OPT_JSON,
    MF_OPT_HELP,
    MF_OPT_COUNT,
};

const mf_command mf_cmd_simulate = {
    .name = "simulate",
    .summary = "one plan or one layout: step time, breakdown, memory, trace",
    .usage = {"--model NAME --cluster NAME --gpus N --global-batch N --seq N [layout options]",
              "--plan FILE [layout options]"},
    .about =
        "Plays one training step of a layout, op by op, against the prices of its ops, and "
        "says how long it takes, where the time goes and how much memory each stage needs. A "
        "layout that does not fit into memory is simulated all the same, and the output says "
        "so. Layout options beside --plan change its layout: what they do not name stays, "
        "layers keep "
        "their memory choices and, under the same PP and VPP, their stages.\nThe band behind the "
        "step time says how well the prices are known: it is narrow "
        "where ops were measured, wide where prices are derived from data sheets.",
    .example =
        "moefold simulate --model mixtral-8x22b --cluster h100 --gpus 128 --global-batch 256 "
        "--seq 4096 --tp 2 --pp 8 --ep 8",
    .options = options,
    .run = run,
};
