/* capacity_text.h - what the parts of the text of `moefold capacity` share. Private to
 * report/capacity/. */
#ifndef MF_REPORT_CAPACITY_TEXT_H
#define MF_REPORT_CAPACITY_TEXT_H

#include "report/capacity/capacity_table.h"
#include "report/text/show.h"

/* --- figures (capacity_table.c) --------------------------------------------------------------- */

/* Of a run of so many seconds: "41.2 d"; "never" without end. */
mf_shown mf_capacity_show_days(double time_s);
/* Of a run, or of a million tokens: cents count there. "-" where no price is known. */
mf_shown mf_capacity_show_usd(const mf_capacity_cell *c, bool run);
/* Is a lost node tried? It is where a run has a limit that it might miss. */
bool mf_capacity_has_lost(const mf_capacity_table *t);

/* --- rows (capacity_rows.c) ------------------------------------------------------------------- */

/* Of one model, under its name. */
void mf_capacity_print_rows(FILE *out, const mf_capacity_table *t, int model);
/* What all rows share, a line, and which columns the screen has no space for, another. */
void mf_capacity_print_shared(FILE *out, const mf_capacity_table *t);

/* --- what the table rests on (capacity_basis.c) ----------------------------------------------- */

/* One paragraph each, or nothing where there is nothing to say. */
void mf_capacity_print_megatron(FILE *out, const mf_capacity_table *t);
void mf_capacity_print_runs_on(FILE *out, const mf_capacity_table *t);
/* Corrections from logs that prices rest on, a line for each cluster that has one. */
void mf_capacity_print_corrections(FILE *out, const mf_capacity_table *t);
/* At which draws of --routing verdicts stand, " (zipf:0.5, 95th percentile of 20 draws)"; "". */
void mf_capacity_say_draws(const mf_capacity_table *t, char *out, size_t size);
void mf_capacity_print_routing(FILE *out, const mf_capacity_table *t);
void mf_capacity_print_prices(FILE *out, const mf_capacity_table *t);
void mf_capacity_print_unmeasured(FILE *out, const mf_capacity_table *t);
/* Kinds of GPU whose energies are an H200's, each once: "h100, b200". */
void mf_capacity_say_carried(const mf_capacity_table *t, char *out, size_t size);
/* "2026-05-18", "undated", "given, no date"; "-" where no price is known. */
const char *mf_capacity_price_date(const mf_capacity_price *p);
/* What an hour costs on each cluster, with its date; where that is from if `source`. */
void mf_capacity_say_prices(const mf_capacity_table *t, bool source, char *out, size_t size);
/* How near the plans are proven to be to the fastest: the largest gap as a share; -1: nothing
 * fits. */
double mf_capacity_say_gap(const mf_capacity_table *t, char *out, size_t size);
/* Why searches ended: the words that the table has, each with what it means. Something fits. */
void mf_capacity_say_ends(const mf_capacity_table *t, char *out, size_t size);

/* --- verdicts (capacity_verdicts.c) ----------------------------------------------------------- */

/* Of one model, of which something fits, below a heading. */
void mf_capacity_print_verdicts(FILE *out, const mf_capacity_table *t, int model);
void mf_capacity_print_all_verdicts(FILE *out, const mf_capacity_table *t);

#endif
