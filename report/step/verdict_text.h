/* verdict_text.h - the sentence that ends plan, fit, explain, simulate, tune and import: what to
 * run, how long its step takes, how much memory stays free, how far from the best it can be, what
 * to do next.
 */
#ifndef MF_REPORT_VERDICT_TEXT_H
#define MF_REPORT_VERDICT_TEXT_H

#include "launch/steps/steps.h"
#include "report/step/report.h"

#include <stdio.h>

/* A search that ends with a wider gap says little about what others would take. */
#define MF_WIDE_GAP 0.2

/* `decides` is complete without `next`, which names a command: that is for a terminal, where
 * there is a command line to go on from. Both begin with a small letter and have no full stop. */
typedef struct mf_verdict_text {
    char decides[768], next[384];
} mf_verdict_text;

/* Of the fastest plan that a search found; r->copies: what that search says of host memory. saved:
 * its file, NULL if nobody asked for one; target: who is to run it (--runs-on), NULL if it is
 * nobody in particular. */
void mf_verdict_text_plan(mf_verdict_text *v, const mf_report *r, const mf_search_stats *s,
                          const char *saved, const mf_target *target);

/* v->next for a plan that is worth running: the command, or how to save it first. */
void mf_verdict_text_run(mf_verdict_text *v, const mf_report *r, const char *saved,
                         const mf_target *target);

/* Of one layout that was played. file: a plan file that holds it; NULL. */
void mf_verdict_text_simulate(mf_verdict_text *v, const mf_report *r, const char *file);

/* Of one layout, with the option that gains most, or that makes it fit (to_fit: NULL where it
 * does). */
void mf_verdict_text_explain(mf_verdict_text *v, const mf_report *r, const mf_explanation *x,
                             const mf_steps *to_fit, const char *file);

/* Of all combinations of degrees. fastest: what a short search found, where nothing fits of the job
 * with the options `with`. */
void mf_verdict_text_fit(mf_verdict_text *v, const mf_fit_result *r,
                         const mf_search_result *fastest, const char *with);

/* "verdict     ...; next: ...", wrapped. */
void mf_verdict_text_print(FILE *out, const mf_verdict_text *v);

#endif
