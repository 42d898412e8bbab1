/* least_cost.h - costs of blocks of which a bound does not know all.
 *
 * Whether an MTP depth stands before or after another one changes its block. Fewer ops are no
 * shorter play: one that is missing lets others meet that slow each other down. So a bound over all
 * such blocks takes of every time the least that any of them takes.
 */
#ifndef MF_PLANNER_LEAST_COST_H
#define MF_PLANNER_LEAST_COST_H

#include "planner/price/cost_cache.h"

/* As mf_block_costs_get; an MTP depth stands for every depth of the model. Whether the stage
 * holds the tables besides changes no time (mf_block_shared_elements). */
mf_status mf_block_costs_least(mf_block_costs *q, const mf_layout *l, const mf_block_key *key,
                               bool exact, mf_block_cost *out, mf_err *e);

/* The same of merged pairs: the quickest of all that the two keys stand for. */
mf_status mf_block_costs_least_pair(mf_block_costs *q, const mf_layout *l,
                                    const mf_block_key *forward, const mf_block_key *backward,
                                    double *time_s, mf_err *e);

#endif
