/* cost_cache.h - quotes of layer kinds under many layouts, asked once for each that differs.
 *
 * A block does not depend on the whole layout: not on PP, VPP or the schedule (but for whether it
 * splits the weight gradient), on the expert side only where it has experts, on samples and CP
 * apart only where it has attention, and on ZeRO and its group only from level 2 on. Quotes are
 * kept by what they depend on; once-a-step figures (reductions, gathers) and persistent bytes are
 * left to whoever knows the layout. Any number of threads may ask: a quote is a pure function of
 * its key, so that it does not matter who asks first.
 */
#ifndef MF_PLANNER_COST_CACHE_H
#define MF_PLANNER_COST_CACHE_H

#include "planner/price/evaluator.h"

typedef struct mf_quotes mf_quotes;

/* oracle is borrowed. Errors: MF_NOMEM. */
mf_status mf_quotes_create(const mf_oracle *oracle, mf_quotes **out, mf_err *e);
void mf_quotes_destroy(mf_quotes *q);
const mf_oracle *mf_quotes_oracle(const mf_quotes *q);

/* As the oracle's quote. */
mf_status mf_quotes_get(mf_quotes *q, const mf_layout *l, const mf_block_key *key, bool exact,
                        mf_quote *out, mf_err *e);
/* As the oracle's pair. */
mf_status mf_quotes_pair(mf_quotes *q, const mf_layout *l, const mf_block_key *forward,
                         const mf_block_key *backward, double *time_s, mf_err *e);
/* Quotes asked of the oracle so far. */
int64_t mf_quotes_asked(const mf_quotes *q);

#endif
