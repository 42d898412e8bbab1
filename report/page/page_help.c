/* page_help.c - what would help, other plans, and what the prices rest on. */
#include "report/page/page.h"

#include <math.h>

static void write_remedies(const mf_page *p) {
    const mf_json_value *all = mf_page_at(p, "/remedies");
    double most = 0;
    for (size_t i = 0; all != NULL && i < mf_json_size(all); i++) {
        most = fmax(most, mf_page_number(mf_json_find(mf_json_at(all, i), "gain")));
    }
    if (most <= 0) {
        return;
    }
    fputs("<section><h2>What would help</h2>\n<div class=\"rows\">\n", p->f);
    for (size_t i = 0; i < mf_json_size(all); i++) {
        const mf_json_value *r = mf_json_at(all, i);
        fputs("<span class=\"name\">", p->f);
        mf_page_text(p, mf_page_string(mf_json_find(r, "what")));
        fprintf(p->f,
                "</span><div class=\"bar\"><i style=\"width:%.2f%%;background:var(--c5)\"></i>"
                "</div><span>",
                100 * fmax(0, mf_page_number(mf_json_find(r, "gain"))) / most);
        mf_page_figure(p, MF_UNIT_SHARE, "/remedies/%zu/gain", i);
        fputs("</span>\n", p->f);
    }
    fputs("</div><p class=\"note\">Share of the step time that each saves alone.</p></section>\n",
          p->f);
}

static void write_candidates(const mf_page *p) {
    static const char *const degrees[] = {"tp", "cp", "pp", "vpp", "ep", "etp", "dp"};
    const mf_json_value *all = mf_page_at(p, "/candidates");
    if (all == NULL || mf_json_size(all) == 0) {
        return;
    }
    fputs("<section><h2>Plans</h2>\n<div class=\"wide\"><table><thead><tr><th>step "
          "time</th><th>memory</th>"
          "<th>MFU</th><th>TP</th><th>CP</th><th>PP</th><th>VPP</th><th>EP</th><th>ETP</th>"
          "<th>DP</th><th class=\"l\">schedule</th><th class=\"l\">precision</th></tr></thead>\n",
          p->f);
    for (size_t i = 0; i < mf_json_size(all); i++) {
        fputs(i == 0 ? "<tr class=\"front\"><td>" : "<tr><td>", p->f);
        mf_page_figure(p, MF_UNIT_TIME, "/candidates/%zu/step_time_s", i);
        fputs("</td><td>", p->f);
        mf_page_figure(p, MF_UNIT_BYTES, "/candidates/%zu/peak_memory_B", i);
        fputs("</td><td>", p->f);
        mf_page_figure(p, MF_UNIT_SHARE, "/candidates/%zu/mfu", i);
        for (size_t d = 0; d < sizeof degrees / sizeof degrees[0]; d++) {
            fputs("</td><td>", p->f);
            mf_page_figure(p, MF_UNIT_WHOLE, "/candidates/%zu/layout/%s", i, degrees[d]);
        }
        fputs("</td><td class=\"l\">", p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/candidates/%zu/layout/schedule", i)));
        fputs("</td><td class=\"l\">", p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/candidates/%zu/layout/precision", i)));
        fputs("</td></tr>\n", p->f);
    }
    fputs("</table></div></section>\n", p->f);
}

static void write_provenance(const mf_page *p) {
    const mf_json_value *all = mf_page_at(p, "/prices_rest_on");
    if (all == NULL) {
        return;
    }
    fputs("<section><h2>What the prices rest on</h2>\n<div class=\"rows\">\n", p->f);
    for (size_t i = 0; i < mf_json_size(all); i++) {
        const mf_json_value *b = mf_json_at(all, i);
        fputs("<span class=\"name\">", p->f);
        mf_page_text(p, mf_page_string(mf_json_find(b, "basis")));
        fprintf(p->f,
                "</span><div class=\"bar\"><i style=\"width:%.2f%%;background:var(--c%zu)\"></i>"
                "</div><span>",
                100 * mf_page_number(mf_json_find(b, "share")), i % 12);
        mf_page_figure(p, MF_UNIT_SHARE, "/prices_rest_on/%zu/share", i);
        fputs("</span>\n", p->f);
    }
    fputs(
        "</div>\n<p class=\"note\">Shares of the time of the busiest stage's ops. Software profile "
        "",
        p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/step/software")));
    fputs(", routing ", p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/step/routing")));
    const char *measured = mf_page_string(mf_page_at(p, "/step/gpu_measured"));
    fputs(measured[0] != '\0' ? "; ops of this GPU measured until "
                              : "; no op of this GPU measured",
          p->f);
    mf_page_text(p, measured);
    fputs(". The band of the step time, ", p->f);
    mf_page_figure(p, MF_UNIT_TIME, "/step/step_time_low_s");
    fputs(" to ", p->f);
    mf_page_figure(p, MF_UNIT_TIME, "/step/step_time_high_s");
    fputs(", is what these are worth; docs/ACCURACY.md holds predictions against published "
          "runs.</p></section>\n",
          p->f);
}

void mf_page_help(const mf_page *p) {
    write_remedies(p);
    write_candidates(p);
    write_provenance(p);
}
