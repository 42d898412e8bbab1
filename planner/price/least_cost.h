/* least_cost.h - least costs over blocks that a bound cannot tell apart.
 *
 * Whether an MTP depth comes before or after another one changes its block. A block with fewer ops
 * may still play longer, since other ops may then run at the same time and slow each other down. So
 * a bound over all such blocks takes the least of each time over all of them.
 *
 * So it is with blocks that copy to or from the host: inside a virtual stage a neighbour's copies
 * slow down other ops of a block than its own do where it is the last, and either may be the
 * quicker one (simulator/step_chunk.c).
 *
 * And with forward passes of layers in a ring of context parallelism: where keys are not kept, a
 * message waits until attention has read those whose place it takes. Alone that changes no time,
 * but beside a backward pass it may make the pair quicker (by up to 1e-3).
 */
#ifndef MF_PLANNER_LEAST_COST_H
#define MF_PLANNER_LEAST_COST_H

#include "planner/price/cost_cache.h"

/* As mf_block_costs_get; the key of an MTP depth means every depth of the model. Whether the stage
 * holds the tables besides changes no time (mf_block_shared_elements). */
mf_status mf_block_costs_least(mf_block_costs *q, const mf_layout *l, const mf_block_key *key,
                               bool exact, mf_block_cost *out, mf_err *e);

/* The same, exact, wherever it stands on a virtual stage: also as the last block. */
mf_status mf_block_costs_least_anywhere(mf_block_costs *q, const mf_layout *l,
                                        const mf_block_key *key, mf_block_cost *out, mf_err *e);

/* The same for merged pairs: the quickest of all that the two keys mean. */
mf_status mf_block_costs_least_pair(mf_block_costs *q, const mf_layout *l,
                                    const mf_block_key *forward, const mf_block_key *backward,
                                    double *time_s, mf_err *e);
/* And wherever the two stand; a key that says at_end stands there. The forward pass of a layer that
 * keeps everything stands for those of all choices without copies. */
mf_status mf_block_costs_least_pair_anywhere(mf_block_costs *q, const mf_layout *l,
                                             const mf_block_key *forward,
                                             const mf_block_key *backward, double *time_s,
                                             mf_err *e);

#endif
