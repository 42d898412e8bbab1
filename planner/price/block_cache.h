/* block_cache.h - blocks that are lowered and priced once. Costs of the block alone, of merged
 * pairs and of the same block under other data-parallel groups are simulated from them.
 *
 * A table holds the blocks that were used last; several threads may use it. Prices do not depend on
 * what it holds.
 */
#ifndef MF_PLANNER_BLOCK_CACHE_H
#define MF_PLANNER_BLOCK_CACHE_H

#include "planner/price/evaluator.h"

/* The source of blocks and their prices; borrowed. A table is used with one source only. */
typedef struct mf_block_prices {
    const mf_model *model;
    const mf_cost *cost;
} mf_block_prices;

/* Errors: MF_NOMEM. */
mf_status mf_block_cache_create(mf_block_cache **out, mf_err *e);
void mf_block_cache_destroy(mf_block_cache *t);

/* The cost of a block under that load (mf_evaluator_ops). t NULL: made from scratch. */
mf_status mf_block_cache_cost(mf_block_cache *t, const mf_block_prices *p, const mf_layout *l,
                              const mf_block_key *key, double load, bool exact, mf_block_cost *out,
                              mf_err *e);
/* A block of a merged pair, with the load of its own busiest expert rank: a dense block beside a
 * MoE block does not even out the other's experts. */
typedef struct mf_block_side {
    mf_block_key key;
    double load;
} mf_block_side;
/* Time of a merged pair. */
mf_status mf_block_cache_pair(mf_block_cache *t, const mf_block_prices *p, const mf_layout *l,
                              const mf_block_side *forward, const mf_block_side *backward,
                              double *time_s, mf_err *e);

#endif
