/* fit_fastest.c - a short search beside `fit`: what fits, ranked by time. */
#include "job/search/fit_fastest.h"

#include "job/search/host_copies.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct known_starts {
    const mf_known_plan *start; /* [count] */
    int count;
    double best_s; /* of the fastest of them, or more */
} known_starts;

static bool same_degrees(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->ep == b->ep && a->etp == b->etp;
}

/* Keeps the first plan of each combination: the fastest. */
static void thin_out(mf_search_result *r, int rows) {
    int kept = 0;
    for (int i = 0; i < r->count; i++) {
        bool known = kept == rows;
        for (int k = 0; k < kept && !known; k++) {
            known = same_degrees(&r->plan[k].layout, &r->plan[i].layout);
        }
        if (known) {
            mf_plan_clear(&r->plan[i]);
        } else {
            r->plan[kept++] = r->plan[i];
        }
    }
    r->count = kept;
}

static mf_search_options options_of(const mf_fit_rank_options *o, int64_t effort_us) {
    mf_search_options search;
    mf_search_options_init(&search);
    search.gap = MF_FIT_FASTEST_GAP;
    search.budget = effort_us;
    search.threads = o->threads;
    search.cancel = o->cancel;
    return search;
}

/* A search finds more by itself than from slow starts, which leave out its tries of what fits and,
 * under a limit, its searches of free choices (launch/search/search.h): it has them where it finds
 * nothing as fast. */
static mf_status search_from(const mf_problem *p, const mf_fit_rank_options *o,
                             mf_search_options *search, const known_starts *from,
                             mf_search_result *out, mf_err *e) {
    mf_runs_on on = *o->on;
    mf_host_copies host;
    mf_status s = mf_host_copies_search(mf_runs_on_search, &on, p, search, false, out, &host, e);
    const bool found = out->count > 0;
    if ((s != MF_OK && s != MF_INFEASIBLE) || from->count == 0 ||
        (found && out->plan[0].prediction.step_time_s <= from->best_s)) {
        return s;
    }
    mf_search_result_clear(out);
    search->start = from->start;
    search->starts = from->count;
    return mf_host_copies_search(mf_runs_on_search, &on, p, search, false, out, &host, e);
}

/* The fastest plans of so many combinations of degrees at most; none where nothing fits. */
static mf_status find_fastest(const mf_problem *p, const mf_fit_rank_options *o, int rows,
                              mf_search_options *search, const known_starts *from,
                              mf_search_result *out, mf_err *e) {
    mf_err why;
    mf_err_clear(&why);
    search->top = rows > 1 ? rows * MF_FIT_ALIKE : 1;
    mf_status s = search_from(p, o, search, from, out, &why);
    thin_out(out, rows);
    if (s == MF_INFEASIBLE || s == MF_LAYOUT) {
        return MF_OK;
    }
    return s == MF_OK ? s : mf_err_set(e, s, "%s", why.text);
}

/* --- what fits -------------------------------------------------------------------------------- */

/* The choice of all layers; false: they differ. */
static bool one_choice(const mf_model *m, const mf_assignment *a, mf_memory_choice *out) {
    bool some = false;
    for (int i = 0; i < a->positions; i++) {
        if (mf_position_kind_of(m, i) != MF_POS_LAYER) {
            continue;
        }
        if (some &&
            (a->memory[i].recompute != out->recompute || a->memory[i].offload != out->offload)) {
            return false;
        }
        *out = a->memory[i];
        some = true;
    }
    return some;
}

/* A search may know faster plans of degrees that are timed, and of some that are not. */
static void take_plans(const mf_model *m, mf_fit_result *fit, const mf_search_result *r) {
    for (int i = 0; i < r->count; i++) {
        const mf_plan *plan = &r->plan[i];
        for (int64_t k = 0; k < fit->feasible; k++) {
            mf_fit_entry *x = &fit->entry[k];
            if (same_degrees(&x->layout, &plan->layout) &&
                (!x->timed || plan->prediction.step_time_s < x->step_time_s)) {
                x->timed = x->searched = true;
                x->step_time_s = plan->prediction.step_time_s;
                x->timed_layout = plan->layout;
                x->timed_peak_B = plan->prediction.peak_memory_B;
                x->by_layer = !one_choice(m, &plan->assignment, &x->timed_layout.memory);
            }
        }
    }
}

/* Makes a plan the first of the result, which owns it from then on; on an error it is cleared. */
static mf_status put_first(mf_search_result *r, mf_plan *plan, mf_err *e) {
    mf_plan *grown = realloc(r->plan, ((size_t)r->count + 1) * sizeof *grown);
    if (grown == NULL) {
        mf_plan_clear(plan);
        return mf_err_set(e, MF_NOMEM, "fit: out of memory");
    }
    const double time_s = plan->prediction.step_time_s;
    memmove(&grown[1], grown, (size_t)r->count++ * sizeof *grown);
    grown[0] = *plan;
    r->plan = grown;
    if (r->stats.lower_bound_s > 0) {
        r->stats.lower_bound_s = fmin(r->stats.lower_bound_s, time_s);
        r->stats.gap = time_s / r->stats.lower_bound_s - 1;
    }
    return MF_OK;
}

/* No row that is listed is faster than the best plan: a search that ends with its effort, or begins
 * with none of the timed layouts, may not have met one. What does not fit with the gaps of its
 * memory counts as not timed. */
static mf_status take_rows(const mf_problem *p, int rows, mf_fit_result *fit, mf_search_result *r,
                           mf_err *e) {
    mf_status s = MF_OK;
    for (int64_t i = 0; i < fit->feasible && s == MF_OK; i++) {
        mf_fit_entry *x = &fit->entry[i];
        mf_layout l = x->timed_layout;
        mf_assignment a;
        mf_plan plan;
        if (!x->timed || (r->count > 0 && x->step_time_s >= r->plan[0].prediction.step_time_s)) {
            continue;
        }
        s = mf_planner_lay_out(p, &l, &a, e);
        s = s == MF_OK ? mf_planner_predict(p, &l, &a, &plan, NULL, e) : s;
        if (s != MF_OK) {
            break;
        }
        x->timed = plan.prediction.fits;
        if (x->timed) {
            x->step_time_s = plan.prediction.step_time_s;
            s = put_first(r, &plan, e);
        } else {
            mf_plan_clear(&plan);
        }
    }
    thin_out(r, rows);
    return s;
}

/* The fastest timed layouts, evenly split, which a search begins with. */
static int starts_of(const mf_problem *p, const mf_fit_result *fit,
                     mf_known_plan start[MF_FIT_STARTS]) {
    int count = 0;
    for (int64_t i = 0; i < fit->timed && count < MF_FIT_STARTS; i++) {
        start[count].layout = fit->entry[i].timed_layout;
        count +=
            mf_planner_lay_out(p, &start[count].layout, &start[count].assignment, NULL) == MF_OK;
    }
    return count;
}

/* Plans that Megatron can express are searched in another way, one memory choice for all layers at
 * a time, which may meet a faster plan where effort is short (mixtral-8x22b on 64 H100 with a
 * second of it: 7.55 s, 7.99 without): so that no limit seems to make a job faster, that search is
 * part of one without a limit which ends with its effort. */
static mf_status try_limited(const mf_problem *p, const mf_fit_rank_options *o,
                             mf_search_result *into, mf_err *e) {
    const mf_runs_on on = {.limited = true, .target = MF_TARGET_MEGATRON};
    const known_starts none = {NULL, 0, 0};
    mf_fit_rank_options limited = *o;
    mf_search_options search = options_of(o, o->effort_us);
    mf_search_result r = {0};
    mf_problem problem;
    if (mf_target_check_model(on.target, p->model, p->model->name, NULL) != MF_OK ||
        mf_runs_on_fit_problem(&on, p, &problem, NULL) != MF_OK) {
        return MF_OK;
    }
    limited.on = &on;
    mf_status s = find_fastest(&problem, &limited, 1, &search, &none, &r, e);
    if (s == MF_OK && r.count > 0 &&
        (into->count == 0 ||
         r.plan[0].prediction.step_time_s < into->plan[0].prediction.step_time_s)) {
        s = put_first(into, &r.plan[0], e);
        r.count = 0;
    }
    into->stats.work += r.stats.work; /* both searches are paid for */
    mf_search_result_clear(&r);
    return s;
}

static mf_status rank_fitting(const mf_problem *p, mf_fit_result *fit, const mf_fit_rank_options *o,
                              mf_fit_ranking *out, mf_err *e) {
    const mf_fit_options how = {.cancel = o->cancel, .shown = o->shown, .threads = o->threads};
    mf_known_plan *start = malloc(MF_FIT_STARTS * sizeof *start);
    if (start == NULL) {
        return mf_err_set(e, MF_NOMEM, "fit: out of memory");
    }
    mf_status s = mf_planner_fit_time(p, &how, o->effort_us, fit, e);
    if (s == MF_OK) {
        const known_starts k = {start, starts_of(p, fit, start), fit->entry[0].step_time_s};
        mf_search_options search = options_of(o, o->effort_us);
        s = find_fastest(p, o, o->rows, &search, &k, &out->fastest, e);
    }
    if (s == MF_OK && !o->on->limited && out->fastest.stats.end == MF_SEARCH_END_EFFORT) {
        s = try_limited(p, o, &out->fastest, e);
    }
    if (s == MF_OK || s == MF_INTERRUPTED) {
        const mf_status took = take_rows(p, o->rows, fit, &out->fastest, s == MF_OK ? e : NULL);
        s = s == MF_OK ? took : s;
    }
    take_plans(p->model, fit, &out->fastest);
    free(start);
    const mf_status ranked = mf_planner_fit_rank(p, &how, fit, s == MF_OK ? e : NULL);
    return s == MF_OK ? ranked : s;
}

/* --- what would make it fit ------------------------------------------------------------------- */

/* The combinations that miss least, as a remedy asks for them. */
static mf_status copy_near(const mf_problem *asked, const mf_fit_result *fit, mf_fit_result *out,
                           mf_err *e) {
    *out = (mf_fit_result){.entry = calloc(MF_FIT_MISSES, sizeof *out->entry)};
    if (out->entry == NULL) {
        return mf_err_set(e, MF_NOMEM, "fit: out of memory");
    }
    for (int64_t i = 0; i < fit->count && out->count < MF_FIT_MISSES; i++) {
        mf_fit_entry *x = &out->entry[out->count];
        x->layout = fit->entry[i].layout;
        mf_steps_copy_asked(asked, &asked->base, &x->layout);
        out->count += mf_layout_resolve(&x->layout, asked->model, NULL) == MF_OK;
    }
    out->feasible = out->count; /* to be seen */
    return MF_OK;
}

/* A remedy, and layouts that fit with it. */
typedef struct remedy {
    mf_one_step *step;
    bool of_states; /* it changes where and how optimizer states are kept alone */
    mf_problem asked;
    mf_known_plan
        start[MF_FIT_STARTS + 1]; /* the fastest with usual choices; the one it was found at */
    int starts;
    mf_search_result found; /* the fastest plans with it, where it was searched with, */
    bool listed;            /* and as many as are listed */
} remedy;

static void take_plan(mf_one_step *step, const mf_plan *plan) {
    if (plan->prediction.step_time_s < step->step_time_s) {
        step->layout = plan->layout;
        step->assignment = plan->assignment;
        step->step_time_s = plan->prediction.step_time_s;
        step->low_s = plan->prediction.step_time_low_s;
        step->high_s = plan->prediction.step_time_high_s;
        step->peak_B = plan->prediction.peak_memory_B;
    }
}

/* The layout that misses least, which a remedy was found at, is slow: of those that miss little,
 * the fastest counts. */
static mf_status time_usual(const mf_problem *p, const mf_fit_result *fit,
                            const mf_fit_rank_options *o, remedy *r, mf_err *e) {
    const mf_fit_options how = {.cancel = o->cancel, .threads = o->threads};
    mf_fit_result near;
    r->asked = mf_steps_ask(p, r->step);
    mf_status s = copy_near(&r->asked, fit, &near, e);
    s = s == MF_OK
            ? mf_planner_fit_time(&r->asked, &how, o->effort_us / MF_FIT_REMEDY_PART, &near, e)
            : s;
    r->starts = s == MF_OK ? starts_of(&r->asked, &near, r->start) : 0;
    r->start[r->starts] = (mf_known_plan){r->step->layout, r->step->assignment};
    if (s == MF_OK && r->starts > 0) {
        mf_plan plan;
        s = mf_planner_predict(&r->asked, &r->start[0].layout, &r->start[0].assignment, &plan, NULL,
                               e);
        if (s == MF_OK && plan.prediction.fits) {
            take_plan(r->step, &plan);
        }
        mf_plan_clear(&plan);
    }
    r->starts++;
    mf_fit_result_clear(&near);
    return s;
}

/* For one plan, or for those that are listed. */
static mf_status search_with(const mf_fit_rank_options *o, bool listed, remedy *r, mf_err *e) {
    const known_starts from = {r->start, r->starts, r->step->step_time_s};
    const int64_t percent = o->on->limited ? MF_FIT_LIMITED_PERCENT
                            : listed       ? MF_FIT_LIST_PERCENT
                                           : MF_FIT_ONE_PERCENT;
    mf_search_options search = options_of(o, o->effort_us * percent / 100);
    search.fits_us = o->effort_us * MF_FIT_LEANEST_PERCENT / 100;
    mf_search_result_clear(&r->found);
    mf_status s = find_fastest(&r->asked, o, listed ? o->rows : 1, &search, &from, &r->found, e);
    if (r->found.count > 0) {
        take_plan(r->step, &r->found.plan[0]);
    }
    r->listed = listed;
    return s;
}

/* The best plan of one remedy with another, which may save as much. */
static mf_status try_plan_of(const remedy *from, remedy *to, mf_err *e) {
    mf_plan plan;
    mf_layout l = from->step->layout;
    l.moments_bf16 = to->asked.base.moments_bf16;
    l.offload_optimizer = to->asked.base.offload_optimizer;
    if (from->step->step_time_s >= to->step->step_time_s || !from->of_states || !to->of_states) {
        return MF_OK;
    }
    mf_status s = mf_planner_predict(&to->asked, &l, &from->step->assignment, &plan, NULL, e);
    if (s == MF_OK && plan.prediction.fits && plan.prediction.step_time_s < to->step->step_time_s) {
        take_plan(to->step, &plan);
        to->start[0] = (mf_known_plan){plan.layout, plan.assignment};
        to->listed = false; /* what was found knows of none as fast */
    }
    mf_plan_clear(&plan);
    return s;
}

static int by_step_time(const void *a, const void *b) {
    const mf_one_step *x = ((const remedy *)a)->step, *y = ((const remedy *)b)->step;
    return (x->step_time_s > y->step_time_s) - (x->step_time_s < y->step_time_s);
}

/* r[count]: all with the usual choices, the best of them by searches, and with each other's plans.
 * The first has its fastest plans then. */
static mf_status time_remedies(const mf_problem *p, const mf_fit_result *fit,
                               const mf_fit_rank_options *o, remedy *r, int count, mf_err *e) {
    mf_status s = MF_OK;
    for (int i = 0; i < count && s == MF_OK; i++) {
        s = time_usual(p, fit, o, &r[i], e);
    }
    qsort(r, (size_t)count, sizeof *r, by_step_time);
    const int searched = count < MF_FIT_SEARCHED_REMEDIES ? count : MF_FIT_SEARCHED_REMEDIES;
    for (int i = 0; i < searched && s == MF_OK; i++) {
        s = search_with(o, i == 0, &r[i], e);
    }
    for (int i = 0; i < searched * count && s == MF_OK && !o->on->limited; i++) {
        s = try_plan_of(&r[i / count], &r[i % count], e);
    }
    qsort(r, (size_t)count, sizeof *r, by_step_time);
    if (s == MF_OK && count > 0 && !r[0].listed) {
        s = search_with(o, true, &r[0], e);
    }
    return s;
}

/* Keeps the best remedies, and lists the fastest plans with the first. */
static mf_status rank_remedies(const mf_problem *p, const mf_fit_result *fit,
                               const mf_fit_rank_options *o, mf_fit_ranking *out, mf_err *e) {
    mf_layout l = fit->entry[0].layout;
    mf_steps found = {0};
    mf_assignment even;
    mf_status s = mf_planner_lay_out(p, &l, &even, e);
    if (s == MF_OK) {
        s = mf_steps_to_fit_asked(p, &l, &even, o->on->limited ? &o->on->target : NULL, o->cancel,
                                  MF_FIT_TIMED_REMEDIES, &found, e);
    }
    const int count = s == MF_OK ? found.count : 0;
    const int kept = count < o->remedies ? count : o->remedies;
    remedy *r = calloc((size_t)count + 1, sizeof *r);
    out->to_fit.step = calloc((size_t)count + 1, sizeof *out->to_fit.step);
    if (r == NULL || out->to_fit.step == NULL) {
        s = mf_err_set(e, MF_NOMEM, "fit: out of memory");
        goto out;
    }
    for (int i = 0; i < count; i++) {
        r[i].step = &found.step[i];
        r[i].of_states = mf_step_is_of_held(&l, &found.step[i]);
    }
    s = s == MF_OK ? time_remedies(p, fit, o, r, count, e) : s;
    if (s == MF_OK && count > 0) {
        memcpy(out->with, r[0].step->what, sizeof out->with);
        out->fastest = r[0].found;
        r[0].found = (mf_search_result){0};
    }
    for (int i = 0; i < kept; i++) {
        out->to_fit.step[i] = *r[i].step;
    }
    out->to_fit.count = out->to_fit.allocated = kept;
out:
    for (int i = 0; r != NULL && i < count; i++) {
        mf_search_result_clear(&r[i].found);
    }
    free(r);
    mf_steps_clear(&found);
    return s;
}

mf_status mf_fit_rank(const mf_problem *p, mf_fit_result *fit, const mf_fit_rank_options *o,
                      mf_fit_ranking *out, mf_err *e) {
    mf_problem limited;
    *out = (mf_fit_ranking){.with = ""};
    mf_status s = mf_runs_on_fit_problem(o->on, p, &limited, e);
    if (s == MF_OK && fit->feasible > 0) {
        s = rank_fitting(&limited, fit, o, out, e);
        if (s == MF_OK && o->on->limited && out->fastest.count > 0) {
            const mf_search_options search = options_of(o, o->effort_us);
            s = mf_runs_on_price(o->on, p, &search, &out->fastest, e);
        }
    } else if (s == MF_OK && fit->count > 0) {
        s = rank_remedies(&limited, fit, o, out, e);
    }
    return s;
}

void mf_fit_ranking_clear(mf_fit_ranking *r) {
    mf_search_result_clear(&r->fastest);
    mf_steps_clear(&r->to_fit);
}
