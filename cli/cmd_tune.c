/* cmd_tune.c - `moefold tune`: the three phases on one job, against the layout it runs with. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "job/exchange/import_job.h"
#include "report/basis/doubts.h"
#include "report/folder/report_folder.h"
#include "report/search/candidates.h"
#include "report/search/tune_report.h"
#include "report/text/output.h"

#include <stdlib.h>

typedef struct findings {
    mf_imported x;
    mf_tuning tuning;
    mf_doubts doubts;
    mf_tune_report report;
} findings;

static void write_members(mf_json_writer *w, const void *user) {
    mf_tune_report_json(w, user);
}

/* For report.json. */
static void write_tune(mf_json_writer *w, const void *user) {
    mf_json_write_object(w, "tune", false);
    write_members(w, user);
    mf_json_write_end(w);
}

static void write_candidates(FILE *f, const void *user) {
    mf_candidates_of_tune(f, ((const mf_tune_report *)user)->found);
}

/* A job that was read is Megatron's, whatever its prices are; a plan's profile says who runs it. */
static const char *runs_on(const mf_args *a) {
    return mf_args_text(a, MF_OPT_RUNS_ON, a->value[MF_OPT_PLAN].given ? NULL : "megatron");
}

/* Of the best plan, or of the layout that there is where nothing is faster. */
static mf_status write_folder(const mf_args *a, const mf_cli *cli, const findings *f, mf_err *e) {
    const mf_plan *better = mf_tuning_better_plan(&f->tuning);
    const mf_plan *plan = better != NULL ? better : &f->x.job.plan;
    const bool proven = f->tuning.search.stats.lower_bound_s > 0;
    mf_report report = mf_report_of(&f->x.job, plan);
    mf_report_folder to = mf_args_report(a, cli);
    to.cancel = NULL; /* what was found is kept; a second signal ends the process */
    const mf_report_step step = {.report = &report,
                                 .problem = &f->tuning.problem,
                                 .found = better != NULL && proven ? &f->tuning.search : NULL,
                                 .verdict = f->report.verdict.decides,
                                 .runs_on = runs_on(a),
                                 .more = write_tune,
                                 .candidates = write_candidates,
                                 .user = &f->report};
    mf_status s = mf_report_add_up(&report, &f->x.job, e);
    return s == MF_OK ? mf_report_folder_step(to, &f->x.job, &step, e) : s;
}

static mf_status load(const mf_args *a, findings *f, mf_err *e) {
    mf_job *j = &f->x.job;
    if (!a->value[MF_OPT_PLAN].given) {
        return mf_args_import(&f->x, a, e);
    }
    mf_status s = mf_args_load(j, a, mf_job_load_layout, e);
    return s == MF_OK ? mf_job_simulate(j, &(mf_sim_options){0}, e) : s;
}

/* Saves the better plan and prints what was found; what cannot be saved is printed all the same. */
static mf_status report(const mf_args *a, const mf_cli *cli, findings *f, mf_err *e) {
    const mf_plan *better = mf_tuning_better_plan(&f->tuning);
    const char *out = mf_args_text(a, MF_OPT_OUT, NULL);
    char path[MF_REPORT_FILE];
    const char *in_folder = mf_report_plan_file(mf_args_text(a, MF_OPT_REPORT, NULL), path);
    mf_err unsaved;
    const bool keeps = out != NULL && better != NULL;
    const mf_status saved = keeps ? mf_plan_save(better, out, &unsaved) : MF_OK;
    const mf_plan *now = &f->x.job.plan;
    mf_doubts_of_change(&f->x.job, now, better != NULL ? better : now, &f->doubts);
    mf_doubt_runner(&f->doubts, &f->x.job, &f->tuning.on);
    mf_doubts_print(a->notes, &f->doubts);
    if (out != NULL && better == NULL) {
        fprintf(a->notes, "%s is not written: no faster plan was found\n", out);
    }
    f->report = (mf_tune_report){.found = &f->tuning, .job = &f->x, .doubts = &f->doubts};
    mf_tune_report_decide(&f->report, keeps && saved == MF_OK ? out : in_folder);
    mf_status s = MF_OK;
    if (a->value[MF_OPT_JSON].given) {
        s = mf_output_object(cli->out, write_members, &f->report, e);
    } else {
        mf_tune_report_print(cli->out, &f->report);
    }
    s = s == MF_OK ? write_folder(a, cli, f, e) : s;
    return s == MF_OK && saved != MF_OK ? mf_err_set(e, saved, "%s", unsaved.text) : s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    findings *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_tune_request r = {.runs_on = runs_on(a),
                         .min_headroom = a->value[MF_OPT_MIN_HEADROOM].f,
                         .threads = mf_args_threads(a),
                         .cancel = cli->cancel};
    mf_routing_init(&f->x.job.routing);
    mf_status s = mf_args_effort(a, &r.effort_us, e);
    s = s == MF_OK ? mf_args_check_out(a, e) : s;
    s = s == MF_OK ? mf_report_folder_create(mf_args_text(a, MF_OPT_REPORT, NULL), e) : s;
    s = s == MF_OK ? load(a, f, e) : s;
    s = s == MF_OK ? mf_job_tune(&f->x.job, &r, &f->tuning, e) : s;
    const bool some = s == MF_OK || (s == MF_INTERRUPTED && f->tuning.finished > 0);
    if (some && f->tuning.on.limited) {
        const mf_plan *now = &f->x.job.plan;
        mf_steps_keep_said(f->tuning.on.target, &f->x.job.model, &now->layout, &now->assignment,
                           &f->tuning.explanation);
    }
    if (some) {
        const mf_status found = s;
        s = report(a, cli, f, e);
        s = s != MF_OK || found == MF_OK
                ? s
                : mf_err_set(e, found, "interrupted: what was found so far was printed");
    } else if (s == MF_INTERRUPTED) {
        mf_err_set(e, s, "interrupted before it was found what fits");
    }
    mf_tuning_clear(&f->tuning);
    mf_import_clear(&f->x);
    free(f);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_PLAN,   MF_OPT_MODEL,          MF_OPT_CLUSTER, MF_OPT_GPUS,         MF_OPT_SOFTWARE,
    MF_OPT_STORE,  MF_OPT_NO_CORRECTIONS, MF_OPT_RUNS_ON, MF_OPT_MIN_HEADROOM, MF_OPT_RECIPE,
    MF_OPT_EFFORT, MF_OPT_THREADS,        MF_OPT_OUT,     MF_OPT_REPORT,       MF_OPT_VERBOSE,
    MF_OPT_JSON,   MF_OPT_HELP,           MF_OPT_COUNT};

const mf_command mf_cmd_tune = {
    .name = "tune",
    .summary = "what fits, what is fastest and what holds back, against a job's present layout",
    .usage = {"FILE... [NAME=VALUE...] --cluster NAME [options]", "--plan FILE [options]"},
    .about = "Takes a job as `import` reads it (a script, a log, a recipe, flags), or a plan, and "
             "reports in three parts what fits, and what would make the job fit if it does not; "
             "the best single step of each kind from here (degrees, micro-batch, schedule, ZeRO, "
             "dispatcher, graphs, overlap, recomputation, offload), each simulated, and the best "
             "plan; and what holds the step back. The verdict comes last. Of a job that was read, "
             "and under a megatron-* profile, only what Megatron can express counts (--runs-on any "
             "lifts that).\nInterrupt it (Ctrl-C) to get what was found so far.",
    .example = "moefold tune launch.sh train.log --cluster h100",
    .words = MF_ARGS_MAX_WORDS,
    .options = options,
    .run = run,
};
