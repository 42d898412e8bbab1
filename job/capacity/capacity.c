/* capacity.c - plans the cells of a table, and says what whole runs by them take. */
#include "job/capacity/capacity.h"

#include "core/base/number_text.h"
#include "core/base/today.h"
#include "job/capacity/capacity_strain.h"
#include "job/capacity/capacity_table.h"
#include "job/figures/unmeasured.h"
#include "job/load/prices.h"
#include "job/load/problem.h"
#include "planner/capacity/wavefront.h"
#include "planner/order/order_book.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REFINED = 3 /* cells that halving adds to a row */ };

/* --- rows ------------------------------------------------------------------------------------- */

/* A size of a row that is still to be planned. */
static mf_capacity_cell cell_of(const growing *g, int row, int64_t gpus) {
    const table_row *w = &g->row[row];
    const mf_job *j = w->job;
    mf_capacity_cell c = {.gpus = gpus, .row = row, .price = w->price};
    mf_layout l = j->plan.layout;
    l.gpus = gpus;
    mf_doubt_job(&g->z->doubts, &j->model, &j->cluster, &l);
    mf_doubt_correction(&g->z->doubts, j->software.name, j->cluster.name);
    snprintf(c.model, sizeof c.model, "%s", j->model.name);
    snprintf(c.cluster, sizeof c.cluster, "%s", j->cluster.name);
    snprintf(c.gpu, sizeof c.gpu, "%.31s", j->cluster.gpu.name);
    snprintf(c.software, sizeof c.software, "%s", j->software.name);
    c.correction = j->correction;
    c.runs_on = w->on.limited ? mf_target_info_of(w->on.target)->word : NULL;
    return c;
}

/* Limits a row to the program that is to run its plans. A model that the program cannot express is
 * a result, not an error. */
static mf_status limit_row(const mf_capacity_request *r, table_row *w, mf_err *e) {
    const mf_job *j = w->job;
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
    w->job = &z->job[row];
    mf_job_request asked = r->asked;
    asked.model = r->model[row / r->clusters];
    asked.model_option = "models";
    asked.cluster = cluster;
    asked.cluster_option = "clusters";
    mf_status s = mf_job_load(w->job, &asked, e);
    if (s == MF_OK && r->watch.row != NULL) {
        r->watch.row(r->watch.user, w->job);
    }
    if (s == MF_OK) {
        w->price = mf_capacity_price_of(r, cluster, &w->job->cluster);
        mf_doubt_price(&z->doubts, cluster, w->price.usd_gpu_h, w->price.date,
                       strcmp(w->price.source, "--price") == 0, mf_today());
        s = limit_row(r, w, e);
    }
    for (int i = 0; s == MF_OK && i < r->sizes; i++) {
        z->cell[row * r->sizes + i] = cell_of(g, row, r->size[i]);
    }
    return s;
}

/* Rows go by their names: two of the same could not be told apart. */
static mf_status check_names(const growing *g, mf_err *e) {
    const mf_capacity_request *r = g->z->r;
    mf_status s = MF_OK;
    for (int i = 1; s == MF_OK && i < r->clusters; i++) {
        for (int k = 0; s == MF_OK && k < i; k++) {
            const char *name = g->row[i].job->cluster.name;
            if (strcmp(name, g->row[k].job->cluster.name) == 0) {
                s = mf_err_set(e, MF_USAGE,
                               "--clusters: \"%s\" and \"%s\" are both called %s: give a file "
                               "another \"name\"",
                               r->cluster[k], r->cluster[i], name);
            }
        }
    }
    for (int i = 1; s == MF_OK && i < r->models; i++) {
        for (int k = 0; s == MF_OK && k < i; k++) {
            const char *name = g->row[i * r->clusters].job->model.name;
            if (strcmp(name, g->row[k * r->clusters].job->model.name) == 0) {
                s = mf_err_set(e, MF_USAGE,
                               "--models: \"%s\" and \"%s\" are both called %s: rename a file or "
                               "its folder",
                               r->model[k], r->model[i], name);
            }
        }
    }
    return s;
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
            known[count++] = mf_capacity_carried(&z->cell[i]);
        }
    }
    mf_status s = mf_capacity_plan_cell(g, &g->row[row], &z->cell[at], known, count, e);
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
            known[(*count)++] = mf_capacity_carried(c);
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
    mf_status s = known != NULL ? mf_capacity_plan_cell(g, &g->row[row], &c, known, count, e)
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
        const int64_t each = g->row[row].job->cluster.gpus_per_node;
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

/* What plans take under the routing that they are found for is in their rows: it is said once more
 * only where one of them does not fit under it. */
static void name_skew(mf_capacity *z) {
    bool overfull = false;
    for (int i = 0; i < z->count; i++) {
        overfull |= z->cell[i].skewed.tried && !z->cell[i].skewed.fits;
    }
    z->skew = z->r->skew != NULL ? z->r->skew : overfull ? z->r->asked.routing : NULL;
    for (int i = 0; z->skew == NULL && i < z->count; i++) {
        z->cell[i].skewed.tried = false;
    }
}

static mf_status strain(const growing *g, mf_err *e) {
    mf_capacity *z = g->z;
    mf_status s = MF_OK;
    if (z->r->skew == NULL && z->r->asked.routing == NULL && !(z->r->deadline_s > 0) &&
        !(z->r->budget_usd > 0)) {
        return MF_OK;
    }
    for (int i = 0; s == MF_OK && i < z->r->models * z->r->clusters; i++) {
        s = mf_capacity_strain_row(z, g->row[i].job, i, e);
    }
    name_skew(z);
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
            s = mf_price_under_megatron(&j->asked, &j->model, &j->cluster, &plan, &j->routing,
                                        store, &cost, &c->megatron, e);
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
        const mf_job *j = g->row[i].job;
        if (strcmp(j->software.name, MF_SOFTWARE_OURS) == 0 && !mf_cluster_is_cpu(&j->cluster)) {
            s = row_under_megatron(g->z, j, i, store, e);
        }
    }
    mf_store_close(store);
    return s;
}

/* --- the table -------------------------------------------------------------------------------- */

/* The cell of a row with the best MFU; NULL: nothing fits. */
static const mf_capacity_cell *best_of(const mf_capacity *z, int row) {
    const mf_capacity_cell *best = NULL;
    for (int i = 0; z->cell != NULL && i < z->count; i++) {
        const mf_capacity_cell *c = &z->cell[i];
        best = c->row == row && c->feasible && (best == NULL || c->mfu > best->mfu) ? c : best;
    }
    return best;
}

/* Warns of the best MFU of a row's cells, if it is above all that was published. */
static void doubt_best(const growing *g, int row) {
    mf_capacity *z = g->z;
    const mf_capacity_cell *best = best_of(z, row);
    char where[160];
    if (best != NULL) {
        snprintf(where, sizeof where, "%.60s on %s x %.40s", best->model,
                 mf_number_text(best->gpus).s, best->cluster);
        mf_doubt_mfu(&z->doubts, &g->row[row].job->cluster, &best->layout, best->mfu, where);
    }
}

/* Warns once of each cluster on which most of the time was not measured: of a model's best cell,
 * and of the models the one that rests most on it. */
static void doubt_prices(const growing *g) {
    const mf_capacity_request *r = g->z->r;
    for (int cluster = 0; cluster < r->clusters; cluster++) {
        double most = 0;
        for (int row = cluster; row < r->models * r->clusters; row += r->clusters) {
            const mf_capacity_cell *c = best_of(g->z, row);
            if (c != NULL) {
                most = fmax(most, mf_unmeasured_share(g->row[row].job, &c->layout, &c->assignment));
            }
        }
        mf_doubt_prices(&g->z->doubts, g->row[cluster].job, most);
    }
}

/* Of the plans that the table ends with. */
static void say_bases(const growing *g) {
    for (int i = 0; i < g->z->count; i++) {
        mf_capacity_cell *c = &g->z->cell[i];
        const mf_job *j = g->row[c->row].job;
        if (c->feasible) {
            c->moe = j->model.experts > 0;
            mf_basis_shares(j, &c->layout, &c->assignment, c->basis_share);
        }
    }
}

static mf_status grow(growing *g, int rows, int threads, mf_err *e) {
    const mf_capacity_request *r = g->z->r;
    const mf_wavefront w = wavefront_of(g);
    mf_status s = MF_OK;
    for (int i = 0; s == MF_OK && i < rows; i++) {
        s = begin_row(g, i, e);
    }
    s = s == MF_OK ? check_names(g, e) : s;
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
    if (s == MF_OK) {
        doubt_prices(g);
    }
    s = s == MF_OK ? mf_capacity_share_plans(g, threads, e) : s;
    s = s == MF_OK ? all_under_megatron(g, e) : s;
    s = s == MF_OK ? strain(g, e) : s;
    say_bases(g);
    return s;
}

int mf_capacity_flight(const mf_capacity_request *r) {
    const int rows = r->models * r->clusters;
    return rows == 1 ? MF_TASKS_IN_FLIGHT : (MF_CAPACITY_TASKS + rows - 1) / rows;
}

mf_status mf_capacity_plan(const mf_capacity_request *r, mf_capacity *out, mf_err *e) {
    const int rows = r->models * r->clusters;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int threads = r->threads > 0 ? r->threads : cores > 8 ? 8 : cores > 0 ? (int)cores : 1;
    const int at_once = threads < rows ? threads : rows;
    const int flight = mf_capacity_flight(r);
    growing g = {.z = out,
                 .threads = (threads + at_once - 1) / at_once,
                 .alone_threads = threads < flight ? threads : flight,
                 .all_threads = threads,
                 .flight = flight,
                 .watching = PTHREAD_MUTEX_INITIALIZER};
    *out = (mf_capacity){.r = r};
    out->cell = calloc((size_t)(rows * (r->sizes + REFINED)) + 1, sizeof *out->cell);
    out->job = calloc((size_t)rows + 1, sizeof *out->job);
    g.row = calloc((size_t)rows + 1, sizeof *g.row);
    g.planned = calloc((size_t)(rows * r->sizes) + 1, sizeof *g.planned);
    mf_status s = out->cell != NULL && out->job != NULL && g.row != NULL && g.planned != NULL
                      ? MF_OK
                      : mf_err_set(e, MF_NOMEM, "out of memory");
    if (s == MF_OK && r->tokens > 1) {
        mf_doubt_tokens(&out->doubts, r->tokens);
    }
    s = s == MF_OK ? mf_order_book_create(&g.orders, e) : s;
    s = s == MF_OK && out->cell != NULL ? grow(&g, rows, at_once, e) : s;
    mf_order_book_destroy(g.orders);
    for (int i = 0; g.row != NULL && i < rows; i++) {
        if (g.row[i].refused[0] != '\0') {
            snprintf(out->refused, sizeof out->refused, "%s", g.row[i].refused);
        }
    }
    free(g.row);
    free(g.planned);
    pthread_mutex_destroy(&g.watching);
    return s;
}

mf_status mf_capacity_plan_of(const mf_capacity *z, const mf_capacity_cell *c, mf_problem *problem,
                              mf_plan *out, mf_err *e) {
    mf_plan_init(out);
    mf_status s = mf_problem_from_job(&z->job[c->row], problem, e);
    if (s != MF_OK) {
        return s;
    }
    problem->base.gpus = c->gpus;
    s = mf_planner_predict(problem, &c->layout, &c->assignment, out, NULL, e);
    out->provenance.searched = true;
    out->provenance.space = c->space;
    out->provenance.gap = c->gap;
    out->provenance.lower_bound_s = c->step_time_s / (1 + c->gap);
    return s;
}

void mf_capacity_clear(mf_capacity *z) {
    for (int i = 0; z->job != NULL && i < z->r->models * z->r->clusters; i++) {
        mf_job_clear(&z->job[i]);
    }
    free(z->job);
    free(z->cell);
    *z = (mf_capacity){.cell = NULL};
}
