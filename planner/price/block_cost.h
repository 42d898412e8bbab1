/* block_cost.h - private to the planner: the cost of a lowered block, apart from playing it.
 */
#ifndef MF_PLANNER_BLOCK_COST_H
#define MF_PLANNER_BLOCK_COST_H

#include "planner/price/evaluator.h"

/* All of the cost but time_s. op_s: time of each op of the block. scratch_s: work space, four
 * figures for every tensor. rest_s: of each pass, bound_s before syncs without what the
 * data-parallel stream does. */
void mf_block_cost_make(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                        const mf_block_key *key, const double *op_s, double *scratch_s,
                        mf_block_cost *out, double rest_s[3]);
/* bound_s again, when the data-parallel stream, which no other waits for, takes dp_s. */
void mf_block_cost_dp(mf_pass_cost *q, double rest_s, double dp_s);

#endif
