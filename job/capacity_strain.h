/* capacity_strain.h - private to capacity: what a cell's whole run takes, and what becomes of it
 * under uneven routing and without a node.
 */
#ifndef MF_JOB_CAPACITY_STRAIN_H
#define MF_JOB_CAPACITY_STRAIN_H

#include "job/capacity.h"

mf_goodput mf_capacity_goodput(const mf_capacity_request *r, const mf_cluster *k, int64_t gpus);

/* From tokens a second, goodput, power and price of the cell. */
void mf_capacity_fill_run(mf_capacity_cell *c, const mf_capacity_request *r, const mf_cluster *k);

/* The cells of a row, whose job is j: skewed and lost, as far as the request asks. Errors: MF_USAGE
 * "--skew: ...", MF_INTERRUPTED, MF_NOMEM. */
mf_status mf_capacity_strain_row(mf_capacity *z, const mf_job *j, int row, mf_err *e);

#endif
