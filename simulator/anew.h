/* anew.h - the first micro-batch of a step writes weight gradients; the others add to them, and so
 * read them too (core/program/lower.h, mf_op_makes_gradient).
 *
 * A block takes so much less in that micro-batch, whatever runs beside it. Bounds of the search
 * subtract the same (planner/order).
 */
#ifndef MF_SIMULATOR_ANEW_H
#define MF_SIMULATOR_ANEW_H

#include "simulator/sim.h"

/* Seconds that op i of a block saves in the first micro-batch: 0 for most ops, and where gradients
 * are reduced after each block (mf_layout_shards_gradients). */
double mf_anew_op_s(const mf_cost *cost, const mf_model *m, const mf_layout *l, const mf_block *b,
                    int i);
/* Joules that it saves at that clock, idle power left out (mf_cost_energy_J). */
double mf_anew_op_J(const mf_cost *cost, const mf_model *m, const mf_layout *l, const mf_block *b,
                    int i, double clock);
/* Times of all ops by mf_op_gradient_side, whatever the layout reduces behind blocks. */
void mf_anew_sides_s(const mf_cost *cost, const mf_model *m, const mf_block *b, double out[2]);

/* Turns the time of passes that make a block's weight gradients into that of the first micro-batch.
 * side: whose ops are the block's, where t keeps ops (mf_op_time). Errors: MF_NOMEM. */
mf_status mf_anew_take_off(const mf_cost *cost, const mf_model *m, const mf_layout *l,
                           const mf_block *b, int side, mf_block_time *t, mf_err *e);

#endif
