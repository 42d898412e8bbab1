/* capacity.h - what `moefold capacity` finds out for one model on one cluster at one size. */
#ifndef MF_CLI_CAPACITY_H
#define MF_CLI_CAPACITY_H

#include "cli/cli.h"
#include "cli/goodput.h"
#include "cli/host_copies.h"
#include "core/program/lower.h"

typedef struct mf_capacity_cell {
    char model[96], cluster[64];
    int64_t gpus;
    int row; /* which model and cluster of the command line */
    bool feasible, keeps_deadline;
    mf_layout layout;
    mf_assignment assignment;
    double step_time_s, low_s, high_s, tokens_per_s, mfu, gap;
    mf_goodput goodput;
    mf_host_copies host;
    double run_s; /* for all tokens, failures included; 0 without --tokens */
    double cost_usd, energy_J;
    bool priced;   /* the cluster has a price */
    char why[512]; /* not feasible: why */
} mf_capacity_cell;

/* Cells of one model and cluster stand together, sizes ascending. */
typedef struct mf_capacity_table {
    const mf_capacity_cell *cell; /* [count] */
    int count;
    bool interrupted;     /* there would be more */
    const char *tokens;   /* as given; NULL = not given */
    const char *deadline; /* the same */
    double deadline_s;
    double gap;          /* that was asked of every plan */
    const char *program; /* who trains, and what its prices rest on: lines */
} mf_capacity_table;

void mf_capacity_print(FILE *out, const mf_capacity_table *t);
mf_status mf_capacity_json(FILE *out, const mf_capacity_table *t, mf_err *e);

#endif
