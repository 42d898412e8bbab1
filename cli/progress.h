/* progress.h - one line on standard error about a search that takes long. */
#ifndef MF_CLI_PROGRESS_H
#define MF_CLI_PROGRESS_H

#include "cli/cli.h"
#include "planner/planner.h"

typedef struct mf_progress {
    FILE *err;
    bool wanted, terminal;
    bool shown;      /* a line stands there that is to be wiped */
    double next_s;   /* wall time of the next line */
    char about[192]; /* what is being worked on, for the front of the line; "" = nothing */
} mf_progress;

/* Shown on a terminal, or when --progress asks for it. */
void mf_progress_init(mf_progress *p, const mf_cli *cli, const mf_args *a);
/* As the planner calls them; user is the mf_progress. */
void mf_progress_search(const mf_search_stats *now, double best_s, void *user);
void mf_progress_fit(const mf_fit_progress *now, void *user);
/* Wipes the line; the next one may begin at once. */
void mf_progress_end(mf_progress *p);

#endif
