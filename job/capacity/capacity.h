/* capacity.h - for models x clusters x sizes: the fastest plan of each, and what a whole run of it
 * takes.
 *
 * The search of a cell starts from its neighbours' plans (planner/capacity/carry.h), so within its
 * gap the result depends on which other cells are asked for.
 */
#ifndef MF_JOB_CAPACITY_H
#define MF_JOB_CAPACITY_H

#include "job/figures/step_power.h"
#include "job/load/job.h"
#include "job/search/host_copies.h"
#include "job/search/runs_on.h"
#include "launch/steps/steps.h"
#include "planner/capacity/goodput.h"
#include "planner/capacity/robust.h"
#include "planner/explain/plausible.h"

/* The price of a GPU-hour. */
typedef struct mf_capacity_price {
    bool known;
    double usd_gpu_h;
    char date[32]; /* as the cluster file or --price says it; "" = it does not */
    char source[128];
} mf_capacity_price;

/* The same run when something is not as planned. */
typedef struct mf_capacity_strain {
    bool tried, fits;   /* not fits: the rest is not set */
    int64_t gpus;       /* that still work */
    double step_time_s; /* simulated */
    double run_s, cost_usd;
    bool in_time, in_budget; /* without a limit: true */
    double load;      /* routing: routed rows of the busiest expert rank over the balanced number */
    double most_load; /* routing: the same of any draw; memory is for so many rows */
    int draws;        /* routing: simulations; step and load are at the 95th percentile of them */
} mf_capacity_strain;

typedef struct mf_capacity_cell {
    char model[96], cluster[64], software[32];
    mf_kept_correction correction; /* of that software's prices */
    int64_t gpus;
    int row; /* which model and cluster of the command line */
    bool feasible, keeps_deadline;
    bool unexplained; /* not feasible, and not said yet what is missing */
    mf_layout layout;
    mf_assignment assignment;
    double step_time_s, low_s, high_s, mfu, gap; /* of the draw that the plan is found for */
    /* Under a --routing that is drawn: the plan under all its draws. What follows from the time of
     * a step (tokens_per_s, the run, its money) is at the 95th percentile of them. draws 0: there
     * is one routing alone. */
    mf_skewed routed;
    double tokens_per_s;
    int64_t space;     /* layouts that its search chose from */
    mf_search_end end; /* why its search ended, */
    char ended[400];   /* and in a sentence, with the cell whose plan is faster, if there is one */
    double peak_memory_B, usable_B;
    double gpu_W;        /* that a GPU draws over a step (mf_step_power_drawn_W) */
    char gpu[32];        /* kind of GPU */
    mf_step_power power; /* of the plan */
    const char *runs_on; /* the program that plans are limited to, a word; NULL: none */
    mf_goodput goodput;
    mf_host_copies host;
    bool moe;                           /* its model has experts */
    double basis_share[MF_BASIS_COUNT]; /* what its prices rest on (mf_basis_shares) */
    mf_under_megatron megatron;         /* software: "" where it was not asked */
    /* For all tokens, failures included; without --tokens for one token. INFINITY: it never ends.
     */
    double run_s, gpu_h, energy_J;
    double cost_usd; /* GPU-hours and --power-price; where price.known */
    mf_capacity_price price;
    mf_capacity_strain skewed; /* under mf_capacity.skew */
    /* Does not fit there: what does (mf_capacity_find_remedy), simulated with the same draws; on
     * another number of GPUs it is that cell's plan. */
    mf_capacity_strain remedied;
    char remedy[MF_STEP_TEXT]; /* options; "" on more GPUs */
    bool remedy_searched;      /* a search with them found it; else it is the plan with them */
    bool remedy_short;         /* with less effort than a cell has: `plan` may find a faster one */
    mf_capacity_strain lost;   /* a node less; with --deadline or --budget */
    char why[512];             /* not feasible: why */
} mf_capacity_cell;

/* The step that the cell's run takes: the plan's, under drawn routing at the 95th percentile. */
static inline double mf_capacity_step_s(const mf_capacity_cell *c) {
    return c->routed.draws > 0 ? c->routed.step_time_s : c->step_time_s;
}

/* What happens while cells are planned, several of them at once; one call at a time, on any thread,
 * each of the cell that began last. Each may be NULL. */
typedef struct mf_capacity_watch {
    void (*row)(void *user, const mf_job *j); /* a model on a cluster, before any cell */
    void (*cell)(void *user, const mf_job *j, int64_t gpus); /* a size of it begins */
    void (*search)(const mf_search_stats *now, double best_s, void *user);
    void (*fit)(const mf_fit_progress *now, void *user);
    void (*ended)(void *user); /* that search or fit is over */
    void *user;
} mf_capacity_watch;

typedef struct mf_capacity_request {
    mf_job_request asked; /* of every cell: layout, software, ...; models and clusters are here: */
    const char *const *model, *const *cluster; /* [models], [clusters] */
    int models, clusters;
    const int64_t *size; /* [sizes], ascending */
    int sizes;
    bool refine;                   /* look between the sizes around the deadline */
    const char *const *price;      /* CLUSTER=USD[@DATE] a GPU-hour, [prices] */
    int prices;                    /* others cost what their file says */
    double tokens;                 /* of the run */
    double deadline_s, budget_usd; /* 0: none */
    double power_usd_kWh, checkpoint_s, restart_s;
    const char *skew;    /* a routing that every plan is played under, too; NULL */
    const char *runs_on; /* as mf_runs_on_parse takes it; NULL */
    double gap;
    int64_t effort_us; /* of a cell's search, counted (mf_search_options.budget); 0: 10 to 20 s,
                        * less where its gap no longer narrows */
    bool search_offload;
    int threads;                /* 0: one a core, at most 8; rows share them */
    const volatile int *cancel; /* as in mf_search_options */
    mf_capacity_watch watch;
} mf_capacity_request;

typedef struct mf_capacity {
    const mf_capacity_request *r;
    mf_capacity_cell *cell; /* [count]: a row's together, sizes ascending; owned */
    int count;
    mf_job *job; /* [models * clusters]: of each row; owned */
    /* What cells are held against: --skew, or an uneven --routing under which one of the plans that
     * are found for it does not fit; NULL: nothing. Borrowed. */
    const char *skew;
    mf_doubts doubts;
    char refused[512]; /* why the chosen program cannot express a model; "" */
} mf_capacity;

/* Plans all cells of *r, which is borrowed; one where nothing fits is a result. *out is to be
 * cleared in any case, and holds what is done when MF_INTERRUPTED is returned. Errors: as
 * mf_job_load; MF_USAGE "--skew: ..." and "--runs-on: ..."; MF_NOMEM. */
mf_status mf_capacity_plan(const mf_capacity_request *r, mf_capacity *out, mf_err *e);
void mf_capacity_clear(mf_capacity *z);

/* The plan of one of z's cells, where something fits, simulated once more, and its problem, which
 * borrows from z. The caller clears the plan in any case. Errors: those of lowering, MF_NOMEM. */
mf_status mf_capacity_plan_of(const mf_capacity *z, const mf_capacity_cell *c, mf_problem *problem,
                              mf_plan *out, mf_err *e);

/* Where the cell's plan does not fit under --skew, or with memory for the busiest rank's rows of
 * the
 * --routing that it is found for, looks for what does, and keeps what keeps most
 * limits, of these the fastest under that routing: searches with memory for the rows of every draw,
 * with EP 1 and with half the plan's EP (unless it is pinned), each of the request's effort, or of
 * two seconds without one; single steps or pairs of them from the plan with that memory; a larger
 * size of the row where no plan of this one fits, or where it keeps more limits. Finding none is no
 * error. Errors: MF_INTERRUPTED, MF_NOMEM. */
mf_status mf_capacity_find_remedy(mf_capacity *z, mf_capacity_cell *c, mf_err *e);

/* Of a GPU-hour of c. name: its word in --clusters. --price takes that word, or else the name that
 * stands in the cluster's file. */
mf_capacity_price mf_capacity_price_of(const mf_capacity_request *r, const char *name,
                                       const mf_cluster *c);

/* Every "CLUSTER=USD[@DATE]" names one of the clusters. Errors: MF_USAGE "--price: ...". */
mf_status mf_capacity_check_prices(const mf_capacity_request *r, mf_err *e);

#endif
