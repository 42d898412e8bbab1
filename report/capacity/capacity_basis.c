/* capacity_basis.c - what the table of `moefold capacity` rests on: prices, the programs that run
 * the plans, routing, how near the plans are to the fastest, and what nobody measured. */
#include "report/capacity/capacity_text.h"

#include "report/basis/host_copies_text.h"
#include "report/step/report.h"
#include "report/text/show.h"

#include <math.h>
#include <string.h>

static bool is_given(const mf_capacity_price *p) {
    return strcmp(p->source, "--price") == 0;
}

const char *mf_capacity_price_date(const mf_capacity_price *p) {
    return !p->known            ? "-"
           : p->date[0] != '\0' ? p->date
           : is_given(p)        ? "given, no date"
                                : "undated";
}

/* What an hour costs, the unit beside the first; its date, or where it is from if `source`. */
static void say_price(const mf_capacity_price *p, const char *cluster, bool first, bool source,
                      char *out, size_t size) {
    if (source) {
        snprintf(out, size, "%s: %s", cluster, p->source[0] != '\0' ? p->source : "no source");
    } else if (!p->known) {
        snprintf(out, size, "none is known for %s: --price %s=USD", cluster, cluster);
    } else {
        snprintf(out, size, "%s %.2f%s (%s%s)", cluster, p->usd_gpu_h,
                 first ? " USD a GPU-hour" : "", is_given(p) && p->date[0] != '\0' ? "given, " : "",
                 mf_capacity_price_date(p));
    }
}

/* All of the clusters, each once. */
void mf_capacity_say_prices(const mf_capacity_table *t, bool source, char *out, size_t size) {
    size_t used = 0;
    bool known = false;
    out[0] = '\0';
    for (int i = 0; i < t->count && t->cell[i].row < t->clusters; i++) {
        const mf_capacity_price *p = &t->cell[i].price;
        if (!mf_capacity_begins_row(t, i) || (source && (!p->known || is_given(p)))) {
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

void mf_capacity_print_prices(FILE *out, const mf_capacity_table *t) {
    char text[1024];
    mf_capacity_say_prices(t, false, text, sizeof text);
    fputs("prices      ", out);
    mf_show_wrap(out, text, 12, 12, 99);
}

void mf_capacity_print_corrections(FILE *out, const mf_capacity_table *t) {
    const char *label = "corrected";
    for (int i = 0; i < t->count && t->cell[i].row < t->clusters; i++) {
        const mf_capacity_cell *c = &t->cell[i];
        if (c->correction.used && mf_capacity_begins_row(t, i)) {
            char said[320], text[400];
            mf_corrections_say(&c->correction, said, sizeof said);
            snprintf(text, sizeof text, "%s: %s", c->cluster, said);
            fprintf(out, "%-12s", label);
            mf_show_wrap(out, text, 12, 12, 99);
            label = "";
        }
    }
}

/* Which programs plans are limited to, if any. */
void mf_capacity_print_runs_on(FILE *out, const mf_capacity_table *t) {
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

/* Of the plans that Megatron cannot express: "memory (3 plans), schedule (1 plan)". */
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
            used +=
                (size_t)snprintf(out + used, size - used, "%s%s (%d plan%s)", used > 0 ? ", " : "",
                                 mf_report_inexpressible(why), same, same == 1 ? "" : "s");
        }
    }
}

/* What the plans would take under the newest release of Megatron. */
void mf_capacity_print_megatron(FILE *out, const mf_capacity_table *t) {
    int asked = 0, said = 0, used;
    bool corrected = false;
    double least = INFINITY, most = -INFINITY;
    const char *software = "";
    char text[480], lacks[240] = "";
    for (int i = 0; i < t->count; i++) {
        const mf_under_megatron *m = &t->cell[i].megatron;
        asked += m->software[0] != '\0';
        if (m->software[0] != '\0' && m->why[0] == '\0') {
            software = m->software;
            said++;
            corrected = corrected || m->factor > 0;
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
        used = snprintf(text, sizeof text, "%s%s would change the time of %d of %d plan%s by %+.0f",
                        software, corrected ? ", corrected," : "", said, asked,
                        asked == 1 ? "" : "s", least);
        used +=
            most > least ? snprintf(text + used, sizeof text - (size_t)used, " to %+.0f", most) : 0;
        snprintf(text + used, sizeof text - (size_t)used, " %%%s%s",
                 said < asked ? "; it cannot express " : "", lacks);
    }
    fputs("            ", out);
    mf_show_wrap(out, text, 12, 12, 99);
}

/* Of a --routing, which the figures stand at the 95th percentile of; 0: there is one routing. */
static int draws_of(const mf_capacity_table *t) {
    int draws = 0;
    for (int i = 0; i < t->count; i++) {
        draws = t->cell[i].routed.draws > draws ? t->cell[i].routed.draws : draws;
    }
    return draws;
}

void mf_capacity_say_draws(const mf_capacity_table *t, char *out, size_t size) {
    const int draws = draws_of(t);
    out[0] = '\0';
    if (draws > 0) {
        snprintf(out, size, " (%.40s, 95th percentile of %d draws)", t->routing, draws);
    }
}

/* What the plans are found for, where it is not even routing, and at which of its draws the figures
 * stand. */
void mf_capacity_print_routing(FILE *out, const mf_capacity_table *t) {
    char text[320], drawn[240] = "";
    const int draws = draws_of(t);
    if (t->routing == NULL || strcmp(t->routing, "balanced") == 0) {
        return;
    }
    if (draws > 0) {
        snprintf(drawn, sizeof drawn,
                 "; %s and verdicts at the 95th percentile of %d draws of the hot experts, step "
                 "time and MFU in the draw that plans are found for",
                 t->tokens != NULL ? "runs, money" : "P95 step, tokens/s, money", draws);
    }
    snprintf(text, sizeof text, "%.80s for every plan%s", t->routing, drawn);
    fputs("routing     ", out);
    mf_show_wrap(out, text, 12, 12, 99);
}

/* How near the plans are proven to be to the fastest; -1: nothing fits. Those that miss the gap
 * that was asked for are named in a line below, as far as the line holds them. */
bool mf_capacity_is_open(const mf_capacity_table *t, const mf_capacity_cell *c) {
    return c->feasible && c->gap > t->gap * (1 + 1e-9);
}

double mf_capacity_say_gap(const mf_capacity_table *t, char *out, size_t size) {
    double most = -1, met = -1;
    size_t used = 0;
    int missed = 0;
    char late[400] = "";
    for (int i = 0; i < t->count; i++) {
        const mf_capacity_cell *c = &t->cell[i];
        const bool met_it = c->feasible && !mf_capacity_is_open(t, c);
        most = fmax(most, c->feasible ? c->gap : -1);
        missed += c->feasible && !met_it;
        if (met_it) {
            met = fmax(met, c->gap);
        } else if (c->feasible && used < sizeof late - 150) {
            const bool several = t->models > 1;
            used += (size_t)snprintf(late + used, sizeof late - used,
                                     "%s%.40s%s%s x %.40s within %s", used > 0 ? ", " : "",
                                     several ? c->model : "", several ? " on " : "",
                                     mf_show_i64(c->gpus).s, c->cluster, mf_show_percent(c->gap).s);
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
                 "No plan is proven to be within %s of the fastest (--gap), searches ended before "
                 "that.\nProven so far: %s.",
                 mf_show_percent(t->gap).s, late);
    } else {
        snprintf(out, size,
                 "Plans are proven to be within %s of the fastest (--gap), but %d search%s ended "
                 "before that.\nProven so far: %s.",
                 mf_show_percent(met).s, missed, missed == 1 ? "" : "es", late);
    }
    return most;
}

void mf_capacity_say_ends(const mf_capacity_table *t, char *out, size_t size) {
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

void mf_capacity_say_carried(const mf_capacity_table *t, char *out, size_t size) {
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

/* What the tables rest on that nobody measured: copies to host memory. */
void mf_capacity_print_unmeasured(FILE *out, const mf_capacity_table *t) {
    char who[96] = "";
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
        putc('\n', out);
        snprintf(who, sizeof who, "%d plan%s, with up to %s of the step", plans,
                 plans == 1 ? " rests" : "s rest",
                 mf_show_percent(fmin(1, most.copies_s / most.step_s)).s);
    }
    mf_host_copies_print_note(out, &most, who);
}
