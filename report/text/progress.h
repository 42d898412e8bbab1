/* progress.h - one line on standard error about a search that takes long. */
#ifndef MF_REPORT_PROGRESS_H
#define MF_REPORT_PROGRESS_H

#include "planner/planner.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct mf_progress {
    FILE *err;
    bool wanted, terminal;
    int columns;     /* of that terminal; 0: not known */
    bool shown;      /* a line stands there that is to be wiped */
    double next_s;   /* wall time of the next line */
    char about[192]; /* what is being worked on, for the front of the line; "" = nothing */
    char line[480];  /* the one that is being put together */
} mf_progress;

/* To err, which is a terminal or is not; elsewhere than on a terminal only where it was asked for.
 */
void mf_progress_init(mf_progress *p, FILE *err, bool terminal, bool asked);
/* As the planner calls them; user is the mf_progress. */
void mf_progress_search(const mf_search_stats *now, double best_s, void *user);
void mf_progress_fit(const mf_fit_progress *now, void *user);
/* Wipes the line; the next one may begin at once. */
void mf_progress_end(mf_progress *p);

#endif
