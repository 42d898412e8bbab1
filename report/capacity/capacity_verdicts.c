/* capacity_verdicts.c - what `moefold capacity` decides, for people: the best offers of a model,
 * what ties with them, what becomes of them under strain, and those of all models side by side. */
#include "report/capacity/capacity_text.h"

#include "report/step/verdict_text.h"
#include "report/text/screen.h"
#include "report/text/show.h"

#include <math.h>
#include <string.h>

static void say_offer(const mf_capacity_table *t, int at, char *out, size_t size) {
    const mf_capacity_cell *c = &t->cell[at];
    size_t used = (size_t)snprintf(out, size, "%s x %.40s", mf_show_i64(c->gpus).s, c->cluster);
    if (t->tokens == NULL) {
        used += (size_t)snprintf(out + used, size - used, ", %s tokens/s",
                                 mf_show_count(c->tokens_per_s).s);
    } else {
        used += (size_t)snprintf(out + used, size - used, ", %s (%s to %s)",
                                 mf_capacity_show_days(c->run_s).s,
                                 mf_capacity_show_days(t->offer[at].low_s).s,
                                 mf_capacity_show_days(t->offer[at].high_s).s);
    }
    if (c->price.known) {
        snprintf(out + used, size - used, ", %s USD%s",
                 mf_capacity_show_usd(c, t->tokens != NULL).s,
                 t->tokens != NULL ? "" : " a million tokens");
    }
}

/* A search may have ended before its plan was proven to the gap that is asked for: then another
 * plan may be as much faster and cheaper, which who decides by the offer is to know. */
static void say_open(const mf_capacity_table *t, const mf_capacity_cell *c, char *out,
                     size_t size) {
    out[0] = '\0';
    if (mf_capacity_is_open(t, c)) {
        snprintf(out, size, "; its plan is %s within %s of the fastest",
                 c->gap > MF_WIDE_GAP ? "far from proven:" : "proven only to be",
                 mf_show_percent(c->gap).s);
    }
}

/* Verdicts stand beside their labels, below them where the screen is narrow. */
enum { VERDICT_COLUMN = 31, BELOW = 4, NARROW = 80, WIDTH = 99 };

static int verdict_column(void) {
    return mf_screen_columns(NARROW) < NARROW ? BELOW : VERDICT_COLUMN;
}

static void print_label(FILE *out, const char *label) {
    const int column = verdict_column();
    if (column == BELOW || strlen(label) > VERDICT_COLUMN - 3) {
        fprintf(out, "  %s\n%*s", label, column, "");
    } else {
        fprintf(out, "  %-28s ", label);
    }
}

static const char *kept(const mf_capacity_table *t, const mf_capacity_strain *x) {
    return mf_show_limits_kept(t->deadline != NULL, t->budget != NULL, x->in_time, x->in_budget);
}

/* What gets a plan over uneven routing under which it does not fit. */
static void say_remedy(const mf_capacity_table *t, const mf_capacity_cell *c, char *out,
                       size_t size) {
    const mf_capacity_strain *x = &c->remedied;
    char what[MF_STEP_TEXT + 64];
    if (!x->tried) {
        snprintf(out, size, "%s", t->interrupted ? "" : "; nothing that was tried fits");
        return;
    }
    if (c->remedy[0] == '\0') {
        snprintf(what, sizeof what, "the plan of %s GPUs does", mf_show_i64(x->gpus).s);
    } else {
        snprintf(what, sizeof what, "%s %s does", c->remedy_searched ? "one made with" : "with",
                 c->remedy);
    }
    const bool limited = mf_capacity_has_lost(t);
    snprintf(out, size, "; %s: %s%s%s%s", what,
             t->tokens != NULL ? mf_capacity_show_days(x->run_s).s : mf_show_time(x->step_time_s).s,
             limited ? ", " : "", limited ? kept(t, x) : "",
             c->remedy_short ? " (after a short search: plan may find a faster one)" : "");
}

/* Are the row's figures those of this routing anyway? */
static bool is_said(const mf_capacity_table *t, const mf_capacity_cell *c) {
    return c->routed.draws > 0 && c->skewed.fits && strcmp(t->skew, t->routing) == 0;
}

/* The offer under uneven routing, and without a node. */
static void print_strains(FILE *out, const mf_capacity_table *t, int at) {
    const mf_capacity_cell *c = &t->cell[at];
    char text[1024] = "", remedy[448] = "";
    size_t used = 0;
    if (c->skewed.tried && !is_said(t, c)) {
        const mf_capacity_strain *x = &c->skewed;
        const bool limited = x->fits && mf_capacity_has_lost(t);
        used = (size_t)snprintf(text, sizeof text,
                                "under %.40s (busiest expert rank: %.2f x its share): %s%s%s",
                                t->skew, x->load,
                                !x->fits            ? "does not fit"
                                : t->tokens != NULL ? mf_capacity_show_days(x->run_s).s
                                                    : mf_show_time(x->step_time_s).s,
                                limited ? ", " : "", limited ? kept(t, x) : "");
        if (!x->fits) {
            say_remedy(t, c, remedy, sizeof remedy);
            used += (size_t)snprintf(text + used, sizeof text - used, "%s", remedy);
        }
    }
    if (mf_capacity_has_lost(t) && c->lost.tried && used < sizeof text - 160) {
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%sa node less: ", used > 0 ? "; " : "");
        if (c->lost.fits) {
            snprintf(text + used, sizeof text - used, "goes on with %s GPUs, %s, %s",
                     mf_show_i64(c->lost.gpus).s, mf_capacity_show_days(c->lost.run_s).s,
                     kept(t, &c->lost));
        } else {
            snprintf(text + used, sizeof text - used, "no plan of the table remains");
        }
    }
    if (text[0] != '\0') {
        const int column = verdict_column();
        fprintf(out, "%*s", column, "");
        mf_show_wrap(out, text, column, column, WIDTH);
    }
}

/* Which limits a verdict keeps. */
static bool is_timed(const mf_capacity_table *t, mf_verdict v) {
    return t->deadline != NULL && v != MF_VERDICT_FASTEST;
}

static bool is_paid(const mf_capacity_table *t, mf_verdict v) {
    return t->budget != NULL && v != MF_VERDICT_CHEAPEST;
}

mf_capacity_label mf_capacity_verdict_label(const mf_capacity_table *t, mf_verdict v) {
    mf_capacity_label label;
    const bool both = v == MF_VERDICT_SURVIVOR;
    const bool timed = !both && is_timed(t, v), paid = !both && is_paid(t, v);
    snprintf(label.s, sizeof label.s, "%s%s%.20s%s%.20s%s", mf_capacity_verdict_word(v),
             !timed                             ? ""
             : strchr(t->deadline, '-') != NULL ? " by "
                                                : " in ",
             timed ? t->deadline : "", paid ? " for " : "", paid ? t->budget : "",
             paid ? " USD" : "");
    return label;
}

/* Why offers tie, and what decides then: "gap and bands leave up to 62 % open, the lower predicted
 * cost decides". */
static void say_tie(const mf_capacity_table *t, int best, mf_verdict v, char *out, size_t size) {
    double open = 0;
    int ties = 0;
    bool gap = false, band = false;
    for (int i = 0; i < t->count; i++) {
        const mf_tie x = mf_verdict_tie(&t->offer[best], &t->offer[i], v);
        if (x.ties) {
            ties++;
            open = fmax(open, x.open);
            band |= x.band;
            gap |= !x.band;
        }
    }
    snprintf(out, size, ": %s %s%.0f %% open, the %s decides",
             !band ? "the gap leaves"
             : gap ? "gap and, between clusters, band leave"
                   : "gap and band leave",
             ties > 1 ? "up to " : "", 100 * open,
             v == MF_VERDICT_FASTEST ? "shorter predicted run" : "lower predicted cost");
}

/* An offer that ties with the best one: "a tie with 64 x h100 (+2 %)". Of the smallest it is one of
 * as many GPUs, whose time is told apart: "32 x h100 is as small, and takes 153 % longer". */
static void say_tied(const mf_capacity_table *t, int at, double difference, mf_verdict v,
                     bool first, char *out, size_t size) {
    const mf_capacity_cell *c = &t->cell[at];
    const mf_shown gpus = mf_show_i64(c->gpus);
    char longer[32] = "as long";
    if (v != MF_VERDICT_SMALLEST) {
        snprintf(out, size, "%s%s x %.40s (+%.0f %%)", first ? "a tie with " : ", ", gpus.s,
                 c->cluster, 100 * difference);
        return;
    }
    if (difference >= 0.005) {
        snprintf(longer, sizeof longer, "%.0f %% longer", 100 * difference);
    }
    snprintf(out, size, "%s%s x %.40s%s takes %s", first ? "" : "; ", gpus.s, c->cluster,
             first ? " is as small, and" : "", longer);
}

/* The offers that tie with the best one, the nearest first, as many as two lines have space for. */
static void print_ties(FILE *out, const mf_capacity_table *t, int best, mf_verdict v) {
    enum { SPACE = 2 * (WIDTH - VERDICT_COLUMN) - 20 };
    const int column = verdict_column();
    char text[512] = "", why[160] = "", one[144];
    double above = -1;
    int from = -1, named = 0, left = 0;
    size_t used = 0;
    if (v != MF_VERDICT_SMALLEST) {
        say_tie(t, best, v, why, sizeof why);
    }
    for (;;) {
        int next = -1;
        mf_tie nearest = {.ties = false};
        for (int i = 0; i < t->count;
             i++) { /* the next in the order of difference, then of place */
            const mf_tie x = mf_verdict_tie(&t->offer[best], &t->offer[i], v);
            const bool later = x.difference > above || (x.difference >= above && i > from);
            if (x.ties && later && (next < 0 || x.difference < nearest.difference)) {
                next = i;
                nearest = x;
            }
        }
        if (next < 0) {
            break;
        }
        say_tied(t, next, nearest.difference, v, named == 0, one, sizeof one);
        if (named > 0 && (left > 0 || used + strlen(one) + strlen(why) > SPACE)) {
            left++;
        } else {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s", one);
            named++;
        }
        above = nearest.difference;
        from = next;
    }
    if (left > 0) {
        used += (size_t)snprintf(text + used, sizeof text - used, " and %d more", left);
    }
    if (named > 0) {
        snprintf(text + used, sizeof text - used, "%s", why);
        fprintf(out, "%*s", column, "");
        mf_show_wrap(out, text, column, column, WIDTH);
    }
}

/* A best offer, what is known of its limits, and the offers that tie with it. */
static void print_verdict(FILE *out, const mf_capacity_table *t, int model, mf_verdict v) {
    const bool timed = is_timed(t, v), paid = is_paid(t, v);
    int best = mf_verdict_best(t->offer, t->count, model, v);
    print_label(out, mf_capacity_verdict_label(t, v).s);
    if (best < 0) {
        fputs("none of these\n", out);
        return;
    }
    const mf_offer *o = &t->offer[best];
    const int column = verdict_column();
    const bool late = (timed && !o->surely_in_time) || (paid && !o->surely_in_budget);
    char offer[320], open[96], text[512];
    say_offer(t, best, offer, sizeof offer);
    say_open(t, &t->cell[best], open, sizeof open);
    snprintf(text, sizeof text, "%s%s%s", offer, late ? "; not at the upper end of its band" : "",
             open);
    mf_show_wrap(out, text, column, column, WIDTH);
    print_ties(out, t, best, v);
    print_strains(out, t, best);
}

static void print_smallest(FILE *out, const mf_capacity_table *t, int model) {
    char text[1024] = "";
    size_t used = 0;
    for (int i = 0; i < t->count && used < sizeof text - 160; i++) {
        if (t->offer[i].model == model && mf_capacity_begins_row(t, i)) {
            int64_t gpus = mf_capacity_smallest(t, i);
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s",
                                     used > 0 ? ", " : "", t->cell[i].cluster,
                                     gpus > 0 ? mf_show_i64(gpus).s : "none of the sizes");
        }
    }
    print_label(out, "smallest by cluster");
    mf_show_wrap(out, text, verdict_column(), verdict_column(), WIDTH);
}

void mf_capacity_print_verdicts(FILE *out, const mf_capacity_table *t, int model) {
    for (int v = 0; v < mf_capacity_verdicts(t); v++) {
        print_verdict(out, t, model, (mf_verdict)v);
    }
    if (t->deadline != NULL) {
        print_smallest(out, t, model);
    }
}

/* An offer by what its verdict looks at: "256 x b200", and the least money or the best rate. */
static void say_best(const mf_capacity_table *t, int at, mf_verdict v, char *out, size_t size) {
    const mf_capacity_cell *c = &t->cell[at];
    const size_t used =
        (size_t)snprintf(out, size, "%s x %.40s", mf_show_i64(c->gpus).s, c->cluster);
    if (v == MF_VERDICT_CHEAPEST) {
        snprintf(out + used, size - used, " %s", mf_capacity_show_usd(c, t->tokens != NULL).s);
    } else if (v == MF_VERDICT_FASTEST) {
        snprintf(out + used, size - used, " %s",
                 t->tokens != NULL ? mf_capacity_show_days(c->run_s).s
                                   : mf_show_count(c->tokens_per_s).s);
    }
}

enum { BEST = 96 };

/* The row of a model: its name and its best offers. */
static void say_row(const mf_capacity_table *t, int first, char (*text)[BEST]) {
    const int model = t->offer[first].model;
    snprintf(text[0], BEST, "%s", t->cell[first].model);
    for (int v = 0; v < MF_VERDICT_SURVIVOR; v++) {
        const int best = mf_verdict_best(t->offer, t->count, model, (mf_verdict)v);
        snprintf(text[v + 1], BEST, "none of these");
        if (best >= 0) {
            say_best(t, best, (mf_verdict)v, text[v + 1], BEST);
        }
    }
}

static bool begins_model(const mf_capacity_table *t, int at) {
    return at == 0 || t->offer[at].model != t->offer[at - 1].model;
}

/* The best offers of every model side by side. */
void mf_capacity_print_all_verdicts(FILE *out, const mf_capacity_table *t) {
    enum { COLUMNS = MF_VERDICT_SURVIVOR + 1 };
    const bool run = t->tokens != NULL;
    const char *head[COLUMNS] = {"", run ? "cheapest (USD)" : "cheapest (USD/Mtok)",
                                 run ? "fastest (run time)" : "fastest (tokens/s)", "smallest"};
    char text[COLUMNS][BEST];
    size_t width[COLUMNS];
    for (int k = 0; k < COLUMNS; k++) {
        width[k] = strlen(head[k]);
    }
    for (int i = 0; i < t->count; i++) {
        if (begins_model(t, i)) {
            say_row(t, i, text);
            for (int k = 0; k < COLUMNS; k++) {
                width[k] = strlen(text[k]) > width[k] ? strlen(text[k]) : width[k];
            }
        }
    }
    fputs("\nverdict on all models\n", out);
    for (int i = -1; i < t->count; i++) {
        if (i >= 0 && !begins_model(t, i)) {
            continue;
        }
        if (i >= 0) {
            say_row(t, i, text);
        }
        for (int k = 0; k < COLUMNS; k++) {
            fprintf(out, "  %-*s", k + 1 < COLUMNS ? (int)width[k] : 0, i >= 0 ? text[k] : head[k]);
        }
        putc('\n', out);
    }
}
