/* capacity_cell.c - one cell of a capacity table: its search, what is missing where nothing fits,
 * and what a user sees of it meanwhile. */
#include "job/capacity/capacity_strain.h"
#include "job/capacity/capacity_table.h"
#include "job/figures/step_power.h"
#include "job/load/problem.h"
#include "planner/tuning/limits.h"

#include <stdio.h>

/* --- what is watched: of the cell that began last, one call at a time --------------------------
 */

typedef struct watched_cell {
    growing *g;
    const mf_capacity_cell *cell;
} watched_cell;

static void begin_cell(watched_cell *w, const table_row *row) {
    const mf_capacity_watch *watch = &w->g->z->r->watch;
    pthread_mutex_lock(&w->g->watching);
    w->g->shown = w->cell;
    if (watch->cell != NULL) {
        watch->cell(watch->user, row->job, w->cell->gpus);
    }
    pthread_mutex_unlock(&w->g->watching);
}

static void watch_search(const mf_search_stats *now, double best_s, void *user) {
    const watched_cell *w = user;
    const mf_capacity_watch *watch = &w->g->z->r->watch;
    pthread_mutex_lock(&w->g->watching);
    if (w->g->shown == w->cell) {
        watch->search(now, best_s, watch->user);
    }
    pthread_mutex_unlock(&w->g->watching);
}

static void watch_fit(const mf_fit_progress *now, void *user) {
    const watched_cell *w = user;
    const mf_capacity_watch *watch = &w->g->z->r->watch;
    pthread_mutex_lock(&w->g->watching);
    if (w->g->shown == w->cell) {
        watch->fit(now, watch->user);
    }
    pthread_mutex_unlock(&w->g->watching);
}

static void end_watch(const watched_cell *w) {
    const mf_capacity_watch *watch = &w->g->z->r->watch;
    pthread_mutex_lock(&w->g->watching);
    if (w->g->shown == w->cell && watch->ended != NULL) {
        watch->ended(watch->user);
    }
    pthread_mutex_unlock(&w->g->watching);
}

/* --- one cell --------------------------------------------------------------------------------- */

mf_status mf_capacity_fill_cell(mf_capacity_cell *c, const mf_capacity_request *r, const mf_job *j,
                                const mf_plan *plan, mf_err *e) {
    const mf_plan_prediction *p = &plan->prediction;
    const mf_cluster *k = &j->cluster;
    mf_status s = mf_step_power_of(j, plan, &c->power, e);
    s = s == MF_OK ? mf_host_copies_of_plan(j, plan, &c->host, e) : s;
    if (s != MF_OK) {
        return s;
    }
    c->feasible = true;
    c->layout = plan->layout;
    c->assignment = plan->assignment;
    c->step_time_s = p->step_time_s;
    c->low_s = p->step_time_low_s;
    c->high_s = p->step_time_high_s;
    s = mf_capacity_route(c, r, j, e);
    c->tokens_per_s =
        p->tokens_per_s_per_gpu * (double)c->gpus * c->step_time_s / mf_capacity_step_s(c);
    c->mfu = p->mfu;
    c->peak_memory_B = p->peak_memory_B;
    c->usable_B = p->usable_B;
    c->gpu_W = mf_step_power_drawn_W(&c->power, k);
    c->goodput = mf_capacity_goodput(r, k, c->gpus);
    mf_capacity_fill_run(c, r, k);
    return s;
}

/* The search says that nothing fits; phase 1 knows what is missing, and at which size it would. */
static mf_status say_missing(watched_cell *w, const mf_problem *problem, mf_capacity_cell *c) {
    const mf_capacity_request *r = w->g->z->r;
    mf_fit_result fit = {0};
    mf_err why;
    mf_err_clear(&why);
    const mf_fit_options o = {.cancel = r->cancel,
                              .progress = r->watch.fit != NULL ? watch_fit : NULL,
                              .user = w,
                              .shown = 1,
                              .threads = w->g->all_threads};
    mf_status s = mf_planner_fit(problem, &o, &fit, &why);
    end_watch(w);
    if (s == MF_INFEASIBLE) {
        mf_problem_nothing_fits(&fit, &why);
    }
    snprintf(c->why, sizeof c->why, "%.511s", s == MF_OK ? "no layout fits" : why.text);
    mf_fit_result_clear(&fit);
    return s == MF_INTERRUPTED ? s : MF_OK;
}

int mf_capacity_starts(const mf_problem *p, int row, const mf_carried *known, int count,
                       mf_known_plan start[MF_CARRY_MOST]) {
    mf_problem held = *p;
    held.pinned |= MF_PIN(OFFLOAD);
    return mf_carry_starts(&held, row, known, count, start);
}

/* Tables of one size and sizes beyond the table are planned one after the other. */
static bool is_alone(const watched_cell *w) {
    const mf_capacity_request *r = w->g->z->r;
    return r->sizes == 1 ||
           w->cell >= w->g->z->cell + (ptrdiff_t)r->models * r->clusters * r->sizes;
}

static int64_t effort_us(const mf_capacity_request *r) {
    const int64_t part_us = MF_TABLE_US / ((int64_t)r->models * r->clusters * r->sizes);
    return part_us < MF_CELL_US        ? MF_CELL_US
           : part_us > MF_CELL_MOST_US ? MF_CELL_MOST_US
                                       : part_us;
}

static mf_search_options options_of(watched_cell *w, const table_row *row) {
    const mf_capacity_request *r = w->g->z->r;
    mf_search_options o;
    mf_search_options_init(&o);
    o.cancel = r->cancel;
    o.progress = r->watch.search != NULL ? watch_search : NULL;
    o.user = w;
    o.top = 1;
    o.gap = r->gap;
    const bool limited = row->on.limited;
    o.budget = r->effort_us > 0 ? r->effort_us : limited ? MF_CELL_LIMITED_US : effort_us(r);
    o.patience = r->effort_us > 0 || limited ? 0 : effort_us(r) / MF_CELL_PATIENCE_PART;
    o.threads = is_alone(w) ? w->g->alone_threads : w->g->threads;
    o.flight = w->g->flight;
    return o;
}

/* What is asked of a cell: its row's job on its GPUs. */
static mf_status problem_of(const table_row *row, int64_t gpus, mf_problem *out, mf_err *e) {
    mf_status s = mf_problem_from_job(row->job, out, e);
    out->base.gpus = gpus;
    return s == MF_OK ? mf_job_check_cluster(&out->base, &row->job->cluster, e) : s;
}

mf_status mf_capacity_plan_cell(growing *g, table_row *row, mf_capacity_cell *c,
                                const mf_carried *known, int count, mf_err *e) {
    const mf_capacity_request *asked = g->z->r;
    mf_problem problem;
    mf_search_result r = {0};
    mf_known_plan start[MF_CARRY_MOST];
    watched_cell w = {g, c};
    mf_err why;
    mf_err_clear(&why);
    begin_cell(&w, row);
    if (row->refused[0] != '\0') {
        snprintf(c->why, sizeof c->why, "%s", row->refused);
        return MF_OK;
    }
    mf_search_options o = options_of(&w, row);
    mf_status s = problem_of(row, c->gpus, &problem, &why);
    if (s == MF_OK && mf_planner_least_states_B(&problem) >
                          mf_cluster_usable_B(&row->job->cluster, problem.base.reserve)) {
        s = mf_err_set(&why, MF_INFEASIBLE, "no layout fits");
        c->host.infeasible = (problem.pinned & MF_PIN(OFFLOAD)) == 0;
    }
    if (s == MF_OK && row->book == NULL) {
        s = mf_price_book_create(&problem, &o, &row->book, &why);
    }
    if (s == MF_OK) {
        o.book = row->book;
        o.orders = g->orders;
        o.start = start;
        o.starts = mf_capacity_starts(&problem, c->row, known, count, start);
        s = mf_host_copies_search(mf_runs_on_search, &row->on, &problem, &o, asked->search_offload,
                                  &r, &c->host, &why);
    }
    end_watch(&w);
    if (s == MF_OK) {
        s = mf_capacity_fill_cell(c, asked, row->job, &r.plan[0], e);
        c->gap = r.stats.gap;
        c->space = r.stats.space;
        c->end = r.stats.end;
        snprintf(c->ended, sizeof c->ended, "%s", r.stats.ended);
    } else if (s == MF_INFEASIBLE) {
        const bool none = r.stats.end == MF_SEARCH_END_NO_FIT || r.stats.end == MF_SEARCH_END_NONE;
        snprintf(c->why, sizeof c->why, "%s", none ? "no layout fits" : r.stats.ended);
        c->unexplained = none; /* until all are planned, since other cells wait for this one */
        s = MF_OK;
    } else if (s == MF_LAYOUT) {
        snprintf(c->why, sizeof c->why, "%.511s", why.text);
        s = MF_OK;
    } else {
        mf_err_set(e, s, "%s", why.text);
    }
    mf_search_result_clear(&r);
    return s;
}

mf_status mf_capacity_explain_cell(growing *g, mf_capacity_cell *c, mf_err *e) {
    const table_row *row = &g->row[c->row];
    watched_cell w = {g, c};
    mf_problem problem;
    begin_cell(&w, row);
    mf_status s = problem_of(row, c->gpus, &problem, e);
    s = s == MF_OK ? say_missing(&w, &problem, c) : s;
    c->unexplained = false;
    return s;
}
