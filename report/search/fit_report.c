/* fit_report.c - prints what `moefold fit` found. */
#include "report/search/fit_report.h"

#include "report/basis/host_copies_text.h"
#include "report/search/search_report.h"
#include "report/search/to_fit.h"
#include "report/step/report.h"
#include "report/text/show.h"

#include <string.h>

static void print_entry(FILE *out, const mf_fit_entry *f) {
    const mf_layout *l = &f->layout;
    char recompute[160];
    mf_recompute_format(l->memory.recompute, recompute, sizeof recompute);
    fprintf(out, "  %3lld %3lld %3lld %3lld %3lld %4lld  %8.2f  %+9.2f   %-12s %7.2f  %d/%d  %s%s",
            (long long)l->tp, (long long)l->cp, (long long)l->pp, (long long)l->ep,
            (long long)l->etp, (long long)l->dp, f->peak_B / 1e9, f->headroom_B / 1e9,
            mf_memory_name(f->dominant), f->dominant_B / 1e9, l->zero, l->expert_zero, recompute,
            l->memory.offload != 0 ? " + offload" : "");
    if (f->host_missing_B > 0) {
        fprintf(out, ", %.1f GB of host memory missing", f->host_missing_B / 1e9);
    }
    putc('\n', out);
}

/* Choices that a layer is timed with; those of a search may differ from layer to layer. */
static void print_timed(FILE *out, const mf_fit_entry *f, double best_s) {
    const mf_layout *l = f->timed ? &f->timed_layout : &f->layout;
    char recompute[160];
    mf_recompute_format(l->memory.recompute, recompute, sizeof recompute);
    fprintf(out, "  %3lld %3lld %3lld %3lld %3lld %3lld %4lld %3lld  %10s  %6s  %8.2f  ",
            (long long)l->tp, (long long)l->cp, (long long)l->pp, (long long)l->vpp,
            (long long)l->ep, (long long)l->etp, (long long)l->dp, (long long)l->mbs,
            f->timed ? mf_show_time(f->step_time_s).s : "-",
            f->timed && f->step_time_s > best_s ? mf_show_percent(f->step_time_s / best_s - 1).s
                                                : "",
            (f->timed ? f->timed_peak_B : f->peak_B) / 1e9);
    if (f->timed && f->by_layer) {
        fprintf(out, "%d/%d   by layer\n", l->zero, l->expert_zero);
    } else {
        fprintf(out, "%d/%d   %s%s\n", l->zero, l->expert_zero, recompute,
                l->memory.offload != 0 ? " + offload" : "");
    }
}

/* What fits, by time. */
static void print_ranking(FILE *out, const mf_fit_result *r, int64_t top) {
    const int64_t shown = r->feasible < top ? r->feasible : top;
    fprintf(out,
            "\nfits, fastest first: %s of %s timed, each with the fastest of a few choices that "
            "fit\n   TP  CP  PP VPP  EP ETP   DP mbs   step time  slower   peak GB  ZeRO  "
            "recompute\n",
            mf_show_i64(r->timed).s, mf_show_i64(r->feasible).s);
    for (int64_t i = 0; i < shown; i++) {
        print_timed(out, &r->entry[i], r->entry[0].step_time_s);
    }
    if (shown < r->feasible) {
        fprintf(out, "        and %s more: --top N or --json shows them\n",
                mf_show_i64(r->feasible - shown).s);
    }
}

static void print_table(FILE *out, const char *title, const mf_fit_result *r, int64_t from,
                        int64_t to, int64_t top) {
    int64_t shown = to - from < top ? to - from : top;
    if (to == from) {
        return;
    }
    fprintf(out,
            "\n%s\n   TP  CP  PP  EP ETP   DP   peak GB   headroom   largest           GB  "
            "ZeRO  recompute\n",
            title);
    for (int64_t i = from; i < from + shown; i++) {
        print_entry(out, &r->entry[i]);
    }
    if (shown < to - from) {
        fprintf(out, "        and %s more: --top N or --json shows them\n",
                mf_show_i64(to - from - shown).s);
    }
}

/* What the leanest choices do not say: how fast each combination is with those that suit it. */
void mf_fit_report_fastest(FILE *out, const mf_job *j, const char *among,
                           const mf_search_result *r) {
    if (r->count == 0) {
        return;
    }
    fprintf(out,
            "\nthe fastest %s, by a short search: none takes less than %s (plan goes on)\n"
            "   TP  CP  PP VPP  EP ETP   DP mbs   step time  slower   peak GB   headroom  ZeRO  "
            "schedule\n",
            among, mf_show_time(r->stats.lower_bound_s).s);
    for (int i = 0; i < r->count; i++) {
        const mf_layout *l = &r->plan[i].layout;
        const mf_plan_prediction *x = &r->plan[i].prediction;
        fprintf(out,
                "  %3lld %3lld %3lld %3lld %3lld %3lld %4lld %3lld  %10s  %6s  %8.2f  %+9.2f  "
                "%d/%d   %s\n",
                (long long)l->tp, (long long)l->cp, (long long)l->pp, (long long)l->vpp,
                (long long)l->ep, (long long)l->etp, (long long)l->dp, (long long)l->mbs,
                mf_show_time(x->step_time_s).s,
                i == 0 ? ""
                       : mf_show_percent(x->step_time_s / r->plan[0].prediction.step_time_s - 1).s,
                x->peak_memory_B / 1e9, (x->usable_B - x->peak_memory_B) / 1e9, l->zero,
                l->expert_zero, mf_schedule_text(l->schedule));
    }
    mf_host_copies_print_plans(out, j, r);
    char why[400];
    snprintf(why, sizeof why, "that search ended: %s", r->stats.ended);
    fputs("  ", out);
    mf_show_wrap(out, why, 2, 2, 99);
}

void mf_fit_report_runs_on(FILE *out, const mf_runs_on *on, const mf_search_result *r) {
    if (on->limited && r->stats.runs_on[0] == '\0') {
        fprintf(out,
                "\nruns on     %s: only what it can express is listed (--runs-on any lifts that)\n",
                mf_target_info_of(on->target)->word);
    } else if (on->limited) {
        putc('\n', out);
        mf_search_report_print_runs_on(out, &r->stats);
    }
}

/* What `plan` does by itself where nothing fits (job/search/host_copies.h). */
static void print_what_plan_does(FILE *out, const mf_steps *steps) {
    for (int i = 0; i < steps->count; i++) {
        if (strcmp(steps->step[i].what, "--offload-optimizer 100%") == 0) {
            fprintf(out,
                    "  plan goes on with --offload-optimizer 100%% (%s) by itself, unless told "
                    "otherwise\n",
                    mf_show_time(steps->step[i].step_time_s).s);
        }
    }
}

void mf_fit_report_remedies(FILE *out, const mf_job *j, const mf_steps *steps) {
    mf_to_fit_print(out, j, steps, 0);
    if (steps->count > 0) {
        fputs("  each step time is that of the fastest layout found which it makes fit\n", out);
        print_what_plan_does(out, steps);
    }
}

void mf_fit_report_json_fastest(mf_json_writer *w, const mf_job *j, const char *with,
                                const mf_search_result *r) {
    if (r->count == 0) {
        mf_json_write_null(w, "fastest");
        return;
    }
    mf_json_write_object(w, "fastest", false);
    mf_json_write_string(w, "with", with);
    mf_json_write_f64(w, "lower_bound_s", r->stats.lower_bound_s);
    mf_json_write_f64(w, "gap", r->stats.gap);
    mf_search_report_json_end(w, &r->stats);
    mf_search_report_json_runs_on(w, &r->stats);
    mf_json_write_array(w, "plans", false);
    for (int i = 0; i < r->count; i++) {
        const mf_plan_prediction *x = &r->plan[i].prediction;
        mf_json_write_object(w, NULL, false);
        mf_json_write_f64(w, "step_time_s", x->step_time_s);
        mf_json_write_f64(w, "step_time_low_s", x->step_time_low_s);
        mf_json_write_f64(w, "step_time_high_s", x->step_time_high_s);
        mf_json_write_f64(w, "mfu", x->mfu);
        mf_json_write_f64(w, "peak_memory_B", x->peak_memory_B);
        mf_json_write_f64(w, "usable_B", x->usable_B);
        mf_json_write_f64(w, "headroom_B", x->usable_B - x->peak_memory_B);
        const mf_host_copies copies =
            mf_host_copies_known(j, &r->plan[i].layout, &r->plan[i].assignment);
        mf_host_copies_json(w, &copies);
        mf_plan_write_layout(w, "layout", &r->plan[i].layout);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
    mf_json_write_end(w);
}

void mf_fit_report_print(FILE *out, const mf_job *j, const mf_fit_result *r, int64_t top,
                         int64_t top_missing) {
    const mf_layout *l = &j->plan.layout;
    fprintf(
        out,
        "%s on %s x %s, %s sample%s of %s tokens a step: %s of %s combinations of degrees fit\n",
        j->model.name, mf_show_i64(l->gpus).s, j->cluster.name, mf_show_i64(l->gbs).s,
        l->gbs == 1 ? "" : "s", mf_show_i64(l->seq).s, mf_show_i64(r->feasible).s,
        mf_show_i64(r->count).s);
    mf_report_print_correction(out, &j->correction);
    if (r->timed > 0) {
        char text[128];
        snprintf(
            text, sizeof text,
            "Memory in GB, of %.2f that are usable: of what is timed, else the least that such "
            "degrees need.",
            r->entry[0].usable_B / 1e9);
        mf_show_wrap(out, text, 0, 0, 99);
        print_ranking(out, r, top);
    } else {
        mf_show_wrap(out,
                     "Each with the choices that need the least memory. In GB; headroom is what "
                     "remains of the usable memory.",
                     0, 0, 99);
        print_table(out, "fits", r, 0, r->feasible, top);
    }
    print_table(out, "does not fit, least missing first", r, r->feasible, r->count, top_missing);
}

static void json_entry(mf_json_writer *w, const mf_fit_entry *f) {
    mf_json_write_object(w, NULL, false);
    mf_json_write_bool(w, "fits", f->fits);
    mf_json_write_f64(w, "peak_memory_B", f->peak_B);
    mf_json_write_f64(w, "usable_B", f->usable_B);
    mf_json_write_f64(w, "headroom_B", f->headroom_B);
    mf_json_write_f64(w, "host_memory_B", f->host_B);
    mf_json_write_f64(w, "host_missing_B", f->host_missing_B);
    mf_json_write_i64(w, "peak_stage", f->stage);
    mf_json_write_string(w, "largest_kind", mf_memory_text(f->dominant));
    mf_json_write_f64(w, "largest_kind_B", f->dominant_B);
    mf_plan_write_layout(w, "layout", &f->layout);
    if (f->timed) {
        mf_json_write_f64(w, "step_time_s", f->step_time_s);
        mf_json_write_string(w, "timed_by", f->searched ? "search" : "usual choices");
        mf_plan_write_layout(w, "timed_layout", &f->timed_layout);
        mf_json_write_f64(w, "timed_peak_memory_B", f->timed_peak_B);
    }
    mf_json_write_end(w);
}

void mf_fit_report_json(mf_json_writer *w, const mf_job *j, const mf_fit_result *r, int64_t top,
                        bool interrupted) {
    mf_json_write_string(w, "model", j->model.name);
    mf_json_write_string(w, "cluster", j->cluster.name);
    mf_json_write_i64(w, "gpus", j->plan.layout.gpus);
    mf_corrections_json(w, &j->correction);
    mf_json_write_i64(w, "combinations", r->count);
    mf_json_write_i64(w, "feasible", r->feasible);
    mf_json_write_i64(w, "timed", r->timed);
    mf_json_write_bool(w, "interrupted", interrupted);
    mf_json_write_string(w, "missing", r->missing);
    if (r->smallest_gpus > 0) {
        mf_json_write_i64(w, "smallest_gpus", r->smallest_gpus);
    } else {
        mf_json_write_null(w, "smallest_gpus");
    }
    mf_json_write_array(w, "entries", false);
    for (int64_t i = 0, shown = 0; i < r->count; i++) {
        if (i == r->feasible) {
            shown = 0;
        }
        if (shown++ < top) {
            json_entry(w, &r->entry[i]);
        }
    }
    mf_json_write_end(w);
}
