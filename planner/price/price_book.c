/* price_book.c - prices of blocks for several searches. */
#include "planner/price/price_book.h"

#include "planner/price/block_cache.h"

#include <stdlib.h>

mf_status mf_price_book_create(const mf_problem *p, const mf_search_options *o, mf_price_book **out,
                               mf_err *e) {
    mf_price_book *b = calloc(1, sizeof *b);
    *out = b;
    if (b == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    b->real = (mf_evaluator_real){.model = p->model,
                                  .cost = p->cost,
                                  .routing = p->routing,
                                  .cancel = o->cancel,
                                  .without = o->without};
    mf_status s = mf_uses(o->without, MF_MECHANISM_BLOCK_CACHE)
                      ? mf_block_cache_create(&b->real.block_cache, e)
                      : MF_OK;
    if (s == MF_OK) {
        b->evaluator = mf_evaluator_init(&b->real);
        s = mf_block_costs_create(&b->evaluator, &b->costs, e);
    }
    if (s != MF_OK) {
        mf_price_book_destroy(b);
        *out = NULL;
    }
    return s;
}

void mf_price_book_destroy(mf_price_book *b) {
    if (b != NULL) {
        mf_block_costs_destroy(b->costs);
        mf_block_cache_destroy(b->real.block_cache);
    }
    free(b);
}
