/* capacity_table.h - the cells of `moefold capacity` as a table, and the decision that
 * comes of it. */
#ifndef MF_REPORT_CAPACITY_TABLE_H
#define MF_REPORT_CAPACITY_TABLE_H

#include "core/base/json_write.h"
#include "job/capacity/capacity.h"
#include "planner/capacity/decision.h"
#include "planner/explain/plausible.h"

/* Cells of one model and cluster stand together, sizes ascending. */
typedef struct mf_capacity_table {
    const mf_capacity_cell *cell; /* [count] */
    const mf_offer *offer;        /* [count], decided */
    int count, models, clusters;
    bool interrupted;     /* there would be more */
    const char *tokens;   /* as given; NULL = not given */
    const char *deadline; /* the same */
    const char *budget;   /* the same */
    double deadline_s, budget_usd;
    double power_usd_kWh;
    double gap; /* that was asked for */
    const mf_doubts *doubts;
    const char *routing; /* as given, of the plans; NULL = not given */
    const char *skew;    /* mf_capacity.skew */
    const char *program; /* who trains, and what its prices rest on: lines */
    bool priced_only;    /* nobody trains any of it yet */
    bool all_columns;    /* however narrow the screen is */
} mf_capacity_table;

/* The cells as offers, decided, for t->offer, which does not count; to be freed. NULL: out of
 * memory. */
mf_offer *mf_capacity_decide(const mf_capacity_table *t);

/* Smallest size of cells[at]'s model and cluster that keeps the deadline; -1 = none. */
int64_t mf_capacity_smallest(const mf_capacity_table *t, int at);
/* Is it the first cell of its model and cluster? */
bool mf_capacity_begins_row(const mf_capacity_table *t, int at);

/* Verdicts that the table has: the last one where a node less is tried. */
int mf_capacity_verdicts(const mf_capacity_table *t);
/* Does verdict v of its model name the cell? */
bool mf_capacity_names(const mf_capacity_table *t, int v, int cell);
/* The n-th cell that verdicts name, each once: those of the first model first, the cheapest in
 * front. -1: there are not so many. */
int mf_capacity_named(const mf_capacity_table *t, int n);
/* What gets plans that verdicts name over t->skew (mf_capacity_find_remedy). t: of z; it
 * is interrupted if this was. */
mf_status mf_capacity_find_remedies(mf_capacity *z, mf_capacity_table *t, mf_err *e);
/* Its word, "cheapest", and its key in JSON, "cheapest_in_time". */
const char *mf_capacity_verdict_word(mf_verdict v);
const char *mf_capacity_verdict_key(mf_verdict v);
/* What it is called in the text, in JSON and on the page: its word and the limits that it keeps,
 * "smallest in 60d for 10e6 USD". */
typedef struct mf_capacity_label {
    char s[96];
} mf_capacity_label;
mf_capacity_label mf_capacity_verdict_label(const mf_capacity_table *t, mf_verdict v);
/* Did the cell's search end before its plan was proven to the gap that is asked for? */
bool mf_capacity_is_open(const mf_capacity_table *t, const mf_capacity_cell *c);
/* Does a verdict name offers that tie with its best one? The verdict "smallest" has no ties: of as
 * many GPUs the fastest is named. */
bool mf_capacity_has_tie(const mf_capacity_table *t);

void mf_capacity_print(FILE *out, const mf_capacity_table *t);
/* The members of the object that --json prints, into the one that is open. */
void mf_capacity_write(mf_json_writer *w, const mf_capacity_table *t);

#endif
