/* tune.c - what fits, single steps and the best plan, what holds back. */
#include "job/search/tune.h"

#include "job/load/problem.h"
#include "job/load/unsaid.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the memory: more is as good as all. */
#define MOST_RESERVED 0.999

void mf_tuning_clear(mf_tuning *t) {
    mf_search_result_clear(&t->search);
    mf_fit_result_clear(&t->fit);
    mf_steps_clear(&t->steps);
    mf_steps_clear(&t->to_fit);
}

const mf_plan *mf_tuning_better_plan(const mf_tuning *t) {
    const mf_plan_prediction *now = &t->job->plan.prediction;
    const mf_plan *best = t->search.count > 0 ? &t->search.plan[0] : NULL;
    const bool worth = best != NULL && (!t->now_fits || best->prediction.step_time_s <
                                                            now->step_time_s * (1 - MF_LEAST_GAIN));
    return worth ? best : NULL;
}

const mf_one_step *mf_tuning_step(const mf_tuning *t, const char *what) {
    for (int i = 0; i < t->steps.count; i++) {
        if (strcmp(t->steps.step[i].what, what) == 0) {
            return &t->steps.step[i];
        }
    }
    return NULL;
}

/* Where nothing fits: with all states of the optimizer on the host, as `fit` does, and with as many
 * as the step that loses least time; the faster of both. */
static mf_status find_best_offloaded(mf_tuning *t, mf_search_options *o, mf_err *e) {
    const double some = t->to_fit.count > 0 ? t->to_fit.step[0].layout.offload_optimizer : 0;
    const double share[] = {1, some};
    mf_status s = MF_OK;
    for (int i = 0; i < (some > 0 && some < 1 ? 2 : 1) && s == MF_OK; i++) {
        mf_search_result found = {0};
        mf_host_copies host = {0};
        mf_problem p = t->problem;
        p.base.offload_optimizer = share[i];
        s = mf_host_copies_search(mf_runs_on_search, &t->on, &p, o, false, &found, &host, e);
        if (found.count > 0 &&
            (t->search.count == 0 ||
             found.plan[0].prediction.step_time_s < t->search.plan[0].prediction.step_time_s)) {
            const mf_search_result slower = t->search;
            t->search = found;
            found = slower;
            t->host = host;
            t->offloaded = share[i];
        }
        mf_search_result_clear(&found);
        s = s == MF_INFEASIBLE || s == MF_LAYOUT ? MF_OK : s;
    }
    return s;
}

/* Plans that keep activations on the host compete where the job does so, or where nothing fits
 * without. */
static mf_status find_best(mf_tuning *t, mf_search_options *o, mf_err *e) {
    const mf_plan *now = &t->job->plan;
    mf_problem p = t->problem;
    if (!t->now_fits) {
        return mf_host_copies_search(mf_runs_on_search, &t->on, &p, o, false, &t->search, &t->host,
                                     e);
    }
    p.pinned |= mf_host_copies_in(&now->layout, &now->assignment) ? 0 : MF_PIN(OFFLOAD);
    o->known_s = now->prediction.step_time_s;
    mf_status s = mf_runs_on_search(&t->on, &p, o, &t->search, e);
    return s;
}

/* The fastest single step that fits and changes nothing but what plans compete in; NULL: none. */
static const mf_one_step *best_step(const mf_tuning *t) {
    const mf_plan *now = &t->job->plan;
    const bool copies = mf_host_copies_in(&now->layout, &now->assignment);
    for (int i = 0; i < t->steps.count && t->steps.step[i].fits; i++) {
        const mf_one_step *s = &t->steps.step[i];
        if (!mf_step_is_of_held(&now->layout, s) &&
            (copies || !mf_host_copies_in(&s->layout, &s->assignment))) {
            return s;
        }
    }
    return NULL;
}

/* A search that ends with its effort may not have met what a single step gives: then that is the
 * best plan. */
static mf_status take_step(mf_tuning *t, mf_err *e) {
    const mf_one_step *step = best_step(t);
    mf_search_result *r = &t->search;
    if (step == NULL || (r->count > 0 && r->plan[0].prediction.step_time_s <= step->step_time_s)) {
        return MF_OK;
    }
    if (r->count == 0) {
        free(r->plan);
        r->plan = calloc(1, sizeof *r->plan);
        if (r->plan == NULL) {
            return mf_err_set(e, MF_NOMEM, "tune: out of memory");
        }
    } else {
        mf_plan_clear(&r->plan[0]);
    }
    r->count = r->count > 0 ? r->count : 1;
    mf_status s =
        mf_planner_predict(&t->problem, &step->layout, &step->assignment, &r->plan[0], NULL, e);
    if (s == MF_OK && r->stats.lower_bound_s > 0) {
        const double time_s = r->plan[0].prediction.step_time_s;
        r->stats.lower_bound_s = fmin(r->stats.lower_bound_s, time_s);
        r->stats.gap = time_s / r->stats.lower_bound_s - 1;
    }
    return s;
}

/* What rests on copies between GPUs and hosts. */
static mf_status count_copies(mf_tuning *t, mf_err *e) {
    mf_status s = mf_host_copies_of_plan(t->job, &t->job->plan, &t->host_now, e);
    if (s == MF_OK && t->search.count > 0) {
        s = mf_host_copies_of_plan(t->job, &t->search.plan[0], &t->host, e);
    }
    return s;
}

/* Steps were judged with less memory: their layouts have what the job has. */
static void give_back(const mf_layout *now, mf_steps *steps) {
    for (int i = 0; i < steps->count; i++) {
        steps->step[i].layout.reserve = now->reserve;
    }
}

/* Single steps, and what makes a layout fit that does not, of what leaves enough memory free. */
static mf_status find_steps(mf_tuning *t, const mf_tune_request *r, const mf_problem *tight,
                            const mf_layout *from, mf_err *e) {
    const mf_plan *now = &t->job->plan;
    const mf_assignment *a = &now->assignment;
    const mf_target *target = t->on.limited ? &t->on.target : NULL;
    mf_status s = mf_steps_single(tight, from, a, target, r->cancel, &t->steps, e);
    give_back(&now->layout, &t->steps);
    if (s == MF_OK && !t->now_fits) {
        s = mf_steps_to_fit(tight, from, a, target, r->cancel, 3, &t->to_fit, e);
        give_back(&now->layout, &t->to_fit);
    }
    return s;
}

/* The best plan; of an interrupted search the best so far, or a single step. */
static mf_status find_plan(mf_tuning *t, const mf_tune_request *r, mf_err *e) {
    mf_search_options o;
    mf_search_options_init(&o);
    o.cancel = r->cancel;
    o.threads = r->threads;
    o.budget = r->effort_us;
    o.top = 1;
    o.min_headroom_B = t->min_headroom_B;
    if (t->fit.feasible == 0) {
        return t->problem.base.offload_optimizer < 1 ? find_best_offloaded(t, &o, e) : MF_OK;
    }
    mf_status s = find_best(t, &o, e);
    s = s == MF_INFEASIBLE ? MF_OK : s; /* nothing is faster */
    if (s == MF_OK || s == MF_INTERRUPTED) {
        const mf_status took = take_step(t, s == MF_OK ? e : NULL);
        s = took == MF_OK ? s : took;
    }
    return s;
}

static mf_status find_all(mf_tuning *t, const mf_tune_request *r, mf_err *e) {
    const mf_plan *now = &t->job->plan;
    const mf_layout *l = &now->layout;
    const mf_fit_options fit = {.cancel = r->cancel, .shown = 1, .threads = r->threads};
    mf_problem tight = t->problem;
    mf_layout from = *l;
    tight.base.reserve = from.reserve = fmin(l->reserve + r->min_headroom, MOST_RESERVED);
    mf_status s = mf_planner_fit(&tight, &fit, &t->fit, e);
    s = s == MF_INFEASIBLE ? MF_OK : s;
    if (s == MF_OK) {
        t->finished = MF_TUNE_FITS;
        s = find_steps(t, r, &tight, &from, e);
    }
    if (s == MF_OK) {
        t->finished = MF_TUNE_STEPS;
        s = find_plan(t, r, e);
    }
    if (s == MF_OK) {
        t->finished = MF_TUNE_PLAN;
    }
    return s;
}

/* What holds the present layout back, and what rests on copies: said of what there is, too. */
static mf_status explain(mf_tuning *t, mf_err *e) {
    const mf_plan *now = &t->job->plan;
    mf_status s =
        mf_planner_explain(&t->problem, &now->layout, &now->assignment, &t->explanation, e);
    return s == MF_OK ? count_copies(t, e) : s;
}

mf_status mf_job_tune(const mf_job *j, const mf_tune_request *r, mf_tuning *out, mf_err *e) {
    const mf_plan_prediction *now = &j->plan.prediction;
    *out = (mf_tuning){.job = j,
                       .min_headroom_B = r->min_headroom * mf_cluster_usable_B(&j->cluster, 0.0)};
    out->now_fits = now->fits && now->usable_B - now->peak_memory_B >= out->min_headroom_B;
    mf_status s = mf_runs_on_parse(r->runs_on, j->software.name, &out->on, e);
    if (s == MF_OK) {
        s = mf_problem_from_job(j, &out->problem, e);
        out->problem.base.memory = (mf_memory_choice){0};
        out->problem.base.offload_share = 1;
        /* The best plan may use what the job leaves out: overlap of DP and PP, and the CUDA graphs
         * that its program has by default. */
        out->problem.base.overlap |= MF_OVERLAP_DP | MF_OVERLAP_PP;
        if (out->problem.base.graph == MF_GRAPH_NONE) {
            out->problem.base.graph =
                mf_unsaid_graph(&j->software.unsaid, &j->model, 0, MF_GRAPH_NONE);
        }
    }
    s = s == MF_OK ? find_all(out, r, e) : s;
    if (s == MF_OK || (s == MF_INTERRUPTED && out->finished >= MF_TUNE_FITS)) {
        const mf_status explained = explain(out, s == MF_OK ? e : NULL);
        s = explained == MF_OK ? s : explained;
    }
    return s;
}
