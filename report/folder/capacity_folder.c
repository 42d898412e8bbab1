/* capacity_folder.c - the files of a report on sizes of clusters: the sizes, one a line, and the
 * plan of each that a verdict names. */
#include "report/folder/folder_parts.h"

#include "report/search/candidates.h"
#include "report/text/show.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- sizes ------------------------------------------------------------------------------------ */

/* Empty where it was not tried. */
static void write_strain(FILE *f, const mf_capacity_table *t, const mf_capacity_cell *c,
                         const mf_capacity_strain *x, bool routing) {
    const bool some = x->tried && x->gpus > 0;
    mf_folder_field(f, x->fits, x->tried);
    if (!routing) {
        mf_folder_field(f, (double)x->gpus, some);
    }
    mf_folder_field(f, x->step_time_s, some);
    if (routing) {
        mf_folder_field(f, x->load, some);
    }
    mf_folder_field(f, x->run_s, some && t->tokens != NULL);
    mf_folder_field(f, x->cost_usd, some && t->tokens != NULL && c->price.known);
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
        mf_folder_field(f, figures[i], fits);
    }
    if (t->tokens != NULL) {
        mf_folder_field(f, c->run_s, ends);
        mf_folder_field(f, c->gpu_h, ends);
        mf_folder_field(f, c->cost_usd, ends && c->price.known);
        mf_folder_field(f, c->energy_J, ends);
        mf_folder_field(f, c->price.usd_gpu_h, c->price.known);
        fprintf(f, c->price.date[0] != '\0' ? ",\"%s\"" : ",%s", c->price.date);
    }
    for (size_t i = 0; i < sizeof degrees / sizeof degrees[0]; i++) {
        mf_folder_field(f, (double)degrees[i], fits);
    }
    fprintf(f, ",%s", fits ? mf_schedule_text(l->schedule) : "");
    mf_folder_field(f, c->routed.step_time_s, fits && c->routed.draws > 0);
    mf_folder_field(f, c->routed.load, fits && c->routed.draws > 0);
    write_strain(f, t, c, &c->skewed, true);
    write_strain(f, t, c, &c->lost, false);
    write_choices(f, c);
    putc('\n', f);
}

static mf_status write_sizes(const char *dir, const mf_capacity_table *t, mf_err *e) {
    FILE *f = NULL;
    mf_status s = mf_folder_open(dir, "candidates.csv", &f, e);
    if (s != MF_OK) {
        return s;
    }
    fputs("model,cluster,gpus,fits,on_front,software,precision,step_time_s,step_time_low_s,"
          "step_time_high_s,tokens_per_s,mfu,gap,goodput",
          f);
    fputs(t->tokens != NULL ? ",run_s,gpu_h,cost_usd,energy_J,price_usd_gpu_h,price_date" : "", f);
    fputs(",tp,cp,pp,vpp,ep,etp,schedule,routed_step_time_s,routed_expert_load,skewed_fits,skewed_"
          "step_time_s,skewed_expert_load,"
          "skewed_run_s,skewed_cost_usd,node_lost_fits,node_lost_gpus,node_lost_step_time_s,"
          "node_lost_run_s,node_lost_cost_usd,dp,micro_batch,zero,expert_zero,dispatcher,cp_type,"
          "overlap,cuda_graph,moments,offload_optimizer,memory\n",
          f);
    for (int i = 0; i < t->count; i++) {
        write_size(f, t, i);
    }
    return mf_folder_close(dir, "candidates.csv", f, s, e);
}

/* --- plans ------------------------------------------------------------------------------------ */

/* "cheapest in 60d; smallest in 60d: mixtral-8x7b on 512 x h100 (plan.json)" */
static void say_title(const mf_capacity_table *t, int cell, const char *file, char *out,
                      size_t size) {
    const mf_capacity_cell *c = &t->cell[cell];
    size_t used = 0;
    for (int v = 0; v < mf_capacity_verdicts(t); v++) {
        if (mf_capacity_names(t, v, cell)) {
            used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? "; " : "",
                                     mf_capacity_verdict_label(t, (mf_verdict)v).s);
        }
    }
    snprintf(out + used, size - used, ": %.80s on %s x %.60s (%.120s)", c->model,
             mf_show_i64(c->gpus).s, c->cluster, file);
}

/* Names of files: "plan.json" of the first plan, "plan-h100-512.json" of others, with the model in
 * front where there are several. */
static void name_file(const mf_capacity_table *t, int n, int cell, const char *kind, char *out,
                      size_t size) {
    const mf_capacity_cell *c = &t->cell[cell];
    size_t used = (size_t)snprintf(out, size, "%s", kind);
    if (n > 0) {
        const bool several = t->models > 1;
        snprintf(out + used, size - used, "%s%s-%s-%lld", several ? "-" : "",
                 several ? c->model : "", c->cluster, (long long)c->gpus);
    }
    for (char *at = out; *at != '\0'; at++) {
        *at = isalnum((unsigned char)*at) || strchr("-._", *at) != NULL ? *at : '_';
    }
    used = strlen(out);
    snprintf(out + used, size - used, ".json");
}

/* What a cell says of its plan, and the plan as reports of a step have it. */
static mf_status write_plan(mf_report_folder to, const mf_capacity *z, const mf_capacity_table *t,
                            int n, int cell, mf_json_writer *w, mf_err *e) {
    const mf_capacity_cell *c = &t->cell[cell];
    const mf_job *j = &z->job[c->row];
    char file[2][256], title[640];
    mf_problem problem;
    mf_plan plan;
    mf_status s = mf_capacity_plan_of(z, c, &problem, &plan, e);
    mf_report report = mf_report_of(j, &plan);
    report.megatron = c->megatron.software[0] != '\0' ? &c->megatron : NULL;
    s = s == MF_OK ? mf_report_add_up(&report, j, e) : s;
    name_file(t, n, cell, "plan", file[0], sizeof file[0] - 8);
    name_file(t, n, cell, "trace", file[1], sizeof file[1] - 8);
    say_title(t, cell, file[0], title, sizeof title);
    if (s == MF_OK) {
        const mf_folder_names files = {file[0], file[1]};
        const mf_report_step step = {
            .report = &report, .problem = &problem, .runs_on = z->r->runs_on};
        mf_json_write_object(w, NULL, false);
        mf_json_write_string(w, "title", title);
        mf_json_write_string(w, "model", c->model);
        mf_json_write_i64(w, "cell", cell);
        mf_json_write_string(w, "plan_file", files.plan);
        mf_json_write_string(w, "trace_file", files.trace);
        mf_json_write_object(w, "search", true);
        mf_json_write_f64(w, "lower_bound_s", plan.provenance.lower_bound_s);
        mf_json_write_f64(w, "gap", plan.provenance.gap);
        mf_json_write_end(w);
        s = mf_folder_step(to, &files, j, &step, w, e);
        mf_json_write_end(w);
    }
    mf_plan_clear(&plan);
    return s;
}

/* Removes what the report before this one left, and lists the files of this one. */
static mf_status settle(mf_report_folder to, const mf_capacity_table *t, mf_json_writer *w,
                        mf_err *e) {
    size_t plans = 0, count = 0;
    while (mf_capacity_named(t, (int)plans) >= 0) {
        plans++;
    }
    char(*file)[256] = calloc(2 * plans + 1, sizeof *file);
    const char **name = calloc(2 * plans + 1, sizeof *name);
    if (file != NULL && name != NULL) {
        for (size_t n = 0; n < plans; n++) {
            for (size_t k = 0; k < 2; k++) {
                name_file(t, (int)n, mf_capacity_named(t, (int)n), k == 0 ? "plan" : "trace",
                          file[count], sizeof file[count] - 8);
                name[count] = file[count];
                count++;
            }
        }
        name[count++] = "candidates.csv";
        mf_folder_settle(to, name, count, w);
    }
    const bool done = count > 0;
    free(name);
    free(file);
    return done ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
}

mf_status mf_report_folder_capacity(mf_report_folder to, const mf_capacity *z,
                                    const mf_capacity_table *t, mf_err *e) {
    mf_json_writer w;
    if (to.dir == NULL) {
        return MF_OK;
    }
    to.cancel = NULL; /* what was found until an interrupt is kept; a second one ends the process */
    mf_status s = mf_folder_inputs(to, NULL, e);
    s = s == MF_OK ? write_sizes(to.dir, t, e) : s;
    if (s != MF_OK) {
        return s;
    }
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "title", "Which cluster, what it takes and what it costs");
    mf_folder_command(&w, to);
    mf_json_write_object(&w, "capacity", false);
    mf_capacity_write(&w, t);
    mf_json_write_end(&w);
    mf_json_write_array(&w, "plans", false);
    for (int n = 0, cell; s == MF_OK && (cell = mf_capacity_named(t, n)) >= 0; n++) {
        s = write_plan(to, z, t, n, cell, &w, e);
    }
    if (s != MF_OK) {
        mf_json_writer_clear(&w);
        return s;
    }
    mf_json_write_end(&w);
    s = settle(to, t, &w, e);
    if (s != MF_OK) {
        mf_json_writer_clear(&w);
        return s;
    }
    mf_json_write_end(&w);
    return mf_folder_page(to.dir, &w, e);
}
