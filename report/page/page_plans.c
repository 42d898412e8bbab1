/* page_plans.c - plans that compete: step time against memory, with bands, and their table. */
#include "report/page/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PLAN = 0, STEP = 2, NOW = 3, BEST = 5 }; /* colours */

/* --- the chart -------------------------------------------------------------------------------- */

/* A plan whose prediction stands at `place` of the JSON; false: it has no time or no memory. */
static bool set_point(const mf_page *p, const char *place, const char *name, int colour,
                      mf_plot_point *out) {
    const double time_s = mf_page_number(mf_page_at(p, "%s/step_time_s", place));
    const double low_s = mf_page_number(mf_page_at(p, "%s/step_time_low_s", place));
    const double high_s = mf_page_number(mf_page_at(p, "%s/step_time_high_s", place));
    const double peak_B = mf_page_number(mf_page_at(p, "%s/peak_memory_B", place));
    char time[32], memory[32], low[32], high[32];
    if (!(time_s > 0 && peak_B > 0)) {
        return false;
    }
    const bool band = low_s > 0 && high_s > 0;
    *out = (mf_plot_point){
        .x = {time_s, band ? low_s : time_s, band ? high_s : time_s},
        .y = {peak_B, peak_B, peak_B},
        .colour = colour,
    };
    mf_page_show(MF_UNIT_TIME, time_s, time);
    mf_page_show(MF_UNIT_TIME, out->x.low, low);
    mf_page_show(MF_UNIT_TIME, out->x.high, high);
    mf_page_show(MF_UNIT_BYTES, peak_B, memory);
    snprintf(out->tag, sizeof out->tag, "%.90s", name);
    snprintf(out->title, sizeof out->title, "%.90s: %s (%s to %s), %s", name, time, low, high,
             memory);
    return true;
}

static void write_key(const mf_page *p, int colour, const char *name) {
    fprintf(p->f, "<li><i style=\"background:var(--c%d)\"></i>%s</li>", colour, name);
}

static void write_chart(const mf_page *p, mf_plot *plot, const char *what) {
    plot->x.unit = MF_UNIT_TIME;
    plot->y.unit = MF_UNIT_BYTES;
    plot->y.limit = mf_page_number(mf_page_at(p, "/step/usable_B"));
    mf_plot_write(p, plot);
    if (mf_page_at(p, "/tune") != NULL) {
        fputs("<ul class=\"legend\">", p->f);
        write_key(p, NOW, "now");
        if (mf_page_at(p, "/tune/best") != NULL) {
            write_key(p, BEST, "change to");
        }
        write_key(p, STEP, "single steps from now");
        fputs("</ul>\n", p->f);
    }
    fprintf(p->f,
            "<p class=\"note\">Step time against memory of the fullest stage; lines: the bands of "
            "the step times; red: what is usable. Ringed: no other is both as fast and as small. "
            "%s</p>\n",
            what);
}

/* --- of a search ------------------------------------------------------------------------------ */

/* Columns of the table; on a phone each plan is a card of four cells a line. */
static const struct column {
    const char *head, *style, *member;
} columns[] = {
    {"plan", "", NULL},
    {"step time, band", "w", NULL},
    {"memory", "", NULL},
    {"MFU", "", NULL},
    {"TP", "", "tp"},
    {"CP", "", "cp"},
    {"PP", "", "pp"},
    {"VPP", "", "vpp"},
    {"EP", "", "ep"},
    {"ETP", "", "etp"},
    {"DP", "", "dp"},
    {"schedule", "l w", "schedule"},
    {"precision", "l w", "precision"},
};
enum { PLANS, TIMES, MEMORY, MFU, COLUMNS = sizeof columns / sizeof columns[0] };

static void write_head(const mf_page *p) {
    fputs("<div class=\"wide\"><table class=\"cards\"><thead><tr>", p->f);
    for (size_t k = 0; k < COLUMNS; k++) {
        fprintf(p->f, "<th%s>%s</th>", columns[k].style[0] == 'l' ? " class=\"l\"" : "",
                columns[k].head);
    }
    fputs("</tr></thead>\n", p->f);
}

static void write_cell(const mf_page *p, size_t i, size_t k) {
    switch (k) {
    case PLANS:
        fprintf(p->f, "%zu", i + 1);
        break;
    case TIMES:
        mf_page_figure(p, MF_UNIT_TIME, "/candidates/%zu/step_time_s", i);
        fputs("<small><span>", p->f);
        mf_page_figure(p, MF_UNIT_TIME, "/candidates/%zu/step_time_low_s", i);
        fputs(" to</span> <span>", p->f);
        mf_page_figure(p, MF_UNIT_TIME, "/candidates/%zu/step_time_high_s", i);
        fputs("</span></small>", p->f);
        break;
    case MEMORY:
        mf_page_figure(p, MF_UNIT_BYTES, "/candidates/%zu/peak_memory_B", i);
        break;
    case MFU:
        mf_page_figure(p, MF_UNIT_SHARE, "/candidates/%zu/mfu", i);
        break;
    default:
        if (columns[k].style[0] == 'l') {
            mf_page_text(p, mf_page_string(
                                mf_page_at(p, "/candidates/%zu/layout/%s", i, columns[k].member)));
        } else {
            mf_page_figure(p, MF_UNIT_WHOLE, "/candidates/%zu/layout/%s", i, columns[k].member);
        }
    }
}

static void write_row(const mf_page *p, size_t i, bool front) {
    fputs(front ? "<tr class=\"front\">" : "<tr>", p->f);
    for (size_t k = 0; k < COLUMNS; k++) {
        mf_page_cell(p, columns[k].head, columns[k].style);
        write_cell(p, i, k);
        fputs("</td>", p->f);
    }
    fputs("</tr>\n", p->f);
}

void mf_page_plans(const mf_page *p) {
    const mf_json_value *all = mf_page_at(p, "/candidates");
    const size_t count = all != NULL ? mf_json_size(all) : 0;
    mf_plot_point *point = calloc(count + 1, sizeof *point);
    mf_plot plot = {.point = point};
    for (size_t i = 0; point != NULL && i < count; i++) {
        char place[64], name[32];
        snprintf(place, sizeof place, "/candidates/%zu", i);
        snprintf(name, sizeof name, "plan %zu", i + 1);
        plot.count += set_point(p, place, name, PLAN, &point[plot.count]);
    }
    if (point == NULL || (size_t)plot.count != count || count == 0) {
        free(point);
        return;
    }
    mf_plot_mark_front(&plot);
    fputs("<section><h2>Plans</h2>\n", p->f);
    if (count > 1) {
        write_chart(p, &plot, "Bold below: the same.");
    }
    write_head(p);
    for (size_t i = 0; i < count; i++) {
        write_row(p, i, point[i].front);
    }
    fputs("</table></div></section>\n", p->f);
    free(point);
}

/* --- of tune ---------------------------------------------------------------------------------- */

/* Steps that take longer than so many times the present layout or the best plan have no place: they
 * would press the others together. */
#define SLOWEST 1.5

/* Present layout, best plan, and the single steps that fit. */
void mf_page_tune_plans(const mf_page *p) {
    static const char now[] = "/tune/now/prediction", best[] = "/tune/best/prediction";
    const mf_json_value *steps = mf_page_at(p, "/tune/steps");
    const size_t count = steps != NULL ? mf_json_size(steps) : 0;
    mf_plot_point *point = calloc(count + 2, sizeof *point);
    mf_plot plot = {.point = point};
    const double now_s = mf_page_number(mf_page_at(p, "%s/step_time_s", now));
    const double least_s = mf_page_at(p, "/tune/best") != NULL
                               ? mf_page_number(mf_page_at(p, "%s/step_time_s", best))
                               : now_s;
    if (point == NULL) {
        return;
    }
    /* first, so that their names find space */
    plot.count += set_point(p, now, "now", NOW, &point[plot.count]);
    plot.count += set_point(p, best, "change to", BEST, &point[plot.count]);
    const int named = plot.count;
    for (size_t i = 0; i < count; i++) {
        char place[64];
        const mf_json_value *s = mf_json_at(steps, i);
        const double time_s = mf_page_number(mf_json_find(s, "step_time_s"));
        snprintf(place, sizeof place, "/tune/steps/%zu", i);
        if (mf_page_true(mf_json_find(s, "fits")) && time_s <= SLOWEST * fmax(now_s, least_s)) {
            plot.count += set_point(p, place, mf_page_string(mf_json_find(s, "what")), STEP,
                                    &point[plot.count]);
        }
    }
    mf_plot_mark_front(&plot);
    for (int i = 0; i < named; i++) {
        point[i].tagged = true;
    }
    if (plot.count > 1) {
        fputs("<section><h2>From here: time and memory</h2>\n", p->f);
        write_chart(p, &plot, "Steps that do not fit, or take half as long again, are left out.");
        fputs("</section>\n", p->f);
    }
    free(point);
}
