/* page_trust.c - how good predictions of this kind were, and what the prices rest on. */
#include "report/page/page.h"

#include <math.h>
#include <string.h>

/* --- accuracy --------------------------------------------------------------------------------- */

static double number_of(const mf_json_value *row, const char *key) {
    return mf_page_number(mf_json_find(row, key));
}

/* Nine of ten errors are smaller; of runs that state no such error, all are no larger. */
static double most_of(const mf_json_value *row) {
    const double p90 = number_of(row, "p90_error");
    return p90 > 0 ? p90 : number_of(row, "worst_error");
}

/* Errors to both sides of the middle, which is the prediction; `scale` is the half of the bar. */
static void write_errors(const mf_page *p, double below, double above, double most, double scale,
                         int colour) {
    fprintf(p->f,
            "<div class=\"bar\"><i style=\"position:absolute;left:%.2f%%;width:%.2f%%;background:"
            "var(--c%d)\"></i>",
            50 - 50 * below / scale, 50 * (below + above) / scale, colour);
    if (most > 0) {
        fprintf(p->f,
                "<u class=\"dim\" style=\"left:%.2f%%\"></u><u class=\"dim\" style=\"left:%.2f%%\">"
                "</u>",
                50 - 50 * most / scale, 50 + 50 * most / scale);
    }
    fputs("<u class=\"middle\"></u></div><span>", p->f);
}

static void write_row(const mf_page *p, const char *place, size_t i, const mf_json_value *row,
                      double scale) {
    fputs("<span class=\"name\">", p->f);
    mf_page_figure(p, MF_UNIT_WHOLE, "%s/%zu/runs", place, i);
    putc(' ', p->f);
    mf_page_prose(p, mf_page_string(mf_json_find(row, "of")));
    if (number_of(row, "inside_band") > 0) {
        fputs("; ", p->f);
        mf_page_figure(p, MF_UNIT_SHARE, "%s/%zu/inside_band", place, i);
        fputs(" inside the band", p->f);
    }
    fputs("</span>", p->f);
    const double mean = number_of(row, "mean_error");
    write_errors(p, mean, mean, most_of(row), scale, 0);
    mf_page_figure(p, MF_UNIT_SHARE, "%s/%zu/mean_error", place, i);
    fputs("</span>\n", p->f);
}

/* The band of this step, to compare. */
static void write_band(const mf_page *p, double below, double above, double scale) {
    fputs("<span class=\"name\">the band of this step, ", p->f);
    mf_page_figure(p, MF_UNIT_TIME, "/step/step_time_low_s");
    fputs(" to ", p->f);
    mf_page_figure(p, MF_UNIT_TIME, "/step/step_time_high_s");
    fputs("</span>", p->f);
    write_errors(p, below, above, 0, scale, 1);
    fputs("</span>\n", p->f);
}

void mf_page_accuracy(const mf_page *p) {
    const bool step = mf_page_at(p, "/step") != NULL;
    const char *place = step ? "/step/accuracy" : "/capacity/accuracy";
    const mf_json_value *all = mf_page_at(p, "%s", place);
    const double time_s = mf_page_number(mf_page_at(p, "/step/step_time_s"));
    double below = 0, above = 0, scale = 0.01;
    if (all == NULL) {
        return;
    }
    if (step && time_s > 0) {
        below = 1 - mf_page_number(mf_page_at(p, "/step/step_time_low_s")) / time_s;
        above = mf_page_number(mf_page_at(p, "/step/step_time_high_s")) / time_s - 1;
        scale = fmax(scale, fmax(below, above));
    }
    for (size_t i = 0; i < mf_json_size(all); i++) {
        scale = fmax(scale, most_of(mf_json_at(all, i)));
    }
    fputs("<section><h2>How good predictions of this kind were</h2>\n<div class=\"rows\">\n", p->f);
    if (below + above > 0) {
        write_band(p, below, above, 1.04 * scale);
    }
    for (size_t i = 0; i < mf_json_size(all); i++) {
        write_row(p, place, i, mf_json_at(all, i), 1.04 * scale);
    }
    fputs("</div>\n<p class=\"note\">", p->f);
    fputs(mf_json_size(all) > 0
              ? "Mean error of the step time, predicted over measured, to both sides of the "
                "prediction; thin lines: nine of ten runs are nearer (runs of moefold: all of "
                "them). docs/ACCURACY.md has every run."
              : "No run of this program on this GPU was held against its prediction: what is known "
                "is the band.",
          p->f);
    fputs(step || mf_json_size(all) == 0 ? "" : " Of GPUs that no line names no run is known.",
          p->f);
    fputs("</p></section>\n", p->f);
}

/* --- provenance ------------------------------------------------------------------------------- */

/* Colours by basis, in the order in which they first appear. */
enum { BASES = 12 };
typedef struct bases {
    const char *name[BASES];
    int count;
} bases;

static int colour_of(bases *known, const char *name) {
    int i = 0;
    while (i < known->count && strcmp(known->name[i], name) != 0) {
        i++;
    }
    if (i == known->count && i < BASES) {
        known->name[known->count++] = name;
    }
    return i % BASES;
}

/* One bar of all shares, which name themselves where they are pointed at. */
static void write_shares(const mf_page *p, const char *place, bases *known) {
    const mf_json_value *all = mf_page_at(p, "%s", place);
    fputs("<div class=\"bar\">", p->f);
    for (size_t i = 0; all != NULL && i < mf_json_size(all); i++) {
        const mf_json_value *b = mf_json_at(all, i);
        const char *name = mf_page_string(mf_json_find(b, "basis"));
        const double share = number_of(b, "share");
        char text[32];
        mf_page_show(MF_UNIT_SHARE, share, text);
        fprintf(p->f,
                "<i data-at=\"%s/%zu/share\" style=\"width:%.2f%%;background:var(--c%d)\" title=\"",
                place, i, 100 * share, colour_of(known, name));
        mf_page_text(p, name);
        fprintf(p->f, ": %s\"></i>", text);
    }
    fputs("</div>", p->f);
}

static void write_key(const mf_page *p, const char *name, int colour) {
    fprintf(p->f, "<li><i style=\"background:var(--c%d)\"></i>", colour);
    mf_page_text(p, name);
}

static void write_step(const mf_page *p) {
    bases known = {.count = 0};
    const mf_json_value *all = mf_page_at(p, "/prices_rest_on");
    write_shares(p, "/prices_rest_on", &known);
    fputs("<ul class=\"legend\">", p->f);
    for (size_t i = 0; i < mf_json_size(all); i++) {
        const char *name = mf_page_string(mf_json_find(mf_json_at(all, i), "basis"));
        write_key(p, name, colour_of(&known, name));
        fputs(": ", p->f);
        mf_page_figure(p, MF_UNIT_SHARE, "/prices_rest_on/%zu/share", i);
        fputs("</li>", p->f);
    }
    fputs("</ul>\n<p class=\"note\">Shares of the time of the busiest stage's ops. Software "
          "profile ",
          p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/step/software")));
    fputs(", routing ", p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/step/routing")));
    const char *measured = mf_page_string(mf_page_at(p, "/step/gpu_measured"));
    fputs(measured[0] != '\0' ? "; ops of this GPU measured until "
                              : "; no op of this GPU measured",
          p->f);
    mf_page_text(p, measured);
    fputs(". The band of the step time is what these are worth.</p>", p->f);
}

/* Of every model and cluster the first size that fits. */
static void write_cells(const mf_page *p, const mf_json_value *cells) {
    static const char *const names[] = {"model", "cluster"};
    bases known = {.count = 0};
    const char *before[] = {"", ""};
    fputs("<div class=\"rows\">\n", p->f);
    for (size_t i = 0; i < mf_json_size(cells); i++) {
        const mf_json_value *c = mf_json_at(cells, i);
        const char *of[2];
        char place[64];
        for (int k = 0; k < 2; k++) {
            of[k] = mf_page_string(mf_json_find(c, names[k]));
        }
        if (!mf_page_true(mf_json_find(c, "fits")) ||
            (strcmp(of[0], before[0]) == 0 && strcmp(of[1], before[1]) == 0)) {
            continue;
        }
        before[0] = of[0];
        before[1] = of[1];
        fputs("<span class=\"name\">", p->f);
        mf_page_text(p, of[0]);
        fputs(" on <span class=\"keep\">", p->f);
        mf_page_figure(p, MF_UNIT_WHOLE, "/capacity/cells/%zu/gpus", i);
        fputs(" x ", p->f);
        mf_page_text(p, of[1]);
        fputs("</span></span>", p->f);
        snprintf(place, sizeof place, "/capacity/cells/%zu/prices_rest_on", i);
        write_shares(p, place, &known);
        fputs("<span>", p->f);
        mf_page_figure(p, MF_UNIT_SHARE, "/capacity/cells/%zu/unmeasured_share", i);
        fputs("</span>\n", p->f);
    }
    fputs("</div>\n<ul class=\"legend\">", p->f);
    for (int i = 0; i < known.count; i++) {
        write_key(p, known.name[i], i);
        fputs("</li>", p->f);
    }
    fputs("</ul>\n<p class=\"note\">Shares of the time of the first stage's ops, of the smallest "
          "size that fits; behind the bars what nobody measured on that GPU. report.json has every "
          "size.</p>",
          p->f);
}

void mf_page_provenance(const mf_page *p) {
    const mf_json_value *cells = mf_page_at(p, "/capacity/cells");
    const bool step = mf_page_at(p, "/prices_rest_on") != NULL;
    if (!step && (cells == NULL || mf_json_size(cells) == 0)) {
        return;
    }
    fputs("<section><h2>What the prices rest on</h2>\n", p->f);
    if (step) {
        write_step(p);
    } else {
        write_cells(p, cells);
    }
    fputs("</section>\n", p->f);
}
