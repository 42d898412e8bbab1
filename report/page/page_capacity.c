/* page_capacity.c - sizes of clusters: verdicts, the front of time and money, the table. */
#include "report/page/page.h"

#include "report/text/show.h"

#include <math.h>
#include <string.h>

#define CELL "/capacity/cells/%zu/"

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
    mf_page_figure(p, MF_UNIT_WHOLE, CELL "gpus", cell);
    fputs(" x ", p->f);
    mf_page_text(p, text_at(p, cell, "cluster"));
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

/* The plan under uneven routing: days of the run, or without a run the step. */
static void write_skewed(const mf_page *p, size_t cell) {
    if (mf_page_at(p, CELL "skewed", cell) == NULL) {
        return;
    }
    fputs("<br>under ", p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/capacity/skew")));
    fputs(": ", p->f);
    if (!mf_page_true(mf_page_at(p, CELL "skewed/fits", cell))) {
        fputs("does not fit", p->f);
    } else if (mf_page_at(p, CELL "skewed/run_s", cell) != NULL) {
        mf_page_figure(p, MF_UNIT_DAYS, CELL "skewed/run_s", cell);
        write_kept(p, cell, "skewed");
    } else {
        mf_page_figure(p, MF_UNIT_TIME, CELL "skewed/step_time_s", cell);
        fputs(" a step", p->f);
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

static void write_verdict(const mf_page *p, size_t model, const char *key, const char *says) {
    const mf_json_value *best = mf_page_at(p, "/capacity/verdicts/%zu/%s/cell", model, key);
    const mf_json_value *ties = mf_page_at(p, "/capacity/verdicts/%zu/%s/ties", model, key);
    fprintf(p->f, "<div class=\"tile\"><span>%s</span><b>", says);
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
    for (size_t i = 0; ties != NULL && i < mf_json_size(ties); i++) {
        fputs(i == 0 ? "<br>a tie with " : ", ", p->f);
        write_offer(p, (size_t)mf_page_number(mf_json_at(ties, i)));
    }
    write_skewed(p, cell);
    write_node_lost(p, cell);
    fputs("</span></div>\n", p->f);
}

/* What the columns of uneven routing and of a lost node say. */
static void write_strains_note(const mf_page *p) {
    bool skewed = false, lost = false;
    double draws = 0;
    for (size_t i = 0; i < cells_of(p); i++) {
        skewed |= mf_page_at(p, CELL "skewed", i) != NULL;
        lost |= mf_page_at(p, CELL "node_lost", i) != NULL;
        draws = fmax(draws, number_at(p, i, "skewed/draws"));
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

static void write_limits(const mf_page *p, const char *model) {
    fputs("<p class=\"note\">A tie: the gap of the search and, between clusters, the band of the "
          "prices leave it open which is better.",
          p->f);
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

typedef struct axis {
    double low, high; /* logarithms */
} axis;

static double place(const axis *a, double x) {
    return 100 * (log10(x) - a->low) / (a->high - a->low);
}

static void widen(axis *a, double low, double high) {
    a->low = fmin(a->low, log10(low));
    a->high = fmax(a->high, log10(high));
}

static bool plotted(const mf_page *p, size_t cell, const char *model) {
    return strcmp(text_at(p, cell, "model"), model) == 0 && number_at(p, cell, "run_s") > 0 &&
           number_at(p, cell, "cost_usd") > 0;
}

/* Ticks at a few multiples of powers of ten; money, or days of seconds. */
static void write_ticks(const mf_page *p, const axis *a, bool money) {
    static const double steps[] = {1, 1.5, 2, 3, 5, 7};
    const double unit = money ? 1 : 86400;
    char text[32];
    for (int e = -3; e < 15; e++) {
        for (int i = 0; i < 6; i++) {
            const double value = steps[i] * pow(10, e), at = place(a, value * unit);
            if (at < 0 || at > 100 || (a->high - a->low > 1 && i % 2 != 0) ||
                (a->high - a->low > 2 && i > 0)) {
                continue;
            }
            mf_page_show(MF_UNIT_COUNT, value, text);
            if (!money) {
                snprintf(text, sizeof text, "%g d", value);
            }
            fprintf(p->f,
                    money ? "<span class=\"g\" style=\"bottom:%.2f%%;left:0;right:0;height:1px\">"
                            "</span><span class=\"y\" style=\"bottom:%.2f%%\">%s</span>"
                          : "<span class=\"g\" style=\"left:%.2f%%;top:0;bottom:0;width:1px\">"
                            "</span><span class=\"x\" style=\"left:%.2f%%\">%s</span>",
                    at, at, text);
        }
    }
}

static void write_point(const mf_page *p, size_t cell, const axis *x, const axis *y) {
    const double run_s = number_at(p, cell, "run_s"), usd = number_at(p, cell, "cost_usd");
    const double low_s = number_at(p, cell, "run_low_s");
    const double high_s = number_at(p, cell, "run_high_s");
    const double left = place(x, run_s), bottom = place(y, usd);
    const int c = cluster_colour(p, cell);
    const bool front = mf_page_true(mf_page_at(p, CELL "on_front", cell));
    char days[32], money[32];
    mf_page_show(MF_UNIT_DAYS, run_s, days);
    mf_page_show(MF_UNIT_COUNT, usd, money);
    fprintf(p->f,
            "<span class=\"h\" style=\"left:%.2f%%;width:%.2f%%;bottom:%.2f%%;background:"
            "var(--c%d)\"></span>",
            place(x, low_s), place(x, high_s) - place(x, low_s), bottom, c);
    fprintf(p->f,
            "<span class=\"v\" style=\"left:%.2f%%;bottom:%.2f%%;height:%.2f%%;background:"
            "var(--c%d)\"></span>",
            left, place(y, usd * low_s / run_s), place(y, high_s) - place(y, low_s), c);
    fprintf(p->f,
            "<span class=\"dot%s\" style=\"left:%.2f%%;bottom:%.2f%%;background:var(--c%d)\" "
            "title=\"%.0f x ",
            front ? " front" : "", left, bottom, c, number_at(p, cell, "gpus"));
    mf_page_text(p, text_at(p, cell, "cluster"));
    fprintf(p->f, ": %s, %s USD\"></span>", days, money);
    putc('\n', p->f);
}

/* Sizes of the front stand where they hide neither each other nor a point: boxes in percent of a
 * plot as a phone of 390 px shows it, 298 x 300 px; wider ones shrink them towards their points. */
typedef struct box {
    double left, right, bottom, top;
} box;

enum { TAGS = 64 };                                      /* of one plot, at most */
static const double char_width = 2.4, line_height = 5.4; /* of text of 12 px */
static const double dot_width = 2.6, dot_height = 2.4;   /* from its middle */
static const double between[] = {0,    5.4,   -5.4,
                                 10.8, -10.8, 16.2}; /* a size and its point, upwards */

static bool overlap(const box *a, const box *b) {
    return a->left < b->right && b->left < a->right && a->bottom < b->top && b->bottom < a->top;
}

static bool is_free(const box *at, const box *taken, int count) {
    bool is = at->left >= 0 && at->right <= 100 && at->bottom >= 0 && at->top <= 100;
    for (int i = 0; i < count; i++) {
        is = is && !overlap(at, &taken[i]);
    }
    return is;
}

/* The nearest free place for a size beside its point. false: there is none. */
static bool find_place(double left, double bottom, double width, const box *taken, int count,
                       box *out) {
    for (size_t i = 0; i < sizeof between / sizeof between[0]; i++) {
        for (int back = 0; back < 2; back++) {
            const double from = back ? left - dot_width - width : left + dot_width;
            const double middle = bottom + between[i];
            *out = (box){from, from + width, middle - line_height / 2, middle + line_height / 2};
            if (is_free(out, taken, count)) {
                return true;
            }
        }
    }
    return false;
}

/* A size for which there is no room is in the table, where the front is bold. */
static void write_tags(const mf_page *p, const char *model, const axis *x, const axis *y) {
    box taken[2 * TAGS];
    int count = 0;
    for (size_t i = 0; i < cells_of(p) && count < TAGS; i++) {
        if (plotted(p, i, model)) {
            const double left = place(x, number_at(p, i, "run_s"));
            const double bottom = place(y, number_at(p, i, "cost_usd"));
            taken[count++] =
                (box){left - dot_width, left + dot_width, bottom - dot_height, bottom + dot_height};
        }
    }
    for (size_t i = 0; i < cells_of(p) && count < 2 * TAGS; i++) {
        if (!plotted(p, i, model) || !mf_page_true(mf_page_at(p, CELL "on_front", i))) {
            continue;
        }
        const double left = place(x, number_at(p, i, "run_s"));
        const double width =
            char_width * (double)snprintf(NULL, 0, "%.0f", number_at(p, i, "gpus"));
        box at;
        if (find_place(left, place(y, number_at(p, i, "cost_usd")), width, taken, count, &at)) {
            const bool back = at.right < left;
            fprintf(p->f, "<span class=\"tag%s\" style=\"%s:%.2f%%;bottom:%.2f%%\">",
                    back ? " back" : "", back ? "right" : "left", back ? 100 - left : left,
                    at.bottom);
            mf_page_figure(p, MF_UNIT_WHOLE, CELL "gpus", i);
            fputs("</span>\n", p->f);
            taken[count++] = at;
        }
    }
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
    axis x = {1e9, -1e9}, y = {1e9, -1e9};
    int points = 0;
    for (size_t i = 0; i < cells_of(p); i++) {
        if (plotted(p, i, model)) {
            const double run_s = number_at(p, i, "run_s"), usd = number_at(p, i, "cost_usd");
            const double low_s = number_at(p, i, "run_low_s");
            const double high_s = number_at(p, i, "run_high_s");
            widen(&x, low_s, high_s);
            widen(&y, usd * low_s / run_s, usd * high_s / run_s);
            points++;
        }
    }
    if (points < 2) {
        return;
    }
    x = (axis){x.low - 0.04, x.high + 0.04};
    y = (axis){y.low - 0.04, y.high + 0.04};
    fputs("<h2>Time and money</h2>\n<div class=\"plot\">", p->f);
    write_ticks(p, &x, false);
    write_ticks(p, &y, true);
    for (size_t i = 0; i < cells_of(p); i++) {
        if (plotted(p, i, model)) {
            write_point(p, i, &x, &y);
        }
    }
    write_tags(p, model, &x, &y);
    fputs("</div>\n", p->f);
    write_clusters(p, model);
    fputs("<p class=\"note\">Days of the run against USD, both on logarithmic scales. Ringed, with "
          "their GPUs: no other is both as fast and as cheap. Crosses: the bands of the step "
          "times.</p>\n",
          p->f);
}

/* --- the table -------------------------------------------------------------------------------- */

static const struct column {
    const char *key, *head;
    mf_page_unit unit;
} columns[] = {{"step_time_s", "step time", MF_UNIT_TIME},
               {"step_time_low_s", "from", MF_UNIT_TIME},
               {"step_time_high_s", "to", MF_UNIT_TIME},
               {"tokens_per_s", "tokens/s", MF_UNIT_COUNT},
               {"run_s", "run", MF_UNIT_DAYS},
               {"skewed/step_time_s", "skewed: step", MF_UNIT_TIME},
               {"skewed/expert_load", "skewed: load", MF_UNIT_CENTS},
               {"skewed/run_s", "skewed: run", MF_UNIT_DAYS},
               {"node_lost/gpus", "node lost: GPUs", MF_UNIT_WHOLE},
               {"node_lost/step_time_s", "node lost: step", MF_UNIT_TIME},
               {"node_lost/run_s", "node lost: run", MF_UNIT_DAYS},
               {"gpu_h", "GPU-hours", MF_UNIT_COUNT},
               {"cost_usd", "USD", MF_UNIT_COUNT},
               {"usd_per_million_tokens", "USD/Mtok", MF_UNIT_CENTS},
               {"energy_J", "energy", MF_UNIT_WH},
               {"mfu", "MFU", MF_UNIT_SHARE},
               {"goodput", "goodput", MF_UNIT_SHARE},
               {"gap", "gap", MF_UNIT_SHARE},
               {"price_usd_gpu_h", "USD/GPU-h", MF_UNIT_CENTS}};
enum { RUN = 4, COLUMNS = sizeof columns / sizeof columns[0] };

/* What the figures rest on, as texts. */
static const struct rest {
    const char *key, *head;
} rests[] = {{"price_date", "price of"},
             {"software", "software"},
             {"precision", "precision"},
             {"energies_of", "energies of"}};
enum { RESTS = sizeof rests / sizeof rests[0] };

/* Some stand there with --tokens alone, some without: the run says what the rate would. */
static bool has_column(const mf_page *p, const struct column *c) {
    if (strcmp(c->key, "tokens_per_s") == 0 && has_column(p, &columns[RUN])) {
        return false;
    }
    for (size_t i = 0; i < cells_of(p); i++) {
        if (mf_page_at(p, CELL "%s", i, c->key) != NULL) {
            return true;
        }
    }
    return false;
}

static size_t columns_of(const mf_page *p) {
    size_t count = 0;
    for (size_t k = 0; k < COLUMNS; k++) {
        count += has_column(p, &columns[k]);
    }
    return count;
}

/* Of a strained plan that does not fit there is no time; its load says why. A run that misses a
 * limit has a mark. */
static void write_value(const mf_page *p, size_t i, const struct column *c) {
    const char *slash = strchr(c->key, '/');
    const bool strained = slash != NULL && strcmp(slash, "/expert_load") != 0;
    const int length = strained ? (int)(slash - c->key) : 0;
    if (strained && mf_page_at(p, CELL "%.*s", i, length, c->key) != NULL &&
        !mf_page_true(mf_page_at(p, CELL "%.*s/fits", i, length, c->key))) {
        fputs("none", p->f);
    } else {
        mf_page_figure(p, c->unit, CELL "%s", i, c->key);
    }
    if (strained && strcmp(slash, "/run_s") == 0) {
        char strain[32];
        snprintf(strain, sizeof strain, "%.*s", length, c->key);
        fputs(misses(p, i, strain, "in_time") || misses(p, i, strain, "in_budget") ? "!" : "",
              p->f);
    }
}

static void write_row(const mf_page *p, size_t i) {
    const bool fits = mf_page_true(mf_page_at(p, CELL "fits", i));
    fputs(mf_page_true(mf_page_at(p, CELL "on_front", i)) ? "<tr class=\"front\"><td class=\"l\">"
                                                          : "<tr><td class=\"l\">",
          p->f);
    mf_page_text(p, text_at(p, i, "cluster"));
    fputs("</td><td>", p->f);
    mf_page_figure(p, MF_UNIT_WHOLE, CELL "gpus", i);
    if (!fits) {
        fprintf(p->f, "</td><td colspan=\"%zu\" class=\"l\" style=\"white-space:normal\">",
                columns_of(p) + RESTS);
        mf_page_text(p, text_at(p, i, "missing"));
        fputs("</td></tr>\n", p->f);
        return;
    }
    for (size_t k = 0; k < COLUMNS; k++) {
        if (has_column(p, &columns[k])) {
            fputs("</td><td>", p->f);
            write_value(p, i, &columns[k]);
        }
    }
    for (size_t k = 0; k < RESTS; k++) {
        const char *text = text_at(p, i, rests[k].key);
        fputs("</td><td class=\"l\">", p->f);
        mf_page_text(p, k == 0 && !(text[0] >= '0' && text[0] <= '9') ? "no date" : text);
    }
    fputs("</td></tr>\n", p->f);
}

static void write_table(const mf_page *p, const char *model) {
    fputs("<h2>All sizes</h2>\n<div class=\"wide\"><table><thead><tr><th class=\"l\">cluster</th>"
          "<th>GPUs</th>",
          p->f);
    for (size_t k = 0; k < COLUMNS; k++) {
        if (has_column(p, &columns[k])) {
            fprintf(p->f, "<th>%s</th>", columns[k].head);
        }
    }
    for (size_t k = 0; k < RESTS; k++) {
        fprintf(p->f, "<th class=\"l\">%s</th>", rests[k].head);
    }
    fputs("</tr></thead>\n", p->f);
    for (size_t i = 0; i < cells_of(p); i++) {
        if (strcmp(text_at(p, i, "model"), model) == 0) {
            write_row(p, i);
        }
    }
    fputs("</table></div>\n", p->f);
}

void mf_page_capacity(const mf_page *p) {
    const mf_json_value *verdicts = mf_page_at(p, "/capacity/verdicts");
    const bool timed = mf_page_at(p, "/capacity/deadline_s") != NULL;
    const bool paid = mf_page_at(p, "/capacity/budget_usd") != NULL;
    for (size_t m = 0; verdicts != NULL && m < mf_json_size(verdicts); m++) {
        const char *model = mf_page_string(mf_page_at(p, "/capacity/verdicts/%zu/model", m));
        fputs("<section class=\"long\"><h2>", p->f);
        mf_page_text(p, model);
        fputs("</h2>\n<div class=\"tiles\">\n", p->f);
        write_verdict(p, m, "cheapest_in_time", timed ? "cheapest in time" : "cheapest");
        write_verdict(p, m, "fastest_in_budget", paid ? "fastest in budget" : "fastest");
        write_verdict(p, m, "smallest", "smallest");
        if (mf_page_at(p, "/capacity/verdicts/%zu/cheapest_a_node_less/ties", m) != NULL) {
            write_verdict(p, m, "cheapest_a_node_less", "cheapest, a node less");
        }
        fputs("</div>\n", p->f);
        write_limits(p, model);
        write_front(p, model);
        write_table(p, model);
        fputs("</section>\n", p->f);
    }
    if (verdicts != NULL) {
        fputs("<p class=\"note lines\">", p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/capacity/program")));
        fputs("</p>\n", p->f);
    }
}
