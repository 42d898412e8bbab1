/* page_capacity.c - sizes of clusters: verdicts, the front of time and money, the table. */
#include "report/page/plot.h"

#include "report/text/show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CELL "/capacity/cells/%zu/"
enum { SHOWN_TIES = 3 };

static const char *text_at(const mf_page *p, size_t cell, const char *key) {
    return mf_page_string(mf_page_at(p, CELL "%s", cell, key));
}

static double number_at(const mf_page *p, size_t cell, const char *key) {
    return mf_page_number(mf_page_at(p, CELL "%s", cell, key));
}

static size_t cells_of(const mf_page *p) {
    const mf_json_value *cells = mf_page_at(p, "/capacity/cells");
    return cells != NULL ? mf_json_size(cells) : 0;
}

/* Colour of a cluster: its place among the clusters of the table. */
static int cluster_colour(const mf_page *p, size_t cell) {
    static const int colours[] = {0, 3, 5, 7, 9, 10};
    int place = 0;
    const char *before = "";
    for (size_t i = 0; i < cell; i++) {
        const char *name = text_at(p, i, "cluster");
        if (strcmp(name, text_at(p, cell, "cluster")) == 0) {
            break;
        }
        place += strcmp(name, before) != 0;
        before = name;
    }
    return colours[place % 6];
}

/* --- verdicts --------------------------------------------------------------------------------- */

static void write_offer(const mf_page *p, size_t cell) {
    fputs("<span class=\"keep\">", p->f);
    mf_page_figure(p, MF_UNIT_WHOLE, CELL "gpus", cell);
    fputs(" x ", p->f);
    mf_page_text(p, text_at(p, cell, "cluster"));
    fputs("</span>", p->f);
}

/* Whether a strained run misses a limit, "in_time" or "in_budget", that there is. */
static bool misses(const mf_page *p, size_t cell, const char *strain, const char *limit) {
    const mf_json_value *kept = mf_page_at(p, CELL "%s/%s", cell, strain, limit);
    return kept != NULL && !mf_page_true(kept);
}

/* ", misses the deadline": which of the limits a strained run keeps, as the text says it. */
static void write_kept(const mf_page *p, size_t cell, const char *strain) {
    const bool timed = mf_page_at(p, CELL "%s/in_time", cell, strain) != NULL;
    const bool paid = mf_page_at(p, CELL "%s/in_budget", cell, strain) != NULL;
    if (timed || paid) {
        fprintf(p->f, ", %s",
                mf_show_limits_kept(timed, paid, !misses(p, cell, strain, "in_time"),
                                    !misses(p, cell, strain, "in_budget")));
    }
}

/* Days of a strained run and the limits that it keeps, or without a run the step. */
static void write_strained_run(const mf_page *p, size_t cell, const char *strain) {
    if (mf_page_at(p, CELL "%s/run_s", cell, strain) != NULL) {
        mf_page_figure(p, MF_UNIT_DAYS, CELL "%s/run_s", cell, strain);
        write_kept(p, cell, strain);
    } else {
        mf_page_figure(p, MF_UNIT_TIME, CELL "%s/step_time_s", cell, strain);
        fputs(" a step", p->f);
    }
}

/* The plan under uneven routing; where it does not fit, what does. */
static void write_skewed(const mf_page *p, size_t cell) {
    if (mf_page_at(p, CELL "skewed", cell) == NULL) {
        return;
    }
    const char *skew = mf_page_string(mf_page_at(p, "/capacity/skew"));
    const bool fits = mf_page_true(mf_page_at(p, CELL "skewed/fits", cell));
    if (fits && mf_page_at(p, CELL "routed", cell) != NULL &&
        strcmp(skew, mf_page_string(mf_page_at(p, "/capacity/routing"))) == 0) {
        return; /* the offer's figures are those of this routing */
    }
    fputs("<br>under ", p->f);
    mf_page_text(p, skew);
    fputs(": ", p->f);
    if (fits) {
        write_strained_run(p, cell, "skewed");
        return;
    }
    fputs("does not fit", p->f);
    if (mf_page_at(p, CELL "skew_remedy", cell) == NULL) {
        return;
    }
    const mf_json_value *with = mf_page_at(p, CELL "skew_remedy/with", cell);
    if (with != NULL) {
        const bool searched = mf_page_true(mf_page_at(p, CELL "skew_remedy/searched", cell));
        fputs(searched ? "; one made with " : "; with ", p->f);
        mf_page_text(p, mf_page_string(with));
    } else {
        fputs("; the plan of ", p->f);
        mf_page_figure(p, MF_UNIT_WHOLE, CELL "skew_remedy/gpus", cell);
        fputs(" GPUs", p->f);
    }
    fputs(" does: ", p->f);
    write_strained_run(p, cell, "skew_remedy");
    if (mf_page_true(mf_page_at(p, CELL "skew_remedy/short_search", cell))) {
        fputs(" (after a short search: plan may find a faster one)", p->f);
    }
}

/* What becomes of the run when a node is gone. */
static void write_node_lost(const mf_page *p, size_t cell) {
    if (mf_page_at(p, CELL "node_lost", cell) == NULL) {
        return;
    }
    fputs("<br>a node less: ", p->f);
    if (!mf_page_true(mf_page_at(p, CELL "node_lost/fits", cell))) {
        fputs("no plan of the table remains", p->f);
        return;
    }
    fputs("goes on with ", p->f);
    mf_page_figure(p, MF_UNIT_WHOLE, CELL "node_lost/gpus", cell);
    fputs(" GPUs, ", p->f);
    mf_page_figure(p, MF_UNIT_DAYS, CELL "node_lost/run_s", cell);
    write_kept(p, cell, "node_lost");
}

/* Where the k-th nearest tie stands in a list of them. */
static size_t nearest_tie(const mf_json_value *why, size_t k) {
    const size_t count = why != NULL ? mf_json_size(why) : 0;
    for (size_t i = 0; i < count; i++) {
        const double own = mf_page_number(mf_json_find(mf_json_at(why, i), "difference"));
        size_t before = 0;
        for (size_t j = 0; j < count; j++) {
            const double other = mf_page_number(mf_json_find(mf_json_at(why, j), "difference"));
            before += other < own || (other <= own && j < i);
        }
        if (before == k) {
            return i;
        }
    }
    return k;
}

/* The offers that tie with a verdict's best one, nearest first. Of the smallest they have as many
 * GPUs: their time is told apart. */
static void write_ties(const mf_page *p, size_t model, const char *key) {
    const mf_json_value *ties = mf_page_at(p, "/capacity/verdicts/%zu/%s/ties", model, key);
    const mf_json_value *why = mf_page_at(p, "/capacity/verdicts/%zu/%s/why_ties", model, key);
    const bool small = strcmp(key, "smallest") == 0;
    for (size_t k = 0; ties != NULL && k < mf_json_size(ties); k++) {
        const size_t i = nearest_tie(why, k);
        char at[96];
        if (k == SHOWN_TIES) {
            fputs(" and others (report.json has them)", p->f);
            break;
        }
        snprintf(at, sizeof at, "/capacity/verdicts/%zu/%.32s/why_ties/%zu/difference", model, key,
                 i);
        fputs(k > 0 ? small ? "; " : ", " : small ? "<br>" : "<br>a tie with ", p->f);
        write_offer(p, (size_t)mf_page_number(mf_json_at(ties, i)));
        if (!small) {
            fputs(" (+", p->f);
            mf_page_figure(p, MF_UNIT_SHARE, "%s", at);
            putc(')', p->f);
            continue;
        }
        fputs(k == 0 ? " is as small, and takes " : " takes ", p->f);
        if (mf_page_number(mf_page_at(p, "%s", at)) < 0.005) {
            fputs("as long", p->f);
        } else {
            mf_page_figure(p, MF_UNIT_SHARE, "%s", at);
            fputs(" longer", p->f);
        }
    }
}

static void write_verdict(const mf_page *p, size_t model, const char *key) {
    const mf_json_value *best = mf_page_at(p, "/capacity/verdicts/%zu/%s/cell", model, key);
    fputs("<div class=\"tile\"><span>", p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/capacity/verdicts/%zu/%s/label", model, key)));
    fputs("</span><b>", p->f);
    if (best == NULL) {
        fputs("none</b><span>of these sizes</span></div>\n", p->f);
        return;
    }
    const size_t cell = (size_t)mf_page_number(best);
    write_offer(p, cell);
    fputs("</b><span>", p->f);
    if (mf_page_at(p, CELL "run_s", cell) != NULL) {
        mf_page_figure(p, MF_UNIT_DAYS, CELL "run_s", cell);
        fputs(" (", p->f);
        mf_page_figure(p, MF_UNIT_DAYS, CELL "run_low_s", cell);
        fputs(" to ", p->f);
        mf_page_figure(p, MF_UNIT_DAYS, CELL "run_high_s", cell);
        fputs("), ", p->f);
        mf_page_figure(p, MF_UNIT_COUNT, CELL "cost_usd", cell);
        fputs(" USD", p->f);
    } else {
        mf_page_figure(p, MF_UNIT_COUNT, CELL "tokens_per_s", cell);
        fputs(" tokens/s, ", p->f);
        mf_page_figure(p, MF_UNIT_CENTS, CELL "usd_per_million_tokens", cell);
        fputs(" USD a million tokens", p->f);
    }
    if (!mf_page_true(mf_page_at(p, CELL "gap_as_asked", cell))) {
        fputs("<br>its plan is proven only to be within ", p->f);
        mf_page_figure(p, MF_UNIT_SHARE, CELL "gap", cell);
        fputs(" of the fastest", p->f);
    }
    write_ties(p, model, key);
    write_skewed(p, cell);
    write_node_lost(p, cell);
    fputs("</span></div>\n", p->f);
}

/* What the columns of uneven routing and of a lost node say. */
static void write_strains_note(const mf_page *p) {
    bool skewed = false, lost = false;
    double draws = 0, routed = 0;
    for (size_t i = 0; i < cells_of(p); i++) {
        routed = fmax(routed, number_at(p, i, "routed/draws"));
        skewed |= mf_page_at(p, CELL "skewed", i) != NULL;
        lost |= mf_page_at(p, CELL "node_lost", i) != NULL;
        draws = fmax(draws, number_at(p, i, "skewed/draws"));
    }
    if (routed > 0) {
        fputs(" P95 step: under ", p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/capacity/routing")));
        fprintf(p->f,
                ", the 95th percentile of %.0f draws of the hot experts, at which runs, money and "
                "verdicts stand; step time, band and MFU are those of the draw that plans are "
                "found for.",
                routed);
    }
    if (skewed) {
        fputs(" Skewed: the plan under ", p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/capacity/skew")));
        if (draws > 1) {
            fprintf(p->f, ", the 95th percentile of %.0f draws of the hot experts", draws);
        }
        fputs("; load: rows of the busiest expert rank over its share.", p->f);
    }
    if (lost) {
        fputs(" Node lost: what is left goes on, with fewer data-parallel ranks.", p->f);
    }
    if (skewed || lost) {
        fprintf(p->f, " None: nothing fits%s.", lost ? "; !: misses a limit" : "");
    }
}

/* Does the cell begin the cells of a cluster, which stand together? */
static bool begins_cluster(const mf_page *p, size_t cell) {
    return cell == 0 || strcmp(text_at(p, cell - 1, "cluster"), text_at(p, cell, "cluster")) != 0 ||
           strcmp(text_at(p, cell - 1, "model"), text_at(p, cell, "model")) != 0;
}

/* Clusters of a model without a price, and how to give one. */
static void write_unpriced(const mf_page *p, const char *model) {
    for (size_t i = 0; i < cells_of(p); i++) {
        if (strcmp(text_at(p, i, "model"), model) == 0 && begins_cluster(p, i) &&
            mf_page_at(p, CELL "price_usd_gpu_h", i) == NULL) {
            fputs(" Price: none is known for ", p->f);
            mf_page_text(p, text_at(p, i, "cluster"));
            fputs(": <span class=\"keep\">--price ", p->f);
            mf_page_text(p, text_at(p, i, "cluster"));
            fputs("=USD</span>.", p->f);
        }
    }
}

/* Is a tie named on a card of the model? Of the smallest none is called so. */
static bool has_tie(const mf_page *p, size_t model) {
    static const char *const keys[] = {"cheapest_in_time", "fastest_in_budget",
                                       "cheapest_a_node_less"};
    bool some = false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        some |= mf_page_at(p, "/capacity/verdicts/%zu/%s/ties/0", model, keys[i]) != NULL;
    }
    return some;
}

static void write_limits(const mf_page *p, size_t m, const char *model) {
    fputs("<p class=\"note\">", p->f);
    if (has_tie(p, m)) {
        fputs("A tie: the gap of the search and, between clusters, the band of the prices leave "
              "more open than the difference (in brackets). The better prediction decides then.",
              p->f);
    }
    if (mf_page_at(p, "/capacity/deadline_s") != NULL) {
        fputs(" Deadline: ", p->f);
        mf_page_figure(p, MF_UNIT_DAYS, "/capacity/deadline_s");
        putc('.', p->f);
    }
    if (mf_page_at(p, "/capacity/budget_usd") != NULL) {
        fputs(" Budget: ", p->f);
        mf_page_figure(p, MF_UNIT_COUNT, "/capacity/budget_usd");
        fputs(" USD.", p->f);
    }
    write_strains_note(p);
    write_unpriced(p, model);
    fputs("</p>\n", p->f);
}

/* --- the front -------------------------------------------------------------------------------- */

static bool plotted(const mf_page *p, size_t cell, const char *model) {
    return strcmp(text_at(p, cell, "model"), model) == 0 && number_at(p, cell, "run_s") > 0 &&
           number_at(p, cell, "cost_usd") > 0;
}

/* A point of the plot, with its size as a tag on the front. */
static void set_point(const mf_page *p, size_t cell, mf_plot_point *out) {
    const double run_s = number_at(p, cell, "run_s"), usd = number_at(p, cell, "cost_usd");
    const double low_s = number_at(p, cell, "run_low_s");
    const double high_s = number_at(p, cell, "run_high_s");
    char days[32], money[32];
    mf_page_show(MF_UNIT_DAYS, run_s, days);
    mf_page_show(MF_UNIT_COUNT, usd, money);
    *out = (mf_plot_point){.x = {run_s, low_s, high_s},
                           .y = {usd, usd * low_s / run_s, usd * high_s / run_s},
                           .colour = cluster_colour(p, cell),
                           .front = mf_page_true(mf_page_at(p, CELL "on_front", cell)),
                           .tag_unit = MF_UNIT_WHOLE};
    out->tagged = out->front;
    snprintf(out->tag, sizeof out->tag, CELL "gpus", cell);
    snprintf(out->title, sizeof out->title, "%.0f x %.100s: %s, %s USD", number_at(p, cell, "gpus"),
             text_at(p, cell, "cluster"), days, money);
}

/* Why none of a cluster's cells, which begin at `first`, is a point; NULL: one is. */
static const char *why_no_point(const mf_page *p, size_t first) {
    const char *model = text_at(p, first, "model");
    bool fits = false;
    for (size_t i = first; i < cells_of(p) && (i == first || !begins_cluster(p, i)); i++) {
        if (plotted(p, i, model)) {
            return NULL;
        }
        fits |= mf_page_true(mf_page_at(p, CELL "fits", i));
    }
    return !fits                                                  ? "nothing fits"
           : mf_page_at(p, CELL "price_usd_gpu_h", first) == NULL ? "no point: no price is known"
                                                                  : "no point: the run never ends";
}

static void write_clusters(const mf_page *p, const char *model) {
    fputs("<ul class=\"legend\">", p->f);
    for (size_t i = 0; i < cells_of(p); i++) {
        if (strcmp(text_at(p, i, "model"), model) == 0 && begins_cluster(p, i)) {
            const char *why = why_no_point(p, i);
            fprintf(p->f, "<li><i style=\"background:var(--c%d)\"></i>", cluster_colour(p, i));
            mf_page_text(p, text_at(p, i, "cluster"));
            if (why != NULL) {
                fprintf(p->f, " (%s)", why);
            }
            fputs("</li>", p->f);
        }
    }
    fputs("</ul>\n", p->f);
}

static void write_front(const mf_page *p, const char *model) {
    mf_plot_point *point = calloc(cells_of(p) + 1, sizeof *point);
    mf_plot plot = {.point = point, .x = {.days = true}, .logarithmic = true};
    for (size_t i = 0; point != NULL && i < cells_of(p); i++) {
        if (plotted(p, i, model)) {
            set_point(p, i, &point[plot.count++]);
        }
    }
    if (plot.count >= 2) {
        fputs("<h2>Time and money</h2>\n", p->f);
        mf_plot_write(p, &plot);
        write_clusters(p, model);
        fputs("<p class=\"note\">Days of the run against USD, both on logarithmic scales. Ringed, "
              "with their GPUs: no other is both as fast and as cheap. Crosses: the bands of the "
              "step times.</p>\n",
              p->f);
    }
    free(point);
}

/* --- the table -------------------------------------------------------------------------------- */

/* A cell of the table: its first member that any row has is the cell's figure, the others stand
 * below it in small print, between their words. */
enum { LINES = 3 };
static const struct column {
    const char *head;
    mf_page_unit unit; /* of all lines, but for `load` and `gpus` */
    struct line {
        const char *key, *before, *behind;
    } line[LINES];
} columns[] = {
    {"step time, band",
     MF_UNIT_TIME,
     {{"step_time_s", "", ""}, {"step_time_low_s", "", " to"}, {"step_time_high_s", "", ""}}},
    {"P95 step",
     MF_UNIT_TIME,
     {{"routed/step_time_s", "", ""}, {"routed/expert_load", "load ", ""}}},
    {"tokens/s", MF_UNIT_COUNT, {{"tokens_per_s", "", ""}}},
    {"run", MF_UNIT_DAYS, {{"run_s", "", ""}}},
    {"skewed",
     MF_UNIT_TIME,
     {{"skewed/run_s", "", ""},
      {"skewed/step_time_s", "", " a step,"},
      {"skewed/expert_load", "load ", ""}}},
    {"node lost",
     MF_UNIT_TIME,
     {{"node_lost/run_s", "", ""},
      {"node_lost/step_time_s", "", " a step,"},
      {"node_lost/gpus", "", " GPUs"}}},
    {"GPU-hours", MF_UNIT_COUNT, {{"gpu_h", "", ""}}},
    {"USD", MF_UNIT_COUNT, {{"cost_usd", "", ""}}},
    {"USD/Mtok", MF_UNIT_CENTS, {{"usd_per_million_tokens", "", ""}}},
    {"energy", MF_UNIT_WH, {{"energy_J", "", ""}}},
    {"MFU", MF_UNIT_SHARE, {{"mfu", "", ""}}},
    {"goodput", MF_UNIT_SHARE, {{"goodput", "", ""}}},
    {"gap", MF_UNIT_SHARE, {{"gap", "", ""}}},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static bool has_member(const mf_page *p, const char *key) {
    for (size_t i = 0; key != NULL && i < cells_of(p); i++) {
        if (mf_page_at(p, CELL "%s", i, key) != NULL) {
            return true;
        }
    }
    return false;
}

/* Some stand there with --tokens alone, some without: the run says what the rate would. */
static bool has_column(const mf_page *p, const struct column *c) {
    bool some = false;
    for (int k = 0; k < LINES; k++) {
        some |= has_member(p, c->line[k].key);
    }
    return some && !(strcmp(c->line[0].key, "tokens_per_s") == 0 && has_member(p, "run_s"));
}

static size_t columns_of(const mf_page *p) {
    size_t count = 0;
    for (size_t k = 0; k < COLUMNS; k++) {
        count += has_column(p, &columns[k]);
    }
    return count;
}

static mf_page_unit unit_of(const struct column *c, const char *key) {
    const char *slash = strchr(key, '/');
    return slash == NULL                        ? c->unit
           : strcmp(slash, "/run_s") == 0       ? MF_UNIT_DAYS
           : strcmp(slash, "/expert_load") == 0 ? MF_UNIT_CENTS
           : strcmp(slash, "/gpus") == 0        ? MF_UNIT_WHOLE
                                                : c->unit;
}

/* What a strained plan is called, "skewed", in a member of it; "" in others. */
static void strain_of(const char *key, char out[16]) {
    const char *slash = strchr(key, '/');
    snprintf(out, 16, "%.*s", slash != NULL ? (int)(slash - key) : 0, key);
}

/* Of a strained plan that does not fit there is no time; its load says why. A run that misses a
 * limit has a mark. */
static void write_value(const mf_page *p, size_t i, const struct column *c, const char *key) {
    char strain[16];
    strain_of(key, strain);
    if (strain[0] != '\0' && mf_page_at(p, CELL "%s/fits", i, strain) != NULL &&
        !mf_page_true(mf_page_at(p, CELL "%s/fits", i, strain))) {
        fputs("none", p->f);
    } else {
        mf_page_figure(p, unit_of(c, key), CELL "%s", i, key);
    }
    if (strain[0] != '\0') {
        fputs(misses(p, i, strain, "in_time") || misses(p, i, strain, "in_budget") ? "!" : "",
              p->f);
    }
}

/* Whether a line says something of this row: of a strained plan that does not fit, only its load.
 */
static bool has_line(const mf_page *p, size_t i, const char *key) {
    char strain[16];
    if (key == NULL || mf_page_at(p, CELL "%s", i, key) == NULL) {
        return false;
    }
    strain_of(key, strain);
    return strain[0] == '\0' || strstr(key, "/expert_load") != NULL ||
           mf_page_true(mf_page_at(p, CELL "%s/fits", i, strain));
}

/* The lines below a cell's figure. */
static void write_below(const mf_page *p, size_t i, const struct column *c, int from) {
    bool some = false;
    for (int k = from; k < LINES; k++) {
        const struct line *l = &c->line[k];
        if (has_line(p, i, l->key)) {
            fprintf(p->f, "%s%s", some ? " <span>" : "<small><span>", l->before);
            mf_page_figure(p, unit_of(c, l->key), CELL "%s", i, l->key);
            fprintf(p->f, "%s</span>", l->behind);
            some = true;
        }
    }
    fputs(some ? "</small>" : "", p->f);
}

static void write_cell(const mf_page *p, size_t i, const struct column *c) {
    int first = 0;
    while (!has_member(p, c->line[first].key)) {
        first++;
    }
    mf_page_cell(p, c->head, c->line[1].key != NULL ? "w" : "");
    write_value(p, i, c, c->line[first].key);
    write_below(p, i, c, first + 1);
    fputs("</td>", p->f);
}

static const char price_head[] = "USD/GPU&#8209;h", rests_head[] = "rests on";

/* What the figures rest on: the price and its date; software, precision, whose energies. */
static void write_rests(const mf_page *p, size_t i) {
    const char *date = text_at(p, i, "price_date"), *energies = text_at(p, i, "energies_of");
    mf_page_cell(p, price_head, "");
    mf_page_figure(p, MF_UNIT_CENTS, CELL "price_usd_gpu_h", i);
    fputs("<small><span>", p->f);
    mf_page_text(p, date[0] >= '0' && date[0] <= '9' ? date : "no date");
    fputs("</span></small></td>", p->f);
    mf_page_cell(p, rests_head, "l w");
    mf_page_text(p, text_at(p, i, "software"));
    fputs("<small><span>", p->f);
    mf_page_text(p, text_at(p, i, "precision"));
    fputs("</span>", p->f);
    if (mf_page_at(p, CELL "correction", i) != NULL) {
        fputs(" <span>corrected by ", p->f);
        mf_page_figure(p, MF_UNIT_FACTOR, CELL "correction/factor", i);
        fputs("</span>", p->f);
    }
    if (energies[0] != '\0') {
        fputs(" <span>energies of ", p->f);
        mf_page_text(p, energies);
        fputs("</span>", p->f);
    }
    fputs("</small></td>", p->f);
}

static void write_row(const mf_page *p, size_t i) {
    const bool fits = mf_page_true(mf_page_at(p, CELL "fits", i));
    fputs(mf_page_true(mf_page_at(p, CELL "on_front", i)) ? "<tr class=\"front\">" : "<tr>", p->f);
    mf_page_cell(p, "cluster", "l");
    mf_page_text(p, text_at(p, i, "cluster"));
    fputs("</td>", p->f);
    mf_page_cell(p, "GPUs", "");
    mf_page_figure(p, MF_UNIT_WHOLE, CELL "gpus", i);
    fputs("</td>", p->f);
    if (!fits) {
        fprintf(p->f, "<td colspan=\"%zu\" class=\"l\" style=\"white-space:normal\">",
                columns_of(p) + 2);
        mf_page_text(p, text_at(p, i, "missing"));
        fputs("</td></tr>\n", p->f);
        return;
    }
    for (size_t k = 0; k < COLUMNS; k++) {
        if (has_column(p, &columns[k])) {
            write_cell(p, i, &columns[k]);
        }
    }
    write_rests(p, i);
    fputs("</tr>\n", p->f);
}

static void write_table(const mf_page *p, const char *model) {
    fputs("<h2>All sizes</h2>\n<div class=\"wide\"><table class=\"cards\"><thead><tr>"
          "<th class=\"l\">cluster</th>"
          "<th>GPUs</th>",
          p->f);
    for (size_t k = 0; k < COLUMNS; k++) {
        if (has_column(p, &columns[k])) {
            fprintf(p->f, "<th>%s</th>", columns[k].head);
        }
    }
    fprintf(p->f, "<th>%s</th><th class=\"l\">%s</th></tr></thead>\n", price_head, rests_head);
    for (size_t i = 0; i < cells_of(p); i++) {
        if (strcmp(text_at(p, i, "model"), model) == 0) {
            write_row(p, i);
        }
    }
    fputs("</table></div>\n", p->f);
}

/* Of each plan of a model that verdicts name: its step, memory and schedule. */
static void write_plans(const mf_page *p, const char *model) {
    const mf_json_value *plans = mf_page_at(p, "/plans");
    for (size_t i = 0; plans != NULL && i < mf_json_size(plans); i++) {
        char under[32];
        snprintf(under, sizeof under, "/plans/%zu", i);
        const mf_page plan = {.f = p->f, .root = p->root, .under = under};
        if (strcmp(mf_page_string(mf_page_at(&plan, "/model")), model) == 0) {
            mf_page_step(&plan);
            mf_page_schedule(&plan);
        }
    }
}

void mf_page_capacity(const mf_page *p) {
    const mf_json_value *verdicts = mf_page_at(p, "/capacity/verdicts");
    for (size_t m = 0; verdicts != NULL && m < mf_json_size(verdicts); m++) {
        const char *model = mf_page_string(mf_page_at(p, "/capacity/verdicts/%zu/model", m));
        fputs("<section class=\"long\"><h2>", p->f);
        mf_page_text(p, model);
        fputs("</h2>\n<div class=\"tiles\">\n", p->f);
        write_verdict(p, m, "cheapest_in_time");
        write_verdict(p, m, "fastest_in_budget");
        write_verdict(p, m, "smallest");
        if (mf_page_at(p, "/capacity/verdicts/%zu/cheapest_a_node_less/ties", m) != NULL) {
            write_verdict(p, m, "cheapest_a_node_less");
        }
        fputs("</div>\n", p->f);
        write_limits(p, m, model);
        write_front(p, model);
        write_table(p, model);
        fputs("</section>\n", p->f);
        write_plans(p, model);
    }
    if (verdicts != NULL) {
        fputs("<p class=\"note lines\">", p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/capacity/program")));
        fputs("</p>\n", p->f);
    }
}
