/* path_mean.h - chains of an order that bound its steps well, and the weights at which they do
 * most.
 *
 * A step takes at least as long as every chain through its order, hence as every weighted mean of
 * them. A mean is a linear form in the times of virtual stages that holds for every layout of the
 * same order (schedule, PP, VPP, micro-batches): weights that were found for one layout, as the
 * multipliers of its linear relaxation, bound all others without a linear program
 * (mf_partition_mean_s, mf_family_bound_mean_s).
 */
#ifndef MF_PLANNER_PATH_MEAN_H
#define MF_PLANNER_PATH_MEAN_H

#include "planner/order/order.h"

#define MF_CHAINS_MAX 160

typedef struct mf_chains {
    int count, vstages, stages, chunks;
    mf_order_chain chain[MF_CHAINS_MAX];
    double weight[MF_CHAINS_MAX]; /* not negative; sum 1 once weighed */
    /* The weighted mean; made by mf_chains_weigh: count[0] is NULL until then. Its share and lost
     * are the least of all chains', which hold for all. */
    mf_order_chain mean;
    unsigned counted; /* bits by part: some virtual stage of the mean counts it */
    double *extra;    /* [stages] visits of the stage's least visited chunk, chain by chain */
} mf_chains;

void mf_chains_init(mf_chains *c, int stages, int chunks);
void mf_chains_clear(mf_chains *c);
/* Appends a copy; at most MF_CHAINS_MAX, more are left out. Errors: MF_NOMEM. */
mf_status mf_chains_add(mf_chains *c, const mf_order_chain *chain, mf_err *e);
/* How often at least both a forward and a backward pass through v is counted: what a choice takes
 * more in both counts so often. */
double mf_chain_visits(const mf_order_chain *chain, int v);
/* Makes the mean from weight[]; chains of no weight are dropped. False when all are, or when memory
 * ran out: then there is no mean. stage_of[vstages]. */
bool mf_chains_weigh(mf_chains *c, const int *stage_of);

#endif
