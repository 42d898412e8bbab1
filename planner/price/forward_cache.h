/* forward_cache.h - private to the planner: forward passes that were lowered lately, and prices of
 * what comes from them. What a layer keeps changes none of its forward ops nor of its gradients: a
 * search asks for some 15 choices of a layer one after the other, and often for weight gradients
 * both split off and not.
 */
#ifndef MF_PLANNER_FORWARD_CACHE_H
#define MF_PLANNER_FORWARD_CACHE_H

#include "planner/price/block_cache.h"
#include "planner/price/block_cost.h"
#include "simulator/alike.h"

/* Any number of threads may ask; what they are given does not depend on what is kept. */
typedef struct mf_forwards mf_forwards;

/* Errors: MF_NOMEM. */
mf_status mf_forwards_create(mf_forwards **out, mf_err *e);
void mf_forwards_destroy(mf_forwards *t);

/* A block, lowered (mf_block_lower_uncut, but for its label) and priced. */
typedef struct mf_made_block {
    mf_block *block;            /* owned */
    mf_alike *alike;            /* its prices; NULL: to be asked of the cost model */
    mf_quoted_forward *forward; /* its forward pass, where others have the same; else NULL */
    struct mf_forward_slot *slot;
} mf_made_block;

/* t NULL, or a layer with ZeRO inside or only half of one: lowered on its own. On success to be let
 * go of soon, by the thread that asked. Errors: MF_NOMEM, and what lowering reports. */
mf_status mf_forwards_block(mf_forwards *t, const mf_block_prices *p, const mf_layout *l,
                            const mf_block_key *key, double load, mf_made_block *out, mf_err *e);
void mf_forwards_let_go(mf_made_block *b);

#endif
