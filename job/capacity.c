/* capacity.c - plans the cells of a table, and says what whole runs by them take. */
#include "job/capacity.h"

#include "core/base/flag.h"
#include "core/base/number_text.h"
#include "job/prices.h"
#include "job/problem.h"
#include "job/step_power.h"
#include "planner/capacity/robust.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REFINED = 3 }; /* cells that halving adds to a row */

static void ended(const mf_capacity *z) {
    if (z->r->watch.ended != NULL) {
        z->r->watch.ended(z->r->watch.user);
    }
}

/* --- one cell --------------------------------------------------------------------------------- */

/* What the whole run takes. */
static void fill_run(mf_capacity_cell *c, const mf_capacity_request *r, const mf_cluster *k) {
    c->run_s =
        c->goodput.share > 0 ? r->tokens / c->tokens_per_s / c->goodput.share : (double)INFINITY;
    c->gpu_h = (double)c->gpus * c->run_s / 3600;
    c->energy_J = (c->gpu_W + k->node_overhead_w) * (double)c->gpus * c->run_s;
    c->cost_usd = c->price.usd_gpu_h * c->gpu_h + r->power_usd_kWh * c->energy_J / 3.6e6;
    c->keeps_deadline = r->deadline_s > 0 && c->run_s <= r->deadline_s;
}

static mf_goodput goodput_of(const mf_capacity_request *r, const mf_cluster *k, int64_t gpus) {
    return mf_goodput_of((double)gpus, k->mtbf_gpu_h, r->checkpoint_s, r->restart_s);
}

static mf_status fill(mf_capacity_cell *c, const mf_capacity_request *r, const mf_job *j,
                      const mf_plan *plan, mf_err *e) {
    const mf_plan_prediction *p = &plan->prediction;
    const mf_cluster *k = &j->cluster;
    mf_step_power power;
    mf_status s = mf_step_power_of(j, plan, &power, e);
    if (s != MF_OK) {
        return s;
    }
    c->feasible = true;
    c->layout = plan->layout;
    c->assignment = plan->assignment;
    c->host.used = mf_host_copies_of(plan);
    c->step_time_s = p->step_time_s;
    c->low_s = p->step_time_low_s;
    c->high_s = p->step_time_high_s;
    c->tokens_per_s = p->tokens_per_s_per_gpu * (double)c->gpus;
    c->mfu = p->mfu;
    c->peak_memory_B = p->peak_memory_B;
    c->usable_B = p->usable_B;
    c->gpu_W = mf_step_power_drawn_W(&power, k);
    c->goodput = goodput_of(r, k, c->gpus);
    fill_run(c, r, k);
    return MF_OK;
}

/* The search says that nothing fits; phase 1 knows what is missing, and at which size it would. */
static mf_status say_missing(mf_capacity *z, const mf_problem *problem, mf_capacity_cell *c) {
    mf_fit_result fit = {0};
    mf_err why;
    mf_err_clear(&why);
    const mf_fit_options o = {.cancel = z->r->cancel,
                              .progress = z->r->watch.fit,
                              .user = z->r->watch.user,
                              .shown = 1,
                              .threads = z->r->threads};
    mf_status s = mf_planner_fit(problem, &o, &fit, &why);
    ended(z);
    if (s == MF_INFEASIBLE) {
        mf_problem_nothing_fits(&fit, &why);
    }
    snprintf(c->why, sizeof c->why, "%.511s", s == MF_OK ? "no layout fits" : why.text);
    mf_fit_result_clear(&fit);
    return s == MF_INTERRUPTED ? s : MF_OK;
}

/* The plans of the cells that are there and of one model, or of its row alone; to be freed. NULL:
 * out of memory. */
static mf_carried *list_known(const mf_capacity *z, int row, bool others, int *count) {
    mf_carried *known = calloc((size_t)z->count + 1, sizeof *known);
    *count = 0;
    for (int i = 0; known != NULL && i < z->count; i++) {
        const mf_capacity_cell *c = &z->cell[i];
        const bool of_model = c->row / z->r->clusters == row / z->r->clusters;
        if (c->feasible && (others ? of_model : c->row == row)) {
            known[(*count)++] = (mf_carried){c->row, &c->layout, &c->assignment};
        }
    }
    return known;
}

/* What cells of the model have found, as far as it may be tried here. Searches without host copies
 * come first. */
static int carry(const mf_capacity *z, const mf_problem *p, mf_known_plan start[MF_CARRY_MOST]) {
    mf_problem held = *p;
    int count = 0;
    mf_carried *known = list_known(z, z->row, true, &count);
    held.pinned |= MF_PIN(OFFLOAD);
    int starts = known != NULL ? mf_carry_starts(&held, z->row, known, count, start) : 0;
    free(known);
    return starts;
}

/* Plans one cell. A cell that does not fit is a result; MF_OK. */
static mf_status plan_cell(mf_capacity *z, mf_job *j, mf_capacity_cell *c, mf_err *e) {
    mf_problem problem;
    mf_search_result r = {0};
    mf_search_options o;
    mf_known_plan start[MF_CARRY_MOST];
    mf_err why;
    mf_err_clear(&why);
    snprintf(c->model, sizeof c->model, "%s", j->model.name);
    snprintf(c->cluster, sizeof c->cluster, "%s", j->cluster.name);
    snprintf(c->software, sizeof c->software, "%s", j->software.name);
    if (z->r->watch.cell != NULL) {
        z->r->watch.cell(z->r->watch.user, j, c->gpus);
    }
    j->plan.layout.gpus = c->gpus;
    mf_doubt_job(&z->doubts, &j->model, &j->cluster, &j->plan.layout);
    c->runs_on = z->on.limited ? mf_target_info_of(z->on.target)->word : NULL;
    if (z->refused[0] != '\0') {
        snprintf(c->why, sizeof c->why, "%s", z->refused);
        return MF_OK;
    }
    mf_search_options_init(&o);
    o.cancel = z->r->cancel;
    o.progress = z->r->watch.search;
    o.user = z->r->watch.user;
    o.top = 1;
    o.gap = z->r->gap;
    o.budget = z->r->effort_us;
    o.threads = z->r->threads;
    mf_status s = mf_problem_from_job(j, &problem, &why);
    if (s == MF_OK && z->book == NULL) {
        s = mf_price_book_create(&problem, &o, &z->book, &why);
    }
    if (s == MF_OK) {
        o.book = z->book;
        o.start = start;
        o.starts = carry(z, &problem, start);
        s = mf_host_copies_search(mf_runs_on_search, &z->on, &problem, &o, z->r->search_offload, &r,
                                  &c->host, &why);
    }
    ended(z);
    if (s == MF_OK) {
        s = fill(c, z->r, j, &r.plan[0], e);
        c->gap = r.stats.gap;
    } else if (s == MF_INFEASIBLE) {
        s = say_missing(z, &problem, c);
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

/* Plans a size and puts its cell in its place in the row that begins at `first`. */
static mf_status add_cell(mf_capacity *z, mf_job *j, int first, int64_t gpus, mf_err *e) {
    mf_capacity_cell c = {.gpus = gpus, .row = z->row, .price = z->price};
    mf_status s = plan_cell(z, j, &c, e);
    if (s != MF_OK) {
        return s;
    }
    int at = z->count++;
    for (; at > first && z->cell[at - 1].gpus > gpus; at--) {
        z->cell[at] = z->cell[at - 1];
    }
    z->cell[at] = c;
    return MF_OK;
}

/* Halves the way from the largest size that misses the deadline to the smallest that keeps it. */
static mf_status refine(mf_capacity *z, mf_job *j, int first, mf_err *e) {
    mf_status s = MF_OK;
    for (int round = 0; s == MF_OK && round < REFINED; round++) {
        int at = first;
        while (at < z->count && !z->cell[at].keeps_deadline) {
            at++;
        }
        if (at == first || at == z->count) {
            return MF_OK;
        }
        int64_t low = z->cell[at - 1].gpus, high = z->cell[at].gpus;
        int64_t node = j->cluster.gpus_per_node > 0 ? j->cluster.gpus_per_node : 1;
        int64_t middle = (low + high) / 2 / node * node;
        if (middle <= low || middle >= high) {
            return MF_OK;
        }
        s = add_cell(z, j, first, middle, e);
    }
    return s;
}

/* notes: where is told what the model leaves out; NULL where that has been said. */
static mf_job_request ask_row(const mf_capacity *z, int row, FILE *notes) {
    mf_job_request asked = z->r->asked;
    asked.model = z->r->model[row / z->r->clusters];
    asked.model_option = "models";
    asked.cluster = z->r->cluster[row % z->r->clusters];
    asked.cluster_option = "clusters";
    asked.notes = notes;
    return asked;
}

static mf_status load_row(const mf_capacity *z, int row, FILE *notes, mf_job *j, mf_err *e) {
    const mf_job_request asked = ask_row(z, row, notes);
    return mf_job_load(j, &asked, e);
}

/* A search stops when its proof is tight enough: another cluster's plan of the same size may be
 * faster here than the one that was found. So no cluster that is better in every figure takes
 * longer. */
static mf_status try_plan_of(mf_capacity *z, const mf_job *j, const mf_capacity_cell *from,
                             mf_capacity_cell *c, mf_err *e) {
    mf_problem problem;
    mf_plan plan;
    mf_status s = mf_problem_from_job(j, &problem, e);
    if (s != MF_OK || mf_job_check_cluster(&from->layout, &j->cluster, NULL) != MF_OK) {
        return s;
    }
    s = mf_planner_predict(&problem, &from->layout, &from->assignment, &plan, NULL, e);
    if (s == MF_OK && plan.prediction.fits && plan.prediction.step_time_s < c->step_time_s) {
        double bound_s = c->step_time_s / (1 + c->gap);
        s = fill(c, z->r, j, &plan, e);
        c->gap = fmax(0, c->step_time_s / bound_s - 1);
    }
    mf_plan_clear(&plan);
    return s;
}

static mf_status share_plans(mf_capacity *z, mf_err *e) {
    const int clusters = z->r->clusters;
    mf_status s = MF_OK;
    for (int i = 0; s == MF_OK && clusters > 1 && i < z->r->models * clusters; i++) {
        mf_job j;
        s = load_row(z, i, NULL, &j, e);
        for (int a = 0; s == MF_OK && a < z->count; a++) {
            mf_capacity_cell *c = &z->cell[a];
            for (int b = 0; s == MF_OK && c->row == i && c->feasible && b < z->count; b++) {
                const mf_capacity_cell *from = &z->cell[b];
                if (from->feasible && from->row != i && from->gpus == c->gpus &&
                    from->row / clusters == i / clusters) {
                    s = try_plan_of(z, &j, from, c, e);
                }
            }
        }
        mf_job_clear(&j);
    }
    return s;
}

/* --- when something is not as planned --------------------------------------------------------- */

/* The run of the cell's job at that step time on so many GPUs; `paid` of them cost. */
static mf_capacity_strain strain_of(const mf_capacity_cell *c, const mf_capacity_request *r,
                                    const mf_job *j, int64_t gpus, int64_t paid,
                                    double step_time_s) {
    mf_capacity_cell t = *c;
    t.gpus = paid;
    t.tokens_per_s *= c->step_time_s / step_time_s;
    t.goodput = goodput_of(r, &j->cluster, gpus);
    fill_run(&t, r, &j->cluster);
    return (mf_capacity_strain){
        .tried = true,
        .fits = true,
        .gpus = gpus,
        .step_time_s = step_time_s,
        .run_s = t.run_s,
        .cost_usd = t.cost_usd,
        .in_time = !(r->deadline_s > 0) || t.keeps_deadline,
        .in_budget = !(r->budget_usd > 0) || (c->price.known && t.cost_usd <= r->budget_usd),
    };
}

static mf_status skew_cell(mf_capacity *z, const mf_job *j, const mf_problem *p,
                           const mf_routing *skew, mf_capacity_cell *c, mf_err *e) {
    mf_skewed found;
    mf_status s = mf_robust_skew(p, &c->layout, &c->assignment, skew, &found, e);
    if (s == MF_OK) {
        c->skewed = strain_of(c, z->r, j, c->gpus, c->gpus, found.step_time_s);
        c->skewed.fits = found.fits;
        c->skewed.load = found.load;
    }
    return s;
}

/* The plans of the row are what is known of its cluster. */
static mf_status lose_node(mf_capacity *z, const mf_job *j, const mf_problem *p,
                           mf_capacity_cell *c, mf_err *e) {
    const int64_t node = j->cluster.gpus_per_node > 0 ? j->cluster.gpus_per_node : 1;
    mf_plan plan;
    bool found = false;
    int count = 0;
    mf_carried *known = list_known(z, c->row, false, &count);
    if (known == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_robust_left(p, c->gpus - node, c->row, known, count, &plan, &found, e);
    c->lost = (mf_capacity_strain){.tried = s == MF_OK};
    if (s == MF_OK && found) {
        c->lost =
            strain_of(c, z->r, j, plan.layout.gpus, c->gpus - node, plan.prediction.step_time_s);
    }
    mf_plan_clear(&plan);
    free(known);
    return s;
}

static mf_status strain_row(mf_capacity *z, mf_job *j, int row, mf_err *e) {
    const bool limits = z->r->deadline_s > 0 || z->r->budget_usd > 0;
    mf_problem problem;
    mf_routing skew;
    mf_routing_init(&skew);
    mf_status s = mf_problem_from_job(j, &problem, e);
    if (s == MF_OK && z->r->skew != NULL) {
        s = mf_routing_parse(z->r->skew, &skew, e);
        s = s == MF_OK && j->model.experts > 0 ? mf_routing_check(&skew, &j->model, e) : s;
        s = s == MF_OK ? s : mf_err_prefix(e, "--skew");
    }
    for (int i = 0; s == MF_OK && i < z->count; i++) {
        mf_capacity_cell *c = &z->cell[i];
        if (c->row != row || !c->feasible) {
            continue;
        }
        problem.base.gpus = c->gpus;
        if (z->r->skew != NULL && j->model.experts > 0) {
            s = skew_cell(z, j, &problem, &skew, c, e);
        }
        s = s == MF_OK && limits ? lose_node(z, j, &problem, c, e) : s;
        if (s == MF_OK && mf_flag_is_set(z->r->cancel)) {
            s = mf_err_set(e, MF_INTERRUPTED, "interrupted");
        }
    }
    mf_routing_clear(&skew);
    return s;
}

static mf_status strain(mf_capacity *z, mf_err *e) {
    mf_status s = MF_OK;
    if (z->r->skew == NULL && !(z->r->deadline_s > 0) && !(z->r->budget_usd > 0)) {
        return MF_OK;
    }
    for (int i = 0; s == MF_OK && i < z->r->models * z->r->clusters; i++) {
        mf_job j;
        s = load_row(z, i, NULL, &j, e);
        s = s == MF_OK ? strain_row(z, &j, i, e) : s;
        mf_job_clear(&j);
    }
    return s;
}

/* --- other programs --------------------------------------------------------------------------- */

/* What the plans of a row would take under the newest release of Megatron. */
static mf_status row_elsewhere(mf_capacity *z, const mf_job *j, int row, mf_store *store,
                               mf_err *e) {
    mf_cost *cost = NULL;
    mf_status s = MF_OK;
    for (int i = 0; s == MF_OK && i < z->count; i++) {
        mf_capacity_cell *c = &z->cell[i];
        const mf_plan plan = {.layout = c->layout,
                              .assignment = c->assignment,
                              .prediction = {.step_time_s = c->step_time_s}};
        if (c->row == row && c->feasible) {
            s = mf_elsewhere_megatron(&j->model, &j->cluster, &plan, &j->routing, store, &cost,
                                      &c->megatron, e);
        }
    }
    mf_cost_destroy(cost);
    return s;
}

static mf_status elsewhere(mf_capacity *z, mf_err *e) {
    mf_store *store = NULL;
    int64_t rows, damaged;
    mf_status s = mf_prices_open_store(z->r->asked.store, &store, &rows, &damaged, e);
    for (int i = 0; s == MF_OK && i < z->r->models * z->r->clusters; i++) {
        mf_job j;
        const mf_job_request asked = ask_row(z, i, NULL);
        s = mf_job_read(&j, &asked, e);
        if (s == MF_OK && strcmp(j.software.name, MF_SOFTWARE_OURS) == 0 &&
            !mf_cluster_is_cpu(&j.cluster)) {
            s = row_elsewhere(z, &j, i, store, e);
        }
        mf_job_clear(&j);
    }
    mf_store_close(store);
    return s;
}

/* --- prices ----------------------------------------------------------------------------------- */

/* The last '=': a path may hold one. */
static bool is_price_of(const char *text, const char *name, const char **usd) {
    const char *equals = strrchr(text, '=');
    *usd = equals != NULL ? equals + 1 : NULL;
    return equals != NULL && strlen(name) == (size_t)(equals - text) &&
           strncmp(text, name, (size_t)(equals - text)) == 0;
}

mf_status mf_capacity_check_prices(const mf_capacity_request *r, mf_err *e) {
    const char *usd = NULL;
    double price;
    for (int i = 0; i < r->prices; i++) {
        bool known = false;
        for (int k = 0; k < r->clusters && !known; k++) {
            known = is_price_of(r->price[i], r->cluster[k], &usd);
        }
        if (usd == NULL) {
            return mf_err_set(e, MF_USAGE, "--price: expected CLUSTER=USD, got \"%s\"",
                              r->price[i]);
        }
        if (!known) {
            return mf_err_set(e, MF_USAGE, "--price: \"%.*s\" is none of --clusters",
                              (int)(usd - 1 - r->price[i]), r->price[i]);
        }
        mf_status s = mf_parse_f64(usd, 0, 1e6, &price, e);
        if (s != MF_OK) {
            return mf_err_prefix(e, "--price");
        }
    }
    return MF_OK;
}

static mf_capacity_price price_of(const mf_capacity_request *r, const char *name,
                                  const mf_cluster *c) {
    mf_capacity_price p = {.known = c->price_usd_gpu_h > 0, .usd_gpu_h = c->price_usd_gpu_h};
    const char *usd;
    snprintf(p.date, sizeof p.date, "%s", c->price_date);
    snprintf(p.source, sizeof p.source, "%s", c->price_source);
    for (int i = 0; i < r->prices; i++) {
        if (is_price_of(r->price[i], name, &usd) &&
            mf_parse_f64(usd, 0, 1e6, &p.usd_gpu_h, NULL) == MF_OK) {
            p.known = true;
            p.date[0] = '\0';
            snprintf(p.source, sizeof p.source, "--price");
        }
    }
    return p;
}

/* --- the table -------------------------------------------------------------------------------- */

/* Warns of the best MFU of a row's cells, if it is above all that was published. */
static void doubt_best(mf_capacity *z, const mf_cluster *k, int first) {
    const mf_capacity_cell *best = NULL;
    char where[160];
    for (int i = first; i < z->count; i++) {
        const mf_capacity_cell *c = &z->cell[i];
        best = c->feasible && (best == NULL || c->mfu > best->mfu) ? c : best;
    }
    if (best != NULL) {
        snprintf(where, sizeof where, "%.60s on %lld x %.40s", best->model, (long long)best->gpus,
                 best->cluster);
        mf_doubt_mfu(&z->doubts, k, &best->layout, best->mfu, where);
    }
}

/* The program that is to run the row's plans. A model that it cannot be told is a result. */
static mf_status limit_row(mf_capacity *z, const mf_job *j, mf_err *e) {
    mf_err why;
    mf_err_clear(&why);
    z->refused[0] = '\0';
    mf_status s = mf_runs_on_parse(z->r->runs_on, j->software.name, &z->on, e);
    if (s == MF_OK &&
        mf_runs_on_check_model(&z->on, z->r->runs_on, j->software.name, &j->model, &why) != MF_OK) {
        snprintf(z->refused, sizeof z->refused, "%.511s", why.text);
    }
    return s;
}

/* All sizes of one model on one cluster, which share their prices. */
static mf_status plan_row(mf_capacity *z, mf_err *e) {
    const mf_capacity_request *r = z->r;
    const char *cluster = r->cluster[z->row % r->clusters];
    mf_job j;
    mf_status s = load_row(z, z->row, r->asked.notes, &j, e);
    if (s == MF_OK) {
        if (r->watch.row != NULL) {
            r->watch.row(r->watch.user, &j);
        }
        z->price = price_of(r, cluster, &j.cluster);
        mf_doubt_price(&z->doubts, cluster, z->price.usd_gpu_h, z->price.date,
                       strcmp(z->price.source, "--price") == 0);
    }
    int first = z->count;
    s = s == MF_OK ? limit_row(z, &j, e) : s;
    for (int i = 0; s == MF_OK && i < r->sizes; i++) {
        s = add_cell(z, &j, first, r->size[i], e);
    }
    s = s == MF_OK && r->refine ? refine(z, &j, first, e) : s;
    mf_price_book_destroy(z->book);
    z->book = NULL;
    doubt_best(z, &j.cluster, first);
    mf_job_clear(&j);
    return s;
}

mf_status mf_capacity_plan(const mf_capacity_request *r, mf_capacity *out, mf_err *e) {
    const int rows = r->models * r->clusters;
    mf_status s = MF_OK;
    *out = (mf_capacity){.r = r, .allocated = rows * (r->sizes + REFINED)};
    out->cell = calloc((size_t)out->allocated + 1, sizeof *out->cell);
    if (out->cell == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    if (r->tokens > 1) {
        mf_doubt_tokens(&out->doubts, r->tokens);
    }
    for (out->row = 0; s == MF_OK && out->row < rows; out->row++) {
        s = plan_row(out, e);
    }
    s = s == MF_OK ? share_plans(out, e) : s;
    s = s == MF_OK ? elsewhere(out, e) : s;
    return s == MF_OK ? strain(out, e) : s;
}

void mf_capacity_clear(mf_capacity *z) {
    free(z->cell);
    *z = (mf_capacity){.cell = NULL};
}
