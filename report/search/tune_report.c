/* tune_report.c - the three phases of `tune` in one report, verdict last. */
#include "report/search/tune_report.h"

#include "job/figures/reported_flops.h"
#include "job/load/problem.h"
#include "planner/tuning/limits.h"
#include "report/basis/doubts.h"
#include "report/basis/host_copies_text.h"
#include "report/inputs/import_report.h"
#include "report/search/search_report.h"
#include "report/step/report.h"
#include "report/text/screen.h"
#include "report/text/show.h"

#include <math.h>
#include <string.h>

#define MOST_DIMENSIONS 16
#define SHOWN_REMEDIES 4
/* Of a prediction against a log, as `compare` tolerates. */
#define MOST_ERROR 0.1

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
    mf_overlap_format(l->overlap, text, sizeof text);
    fprintf(out, "            overlap %s%s%s%s", text, l->graph != MF_GRAPH_NONE ? ", " : "",
            l->graph != MF_GRAPH_NONE ? mf_graph_text(l->graph) : "",
            l->graph != MF_GRAPH_NONE ? " CUDA graphs" : "");
    if (l->offload_optimizer > 0) {
        fprintf(out, ", %.3g %% of the optimizer on the host", 100 * l->offload_optimizer);
    }
    putc('\n', out);
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

/* What is done, before the columns of numbers. */
static void print_name(FILE *out, const char *what) {
    enum { WIDE = 52, NUMBERS = 35 };
    const int left = mf_screen_columns(WIDE + NUMBERS) - NUMBERS;
    mf_show_name(out, what, left < WIDE ? left : WIDE);
}

static void print_step(FILE *out, const mf_one_step *s, const mf_plan_prediction *now) {
    print_name(out, s->what);
    fprintf(out, " %10s %+7.1f %% %+8.2f GB\n", mf_show_time(s->step_time_s).s,
            100 * (s->step_time_s / now->step_time_s - 1), (s->peak_B - now->peak_memory_B) / 1e9);
}

static bool copies_in(const mf_one_step *s) {
    return mf_host_copies_in(&s->layout, &s->assignment);
}

static void print_fits(FILE *out, const mf_tuning *t, bool *copies) {
    const mf_plan_prediction *now = &t->job->plan.prediction;
    char with[64] = "";
    if (t->min_headroom_B > 0) {
        snprintf(with, sizeof with, " with %s free", mf_show_bytes(t->min_headroom_B).s);
    }
    fprintf(out, "1. what fits\n  %s of %s combinations of degrees fit%s; yours %s (%s of %s)\n",
            mf_show_i64(t->fit.feasible).s, mf_show_i64(t->fit.count).s, with,
            t->now_fits ? "does" : "does not", mf_show_bytes(now->peak_memory_B).s,
            mf_show_bytes(now->usable_B).s);
    for (int i = 0; i < t->to_fit.count; i++) {
        print_step(out, &t->to_fit.step[i], now);
        *copies |= copies_in(&t->to_fit.step[i]);
    }
    if (!t->now_fits && t->to_fit.count == 0) {
        fputs(t->finished < MF_TUNE_STEPS
                  ? "  interrupted before it was found what makes yours fit\n"
                  : "  no single step, and no pair of those that were tried, makes yours fit\n",
              out);
    }
    if (t->offloaded > 0) {
        fprintf(out, "  with --offload-optimizer %.3g%% some do: the best of them is below\n",
                100 * t->offloaded);
    }
}

/* The fastest step of each dimension that fits, if it gains. */
static void print_steps(FILE *out, const mf_tuning *t, bool *copies) {
    const mf_plan_prediction *now = &t->job->plan.prediction;
    bool seen[MOST_DIMENSIONS] = {false};
    fprintf(out, "\n2. single steps from here, the best of each kind%s\n",
            t->finished < MF_TUNE_STEPS ? " (interrupted: of those that were tried)" : "");
    int shown = 0;
    for (int i = 0; i < t->steps.count && shown < 8; i++) {
        const mf_one_step *s = &t->steps.step[i];
        bool gains = s->fits && s->step_time_s < now->step_time_s * (1 - MF_LEAST_GAIN);
        if (gains && !seen[s->dimension]) {
            seen[s->dimension] = true;
            print_step(out, s, now);
            *copies |= copies_in(s);
            shown++;
        }
    }
    if (shown == 0) {
        fputs("  none is faster and fits\n", out);
    }
}

/* Remedies, with what those that are steps from here cost in memory. */
static void print_bottlenecks(FILE *out, const mf_tuning *t) {
    const mf_plan_prediction *now = &t->job->plan.prediction;
    const mf_explanation *x = &t->explanation;
    fputs("\n3. what holds it back\n  ", out);
    mf_show_wrap(out, x->time, 2, 2, 99);
    for (int i = 0, shown = 0; i < x->remedies && shown < SHOWN_REMEDIES; i++) {
        const mf_remedy *r = &x->remedy[i];
        const mf_one_step *s = mf_tuning_step(t, r->what);
        if (s != NULL) {
            print_step(out, s, now);
        } else {
            print_name(out, r->what);
            fprintf(out, " %10s %+7.1f %%\n", mf_show_time(r->step_time_s).s, -100 * r->gain);
        }
        shown++;
    }
}

/* Where there is no better plan: keep it, or why nobody can say. */
static void say_none(const mf_tuning *t, char *out, size_t size) {
    const double now_s = t->job->plan.prediction.step_time_s;
    const double bound_s = t->search.stats.lower_bound_s;
    const bool interrupted = t->finished < MF_TUNE_PLAN;
    char left[64] = "";
    if (bound_s > 0) {
        snprintf(left, sizeof left, "; at best %.1f %% are left", 100 * (1 - bound_s / now_s));
    }
    if (!t->now_fits && t->fit.feasible == 0 && !interrupted) {
        mf_err why;
        mf_err_clear(&why);
        mf_problem_nothing_fits(&t->fit, &why);
        snprintf(out, size, "%.760s", why.text);
    } else if (!t->now_fits) {
        snprintf(out, size, "%s",
                 interrupted ? "interrupted before a plan that fits was found"
                             : "the search finds no plan that fits");
    } else if (interrupted) {
        snprintf(out, size, "interrupted before a faster plan was found%s", left);
    } else {
        snprintf(out, size, "keep it: the search finds nothing faster%s%s",
                 t->on.limited ? " that the program can express" : "", left);
    }
}

/* How much too long the present step is predicted; 0: no log says how long it takes. */
static double error_of(const mf_tune_report *r) {
    const mf_log *l = &r->job->log;
    return l->steps > 0 ? r->found->job->plan.prediction.step_time_s / l->step_time_s - 1 : 0;
}

/* Then the log says nothing of the present layout. */
static bool is_other_job(const mf_tune_report *r) {
    return mf_reported_is_other_job(r->found->job, &r->job->log);
}

/* What a log measured of the present layout, which the sentence before holds against its
 * prediction. Where that is far off, so may be the best plan's, which nobody measured: no ratio. */
static void say_measured(const mf_tune_report *r, const mf_plan *best, char *out, size_t size) {
    const mf_log *l = &r->job->log;
    const double error = error_of(r);
    char beside[64] = "", off[64] = "", other[240];
    if (l->steps == 0) {
        return;
    }
    if (is_other_job(r)) {
        mf_reported_say_other_job(r->found->job, l, "yours", other, sizeof other);
        snprintf(out, size, "; %s", other);
        return;
    }
    if (best != NULL && fabs(error) <= MOST_ERROR) {
        snprintf(beside, sizeof beside, ": beside that it is %.2f x as fast",
                 l->step_time_s / best->prediction.step_time_s);
    }
    if (fabs(error) > MOST_ERROR) {
        snprintf(off, sizeof off, ", which is predicted %s too %s", mf_show_percent(fabs(error)).s,
                 error > 0 ? "long" : "short");
    }
    snprintf(out, size, "; yours was measured at %s%s%s", mf_show_time(l->step_time_s).s, off,
             beside);
}

/* Predictions that are far off on the present job are corrected first, where a correction can be
 * kept. */
static bool is_to_correct(const mf_tune_report *r) {
    const mf_job *j = r->found->job;
    return fabs(error_of(r)) > MOST_ERROR && !is_other_job(r) && !j->correction.used &&
           strncmp(j->software.name, "megatron-", 9) == 0;
}

static void say_verdict(mf_tune_report *r) {
    const mf_tuning *t = r->found;
    const mf_plan_prediction *now = &t->job->plan.prediction;
    const mf_plan *best = mf_tuning_better_plan(t);
    char *out = r->verdict.decides;
    const size_t size = sizeof r->verdict.decides;
    if (best == NULL) {
        say_none(t, out, size);
        return;
    }
    const mf_plan_prediction *then = &best->prediction;
    const double bound_s = t->search.stats.lower_bound_s;
    char before[96], bound[96] = "";
    snprintf(before, sizeof before, "and it fits (yours would take %s)",
             mf_show_time(now->step_time_s).s);
    if (t->now_fits) {
        snprintf(before, sizeof before, "instead of %s: %.2f x as fast",
                 mf_show_time(now->step_time_s).s, now->step_time_s / then->step_time_s);
    }
    if (bound_s > 0) {
        snprintf(bound, sizeof bound, "; no plan%s takes less than %s",
                 t->offloaded > 0 ? " with that" : "", mf_show_time(bound_s).s);
    }
    snprintf(out, size, "%s%s a step (%s to %s) %s, with %s of memory free%s",
             t->finished < MF_TUNE_PLAN ? "interrupted; the best so far: " : "",
             mf_show_time(then->step_time_s).s, mf_show_time(then->step_time_low_s).s,
             mf_show_time(then->step_time_high_s).s, before,
             mf_show_bytes(then->usable_B - then->peak_memory_B).s, bound);
}

/* Who reads no more than the verdict hears that the job may be another. */
static void say_unread(const mf_imported *x, mf_verdict_text *v) {
    const size_t said = strlen(v->decides);
    const int unread = x->read.unknown.count;
    if (unread > 0) {
        snprintf(v->decides + said, sizeof v->decides - said,
                 "; %d of the job's settings %s not read", unread, unread == 1 ? "is" : "are");
    }
}

void mf_tune_report_decide(mf_tune_report *r, const char *saved) {
    const mf_tuning *t = r->found;
    const mf_plan *best = mf_tuning_better_plan(t);
    say_verdict(r);
    const size_t said = strlen(r->verdict.decides);
    say_measured(r, best, r->verdict.decides + said, sizeof r->verdict.decides - said);
    say_unread(r->job, &r->verdict);
    r->verdict.next[0] = '\0';
    if (is_to_correct(r)) {
        snprintf(r->verdict.next, sizeof r->verdict.next,
                 "moefold import with the same words and --out now.json, moefold compare --plan "
                 "now.json --log LOG --correct, and then the same again");
    } else if (best != NULL) {
        const mf_report report = mf_report_of(t->job, best);
        mf_verdict_text_run(&r->verdict, &report, saved, t->on.limited ? &t->on.target : NULL);
    }
}

static void print_change(FILE *out, const mf_tune_report *r) {
    const mf_tuning *t = r->found;
    const mf_log *measured = &r->job->log;
    const mf_plan_prediction *now = &t->job->plan.prediction;
    const mf_plan *best = mf_tuning_better_plan(t);
    const bool searched = t->search.stats.end != MF_SEARCH_END_NONE;
    if (measured->steps > 0 || best != NULL || searched) {
        putc('\n', out);
    }
    if (measured->steps > 0) {
        fprintf(out, "measured    %s a step, predicted %s\n", mf_show_time(measured->step_time_s).s,
                mf_show_time(now->step_time_s).s);
        if (is_other_job(r)) {
            char other[240];
            mf_reported_say_other_job(t->job, measured, "yours", other, sizeof other);
            fputs("            ", out);
            mf_show_wrap(out, other, 12, 12, 99);
        }
    }
    if (best != NULL) {
        print_layout(out, "change to", best);
        print_split(out, &t->job->plan, best);
        mf_host_copies_print(out, &t->host);
    }
    if (searched) {
        char why[400];
        snprintf(why, sizeof why, "ended: %s", t->search.stats.ended);
        fputs("search      ", out);
        mf_show_wrap(out, why, 12, 12, 99);
    }
}

void mf_tune_report_print(FILE *out, const mf_tune_report *r) {
    const mf_tuning *t = r->found;
    const mf_job *j = t->job;
    const mf_plan_prediction *now = &j->plan.prediction;
    const bool uneven = j->routing.kind != MF_ROUTING_BALANCED;
    fprintf(out, "%s on %s x %s, %s samples of %s tokens a step; software profile %s%s%s%s%s\n",
            j->model.name, mf_show_i64(j->plan.layout.gpus).s, j->cluster.name,
            mf_show_i64(j->plan.layout.gbs).s, mf_show_i64(j->plan.layout.seq).s, j->software.name,
            t->on.limited ? ", runs on " : "",
            t->on.limited ? mf_target_info_of(t->on.target)->program : "",
            uneven ? ", routing " : "", uneven ? j->plan.provenance.routing : "");
    mf_report_print_correction(out, &j->correction);
    print_layout(out, "now", &j->plan);
    fprintf(out, "            %s a step, %s/GPU\n", mf_show_time(now->step_time_s).s,
            mf_show_rate(now->model_tflops_per_gpu * 1e12, "FLOP/s").s);
    mf_host_copies_print(out, &t->host_now);
    mf_import_report_unread(out, r->job);
    putc('\n', out);
    bool copies = false;
    print_fits(out, t, &copies);
    print_steps(out, t, &copies);
    if (copies) {
        mf_host_copies_print_steps(out, j, &t->steps);
    }
    print_bottlenecks(out, t);
    print_change(out, r);
    mf_verdict_text_print(out, &r->verdict);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void json_steps(mf_json_writer *w, const char *key, const mf_job *j, const mf_steps *steps) {
    mf_json_write_array(w, key, false);
    for (int i = 0; i < steps->count; i++) {
        const mf_one_step *s = &steps->step[i];
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "what", s->what);
        mf_json_write_bool(w, "fits", s->fits);
        mf_json_write_f64(w, "step_time_s", s->step_time_s);
        mf_json_write_f64(w, "step_time_low_s", s->low_s > 0 ? s->low_s : (double)NAN);
        mf_json_write_f64(w, "step_time_high_s", s->high_s > 0 ? s->high_s : (double)NAN);
        mf_json_write_f64(w, "peak_memory_B", s->peak_B);
        mf_host_copies_json_step(w, j, s);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}

/* What holds back; memory where the remedy is a step from here. */
static void json_remedies(mf_json_writer *w, const mf_tuning *t) {
    mf_json_write_array(w, "remedies", false);
    for (int i = 0; i < t->explanation.remedies; i++) {
        const mf_remedy *r = &t->explanation.remedy[i];
        const mf_one_step *s = mf_tuning_step(t, r->what);
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

void mf_tune_report_json(mf_json_writer *w, const mf_tune_report *r) {
    const mf_tuning *t = r->found;
    mf_plan_write(w, "now", &t->job->plan);
    mf_json_write_bool(w, "interrupted", t->finished < MF_TUNE_PLAN);
    mf_corrections_json(w, &t->job->correction);
    mf_json_write_i64(w, "combinations", t->fit.count);
    mf_json_write_i64(w, "feasible", t->fit.feasible);
    mf_json_write_f64(w, "min_headroom_B", t->min_headroom_B);
    mf_json_write_bool(w, "present_fits", t->now_fits);
    mf_json_write_object(w, "present", false);
    mf_host_copies_json(w, &t->host_now);
    mf_json_write_end(w);
    json_steps(w, "to_fit", t->job, &t->to_fit);
    json_steps(w, "steps", t->job, &t->steps);
    json_remedies(w, t);
    if (mf_tuning_better_plan(t) != NULL) {
        mf_plan_write(w, "best", mf_tuning_better_plan(t));
    } else {
        mf_json_write_null(w, "best");
    }
    mf_host_copies_json(w, &t->host); /* of the best plan */
    const double bound_s = t->search.stats.lower_bound_s;
    mf_json_write_f64(w, "lower_bound_s", bound_s > 0 ? bound_s : (double)NAN);
    mf_search_report_json_end(w, &t->search.stats);
    const bool measured = r->job->log.steps > 0;
    mf_import_report_unread_json(w, r->job);
    mf_json_write_f64(w, "measured_step_time_s", measured ? r->job->log.step_time_s : (double)NAN);
    mf_json_write_bool(w, "measured_other_job", measured && is_other_job(r));
    mf_json_write_string(w, "time", t->explanation.time);
    mf_doubts_json(w, r->doubts);
    mf_json_write_string(w, "verdict", r->verdict.decides);
}
