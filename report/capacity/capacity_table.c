/* capacity_table.c - the table of `moefold capacity` for people: its rows, between what they rest
 * on (capacity_basis.c) and what is decided (capacity_verdicts.c). */
#include "report/capacity/capacity_text.h"

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

static const struct {
    const char *word, *key;
} verdicts[MF_VERDICT_COUNT] = {
    [MF_VERDICT_CHEAPEST] = {"cheapest", "cheapest_in_time"},
    [MF_VERDICT_FASTEST] = {"fastest", "fastest_in_budget"},
    [MF_VERDICT_SMALLEST] = {"smallest", "smallest"},
    [MF_VERDICT_SURVIVOR] = {"cheapest, a node less", "cheapest_a_node_less"},
};

const char *mf_capacity_verdict_word(mf_verdict v) {
    return verdicts[v].word;
}

const char *mf_capacity_verdict_key(mf_verdict v) {
    return verdicts[v].key;
}

bool mf_capacity_names(const mf_capacity_table *t, int v, int cell) {
    return mf_verdict_best(t->offer, t->count, t->offer[cell].model, (mf_verdict)v) == cell;
}

bool mf_capacity_has_tie(const mf_capacity_table *t) {
    for (int m = 0; m < t->models; m++) {
        for (int v = 0; v < mf_capacity_verdicts(t); v++) {
            const int best = mf_verdict_best(t->offer, t->count, m, (mf_verdict)v);
            for (int i = 0; best >= 0 && v != MF_VERDICT_SMALLEST && i < t->count; i++) {
                if (mf_verdict_ties(&t->offer[best], &t->offer[i], (mf_verdict)v)) {
                    return true;
                }
            }
        }
    }
    return false;
}

int mf_capacity_named(const mf_capacity_table *t, int n) {
    for (int m = 0; m < t->models; m++) {
        for (int v = 0; v < mf_capacity_verdicts(t); v++) {
            const int best = mf_verdict_best(t->offer, t->count, m, (mf_verdict)v);
            bool known = best < 0;
            for (int before = 0; before < v && !known; before++) {
                known = mf_capacity_names(t, before, best);
            }
            if (!known && n-- == 0) {
                return best;
            }
        }
    }
    return -1;
}

mf_status mf_capacity_find_remedies(mf_capacity *z, mf_capacity_table *t, mf_err *e) {
    mf_status s = MF_OK;
    for (int n = 0, at; s == MF_OK && (at = mf_capacity_named(t, n)) >= 0; n++) {
        s = mf_capacity_find_remedy(z, &z->cell[at], e);
    }
    t->interrupted |= s == MF_INTERRUPTED;
    return s;
}

static bool fits(const mf_capacity_table *t, int model) {
    bool some = false;
    for (int i = 0; i < t->count; i++) {
        some |= t->offer[i].model == model && t->cell[i].feasible;
    }
    return some;
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
        used = (size_t)snprintf(out, size, "skewed: the %s under %.80s",
                                t->tokens != NULL ? "run" : "step", t->skew);
    }
    if (draws > 1) {
        used += (size_t)snprintf(out + used, size - used,
                                 ", the 95th percentile of %d draws of the hot experts", draws);
    }
    snprintf(out + used, size - used, "%s%s%s", draws > 0 ? "; none: it does not fit." : "",
             mf_capacity_has_lost(t) ? draws > 0 ? " node lost: the run on what is left without one"
                                                 : "node lost: the run on what is left without one"
                                     : "",
             !mf_capacity_has_lost(t) ? ""
             : draws > 0              ? "; !: misses a limit."
                                      : "; none: nothing fits; !: misses a limit.");
}

/* Of what the columns of money, energy and rate are. */
static void say_columns(const mf_capacity_table *t, char *out, size_t size) {
    char carried[320];
    mf_capacity_say_carried(t, carried, sizeof carried);
    if (t->tokens == NULL) {
        snprintf(out, size, "tokens/s: of all GPUs; USD/Mtok: US dollars for a million tokens.");
    } else {
        snprintf(out, size,
                 "Run time, GPU-h (GPU-hours), USD and energy are those of the whole run. Energy: "
                 "what all GPUs draw by the joules of a step's ops%s%s%s, and their share of the "
                 "hosts.",
                 carried[0] != '\0' ? " (" : "", carried,
                 carried[0] != '\0' ? ": scaled from an H200)" : "");
    }
}

/* One matter a line, what a reader needs first on top: on a small screen the last make way. */
static void print_notes(FILE *out, const mf_capacity_table *t, const char *proof) {
    char ends[320], sources[1024], strains[320], of[640], note[3584];
    say_strains(t, strains, sizeof strains);
    say_columns(t, of, sizeof of);
    mf_capacity_say_prices(t, true, sources, sizeof sources);
    mf_capacity_say_ends(t, ends, sizeof ends);
    snprintf(note, sizeof note,
             "%s\n*: no other row is both as fast and as cheap.\n%s%s%s"
             "Prices of one cluster err together: its sizes are told apart inside their bands.\n"
             "band: how far a measured step time may lie below and above the predicted one.\n%s\n"
             "goodput: share of the time that makes progress, with failures and checkpoints.\n"
             "%s).%s%s%s",
             proof, strains, strains[0] != '\0' ? "\n" : "",
             mf_capacity_has_tie(t)
                 ? "A tie: the gap leaves it open which is better, or, between clusters, gap and "
                   "band; then the better prediction is named.\n"
                 : "",
             of, ends, sources[0] != '\0' ? "\nPrices: " : "", sources,
             sources[0] != '\0' ? "." : "");
    putc('\n', out);
    mf_show_wrap(out, note, 0, 0, 99);
    mf_capacity_print_unmeasured(out, t);
}

void mf_capacity_print(FILE *out, const mf_capacity_table *t) {
    char proof[640], drawn[96];
    mf_capacity_say_draws(t, drawn, sizeof drawn);
    const bool some = mf_capacity_say_gap(t, proof, sizeof proof) >= 0; /* something fits */
    fputs(t->priced_only ? "priced as   " : "trained by  ", out);
    mf_show_wrap(out, t->program, 12, 12, 99);
    mf_capacity_print_megatron(out, t);
    mf_capacity_print_runs_on(out, t);
    mf_capacity_print_corrections(out, t);
    mf_capacity_print_routing(out, t);
    if (some) {
        print_notes(out, t, proof);
    }
    for (int m = 0; m < t->models; m++) {
        mf_capacity_print_rows(out, t, m);
        if (t->models > 1 && fits(t, m)) {
            fprintf(out, "  verdict%s\n", drawn);
            mf_capacity_print_verdicts(out, t, m);
        }
    }
    putc('\n', out);
    mf_capacity_print_shared(out, t);
    mf_capacity_print_prices(out, t);
    if (t->models > 1 && some) {
        mf_capacity_print_all_verdicts(out, t);
    } else if (some) {
        fprintf(out, "\nverdict on %s%s\n", t->cell[0].model, drawn);
        mf_capacity_print_verdicts(out, t, 0);
    }
    if (t->interrupted) {
        fputs("\nInterrupted: the rest is missing.\n", out);
    }
}
