/* alike.h - prices of blocks that come from one forward pass (mf_forward): whatever they keep, most
 * of their ops are the same, and what is made again is priced as the first time.
 *
 * What a price depends on is compared, never guessed: a price is the cost model's in any case.
 */
#ifndef MF_SIMULATOR_ALIKE_H
#define MF_SIMULATOR_ALIKE_H

#include "simulator/sim.h"

typedef struct mf_alike mf_alike;

/* The cost model must outlive it; load: of all blocks. One thread at a time. Errors: MF_NOMEM. */
mf_status mf_alike_create(const mf_cost *cost, double load, mf_alike **out, mf_err *e);
void mf_alike_destroy(mf_alike *a);

/* Prices all ops of a block; what is said of ops below is of the block that was priced last.
 * Errors: MF_NOMEM. */
mf_status mf_alike_price(mf_alike *a, const mf_block *b, mf_err *e);
/* Time of op i, alone. */
double mf_alike_op_s(const mf_alike *a, int i);
/* Its price, ready to be played (simulator/play.h). */
const struct mf_play_op *mf_alike_op(const mf_alike *a, int i);

#endif
