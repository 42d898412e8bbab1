/* plan_search.c - phase 2 as the rooms above call it: the search on the real rooms below, and its
 * answers as complete plans. */
#include "core/base/clock.h"
#include "planner/fit/fit_sweep.h"
#include "planner/planner.h"
#include "planner/price/price_book.h"
#include "planner/search/search.h"

#include <stdlib.h>
#include <unistd.h>

void mf_search_options_init(mf_search_options *o) {
    *o = (mf_search_options){0};
}

/* What the search asks for: what its progress reports need besides the figures of the moment, and
 * which layouts fit. */
typedef struct asked {
    const mf_problem *problem;
    const mf_search_options *options;
    double started_s, reported_s;
    mf_fit_judge *judge;
} asked;

static void tell(void *user, double best_s, double bound_s, int64_t priced, int64_t milps) {
    asked *r = user;
    double now_s = mf_clock_s();
    if (r->options->progress == NULL || now_s - r->reported_s < 0.25) {
        return;
    }
    r->reported_s = now_s;
    mf_search_stats now = {.priced = priced,
                           .milp_solved = milps,
                           .lower_bound_s = bound_s,
                           .gap = bound_s > 0 ? best_s / bound_s - 1.0 : 0,
                           .wall_s = now_s - r->started_s};
    r->options->progress(&now, best_s, r->options->user);
}

/* For mf_search_request. */
static mf_status list_fit_candidates(void *user, mf_layout **out, int64_t *count, mf_err *e) {
    const asked *x = user;
    mf_space space = mf_fit_space(x->problem, x->problem->base.gpus);
    if ((space.pinned & MF_PIN(CP_TYPE)) == 0) { /* a ring's many steps take long to lower */
        space.base.cp_type = MF_CP_ALLGATHER;
        space.pinned |= MF_PIN(CP_TYPE);
    }
    return mf_fit_list(x->problem, &space, out, count, e);
}

static mf_status judge_fit_candidate(void *user, mf_layout *l, bool *fits, mf_err *e) {
    asked *x = user;
    mf_fit_entry entry = {0};
    mf_status status = x->judge != NULL ? MF_OK : mf_fit_judge_create(x->problem, &x->judge, e);
    *fits = false;
    if (status == MF_OK) {
        status = mf_fit_judge_least_memory(x->judge, *l, true, &entry, fits, e);
    }
    *fits = *fits && entry.fits;
    *l = *fits ? entry.layout : *l;
    return status;
}

static mf_status one_plan(const mf_problem *p, bool bare, const mf_search_found *f, mf_plan *plan,
                          mf_err *e) {
    if (!bare) {
        return mf_planner_predict(p, &f->layout, &f->assignment, plan, NULL, e);
    }
    mf_plan_init(plan);
    plan->layout = f->layout;
    plan->assignment = f->assignment;
    plan->prediction.step_time_s = f->time_s;
    return MF_OK;
}

/* The answers as plans. */
static mf_status complete(const mf_problem *p, bool bare, const mf_search_report *report,
                          mf_search_result *result, mf_err *e) {
    mf_status status = MF_OK;
    result->plan = calloc((size_t)report->count + 1, sizeof *result->plan);
    if (result->plan == NULL) {
        return mf_err_set(e, MF_NOMEM, "plan: out of memory");
    }
    while (status == MF_OK && result->count < report->count) {
        const mf_search_found *f = &report->found[result->count];
        mf_plan *plan = &result->plan[result->count++];
        status = one_plan(p, bare, f, plan, e);
        plan->provenance.searched = true;
        plan->provenance.space = report->stats.space;
        plan->provenance.lower_bound_s = report->stats.lower_bound_s;
        plan->provenance.gap = plan->prediction.step_time_s / report->stats.lower_bound_s - 1.0;
    }
    return status;
}

/* Headroom is memory that the search withholds beyond the reserve. */
static mf_problem with_headroom(const mf_problem *p, double headroom_B) {
    mf_problem less = *p;
    const mf_cluster *c = mf_cost_cluster(p->cost);
    const double share = p->base.reserve + headroom_B / mf_cluster_usable_B(c, 0.0);
    less.base.reserve = share < 1.0 ? share : 1.0;
    return less;
}

mf_status mf_planner_search(const mf_problem *p, const mf_search_options *o,
                            mf_search_result *result, mf_err *e) {
    *result = (mf_search_result){0};
    const mf_problem less = with_headroom(p, o->min_headroom_B);
    asked w = {.problem = &less, .options = o, .started_s = mf_clock_s()};
    mf_price_book *own = NULL;
    const mf_space space = {.model = p->model,
                            .base = less.base,
                            .pinned = p->pinned,
                            .precisions = p->precisions,
                            .domain_gpus = mf_cost_cluster(p->cost)->domain_gpus_used,
                            .limits = p->limits};
    mf_status status = mf_space_check_batch(&space, e);
    if (status == MF_OK && o->book == NULL) {
        status = mf_price_book_create(&less, o, &own, e);
    }
    if (status != MF_OK) {
        return status;
    }
    mf_price_book *book = own != NULL ? own : o->book;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = o->threads > 0 ? o->threads : cores > 8 ? 8 : cores > 0 ? (int)cores : 1;
    const mf_search_request request = {
        .evaluator = &book->evaluator,
        .costs = book->costs,
        .orders = o->orders,
        .lowers = true,
        .space = space,
        .threads = threads,
        .top = o->top,
        .ranks = o->top > 1,
        .gap = o->gap,
        .budget = o->budget,
        .unfound = o->unfound,
        .patience = o->patience,
        .flight = o->flight,
        .known_s = o->known_s,
        .start = o->start,
        .starts = o->starts,
        .cancel = o->cancel,
        .fault = o->milp_fault,
        .list_fit_candidates =
            mf_uses(o->without, MF_MECHANISM_FIT_FIRST) ? list_fit_candidates : NULL,
        .judge_fit_candidate = judge_fit_candidate,
        .fits_work = o->fits_us,
        .progress = tell,
        .user = &w,
    };
    mf_search_report report;
    status = mf_search_run(&request, &report, e);
    for (int i = 0; i < report.count; i++) {
        report.found[i].layout.reserve = p->base.reserve;
    }
    if (status == MF_OK && report.count > 0 && o->found != NULL) {
        const mf_search_found *best = &report.found[0];
        o->found(o->found_user, &best->layout, &best->assignment, best->time_s);
    }
    mf_price_book_destroy(own);
    mf_fit_judge_destroy(w.judge);
    if (status == MF_OK) {
        status = complete(p, o->bare, &report, result, e);
    }
    mf_search_stats *s = &result->stats;
    *s = report.stats;
    s->wall_s = mf_clock_s() - w.started_s;
    mf_space_describe_left_out(&request.space, s->left_out, sizeof s->left_out);
    mf_search_report_clear(&report);
    if (status != MF_OK) {
        return status;
    }
    if (s->interrupted) {
        return mf_err_set(e, MF_INTERRUPTED, "interrupted");
    }
    return result->count > 0 ? MF_OK
           : s->end == MF_SEARCH_END_NO_FIT || o->known_s > 0.0
               ? mf_err_set(e, MF_INFEASIBLE, "no layout fits into memory")
               : mf_err_set(e, MF_INFEASIBLE, "%s", s->ended);
}

void mf_search_result_clear(mf_search_result *r) {
    for (int i = 0; i < r->count; i++) {
        mf_plan_clear(&r->plan[i]);
    }
    free(r->plan);
    *r = (mf_search_result){0};
}
