/* cmd_capacity.c - `moefold capacity`: models x clusters x sizes: time, money, energy for a number
 * of tokens, and the smallest size that keeps a deadline. */
#include "cli/commands.h"
#include "cli/goodput.h"
#include "cli/output.h"
#include "cli/problem.h"
#include "cli/show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 32, MAX_SIZES = 32 };

static const char default_sizes[] = "64,128,256,512,1024,2048,4096";

/* --- lists ------------------------------------------------------------------------------------ */

typedef struct names {
    char *text; /* owned; name[] points into it */
    int count;
    const char *name[MAX_NAMES];
} names;

static mf_status split(const char *list, names *out, mf_err *e) {
    char *rest = NULL;
    out->text = strdup(list);
    if (out->text == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (char *w = strtok_r(out->text, ",", &rest); w != NULL; w = strtok_r(NULL, ",", &rest)) {
        if (out->count == MAX_NAMES) {
            return mf_err_set(e, MF_USAGE, "more than %d names in \"%s\"", MAX_NAMES, list);
        }
        out->name[out->count++] = w;
    }
    return out->count > 0 ? MF_OK : mf_err_set(e, MF_USAGE, "no name in \"%s\"", list);
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static mf_status split_sizes(const char *list, int64_t *size, int *count, mf_err *e) {
    names words = {0};
    mf_status s = split(list, &words, e);
    *count = 0;
    for (int i = 0; s == MF_OK && i < words.count; i++) {
        s = mf_parse_i64(words.name[i], 1, 1 << 28, &size[*count], e);
        *count += s == MF_OK;
    }
    free(words.text);
    if (s != MF_OK) {
        return mf_err_prefix(e, "--sizes");
    }
    qsort(size, (size_t)*count, sizeof size[0], by_size);
    return MF_OK;
}

/* --- one cell --------------------------------------------------------------------------------- */

typedef struct cell {
    char model[96], cluster[64];
    int64_t gpus;
    bool feasible, keeps_deadline;
    mf_layout layout;
    double step_time_s, low_s, high_s, tokens_per_s, mfu, gap;
    mf_goodput goodput;
    double run_s; /* for all tokens, failures included; 0 without --tokens */
    double cost_usd, energy_J;
    bool priced;   /* the cluster has a price */
    char why[256]; /* not feasible: why */
} cell;

static void fill(cell *c, const mf_args *a, const mf_job *j, const mf_search_result *r) {
    const mf_plan_prediction *p = &r->plan[0].prediction;
    const mf_cluster *k = &j->cluster;
    double checkpoint_s = 30, restart_s = 900;
    if (a->value[MF_OPT_CHECKPOINT_TIME].given) {
        checkpoint_s = a->value[MF_OPT_CHECKPOINT_TIME].f;
    }
    if (a->value[MF_OPT_RESTART_TIME].given) {
        restart_s = a->value[MF_OPT_RESTART_TIME].f;
    }
    c->feasible = true;
    c->layout = r->plan[0].layout;
    c->step_time_s = p->step_time_s;
    c->low_s = p->step_time_low_s;
    c->high_s = p->step_time_high_s;
    c->tokens_per_s = p->tokens_per_s_per_gpu * (double)c->gpus;
    c->mfu = p->mfu;
    c->gap = r->stats.gap;
    c->goodput = mf_goodput_of((double)c->gpus, k->mtbf_gpu_h, checkpoint_s, restart_s);
    if (!a->value[MF_OPT_TOKENS].given || c->goodput.share <= 0) {
        return;
    }
    c->run_s = a->value[MF_OPT_TOKENS].f / c->tokens_per_s / c->goodput.share;
    c->priced = k->price_usd_gpu_h > 0;
    c->cost_usd = k->price_usd_gpu_h * (double)c->gpus * c->run_s / 3600;
    c->energy_J = (k->gpu.power_w + k->node_overhead_w) * (double)c->gpus * c->run_s;
    c->keeps_deadline = a->value[MF_OPT_DEADLINE].given && c->run_s <= a->value[MF_OPT_DEADLINE].f;
}

/* Plans one cell. A cell that does not fit is a result; MF_OK. */
static mf_status plan_cell(const mf_args *a, const mf_cli *cli, mf_job *j, cell *c, mf_err *e) {
    mf_problem problem;
    mf_search_result r = {0};
    mf_search_options o;
    mf_err why;
    mf_err_clear(&why);
    snprintf(c->model, sizeof c->model, "%s", j->model.name);
    snprintf(c->cluster, sizeof c->cluster, "%s", j->cluster.name);
    j->plan.layout.gpus = c->gpus;
    mf_search_options_init(&o);
    o.cancel = cli->cancel;
    o.top = 1;
    if (a->value[MF_OPT_THREADS].given) {
        o.threads = (int)a->value[MF_OPT_THREADS].i;
    }
    if (a->value[MF_OPT_GAP].given) {
        o.gap = fmax(a->value[MF_OPT_GAP].f, 1e-9);
    }
    mf_status s = mf_problem_from_job(j, a, &problem, &why);
    if (s == MF_OK) {
        s = mf_planner_search(&problem, &o, &r, &why);
    }
    if (s == MF_OK) {
        fill(c, a, j, &r);
    } else if (s == MF_INFEASIBLE || s == MF_LAYOUT) {
        snprintf(c->why, sizeof c->why, "%.255s", why.text);
        s = MF_OK;
    } else {
        mf_err_set(e, s, "%s", why.text);
    }
    mf_search_result_clear(&r);
    return s;
}

/* --- output ----------------------------------------------------------------------------------- */

static void print_cell(FILE *out, const cell *c) {
    const mf_layout *l = &c->layout;
    fprintf(out, "%-18s %-8s %6lld  ", c->model, c->cluster, (long long)c->gpus);
    if (!c->feasible) {
        mf_show_wrap(out, c->why, 36, 36, 120);
        return;
    }
    fprintf(out, "%10s %9s/s %7s %7s", mf_show_time(c->step_time_s).s,
            mf_show_count(c->tokens_per_s).s, mf_show_percent(c->mfu).s,
            mf_show_percent(c->goodput.share).s);
    if (c->run_s > 0) {
        fprintf(out, " %8.1f d %9s %9s", c->run_s / 86400,
                c->priced ? mf_show_count(c->cost_usd).s : "-",
                mf_show_rate(c->energy_J / 3600, "Wh").s);
    }
    fprintf(out, "  TP %lld CP %lld PP %lld VPP %lld EP %lld ETP %lld %s\n", (long long)l->tp,
            (long long)l->cp, (long long)l->pp, (long long)l->vpp, (long long)l->ep,
            (long long)l->etp, mf_schedule_text(l->schedule));
}

static bool same_row(const cell *a, const cell *b) {
    return strcmp(a->model, b->model) == 0 && strcmp(a->cluster, b->cluster) == 0;
}

/* Smallest size of the same model and cluster that keeps the deadline; -1 = none. */
static int64_t smallest(const cell *cells, int count, const cell *like) {
    for (int i = 0; i < count; i++) { /* sizes ascend */
        if (same_row(&cells[i], like) && cells[i].keeps_deadline) {
            return cells[i].gpus;
        }
    }
    return -1;
}

static void print_text(FILE *out, const mf_args *a, const cell *cells, int count) {
    bool tokens = a->value[MF_OPT_TOKENS].given;
    fprintf(out, "%-18s %-8s %6s  %10s %11s %7s %7s", "model", "cluster", "GPUs", "step time",
            "tokens", "MFU", "goodput");
    fprintf(out, "%s  layout\n", tokens ? "       time       USD    energy" : "");
    for (int i = 0; i < count; i++) {
        print_cell(out, &cells[i]);
    }
    for (int i = 0; i < count && a->value[MF_OPT_DEADLINE].given; i++) {
        if (i > 0 && same_row(&cells[i - 1], &cells[i])) {
            continue;
        }
        int64_t gpus = smallest(cells, count, &cells[i]);
        fprintf(out, "\n%s on %s in %s: ", cells[i].model, cells[i].cluster,
                a->value[MF_OPT_DEADLINE].text);
        fprintf(out, gpus > 0 ? "%s GPUs" : "none of the sizes%s",
                gpus > 0 ? mf_show_i64(gpus).s : "");
    }
    if (a->value[MF_OPT_DEADLINE].given) {
        putc('\n', out);
    }
    fputs("\nGoodput: share of the time that makes progress, with failures and checkpoints. Energy "
          "at\n"
          "data-sheet power of GPUs and their share of the host; money at the cluster file's "
          "price.\n",
          out);
}

static void json_cell(mf_json_writer *w, const cell *c) {
    mf_json_write_object(w, NULL, false);
    mf_json_write_string(w, "model", c->model);
    mf_json_write_string(w, "cluster", c->cluster);
    mf_json_write_i64(w, "gpus", c->gpus);
    mf_json_write_bool(w, "fits", c->feasible);
    if (!c->feasible) {
        mf_json_write_string(w, "missing", c->why);
        mf_json_write_end(w);
        return;
    }
    mf_json_write_f64(w, "step_time_s", c->step_time_s);
    mf_json_write_f64(w, "step_time_low_s", c->low_s);
    mf_json_write_f64(w, "step_time_high_s", c->high_s);
    mf_json_write_f64(w, "tokens_per_s", c->tokens_per_s);
    mf_json_write_f64(w, "mfu", c->mfu);
    mf_json_write_f64(w, "gap", c->gap);
    mf_json_write_f64(w, "goodput", c->goodput.share);
    mf_json_write_f64(w, "mtbf_s", c->goodput.mtbf_s);
    mf_json_write_f64(w, "checkpoint_interval_s", c->goodput.interval_s);
    if (c->run_s > 0) {
        mf_json_write_f64(w, "run_s", c->run_s);
        mf_json_write_f64(w, "energy_J", c->energy_J);
        if (c->priced) {
            mf_json_write_f64(w, "cost_usd", c->cost_usd);
        } else {
            mf_json_write_null(w, "cost_usd");
        }
    }
    mf_plan_write_layout(w, "layout", &c->layout);
    mf_json_write_end(w);
}

static mf_status print_json(FILE *out, const mf_args *a, const cell *cells, int count, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_array(&w, "cells", false);
    for (int i = 0; i < count; i++) {
        json_cell(&w, &cells[i]);
    }
    mf_json_write_end(&w);
    if (a->value[MF_OPT_DEADLINE].given) {
        mf_json_write_f64(&w, "deadline_s", a->value[MF_OPT_DEADLINE].f);
        mf_json_write_array(&w, "smallest", false);
        for (int i = 0; i < count; i++) {
            if (i > 0 && same_row(&cells[i - 1], &cells[i])) {
                continue;
            }
            int64_t gpus = smallest(cells, count, &cells[i]);
            mf_json_write_object(&w, NULL, true);
            mf_json_write_string(&w, "model", cells[i].model);
            mf_json_write_string(&w, "cluster", cells[i].cluster);
            if (gpus > 0) {
                mf_json_write_i64(&w, "gpus", gpus);
            } else {
                mf_json_write_null(&w, "gpus");
            }
            mf_json_write_end(&w);
        }
        mf_json_write_end(&w);
    }
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

/* --- the command ------------------------------------------------------------------------------ */

/* All sizes of one model on one cluster, which share their prices. */
static mf_status plan_row(const mf_args *a, const mf_cli *cli, const char *model,
                          const char *cluster, const int64_t *size, int sizes, cell *cells,
                          int *count, mf_err *e) {
    mf_args with = *a;
    mf_job j;
    with.value[MF_OPT_MODEL] = (mf_value){.given = true, .text = model};
    with.value[MF_OPT_CLUSTER] = (mf_value){.given = true, .text = cluster};
    mf_status s = mf_job_load(&j, &with, e);
    for (int i = 0; s == MF_OK && i < sizes; i++) {
        cells[*count].gpus = size[i];
        s = plan_cell(a, cli, &j, &cells[*count], e);
        *count += s == MF_OK;
    }
    mf_job_clear(&j);
    return s;
}

static mf_status check(const mf_args *a, mf_err *e) {
    static const mf_option_id required[] = {MF_OPT_MODELS, MF_OPT_CLUSTERS, MF_OPT_GLOBAL_BATCH,
                                            MF_OPT_SEQ};
    mf_status s = MF_OK;
    for (size_t i = 0; s == MF_OK && i < sizeof required / sizeof required[0]; i++) {
        s = mf_args_require(a, required[i], e);
    }
    if (s == MF_OK && a->value[MF_OPT_DEADLINE].given) {
        s = mf_args_require(a, MF_OPT_TOKENS, e);
    }
    return s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    names models = {0}, clusters = {0};
    int64_t size[MAX_SIZES];
    int sizes = 0, count = 0, feasible = 0;
    cell *cells = NULL;
    mf_status s = check(a, e);
    if (s == MF_OK) {
        s = split(a->value[MF_OPT_MODELS].text, &models, e);
    }
    if (s == MF_OK) {
        s = split(a->value[MF_OPT_CLUSTERS].text, &clusters, e);
    }
    if (s == MF_OK) {
        bool given = a->value[MF_OPT_SIZES].given;
        s = split_sizes(given ? a->value[MF_OPT_SIZES].text : default_sizes, size, &sizes, e);
    }
    if (s != MF_OK) {
        goto out;
    }
    size_t room = (size_t)models.count * (size_t)clusters.count * (size_t)sizes;
    cells = calloc(room + 1, sizeof *cells);
    if (cells == NULL) {
        s = mf_err_set(e, MF_NOMEM, "out of memory");
        goto out;
    }
    for (int m = 0; s == MF_OK && m < models.count; m++) {
        for (int c = 0; s == MF_OK && c < clusters.count; c++) {
            s = plan_row(a, cli, models.name[m], clusters.name[c], size, sizes, cells, &count, e);
        }
    }
    if (s != MF_OK && !(s == MF_INTERRUPTED && count > 0)) {
        goto out;
    }
    for (int i = 0; i < count; i++) {
        feasible += cells[i].feasible;
    }
    if (a->value[MF_OPT_JSON].given) {
        mf_status printed = print_json(cli->out, a, cells, count, NULL);
        s = s == MF_OK ? printed : s;
    } else {
        print_text(cli->out, a, cells, count);
    }
    if (s == MF_OK && feasible == 0) {
        s = mf_err_set(e, MF_INFEASIBLE, "nothing fits at any of these sizes");
    }
out:
    free(cells);
    free(models.text);
    free(clusters.text);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_MODELS,       MF_OPT_CLUSTERS, MF_OPT_SIZES,      MF_OPT_GLOBAL_BATCH,
    MF_OPT_SEQ,          MF_OPT_TOKENS,   MF_OPT_DEADLINE,   MF_OPT_CHECKPOINT_TIME,
    MF_OPT_RESTART_TIME, MF_OPT_SET,      MF_OPT_SOFTWARE,   MF_OPT_STORE,
    MF_OPTS_LAYOUT,      MF_OPT_ROUTING,  MF_OPT_PRECISIONS, MF_OPT_EVEN_STAGES,
    MF_OPT_GAP,          MF_OPT_THREADS,  MF_OPT_JSON,       MF_OPT_HELP,
    MF_OPT_COUNT,
};

const mf_command mf_cmd_capacity = {
    .name = "capacity",
    .summary = "models x clusters x sizes: time, tokens/s, money and energy for a number of tokens",
    .usage = {"--models LIST --clusters LIST --global-batch N --seq N [--tokens COUNT] "
              "[--deadline TIME] [options]"},
    .about =
        "Plans every model on every cluster at every size and compares what the run would take. "
        "With "
        "--tokens it adds the time of the whole run, with failures and checkpoints, its price and "
        "its energy; with --deadline the smallest size that keeps it. A layout option that is "
        "given pins its dimension everywhere.",
    .example = "moefold capacity --models deepseek-v3 --clusters h100,h200,gb200 --sizes 1024,2048 "
               "--global-batch 8192 --seq 4096 --tokens 15T --deadline 60d",
    .searches = true,
    .options = options,
    .run = run,
};
