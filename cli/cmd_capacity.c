/* cmd_capacity.c - `moefold capacity`: models x clusters x sizes: time, money, energy for a number
 * of tokens, and the smallest size that keeps a deadline. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "job/capacity/capacity_lists.h"
#include "report/basis/doubts.h"
#include "report/capacity/capacity_table.h"
#include "report/folder/report_folder.h"
#include "report/step/report.h"
#include "report/text/output.h"
#include "report/text/progress.h"
#include "report/text/show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char default_sizes[] = "64,128,256,512,1024,2048,4096";

/* What the command shows while it works. */
typedef struct watched {
    mf_progress progress;
    char program[2048];     /* a line for each cluster */
    char lacks[512];        /* of models that moefold does not train: lines */
    char foreign[320];      /* clusters whose GPUs it does not train on: a list */
    const char *why;        /* not */
    int rows, lacking;      /* models on clusters; of them, those that it does not train */
    const char *precisions; /* each plan has one of these; NULL: all have that of the job */
} watched;

static const char *text_of(const mf_value *v) {
    return v->given ? v->text : NULL;
}

static double given_or(const mf_args *a, mf_option_id id, double otherwise) {
    return a->value[id].given ? a->value[id].f : otherwise;
}

/* Each line once; what the last line says of the same program goes on there: "moefold in bf16; ops
 * of h100 measured until D; ops of ...". */
static void add_line(watched *w, const char *text) {
    const size_t used = strlen(w->program);
    const char *last = strrchr(w->program, '\n'), *rest = strstr(text, "; ");
    last = last != NULL ? last + 1 : w->program;
    const bool goes_on = rest != NULL && strncmp(last, text, (size_t)(rest - text) + 2) == 0;
    if (strstr(w->program, goes_on ? rest : text) == NULL) {
        snprintf(w->program + used, sizeof w->program - used, "%s%s",
                 used > 0 && !goes_on ? "\n" : "", goes_on ? rest : text);
    }
}

/* Is the word one of the list? */
static bool is_in(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = list; *at != '\0'; at += strspn(at, ", ")) {
        const size_t n = strcspn(at, ",");
        if (n == length && strncmp(at, word, n) == 0) {
            return true;
        }
        at += n;
    }
    return false;
}

/* What moefold does not train: the model, or anything on such GPUs. */
static void add_lacks(watched *w, const mf_job *j) {
    const char *gpu = mf_report_gpu_not_trained(&j->software, &j->cluster);
    const char *lacks =
        mf_report_not_trained(&j->software, &j->model, &j->plan.layout, &j->cluster);
    if (gpu != NULL && !is_in(w->foreign, j->cluster.name)) {
        const size_t used = strlen(w->foreign);
        snprintf(w->foreign + used, sizeof w->foreign - used, "%s%s", used > 0 ? ", " : "",
                 j->cluster.name);
        w->why = gpu;
    }
    w->rows++;
    w->lacking += lacks != NULL;
    if (lacks != NULL && (gpu == NULL || strcmp(lacks, gpu) != 0)) {
        const size_t used = strlen(w->lacks);
        char text[240];
        snprintf(text, sizeof text, "\n%s does not train %s yet: %s", j->software.name,
                 j->model.name, lacks);
        if (strstr(w->lacks, text) == NULL) {
            snprintf(w->lacks + used, sizeof w->lacks - used, "%s", text);
        }
    }
}

/* The lines of who trains, and of what nobody trains yet. */
static void end_rows(watched *w) {
    const size_t used = strlen(w->program);
    char gpus[448] = "";
    if (w->foreign[0] != '\0') {
        snprintf(gpus, sizeof gpus, "\n" MF_SOFTWARE_OURS " does not train on %s yet: %s",
                 w->foreign, w->why);
    }
    snprintf(w->program + used, sizeof w->program - used, "%s%s", w->lacks, gpus);
}

/* Once for each cluster. */
static void begin_row(void *user, const mf_job *j) {
    watched *w = user;
    char text[240], one[32], line[320];
    mf_report_program_text(&j->software, j->plan.layout.precision, j->cluster.gpu.name,
                           mf_cost_measured(j->cost), text, sizeof text);
    snprintf(one, sizeof one, " in %s;", mf_precision_text(j->plan.layout.precision));
    const char *at = w->precisions != NULL ? strstr(text, one) : NULL;
    if (at != NULL) {
        snprintf(line, sizeof line, "%.*s in %.64s%s", (int)(at - text), text, w->precisions,
                 at + strlen(one) - 1);
    }
    add_line(w, at != NULL ? line : text);
    add_lacks(w, j);
}

static void begin_cell(void *user, const mf_job *j, int64_t gpus) {
    watched *w = user;
    snprintf(w->progress.about, sizeof w->progress.about, "%.80s on %s x %.60s", j->model.name,
             mf_show_i64(gpus).s, j->cluster.name);
}

static void search_progress(const mf_search_stats *now, double best_s, void *user) {
    mf_progress_search(now, best_s, &((watched *)user)->progress);
}

static void fit_progress(const mf_fit_progress *now, void *user) {
    mf_progress_fit(now, &((watched *)user)->progress);
}

static void end_progress(void *user) {
    mf_progress_end(&((watched *)user)->progress);
}

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

static mf_status print_json(FILE *out, const mf_capacity_table *t, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_capacity_write(&w, t);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

/* The table so far; what the exit code says of it. */
static mf_status report(const mf_args *a, const mf_cli *cli, mf_capacity *z, const watched *w,
                        mf_status s, mf_err *e) {
    const mf_value *v = a->value;
    mf_capacity_table t = {
        .cell = z->cell,
        .count = z->count,
        .models = z->r->models,
        .clusters = z->r->clusters,
        .interrupted = s == MF_INTERRUPTED,
        .tokens = text_of(&v[MF_OPT_TOKENS]),
        .deadline = text_of(&v[MF_OPT_DEADLINE]),
        .budget = text_of(&v[MF_OPT_BUDGET]),
        .deadline_s = v[MF_OPT_DEADLINE].f,
        .budget_usd = v[MF_OPT_BUDGET].f,
        .power_usd_kWh = v[MF_OPT_POWER_PRICE].f,
        .gap = z->r->gap,
        .doubts = &z->doubts,
        .routing = text_of(&v[MF_OPT_ROUTING]),
        .skew = z->skew,
        .program = w->program,
        .priced_only = w->lacking == w->rows,
        .all_columns = v[MF_OPT_VERBOSE].given,
    };
    mf_offer *offer = mf_capacity_decide(&t);
    int feasible = 0;
    if (offer == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    t.offer = offer;
    s = s == MF_OK ? mf_capacity_find_remedies(z, &t, e) : s;
    mf_doubts_print(a->notes, &z->doubts);
    for (int i = 0; i < z->count; i++) {
        feasible += z->cell[i].feasible;
    }
    if (v[MF_OPT_JSON].given) {
        mf_status printed = print_json(cli->out, &t, s == MF_OK ? e : NULL);
        s = s == MF_OK ? printed : s;
    } else {
        mf_capacity_print(cli->out, &t);
    }
    if (s == MF_OK || s == MF_INTERRUPTED) { /* the part that is done is worth keeping, too */
        mf_status kept =
            mf_report_folder_capacity(mf_args_report(a, cli), z, &t, s == MF_OK ? e : NULL);
        s = s == MF_OK ? kept : s;
    }
    free(offer);
    return s == MF_OK && feasible == 0
               ? mf_err_set(e, MF_INFEASIBLE, "%s",
                            z->refused[0] != '\0' ? z->refused
                                                  : "nothing fits at any of these sizes")
               : s;
}

/* What the options ask for; without --tokens the run is one token. */
static mf_status make_request(const mf_args *a, const mf_cli *cli, watched *w,
                              mf_capacity_request *out, mf_err *e) {
    const mf_value *v = a->value;
    out->refine = v[MF_OPT_DEADLINE].given && !v[MF_OPT_SIZES].given;
    out->price = a->price;
    out->prices = a->price_count;
    out->tokens = given_or(a, MF_OPT_TOKENS, 1);
    out->deadline_s = given_or(a, MF_OPT_DEADLINE, 0);
    out->budget_usd = given_or(a, MF_OPT_BUDGET, 0);
    out->power_usd_kWh = given_or(a, MF_OPT_POWER_PRICE, 0);
    out->checkpoint_s = given_or(a, MF_OPT_CHECKPOINT_TIME, 30);
    out->restart_s = given_or(a, MF_OPT_RESTART_TIME, 900);
    out->skew = text_of(&v[MF_OPT_SKEW]);
    out->runs_on = text_of(&v[MF_OPT_RUNS_ON]);
    out->gap = fmax(given_or(a, MF_OPT_GAP, 0.05), 1e-9);
    out->search_offload = v[MF_OPT_SEARCH_OFFLOAD].given;
    out->threads = mf_args_threads(a);
    out->cancel = cli->cancel;
    out->watch = (mf_capacity_watch){.row = begin_row,
                                     .cell = begin_cell,
                                     .search = search_progress,
                                     .fit = fit_progress,
                                     .ended = end_progress,
                                     .user = w};
    mf_status s = mf_args_effort(a, &out->effort_us, e);
    return s == MF_OK ? mf_args_request(a, &out->asked, e) : s;
}

static mf_status read_names(const mf_args *a, mf_option_id id, const char *name, mf_name_list *out,
                            mf_err *e) {
    mf_status s = mf_name_list_parse(a->value[id].text, out, e);
    return s == MF_OK ? s : mf_err_prefix(e, "%s", name);
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_name_list models = {0}, clusters = {0};
    int64_t size[MF_CAPACITY_MAX_SIZES];
    watched w = {.program = "", .precisions = text_of(&a->value[MF_OPT_PRECISIONS])};
    mf_capacity_request r = {.size = size};
    mf_capacity z = {0};
    mf_progress_init(&w.progress, cli->err, cli->err_is_terminal, a->value[MF_OPT_PROGRESS].given);
    mf_status s = check(a, e);
    s = s == MF_OK ? read_names(a, MF_OPT_MODELS, "--models", &models, e) : s;
    s = s == MF_OK ? read_names(a, MF_OPT_CLUSTERS, "--clusters", &clusters, e) : s;
    r.model = models.name;
    r.models = models.count;
    r.cluster = clusters.name;
    r.clusters = clusters.count;
    s = s == MF_OK ? make_request(a, cli, &w, &r, e) : s;
    s = s == MF_OK ? mf_capacity_check_prices(&r, e) : s;
    const char *sizes = mf_args_text(a, MF_OPT_SIZES, default_sizes);
    s = s == MF_OK ? mf_size_list_parse(sizes, size, &r.sizes, e) : s;
    s = s == MF_OK ? mf_report_folder_create(mf_args_text(a, MF_OPT_REPORT, NULL), e) : s;
    if (s == MF_OK) {
        s = mf_capacity_plan(&r, &z, e);
        if (s == MF_OK || (s == MF_INTERRUPTED && z.count > 0)) {
            end_rows(&w);
            s = report(a, cli, &z, &w, s, e);
        } else if (s == MF_INTERRUPTED) {
            mf_err_set(e, s, "interrupted before a row was done");
        }
    }
    mf_capacity_clear(&z);
    free(models.text);
    free(clusters.text);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_MODELS,
    MF_OPT_CLUSTERS,
    MF_OPT_SIZES,
    MF_OPT_GLOBAL_BATCH,
    MF_OPT_SEQ,
    MF_OPT_TOKENS,
    MF_OPT_DEADLINE,
    MF_OPT_BUDGET,
    MF_OPT_PRICE,
    MF_OPT_POWER_PRICE,
    MF_OPT_SKEW,
    MF_OPT_CHECKPOINT_TIME,
    MF_OPT_RESTART_TIME,
    MF_OPT_SET,
    MF_OPT_STRICT,
    MF_OPT_SOFTWARE,
    MF_OPT_STORE,
    MF_OPT_NO_CORRECTIONS,
    MF_OPTS_SEARCHED,
    MF_OPT_ROUTING,
    MF_OPT_PRECISIONS,
    MF_OPT_RUNS_ON,
    MF_OPT_SEARCH_OFFLOAD,
    MF_OPT_EVEN_STAGES,
    MF_OPT_GAP,
    MF_OPT_EFFORT,
    MF_OPT_THREADS,
    MF_OPT_REPORT,
    MF_OPT_VERBOSE,
    MF_OPT_JSON,
    MF_OPT_PROGRESS,
    MF_OPT_HELP,
    MF_OPT_COUNT,
};

const mf_command mf_cmd_capacity = {
    .name = "capacity",
    .summary = "models x clusters x sizes: time, tokens/s, money and energy for a number of tokens",
    .usage = {"--models LIST --clusters LIST --global-batch N --seq N [--tokens COUNT] "
              "[--deadline TIME|DATE] [options]"},
    .about =
        "Plans every model on every cluster at every size and compares the runs. With --tokens it "
        "adds the time of the whole run, failures and checkpoints included, its price and its "
        "energy. For each model it then names the cheapest size that keeps --deadline, the "
        "fastest within --budget, the smallest and, with one of these, the cheapest that keeps "
        "them a node less; sizes that the gap of the search or, between clusters, the band of the "
        "prices does not tell apart are called ties. A * marks the front: no other row is both as "
        "fast and as cheap.\nThe search of a cell begins with the plans of its neighbours, so a "
        "row may depend, within its gap, on which other rows are asked for. It ends when its gap "
        "no longer narrows, after 10 to 20 counted seconds at most, unless --effort says "
        "otherwise. With --deadline or --budget every plan is also tried on a node less (same "
        "degrees or those of another size of the table, fewer data-parallel ranks; all GPUs that "
        "are left are paid for), with --skew under uneven routing: a ! marks a limit that is then "
        "missed. Under --routing zipf:S runs and verdicts stand at the 95th percentile of 20 "
        "draws; where a verdict's plan lacks token headroom for them, it says which options help. "
        "With --deadline and without --sizes, sizes around the smallest one that keeps it are "
        "tried, too. A layout option that you give pins its dimension everywhere. Under a "
        "megatron-* profile only what Megatron can express is searched (--runs-on any lifts "
        "that).\n-o DIR writes each "
        "verdict's plan and trace, too: plan.json of the first (cheapest), "
        "plan-[MODEL-]CLUSTER-GPUS.json of others.\nInterrupt it (Ctrl-C) to get the part of the "
        "table that is done.",
    .example = "moefold capacity --models deepseek-v3 --clusters h100,h200,gb200 --sizes 1024,2048 "
               "--global-batch 8192 --seq 4096 --tokens 15T --deadline 60d",
    .searches = true,
    .options = options,
    .run = run,
};
