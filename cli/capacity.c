/* capacity.c - the table of `moefold capacity`, for people and as JSON. */
#include "cli/capacity.h"

#include "cli/output.h"
#include "cli/show.h"
#include "core/plan/plan.h"

#include <string.h>

static void print_cell(FILE *out, const mf_capacity_cell *c) {
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
    fprintf(out, "  TP %lld CP %lld PP %lld VPP %lld EP %lld ETP %lld %s%s\n", (long long)l->tp,
            (long long)l->cp, (long long)l->pp, (long long)l->vpp, (long long)l->ep,
            (long long)l->etp, mf_schedule_text(l->schedule), c->host.used ? ", host copies" : "");
}

static bool same_row(const mf_capacity_cell *a, const mf_capacity_cell *b) {
    return strcmp(a->model, b->model) == 0 && strcmp(a->cluster, b->cluster) == 0;
}

/* Smallest size of the same model and cluster that keeps the deadline; -1 = none. */
static int64_t smallest(const mf_capacity_cell *cells, int count, const mf_capacity_cell *like) {
    for (int i = 0; i < count; i++) { /* sizes ascend */
        if (same_row(&cells[i], like) && cells[i].keeps_deadline) {
            return cells[i].gpus;
        }
    }
    return -1;
}

void mf_capacity_print(FILE *out, const mf_capacity_table *t) {
    const mf_capacity_cell *cells = t->cell;
    int count = t->count;
    bool tokens = t->tokens != NULL;
    fputs("trained by  ", out);
    mf_show_wrap(out, t->program, 12, 12, 99);
    putc('\n', out);
    fprintf(out, "%-18s %-8s %6s  %10s %11s %7s %7s", "model", "cluster", "GPUs", "step time",
            "tokens", "MFU", "goodput");
    fprintf(out, "%s  layout\n", tokens ? "       time       USD    energy" : "");
    for (int i = 0; i < count; i++) {
        print_cell(out, &cells[i]);
    }
    for (int i = 0; i < count && t->deadline != NULL; i++) {
        if (i > 0 && same_row(&cells[i - 1], &cells[i])) {
            continue;
        }
        int64_t gpus = smallest(cells, count, &cells[i]);
        fprintf(out, "\n%s on %s in %s: ", cells[i].model, cells[i].cluster, t->deadline);
        fprintf(out, gpus > 0 ? "%s GPUs" : "none of the sizes%s",
                gpus > 0 ? mf_show_i64(gpus).s : "");
    }
    if (t->deadline != NULL) {
        putc('\n', out);
    }
    if (t->interrupted) {
        fputs("\nInterrupted: the rest is missing.\n", out);
    }
    char note[320];
    snprintf(note, sizeof note,
             "Every plan is proven to be within %s of the fastest (--gap). Goodput: share of the "
             "time that makes progress, with failures and checkpoints.%s",
             mf_show_percent(t->gap).s,
             tokens ? " Energy at data-sheet power of GPUs and their share of the host; money at "
                      "the cluster file's price."
                    : "");
    putc('\n', out);
    mf_show_wrap(out, note, 0, 0, 99);
}

static void json_cell(mf_json_writer *w, const mf_capacity_cell *c) {
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

mf_status mf_capacity_json(FILE *out, const mf_capacity_table *t, mf_err *e) {
    const mf_capacity_cell *cells = t->cell;
    int count = t->count;
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_array(&w, "cells", false);
    for (int i = 0; i < count; i++) {
        json_cell(&w, &cells[i]);
    }
    mf_json_write_end(&w);
    mf_json_write_bool(&w, "interrupted", t->interrupted);
    mf_json_write_string(&w, "program", t->program);
    if (t->deadline != NULL) {
        mf_json_write_f64(&w, "deadline_s", t->deadline_s);
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
