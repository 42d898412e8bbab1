/* capacity_table.c - the table of `moefold capacity` and its verdicts, for people. */
#include "report/capacity_table.h"

#include "report/host_copies_text.h"
#include "report/report.h"
#include "report/text/screen.h"
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

/* --- the table -------------------------------------------------------------------------------- */

static mf_shown days(double time_s) {
    mf_shown t;
    snprintf(t.s, sizeof t.s, isfinite(time_s) ? "%.1f d" : "never", time_s / 86400);
    return t;
}

/* Of a run, or of a million tokens: cents count there. */
static mf_shown usd(const mf_capacity_cell *c, bool run) {
    mf_shown t = mf_show_count(c->cost_usd);
    if (!c->price.known || !isfinite(c->cost_usd)) {
        snprintf(t.s, sizeof t.s, "-");
    } else if (!run) {
        snprintf(t.s, sizeof t.s, "%.4f", c->cost_usd * 1e6);
    }
    return t;
}

static bool has_lost(const mf_capacity_table *t) {
    return t->tokens != NULL && (t->deadline != NULL || t->budget != NULL);
}

/* "41.2 d", or of a step "1.23 s", with a ! where it does not keep what was asked for; "none" where
 * nothing fits. */
static mf_shown strained(const mf_capacity_table *t, const mf_capacity_strain *x) {
    mf_shown text = t->tokens != NULL ? days(x->run_s) : mf_show_time(x->step_time_s);
    if (!x->fits) {
        snprintf(text.s, sizeof text.s, has_lost(t) ? "none!" : "none");
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
        fprintf(out, "%9s %7s %8s %9s", days(c->run_s).s, mf_show_count(c->gpu_h).s, usd(c, true).s,
                mf_show_rate(c->energy_J / 3600, "Wh").s);
    } else {
        fprintf(out, "%9s/s %9s", mf_show_count(c->tokens_per_s).s, usd(c, false).s);
    }
    if (has_skew(t)) {
        fprintf(out, " %9s", c->skewed.tried ? strained(t, &c->skewed).s : "-");
    }
    if (has_lost(t)) {
        fprintf(out, " %9s", c->lost.tried ? strained(t, &c->lost).s : "-");
    }
    fprintf(out, " %6s %6s  %-7s  %lld/%lld/%lld/%lld/%lld/%lld %s %s%s\n",
            mf_show_percent(c->mfu).s, mf_show_percent(c->goodput.share).s,
            mf_search_end_text(c->end), LL(l->tp), LL(l->cp), LL(l->pp), LL(l->vpp), LL(l->ep),
            LL(l->etp), mf_schedule_text(l->schedule), mf_precision_text(l->precision),
            c->host.used ? ", host copies" : "");
}

/* What an hour costs, on the first line; its date, and where it is from if `source`. */
static void say_price(const mf_capacity_price *p, const char *cluster, bool first, bool source,
                      char *out, size_t size) {
    const bool dated = p->date[0] >= '0' && p->date[0] <= '9';
    if (source) {
        snprintf(out, size, "%s: %s", cluster, p->source[0] != '\0' ? p->source : "no source");
    } else if (!p->known) {
        snprintf(out, size, "none is known for %s: --price %s=USD", cluster, cluster);
    } else {
        const bool own = strcmp(p->source, "--price") == 0;
        snprintf(out, size, "%s %.2f%s (%s)", cluster, p->usd_gpu_h, first ? " USD a GPU-hour" : "",
                 own     ? "--price"
                 : dated ? p->date
                         : "undated");
    }
}

/* All of the clusters, each once. */
static void say_prices(const mf_capacity_table *t, bool source, char *out, size_t size) {
    size_t used = 0;
    bool known = false;
    out[0] = '\0';
    for (int i = 0; i < t->count && t->cell[i].row < t->clusters; i++) {
        const mf_capacity_price *p = &t->cell[i].price;
        const bool own = strcmp(p->source, "--price") == 0;
        if (!mf_capacity_begins_row(t, i) || (source && (!p->known || own))) {
            continue;
        }
        char text[320];
        say_price(p, t->cell[i].cluster, !known, source, text, sizeof text);
        known |= p->known;
        if (used < size) {
            used += (size_t)snprintf(out + used, size - used, "%s%s",
                                     used == 0 ? ""
                                     : source  ? "; "
                                               : ", ",
                                     text);
        }
    }
    if (!source && t->power_usd_kWh > 0 && used < size) {
        snprintf(out + used, size - used, "%s%g USD for a kWh", used > 0 ? ", " : "",
                 t->power_usd_kWh);
    }
}

static void print_prices(FILE *out, const mf_capacity_table *t) {
    char text[1024];
    say_prices(t, false, text, sizeof text);
    fputs("prices      ", out);
    mf_show_wrap(out, text, 12, 12, 99);
}

/* Which programs plans are limited to, if any. */
static void print_runs_on(FILE *out, const mf_capacity_table *t) {
    const char *before = NULL;
    for (int i = 0; i < t->count; i++) {
        const char *word = t->cell[i].runs_on;
        if (word != NULL && (before == NULL || strcmp(word, before) != 0)) {
            fprintf(out, "%-10s  %s: plans hold to what it can express (--runs-on)\n",
                    before == NULL ? "runs on" : "", word);
            before = word;
        }
    }
}

/* Of the plans that Megatron cannot express: "memory of 3, schedule of 1". */
static void say_inexpressible(const mf_capacity_table *t, char *out, size_t size) {
    size_t used = 0;
    for (int i = 0; i < t->count && used < size; i++) {
        const char *why = t->cell[i].megatron.why;
        int same = 0, before = 0;
        for (int k = 0; why[0] != '\0' && k < t->count; k++) {
            const bool is = strcmp(t->cell[k].megatron.why, why) == 0;
            same += is;
            before += is && k < i;
        }
        if (same > 0 && before == 0) {
            used += (size_t)snprintf(out + used, size - used, "%s%s of %d", used > 0 ? ", " : "",
                                     why, same);
        }
    }
}

/* What the plans would take under the newest release of Megatron. */
static void print_under_megatron(FILE *out, const mf_capacity_table *t) {
    int asked = 0, said = 0, used;
    double least = INFINITY, most = -INFINITY;
    const char *software = "";
    char text[480], lacks[240] = "";
    for (int i = 0; i < t->count; i++) {
        const mf_under_megatron *m = &t->cell[i].megatron;
        asked += m->software[0] != '\0';
        if (m->software[0] != '\0' && m->why[0] == '\0') {
            software = m->software;
            said++;
            least = fmin(least, 100 * m->more);
            most = fmax(most, 100 * m->more);
        }
    }
    if (asked == 0) {
        return;
    }
    say_inexpressible(t, lacks, sizeof lacks);
    if (said == 0) {
        snprintf(text, sizeof text, "Megatron cannot express these plans: %s", lacks);
    } else {
        used = snprintf(text, sizeof text, "%s would change the time of %d of %d plan%s by %+.0f",
                        software, said, asked, asked == 1 ? "" : "s", least);
        used +=
            most > least ? snprintf(text + used, sizeof text - (size_t)used, " to %+.0f", most) : 0;
        snprintf(text + used, sizeof text - (size_t)used, " %%%s%s",
                 said < asked ? "; it cannot express " : "", lacks);
    }
    fputs("            ", out);
    mf_show_wrap(out, text, 12, 12, 99);
}

/* --- verdicts --------------------------------------------------------------------------------- */

static void say_offer(const mf_capacity_table *t, int at, char *out, size_t size) {
    const mf_capacity_cell *c = &t->cell[at];
    size_t used = (size_t)snprintf(out, size, "%s x %.40s", mf_show_i64(c->gpus).s, c->cluster);
    if (t->tokens == NULL) {
        used += (size_t)snprintf(out + used, size - used, ", %s tokens/s",
                                 mf_show_count(c->tokens_per_s).s);
    } else {
        used += (size_t)snprintf(out + used, size - used, ", %s (%s to %s)", days(c->run_s).s,
                                 days(t->offer[at].low_s).s, days(t->offer[at].high_s).s);
    }
    if (c->price.known) {
        snprintf(out + used, size - used, ", %s USD%s", usd(c, t->tokens != NULL).s,
                 t->tokens != NULL ? "" : " a million tokens");
    }
}

/* Verdicts stand beside their labels, below them where the screen is narrow. */
enum { VERDICT_COLUMN = 31, BELOW = 4, NARROW = 80 };

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

/* "misses the deadline", "keeps both", ... */
static const char *kept(const mf_capacity_table *t, const mf_capacity_strain *x) {
    if (!x->in_time) {
        return x->in_budget ? "misses the deadline" : "misses deadline and budget";
    }
    return !x->in_budget         ? "misses the budget"
           : t->deadline == NULL ? t->budget == NULL ? "" : "keeps the budget"
           : t->budget == NULL   ? "keeps the deadline"
                                 : "keeps both";
}

/* The offer under uneven routing, and without a node. */
static void print_strains(FILE *out, const mf_capacity_table *t, int at) {
    const mf_capacity_cell *c = &t->cell[at];
    char text[400] = "";
    size_t used = 0;
    if (c->skewed.tried) {
        const mf_capacity_strain *x = &c->skewed;
        const bool limited = x->fits && has_lost(t);
        used = (size_t)snprintf(text, sizeof text,
                                "under %.40s (busiest expert rank: %.2f x its share): %s%s%s",
                                t->skew, x->load,
                                !x->fits            ? "does not fit"
                                : t->tokens != NULL ? days(x->run_s).s
                                                    : mf_show_time(x->step_time_s).s,
                                limited ? ", " : "", limited ? kept(t, x) : "");
    }
    if (has_lost(t) && c->lost.tried && used < sizeof text - 160) {
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%sa node less: ", used > 0 ? "; " : "");
        if (c->lost.fits) {
            snprintf(text + used, sizeof text - used, "goes on with %s GPUs, %s, %s",
                     mf_show_i64(c->lost.gpus).s, days(c->lost.run_s).s, kept(t, &c->lost));
        } else {
            snprintf(text + used, sizeof text - used, "no plan of the table remains");
        }
    }
    if (text[0] != '\0') {
        const int column = verdict_column();
        fprintf(out, "%*s", column, "");
        mf_show_wrap(out, text, column, column, 99);
    }
}

/* Which limits a verdict keeps. */
static bool is_timed(const mf_capacity_table *t, mf_verdict v) {
    return t->deadline != NULL && v != MF_VERDICT_FASTEST;
}

static bool is_paid(const mf_capacity_table *t, mf_verdict v) {
    return t->budget != NULL && v != MF_VERDICT_CHEAPEST;
}

/* "smallest in 60d for 10e6 USD" */
static void say_verdict(const mf_capacity_table *t, mf_verdict v, char *label, size_t size) {
    const char *const name[MF_VERDICT_COUNT] = {"cheapest", "fastest", "smallest"};
    const bool timed = is_timed(t, v), paid = is_paid(t, v);
    snprintf(label, size, "%s%s%.20s%s%.20s%s", name[v],
             !timed                             ? ""
             : strchr(t->deadline, '-') != NULL ? " by "
                                                : " in ",
             timed ? t->deadline : "", paid ? " for " : "", paid ? t->budget : "",
             paid ? " USD" : "");
}

/* A best offer, what is known of its limits, and the offers that tie with it. */
static void print_verdict(FILE *out, const mf_capacity_table *t, int model, mf_verdict v) {
    const bool timed = is_timed(t, v), paid = is_paid(t, v);
    int best = mf_verdict_best(t->offer, t->count, model, v);
    char label[96];
    say_verdict(t, v, label, sizeof label);
    print_label(out, label);
    if (best < 0) {
        fputs("none of these\n", out);
        return;
    }
    const mf_offer *o = &t->offer[best];
    const int column = verdict_column();
    const bool late = (timed && !o->surely_in_time) || (paid && !o->surely_in_budget);
    char offer[320], text[400];
    say_offer(t, best, offer, sizeof offer);
    snprintf(text, sizeof text, "%s%s", offer, late ? "; not at the upper end of its band" : "");
    mf_show_wrap(out, text, column, column, 99);
    char ties[1024] = "";
    size_t used = 0;
    for (int i = 0; i < t->count && used < sizeof ties - 96; i++) {
        if (mf_verdict_ties(o, &t->offer[i], v)) {
            used += (size_t)snprintf(ties + used, sizeof ties - used, "%s%s x %s",
                                     used > 0 ? ", " : "a tie with ",
                                     mf_show_i64(t->cell[i].gpus).s, t->cell[i].cluster);
        }
    }
    if (used > 0) {
        fprintf(out, "%*s", column, "");
        mf_show_wrap(out, ties, column, column, 99);
    }
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
    mf_show_wrap(out, text, verdict_column(), verdict_column(), 99);
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
    if (has_lost(t)) {
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
    if (!fits) {
        return;
    }
    fputs("  verdict\n", out);
    for (int v = 0; v < MF_VERDICT_COUNT; v++) {
        print_verdict(out, t, model, (mf_verdict)v);
    }
    if (t->deadline != NULL) {
        print_smallest(out, t, model);
    }
}

/* The best offers of every model side by side: days and USD of the run, or tokens/s and USD a
 * million. */
static void print_all_verdicts(FILE *out, const mf_capacity_table *t) {
    fprintf(out, "\nverdict on all models\n  %-16s  %-25s  %-25s  %s\n", "", "cheapest", "fastest",
            "smallest");
    for (int i = 0, model = -1; i < t->count; i++) {
        if (t->offer[i].model == model) {
            continue;
        }
        model = t->offer[i].model;
        fprintf(out, "  %-16s", t->cell[i].model);
        for (int v = 0; v < MF_VERDICT_COUNT; v++) {
            const int best = mf_verdict_best(t->offer, t->count, model, (mf_verdict)v);
            const mf_capacity_cell *c = best >= 0 ? &t->cell[best] : NULL;
            char text[192] = "none of these";
            if (c != NULL) {
                snprintf(text, sizeof text, "%s x %.32s %s %s", mf_show_i64(c->gpus).s, c->cluster,
                         t->tokens != NULL ? days(c->run_s).s : mf_show_count(c->tokens_per_s).s,
                         usd(c, t->tokens != NULL).s);
            }
            fprintf(out, "  %-*s", v + 1 < MF_VERDICT_COUNT ? 25 : 0, text);
        }
        putc('\n', out);
    }
}

/* Kinds of GPU whose energies are an H200's, each once. */
static void say_carried(const mf_capacity_table *t, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < t->count && used < size; i++) {
        const mf_capacity_cell *c = &t->cell[i];
        bool said = false;
        for (int k = 0; k < i; k++) {
            said |= t->cell[k].feasible && strcmp(t->cell[k].gpu, c->gpu) == 0;
        }
        if (c->feasible && !said && mf_report_carries_energy(&c->power, c->gpu)) {
            used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "", c->gpu);
        }
    }
}

/* What the tables rest on that nobody measured: joules, and copies to host memory. */
static void print_unmeasured(FILE *out, const mf_capacity_table *t) {
    char text[480], who[96] = "";
    say_carried(t, text, sizeof text);
    const bool begun = t->tokens != NULL && text[0] != '\0';
    if (begun) {
        fputs("\nenergy      ", out);
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, ": as an H200, its joules of ops scaled");
        mf_show_wrap(out, text, 12, 12, 99);
    }
    mf_host_copies most = {0}; /* of the plans that copy, the one whose copies take longest */
    int plans = 0;
    for (int i = 0; i < t->count; i++) {
        const mf_host_copies *h = &t->cell[i].host;
        if (t->cell[i].feasible && h->used && !mf_host_copies_measured(h)) {
            plans++;
            most = most.used && h->copies_s / h->step_s <= most.copies_s / most.step_s ? most : *h;
        }
    }
    if (plans > 0) {
        fputs(begun ? "" : "\n", out);
        snprintf(who, sizeof who, "%d plan%s, with up to %s of the step", plans,
                 plans == 1 ? " rests" : "s rest",
                 mf_show_percent(fmin(1, most.copies_s / most.step_s)).s);
    }
    mf_host_copies_print_note(out, &most, who);
}

/* What the plans are found for, where it is not even routing. */
static void print_routing(FILE *out, const mf_capacity_table *t) {
    char text[320];
    if (t->routing == NULL || strcmp(t->routing, "balanced") == 0) {
        return;
    }
    const bool drawn = strncmp(t->routing, "zipf:", 5) == 0;
    snprintf(text, sizeof text, "%.80s for every plan%s%.80s%s", t->routing,
             drawn ? ", one draw of the hot experts; --skew " : "", drawn ? t->routing : "",
             drawn ? " says the 95th percentile of many draws" : "");
    fputs("routing     ", out);
    mf_show_wrap(out, text, 12, 12, 99);
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
             has_lost(t) ? " node lost: the run on what is left without one" : "",
             !has_lost(t) ? ""
             : draws > 0  ? "; !: misses a limit."
                          : "; none: nothing fits; !: misses a limit.");
}

/* How near the plans are proven to be to the fastest; -1: nothing fits. Those that miss the gap
 * that was asked for are named, as far as there is room. */
static double say_gap(const mf_capacity_table *t, char *out, size_t size) {
    double most = -1, met = -1;
    size_t used = 0;
    char late[300] = "";
    for (int i = 0; i < t->count; i++) {
        const mf_capacity_cell *c = &t->cell[i];
        most = fmax(most, c->feasible ? c->gap : -1);
        if (c->feasible && c->gap <= t->gap * (1 + 1e-9)) {
            met = fmax(met, c->gap);
        } else if (c->feasible && used < sizeof late - 100) {
            used += (size_t)snprintf(late + used, sizeof late - used, "%s%s x %.40s within %s",
                                     used > 0 ? ", " : "", mf_show_i64(c->gpus).s, c->cluster,
                                     mf_show_percent(c->gap).s);
        } else if (c->feasible && used < sizeof late) {
            snprintf(late + used, sizeof late - used, ", ...");
            used = sizeof late;
        }
    }
    if (late[0] == '\0') {
        snprintf(out, size, "Every plan is proven to be within %s of the fastest (--gap).",
                 mf_show_percent(most).s);
    } else if (met < 0) {
        snprintf(out, size,
                 "No plan is proven to be within %s of the fastest (--gap), their searches ended "
                 "before: %s.",
                 mf_show_percent(t->gap).s, late);
    } else {
        snprintf(
            out, size,
            "Plans are proven to be within %s of the fastest (--gap), but for these, whose search "
            "ended before: %s.",
            mf_show_percent(met).s, late);
    }
    return most;
}

/* Why searches ended: the words that the table has, each with what it means. Something fits. */
static void say_ends(const mf_capacity_table *t, char *out, size_t size) {
    size_t used = (size_t)snprintf(out, size, "search: why it ended");
    const char *before = " (";
    for (mf_search_end end = 0; end < MF_SEARCH_ENDS; end++) {
        bool some = false;
        for (int i = 0; i < t->count; i++) {
            some |= t->cell[i].feasible && t->cell[i].end == end;
        }
        if (some && used < size) {
            used += (size_t)snprintf(out + used, size - used, "%s%s: %s", before,
                                     mf_search_end_text(end), mf_search_end_meaning(end));
            before = "; ";
        }
    }
}

void mf_capacity_print(FILE *out, const mf_capacity_table *t) {
    char note[2560], proof[480], ends[320], sources[1024], strains[320];
    const double gap = say_gap(t, proof, sizeof proof);
    fputs(t->priced_only ? "priced as   " : "trained by  ", out);
    mf_show_wrap(out, t->program, 12, 12, 99);
    print_under_megatron(out, t);
    print_runs_on(out, t);
    print_routing(out, t);
    print_prices(out, t);
    say_strains(t, strains, sizeof strains);
    say_prices(t, true, sources, sizeof sources);
    say_ends(t, ends, sizeof ends);
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
    }
    for (int m = 0; m < t->models; m++) {
        print_model(out, t, m);
    }
    if (t->models > 1 && gap >= 0) {
        print_all_verdicts(out, t);
    }
    print_unmeasured(out, t);
    if (t->interrupted) {
        fputs("\nInterrupted: the rest is missing.\n", out);
    }
}
