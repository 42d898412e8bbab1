/* facts.h - private to the planner: what is known of lowered blocks, without their ops.
 *
 * Bounds ask for many blocks that nobody plays. What they ask for is the same under all ZeRO levels
 * (templates.c puts gathers and reductions to it), and takes little room beside a block with its
 * prices: so it is kept much longer.
 */
#ifndef MF_PLANNER_FACTS_H
#define MF_PLANNER_FACTS_H

#include "planner/oracle.h"
#include "planner/quote_key.h"

enum { MF_FACTS_PASSES = 3 }; /* forward, backward, weight gradients split off */

typedef struct mf_facts {
    mf_quote quote;                 /* without times of plays */
    double rest_s[MF_FACTS_PASSES]; /* see block_quote.h */
    double early_B; /* of held_B: gradients that wait for their reduction behind a split pass */
} mf_facts;

/* Entries give way to others; any number of threads may ask and keep. */
typedef struct mf_facts_table mf_facts_table;

/* Errors: MF_NOMEM. */
mf_status mf_facts_create(mf_facts_table **out, mf_err *e);
void mf_facts_destroy(mf_facts_table *t);

/* load: as blocks are priced with it. */
bool mf_facts_find(mf_facts_table *t, const mf_quote_key *key, double load, mf_facts *out);
void mf_facts_keep(mf_facts_table *t, const mf_quote_key *key, double load, const mf_facts *facts);

#endif
