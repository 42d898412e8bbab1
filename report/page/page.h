/* page.h - a result as one HTML file that needs nothing beside it: no script, no font, no network.
 *
 * A page is drawn from the JSON that it embeds, and from nothing else: every figure on it is a
 * member of that text, named by its place (a JSON pointer, in `data-at`), so that a page cannot say
 * what the JSON does not. Light and dark, for screens from 390 pixels on, and for paper.
 */
#ifndef MF_REPORT_PAGE_H
#define MF_REPORT_PAGE_H

#include "core/base/json.h"
#include "core/base/status.h"

#include <stdio.h>

/* Draws the page of a parsed report.json (report/folder/report_folder.h says what it holds) whose
 * text is `text`, which is embedded. Sections without members in the JSON are left out. Whether `f`
 * took it all is the caller's to check. */
void mf_page_write(FILE *f, const mf_json *report, const char *text);

/* --- for the parts of a page ------------------------------------------------------------------ */

typedef enum mf_page_unit {
    MF_UNIT_TIME,
    MF_UNIT_DAYS,
    MF_UNIT_BYTES,
    MF_UNIT_SHARE,
    MF_UNIT_COUNT, /* "671.0B" */
    MF_UNIT_CENTS, /* "2.50", "0.0448" */
    MF_UNIT_WHOLE, /* "1,024" */
    MF_UNIT_TFLOPS,
    MF_UNIT_WH,     /* of joules */
    MF_UNIT_FACTOR, /* "1.087" */
} mf_page_unit;

typedef struct mf_page {
    FILE *f;
    const mf_json_value *root;
    const char *under; /* pointers begin there: "", or "/plans/0" of a plan among others */
} mf_page;

/* The value at a JSON pointer made by printf; NULL: there is none, or it is null. */
const mf_json_value *mf_page_at(const mf_page *p, const char *pointer, ...) MF_PRINTF(2, 3);
/* Of numbers, 0 where there is none; of texts "". */
double mf_page_number(const mf_json_value *v);
const char *mf_page_string(const mf_json_value *v);
bool mf_page_true(const mf_json_value *v);

/* Text with what HTML takes for markup escaped. */
void mf_page_text(const mf_page *p, const char *text);
/* The same as an element's content, whose figures keep their units on one line ("4.272 s", "EP 8").
 */
void mf_page_prose(const mf_page *p, const char *text);
/* <data data-at="/step/step_time_s" value="3.2141">3.214 s</data>; "-" where there is no number. */
void mf_page_figure(const mf_page *p, mf_page_unit unit, const char *pointer, ...) MF_PRINTF(3, 4);
/* Begins a cell of a table of class "cards", whose rows are cards on a phone: there the cell has
 * its column's `head` above it, and takes two places where `style` has the class "w". */
void mf_page_cell(const mf_page *p, const char *head, const char *style);
/* As the figure's text says it. out[32]. */
void mf_page_show(mf_page_unit unit, double value, char out[32]);

void mf_page_step(const mf_page *p);     /* /step: verdict, where the step goes, memory */
void mf_page_schedule(const mf_page *p); /* /schedule */
void mf_page_help(const mf_page *p);     /* /remedies: what would help */
void mf_page_plans(const mf_page *p);    /* /candidates: time against memory */
void mf_page_tune_plans(
    const mf_page *p);                   /* the same of /tune, with steps from the present layout */
void mf_page_accuracy(const mf_page *p); /* /step/accuracy, /capacity/accuracy */
void mf_page_provenance(const mf_page *p); /* /prices_rest_on, and of the cells of /capacity */
void mf_page_capacity(const mf_page *p);   /* /capacity, and /plans, which have members of a step */
void mf_page_job(const mf_page *p);        /* /tune, /compare: a job that there is */

#endif
