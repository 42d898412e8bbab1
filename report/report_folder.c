/* report_folder.c - writes the files of a report. */
#include "report/report_folder.h"

#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/version.h"
#include "job/account.h"
#include "job/runs_on.h"
#include "launch/steps.h"
#include "report/account_report.h"
#include "report/candidates.h"
#include "report/page/page.h"
#include "report/schedule_slices.h"
#include "report/search_report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_SIZE = 4096, MARKED_B = 64 << 20 };

/* --- files ------------------------------------------------------------------------------------ */

/* A name that is meant for a file. */
static bool names_file(const char *dir) {
    const char *end = strrchr(dir, '.');
    return end != NULL && (strcmp(end, ".json") == 0 || strcmp(end, ".html") == 0);
}

mf_status mf_report_folder_create(const char *dir, mf_err *e) {
    struct stat info;
    if (dir == NULL) {
        return MF_OK;
    }
    if (names_file(dir) && stat(dir, &info) != 0) {
        return mf_err_set(e, MF_USAGE,
                          "--report (-o): a folder is made, and %s looks like a file; --out names "
                          "a file for the plan alone",
                          dir);
    }
    if (mkdir(dir, 0777) == 0) {
        return MF_OK;
    }
    if (errno == EEXIST && stat(dir, &info) == 0) {
        return S_ISDIR(info.st_mode) ? MF_OK
                                     : mf_err_set(e, MF_USAGE, "--report: %s is no folder", dir);
    }
    return mf_err_set(e, MF_IO, "--report: %s: %s", dir, strerror(errno));
}

/* Where a file is written: beside its place, which it takes when all of it is there; so a report
 * that is there stays whole if this one is killed. A device or a pipe is written as it is. */
static void place_of(const char *dir, const char *name, char path[PATH_SIZE],
                     char written[PATH_SIZE]) {
    snprintf(path, PATH_SIZE, "%s/%s", dir, name);
    snprintf(written, PATH_SIZE, "%s/%s%s", dir, name, mf_file_stays(path) ? "" : ".tmp");
}

static mf_status open_file(const char *dir, const char *name, FILE **out, mf_err *e) {
    char path[PATH_SIZE], written[PATH_SIZE];
    place_of(dir, name, path, written);
    *out = fopen(written, "w+b");
    return *out != NULL ? MF_OK : mf_err_set(e, MF_IO, "--report: %s: %s", path, strerror(errno));
}

/* What did not reach the disk was not written. */
static mf_status close_file(const char *dir, const char *name, FILE *f, mf_status s, mf_err *e) {
    if (f == NULL) {
        return s;
    }
    char path[PATH_SIZE], written[PATH_SIZE];
    place_of(dir, name, path, written);
    bool whole = !ferror(f);
    whole = fclose(f) == 0 && whole;
    if (s == MF_OK && whole) {
        whole = strcmp(path, written) == 0 || rename(written, path) == 0;
    } else if (strcmp(path, written) != 0) {
        remove(written);
    }
    return s == MF_OK && !whole ? mf_err_set(e, MF_IO, "--report: %s: cannot write", path) : s;
}

static mf_status write_text(const char *dir, const char *name, const char *text, mf_err *e) {
    FILE *f = NULL;
    mf_status s = open_file(dir, name, &f, e);
    if (s == MF_OK) {
        fputs(text, f);
        s = close_file(dir, name, f, s, e);
    }
    return s;
}

/* A field that may be empty, behind a comma. */
static void write_field(FILE *f, double value, bool known) {
    if (known && isfinite(value)) {
        fprintf(f, ",%.17g", value);
    } else {
        putc(',', f);
    }
}

/* --- the JSON --------------------------------------------------------------------------------- */

/* The command line, members of the object that is open. */
static void write_command(mf_json_writer *w, mf_report_folder to) {
    mf_json_write_string(w, "command", to.command);
    mf_json_write_string(w, "generator", MF_GENERATOR);
    mf_json_write_array(w, "command_line", true);
    for (int i = 0; i < to.argc; i++) {
        mf_json_write_string(w, NULL, i == 0 ? "moefold" : to.argv[i]);
    }
    mf_json_write_end(w);
}

static void write_found(mf_json_writer *w, const mf_search_result *r) {
    mf_json_write_object(w, "search", false);
    mf_json_write_i64(w, "space", r->stats.space);
    mf_json_write_f64(w, "lower_bound_s", r->stats.lower_bound_s);
    mf_json_write_f64(w, "gap", r->stats.gap);
    mf_json_write_bool(w, "interrupted", r->stats.interrupted);
    mf_search_report_json_end(w, &r->stats);
    mf_json_write_end(w);
    mf_json_write_array(w, "candidates", false);
    for (int i = 0; i < r->count; i++) {
        const mf_plan_prediction *p = &r->plan[i].prediction;
        mf_json_write_object(w, NULL, false);
        mf_json_write_f64(w, "step_time_s", p->step_time_s);
        mf_json_write_f64(w, "step_time_low_s", p->step_time_low_s);
        mf_json_write_f64(w, "step_time_high_s", p->step_time_high_s);
        mf_json_write_f64(w, "peak_memory_B", p->peak_memory_B);
        mf_json_write_f64(w, "mfu", p->mfu);
        char memory[2048];
        mf_candidates_memory(&r->plan[i].assignment, memory, sizeof memory);
        mf_json_write_string(w, "memory", memory);
        mf_plan_write_layout(w, "layout", &r->plan[i].layout);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}

/* report.json and the page that is drawn from it; w is empty afterwards. */
static mf_status write_report(const char *dir, mf_json_writer *w, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    mf_json *doc = NULL;
    FILE *page = NULL;
    mf_status s = mf_json_writer_finish(w, &text, &length, e);
    s = s == MF_OK ? write_text(dir, "report.json", text, e) : s;
    s = s == MF_OK ? mf_json_parse("report.json", text, length, &doc, e) : s;
    s = s == MF_OK ? open_file(dir, "report.html", &page, e) : s;
    if (s == MF_OK) {
        mf_page_write(page, doc, text);
        s = close_file(dir, "report.html", page, s, e);
    }
    mf_json_destroy(doc);
    free(text);
    return s;
}

/* A file is there or not: words of a command line may be other things. */
static void write_file(mf_json_writer *w, const char *option, const char *path) {
    struct stat info;
    char *text = NULL, mark[24];
    size_t length = 0;
    if (path == NULL || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) {
        return;
    }
    mf_json_write_object(w, NULL, true);
    mf_json_write_string(w, "option", option);
    mf_json_write_string(w, "path", path);
    mf_json_write_i64(w, "bytes", (int64_t)info.st_size);
    if (mf_file_load(path, MARKED_B, &text, &length, NULL) == MF_OK) {
        uint32_t crc = mf_crc32c(0, text, length);
        snprintf(mark, sizeof mark, "%08x", (unsigned)crc);
        mf_json_write_string(w, "crc32c", mark);
    }
    mf_json_write_end(w);
    free(text);
}

/* Of the folder of a run, what `compare` reads. */
static void write_files(mf_json_writer *w, mf_report_folder to) {
    static const char *const of_run[] = {"op_times.json", "metrics.jsonl", "plan.json",
                                         "config.json"};
    const char *const option[] = {"plan", "log", "store"};
    const char *const path[] = {to.plan, to.log, to.store};
    mf_json_write_array(w, "files", false);
    for (size_t i = 0; i < sizeof path / sizeof path[0]; i++) {
        write_file(w, option[i], path[i]);
    }
    for (size_t i = 0; to.run != NULL && i < sizeof of_run / sizeof of_run[0]; i++) {
        char file[PATH_SIZE];
        snprintf(file, sizeof file, "%s/%s", to.run, of_run[i]);
        write_file(w, "run", file);
    }
    for (int i = 0; i < to.words; i++) {
        write_file(w, "", to.word[i]);
    }
    mf_json_write_end(w);
}

static mf_status write_inputs(mf_report_folder to, const mf_job *j, mf_err *e) {
    mf_json_writer w;
    char *text = NULL;
    size_t length = 0;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    write_command(&w, to);
    if (j != NULL) {
        const mf_plan_provenance *p = &j->plan.provenance;
        mf_json_write_string(&w, "model", j->model.name);
        mf_json_write_string(&w, "model_fingerprint", j->plan.model.fingerprint);
        mf_json_write_string(&w, "cluster", p->cluster);
        mf_json_write_string(&w, "cluster_fingerprint", p->cluster_fingerprint);
        mf_json_write_string(&w, "software", j->software.name);
        mf_json_write_string(&w, "measurements", p->measurements);
        mf_json_write_string(&w, "routing", p->routing);
    }
    write_files(&w, to);
    mf_json_write_end(&w);
    mf_status s = mf_json_writer_finish(&w, &text, &length, e);
    s = s == MF_OK ? write_text(to.dir, "inputs.json", text, e) : s;
    free(text);
    return s;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* candidates.csv and compared.csv, where the command has them. */
static mf_status write_tables(const char *dir, const mf_report_step *step, mf_err *e) {
    mf_status s = MF_OK;
    FILE *f = NULL;
    if (step->candidates != NULL || step->found != NULL) {
        s = open_file(dir, "candidates.csv", &f, e);
        if (s == MF_OK && step->candidates != NULL) {
            step->candidates(f, step->user);
        } else if (s == MF_OK) {
            mf_candidates_of_search(f, step->found);
        }
        s = close_file(dir, "candidates.csv", f, s, e);
    }
    if (s == MF_OK && step->compared != NULL) {
        s = open_file(dir, "compared.csv", &f, e);
        if (s == MF_OK) {
            mf_report_compared_head(f);
            step->compared(f, step->user);
        }
        s = close_file(dir, "compared.csv", f, s, e);
    }
    return s;
}

void mf_report_compared_head(FILE *f) {
    fputs("where,what,pass,unit,times,predicted,measured,error\n", f);
}

void mf_report_compared_row(FILE *f, const char *where, const char *what, const char *pass,
                            const char *unit, double times, double predicted, double measured) {
    if (!(measured > 0) && !(predicted > 0)) {
        return; /* nobody knows it */
    }
    fprintf(f, "\"%s\",\"%s\",%s,%s,%.17g", where, what, pass, unit, times);
    write_field(f, predicted, predicted > 0);
    write_field(f, measured, measured > 0);
    write_field(f, predicted / measured - 1, measured > 0 && predicted > 0);
    putc('\n', f);
}

/* Plays the plan once more, for the trace: into the file and into the JSON. */
static mf_status write_play(mf_report_folder to, const mf_job *j, const mf_plan *plan,
                            mf_json_writer *w, mf_err *e) {
    FILE *trace = NULL;
    mf_program *program = NULL;
    mf_sim *sim = NULL;
    mf_account *account = calloc(1, sizeof *account);
    if (account == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = open_file(to.dir, "trace.json", &trace, e);
    const mf_sim_options o = {.routing = &j->routing, .trace = trace, .cancel = to.cancel};
    if (s == MF_OK) {
        s = mf_program_lower(&j->model, &plan->layout, &j->cluster, &plan->assignment, &program, e);
    }
    s = s == MF_OK ? mf_sim_step(j->cost, program, &o, &sim, e) : s;
    if (s == MF_OK) {
        mf_account_stage(program, j->cost, &j->routing, sim->critical_stage, account);
        mf_account_report_json_bases(w, account);
        s = mf_schedule_slices_write(w, trace, &plan->layout, sim->step_time_s, e);
    }
    s = close_file(to.dir, "trace.json", trace, s, e);
    mf_sim_destroy(sim);
    mf_program_destroy(program);
    free(account);
    return s;
}

static mf_status save_plan(const char *dir, const mf_plan *plan, mf_err *e) {
    char path[4096];
    snprintf(path, sizeof path, "%s/plan.json", dir);
    mf_status s = mf_plan_save(plan, path, e);
    return s == MF_OK ? s : mf_err_prefix(e, "--report");
}

/* Layers of one plan may choose otherwise each; the layout's own choice says nothing of them. */
static void write_memory_choices(mf_json_writer *w, const mf_assignment *a) {
    char text[448];
    mf_json_write_array(w, "memory_choices", true);
    for (int at = 0; mf_report_memory_choice(a, &at, text, sizeof text);) {
        mf_json_write_string(w, NULL, text);
    }
    mf_json_write_end(w);
}

mf_status mf_report_folder_step(mf_report_folder to, const mf_job *j, const mf_report_step *step,
                                mf_err *e) {
    const mf_search_result *found = step->found;
    const mf_plan *plan = step->report->plan;
    mf_explanation x = {0};
    mf_runs_on on = {0};
    mf_json_writer w;
    char title[256];
    if (to.dir == NULL) {
        return MF_OK;
    }
    mf_status s = write_inputs(to, j, e);
    s = s == MF_OK && !step->saved ? save_plan(to.dir, plan, e) : s;
    s = s == MF_OK ? write_tables(to.dir, step, e) : s;
    s = s == MF_OK ? mf_runs_on_parse(step->runs_on, j->software.name, &on, e) : s;
    s = s == MF_OK ? mf_planner_explain(step->problem, &plan->layout, &plan->assignment, &x, e) : s;
    s = s == MF_OK ? mf_step_power_add_waits(&x, j, plan, &step->report->power, e) : s;
    if (s != MF_OK) {
        return s;
    }
    if (on.limited) {
        mf_steps_keep_said(on.target, &j->model, &plan->layout, &plan->assignment, &x);
    }
    snprintf(title, sizeof title, "%s on %lld x %s", j->model.name, (long long)plan->layout.gpus,
             j->cluster.name);
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "title", title);
    write_command(&w, to);
    if (step->verdict != NULL) {
        mf_json_write_string(&w, "verdict", step->verdict);
    }
    mf_json_write_object(&w, "step", false);
    mf_report_json(&w, step->report);
    write_memory_choices(&w, &plan->assignment);
    mf_json_write_end(&w);
    mf_report_json_explanation(&w, &x);
    if (found != NULL) {
        write_found(&w, found);
    }
    if (step->doubts != NULL) {
        mf_doubts_json(&w, step->doubts);
    }
    if (step->more != NULL) {
        step->more(&w, step->user);
    }
    s = write_play(to, j, plan, &w, e);
    if (s != MF_OK) {
        mf_json_writer_clear(&w);
        return s;
    }
    mf_json_write_end(&w);
    return write_report(to.dir, &w, e);
}

/* --- sizes ------------------------------------------------------------------------------------ */

/* Empty where it was not tried. */
static void write_strain(FILE *f, const mf_capacity_table *t, const mf_capacity_cell *c,
                         const mf_capacity_strain *x, bool routing) {
    const bool some = x->tried && x->gpus > 0;
    write_field(f, x->fits, x->tried);
    if (!routing) {
        write_field(f, (double)x->gpus, some);
    }
    write_field(f, x->step_time_s, some);
    if (routing) {
        write_field(f, x->load, some);
    }
    write_field(f, x->run_s, some && t->tokens != NULL);
    write_field(f, x->cost_usd, some && t->tokens != NULL && c->price.known);
}

/* What else tells plans of the same degrees apart. */
static void write_choices(FILE *f, const mf_capacity_cell *c) {
    const mf_layout *l = &c->layout;
    char overlap[64], memory[2048];
    if (!c->feasible) {
        fputs(",,,,,,,,,,,", f);
        return;
    }
    mf_overlap_format(l->overlap, overlap, sizeof overlap);
    mf_candidates_memory(&c->assignment, memory, sizeof memory);
    fprintf(f, ",%lld,%lld,%d,%d,%s,%s,\"%s\",%s,%s,%.17g,\"%s\"", (long long)l->dp,
            (long long)l->mbs, l->zero, l->expert_zero, mf_dispatcher_text(l->dispatcher),
            mf_cp_type_text(l->cp_type), overlap, mf_graph_text(l->graph),
            l->moments_bf16 ? "bf16" : "fp32", l->offload_optimizer, memory);
}

/* Every line has all fields; those of a size that does not fit are empty. */
static void write_size(FILE *f, const mf_capacity_table *t, int at) {
    const mf_capacity_cell *c = &t->cell[at];
    const mf_layout *l = &c->layout;
    const bool fits = c->feasible, ends = fits && isfinite(c->run_s);
    const double figures[] = {c->step_time_s, c->low_s, c->high_s,       c->tokens_per_s,
                              c->mfu,         c->gap,   c->goodput.share};
    const int64_t degrees[] = {l->tp, l->cp, l->pp, l->vpp, l->ep, l->etp};
    fprintf(f, "\"%s\",\"%s\",%lld,%d,%d,%s,%s", c->model, c->cluster, (long long)c->gpus, fits,
            t->offer[at].on_front, c->software, fits ? mf_precision_text(l->precision) : "");
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        write_field(f, figures[i], fits);
    }
    if (t->tokens != NULL) {
        write_field(f, c->run_s, ends);
        write_field(f, c->gpu_h, ends);
        write_field(f, c->cost_usd, ends && c->price.known);
        write_field(f, c->energy_J, ends);
        write_field(f, c->price.usd_gpu_h, c->price.known);
        fprintf(f, c->price.date[0] != '\0' ? ",\"%s\"" : ",%s", c->price.date);
    }
    for (size_t i = 0; i < sizeof degrees / sizeof degrees[0]; i++) {
        write_field(f, (double)degrees[i], fits);
    }
    fprintf(f, ",%s", fits ? mf_schedule_text(l->schedule) : "");
    write_strain(f, t, c, &c->skewed, true);
    write_strain(f, t, c, &c->lost, false);
    write_choices(f, c);
    putc('\n', f);
}

static mf_status write_sizes(const char *dir, const mf_capacity_table *t, mf_err *e) {
    FILE *f = NULL;
    mf_status s = open_file(dir, "candidates.csv", &f, e);
    if (s != MF_OK) {
        return s;
    }
    fputs("model,cluster,gpus,fits,on_front,software,precision,step_time_s,step_time_low_s,"
          "step_time_high_s,tokens_per_s,mfu,gap,goodput",
          f);
    fputs(t->tokens != NULL ? ",run_s,gpu_h,cost_usd,energy_J,price_usd_gpu_h,price_date" : "", f);
    fputs(",tp,cp,pp,vpp,ep,etp,schedule,skewed_fits,skewed_step_time_s,skewed_expert_load,"
          "skewed_run_s,skewed_cost_usd,node_lost_fits,node_lost_gpus,node_lost_step_time_s,"
          "node_lost_run_s,node_lost_cost_usd,dp,micro_batch,zero,expert_zero,dispatcher,cp_type,"
          "overlap,cuda_graph,moments,offload_optimizer,memory\n",
          f);
    for (int i = 0; i < t->count; i++) {
        write_size(f, t, i);
    }
    return close_file(dir, "candidates.csv", f, s, e);
}

mf_status mf_report_folder_capacity(mf_report_folder to, const mf_capacity_table *t, mf_err *e) {
    mf_json_writer w;
    if (to.dir == NULL) {
        return MF_OK;
    }
    mf_status s = write_inputs(to, NULL, e);
    s = s == MF_OK ? write_sizes(to.dir, t, e) : s;
    if (s != MF_OK) {
        return s;
    }
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "title", "Which cluster, what it takes and what it costs");
    write_command(&w, to);
    mf_json_write_object(&w, "capacity", false);
    mf_capacity_write(&w, t);
    mf_json_write_end(&w);
    mf_json_write_end(&w);
    return write_report(to.dir, &w, e);
}
