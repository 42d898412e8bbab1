/* verdict_text.c - one sentence that decides. */
#include "report/step/verdict_text.h"

#include "planner/tuning/limits.h"
#include "report/text/show.h"

#include <math.h>
#include <string.h>

/* --- parts of a sentence ---------------------------------------------------------------------- */

/* "takes 3.823 s a step (3.446 s to 4.296 s)" */
static void say_time(const mf_plan_prediction *p, char *out, size_t size) {
    snprintf(out, size, "takes %s a step (%s to %s)", mf_show_time(p->step_time_s).s,
             mf_show_time(p->step_time_low_s).s, mf_show_time(p->step_time_high_s).s);
}

/* "leaves 9.666 GB of memory free", "lacks 28.9 GB of memory on a GPU", "... of its host" */
static void say_memory(const mf_report *r, char *out, size_t size) {
    const mf_plan_prediction *p = &r->plan->prediction;
    const double headroom_B = p->usable_B - p->peak_memory_B;
    if (p->fits) {
        snprintf(out, size, "leaves %s of memory free", mf_show_bytes(headroom_B).s);
    } else if (headroom_B < 0) {
        snprintf(out, size, "lacks %s of memory on a GPU", mf_show_bytes(-headroom_B).s);
    } else {
        double host_B = 0;
        for (int64_t i = 0; i < p->stages; i++) {
            host_B = fmax(host_B, p->stage[i].host_B);
        }
        snprintf(out, size, "lacks %s of its host's memory",
                 mf_show_bytes(host_B - r->cluster->host_memory_B).s);
    }
}

/* "no plan takes less than 3.712 s, gap 3.0 %"; "far from proven: ..." */
static void say_proof(double bound_s, double gap, char *out, size_t size) {
    if (bound_s > 0 && isfinite(gap)) {
        snprintf(out, size, "%sno plan takes less than %s, gap %s",
                 gap > MF_WIDE_GAP ? "far from proven: " : "", mf_show_time(bound_s).s,
                 mf_show_percent(gap).s);
    } else {
        snprintf(out, size, "how much faster others are is not bounded");
    }
}

/* "TP 1 CP 2 PP 8 VPP 7 EP 8 ETP 1, micro-batch 1, merged" */
static void say_layout(const mf_layout *l, char *out, size_t size) {
    snprintf(out, size, "TP %lld CP %lld PP %lld VPP %lld EP %lld ETP %lld, micro-batch %lld, %s",
             (long long)l->tp, (long long)l->cp, (long long)l->pp, (long long)l->vpp,
             (long long)l->ep, (long long)l->etp, (long long)l->mbs, mf_schedule_text(l->schedule));
}

/* --- of a search ------------------------------------------------------------------------------ */

void mf_verdict_text_run(mf_verdict_text *v, const mf_report *r, const char *saved,
                         const mf_target *target) {
    const char *lacks = mf_report_not_trained(r->software, r->model, &r->plan->layout, r->cluster);
    const bool ours = strcmp(r->software->name, MF_SOFTWARE_OURS) == 0;
    const bool theirs = !ours || (r->megatron != NULL && r->megatron->why[0] == '\0');
    char run[64];
    if (target != NULL) {
        snprintf(run, sizeof run, "export --format %s", mf_target_info_of(*target)->word);
    } else {
        snprintf(run, sizeof run, ours && lacks == NULL ? "train" : theirs ? "export" : "explain");
    }
    if (saved != NULL) {
        snprintf(v->next, sizeof v->next, "moefold %s --plan %.256s", run, saved);
    } else {
        snprintf(v->next, sizeof v->next,
                 "the same with --out plan.json, then moefold %s --plan plan.json", run);
    }
}

/* "; no plan fits without optimizer states in host memory"; nothing where a search did not have to.
 */
static const char *why_on_host(const mf_host_copies *h) {
    return !h->searched || !h->used || !h->infeasible ? ""
           : h->optimizer ? "; no plan fits without optimizer states in host memory"
                          : "; no plan fits without activations in host memory";
}

/* "; Megatron-LM's limits cost 1.4 % (4.213 s without them)" */
static void say_limit(const mf_search_stats *s, const mf_target *target, char *out, size_t size) {
    out[0] = '\0';
    if (target != NULL && s->runs_on[0] != '\0' && s->unlimited_s < s->limited_s) {
        snprintf(out, size, "; the limits of %s cost %s (%s without them)",
                 mf_target_info_of(*target)->program,
                 mf_show_percent(s->limited_s / s->unlimited_s - 1).s,
                 mf_show_time(s->unlimited_s).s);
    }
}

void mf_verdict_text_plan(mf_verdict_text *v, const mf_report *r, const mf_search_stats *s,
                          const char *saved, const mf_target *target) {
    char layout[160], time[128], memory[96], proof[96], limit[128];
    say_layout(&r->plan->layout, layout, sizeof layout);
    say_time(&r->plan->prediction, time, sizeof time);
    say_memory(r, memory, sizeof memory);
    say_proof(s->lower_bound_s, s->gap, proof, sizeof proof);
    say_limit(s, target, limit, sizeof limit);
    snprintf(v->decides, sizeof v->decides, "run plan 1 (%s): it %s and %s%s; %s%s%s", layout, time,
             memory, why_on_host(&r->copies), proof, s->interrupted ? " (interrupted)" : "", limit);
    mf_verdict_text_run(v, r, saved, target);
}

/* --- of one layout ---------------------------------------------------------------------------- */

void mf_verdict_text_simulate(mf_verdict_text *v, const mf_report *r, const char *file) {
    const bool fits = r->plan->prediction.fits;
    char time[128], memory[96];
    say_time(&r->plan->prediction, time, sizeof time);
    say_memory(r, memory, sizeof memory);
    snprintf(v->decides, sizeof v->decides, "it %s: it %s and %s", fits ? "fits" : "does not fit",
             memory, time);
    if (file != NULL) {
        snprintf(v->next, sizeof v->next, "moefold %s --plan %.256s", fits ? "tune" : "explain",
                 file);
    } else {
        snprintf(v->next, sizeof v->next, "moefold explain with the same options");
    }
}

/* An option that can be typed, fits and gains; remedies stand with the largest gain first. */
static const mf_remedy *best_option(const mf_explanation *x) {
    for (int i = 0; i < x->remedies; i++) {
        const mf_remedy *r = &x->remedy[i];
        const bool typed = strncmp(r->what, "--", 2) == 0 && strchr(r->what, '(') == NULL;
        if (typed && r->gain >= MF_LEAST_GAIN) {
            return r;
        }
    }
    return NULL;
}

/* The bound of the search that the plan is from, if what is predicted is what that search saw. */
static void say_searched(const mf_plan *p, char *out, size_t size) {
    const mf_plan_provenance *from = &p->provenance;
    const double then_s = from->lower_bound_s * (1 + from->gap);
    out[0] = '\0';
    if (from->searched && fabs(then_s / p->prediction.step_time_s - 1) < 1e-9) {
        memcpy(out, "; ", 3);
        say_proof(from->lower_bound_s, from->gap, out + 2, size - 2);
    }
}

void mf_verdict_text_explain(mf_verdict_text *v, const mf_report *r, const mf_explanation *x,
                             const mf_steps *to_fit, const char *file) {
    char time[128], memory[96], proof[112], better[MF_STEP_TEXT + 96];
    say_time(&r->plan->prediction, time, sizeof time);
    say_memory(r, memory, sizeof memory);
    say_searched(r->plan, proof, sizeof proof);
    const mf_remedy *gain = best_option(x);
    const mf_one_step *fit = to_fit != NULL && to_fit->count > 0 ? &to_fit->step[0] : NULL;
    if (fit != NULL) {
        snprintf(better, sizeof better, "run it with %s: that fits and takes %s a step", fit->what,
                 mf_show_time(fit->step_time_s).s);
    } else if (to_fit != NULL) {
        snprintf(better, sizeof better, "no option alone and no pair of them makes it fit");
    } else if (gain != NULL) {
        snprintf(better, sizeof better, "run it with %s: that takes %s, %s less", gain->what,
                 mf_show_time(gain->step_time_s).s, mf_show_percent(gain->gain).s);
    } else {
        snprintf(better, sizeof better, "no option alone that was tried makes it faster");
    }
    snprintf(v->decides, sizeof v->decides, "it %s and %s; %s%s", time, memory, better, proof);
    if (file != NULL) {
        snprintf(v->next, sizeof v->next, "moefold tune --plan %.256s", file);
    } else {
        snprintf(v->next, sizeof v->next, "moefold %s with the same job searches all layouts",
                 r->plan->prediction.fits ? "plan" : "fit");
    }
}

/* --- of all combinations ---------------------------------------------------------------------- */

void mf_verdict_text_fit(mf_verdict_text *v, const mf_fit_result *r,
                         const mf_search_result *fastest, const char *with) {
    char layout[160], time[128], proof[96], gpus[64] = "";
    const mf_plan *best = fastest->count > 0 ? &fastest->plan[0] : NULL;
    if (r->feasible == 0 && r->smallest_gpus > 0) {
        snprintf(gpus, sizeof gpus, "%s %s GPUs", best != NULL ? ", or take" : ": take",
                 mf_show_i64(r->smallest_gpus).s);
    }
    if (best == NULL) {
        if (r->feasible > 0) {
            snprintf(v->decides, sizeof v->decides, "%s of %s combinations of degrees fit",
                     mf_show_i64(r->feasible).s, mf_show_i64(r->count).s);
        } else {
            snprintf(v->decides, sizeof v->decides, "nothing fits as asked%s", gpus);
        }
        if (r->feasible == 0 && r->smallest_gpus > 0) {
            snprintf(v->next, sizeof v->next, "moefold plan with --gpus %lld",
                     (long long)r->smallest_gpus);
        } else {
            snprintf(v->next, sizeof v->next, "moefold %s with %s",
                     r->feasible > 0 ? "plan" : "fit",
                     r->feasible > 0 ? "the same options" : "another cluster or --precision");
        }
        return;
    }
    say_layout(&best->layout, layout, sizeof layout);
    say_time(&best->prediction, time, sizeof time);
    say_proof(fastest->stats.lower_bound_s, fastest->stats.gap, proof, sizeof proof);
    const double free_B = best->prediction.usable_B - best->prediction.peak_memory_B;
    if (r->feasible > 0) {
        snprintf(v->decides, sizeof v->decides, "%s of %s combinations of degrees fit",
                 mf_show_i64(r->feasible).s, mf_show_i64(r->count).s);
    } else {
        snprintf(v->decides, sizeof v->decides, "nothing fits as asked: add %.240s%s", with, gpus);
    }
    const size_t used = strlen(v->decides);
    snprintf(v->decides + used, sizeof v->decides - used,
             "; the fastest found%s (%s) %s and leaves %s of memory free; %s",
             r->feasible > 0 ? "" : " so", layout, time, mf_show_bytes(free_B).s, proof);
    snprintf(v->next, sizeof v->next, "moefold plan with the same options%s%.240s",
             r->feasible > 0 ? "" : " and ", r->feasible > 0 ? "" : with);
}

/* --- for people ------------------------------------------------------------------------------- */

void mf_verdict_text_print(FILE *out, const mf_verdict_text *v) {
    char text[sizeof v->decides + sizeof v->next + 16];
    snprintf(text, sizeof text, "%s%s%s", v->decides, v->next[0] != '\0' ? "; next: " : "",
             v->next);
    fputs("\nverdict     ", out);
    mf_show_wrap(out, text, 12, 12, 99);
}
