/* cmd_tune.c - `moefold tune`: the three phases on one job, against the layout it runs with. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "job/host_copies.h"
#include "job/import_job.h"
#include "job/problem.h"
#include "job/runs_on.h"
#include "launch/steps.h"
#include "report/doubts.h"
#include "report/host_copies_text.h"
#include "report/output.h"
#include "report/report_folder.h"
#include "report/text/show.h"
#include "report/verdict_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DIMENSIONS 16
#define SHOWN_REMEDIES 4

typedef struct findings {
    mf_imported x;
    mf_problem problem;
    mf_runs_on on;
    mf_fit_result fit;
    mf_steps steps;  /* single ones, fastest first */
    mf_steps to_fit; /* of a layout that does not fit */
    mf_search_result search;
    mf_host_copies host; /* of the best plan */
    mf_explanation explanation;
    mf_doubts doubts; /* of the best plan, or of the present layout */
    mf_verdict_text verdict;
} findings;

/* A plan that is as fast as the present layout to the fourth digit is no reason to change. */
#define LEAST_GAIN 0.0005

/* The best plan, if it is worth a change; else NULL. */
static const mf_plan *better_plan(const findings *f) {
    const mf_plan_prediction *now = &f->x.job.plan.prediction;
    const mf_plan *best = f->search.count > 0 ? &f->search.plan[0] : NULL;
    const bool worth = best != NULL && (!now->fits || best->prediction.step_time_s <
                                                          now->step_time_s * (1 - LEAST_GAIN));
    return worth ? best : NULL;
}

/* --- the phases ------------------------------------------------------------------------------- */

/* Plans that keep activations on the host compete where the job does so, or where nothing fits
 * without. */
static mf_status find_best(findings *f, mf_search_options *o, mf_err *e) {
    const mf_plan *now = &f->x.job.plan;
    mf_problem p = f->problem;
    if (!now->prediction.fits) {
        return mf_host_copies_search(mf_runs_on_search, &f->on, &p, o, false, &f->search, &f->host,
                                     e);
    }
    p.pinned |= mf_host_copies_of(now) ? 0 : MF_PIN(OFFLOAD);
    o->known_s = now->prediction.step_time_s;
    mf_status s = mf_runs_on_search(&f->on, &p, o, &f->search, e);
    f->host.used = f->search.count > 0 && mf_host_copies_of(&f->search.plan[0]);
    return s;
}

static mf_status find_all(const mf_args *a, const mf_cli *cli, findings *f, mf_err *e) {
    const mf_plan *now = &f->x.job.plan;
    const mf_layout *l = &now->layout;
    const mf_target *target = f->on.limited ? &f->on.target : NULL;
    const mf_fit_options fit = {.cancel = cli->cancel, .shown = 1, .threads = mf_args_threads(a)};
    mf_search_options o;
    mf_search_options_init(&o);
    o.cancel = cli->cancel;
    o.threads = mf_args_threads(a);
    o.top = 1;
    mf_status s = mf_planner_fit(&f->problem, &fit, &f->fit, e);
    s = s == MF_INFEASIBLE ? MF_OK : s;
    if (s == MF_OK) {
        s = mf_steps_single(&f->problem, l, &now->assignment, target, cli->cancel, &f->steps, e);
    }
    if (s == MF_OK && !now->prediction.fits) {
        s = mf_steps_to_fit(&f->problem, l, &now->assignment, target, cli->cancel, 3, &f->to_fit,
                            e);
    }
    if (s == MF_OK && f->fit.feasible > 0) {
        s = find_best(f, &o, e);
        s = s == MF_INFEASIBLE ? MF_OK : s; /* nothing is faster */
    }
    return s == MF_OK ? mf_planner_explain(&f->problem, l, &now->assignment, &f->explanation, e)
                      : s;
}

/* --- for people ------------------------------------------------------------------------------- */

static void print_layout(FILE *out, const char *name, const mf_plan *plan) {
    const mf_layout *l = &plan->layout;
    fprintf(out,
            "%-12sTP %lld CP %lld PP %lld VPP %lld EP %lld ETP %lld, micro-batch %lld, ZeRO %d/%d, "
            "%s, %s\n",
            name, (long long)l->tp, (long long)l->cp, (long long)l->pp, (long long)l->vpp,
            (long long)l->ep, (long long)l->etp, (long long)l->mbs, l->zero, l->expert_zero,
            mf_schedule_text(l->schedule), mf_dispatcher_text(l->dispatcher));
    char text[448];
    int at = 0;
    while (mf_report_memory_choice(&plan->assignment, &at, text, sizeof text)) {
        fprintf(out, "            %s\n", text);
    }
    if (at == 0) {
        fputs("            no layer recomputes\n", out);
    }
}

/* How many positions each virtual stage holds, where they stand otherwise than now. */
static void print_split(FILE *out, const mf_plan *now, const mf_plan *best) {
    const mf_assignment *a = &now->assignment, *b = &best->assignment;
    const size_t firsts = (size_t)b->vstages + 1;
    if (b->vstages == 1 ||
        (a->vstages == b->vstages && memcmp(a->first, b->first, firsts * sizeof *b->first) == 0)) {
        return;
    }
    fputs("            positions by virtual stage ", out);
    for (int v = 0, to; v < b->vstages; v = to) {
        const int held = b->first[v + 1] - b->first[v];
        for (to = v + 1; to < b->vstages && b->first[to + 1] - b->first[to] == held; to++) {
        }
        fprintf(out, to - v > 1 ? "%s%d x %d" : "%s%d", v > 0 ? ", " : "", held, to - v);
    }
    putc('\n', out);
}

static void print_step(FILE *out, const mf_one_step *s, const mf_plan_prediction *now) {
    fprintf(out, "  %-52s %10s %+7.1f %% %+8.2f GB\n", s->what, mf_show_time(s->step_time_s).s,
            100 * (s->step_time_s / now->step_time_s - 1), (s->peak_B - now->peak_memory_B) / 1e9);
}

static void print_fits(FILE *out, const findings *f) {
    const mf_plan_prediction *now = &f->x.job.plan.prediction;
    fprintf(out, "1. what fits\n  %lld of %lld combinations of degrees fit; yours %s (%s of %s)\n",
            (long long)f->fit.feasible, (long long)f->fit.count, now->fits ? "does" : "does not",
            mf_show_bytes(now->peak_memory_B).s, mf_show_bytes(now->usable_B).s);
    for (int i = 0; i < f->to_fit.count; i++) {
        print_step(out, &f->to_fit.step[i], now);
    }
}

/* The fastest step of each dimension that fits, if it gains. */
static void print_steps(FILE *out, const findings *f) {
    const mf_plan_prediction *now = &f->x.job.plan.prediction;
    bool seen[MOST_DIMENSIONS] = {false};
    fputs("\n2. single steps from here, the best of each kind\n", out);
    int shown = 0;
    for (int i = 0; i < f->steps.count && shown < 8; i++) {
        const mf_one_step *s = &f->steps.step[i];
        bool gains = s->fits && s->step_time_s < now->step_time_s * (1 - LEAST_GAIN);
        if (gains && !seen[s->dimension]) {
            seen[s->dimension] = true;
            print_step(out, s, now);
            shown++;
        }
    }
    if (shown == 0) {
        fputs("  none is faster and fits\n", out);
    }
}

static const mf_one_step *step_named(const findings *f, const char *what) {
    for (int i = 0; i < f->steps.count; i++) {
        if (strcmp(f->steps.step[i].what, what) == 0) {
            return &f->steps.step[i];
        }
    }
    return NULL;
}

/* Remedies, with what those that are steps from here cost in memory. Schedules that the target has
 * not are no steps. */
static void print_bottlenecks(FILE *out, const findings *f) {
    const mf_plan_prediction *now = &f->x.job.plan.prediction;
    const mf_explanation *x = &f->explanation;
    fputs("\n3. what holds it back\n  ", out);
    mf_show_wrap(out, x->time, 2, 2, 99);
    for (int i = 0, shown = 0; i < x->remedies && shown < SHOWN_REMEDIES; i++) {
        const mf_remedy *r = &x->remedy[i];
        const mf_one_step *s = step_named(f, r->what);
        if (s != NULL) {
            print_step(out, s, now);
        } else if (!f->on.limited || strncmp(r->what, "--schedule ", 11) != 0) {
            fprintf(out, "  %-52s %10s %+7.1f %%\n", r->what, mf_show_time(r->step_time_s).s,
                    -100 * r->gain);
        } else {
            continue;
        }
        shown++;
    }
}

static void say_verdict(findings *f) {
    const mf_plan_prediction *now = &f->x.job.plan.prediction;
    const mf_plan *best = better_plan(f);
    char *out = f->verdict.decides;
    const size_t size = sizeof f->verdict.decides;
    if (best == NULL && !now->fits) {
        mf_err why;
        mf_err_clear(&why);
        mf_problem_nothing_fits(&f->fit, &why);
        snprintf(out, size, "%.760s",
                 f->fit.feasible == 0 ? why.text : "the search finds no plan that fits");
    } else if (best == NULL) {
        snprintf(out, size, "keep it: the search finds nothing faster%s; at best %.1f %% are left",
                 f->on.limited ? " that the program can express" : "",
                 100 * (1 - f->search.stats.lower_bound_s / now->step_time_s));
    } else {
        const mf_plan_prediction *then = &best->prediction;
        snprintf(out, size,
                 "%s a step (%s to %s) instead of %s: %.2f x as fast, with %s of memory free; no "
                 "plan takes less than %s",
                 mf_show_time(then->step_time_s).s, mf_show_time(then->step_time_low_s).s,
                 mf_show_time(then->step_time_high_s).s, mf_show_time(now->step_time_s).s,
                 now->step_time_s / then->step_time_s,
                 mf_show_bytes(then->usable_B - then->peak_memory_B).s,
                 mf_show_time(f->search.stats.lower_bound_s).s);
    }
}

static void say_next(findings *f, const char *saved) {
    f->verdict.next[0] = '\0';
    if (better_plan(f) != NULL) {
        const mf_report report = mf_report_of(&f->x.job, better_plan(f));
        mf_verdict_text_run(&f->verdict, &report, saved, f->on.limited ? &f->on.target : NULL);
    }
}

static void print_change(FILE *out, const findings *f) {
    const mf_plan_prediction *now = &f->x.job.plan.prediction;
    const mf_plan *best = better_plan(f);
    if (f->x.log.steps > 0 || best != NULL) {
        putc('\n', out);
    }
    if (f->x.log.steps > 0) {
        fprintf(out, "measured    %s a step, predicted %s\n", mf_show_time(f->x.log.step_time_s).s,
                mf_show_time(now->step_time_s).s);
    }
    if (best != NULL) {
        print_layout(out, "change to", best);
        print_split(out, &f->x.job.plan, best);
        mf_host_copies_print(out, &f->host, best->prediction.step_time_s);
    }
}

static void print_text(FILE *out, const findings *f) {
    const mf_job *j = &f->x.job;
    const mf_plan_prediction *now = &j->plan.prediction;
    fprintf(out, "%s on %lld x %s, %s samples of %s tokens a step; software profile %s%s%s\n",
            j->model.name, (long long)j->plan.layout.gpus, j->cluster.name,
            mf_show_i64(j->plan.layout.gbs).s, mf_show_i64(j->plan.layout.seq).s, j->software.name,
            f->on.limited ? ", runs on " : "",
            f->on.limited ? mf_target_info_of(f->on.target)->program : "");
    print_layout(out, "now", &j->plan);
    fprintf(out, "            %s a step, %.1f TFLOP/s/GPU\n\n", mf_show_time(now->step_time_s).s,
            now->model_tflops_per_gpu / 1e12 > 1 ? now->model_tflops_per_gpu / 1e12
                                                 : now->model_tflops_per_gpu);
    print_fits(out, f);
    print_steps(out, f);
    print_bottlenecks(out, f);
    print_change(out, f);
    mf_verdict_text_print(out, &f->verdict);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void json_steps(mf_json_writer *w, const char *key, const mf_steps *steps) {
    mf_json_write_array(w, key, false);
    for (int i = 0; i < steps->count; i++) {
        const mf_one_step *s = &steps->step[i];
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "what", s->what);
        mf_json_write_bool(w, "fits", s->fits);
        mf_json_write_f64(w, "step_time_s", s->step_time_s);
        mf_json_write_f64(w, "peak_memory_B", s->peak_B);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}

/* What holds back; memory where the remedy is a step from here. */
static void json_remedies(mf_json_writer *w, const findings *f) {
    mf_json_write_array(w, "remedies", false);
    for (int i = 0; i < f->explanation.remedies; i++) {
        const mf_remedy *r = &f->explanation.remedy[i];
        const mf_one_step *s = step_named(f, r->what);
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "what", r->what);
        mf_json_write_f64(w, "step_time_s", r->step_time_s);
        mf_json_write_f64(w, "gain", r->gain);
        mf_json_write_string(w, "basis", r->basis);
        mf_json_write_f64(w, "peak_memory_B", s != NULL ? s->peak_B : (double)NAN);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}

static void write_members(mf_json_writer *w, const findings *f) {
    mf_plan_write(w, "now", &f->x.job.plan);
    mf_json_write_i64(w, "combinations", f->fit.count);
    mf_json_write_i64(w, "feasible", f->fit.feasible);
    json_steps(w, "to_fit", &f->to_fit);
    json_steps(w, "steps", &f->steps);
    json_remedies(w, f);
    if (better_plan(f) != NULL) {
        mf_plan_write(w, "best", better_plan(f));
    } else {
        mf_json_write_null(w, "best");
    }
    mf_json_write_f64(w, "lower_bound_s", f->search.stats.lower_bound_s);
    mf_json_write_f64(w, "measured_step_time_s", f->x.log.step_time_s);
    mf_json_write_string(w, "time", f->explanation.time);
    mf_doubts_json(w, &f->doubts);
    mf_json_write_string(w, "verdict", f->verdict.decides);
}

static mf_status print_json(FILE *out, const findings *f, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    write_members(&w, f);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

/* For report.json. */
static void write_tune(mf_json_writer *w, const void *user) {
    mf_json_write_object(w, "tune", false);
    write_members(w, user);
    mf_json_write_end(w);
}

/* Of the best plan, or of the layout that there is where nothing is faster. */
static mf_status write_folder(const mf_args *a, const mf_cli *cli, const findings *f, mf_err *e) {
    const bool faster = better_plan(f) != NULL;
    const mf_plan *plan = faster ? better_plan(f) : &f->x.job.plan;
    mf_report report = mf_report_of(&f->x.job, plan);
    const mf_report_step step = {.report = &report,
                                 .problem = &f->problem,
                                 .found = faster ? &f->search : NULL,
                                 .verdict = f->verdict.decides,
                                 .more = write_tune,
                                 .user = f};
    mf_status s = mf_step_power_of(&f->x.job, plan, &report.power, e);
    return s == MF_OK ? mf_report_folder_step(mf_args_report(a, cli), &f->x.job, &step, e) : s;
}

/* --- the command ------------------------------------------------------------------------------ */

static mf_status load(const mf_args *a, findings *f, mf_err *e) {
    mf_job *j = &f->x.job;
    mf_status s = MF_OK;
    if (a->value[MF_OPT_PLAN].given) {
        s = mf_args_load(j, a, mf_job_load_layout, e);
        s = s == MF_OK ? mf_job_simulate(j, &(mf_sim_options){0}, e) : s;
    } else {
        s = mf_args_import(&f->x, a, e);
    }
    if (s == MF_OK) {
        s = mf_runs_on_parse(mf_args_text(a, MF_OPT_RUNS_ON, NULL), j->software.name, &f->on, e);
    }
    if (s == MF_OK) {
        s = mf_problem_from_job(j, &f->problem, e); /* no option pins the search */
        f->problem.base.memory = (mf_memory_choice){0};
        f->problem.base.offload_share = 1;
    }
    return s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    findings *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_routing_init(&f->x.job.routing);
    mf_status s = mf_args_check_out(a, e);
    s = s == MF_OK ? mf_report_folder_create(mf_args_text(a, MF_OPT_REPORT, NULL), e) : s;
    s = s == MF_OK ? load(a, f, e) : s;
    s = s == MF_OK ? find_all(a, cli, f, e) : s;
    if (s == MF_OK) {
        mf_doubts_of_plan(&f->x.job, better_plan(f) != NULL ? better_plan(f) : &f->x.job.plan,
                          &f->doubts);
        mf_doubts_print(a->notes, &f->doubts);
        say_verdict(f);
        say_next(f, mf_args_text(a, MF_OPT_OUT, NULL));
    }
    if (s == MF_OK && a->value[MF_OPT_JSON].given) {
        s = print_json(cli->out, f, e);
    } else if (s == MF_OK) {
        print_text(cli->out, f);
    }
    s = s == MF_OK ? write_folder(a, cli, f, e) : s;
    if (s == MF_OK && a->value[MF_OPT_OUT].given && better_plan(f) != NULL) {
        s = mf_plan_save(better_plan(f), a->value[MF_OPT_OUT].text, e);
    }
    mf_search_result_clear(&f->search);
    mf_fit_result_clear(&f->fit);
    mf_steps_clear(&f->steps);
    mf_steps_clear(&f->to_fit);
    mf_import_clear(&f->x);
    free(f);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_PLAN,   MF_OPT_MODEL,   MF_OPT_CLUSTER, MF_OPT_GPUS,    MF_OPT_SOFTWARE,
    MF_OPT_STORE,  MF_OPT_RUNS_ON, MF_OPT_RECIPE,  MF_OPT_THREADS, MF_OPT_OUT,
    MF_OPT_REPORT, MF_OPT_VERBOSE, MF_OPT_JSON,    MF_OPT_HELP,    MF_OPT_COUNT};

const mf_command mf_cmd_tune = {
    .name = "tune",
    .summary = "what fits, what is fastest and what holds back, against a job's present layout",
    .usage = {"FILE... [NAME=VALUE...] --cluster NAME [options]", "--plan FILE [options]"},
    .about = "Takes a job as `import` reads it (a script, a log, a recipe, flags), or a plan, and "
             "goes through three phases in one report: what fits, and what would make it fit if it "
             "does not; the best single step of each kind from here (degrees, micro-batch, "
             "schedule, ZeRO, dispatcher, recomputation, offload), each simulated, and the best "
             "plan; what holds the step back. The verdict stands last. Under a megatron-* profile "
             "only what Megatron can express counts (--runs-on any lifts that).",
    .example = "moefold tune launch.sh train.log --cluster h100",
    .words = MF_ARGS_MAX_WORDS,
    .options = options,
    .run = run,
};
