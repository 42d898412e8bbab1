/* times.h - private to the simulator: times of blocks by (block, passes, load, first micro-batch or
 * not), found once each. */
#ifndef MF_SIMULATOR_TIMES_H
#define MF_SIMULATOR_TIMES_H

#include "simulator/sim.h"

typedef struct mf_times mf_times;

/* Cost model and program must outlive it. keep_ops: times carry the ops' own. Errors: MF_NOMEM. */
mf_status mf_times_create(const mf_cost *cost, const mf_program *p, bool keep_ops, mf_times **out,
                          mf_err *e);
void mf_times_destroy(mf_times *t);

/* Time of passes of block `block` of the program, beside the backward of block `beside` (-1 =
 * alone). anew: their weight gradients are those of the step's first micro-batch (anew.h). *out
 * lives as long as the cache. Errors: MF_NOMEM. */
mf_status mf_times_get(mf_times *t, int block, int beside, unsigned passes, bool anew, double load,
                       const mf_block_time **out, mf_err *e);

#endif
