/* page_job.c - a job that there is: what it measured, and what to change. */
#include "report/page/page.h"

#include "core/base/text.h"

#include <string.h>

enum { STEPS = 12, OPS = 20 };

/* --- tune ------------------------------------------------------------------------------------- */

static void write_change(const mf_page *p) {
    static const struct {
        const char *word, *key;
    } degrees[] = {{"TP", "tp"},   {"CP", "cp"}, {"PP", "pp"},
                   {"VPP", "vpp"}, {"EP", "ep"}, {"ETP", "etp"}};
    const bool better = mf_page_at(p, "/tune/best") != NULL;
    fputs("<section><h2>Verdict</h2>\n<div class=\"tiles\">\n", p->f);
    for (int best = 0; best < 1 + better; best++) {
        const char *which = best ? "best" : "now";
        fprintf(p->f, "<div class=\"tile\"><span>%s</span><b>", best ? "change to" : "now");
        mf_page_figure(p, MF_UNIT_TIME, "/tune/%s/prediction/step_time_s", which);
        fputs("</b><span>", p->f);
        for (size_t i = 0; i < sizeof degrees / sizeof degrees[0]; i++) {
            fprintf(p->f, "%s%s&nbsp;", i > 0 ? " " : "", degrees[i].word);
            mf_page_figure(p, MF_UNIT_WHOLE, "/tune/%s/layout/%s", which, degrees[i].key);
        }
        if (!best && mf_page_number(mf_page_at(p, "/tune/measured_step_time_s")) > 0) {
            fputs("<br>measured ", p->f);
            mf_page_figure(p, MF_UNIT_TIME, "/tune/measured_step_time_s");
        }
        fputs("<br>memory ", p->f);
        mf_page_figure(p, MF_UNIT_BYTES, "/tune/%s/prediction/peak_memory_B", which);
        fputs("</span></div>\n", p->f);
    }
    if (!better && !mf_page_true(mf_page_at(p, "/tune/now/prediction/fits")) &&
        !mf_page_true(mf_page_at(p, "/tune/interrupted"))) {
        fputs("<div class=\"tile\"><span>it does not fit</span><b>no plan does</b></div></div>"
              "</section>\n",
              p->f);
        return;
    }
    const bool interrupted = mf_page_true(mf_page_at(p, "/tune/interrupted"));
    if (mf_page_at(p, "/tune/lower_bound_s") != NULL) {
        fputs("<div class=\"tile\"><span>no plan takes less than</span><b>", p->f);
        mf_page_figure(p, MF_UNIT_TIME, "/tune/lower_bound_s");
        fputs(better || interrupted
                  ? "</b></div>"
                  : "</b><span>keep it: the search finds nothing faster</span></div>",
              p->f);
    }
    fputs(better ? "</div>\n<p class=\"note\">What follows the steps is the plan to change "
                   "to.</p></section>\n"
                 : "</div></section>\n",
          p->f);
}

/* Whether an earlier step that fits sets the same option: the fastest of a kind stands for it. */
static bool has_faster(const mf_json_value *all, size_t at, const char *what) {
    const size_t length = strcspn(what, " ");
    for (size_t i = 0; i < at; i++) {
        const mf_json_value *s = mf_json_at(all, i);
        const char *other = mf_page_string(mf_json_find(s, "what"));
        if (mf_page_true(mf_json_find(s, "fits")) && strcspn(other, " ") == length &&
            strncmp(other, what, length) == 0) {
            return true;
        }
    }
    return false;
}

static void write_steps(const mf_page *p) {
    const mf_json_value *all = mf_page_at(p, "/tune/steps");
    size_t shown = 0;
    for (size_t i = 0; all != NULL && i < mf_json_size(all) && shown < STEPS; i++) {
        const mf_json_value *s = mf_json_at(all, i);
        const char *what = mf_page_string(mf_json_find(s, "what"));
        if (!mf_page_true(mf_json_find(s, "fits")) || has_faster(all, i, what)) {
            continue;
        }
        if (shown++ == 0) {
            fputs("<section><h2>Single steps from here, the best of each kind</h2>\n<div "
                  "class=\"wide\">"
                  "<table><thead><tr><th class=\"l\">with</th><th>step time</th>"
                  "<th>memory</th></tr></thead>\n",
                  p->f);
        }
        fputs("<tr><td class=\"l\">", p->f);
        mf_page_prose(p, what);
        fputs("</td><td>", p->f);
        mf_page_figure(p, MF_UNIT_TIME, "/tune/steps/%zu/step_time_s", i);
        fputs("</td><td>", p->f);
        mf_page_figure(p, MF_UNIT_BYTES, "/tune/steps/%zu/peak_memory_B", i);
        fputs("</td></tr>\n", p->f);
    }
    if (shown > 0) {
        fputs("</table></div></section>\n", p->f);
    }
}

/* --- compare ---------------------------------------------------------------------------------- */

/* "input_gradient" as words. */
static void write_words(const mf_page *p, const mf_json_value *of, const char *key) {
    char text[128];
    mf_text_copy(text, sizeof text, mf_page_string(mf_json_find(of, key)));
    for (char *at = text; *at != '\0'; at++) {
        *at = *at == '_' ? ' ' : *at;
    }
    mf_page_text(p, text);
}

static void write_ops(const mf_page *p) {
    const mf_json_value *all = mf_page_at(p, "/compare/ops");
    if (all == NULL || mf_json_size(all) == 0) {
        return;
    }
    fputs("<div class=\"wide\"><table><thead><tr><th class=\"l\">op</th>"
          "<th>predicted</th><th>measured</th><th>error</th></tr></thead>\n",
          p->f);
    for (size_t i = 0; i < mf_json_size(all) && i < OPS; i++) {
        const mf_json_value *o = mf_json_at(all, i);
        fputs(mf_page_true(mf_json_find(o, "outside")) ? "<tr class=\"front\">" : "<tr>", p->f);
        fputs("<td class=\"l\">", p->f);
        mf_page_text(p, mf_page_string(mf_json_find(o, "op")));
        fputs("<small class=\"words\">", p->f); /* below: a phone has four columns */
        write_words(p, o, "where");
        fputs(", ", p->f);
        write_words(p, o, "pass");
        fputs("</small></td><td>", p->f);
        mf_page_figure(p, MF_UNIT_TIME, "/compare/ops/%zu/predicted_s", i);
        fputs("</td><td>", p->f);
        mf_page_figure(p, MF_UNIT_TIME, "/compare/ops/%zu/measured_s", i);
        fputs("</td><td>", p->f);
        mf_page_figure(p, MF_UNIT_SHARE, "/compare/ops/%zu/error", i);
        fputs("</td></tr>\n", p->f);
    }
    fputs("</table></div>\n<p class=\"note\">Largest difference first, of a rank and step; bold: "
          "outside the tolerance. report.json has all.</p>\n",
          p->f);
}

/* Of a log: the factor that says what was measured, and what became of it. */
static void write_factor(const mf_page *p) {
    if (mf_page_at(p, "/compare/software") == NULL) {
        return;
    }
    fputs("\n<div class=\"tile\"><span>correction</span><b>", p->f);
    mf_page_figure(p, MF_UNIT_FACTOR, "/compare/step_factor");
    fputs("</b><span>", p->f);
    if (mf_page_at(p, "/compare/step_factor") == NULL) {
        fputs("none explains what was measured", p->f);
    } else {
        fputs("efficiencies of ", p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/compare/software")));
        fputs(" divided by it say what was measured", p->f);
    }
    if (mf_page_true(mf_page_at(p, "/compare/withheld"))) {
        fputs("; not written", p->f);
    } else if (mf_page_at(p, "/compare/kept") != NULL) {
        fputs("; kept, predictions on ", p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/compare/cluster")));
        fputs(" use it", p->f);
    }
    fputs("</span></div>", p->f);
}

/* What a log may have beside step times. */
static void write_measured(const mf_page *p, const char *name, mf_page_unit unit,
                           const char *measured, const char *words, const char *predicted) {
    if (mf_page_number(mf_page_at(p, "%s", measured)) > 0) {
        fprintf(p->f, "\n<div class=\"tile\"><span>%s</span><b>", name);
        mf_page_figure(p, unit, "%s", measured);
        fprintf(p->f, "</b><span>%s", words);
        mf_page_figure(p, unit, "%s", predicted);
        fputs("</span></div>", p->f);
    }
}

static void write_compare(const mf_page *p) {
    fputs("<section><h2>Predicted and measured</h2>\n<div class=\"tiles\">\n"
          "<div class=\"tile\"><span>predicted</span><b>",
          p->f);
    mf_page_figure(p, MF_UNIT_TIME, "/compare/predicted_step_time_s");
    fputs("</b></div>\n<div class=\"tile\"><span>measured</span><b>", p->f);
    mf_page_figure(p, MF_UNIT_TIME, "/compare/measured_step_time_s");
    fputs("</b></div>\n<div class=\"tile\"><span>error</span><b>", p->f);
    mf_page_figure(p, MF_UNIT_SHARE, "/compare/error");
    fputs("</b><span>predicted over measured, minus one</span></div>", p->f);
    write_measured(p, "measured rate", MF_UNIT_TFLOPS, "/compare/measured_tflops_per_gpu",
                   "predicted ", "/compare/predicted_tflops_per_gpu");
    /* What PyTorch allocated, which a prediction of all that the GPU holds is not like. */
    write_measured(p, "memory that PyTorch allocated", MF_UNIT_BYTES, "/compare/measured_memory_B",
                   mf_page_true(mf_page_at(p, "/compare/allocated"))
                       ? "predicted "
                       : "predicted, all that the GPU holds: ",
                   "/compare/predicted_memory_B");
    write_factor(p);
    fputs("</div>\n", p->f);
    write_ops(p);
    fputs("</section>\n", p->f);
}

void mf_page_job(const mf_page *p) {
    if (mf_page_at(p, "/tune") != NULL) {
        write_change(p);
        write_steps(p);
        mf_page_tune_plans(p);
    }
    if (mf_page_at(p, "/compare") != NULL) {
        write_compare(p);
    }
}
