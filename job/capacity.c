/* capacity.c - plans the cells of a table, and says what whole runs by them take. */
#include "job/capacity.h"

#include "job/capacity_strain.h"
#include "job/prices.h"
#include "job/problem.h"
#include "job/step_power.h"
#include "planner/capacity/carry.h"
#include "planner/capacity/wavefront.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    REFINED = 3,          /* cells that halving adds to a row */
    PATIENCE_US = 2000000 /* of a cell's search without a narrower gap */
};

/* A model on a cluster, while its sizes are planned. */
typedef struct table_row {
    mf_job job;
    mf_runs_on on;
    char refused[512]; /* why the chosen program cannot express the model; "" */
    mf_capacity_price price;
    mf_price_book *book;
} table_row;

/* The table while it grows. Rows lie whole in z->cell until all have ended: row r, size i at
 * r * sizes + i. */
typedef struct growing {
    mf_capacity *z;
    table_row *row;      /* [models * clusters] */
    bool *planned;       /* of each cell */
    int threads, flight; /* of a search */
    int alone_threads;   /* of one beside which no other runs */
    pthread_mutex_t watching;
    const mf_capacity_cell *shown; /* the cell that progress reports are about */
} growing;

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
        watch->cell(watch->user, &row->job, w->cell->gpus);
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

static mf_status fill(mf_capacity_cell *c, const mf_capacity_request *r, const mf_job *j,
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
    c->tokens_per_s = p->tokens_per_s_per_gpu * (double)c->gpus;
    c->mfu = p->mfu;
    c->peak_memory_B = p->peak_memory_B;
    c->usable_B = p->usable_B;
    c->gpu_W = mf_step_power_drawn_W(&c->power, k);
    c->goodput = mf_capacity_goodput(r, k, c->gpus);
    mf_capacity_fill_run(c, r, k);
    return MF_OK;
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
                              .threads = w->g->threads};
    mf_status s = mf_planner_fit(problem, &o, &fit, &why);
    end_watch(w);
    if (s == MF_INFEASIBLE) {
        mf_problem_nothing_fits(&fit, &why);
    }
    snprintf(c->why, sizeof c->why, "%.511s", s == MF_OK ? "no layout fits" : why.text);
    mf_fit_result_clear(&fit);
    return s == MF_INTERRUPTED ? s : MF_OK;
}

/* What was found elsewhere, as far as it may be tried at a cell of the row. Searches without host
 * copies come first. */
static int carry(const mf_problem *p, int row, const mf_carried *known, int count,
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

static mf_search_options options_of(watched_cell *w) {
    const mf_capacity_request *r = w->g->z->r;
    mf_search_options o;
    mf_search_options_init(&o);
    o.cancel = r->cancel;
    o.progress = r->watch.search != NULL ? watch_search : NULL;
    o.user = w;
    o.top = 1;
    o.gap = r->gap;
    o.budget = r->effort_us;
    o.patience = r->effort_us > 0 ? 0 : PATIENCE_US;
    o.threads = is_alone(w) ? w->g->alone_threads : w->g->threads;
    o.flight = w->g->flight;
    return o;
}

/* What is asked of a cell: its row's job on its GPUs. */
static mf_status problem_of(const table_row *row, int64_t gpus, mf_problem *out, mf_err *e) {
    mf_status s = mf_problem_from_job(&row->job, out, e);
    out->base.gpus = gpus;
    return s == MF_OK ? mf_job_check_cluster(&out->base, &row->job.cluster, e) : s;
}

/* Plans a cell whose size and row are known; known[count]: plans that it may begin with. One that
 * does not fit is a result; MF_OK. */
static mf_status plan_cell(growing *g, table_row *row, mf_capacity_cell *c, const mf_carried *known,
                           int count, mf_err *e) {
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
    mf_search_options o = options_of(&w);
    mf_status s = problem_of(row, c->gpus, &problem, &why);
    if (s == MF_OK && mf_planner_least_states_B(&problem) >
                          mf_cluster_usable_B(&row->job.cluster, problem.base.reserve)) {
        s = mf_err_set(&why, MF_INFEASIBLE, "no layout fits");
        c->host.infeasible = (problem.pinned & MF_PIN(OFFLOAD)) == 0;
    }
    if (s == MF_OK && row->book == NULL) {
        s = mf_price_book_create(&problem, &o, &row->book, &why);
    }
    if (s == MF_OK) {
        o.book = row->book;
        o.start = start;
        o.starts = carry(&problem, c->row, known, count, start);
        s = mf_host_copies_search(mf_runs_on_search, &row->on, &problem, &o, asked->search_offload,
                                  &r, &c->host, &why);
    }
    end_watch(&w);
    if (s == MF_OK) {
        s = fill(c, asked, &row->job, &r.plan[0], e);
        c->gap = r.stats.gap;
        c->end = r.stats.end;
        snprintf(c->ended, sizeof c->ended, "%s", r.stats.ended);
    } else if (s == MF_INFEASIBLE) {
        snprintf(c->why, sizeof c->why, "%s", "no layout fits");
        c->unexplained = true; /* until all are planned, since other cells wait for this one */
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

/* --- rows ------------------------------------------------------------------------------------- */

/* A size of a row that is still to be planned. */
static mf_capacity_cell cell_of(const growing *g, int row, int64_t gpus) {
    const table_row *w = &g->row[row];
    const mf_job *j = &w->job;
    mf_capacity_cell c = {.gpus = gpus, .row = row, .price = w->price};
    mf_layout l = j->plan.layout;
    l.gpus = gpus;
    mf_doubt_job(&g->z->doubts, &j->model, &j->cluster, &l);
    snprintf(c.model, sizeof c.model, "%s", j->model.name);
    snprintf(c.cluster, sizeof c.cluster, "%s", j->cluster.name);
    snprintf(c.gpu, sizeof c.gpu, "%.31s", j->cluster.gpu.name);
    snprintf(c.software, sizeof c.software, "%s", j->software.name);
    c.runs_on = w->on.limited ? mf_target_info_of(w->on.target)->word : NULL;
    return c;
}

/* Limits a row to the program that is to run its plans. A model that the program cannot express is
 * a result, not an error. */
static mf_status limit_row(const mf_capacity_request *r, table_row *w, mf_err *e) {
    const mf_job *j = &w->job;
    mf_err why;
    mf_err_clear(&why);
    mf_status s = mf_runs_on_parse(r->runs_on, j->software.name, &w->on, e);
    if (s == MF_OK &&
        mf_runs_on_check_model(&w->on, r->runs_on, j->software.name, &j->model, &why) != MF_OK) {
        snprintf(w->refused, sizeof w->refused, "%.511s", why.text);
    }
    return s;
}

/* A model on a cluster, and its cells before they are planned. */
static mf_status begin_row(growing *g, int row, mf_err *e) {
    mf_capacity *z = g->z;
    const mf_capacity_request *r = z->r;
    const char *cluster = r->cluster[row % r->clusters];
    table_row *w = &g->row[row];
    mf_job_request asked = r->asked;
    asked.model = r->model[row / r->clusters];
    asked.model_option = "models";
    asked.cluster = cluster;
    asked.cluster_option = "clusters";
    mf_status s = mf_job_load(&w->job, &asked, e);
    if (s == MF_OK && r->watch.row != NULL) {
        r->watch.row(r->watch.user, &w->job);
    }
    if (s == MF_OK) {
        w->price = mf_capacity_price_of(r, cluster, &w->job.cluster);
        mf_doubt_price(&z->doubts, cluster, w->price.usd_gpu_h, w->price.date,
                       strcmp(w->price.source, "--price") == 0);
        s = limit_row(r, w, e);
    }
    for (int i = 0; s == MF_OK && i < r->sizes; i++) {
        z->cell[row * r->sizes + i] = cell_of(g, row, r->size[i]);
    }
    return s;
}

static mf_carried carried_of(const mf_capacity_cell *c) {
    return (mf_carried){c->row, &c->layout, &c->assignment};
}

static void end_row(table_row *w) {
    mf_price_book_destroy(w->book);
    w->book = NULL;
}

static mf_status plan_at(void *user, int row, int column, mf_err *e);

/* The table, by rows of one model on one cluster; those of a model may know of each other. */
static mf_wavefront wavefront_of(growing *g) {
    const mf_capacity_request *r = g->z->r;
    return (mf_wavefront){.rows = r->models * r->clusters,
                          .columns = r->sizes,
                          .group = r->clusters,
                          .work = plan_at,
                          .user = g};
}

static mf_status plan_at(void *user, int row, int column, mf_err *e) {
    growing *g = user;
    const mf_capacity *z = g->z;
    const mf_wavefront w = wavefront_of(g);
    const int at = row * z->r->sizes + column;
    int count = 0;
    mf_carried *known = calloc((size_t)at + 1, sizeof *known);
    if (known == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int i = 0; i < at; i++) {
        if (mf_wavefront_knows(&w, row, column, i / w.columns, i % w.columns) &&
            z->cell[i].feasible) {
            known[count++] = carried_of(&z->cell[i]);
        }
    }
    mf_status s = plan_cell(g, &g->row[row], &z->cell[at], known, count, e);
    g->planned[at] = s == MF_OK;
    free(known);
    if (column + 1 == z->r->sizes && !z->r->refine) {
        end_row(&g->row[row]);
    }
    return s;
}

/* Cells of which nothing is known leave the table. */
static void keep_planned(growing *g) {
    mf_capacity *z = g->z;
    const int cells = z->r->models * z->r->clusters * z->r->sizes;
    z->count = 0;
    for (int i = 0; i < cells; i++) {
        if (g->planned[i]) {
            z->cell[z->count++] = z->cell[i];
        }
    }
}

/* The first cell of the row, or of one behind it. */
static int first_of(const mf_capacity *z, int row) {
    int at = 0;
    while (at < z->count && z->cell[at].row < row) {
        at++;
    }
    return at;
}

/* The plans of the cells that are there and of the row's model; to be freed. NULL: out of memory.
 */
static mf_carried *list_known(const mf_capacity *z, int row, int *count) {
    mf_carried *known = calloc((size_t)z->count + 1, sizeof *known);
    *count = 0;
    for (int i = 0; known != NULL && i < z->count; i++) {
        const mf_capacity_cell *c = &z->cell[i];
        if (c->feasible && c->row / z->r->clusters == row / z->r->clusters) {
            known[(*count)++] = carried_of(c);
        }
    }
    return known;
}

/* Plans one more size and puts its cell in its place in its row. */
static mf_status add_cell(growing *g, int row, int64_t gpus, mf_err *e) {
    mf_capacity *z = g->z;
    mf_capacity_cell c = cell_of(g, row, gpus);
    int count;
    mf_carried *known = list_known(z, row, &count);
    mf_status s = known != NULL ? plan_cell(g, &g->row[row], &c, known, count, e)
                                : mf_err_set(e, MF_NOMEM, "out of memory");
    free(known);
    if (s != MF_OK) {
        return s;
    }
    int at = z->count++;
    for (; at > 0 && (z->cell[at - 1].row > row ||
                      (z->cell[at - 1].row == row && z->cell[at - 1].gpus > gpus));
         at--) {
        z->cell[at] = z->cell[at - 1];
    }
    z->cell[at] = c;
    return MF_OK;
}

/* Halves the way from the largest size that misses the deadline to the smallest that keeps it. */
static mf_status refine(growing *g, int row, mf_err *e) {
    const mf_capacity *z = g->z;
    mf_status s = MF_OK;
    for (int round = 0; s == MF_OK && round < REFINED; round++) {
        const int first = first_of(z, row), end = first_of(z, row + 1);
        int at = first;
        while (at < end && !z->cell[at].keeps_deadline) {
            at++;
        }
        if (at == first || at == end) {
            return MF_OK;
        }
        const int64_t each = g->row[row].job.cluster.gpus_per_node;
        const int64_t low = z->cell[at - 1].gpus, high = z->cell[at].gpus,
                      node = each > 0 ? each : 1;
        const int64_t middle = (low + high) / 2 / node * node;
        if (middle <= low || middle >= high) {
            return MF_OK;
        }
        s = add_cell(g, row, middle, e);
    }
    return s;
}

/* What a cell says of its search once another cell's plan has taken its place. */
static void say_carried(mf_capacity_cell *c, const mf_capacity_cell *from, double asked) {
    size_t used;
    if (c->end != MF_SEARCH_END_PROVEN && c->gap <= asked) {
        c->end = MF_SEARCH_END_PROVEN;
        mf_search_end_say(c->end, asked, 0, c->ended, sizeof c->ended);
    }
    used = strcspn(c->ended, ";");
    snprintf(c->ended + used, sizeof c->ended - used, "; the plan is that of %lld x %s",
             (long long)from->gpus, from->cluster);
}

/* A search stops when its proof is tight enough: another cluster's plan of the same size, or that
 * of a larger one, may be faster here than the one that was found. So no cluster that is better in
 * every figure takes longer. */
static mf_status try_plan_of(mf_capacity *z, const mf_job *j, const mf_capacity_cell *from,
                             mf_capacity_cell *c, mf_err *e) {
    mf_problem problem;
    mf_plan plan;
    mf_known_plan there[MF_CARRY_MOST] = {{.layout = from->layout, .assignment = from->assignment}};
    const mf_carried known = carried_of(from);
    mf_status s = mf_problem_from_job(j, &problem, e);
    problem.base.gpus = c->gpus;
    if (s != MF_OK || (from->row == c->row && carry(&problem, c->row, &known, 1, there) == 0) ||
        mf_job_check_cluster(&there[0].layout, &j->cluster, NULL) != MF_OK) {
        return s;
    }
    s = mf_planner_predict(&problem, &there[0].layout, &there[0].assignment, &plan, NULL, e);
    if (s == MF_OK && plan.prediction.fits && plan.prediction.step_time_s < c->step_time_s) {
        double bound_s = c->step_time_s / (1 + c->gap);
        s = fill(c, z->r, j, &plan, e);
        c->gap = fmax(0, c->step_time_s / bound_s - 1);
        say_carried(c, from, z->r->gap);
    }
    mf_plan_clear(&plan);
    return s;
}

/* May a plan be of use to a cell whose search did not know it? */
static bool may_help(const growing *g, const mf_capacity_cell *from, const mf_capacity_cell *c) {
    const int clusters = g->z->r->clusters;
    return from->feasible && from->row / clusters == c->row / clusters &&
           (from->row == c->row ? from->gpus > c->gpus && from->gpus <= 2 * c->gpus
                                : from->gpus == c->gpus);
}

/* Tries, at the cells of a row, the plans of from[z->count] that may help there: those of its own
 * larger sizes, or those of other clusters. Cells ascend by size, so that of larger ones is what
 * their searches found. */
static mf_status share_plans(const growing *g, const mf_capacity_cell *from, int row, bool own,
                             mf_err *e) {
    mf_capacity *z = g->z;
    mf_status s = MF_OK;
    for (int a = 0; s == MF_OK && a < z->count; a++) {
        mf_capacity_cell *c = &z->cell[a];
        for (int b = 0; s == MF_OK && c->row == row && c->feasible && b < z->count; b++) {
            if ((from[b].row == row) == own && may_help(g, &from[b], c)) {
                s = try_plan_of(z, &g->row[row].job, &from[b], c, e);
            }
        }
    }
    return s;
}

/* Says what is missing at the sizes of a row where nothing fits. */
static mf_status explain_missing(growing *g, int row, mf_err *e) {
    mf_capacity *z = g->z;
    mf_status s = MF_OK;
    for (int i = 0; s == MF_OK && i < z->count; i++) {
        watched_cell w = {g, &z->cell[i]};
        mf_problem problem;
        if (z->cell[i].row == row && z->cell[i].unexplained) {
            begin_cell(&w, &g->row[row]);
            s = problem_of(&g->row[row], z->cell[i].gpus, &problem, e);
            s = s == MF_OK ? say_missing(&w, &problem, &z->cell[i]) : s;
            z->cell[i].unexplained = false;
        }
    }
    return s;
}

static mf_status finish_row(void *user, int row, int column, mf_err *e) {
    growing *g = user;
    (void)column;
    mf_status s = explain_missing(g, row, e);
    return s == MF_OK ? share_plans(g, g->z->cell, row, true, e) : s;
}

/* The cells as they were before any row was given plans of others. */
typedef struct shared {
    growing *g;
    const mf_capacity_cell *cell;
} shared;

static mf_status share_between(void *user, int row, int column, mf_err *e) {
    const shared *x = user;
    (void)column;
    return share_plans(x->g, x->cell, row, false, e);
}

/* What cells say and are given when all are planned, several rows at the same time: a job is one
 * thread's. */
static mf_status finish(growing *g, int threads, mf_err *e) {
    const mf_capacity *z = g->z;
    const size_t cells = (size_t)z->count;
    mf_capacity_cell *before = malloc((cells + 1) * sizeof *before);
    if (before == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    shared x = {g, before};
    mf_wavefront rows = {.rows = z->r->models * z->r->clusters,
                         .columns = 1,
                         .group = 1,
                         .work = finish_row,
                         .user = g};
    mf_status s = mf_wavefront_run(&rows, threads, e);
    if (s == MF_OK) {
        memcpy(before, z->cell, cells * sizeof *before);
        rows.work = share_between;
        rows.user = &x;
        s = mf_wavefront_run(&rows, threads, e);
    }
    free(before);
    return s;
}

static mf_status strain(const growing *g, mf_err *e) {
    mf_capacity *z = g->z;
    mf_status s = MF_OK;
    if (z->r->skew == NULL && !(z->r->deadline_s > 0) && !(z->r->budget_usd > 0)) {
        return MF_OK;
    }
    for (int i = 0; s == MF_OK && i < z->r->models * z->r->clusters; i++) {
        s = mf_capacity_strain_row(z, &g->row[i].job, i, e);
    }
    return s;
}

/* --- other programs --------------------------------------------------------------------------- */

/* What the plans of a row would take under the newest release of Megatron. */
static mf_status row_under_megatron(mf_capacity *z, const mf_job *j, int row, mf_store *store,
                                    mf_err *e) {
    mf_cost *cost = NULL;
    mf_status s = MF_OK;
    for (int i = 0; s == MF_OK && i < z->count; i++) {
        mf_capacity_cell *c = &z->cell[i];
        const mf_plan plan = {.layout = c->layout,
                              .assignment = c->assignment,
                              .prediction = {.step_time_s = c->step_time_s}};
        if (c->row == row && c->feasible) {
            s = mf_price_under_megatron(&j->model, &j->cluster, &plan, &j->routing, store, &cost,
                                        &c->megatron, e);
        }
    }
    mf_cost_destroy(cost);
    return s;
}

static mf_status all_under_megatron(growing *g, mf_err *e) {
    mf_store *store = NULL;
    int64_t rows, damaged;
    const mf_capacity_request *r = g->z->r;
    mf_status s = mf_prices_open_store(r->asked.store, &store, &rows, &damaged, e);
    for (int i = 0; s == MF_OK && i < r->models * r->clusters; i++) {
        const mf_job *j = &g->row[i].job;
        if (strcmp(j->software.name, MF_SOFTWARE_OURS) == 0 && !mf_cluster_is_cpu(&j->cluster)) {
            s = row_under_megatron(g->z, j, i, store, e);
        }
    }
    mf_store_close(store);
    return s;
}

/* --- the table -------------------------------------------------------------------------------- */

/* Warns of the best MFU of a row's cells, if it is above all that was published. */
static void doubt_best(const growing *g, int row) {
    mf_capacity *z = g->z;
    const mf_capacity_cell *best = NULL;
    char where[160];
    for (int i = 0; z->cell != NULL && i < z->count; i++) {
        const mf_capacity_cell *c = &z->cell[i];
        best = c->row == row && c->feasible && (best == NULL || c->mfu > best->mfu) ? c : best;
    }
    if (best != NULL) {
        snprintf(where, sizeof where, "%.60s on %lld x %.40s", best->model, (long long)best->gpus,
                 best->cluster);
        mf_doubt_mfu(&z->doubts, &g->row[row].job.cluster, &best->layout, best->mfu, where);
    }
}

static mf_status grow(growing *g, int rows, int threads, mf_err *e) {
    const mf_capacity_request *r = g->z->r;
    const mf_wavefront w = wavefront_of(g);
    mf_status s = MF_OK;
    for (int i = 0; s == MF_OK && i < rows; i++) {
        s = begin_row(g, i, e);
    }
    if (s == MF_OK) {
        s = mf_wavefront_run(&w, threads, e);
        keep_planned(g);
    }
    for (int i = 0; i < rows; i++) {
        s = s == MF_OK && r->refine ? refine(g, i, e) : s;
        end_row(&g->row[i]);
    }
    for (int i = 0; i < rows; i++) {
        doubt_best(g, i);
    }
    s = s == MF_OK ? finish(g, threads, e) : s;
    s = s == MF_OK ? all_under_megatron(g, e) : s;
    return s == MF_OK ? strain(g, e) : s;
}

mf_status mf_capacity_plan(const mf_capacity_request *r, mf_capacity *out, mf_err *e) {
    const int rows = r->models * r->clusters;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int threads = r->threads > 0 ? r->threads : cores > 8 ? 8 : cores > 0 ? (int)cores : 1;
    const int at_once = threads < rows ? threads : rows;
    const int flight = (MF_TASKS_IN_FLIGHT + rows - 1) / rows;
    growing g = {.z = out,
                 .threads = (threads + at_once - 1) / at_once,
                 .alone_threads = threads < flight ? threads : flight,
                 .flight = flight,
                 .watching = PTHREAD_MUTEX_INITIALIZER};
    *out = (mf_capacity){.r = r};
    out->cell = calloc((size_t)(rows * (r->sizes + REFINED)) + 1, sizeof *out->cell);
    g.row = calloc((size_t)rows + 1, sizeof *g.row);
    g.planned = calloc((size_t)(rows * r->sizes) + 1, sizeof *g.planned);
    mf_status s = out->cell != NULL && g.row != NULL && g.planned != NULL
                      ? MF_OK
                      : mf_err_set(e, MF_NOMEM, "out of memory");
    if (s == MF_OK && r->tokens > 1) {
        mf_doubt_tokens(&out->doubts, r->tokens);
    }
    s = s == MF_OK && out->cell != NULL ? grow(&g, rows, at_once, e) : s;
    for (int i = 0; g.row != NULL && i < rows; i++) {
        if (g.row[i].refused[0] != '\0') {
            snprintf(out->refused, sizeof out->refused, "%s", g.row[i].refused);
        }
        mf_job_clear(&g.row[i].job);
    }
    free(g.row);
    free(g.planned);
    pthread_mutex_destroy(&g.watching);
    return s;
}

void mf_capacity_clear(mf_capacity *z) {
    free(z->cell);
    *z = (mf_capacity){.cell = NULL};
}
