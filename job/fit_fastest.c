/* fit_fastest.c - a short search beside `fit`: what fits, ranked by time. */
#include "job/fit_fastest.h"

#include "job/host_copies.h"

#include <string.h>

/* Plans of one combination of degrees that are met for each that is shown: they differ in VPP,
 * micro-batch and schedule. */
enum { ALIKE = 2 };

static bool same_degrees(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->ep == b->ep && a->etp == b->etp;
}

/* Keeps the first plan, which is the fastest, of each combination. */
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

/* The fastest plans of o->rows combinations of degrees at most; none where nothing fits. */
static mf_status find_fastest(const mf_problem *p, const mf_fit_rank_options *o,
                              mf_search_result *out, mf_err *e) {
    mf_search_options search;
    mf_host_copies host;
    mf_err why;
    mf_err_clear(&why);
    mf_search_options_init(&search);
    search.gap = MF_FIT_FASTEST_GAP;
    search.top = o->rows > 1 ? o->rows * ALIKE : 1;
    search.budget = o->effort_us;
    search.threads = o->threads;
    search.cancel = o->cancel;
    mf_status s = mf_host_copies_search(NULL, NULL, p, &search, false, out, &host, &why);
    thin_out(out, o->rows);
    if (s == MF_INFEASIBLE || s == MF_LAYOUT) {
        return MF_OK;
    }
    return s == MF_OK ? s : mf_err_set(e, s, "%s", why.text);
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

/* The degrees that take least memory are slow. Searches with the remedy that loses least time and
 * with the one that saves most memory (room for faster layouts), and keeps the faster plans. */
static mf_status find_fastest_with(const mf_problem *p, const mf_layout *from,
                                   const mf_fit_rank_options *o, mf_fit_ranking *out, mf_err *e) {
    const mf_one_step *step[] = {step_of_all(from, &out->to_fit, true),
                                 step_of_all(from, &out->to_fit, false)};
    mf_status s = MF_OK;
    for (int i = 0; i < (step[0] != step[1] ? 2 : 1) && step[i] != NULL && s == MF_OK; i++) {
        mf_search_result found = {0};
        mf_problem other = *p;
        other.base.moments_bf16 = step[i]->layout.moments_bf16;
        other.base.offload_optimizer = step[i]->layout.offload_optimizer;
        s = find_fastest(&other, o, &found, e);
        if (found.count > 0 &&
            (out->fastest.count == 0 ||
             found.plan[0].prediction.step_time_s < out->fastest.plan[0].prediction.step_time_s)) {
            const mf_search_result slower = out->fastest;
            out->fastest = found;
            found = slower;
            memcpy(out->with, step[i]->what, sizeof out->with);
        }
        mf_search_result_clear(&found);
    }
    return s;
}

mf_status mf_fit_rank(const mf_problem *p, const mf_fit_result *fit, const mf_fit_rank_options *o,
                      mf_fit_ranking *out, mf_err *e) {
    mf_assignment even;
    *out = (mf_fit_ranking){.with = ""};
    if (fit->feasible > 0) {
        return find_fastest(p, o, &out->fastest, e);
    }
    if (fit->count == 0) {
        return MF_OK;
    }
    const mf_layout *l = &fit->entry[0].layout;
    mf_status s = mf_assignment_even(p->model, l, &even, e);
    s = s == MF_OK ? mf_steps_to_fit(p, l, &even, NULL, o->cancel, o->remedies, &out->to_fit, e)
                   : s;
    return s == MF_OK ? find_fastest_with(p, l, o, out, e) : s;
}

void mf_fit_ranking_clear(mf_fit_ranking *r) {
    mf_search_result_clear(&r->fastest);
    mf_steps_clear(&r->to_fit);
}
