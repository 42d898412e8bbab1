/* capacity_strain.h - private to capacity: what a cell's whole run takes, as planned, under uneven
 * routing, and with a node less.
 */
#ifndef MF_JOB_CAPACITY_STRAIN_H
#define MF_JOB_CAPACITY_STRAIN_H

#include "job/capacity/capacity.h"

/* The share of time that trains, on so many GPUs of the cluster, with failures and checkpoints as
 * the request and the cluster give them. */
mf_goodput mf_capacity_goodput(const mf_capacity_request *r, const mf_cluster *k, int64_t gpus);

/* Fills in the run's time, GPU-hours, energy and cost from the cell's tokens a second, goodput,
 * power and price. */
void mf_capacity_fill_run(mf_capacity_cell *c, const mf_capacity_request *r, const mf_cluster *k);

/* The run of the cell's job at that step time on so many GPUs; `paid` of them cost. */
mf_capacity_strain mf_capacity_strain_of(const mf_capacity_cell *c, const mf_capacity_request *r,
                                         const mf_job *j, int64_t gpus, int64_t paid,
                                         double step_time_s);

/* A routing that plans are played under, and in how many draws of it. */
typedef struct mf_capacity_uneven {
    mf_routing routing;
    int draws; /* simulations; 0: nothing is uneven */
} mf_capacity_uneven;

/* An uneven --routing, which plans are found for in the first of its draws; what plans are held
 * against: --skew, or else that. To be cleared in any case. Errors: MF_USAGE "--skew: ...",
 * "--routing: ...". */
mf_status mf_capacity_routing_of(const mf_capacity_request *r, const mf_job *j,
                                 mf_capacity_uneven *out, mf_err *e);
mf_status mf_capacity_uneven_of(const mf_capacity_request *r, const mf_job *j,
                                mf_capacity_uneven *out, mf_err *e);
void mf_capacity_uneven_clear(mf_capacity_uneven *x);

/* Plays the cell's plan in every draw of --routing, where it has several: fills in c->routed. */
mf_status mf_capacity_route(mf_capacity_cell *c, const mf_capacity_request *r, const mf_job *j,
                            mf_err *e);

/* The plan (l, a) of the cell's job under a routing. Errors: those of simulating. */
mf_status mf_capacity_skew(const mf_capacity_cell *c, const mf_capacity_request *r, const mf_job *j,
                           const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                           const mf_capacity_uneven *x, mf_capacity_strain *out, mf_err *e);

/* Fills in skewed and lost of a row's cells, whose job is j, as far as the request asks for them.
 * Errors: as mf_capacity_uneven_of, MF_INTERRUPTED, MF_NOMEM. */
mf_status mf_capacity_strain_row(mf_capacity *z, const mf_job *j, int row, mf_err *e);

#endif
