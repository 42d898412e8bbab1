/* cmd_fit.c - `moefold fit`: which layouts fit into memory, and what the others lack. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "job/fit_fastest.h"
#include "job/problem.h"
#include "report/doubts.h"
#include "report/fit_report.h"
#include "report/output.h"
#include "report/to_fit.h"

/* Rows of each table where --top does not say. */
enum { LEANEST = 8, MISSING = 6, MISSING_ALONE = 12, FASTEST = 8 };

static mf_status print_json(FILE *out, const mf_job *j, const mf_fit_result *r, int64_t top,
                            bool interrupted, const mf_doubts *doubts, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_fit_report_json(&w, j, r, top, interrupted);
    mf_doubts_json(&w, doubts);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

/* Of the steps that every layout may take: the one that loses least time, or saves most memory. */
static const mf_one_step *step_of_all(const mf_layout *from, const mf_steps *steps, bool memory) {
    const mf_one_step *best = NULL;
    for (int i = 0; i < steps->count; i++) {
        const mf_one_step *step = &steps->step[i];
        if (mf_step_is_of_held(from, step) &&
            (best == NULL || (memory && step->peak_B < best->peak_B))) {
            best = step;
        }
    }
    return best;
}

/* The leanest degrees are slow ones. What the job takes with the remedy that loses least time, and
 * with the one that saves most memory, which leaves faster layouts room: the faster of both. */
static mf_status say_fastest(const mf_cli *cli, const mf_args *a, const mf_problem *p,
                             const mf_layout *from, const mf_steps *steps, mf_err *e) {
    const mf_one_step *step[] = {step_of_all(from, steps, true), step_of_all(from, steps, false)};
    mf_search_result best = {0};
    char among[MF_STEP_TEXT + 8] = "";
    mf_status s = MF_OK;
    for (int i = 0; i < (step[0] != step[1] ? 2 : 1) && step[i] != NULL && s == MF_OK; i++) {
        mf_search_result found = {0};
        mf_problem other = *p;
        other.base.moments_bf16 = step[i]->layout.moments_bf16;
        other.base.offload_optimizer = step[i]->layout.offload_optimizer;
        s = mf_fit_fastest(&other, FASTEST, mf_args_threads(a), cli->cancel, &found, e);
        if (found.count > 0 && (best.count == 0 || found.plan[0].prediction.step_time_s <
                                                       best.plan[0].prediction.step_time_s)) {
            const mf_search_result slower = best;
            best = found;
            found = slower;
            snprintf(among, sizeof among, "with %s", step[i]->what);
        }
        mf_search_result_clear(&found);
    }
    if (s == MF_OK) {
        mf_fit_report_fastest(cli->out, among, &best);
    }
    mf_search_result_clear(&best);
    return s;
}

/* What makes the combination that misses least fit: single steps and pairs. */
static mf_status say_to_fit(const mf_cli *cli, const mf_args *a, const mf_problem *p,
                            const mf_fit_result *r, mf_err *e) {
    mf_steps steps = {0};
    mf_assignment even;
    const mf_layout *l = &r->entry[0].layout;
    mf_status s = mf_assignment_even(p->model, l, &even, e);
    if (s == MF_OK) {
        s = mf_steps_to_fit(p, l, &even, NULL, cli->cancel, MF_TO_FIT_SHOWN, &steps, e);
    }
    if (s == MF_OK) {
        mf_to_fit_print(cli->out, &steps, 0);
        s = say_fastest(cli, a, p, l, &steps, e);
    }
    mf_steps_clear(&steps);
    return s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_job j = {0};
    mf_problem problem;
    mf_fit_result r = {0};
    mf_search_result fastest = {0};
    mf_doubts doubts = {0};
    mf_status found = MF_OK;
    bool json = a->value[MF_OPT_JSON].given;
    int64_t top = a->value[MF_OPT_TOP].given ? a->value[MF_OPT_TOP].i
                  : json                     ? INT64_MAX
                                             : MISSING_ALONE;
    mf_status s = mf_args_require_sizes(a, e);
    if (s == MF_OK) {
        s = mf_args_load(&j, a, mf_job_load, e);
    }
    if (s == MF_OK) {
        s = mf_problem_from_job(&j, &problem, e);
    }
    if (s == MF_OK) {
        mf_progress progress;
        mf_progress_init(&progress, cli, a);
        const mf_fit_options o = {.cancel = cli->cancel,
                                  .progress = mf_progress_fit,
                                  .user = &progress,
                                  .shown = top,
                                  .threads = mf_args_threads(a)};
        s = found = mf_planner_fit(&problem, &o, &r, e);
        mf_progress_end(&progress);
    }
    bool interrupted = s == MF_INTERRUPTED && r.count > 0;
    if (s != MF_OK && found != MF_INFEASIBLE && !interrupted) {
        goto out;
    }
    if (s == MF_OK && !json && r.feasible > 0) {
        s = mf_fit_fastest(&problem, FASTEST, mf_args_threads(a), cli->cancel, &fastest, e);
        interrupted = s == MF_INTERRUPTED;
        if (s != MF_OK && !interrupted) {
            goto out;
        }
    }
    mf_doubt_job(&doubts, &j.model, &j.cluster, &j.plan.layout);
    mf_doubts_print(a->notes, &doubts);
    if (json) {
        s = print_json(cli->out, &j, &r, top, interrupted, &doubts, NULL);
        s = s == MF_OK ? found : s;
    } else {
        const bool said = a->value[MF_OPT_TOP].given;
        mf_fit_report_print(cli->out, &j, &r, &fastest, said ? top : LEANEST,
                            said || r.feasible == 0 ? top : MISSING);
    }
    if (found == MF_INFEASIBLE && !json && r.count > 0) {
        mf_status said = say_to_fit(cli, a, &problem, &r, e);
        if (said != MF_OK) {
            s = said;
            goto out;
        }
    }
    if (found == MF_INFEASIBLE) {
        mf_problem_nothing_fits(&r, e);
    } else if (interrupted && s == MF_INTERRUPTED) {
        mf_err_set(e, s, "interrupted: what was found so far was printed");
    }
out:
    mf_search_result_clear(&fastest);
    mf_fit_result_clear(&r);
    mf_job_clear(&j);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_MODEL,        MF_OPT_SET,      MF_OPT_STRICT,     MF_OPT_CLUSTER, MF_OPT_GPUS,
    MF_OPT_GLOBAL_BATCH, MF_OPT_SEQ,      MF_OPT_SOFTWARE,   MF_OPT_STORE,   MF_OPTS_SEARCHED,
    MF_OPT_ROUTING,      MF_OPT_TOP,      MF_OPT_PRECISIONS, MF_OPT_THREADS, MF_OPT_VERBOSE,
    MF_OPT_JSON,         MF_OPT_PROGRESS, MF_OPT_HELP,       MF_OPT_COUNT,
};

const mf_command mf_cmd_fit = {
    .name = "fit",
    .summary = "every memory-feasible layout, and what the others lack",
    .usage = {"--model NAME --cluster NAME --gpus N --global-batch N --seq N [options]"},
    .about =
        "Goes through all combinations of degrees with the choices that need the least memory "
        "and says which fit, with their peak and headroom, and by how much the rest misses. A "
        "layout option that is given pins its dimension. Behind stand the fastest combinations "
        "that a "
        "short search finds, each with the choices that suit it, ranked by step time, and the time "
        "that the search proves none to beat (not in JSON: plan gives them). When nothing fits it "
        "says what is missing, with "
        "which options it would and how long a step then takes, in this layout and in the fastest "
        "that short searches find, and the smallest number of GPUs "
        "that would do (beyond one node in whole nodes; "
        "in steps of several where it is more than 32 nodes away), and ends with exit code 3. "
        "Interrupt it (Ctrl-C) to get what was found so far.",
    .example = "moefold fit --model mixtral-8x22b --cluster h100 --gpus 64 --global-batch 256 "
               "--seq 4096",
    .searches = true,
    .options = options,
    .run = run,
};
