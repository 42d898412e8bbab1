/* capacity.h - what `moefold capacity` finds out for one model on one cluster at one size, and the
 * table and the decision that come of it. */
#ifndef MF_CLI_CAPACITY_H
#define MF_CLI_CAPACITY_H

#include "cli/cli.h"
#include "cli/goodput.h"
#include "cli/host_copies.h"
#include "core/base/json_write.h"
#include "core/program/lower.h"
#include "planner/capacity/decision.h"
#include "planner/explain/plausible.h"

/* Of a GPU-hour. */
typedef struct mf_capacity_price {
    bool known;
    double usd_gpu_h;
    char date[32]; /* as the cluster file says it; "" = it does not, or --price does */
    char source[128];
} mf_capacity_price;

/* What becomes of a run where something is not as planned. */
typedef struct mf_capacity_strain {
    bool tried, fits;   /* without fits nothing below counts */
    int64_t gpus;       /* that are at work */
    double step_time_s; /* simulated */
    double run_s, cost_usd;
    bool in_time, in_budget; /* without a limit: true */
    double load; /* routing: routed rows of the busiest expert rank over the balanced number */
} mf_capacity_strain;

typedef struct mf_capacity_cell {
    char model[96], cluster[64], software[32];
    int64_t gpus;
    int row; /* which model and cluster of the command line */
    bool feasible, keeps_deadline;
    mf_layout layout;
    mf_assignment assignment;
    double step_time_s, low_s, high_s, tokens_per_s, mfu, gap;
    double peak_memory_B, usable_B;
    mf_goodput goodput;
    mf_host_copies host;
    /* For all tokens, failures included; without --tokens for one token. INFINITY: it never ends.
     */
    double run_s, gpu_h, energy_J;
    double cost_usd; /* GPU-hours and --power-price; where price.known */
    mf_capacity_price price;
    mf_capacity_strain skewed; /* under --skew */
    mf_capacity_strain lost;   /* a node less; with --deadline or --budget */
    char why[512];             /* not feasible: why */
} mf_capacity_cell;

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
    const char *skew;    /* as given; NULL = not given */
    const char *program; /* who trains, and what its prices rest on: lines */
} mf_capacity_table;

/* The cell's offer, of the model and cluster that its row says; not decided. */
mf_offer mf_capacity_offer(const mf_capacity_cell *c, int clusters);

/* Smallest size of cells[at]'s model and cluster that keeps the deadline; -1 = none. */
int64_t mf_capacity_smallest(const mf_capacity_table *t, int at);
/* Is it the first cell of its model and cluster? */
bool mf_capacity_begins_row(const mf_capacity_table *t, int at);

/* Warns of the best MFU of cell[from .. count), all of one model and cluster, if it is above all
 * that was published.
 */
void mf_capacity_doubt(mf_doubts *d, const mf_cluster *k, const mf_capacity_cell *cell, int from,
                       int count);

void mf_capacity_print(FILE *out, const mf_capacity_table *t);
/* The members of the object that --json prints, into the one that is open. */
void mf_capacity_write(mf_json_writer *w, const mf_capacity_table *t);

#endif
