/* report_folder.c - writes the files of a report. */
#include "report/folder/folder_parts.h"

#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/version.h"
#include "job/figures/account.h"
#include "job/search/runs_on.h"
#include "launch/steps/steps.h"
#include "report/page/page.h"
#include "report/search/candidates.h"
#include "report/search/search_report.h"
#include "report/step/account_report.h"
#include "report/step/schedule_slices.h"
#include "report/text/show.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_SIZE = 4096, PIECE_B = 64 << 10 };

/* --- files ------------------------------------------------------------------------------------ */

/* A name that is meant for a file. */
static bool names_file(const char *dir) {
    const char *end = strrchr(dir, '.');
    return end != NULL && (strcmp(end, ".json") == 0 || strcmp(end, ".html") == 0);
}

const char *mf_report_plan_file(const char *dir, char path[MF_REPORT_FILE]) {
    snprintf(path, MF_REPORT_FILE, "%s/plan.json", dir != NULL ? dir : "");
    return dir != NULL ? path : NULL;
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

mf_status mf_folder_open(const char *dir, const char *name, FILE **out, mf_err *e) {
    char path[PATH_SIZE], written[PATH_SIZE];
    place_of(dir, name, path, written);
    *out = fopen(written, "w+b");
    return *out != NULL ? MF_OK : mf_err_set(e, MF_IO, "--report: %s: %s", path, strerror(errno));
}

/* What did not reach the disk was not written. */
mf_status mf_folder_close(const char *dir, const char *name, FILE *f, mf_status s, mf_err *e) {
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
    mf_status s = mf_folder_open(dir, name, &f, e);
    if (s == MF_OK) {
        fputs(text, f);
        s = mf_folder_close(dir, name, f, s, e);
    }
    return s;
}

/* A field that may be empty, behind a comma. */
void mf_folder_field(FILE *f, double value, bool known) {
    if (known && isfinite(value)) {
        fprintf(f, ",%.17g", value);
    } else {
        putc(',', f);
    }
}

/* --- the JSON --------------------------------------------------------------------------------- */

/* The command line, members of the object that is open. */
void mf_folder_command(mf_json_writer *w, mf_report_folder to) {
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
    mf_search_report_json_runs_on(w, &r->stats);
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
mf_status mf_folder_page(const char *dir, mf_json_writer *w, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    mf_json *doc = NULL;
    FILE *page = NULL;
    mf_status s = mf_json_writer_finish(w, &text, &length, e);
    s = s == MF_OK ? write_text(dir, "report.json", text, e) : s;
    s = s == MF_OK ? mf_json_parse("report.json", text, length, &doc, e) : s;
    s = s == MF_OK ? mf_folder_open(dir, "report.html", &page, e) : s;
    if (s == MF_OK) {
        mf_page_write(page, doc, text);
        s = mf_folder_close(dir, "report.html", page, s, e);
    }
    mf_json_destroy(doc);
    free(text);
    return s;
}

/* Of all that is left of the file. */
static bool checksum(FILE *f, uint32_t *out) {
    char piece[PIECE_B];
    size_t length;
    *out = 0;
    while ((length = fread(piece, 1, sizeof piece, f)) > 0) {
        *out = mf_crc32c(*out, piece, length);
    }
    return !ferror(f);
}

bool mf_folder_mark_file(const char *path, mf_folder_mark *out) {
    struct stat info;
    uint32_t crc = 0;
    *out = (mf_folder_mark){.bytes = 0};
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) {
        return false;
    }
    out->bytes = (int64_t)info.st_size;
    FILE *f = fopen(path, "rb");
    if (f != NULL && checksum(f, &crc)) {
        snprintf(out->crc32c, sizeof out->crc32c, "%08x", (unsigned)crc);
    }
    if (f != NULL) {
        fclose(f);
    }
    return true;
}

void mf_folder_mark_write(mf_json_writer *w, const mf_folder_mark *mark) {
    mf_json_write_i64(w, "bytes", mark->bytes);
    if (mark->crc32c[0] != '\0') {
        mf_json_write_string(w, "crc32c", mark->crc32c);
    }
}

/* A file is there or not: words of a command line may be other things. */
static void write_file(mf_json_writer *w, const char *option, const char *path) {
    mf_folder_mark mark;
    if (path == NULL || !mf_folder_mark_file(path, &mark)) {
        return;
    }
    mf_json_write_object(w, NULL, true);
    mf_json_write_string(w, "option", option);
    mf_json_write_string(w, "path", path);
    mf_folder_mark_write(w, &mark);
    mf_json_write_end(w);
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

mf_status mf_folder_inputs(mf_report_folder to, const mf_job *j, mf_err *e) {
    mf_json_writer w;
    char *text = NULL;
    size_t length = 0;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_folder_command(&w, to);
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

static bool has_candidates(const mf_report_step *step) {
    return step->candidates != NULL || step->found != NULL;
}

/* candidates.csv and compared.csv, where the command has them. */
static mf_status write_tables(const char *dir, const mf_report_step *step, mf_err *e) {
    mf_status s = MF_OK;
    FILE *f = NULL;
    if (has_candidates(step)) {
        s = mf_folder_open(dir, "candidates.csv", &f, e);
        if (s == MF_OK && step->candidates != NULL) {
            step->candidates(f, step->user);
        } else if (s == MF_OK) {
            mf_candidates_of_search(f, step->found);
        }
        s = mf_folder_close(dir, "candidates.csv", f, s, e);
    }
    if (s == MF_OK && step->compared != NULL) {
        s = mf_folder_open(dir, "compared.csv", &f, e);
        if (s == MF_OK) {
            mf_report_compared_head(f);
            step->compared(f, step->user);
        }
        s = mf_folder_close(dir, "compared.csv", f, s, e);
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
    mf_folder_field(f, predicted, predicted > 0);
    mf_folder_field(f, measured, measured > 0);
    mf_folder_field(f, predicted / measured - 1, measured > 0 && predicted > 0);
    putc('\n', f);
}

/* Of some 150 bytes each; a step of a large model has ten times as many. `simulate --trace` draws
 * them all. */
enum { TRACE_OPS = 10000 };

/* Plays the plan once more, for the trace: into the file and into the JSON. */
static mf_status write_play(mf_report_folder to, const char *name, const mf_job *j,
                            const mf_plan *plan, mf_json_writer *w, mf_err *e) {
    FILE *trace = NULL;
    mf_program *program = NULL;
    mf_sim *sim = NULL;
    mf_account *account = calloc(1, sizeof *account);
    if (account == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_folder_open(to.dir, name, &trace, e);
    const mf_sim_options o = {
        .routing = &j->routing, .trace = trace, .trace_ops = TRACE_OPS, .cancel = to.cancel};
    if (s == MF_OK) {
        s = mf_program_lower(&j->model, &plan->layout, &j->cluster, &plan->assignment, &program, e);
    }
    s = s == MF_OK ? mf_sim_step(j->cost, program, &o, &sim, e) : s;
    if (s == MF_OK) {
        mf_account_stage(program, j->cost, &j->routing, sim->critical_stage, account);
        mf_account_report_json_bases(w, account);
        s = mf_schedule_slices_write(w, trace, &plan->layout, sim->step_time_s, e);
    }
    s = mf_folder_close(to.dir, name, trace, s, e);
    mf_sim_destroy(sim);
    mf_program_destroy(program);
    free(account);
    return s;
}

static mf_status save_plan(const char *dir, const char *name, const mf_plan *plan, mf_err *e) {
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", dir, name);
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

mf_status mf_folder_step(mf_report_folder to, const mf_folder_names *names, const mf_job *j,
                         const mf_report_step *step, mf_json_writer *w, mf_err *e) {
    const mf_plan *plan = step->report->plan;
    mf_explanation x = {0};
    mf_runs_on on = {0};
    mf_status s = step->saved ? MF_OK : save_plan(to.dir, names->plan, plan, e);
    s = s == MF_OK ? mf_runs_on_parse(step->runs_on, j->software.name, &on, e) : s;
    s = s == MF_OK ? mf_planner_explain(step->problem, &plan->layout, &plan->assignment, &x, e) : s;
    s = s == MF_OK ? mf_step_power_add_waits(&x, j, plan, &step->report->power, e) : s;
    if (s != MF_OK) {
        return s;
    }
    if (on.limited) {
        mf_steps_keep_said(on.target, &j->model, &plan->layout, &plan->assignment, &x);
    }
    mf_json_write_object(w, "step", false);
    mf_report_json(w, step->report);
    write_memory_choices(w, &plan->assignment);
    mf_json_write_end(w);
    mf_report_json_explanation(w, &x);
    return write_play(to, names->trace, j, plan, w, e);
}

static void settle(mf_report_folder to, const mf_folder_names *names, const mf_report_step *step,
                   mf_json_writer *w) {
    const char *file[4] = {names->plan, names->trace};
    size_t count = 2;
    if (has_candidates(step)) {
        file[count++] = "candidates.csv";
    }
    if (step->compared != NULL) {
        file[count++] = "compared.csv";
    }
    mf_folder_settle(to, file, count, w);
}

mf_status mf_report_folder_step(mf_report_folder to, const mf_job *j, const mf_report_step *step,
                                mf_err *e) {
    static const mf_folder_names names = {"plan.json", "trace.json"};
    mf_json_writer w;
    char title[256];
    if (to.dir == NULL) {
        return MF_OK;
    }
    mf_status s = mf_folder_inputs(to, j, e);
    s = s == MF_OK ? write_tables(to.dir, step, e) : s;
    if (s != MF_OK) {
        return s;
    }
    snprintf(title, sizeof title, "%s on %s x %s", j->model.name,
             mf_show_i64(step->report->plan->layout.gpus).s, j->cluster.name);
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "title", title);
    mf_folder_command(&w, to);
    if (step->verdict != NULL) {
        mf_json_write_string(&w, "verdict", step->verdict);
    }
    s = mf_folder_step(to, &names, j, step, &w, e);
    if (s != MF_OK) {
        mf_json_writer_clear(&w);
        return s;
    }
    if (step->found != NULL) {
        write_found(&w, step->found);
    }
    settle(to, &names, step, &w);
    if (step->doubts != NULL) {
        mf_doubts_json(&w, step->doubts);
    }
    if (step->more != NULL) {
        step->more(&w, step->user);
    }
    mf_json_write_end(&w);
    return mf_folder_page(to.dir, &w, e);
}
