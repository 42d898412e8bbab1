/* price_book.h - private to the planner: prices of blocks for several searches.
 *
 * Neither a block nor its price depends on how many GPUs there are (but for copies to a host that
 * they share: cost_key.h), so searches of one model on one cluster at several sizes ask for the
 * same ones. What is priced is a pure function of its key: no answer depends on which searches came
 * before.
 */
#ifndef MF_PLANNER_PRICE_BOOK_H
#define MF_PLANNER_PRICE_BOOK_H

#include "planner/planner.h"
#include "planner/price/cost_cache.h"

struct mf_price_book {
    mf_evaluator_real real;
    mf_evaluator evaluator; /* on real */
    mf_block_costs *costs;
};

#endif
