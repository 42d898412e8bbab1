/* fit_fastest.c - short searches beside `fit`. */
#include "job/fit_fastest.h"

#include "job/host_copies.h"

#include <stdio.h>
#include <stdlib.h>

enum { EFFORT_US = 300000 }; /* counted; a search that has no plan by then goes on until it has */

static mf_search_options options_of(int threads, const volatile int *cancel) {
    mf_search_options o;
    mf_search_options_init(&o);
    o.gap = MF_FIT_FASTEST_GAP;
    o.budget = EFFORT_US;
    o.effort = 1;
    o.threads = threads;
    o.cancel = cancel;
    return o;
}

static mf_status search(const mf_problem *p, const mf_search_options *o, mf_search_result *out,
                        mf_err *e) {
    mf_host_copies host;
    mf_err why;
    mf_err_clear(&why);
    mf_status s = mf_host_copies_search(NULL, NULL, p, o, false, out, &host, &why);
    if (s == MF_INFEASIBLE || s == MF_LAYOUT) {
        return MF_OK;
    }
    return s == MF_OK ? s : mf_err_set(e, s, "%s", why.text);
}

mf_status mf_fit_fastest(const mf_problem *p, int threads, const volatile int *cancel,
                         mf_search_result *out, mf_err *e) {
    const mf_search_options o = options_of(threads, cancel);
    return search(p, &o, out, e);
}

/* --- remedies --------------------------------------------------------------------------------- */

/* A plan keeps its layers and choices when optimizer states go elsewhere: what changes is what
 * comes once a step. So one search serves all of them. */
static const struct remedy {
    const char *what;
    double on_host;
    bool bf16;
} remedies[] = {
    {"--moments bf16", 0, true},
    {"--offload-optimizer 25%", 0.25, false},
    {"--offload-optimizer 50%", 0.5, false},
    {"--offload-optimizer 75%", 0.75, false},
    {"--offload-optimizer 100%", 1, false},
    {"--moments bf16 --offload-optimizer 25%", 0.25, true},
    {"--moments bf16 --offload-optimizer 50%", 0.5, true},
};
enum { REMEDIES = sizeof remedies / sizeof remedies[0] };

static int by_time(const void *a, const void *b) {
    const double x = ((const mf_one_step *)a)->step_time_s;
    const double y = ((const mf_one_step *)b)->step_time_s;
    return (x > y) - (x < y);
}

/* Degrees that are 1 go without saying. */
static void name(const char *what, const mf_layout *l, char *out, size_t size) {
    const struct {
        const char *option;
        int64_t value;
    } degree[] = {
        {"--tp", l->tp}, {"--cp", l->cp}, {"--pp", l->pp}, {"--ep", l->ep}, {"--etp", l->etp}};
    size_t used = (size_t)snprintf(out, size, "%s", what);
    for (size_t i = 0; i < sizeof degree / sizeof degree[0] && used < size; i++) {
        if (degree[i].value > 1) {
            used += (size_t)snprintf(out + used, size - used, " %s %lld", degree[i].option,
                                     (long long)degree[i].value);
        }
    }
}

/* The problem with a remedy; false where it gives no more than what was asked for. */
static bool apply(const mf_problem *p, const struct remedy *x, mf_problem *with) {
    *with = *p;
    with->base.offload_optimizer = x->on_host;
    with->base.moments_bf16 = x->bf16;
    const double asked = p->base.offload_optimizer;
    const bool more = x->on_host > asked || (x->bf16 && !p->base.moments_bf16);
    return more && !(x->on_host < asked) && (!p->base.moments_bf16 || x->bf16);
}

/* A search does not end before it has a plan, so that there has to be one. */
static bool fits(const mf_problem *p, int threads, const volatile int *cancel) {
    const mf_fit_options o = {.cancel = cancel, .shown = 1, .threads = threads};
    mf_fit_result r = {0};
    const mf_status s = mf_planner_fit(p, &o, &r, NULL);
    mf_fit_result_clear(&r);
    return s == MF_OK;
}

/* A plan that fits with one of the remedies, those that cost little first; none: result->count 0.
 */
static mf_status find_plan(const mf_problem *p, int threads, const volatile int *cancel,
                           mf_search_result *out, mf_err *e) {
    static const int order[] = {2, 4, 6}; /* half, all, half with BF16 */
    mf_search_options o = options_of(threads, cancel);
    mf_status s = MF_OK;
    o.top = 1;
    for (size_t i = 0; i < sizeof order / sizeof order[0] && s == MF_OK; i++) {
        mf_problem with;
        mf_search_result_clear(out);
        s = apply(p, &remedies[order[i]], &with) && fits(&with, threads, cancel)
                ? search(&with, &o, out, e)
                : MF_OK;
        if (out->count > 0) {
            break;
        }
    }
    return s;
}

/* The plan with another remedy, if it fits. */
static mf_status try_remedy(const mf_problem *p, const struct remedy *x, const mf_plan *plan,
                            mf_steps *out, mf_err *e) {
    mf_problem with;
    mf_plan made;
    if (!apply(p, x, &with)) {
        return MF_OK;
    }
    mf_layout l = plan->layout;
    l.offload_optimizer = x->on_host;
    l.moments_bf16 = x->bf16;
    mf_status s = mf_planner_predict(&with, &l, &plan->assignment, &made, NULL, e);
    if (s == MF_OK && made.prediction.fits) {
        mf_one_step *step = &out->step[out->count++];
        *step = (mf_one_step){.layout = l,
                              .assignment = plan->assignment,
                              .fits = true,
                              .step_time_s = made.prediction.step_time_s,
                              .peak_B = made.prediction.peak_memory_B};
        name(x->what, &l, step->what, sizeof step->what);
    }
    mf_plan_clear(&made);
    return s;
}

mf_status mf_fit_remedies(const mf_problem *p, int threads, const volatile int *cancel,
                          mf_steps *out, mf_err *e) {
    mf_search_result r = {0};
    *out = (mf_steps){.step = calloc(REMEDIES, sizeof *out->step)};
    if (out->step == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    out->room = REMEDIES;
    mf_status s = find_plan(p, threads, cancel, &r, e);
    for (int i = 0; i < REMEDIES && s == MF_OK && r.count > 0; i++) {
        s = try_remedy(p, &remedies[i], &r.plan[0], out, e);
    }
    qsort(out->step, (size_t)out->count, sizeof *out->step, by_time);
    mf_search_result_clear(&r);
    return s;
}
