/* cost_cache.h - costs of layer kinds under many layouts, asked once for each that differs.
 *
 * A block does not depend on the whole layout: not on PP, VPP or the schedule (but for whether it
 * splits the weight gradient), on the expert side only where it has experts, on samples and CP
 * apart only where it has attention, and on ZeRO and its group only from level 2 on. Costs are
 * kept by what they depend on; figures of a step's end (reductions, gathers) and persistent bytes
 * are left to whoever knows the layout. Any number of threads may ask: a cost is a pure function of
 * its key, so that it does not matter who asks first.
 */
#ifndef MF_PLANNER_COST_CACHE_H
#define MF_PLANNER_COST_CACHE_H

#include "planner/price/evaluator.h"

typedef struct mf_block_costs mf_block_costs;

/* evaluator is borrowed. Errors: MF_NOMEM. */
mf_status mf_block_costs_create(const mf_evaluator *evaluator, mf_block_costs **out, mf_err *e);
void mf_block_costs_destroy(mf_block_costs *q);
const mf_evaluator *mf_block_costs_evaluator(const mf_block_costs *q);

/* As the evaluator's cost. */
mf_status mf_block_costs_get(mf_block_costs *q, const mf_layout *l, const mf_block_key *key,
                             bool exact, mf_block_cost *out, mf_err *e);
/* As the evaluator's pair. */
mf_status mf_block_costs_pair(mf_block_costs *q, const mf_layout *l, const mf_block_key *forward,
                              const mf_block_key *backward, double *time_s, mf_err *e);
/* Which blocks are made first by which thread is chance, so what they take is counted by what
 * searches ask for, once for each that one does; searches with the same costs, one after the other,
 * count what none of them has asked for before. Between note(x) and note(NULL) a thread notes in x
 * what has not been counted yet; what is in x and still has not been is then counted, in
 * nanoseconds, by whoever calls in an order that does not depend on threads, one at a time. */
typedef struct mf_costs_noted {
    void **entry; /* [count] */
    int64_t count, allocated;
} mf_costs_noted;
void mf_block_costs_note(mf_costs_noted *x);
/* For figures that are computed from costs and kept: between list(x) and list(NULL) x also lists
 * all blocks that the thread asks for, counted or not. count_hit(x) notes these blocks as if the
 * figures were computed again. False: all of them have been counted, so none need be noted. */
void mf_block_costs_list(mf_costs_noted *x);
bool mf_block_costs_count_hit(const mf_costs_noted *x);
int64_t mf_block_costs_count(mf_costs_noted *x);
void mf_costs_noted_clear(mf_costs_noted *x);

#endif
