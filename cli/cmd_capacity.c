/* cmd_capacity.c - `moefold capacity`: models x clusters x sizes: time, money, energy for a number
 * of tokens, and the smallest size that keeps a deadline. */
#include "cli/capacity_lists.h"
#include "cli/commands.h"
#include "cli/doubts.h"
#include "cli/output.h"
#include "cli/problem.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/report_folder.h"
#include "planner/capacity/robust.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char default_sizes[] = "64,128,256,512,1024,2048,4096";

/* --- one cell --------------------------------------------------------------------------------- */

enum { REFINED = 3 }; /* cells that halving adds to a row */

typedef struct sizing {
    const mf_args *a;
    const mf_cli *cli;
    mf_progress progress;
    double gap;
    mf_capacity_cell *cell;  /* [room] */
    char program[1024];      /* a line for each cluster */
    mf_capacity_price price; /* of the cells that are made now */
    mf_price_book *book;     /* the same */
    mf_doubts *doubts;
    int clusters, row; /* row: model x clusters + cluster, of the cells that are made now */
    int count, room;   /* room: as many as there may be */
} sizing;

static double given_or(const mf_args *a, mf_option_id id, double otherwise) {
    return a->value[id].given ? a->value[id].f : otherwise;
}

/* What the whole run takes; without --tokens, one token. */
static void fill_run(mf_capacity_cell *c, const mf_args *a, const mf_cluster *k) {
    const mf_value *v = a->value;
    const double tokens = given_or(a, MF_OPT_TOKENS, 1);
    c->run_s =
        c->goodput.share > 0 ? tokens / c->tokens_per_s / c->goodput.share : (double)INFINITY;
    c->gpu_h = (double)c->gpus * c->run_s / 3600;
    c->energy_J = (k->gpu.power_w + k->node_overhead_w) * (double)c->gpus * c->run_s;
    c->cost_usd =
        c->price.usd_gpu_h * c->gpu_h + given_or(a, MF_OPT_POWER_PRICE, 0) * c->energy_J / 3.6e6;
    c->keeps_deadline = v[MF_OPT_DEADLINE].given && c->run_s <= v[MF_OPT_DEADLINE].f;
}

static mf_goodput goodput_of(const mf_args *a, const mf_cluster *k, int64_t gpus) {
    return mf_goodput_of((double)gpus, k->mtbf_gpu_h, given_or(a, MF_OPT_CHECKPOINT_TIME, 30),
                         given_or(a, MF_OPT_RESTART_TIME, 900));
}

static void fill(mf_capacity_cell *c, const mf_args *a, const mf_job *j, const mf_plan *plan) {
    const mf_plan_prediction *p = &plan->prediction;
    const mf_cluster *k = &j->cluster;
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
    c->goodput = goodput_of(a, k, c->gpus);
    fill_run(c, a, k);
}

/* The search says that nothing fits; phase 1 knows what is missing, and at which size it would. */
static mf_status say_missing(sizing *z, const mf_problem *problem, mf_capacity_cell *c) {
    mf_fit_result fit = {0};
    mf_err why;
    mf_err_clear(&why);
    const mf_fit_options o = {.cancel = z->cli->cancel,
                              .progress = mf_progress_fit,
                              .user = &z->progress,
                              .shown = 1,
                              .threads = mf_args_threads(z->a)};
    mf_status s = mf_planner_fit(problem, &o, &fit, &why);
    mf_progress_end(&z->progress);
    if (s == MF_INFEASIBLE) {
        mf_problem_nothing_fits(&fit, &why);
    }
    snprintf(c->why, sizeof c->why, "%.511s", s == MF_OK ? "no layout fits" : why.text);
    mf_fit_result_clear(&fit);
    return s == MF_INTERRUPTED ? s : MF_OK;
}

/* What the cells of the model that are there have found, as far as it may be tried here. Searches
 * without host copies come first. */
static int carry(const sizing *z, const mf_problem *p, mf_known_plan start[MF_CARRY_MOST]) {
    mf_problem held = *p;
    mf_carried *known = calloc((size_t)z->count + 1, sizeof *known);
    int count = 0;
    held.pinned |= MF_PIN(OFFLOAD);
    for (int i = 0; known != NULL && i < z->count; i++) {
        const mf_capacity_cell *c = &z->cell[i];
        if (c->feasible && c->row / z->clusters == z->row / z->clusters) {
            known[count++] = (mf_carried){c->row, &c->layout, &c->assignment};
        }
    }
    int starts = known != NULL ? mf_carry_starts(&held, z->row, known, count, start) : 0;
    free(known);
    return starts;
}

/* Plans one cell. A cell that does not fit is a result; MF_OK. */
static mf_status plan_cell(sizing *z, mf_job *j, mf_capacity_cell *c, mf_err *e) {
    mf_problem problem;
    mf_search_result r = {0};
    mf_search_options o;
    mf_known_plan start[MF_CARRY_MOST];
    mf_err why;
    mf_err_clear(&why);
    snprintf(c->model, sizeof c->model, "%s", j->model.name);
    snprintf(c->cluster, sizeof c->cluster, "%s", j->cluster.name);
    snprintf(c->software, sizeof c->software, "%s", j->software.name);
    snprintf(z->progress.about, sizeof z->progress.about, "%s on %lld x %s", j->model.name,
             (long long)c->gpus, j->cluster.name);
    j->plan.layout.gpus = c->gpus;
    mf_doubt_job(z->doubts, &j->model, &j->cluster, &j->plan.layout);
    mf_search_options_init(&o);
    o.cancel = z->cli->cancel;
    o.progress = mf_progress_search;
    o.user = &z->progress;
    o.top = 1;
    o.gap = z->gap;
    o.threads = mf_args_threads(z->a);
    mf_status s = mf_problem_from_job(j, z->a, &problem, &why);
    if (s == MF_OK && z->book == NULL) {
        s = mf_price_book_create(&problem, &o, &z->book, &why);
    }
    if (s == MF_OK) {
        o.book = z->book;
        o.start = start;
        o.starts = carry(z, &problem, start);
        /* no more than the proof needs, of many cells; but a plan of a neighbour may have ended it
         * before this size's own was met */
        o.effort = o.starts > 0 ? 0 : 1;
        s = mf_host_copies_search(NULL, NULL, &problem, &o,
                                  z->a->value[MF_OPT_SEARCH_OFFLOAD].given, &r, &c->host, &why);
    }
    mf_progress_end(&z->progress);
    if (s == MF_OK) {
        fill(c, z->a, j, &r.plan[0]);
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
static mf_status add_cell(sizing *z, mf_job *j, int first, int64_t gpus, mf_err *e) {
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
static mf_status refine(sizing *z, mf_job *j, int first, mf_err *e) {
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

static mf_status load_row(const mf_args *a, const char *model, const char *cluster, mf_job *j,
                          mf_err *e) {
    mf_args with = *a;
    with.value[MF_OPT_MODEL] = (mf_value){.given = true, .text = model};
    with.value[MF_OPT_CLUSTER] = (mf_value){.given = true, .text = cluster};
    return mf_job_load(j, &with, e);
}

/* A search stops when its proof is tight enough: another cluster's plan of the same size may be
 * faster here than the one that was found. So no cluster that is better in every figure takes
 * longer. */
static mf_status try_plan_of(sizing *z, const mf_job *j, const mf_capacity_cell *from,
                             mf_capacity_cell *c, mf_err *e) {
    mf_problem problem;
    mf_plan plan;
    mf_status s = mf_problem_from_job(j, z->a, &problem, e);
    if (s != MF_OK || mf_job_check_cluster(&from->layout, &j->cluster, NULL) != MF_OK) {
        return s;
    }
    s = mf_planner_predict(&problem, &from->layout, &from->assignment, &plan, NULL, e);
    if (s == MF_OK && plan.prediction.fits && plan.prediction.step_time_s < c->step_time_s) {
        double bound_s = c->step_time_s / (1 + c->gap);
        fill(c, z->a, j, &plan);
        c->gap = fmax(0, c->step_time_s / bound_s - 1);
    }
    mf_plan_clear(&plan);
    return s;
}

/* What a model leaves out has been said. */
static mf_status share_plans(sizing *z, const mf_name_list *models, const mf_name_list *clusters,
                             mf_err *e) {
    mf_status s = MF_OK;
    mf_args quiet = *z->a;
    quiet.notes = NULL;
    for (int i = 0; s == MF_OK && clusters->count > 1 && i < models->count * clusters->count; i++) {
        mf_job j;
        s = load_row(&quiet, models->name[i / clusters->count], clusters->name[i % clusters->count],
                     &j, e);
        for (int a = 0; s == MF_OK && a < z->count; a++) {
            mf_capacity_cell *c = &z->cell[a];
            for (int b = 0; s == MF_OK && c->row == i && c->feasible && b < z->count; b++) {
                const mf_capacity_cell *from = &z->cell[b];
                if (from->feasible && from->row != i && from->gpus == c->gpus &&
                    from->row / clusters->count == i / clusters->count) {
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
static mf_capacity_strain strain_of(const mf_capacity_cell *c, const mf_args *a, const mf_job *j,
                                    int64_t gpus, int64_t paid, double step_time_s) {
    const mf_value *v = a->value;
    mf_capacity_cell t = *c;
    t.gpus = paid;
    t.tokens_per_s *= c->step_time_s / step_time_s;
    t.goodput = goodput_of(a, &j->cluster, gpus);
    fill_run(&t, a, &j->cluster);
    return (mf_capacity_strain){
        .tried = true,
        .fits = true,
        .gpus = gpus,
        .step_time_s = step_time_s,
        .run_s = t.run_s,
        .cost_usd = t.cost_usd,
        .in_time = !v[MF_OPT_DEADLINE].given || t.keeps_deadline,
        .in_budget =
            !v[MF_OPT_BUDGET].given || (c->price.known && t.cost_usd <= v[MF_OPT_BUDGET].f),
    };
}

static mf_status skew_cell(sizing *z, const mf_job *j, const mf_problem *p, const mf_routing *skew,
                           mf_capacity_cell *c, mf_err *e) {
    mf_skewed found;
    mf_status s = mf_robust_skew(p, &c->layout, &c->assignment, skew, &found, e);
    if (s == MF_OK) {
        c->skewed = strain_of(c, z->a, j, c->gpus, c->gpus, found.step_time_s);
        c->skewed.fits = found.fits;
        c->skewed.load = found.load;
    }
    return s;
}

/* The plans of the row are what is known of its cluster. */
static mf_status lose_node(sizing *z, const mf_job *j, const mf_problem *p, mf_capacity_cell *c,
                           mf_err *e) {
    const int64_t node = j->cluster.gpus_per_node > 0 ? j->cluster.gpus_per_node : 1;
    mf_plan plan;
    bool found = false;
    mf_carried *known = calloc((size_t)z->count + 1, sizeof *known);
    int count = 0;
    if (known == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int i = 0; i < z->count; i++) {
        if (z->cell[i].feasible && z->cell[i].row == c->row) {
            known[count++] = (mf_carried){c->row, &z->cell[i].layout, &z->cell[i].assignment};
        }
    }
    mf_status s = mf_robust_left(p, c->gpus - node, c->row, known, count, &plan, &found, e);
    c->lost = (mf_capacity_strain){.tried = s == MF_OK};
    if (s == MF_OK && found) {
        c->lost =
            strain_of(c, z->a, j, plan.layout.gpus, c->gpus - node, plan.prediction.step_time_s);
    }
    mf_plan_clear(&plan);
    free(known);
    return s;
}

static mf_status strain_row(sizing *z, mf_job *j, int row, mf_err *e) {
    const mf_value *v = z->a->value;
    const bool limits = v[MF_OPT_DEADLINE].given || v[MF_OPT_BUDGET].given;
    mf_problem problem;
    mf_routing skew;
    mf_routing_init(&skew);
    mf_status s = mf_problem_from_job(j, z->a, &problem, e);
    if (s == MF_OK && v[MF_OPT_SKEW].given) {
        s = mf_routing_parse(v[MF_OPT_SKEW].text, &skew, e);
        s = s == MF_OK && j->model.experts > 0 ? mf_routing_check(&skew, &j->model, e) : s;
        s = s == MF_OK ? s : mf_err_prefix(e, "--skew");
    }
    for (int i = 0; s == MF_OK && i < z->count; i++) {
        mf_capacity_cell *c = &z->cell[i];
        if (c->row != row || !c->feasible) {
            continue;
        }
        problem.base.gpus = c->gpus;
        if (v[MF_OPT_SKEW].given && j->model.experts > 0) {
            s = skew_cell(z, j, &problem, &skew, c, e);
        }
        s = s == MF_OK && limits ? lose_node(z, j, &problem, c, e) : s;
        if (s == MF_OK && z->cli->cancel != NULL && *z->cli->cancel) {
            s = mf_err_set(e, MF_INTERRUPTED, "interrupted");
        }
    }
    mf_routing_clear(&skew);
    return s;
}

static mf_status strain(sizing *z, const mf_name_list *models, const mf_name_list *clusters,
                        mf_err *e) {
    const mf_value *v = z->a->value;
    mf_args quiet = *z->a;
    mf_status s = MF_OK;
    quiet.notes = NULL;
    if (!v[MF_OPT_SKEW].given && !v[MF_OPT_DEADLINE].given && !v[MF_OPT_BUDGET].given) {
        return MF_OK;
    }
    for (int i = 0; s == MF_OK && i < models->count * clusters->count; i++) {
        mf_job j;
        s = load_row(&quiet, models->name[i / clusters->count], clusters->name[i % clusters->count],
                     &j, e);
        s = s == MF_OK ? strain_row(z, &j, i, e) : s;
        mf_job_clear(&j);
    }
    return s;
}

/* --- rows and tables -------------------------------------------------------------------------- */

/* Once for each cluster. */
static void say_program(sizing *z, const mf_job *j) {
    char text[240];
    size_t used = strlen(z->program);
    mf_report_program_text(&j->software, j->plan.layout.precision, j->cluster.gpu.name,
                           mf_cost_measured(j->cost), text, sizeof text);
    if (strstr(z->program, text) == NULL) {
        snprintf(z->program + used, sizeof z->program - used, "%s%s", used > 0 ? "\n" : "", text);
    }
}

/* All sizes of one model on one cluster, which share their prices. */
static mf_status plan_row(sizing *z, const char *model, const char *cluster, const int64_t *size,
                          int sizes, mf_err *e) {
    mf_job j;
    mf_status s = load_row(z->a, model, cluster, &j, e);
    if (s == MF_OK) {
        say_program(z, &j);
        z->price = mf_price_list_of(z->a, cluster, &j.cluster);
        if (strncmp(j.software.name, "megatron-", 9) == 0) {
            mf_doubt(z->doubts, "plans of the whole space: Megatron cannot express all of them; "
                                "plan --runs-on megatron says what that costs");
        }
        mf_doubt_price(z->doubts, cluster, z->price.usd_gpu_h, z->price.date,
                       strcmp(z->price.source, "--price") == 0);
    }
    int first = z->count;
    for (int i = 0; s == MF_OK && i < sizes; i++) {
        s = add_cell(z, &j, first, size[i], e);
    }
    if (s == MF_OK && z->a->value[MF_OPT_DEADLINE].given && !z->a->value[MF_OPT_SIZES].given) {
        s = refine(z, &j, first, e);
    }
    mf_price_book_destroy(z->book);
    z->book = NULL;
    mf_capacity_doubt(z->doubts, &j.cluster, z->cell, first, z->count);
    mf_job_clear(&j);
    return s;
}

/* --- the command ------------------------------------------------------------------------------ */

static mf_status check(const mf_args *a, mf_err *e) {
    static const mf_option_id required[] = {MF_OPT_MODELS, MF_OPT_CLUSTERS, MF_OPT_GLOBAL_BATCH,
                                            MF_OPT_SEQ};
    mf_status s = MF_OK;
    for (size_t i = 0; s == MF_OK && i < sizeof required / sizeof required[0]; i++) {
        s = mf_args_require(a, required[i], e);
    }
    if (s == MF_OK && (a->value[MF_OPT_DEADLINE].given || a->value[MF_OPT_BUDGET].given)) {
        s = mf_args_require(a, MF_OPT_TOKENS, e);
    }
    return s;
}

/* The offers of the table, decided; to be freed. */
static mf_offer *decide(const mf_capacity_table *t) {
    mf_offer *offer = calloc((size_t)t->count + 1, sizeof *offer);
    const mf_decision_limits limits = {
        .deadline_s = t->deadline != NULL ? t->deadline_s : (double)INFINITY,
        .budget_usd = t->budget != NULL ? t->budget_usd : (double)INFINITY};
    for (int i = 0; offer != NULL && i < t->count; i++) {
        offer[i] = mf_capacity_offer(&t->cell[i], t->clusters);
    }
    if (offer != NULL) {
        mf_decide(offer, t->count, &limits);
    }
    return offer;
}

static mf_status print_json(FILE *out, const mf_capacity_table *t, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_capacity_write(&w, t);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

static const char *text_of(const mf_value *v) {
    return v->given ? v->text : NULL;
}

/* The table so far; what the exit code says of it. */
static mf_status report(const sizing *z, int models, int clusters, mf_status s, mf_err *e) {
    const mf_value *v = z->a->value;
    mf_capacity_table t = {
        .cell = z->cell,
        .count = z->count,
        .models = models,
        .clusters = clusters,
        .interrupted = s == MF_INTERRUPTED,
        .tokens = text_of(&v[MF_OPT_TOKENS]),
        .deadline = text_of(&v[MF_OPT_DEADLINE]),
        .budget = text_of(&v[MF_OPT_BUDGET]),
        .deadline_s = v[MF_OPT_DEADLINE].f,
        .budget_usd = v[MF_OPT_BUDGET].f,
        .power_usd_kWh = v[MF_OPT_POWER_PRICE].f,
        .gap = z->gap,
        .skew = text_of(&v[MF_OPT_SKEW]),
        .program = z->program,
    };
    mf_offer *offer = decide(&t);
    int feasible = 0;
    if (offer == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    t.offer = offer;
    t.doubts = z->doubts;
    mf_doubts_print(z->a->notes, z->doubts);
    for (int i = 0; i < z->count; i++) {
        feasible += z->cell[i].feasible;
    }
    if (v[MF_OPT_JSON].given) {
        mf_status printed = print_json(z->cli->out, &t, s == MF_OK ? e : NULL);
        s = s == MF_OK ? printed : s;
    } else {
        mf_capacity_print(z->cli->out, &t);
    }
    if (s == MF_OK) {
        s = mf_report_folder_capacity(z->a, z->cli, &t, e);
    }
    free(offer);
    return s == MF_OK && feasible == 0
               ? mf_err_set(e, MF_INFEASIBLE, "nothing fits at any of these sizes")
               : s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_name_list models = {0}, clusters = {0};
    int64_t size[MF_CAPACITY_MAX_SIZES];
    int sizes = 0;
    mf_doubts doubts = {0};
    sizing z = {
        .a = a, .cli = cli, .doubts = &doubts, .gap = fmax(given_or(a, MF_OPT_GAP, 0.05), 1e-9)};
    mf_progress_init(&z.progress, cli, a);
    mf_status s = check(a, e);
    if (s == MF_OK && a->value[MF_OPT_TOKENS].given) {
        mf_doubt_tokens(z.doubts, a->value[MF_OPT_TOKENS].f);
    }
    if (s == MF_OK) {
        s = mf_name_list_parse(a->value[MF_OPT_MODELS].text, &models, e);
    }
    if (s == MF_OK) {
        s = mf_name_list_parse(a->value[MF_OPT_CLUSTERS].text, &clusters, e);
    }
    if (s == MF_OK) {
        s = mf_price_list_check(a, &clusters, e);
    }
    if (s == MF_OK) {
        bool given = a->value[MF_OPT_SIZES].given;
        s = mf_size_list_parse(given ? a->value[MF_OPT_SIZES].text : default_sizes, size, &sizes,
                               e);
    }
    s = s == MF_OK ? mf_report_folder_create(a, e) : s;
    if (s != MF_OK) {
        goto out;
    }
    z.clusters = clusters.count;
    z.room = models.count * clusters.count * (sizes + REFINED);
    z.cell = calloc((size_t)z.room + 1, sizeof *z.cell);
    if (z.cell == NULL) {
        s = mf_err_set(e, MF_NOMEM, "out of memory");
        goto out;
    }
    for (int m = 0; s == MF_OK && m < models.count; m++) {
        for (int c = 0; s == MF_OK && c < clusters.count; c++) {
            z.row = m * clusters.count + c;
            s = plan_row(&z, models.name[m], clusters.name[c], size, sizes, e);
        }
    }
    s = s == MF_OK ? share_plans(&z, &models, &clusters, e) : s;
    s = s == MF_OK ? strain(&z, &models, &clusters, e) : s;
    if (s == MF_OK || (s == MF_INTERRUPTED && z.count > 0)) {
        s = report(&z, models.count, clusters.count, s, e);
    }
out:
    free(z.cell);
    free(models.text);
    free(clusters.text);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_MODELS,       MF_OPT_CLUSTERS,   MF_OPT_SIZES,
    MF_OPT_GLOBAL_BATCH, MF_OPT_SEQ,        MF_OPT_TOKENS,
    MF_OPT_DEADLINE,     MF_OPT_BUDGET,     MF_OPT_PRICE,
    MF_OPT_POWER_PRICE,  MF_OPT_SKEW,       MF_OPT_CHECKPOINT_TIME,
    MF_OPT_RESTART_TIME, MF_OPT_SET,        MF_OPT_STRICT,
    MF_OPT_SOFTWARE,     MF_OPT_STORE,      MF_OPTS_SEARCHED,
    MF_OPT_ROUTING,      MF_OPT_PRECISIONS, MF_OPT_SEARCH_OFFLOAD,
    MF_OPT_EVEN_STAGES,  MF_OPT_GAP,        MF_OPT_THREADS,
    MF_OPT_REPORT,       MF_OPT_VERBOSE,    MF_OPT_JSON,
    MF_OPT_PROGRESS,     MF_OPT_HELP,       MF_OPT_COUNT,
};

const mf_command mf_cmd_capacity = {
    .name = "capacity",
    .summary = "models x clusters x sizes: time, tokens/s, money and energy for a number of tokens",
    .usage = {"--models LIST --clusters LIST --global-batch N --seq N [--tokens COUNT] "
              "[--deadline TIME] [options]"},
    .about =
        "Plans every model on every cluster at every size and compares what the run would take. "
        "With --tokens it adds the time of the whole run, with failures and checkpoints, its price "
        "and its energy, and for each model says which size of which cluster is the cheapest in "
        "time (--deadline), the fastest for the money (--budget) and the smallest, with what "
        "cannot be told from it: a tie is what the gap of the search and, between clusters, the "
        "band of the prices leave open. A * marks the front: no other is both as fast and as "
        "cheap. Searches of cells begin with the plans of their neighbours, so that a row may "
        "depend, within its gap, on which others are asked for. With --deadline or --budget every "
        "plan is also folded on a node less (same degrees or those of another size of the table, "
        "fewer data-parallel ranks; what is left of the GPUs is paid, what idles too), with "
        "--skew it is played under uneven routing: a ! stands where a limit is missed then. With "
        "--deadline and without --sizes it also looks between the sizes around the "
        "smallest that keeps it. A layout option that is given pins its dimension everywhere.\n"
        "Interrupt it (Ctrl-C) to get the part of the table that is done.",
    .example = "moefold capacity --models deepseek-v3 --clusters h100,h200,gb200 --sizes 1024,2048 "
               "--global-batch 8192 --seq 4096 --tokens 15T --deadline 60d",
    .searches = true,
    .options = options,
    .run = run,
};
