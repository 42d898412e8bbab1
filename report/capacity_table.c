/* capacity_table.c - the table of `moefold capacity` for people: its rows, between what they rest
 * on (capacity_basis.c) and what is decided (capacity_verdicts.c). */
#include "report/capacity_text.h"

#include "report/text/show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

static bool same_row(const mf_capacity_cell *a, const mf_capacity_cell *b) {
    return a->row == b->row;
}

bool mf_capacity_begins_row(const mf_capacity_table *t, int at) {
    return at == 0 || !same_row(&t->cell[at - 1], &t->cell[at]);
}

int64_t mf_capacity_smallest(const mf_capacity_table *t, int at) {
    for (int i = 0; i < t->count; i++) { /* sizes ascend */
        if (same_row(&t->cell[i], &t->cell[at]) && t->cell[i].keeps_deadline) {
            return t->cell[i].gpus;
        }
    }
    return -1;
}

static mf_offer offer_of(const mf_capacity_cell *c, int clusters) {
    mf_offer o = {.model = c->row / clusters,
                  .cluster = c->row % clusters,
                  .gpus = c->gpus,
                  .ends = c->feasible && isfinite(c->run_s),
                  .priced = c->price.known,
                  .survives = c->lost.fits && c->lost.in_time && c->lost.in_budget,
                  .gap = c->gap};
    if (o.ends) {
        o.time_s = c->run_s;
        o.low_s = c->run_s * (c->low_s / c->step_time_s);
        o.high_s = c->run_s * (c->high_s / c->step_time_s);
        o.cost_usd = c->cost_usd;
    }
    return o;
}

mf_offer *mf_capacity_decide(const mf_capacity_table *t) {
    mf_offer *offer = calloc((size_t)t->count + 1, sizeof *offer);
    const mf_decision_limits limits = {
        .deadline_s = t->deadline != NULL ? t->deadline_s : (double)INFINITY,
        .budget_usd = t->budget != NULL ? t->budget_usd : (double)INFINITY};
    for (int i = 0; offer != NULL && i < t->count; i++) {
        offer[i] = offer_of(&t->cell[i], t->clusters);
    }
    if (offer != NULL) {
        mf_decide(offer, t->count, &limits);
    }
    return offer;
}

mf_shown mf_capacity_show_days(double time_s) {
    mf_shown t;
    snprintf(t.s, sizeof t.s, isfinite(time_s) ? "%.1f d" : "never", time_s / 86400);
    return t;
}

mf_shown mf_capacity_show_usd(const mf_capacity_cell *c, bool run) {
    mf_shown t = mf_show_count(c->cost_usd);
    if (!c->price.known || !isfinite(c->cost_usd)) {
        snprintf(t.s, sizeof t.s, "-");
    } else if (!run) {
        snprintf(t.s, sizeof t.s, "%.4f", c->cost_usd * 1e6);
    }
    return t;
}

bool mf_capacity_has_lost(const mf_capacity_table *t) {
    return t->tokens != NULL && (t->deadline != NULL || t->budget != NULL);
}

int mf_capacity_verdicts(const mf_capacity_table *t) {
    return mf_capacity_has_lost(t) ? MF_VERDICT_COUNT : MF_VERDICT_SURVIVOR;
}

/* "41.2 d", or of a step "1.23 s", with a ! where it does not keep what was asked for; "none" where
 * nothing fits. */
static mf_shown strained(const mf_capacity_table *t, const mf_capacity_strain *x) {
    mf_shown text =
        t->tokens != NULL ? mf_capacity_show_days(x->run_s) : mf_show_time(x->step_time_s);
    if (!x->fits) {
        snprintf(text.s, sizeof text.s, mf_capacity_has_lost(t) ? "none!" : "none");
    } else if (!x->in_time || !x->in_budget) {
        size_t used = strlen(text.s);
        snprintf(text.s + used, sizeof text.s - used, "!");
    }
    return text;
}

/* Is there a column for it? Dense models have no router. */
static bool has_skew(const mf_capacity_table *t) {
    bool some = false;
    for (int i = 0; i < t->count; i++) {
        some |= t->cell[i].skewed.tried;
    }
    return some;
}

static void print_cell(FILE *out, const mf_capacity_table *t, int at) {
    const mf_capacity_cell *c = &t->cell[at];
    const mf_layout *l = &c->layout;
    char band[32];
    fprintf(out, "%c %-8s %6lld  ", t->offer[at].on_front ? '*' : ' ', c->cluster, LL(c->gpus));
    if (!c->feasible) {
        const bool again = at > 0 && strcmp(t->cell[at - 1].why, c->why) == 0;
        mf_show_wrap(out, again ? "the same" : c->why, 19, 19, 99);
        return;
    }
    snprintf(band, sizeof band, "-%.0f +%.0f %%", 100 * (1 - c->low_s / c->step_time_s),
             100 * (c->high_s / c->step_time_s - 1));
    fprintf(out, "%9s %10s ", mf_show_time(c->step_time_s).s, band);
    if (t->tokens != NULL) {
        fprintf(out, "%9s %7s %8s %9s", mf_capacity_show_days(c->run_s).s,
                mf_show_count(c->gpu_h).s, mf_capacity_show_usd(c, true).s,
                mf_show_rate(c->energy_J / 3600, "Wh").s);
    } else {
        fprintf(out, "%9s/s %9s", mf_show_count(c->tokens_per_s).s,
                mf_capacity_show_usd(c, false).s);
    }
    if (has_skew(t)) {
        fprintf(out, " %9s", c->skewed.tried ? strained(t, &c->skewed).s : "-");
    }
    if (mf_capacity_has_lost(t)) {
        fprintf(out, " %9s", c->lost.tried ? strained(t, &c->lost).s : "-");
    }
    fprintf(out, " %6s %6s  %-7s  %lld/%lld/%lld/%lld/%lld/%lld %s %s%s\n",
            mf_show_percent(c->mfu).s, mf_show_percent(c->goodput.share).s,
            mf_search_end_text(c->end), LL(l->tp), LL(l->cp), LL(l->pp), LL(l->vpp), LL(l->ep),
            LL(l->etp), mf_schedule_text(l->schedule), mf_precision_text(l->precision),
            c->host.used ? ", host copies" : "");
}

/* The header of the table of one model. */
static void print_head(FILE *out, const mf_capacity_table *t, const mf_capacity_cell *first) {
    fprintf(out, "\n%s\n  %-8s %6s  %9s %10s ", first->model, "cluster", "GPUs", "step time",
            "band");
    if (t->tokens != NULL) {
        fprintf(out, "%9s %7s %8s %9s", "time", "GPU-h", "USD", "energy");
    } else {
        fprintf(out, "%11s %9s", "tokens", "USD/Mtok");
    }
    if (has_skew(t)) {
        fprintf(out, " %9s", "skewed");
    }
    if (mf_capacity_has_lost(t)) {
        fprintf(out, " %9s", "node lost");
    }
    fprintf(out, " %6s %6s  %-7s  %s\n", "MFU", "good", "search", "TP/CP/PP/VPP/EP/ETP");
}

static void print_model(FILE *out, const mf_capacity_table *t, int model) {
    bool begun = false, fits = false;
    for (int i = 0; i < t->count; i++) {
        if (t->offer[i].model == model) {
            if (!begun) {
                print_head(out, t, &t->cell[i]);
            }
            begun = true;
            fits |= t->cell[i].feasible;
            print_cell(out, t, i);
        }
    }
    if (fits) {
        mf_capacity_print_verdicts(out, t, model);
    }
}

/* What the columns of strained runs say. */
static void say_strains(const mf_capacity_table *t, char *out, size_t size) {
    int draws = 0;
    size_t used = 0;
    for (int i = 0; i < t->count; i++) {
        draws = t->cell[i].skewed.tried ? t->cell[i].skewed.draws : draws;
    }
    out[0] = '\0';
    if (draws > 0) {
        used = (size_t)snprintf(out, size, " skewed: the %s under %.80s",
                                t->tokens != NULL ? "run" : "step", t->skew);
    }
    if (draws > 1) {
        used += (size_t)snprintf(out + used, size - used,
                                 ", the 95th percentile of %d draws of the hot experts", draws);
    }
    snprintf(out + used, size - used, "%s%s%s", draws > 0 ? "; none: it does not fit." : "",
             mf_capacity_has_lost(t) ? " node lost: the run on what is left without one" : "",
             !mf_capacity_has_lost(t) ? ""
             : draws > 0              ? "; !: misses a limit."
                                      : "; none: nothing fits; !: misses a limit.");
}

void mf_capacity_print(FILE *out, const mf_capacity_table *t) {
    char note[2560], proof[480], ends[320], sources[1024], strains[320];
    const double gap = mf_capacity_say_gap(t, proof, sizeof proof);
    fputs(t->priced_only ? "priced as   " : "trained by  ", out);
    mf_show_wrap(out, t->program, 12, 12, 99);
    mf_capacity_print_megatron(out, t);
    mf_capacity_print_runs_on(out, t);
    mf_capacity_print_routing(out, t);
    mf_capacity_print_prices(out, t);
    say_strains(t, strains, sizeof strains);
    mf_capacity_say_prices(t, true, sources, sizeof sources);
    mf_capacity_say_ends(t, ends, sizeof ends);
    snprintf(note, sizeof note,
             "%s *: no other is both as fast and as cheap. A tie: the gap and, between clusters, "
             "the band leave it open which is better. good: share of the time that makes progress, "
             "with failures and checkpoints. %s).%s%s%s%s%s",
             proof, ends, strains,
             t->tokens != NULL
                 ? " Energy: what the GPUs draw by the joules of a step's ops, and their "
                   "share of the host."
                 : "",
             sources[0] != '\0' ? " Prices: " : "", sources, sources[0] != '\0' ? "." : "");
    if (gap >= 0) { /* something fits */
        putc('\n', out);
        mf_show_wrap(out, note, 0, 0, 99);
        mf_capacity_print_unmeasured(out, t);
    }
    for (int m = 0; m < t->models; m++) {
        print_model(out, t, m);
    }
    if (t->models > 1 && gap >= 0) {
        mf_capacity_print_all_verdicts(out, t);
    }
    if (t->interrupted) {
        fputs("\nInterrupted: the rest is missing.\n", out);
    }
}
