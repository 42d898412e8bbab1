/* cmd_plan.c - `moefold plan`: the fastest plan, the runners-up, and the proof. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "core/base/heap_prefault.h"
#include "job/load/problem.h"
#include "job/search/runs_on.h"
#include "report/basis/doubts.h"
#include "report/basis/host_copies_text.h"
#include "report/folder/report_folder.h"
#include "report/search/search_report.h"
#include "report/step/report.h"
#include "report/step/verdict_text.h"
#include "report/text/progress.h"

#include <math.h>
#include <string.h>

/* --- for people ------------------------------------------------------------------------------- */

static mf_status print_text(FILE *out, const mf_job *j, const mf_search_result *r,
                            const mf_host_copies *h, const mf_under_megatron *megatron,
                            const mf_verdict_text *verdict, mf_err *e) {
    mf_report report = mf_report_of(j, &r->plan[0]);
    mf_status s = mf_step_power_of(j, report.plan, &report.power, e);
    if (s != MF_OK) {
        return s;
    }
    report.megatron = megatron;
    mf_report_print(out, &report); /* host copies below, with what the search knows of them */
    mf_search_report_ranking(out, r);
    putc('\n', out);
    mf_host_copies_print(out, h);
    mf_search_report_print(out, &r->stats);
    mf_verdict_text_print(out, verdict);
    return MF_OK;
}

/* --- JSON ------------------------------------------------------------------------------------- */

static mf_status json_plan(mf_json_writer *w, const char *key, const mf_job *j, const mf_plan *p,
                           const mf_under_megatron *megatron, mf_err *e) {
    mf_report report = mf_report_of(j, p);
    mf_status s = mf_report_add_up(&report, j, e);
    report.megatron = megatron;
    mf_json_write_object(w, key, false);
    mf_report_json(w, &report);
    mf_plan_write(w, "plan", p);
    mf_json_write_end(w);
    return s;
}

static mf_status print_json(FILE *out, const mf_job *j, const mf_search_result *r,
                            const mf_fit_result *fit, const mf_host_copies *h,
                            const mf_under_megatron *megatron, const mf_doubts *doubts,
                            const mf_verdict_text *verdict, mf_err *e) {
    mf_json_writer w;
    mf_status s = MF_OK;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    if (r->count > 0) {
        s = json_plan(&w, "best", j, &r->plan[0], megatron, e);
    } else {
        mf_json_write_null(&w, "best");
    }
    mf_json_write_array(&w, "runners_up", false);
    for (int i = 1; i < r->count && s == MF_OK; i++) {
        s = json_plan(&w, NULL, j, &r->plan[i], NULL, e);
    }
    mf_json_write_end(&w);
    mf_search_report_json(&w, &r->stats, r->count > 0);
    if (h != NULL) {
        mf_host_copies_json(&w, h);
    }
    if (doubts != NULL) {
        mf_doubts_json(&w, doubts);
    }
    if (fit != NULL) {
        mf_json_write_string(&w, "missing", fit->missing);
        if (fit->smallest_gpus > 0) {
            mf_json_write_i64(&w, "smallest_gpus", fit->smallest_gpus);
        } else {
            mf_json_write_null(&w, "smallest_gpus");
        }
    }
    if (verdict != NULL) {
        mf_json_write_string(&w, "verdict", verdict->decides);
    }
    mf_json_write_end(&w);
    if (s != MF_OK) {
        mf_json_writer_clear(&w);
        return s;
    }
    return mf_output_json(&w, out, e);
}

/* --- the command ------------------------------------------------------------------------------ */

/* Nothing fits: says what is missing, which phase 1 knows best. */
static mf_status explain_nothing(const mf_args *a, const mf_cli *cli, const mf_job *j,
                                 const mf_problem *problem, const mf_search_result *r, bool json,
                                 mf_err *e) {
    mf_fit_result fit = {0};
    mf_err why;
    mf_err_clear(&why);
    mf_progress progress;
    mf_progress_init(&progress, cli->err, cli->err_is_terminal, a->value[MF_OPT_PROGRESS].given);
    const mf_fit_options o = {.cancel = cli->cancel,
                              .progress = mf_progress_fit,
                              .user = &progress,
                              .shown = 1,
                              .threads = mf_args_threads(a)};
    mf_status s = mf_planner_fit(problem, &o, &fit, &why);
    mf_progress_end(&progress);
    if (s == MF_INFEASIBLE) {
        if (json) {
            (void)print_json(cli->out, j, r, &fit, NULL, NULL, NULL, NULL, NULL);
        }
        mf_problem_nothing_fits(&fit, e);
    } else if (s == MF_LAYOUT) {
        mf_err_set(e, s, "%s", why.text); /* the options leave nothing to search */
    } else if (s == MF_INTERRUPTED) {
        mf_err_set(e, s, "nothing fits; interrupted before it was found what is missing");
    }
    mf_fit_result_clear(&fit);
    return s == MF_INTERRUPTED || s == MF_LAYOUT ? s : MF_INFEASIBLE;
}

static mf_status search(const mf_args *a, const mf_cli *cli, const mf_problem *problem,
                        const char *software, mf_search_result *r, mf_host_copies *h,
                        mf_host_gain **gain, mf_err *e) {
    mf_search_options o;
    mf_progress progress;
    mf_search_options_init(&o);
    mf_progress_init(&progress, cli->err, cli->err_is_terminal, a->value[MF_OPT_PROGRESS].given);
    o.cancel = cli->cancel;
    o.progress = mf_progress_search;
    o.user = &progress;
    o.threads = mf_args_threads(a);
    if (a->value[MF_OPT_TOP].given) {
        o.top = (int)a->value[MF_OPT_TOP].i;
    }
    if (a->value[MF_OPT_GAP].given) {
        o.gap = fmax(a->value[MF_OPT_GAP].f, 1e-9); /* 0 would mean the default */
    }
    if (a->value[MF_OPT_MIN_HEADROOM].given) {
        const double memory_B = mf_cluster_usable_B(mf_cost_cluster(problem->cost), 0.0);
        o.min_headroom_B = a->value[MF_OPT_MIN_HEADROOM].f * memory_B;
    }
    const char *word = mf_args_text(a, MF_OPT_RUNS_ON, NULL);
    mf_runs_on on;
    mf_status s = mf_args_effort(a, &o.budget, e);
    s = s == MF_OK ? mf_runs_on_parse(word, software, &on, e) : s;
    s = s == MF_OK ? mf_runs_on_check_model(&on, word, software, problem->model, e) : s;
    if (s == MF_OK && !on.limited && !a->value[MF_OPT_SEARCH_OFFLOAD].given) {
        s = mf_host_gain_begin(problem, &o, gain, e);
    }
    if (s == MF_OK) {
        s = mf_host_copies_search(mf_runs_on_search, &on, problem, &o,
                                  a->value[MF_OPT_SEARCH_OFFLOAD].given, r, h, e);
        if (s == MF_INFEASIBLE && !a->value[MF_OPT_OFFLOAD_OPTIMIZER].given &&
            problem->base.offload_optimizer <= 0 &&
            !mf_cluster_is_cpu(mf_cost_cluster(problem->cost))) {
            s = mf_host_copies_search_optimizer(mf_runs_on_search, &on, problem, &o, r, h, e);
        }
    }
    if (s == MF_OK && on.limited) {
        s = mf_runs_on_price(&on, problem, &o, r, e);
    }
    mf_progress_end(&progress);
    return s;
}

static mf_status say_verdict(mf_verdict_text *v, const mf_args *a, const char *saved,
                             const mf_report *report, const mf_search_stats *stats, mf_err *e) {
    const char *word = mf_args_text(a, MF_OPT_RUNS_ON, NULL);
    mf_runs_on on;
    mf_status s = mf_runs_on_parse(word, report->software->name, &on, e);
    s = s == MF_OK ? mf_runs_on_check_model(&on, word, report->software->name, report->model, e)
                   : s;
    mf_verdict_text_plan(v, report, stats, saved, s == MF_OK && on.limited ? &on.target : NULL);
    return s;
}

/* The job and its problem, while the kernel maps memory for the search. */
static mf_status prepare(const mf_args *a, mf_job *j, mf_problem *problem, mf_err *e) {
    mf_heap_prefault prefault;
    mf_heap_begin_prefault(&prefault, mf_args_threads(a));
    mf_status s = mf_args_load(j, a, mf_job_load, e);
    if (s == MF_OK) {
        s = mf_problem_from_job(j, problem, e);
    }
    mf_heap_end_prefault(&prefault);
    return s;
}

/* Prints, saves and reports what was found. */
static mf_status tell(const mf_args *a, const mf_cli *cli, const mf_job *j,
                      const mf_problem *problem, const mf_search_result *r,
                      const mf_host_copies *host, const mf_under_megatron *megatron, mf_err *e) {
    mf_doubts doubts;
    mf_verdict_text verdict;
    mf_doubts_of_plan(j, &r->plan[0], &doubts);
    mf_doubts_print(a->notes, &doubts);
    mf_report report = mf_report_of(j, &r->plan[0]);
    report.megatron = megatron;
    report.copies = *host;
    /* what cannot be saved is printed all the same: the search took a while */
    mf_err unsaved;
    char in_folder[MF_REPORT_FILE];
    const char *folder = mf_args_text(a, MF_OPT_REPORT, NULL);
    const char *out = mf_args_text(a, MF_OPT_OUT, mf_report_plan_file(folder, in_folder));
    const mf_status saved = out != NULL ? mf_plan_save(&r->plan[0], out, &unsaved) : MF_OK;
    mf_status s = say_verdict(&verdict, a, saved == MF_OK ? out : NULL, &report, &r->stats, e);
    if (s == MF_OK && a->value[MF_OPT_JSON].given) {
        s = print_json(cli->out, j, r, NULL, host, megatron, &doubts, &verdict, e);
    } else if (s == MF_OK) {
        s = print_text(cli->out, j, r, host, megatron, &verdict, e);
    }
    if (s == MF_OK && saved != MF_OK) {
        s = mf_err_set(e, saved, "%s", unsaved.text);
    }
    if (s == MF_OK) {
        mf_report_folder to = mf_args_report(a, cli);
        to.cancel = NULL; /* what was found is kept; a second signal ends the process */
        const mf_report_step step = {.report = &report,
                                     .problem = problem,
                                     .found = r,
                                     .saved = out == in_folder,
                                     .verdict = verdict.decides,
                                     .runs_on = mf_args_text(a, MF_OPT_RUNS_ON, NULL),
                                     .doubts = &doubts};
        s = mf_report_add_up(&report, j, e);
        s = s == MF_OK ? mf_report_folder_step(to, j, &step, e) : s;
    }
    return s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_job j = {0};
    mf_problem problem;
    mf_search_result r = {0};
    mf_host_copies host = {0};
    mf_host_gain *gain = NULL;
    mf_under_megatron there;
    const mf_under_megatron *megatron = NULL;
    bool json = a->value[MF_OPT_JSON].given;
    mf_status found = MF_OK;
    mf_status s = mf_args_require_sizes(a, e);
    s = s == MF_OK ? mf_args_check_out(a, e) : s;
    s = s == MF_OK ? mf_report_folder_create(mf_args_text(a, MF_OPT_REPORT, NULL), e) : s;
    s = s == MF_OK ? prepare(a, &j, &problem, e) : s;
    if (s != MF_OK) {
        goto out;
    }
    s = found = search(a, cli, &problem, j.software.name, &r, &host, &gain, e);
    if (found == MF_INFEASIBLE) {
        mf_doubts doubts = {0};
        mf_doubt_job(&doubts, &j.model, &j.cluster, &j.plan.layout); /* a slip may be why */
        mf_doubts_print(a->notes, &doubts);
        s = explain_nothing(a, cli, &j, &problem, &r, json, e);
        goto out;
    }
    if (found == MF_INTERRUPTED && r.count == 0) {
        s = mf_err_set(e, MF_INTERRUPTED, "interrupted before a plan was found");
        goto out;
    }
    if (found != MF_OK && found != MF_INTERRUPTED) {
        goto out;
    }
    s = mf_host_copies_of_plan(&j, &r.plan[0], &host, e);
    if (s == MF_OK && strcmp(j.software.name, "moefold") == 0 && !mf_cluster_is_cpu(&j.cluster)) {
        s = mf_job_under_megatron(&j, &r.plan[0], &there, e);
        megatron = &there;
    }
    s = s == MF_OK ? mf_host_gain_end(&gain, &host, e) : s;
    if (s != MF_OK) {
        goto out;
    }
    s = tell(a, cli, &j, &problem, &r, &host, megatron, e);
    if (s == MF_OK && found == MF_INTERRUPTED) {
        s = mf_err_set(e, MF_INTERRUPTED, "interrupted: the best plan so far was printed");
    }
out:
    mf_host_gain_drop(gain);
    mf_search_result_clear(&r);
    mf_job_clear(&j);
    return s;
}

static const mf_option_id options[] = {
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
    MF_OPTS_SEARCHED,
    MF_OPT_ROUTING,
    MF_OPT_TOP,
    MF_OPT_PRECISIONS,
    MF_OPT_RUNS_ON,
    MF_OPT_EVEN_STAGES,
    MF_OPT_SEARCH_OFFLOAD,
    MF_OPT_MIN_HEADROOM,
    MF_OPT_GAP,
    MF_OPT_EFFORT,
    MF_OPT_THREADS,
    MF_OPT_OUT,
    MF_OPT_REPORT,
    MF_OPT_VERBOSE,
    MF_OPT_JSON,
    MF_OPT_PROGRESS,
    MF_OPT_HELP,
    MF_OPT_COUNT,
};

const mf_command mf_cmd_plan = {
    .name = "plan",
    .summary = "the fastest plan, the runners-up, and the proof (bound, gap)",
    .usage = {"--model NAME --cluster NAME --gpus N --global-batch N --seq N [options]"},
    .about = "Searches all layouts of the job for the fastest plan that fits, and proves how far "
             "from the fastest one it can be at most. The search chooses degrees, schedule, "
             "micro-batch, ZeRO levels, dispatcher, the layers of each stage and the memory choice "
             "of every layer; a layout option that you give pins its dimension.\nThe proof holds "
             "under the cost model: its bound is the least step time that any plan which is not "
             "ruled out can have. Interrupt it (Ctrl-C) to get the best plan so far. The same "
             "input gives the same plan file, byte for byte.",
    .example = "moefold plan --model deepseek-v3 --cluster h100 --gpus 1024 --global-batch 8192 "
               "--seq 4096 --out plan.json",
    .searches = true,
    .options = options,
    .run = run,
};
