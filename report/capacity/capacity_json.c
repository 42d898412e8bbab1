/* capacity_json.c - the table of `moefold capacity` as JSON. */
#include "job/figures/unmeasured.h"
#include "report/basis/accuracy.h"
#include "report/basis/doubts.h"
#include "report/basis/host_copies_text.h"
#include "report/capacity/capacity_table.h"
#include "report/step/report.h"

#include "core/plan/plan.h"

#include <math.h>

static void write_or_null(mf_json_writer *w, const char *key, double value, bool known) {
    mf_json_write_f64(w, key, known ? value : (double)NAN);
}

static void write_price(mf_json_writer *w, const mf_capacity_price *p) {
    write_or_null(w, "price_usd_gpu_h", p->usd_gpu_h, p->known);
    mf_json_write_string(w, "price_date", p->date[0] != '\0' ? p->date : NULL);
    mf_json_write_string(w, "price_source", p->source[0] != '\0' ? p->source : NULL);
}

static void write_run(mf_json_writer *w, const mf_capacity_cell *c, const mf_offer *o,
                      const mf_capacity_table *t) {
    mf_json_write_f64(w, "run_s", c->run_s);
    mf_json_write_f64(w, "run_low_s", o->low_s);
    mf_json_write_f64(w, "run_high_s", o->high_s);
    mf_json_write_f64(w, "gpu_h", c->gpu_h);
    mf_json_write_f64(w, "energy_J", c->energy_J);
    write_or_null(w, "cost_usd", c->cost_usd, c->price.known);
    if (t->deadline != NULL) {
        mf_json_write_bool(w, "in_time", o->in_time);
        mf_json_write_bool(w, "in_time_at_high", o->surely_in_time);
    }
    if (t->budget != NULL) {
        mf_json_write_bool(w, "in_budget", o->in_budget);
        mf_json_write_bool(w, "in_budget_at_high", o->surely_in_budget);
    }
}

/* Without GPUs that remain its figures are null. */
static void write_strained_run(mf_json_writer *w, const mf_capacity_cell *c,
                               const mf_capacity_strain *x, const mf_capacity_table *t) {
    mf_json_write_bool(w, "fits", x->fits);
    write_or_null(w, "gpus", (double)x->gpus, x->gpus > 0);
    write_or_null(w, "step_time_s", x->step_time_s, x->gpus > 0);
    if (x->load > 0) {
        mf_json_write_f64(w, "expert_load", x->load);
        mf_json_write_i64(w, "draws", x->draws);
    }
    if (t->tokens != NULL) {
        write_or_null(w, "run_s", x->run_s, x->gpus > 0);
        write_or_null(w, "cost_usd", x->cost_usd, x->gpus > 0 && c->price.known);
    }
    if (t->deadline != NULL) {
        mf_json_write_bool(w, "in_time", x->fits && x->in_time);
    }
    if (t->budget != NULL) {
        mf_json_write_bool(w, "in_budget", x->fits && x->in_budget);
    }
}

/* Only where it was tried. */
static void write_strain(mf_json_writer *w, const char *key, const mf_capacity_cell *c,
                         const mf_capacity_strain *x, const mf_capacity_table *t) {
    if (x->tried) {
        mf_json_write_object(w, key, false);
        write_strained_run(w, c, x, t);
        mf_json_write_end(w);
    }
}

/* What the prices rest on, as shares of the time of ops. */
static void write_bases(mf_json_writer *w, const double share[MF_BASIS_COUNT]) {
    mf_json_write_array(w, "prices_rest_on", true);
    for (int b = 0; b < MF_BASIS_COUNT; b++) {
        if (share[b] > 0) {
            mf_json_write_object(w, NULL, true);
            mf_json_write_string(w, "basis", mf_basis_text((mf_basis)b));
            mf_json_write_f64(w, "share", share[b]);
            mf_json_write_end(w);
        }
    }
    mf_json_write_end(w);
    mf_json_write_f64(w, "unmeasured_share", mf_unmeasured_of(share));
}

/* Runs that tell how good predictions of any of the cells are. */
static void write_accuracy(mf_json_writer *w, const mf_capacity_table *t) {
    mf_json_write_array(w, "accuracy", false);
    for (int k = 0; k < mf_accuracy_row_count; k++) {
        const mf_accuracy_row *row = &mf_accuracy_rows[k];
        bool tells = false;
        for (int i = 0; i < t->count; i++) {
            const mf_capacity_cell *c = &t->cell[i];
            tells |= c->feasible && mf_accuracy_tells_of(row, c->software, c->gpu, c->moe);
        }
        if (tells) {
            mf_accuracy_json_row(w, row);
        }
    }
    mf_json_write_end(w);
}

static void write_cell(mf_json_writer *w, const mf_capacity_table *t, int i) {
    const mf_capacity_cell *c = &t->cell[i];
    const mf_offer *o = &t->offer[i];
    mf_json_write_object(w, NULL, false);
    mf_json_write_string(w, "model", c->model);
    mf_json_write_string(w, "cluster", c->cluster);
    mf_json_write_i64(w, "gpus", c->gpus);
    mf_json_write_string(w, "software", c->software);
    mf_corrections_json(w, &c->correction);
    mf_json_write_string(w, "runs_on", c->runs_on);
    write_price(w, &c->price);
    mf_json_write_bool(w, "fits", c->feasible);
    if (!c->feasible) {
        mf_json_write_string(w, "missing", c->why);
        mf_json_write_end(w);
        return;
    }
    mf_json_write_string(w, "precision", mf_precision_text(c->layout.precision));
    mf_json_write_f64(w, "step_time_s", c->step_time_s);
    mf_json_write_f64(w, "step_time_low_s", c->low_s);
    mf_json_write_f64(w, "step_time_high_s", c->high_s);
    mf_json_write_f64(w, "tokens_per_s", c->tokens_per_s);
    mf_json_write_f64(w, "mfu", c->mfu);
    mf_json_write_f64(w, "gap", c->gap);
    mf_json_write_bool(w, "gap_as_asked", !mf_capacity_is_open(t, c));
    mf_json_write_string(w, "ended_by", mf_search_end_text(c->end));
    mf_json_write_string(w, "ended", c->ended);
    mf_json_write_f64(w, "peak_memory_B", c->peak_memory_B);
    mf_json_write_f64(w, "usable_B", c->usable_B);
    mf_json_write_f64(w, "power_W", c->gpu_W);
    if (c->power.known) {
        mf_report_energies_json(w, mf_report_carries_energy(&c->power, c->gpu), c->gpu);
    }
    mf_host_copies_json(w, &c->host);
    mf_json_write_f64(w, "goodput", c->goodput.share);
    mf_json_write_f64(w, "mtbf_s", c->goodput.mtbf_s);
    mf_json_write_f64(w, "checkpoint_interval_s", c->goodput.interval_s);
    mf_json_write_bool(w, "on_front", o->on_front);
    if (t->tokens != NULL) {
        write_run(w, c, o, t);
    } else {
        write_or_null(w, "usd_per_million_tokens", c->cost_usd * 1e6, c->price.known);
    }
    write_bases(w, c->basis_share);
    if (c->megatron.software[0] != '\0') {
        mf_report_under_megatron_json(w, &c->megatron);
    }
    if (c->routed.draws > 0) {
        mf_json_write_object(w, "routed", true);
        mf_json_write_i64(w, "draws", c->routed.draws);
        mf_json_write_f64(w, "step_time_s", c->routed.step_time_s);
        mf_json_write_f64(w, "expert_load", c->routed.load);
        mf_json_write_bool(w, "has_headroom", c->routed.fits);
        mf_json_write_end(w);
    }
    write_strain(w, "skewed", c, &c->skewed, t);
    if (c->remedied.tried) {
        mf_json_write_object(w, "skew_remedy", false);
        mf_json_write_string(w, "with", c->remedy[0] != '\0' ? c->remedy : NULL);
        mf_json_write_bool(w, "searched", c->remedy_searched);
        mf_json_write_bool(w, "short_search", c->remedy_short);
        write_strained_run(w, c, &c->remedied, t);
        mf_json_write_end(w);
    }
    write_strain(w, "node_lost", c, &c->lost, t);
    mf_plan_write_layout(w, "layout", &c->layout);
    mf_json_write_end(w);
}

static void write_smallest(mf_json_writer *w, const mf_capacity_table *t) {
    mf_json_write_f64(w, "deadline_s", t->deadline_s);
    mf_json_write_array(w, "smallest", false);
    for (int i = 0; i < t->count; i++) {
        if (!mf_capacity_begins_row(t, i)) {
            continue;
        }
        int64_t gpus = mf_capacity_smallest(t, i);
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "model", t->cell[i].model);
        mf_json_write_string(w, "cluster", t->cell[i].cluster);
        if (gpus > 0) {
            mf_json_write_i64(w, "gpus", gpus);
        } else {
            mf_json_write_null(w, "gpus");
        }
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}

/* Of each offer that ties with the best one: why, and what then decides. */
static void write_ties(mf_json_writer *w, const mf_capacity_table *t, int best, mf_verdict v) {
    mf_json_write_array(w, "ties", true);
    for (int i = 0; best >= 0 && i < t->count; i++) {
        if (mf_verdict_ties(&t->offer[best], &t->offer[i], v)) {
            mf_json_write_i64(w, NULL, i);
        }
    }
    mf_json_write_end(w);
    mf_json_write_array(w, "why_ties", true);
    for (int i = 0; best >= 0 && i < t->count; i++) {
        const mf_tie tie = mf_verdict_tie(&t->offer[best], &t->offer[i], v);
        if (tie.ties) {
            const bool gpus = v == MF_VERDICT_SMALLEST;
            mf_json_write_object(w, NULL, true);
            mf_json_write_i64(w, "cell", i);
            mf_json_write_f64(w, "difference", tie.difference);
            write_or_null(w, "left_open", tie.open, !gpus);
            mf_json_write_string(w, "by", gpus ? "gpus" : tie.band ? "gap and band" : "gap");
            mf_json_write_end(w);
        }
    }
    mf_json_write_end(w);
    mf_json_write_string(w, "decided_by",
                         v == MF_VERDICT_FASTEST || v == MF_VERDICT_SMALLEST ? "predicted time"
                                                                             : "predicted cost");
}

/* Of a model: the cells that a verdict names, as places in "cells". */
static void write_verdicts(mf_json_writer *w, const mf_capacity_table *t, int model) {
    for (int v = 0; v < mf_capacity_verdicts(t); v++) {
        int best = mf_verdict_best(t->offer, t->count, model, (mf_verdict)v);
        mf_json_write_object(w, mf_capacity_verdict_key((mf_verdict)v), true);
        mf_json_write_string(w, "label", mf_capacity_verdict_label(t, (mf_verdict)v).s);
        if (best >= 0) {
            mf_json_write_i64(w, "cell", best);
        } else {
            mf_json_write_null(w, "cell");
        }
        write_ties(w, t, best, (mf_verdict)v);
        mf_json_write_end(w);
    }
}

void mf_capacity_write(mf_json_writer *w, const mf_capacity_table *t) {
    mf_json_write_array(w, "cells", false);
    for (int i = 0; i < t->count; i++) {
        write_cell(w, t, i);
    }
    mf_json_write_end(w);
    write_accuracy(w, t);
    mf_json_write_bool(w, "interrupted", t->interrupted);
    mf_json_write_string(w, "program", t->program);
    write_or_null(w, "budget_usd", t->budget_usd, t->budget != NULL);
    mf_json_write_f64(w, "power_usd_per_kWh", t->power_usd_kWh);
    mf_json_write_string(w, "routing", t->routing != NULL ? t->routing : "balanced");
    mf_json_write_string(w, "skew", t->skew);
    if (t->deadline != NULL) {
        write_smallest(w, t);
    }
    mf_doubts_json(w, t->doubts);
    mf_json_write_array(w, "verdicts", false);
    for (int m = 0; m < t->models; m++) {
        for (int i = 0; i < t->count; i++) {
            if (t->offer[i].model == m) {
                mf_json_write_object(w, NULL, false);
                mf_json_write_string(w, "model", t->cell[i].model);
                write_verdicts(w, t, m);
                mf_json_write_end(w);
                break;
            }
        }
    }
    mf_json_write_end(w);
}
