/* page_help.c - what would help. */
#include "report/page/page.h"

#include <math.h>

void mf_page_help(const mf_page *p) {
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
        mf_page_prose(p, mf_page_string(mf_json_find(r, "what")));
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
