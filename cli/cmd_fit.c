/* cmd_fit.c - `moefold fit`: which layouts fit into memory, and what the others lack. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "job/load/problem.h"
#include "job/search/fit_fastest.h"
#include "report/basis/doubts.h"
#include "report/search/fit_report.h"
#include "report/search/to_fit.h"
#include "report/step/verdict_text.h"
#include "report/text/output.h"
#include "report/text/progress.h"

#include <stdlib.h>

/* Rows of each table where --top does not say. */
enum { LEANEST = 8, MISSING = 6, MISSING_ALONE = 12, FASTEST = 8 };

/* Counted microseconds of each search for what is fast; 0: none. */
static int64_t effort(const mf_args *a) {
    return (a->value[MF_OPT_EFFORT].given ? a->value[MF_OPT_EFFORT].i : MF_FIT_EFFORT) * 1000000;
}

typedef struct findings {
    mf_fit_result fit;
    mf_fit_ranking ranking;
    mf_doubts doubts;
    mf_verdict_text verdict;
    mf_runs_on on;
    bool ranked; /* a search was asked for */
    bool interrupted;
} findings;

/* --- output ----------------------------------------------------------------------------------- */

static void print_text(FILE *out, const mf_job *j, const findings *f, const int64_t *top) {
    char among[MF_STEP_TEXT + 8] = "of those that fit";
    mf_fit_report_print(out, j, &f->fit, top != NULL ? *top : LEANEST,
                        top != NULL            ? *top
                        : f->fit.feasible == 0 ? MISSING_ALONE
                                               : MISSING);
    if (f->ranked && f->fit.feasible == 0 && f->fit.count > 0) {
        mf_fit_report_remedies(out, j, &f->ranking.to_fit);
        snprintf(among, sizeof among, "with %s", f->ranking.with);
    }
    mf_fit_report_fastest(out, j, among, &f->ranking.fastest);
    mf_fit_report_runs_on(out, &f->on, &f->ranking.fastest);
    mf_verdict_text_print(out, &f->verdict);
}

static mf_status print_json(FILE *out, const mf_job *j, const findings *f, int64_t top) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_fit_report_json(&w, j, &f->fit, top, f->interrupted);
    if (f->on.limited) {
        mf_json_write_string(&w, "runs_on", mf_target_info_of(f->on.target)->word);
    }
    mf_to_fit_json(&w, j, &f->ranking.to_fit);
    mf_fit_report_json_fastest(&w, j, f->ranking.with, &f->ranking.fastest);
    mf_doubts_json(&w, &f->doubts);
    mf_json_write_string(&w, "verdict", f->verdict.decides);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, NULL);
}

/* --- the command ------------------------------------------------------------------------------ */

static mf_status judge(const mf_args *a, const mf_cli *cli, const mf_job *j, findings *f,
                       mf_err *e) {
    const int64_t *said = a->value[MF_OPT_TOP].given ? &a->value[MF_OPT_TOP].i : NULL;
    const bool json = a->value[MF_OPT_JSON].given;
    const int64_t all = json ? INT64_MAX : MISSING_ALONE;
    const char *word = mf_args_text(a, MF_OPT_RUNS_ON, NULL);
    mf_problem problem, limited;
    mf_progress progress;
    mf_status s = mf_problem_from_job(j, &problem, e);
    s = s == MF_OK ? mf_runs_on_parse(word, j->software.name, &f->on, e) : s;
    s = s == MF_OK ? mf_runs_on_check_model(&f->on, word, j->software.name, &j->model, e) : s;
    s = s == MF_OK ? mf_runs_on_fit_problem(&f->on, &problem, &limited, e) : s;
    if (s != MF_OK) {
        return s;
    }
    mf_progress_init(&progress, cli->err, cli->err_is_terminal, a->value[MF_OPT_PROGRESS].given);
    const mf_fit_options o = {.cancel = cli->cancel,
                              .progress = mf_progress_fit,
                              .user = &progress,
                              .shown = said != NULL ? *said : all,
                              .threads = mf_args_threads(a)};
    const mf_status found = mf_planner_fit(&limited, &o, &f->fit, e);
    mf_progress_end(&progress);
    f->interrupted = found == MF_INTERRUPTED;
    if (found != MF_OK && found != MF_INFEASIBLE && !(f->interrupted && f->fit.count > 0)) {
        return found;
    }
    f->ranked = !f->interrupted && effort(a) > 0;
    if (f->ranked) {
        const mf_fit_rank_options how = {.rows = FASTEST,
                                         .shown = o.shown,
                                         .remedies = MF_TO_FIT_SHOWN,
                                         .effort_us = effort(a),
                                         .threads = o.threads,
                                         .cancel = cli->cancel,
                                         .on = &f->on};
        s = mf_fit_rank(&problem, &f->fit, &how, &f->ranking, e);
        f->interrupted |= s == MF_INTERRUPTED;
    }
    if (s != MF_OK && s != MF_INTERRUPTED) {
        return s;
    }
    s = MF_OK;
    mf_doubt_job(&f->doubts, &j->model, &j->cluster, &j->plan.layout);
    mf_doubts_print(a->notes, &f->doubts);
    mf_verdict_text_fit(&f->verdict, &f->fit, &f->ranking.fastest, f->ranking.with);
    if (json) {
        s = print_json(cli->out, j, f, o.shown);
    } else {
        print_text(cli->out, j, f, said);
    }
    if (s == MF_OK && f->interrupted) {
        return mf_err_set(e, MF_INTERRUPTED, "interrupted: what was found so far was printed");
    }
    if (s == MF_OK && found == MF_INFEASIBLE) {
        mf_problem_nothing_fits(&f->fit, e);
    }
    return s == MF_OK ? found : s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_job j = {0};
    findings *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_args_require_sizes(a, e);
    s = s == MF_OK ? mf_args_load(&j, a, mf_job_load, e) : s;
    s = s == MF_OK ? judge(a, cli, &j, f, e) : s;
    mf_fit_ranking_clear(&f->ranking);
    mf_fit_result_clear(&f->fit);
    free(f);
    mf_job_clear(&j);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_MODEL,        MF_OPT_SET,     MF_OPT_STRICT,   MF_OPT_CLUSTER,    MF_OPT_GPUS,
    MF_OPT_GLOBAL_BATCH, MF_OPT_SEQ,     MF_OPT_SOFTWARE, MF_OPT_STORE,      MF_OPT_NO_CORRECTIONS,
    MF_OPTS_SEARCHED,    MF_OPT_ROUTING, MF_OPT_TOP,      MF_OPT_PRECISIONS, MF_OPT_RUNS_ON,
    MF_OPT_EFFORT,       MF_OPT_THREADS, MF_OPT_VERBOSE,  MF_OPT_JSON,       MF_OPT_PROGRESS,
    MF_OPT_HELP,         MF_OPT_COUNT,
};

const mf_command mf_cmd_fit = {
    .name = "fit",
    .summary = "every memory-feasible layout, and what the others lack",
    .usage = {"--model NAME --cluster NAME --gpus N --global-batch N --seq N [options]"},
    .about =
        "Goes through all combinations of degrees, each with the choices that need the least "
        "memory, and says which fit, with the memory they need, and how much the others lack. "
        "A layout option that you give pins its dimension. What fits is listed by the time of "
        "a step, of as many combinations as the effort allows, each with the fastest of a few "
        "usual choices that fit. Below, a short search "
        "lists the fastest combinations, each with the choices that suit it, and the step "
        "time that it proves none to beat; --effort 0 skips both and lists by headroom. Under a "
        "megatron-* profile only what Megatron can express is listed (--runs-on any lifts "
        "that).\nWhen "
        "nothing fits, it says how much memory is missing, which options make the job fit, "
        "how long a step takes in the fastest layout found with each, and the smallest number "
        "of GPUs that would do (above one node in whole nodes; in larger steps where it is "
        "more than 32 nodes away), and ends with exit code 3. Interrupt it (Ctrl-C) to get "
        "what was found so far.",
    .example = "moefold fit --model mixtral-8x22b --cluster h100 --gpus 64 --global-batch 256 "
               "--seq 4096",
    .searches = true,
    .options = options,
    .run = run,
};
