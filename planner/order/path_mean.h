/* path_mean.h - paths of an order that bound its steps well, and the weights at which they do
 * most.
 *
 * A step takes at least as long as every path through its order, hence as every weighted mean of
 * them. A mean is a linear form in the times of virtual stages that holds for every layout of the
 * same order (schedule, PP, VPP, micro-batches): weights that were found for one layout, as the
 * multipliers of its linear relaxation, bound all others without a linear program
 * (mf_partition_mean_s, mf_family_bound_mean_s).
 */
#ifndef MF_PLANNER_PATH_MEAN_H
#define MF_PLANNER_PATH_MEAN_H

#include "planner/order/order.h"

#define MF_PATH_SET_MAX 160

typedef struct mf_path_set {
    int count, vstages, stages, chunks;
    mf_order_path path[MF_PATH_SET_MAX];
    double weight[MF_PATH_SET_MAX]; /* not negative; sum 1 after weighing */
    /* The weighted mean; made by mf_path_set_weigh: count[0] is NULL until then. Its share and lost
     * are the least of all paths', which hold for all. */
    mf_order_path mean;
    unsigned counted; /* bits by part: some virtual stage of the mean counts it */
    double *extra;    /* [stages] visits of the stage's least visited chunk, path by path */
} mf_path_set;

void mf_path_set_init(mf_path_set *c, int stages, int chunks);
void mf_path_set_clear(mf_path_set *c);
/* Appends a copy; at most MF_PATH_SET_MAX, more are left out. Errors: MF_NOMEM. */
mf_status mf_path_set_add(mf_path_set *c, const mf_order_path *path, mf_err *e);
/* How often at least both a forward and a backward pass through v is counted: what a choice takes
 * more in both counts so often. */
double mf_path_visits(const mf_order_path *path, int v);
/* Adds a path to a mean with its share; the first of a mean's paths? */
void mf_path_mean_add(mf_order_path *mean, const mf_order_path *path, double share, bool first);
/* Makes the mean from weight[]; paths of no weight are dropped. False when all are, or when memory
 * ran out: then there is no mean. stage_of[vstages]. */
bool mf_path_set_weigh(mf_path_set *c, const int *stage_of);

#endif
