/* family_blocks.h - private to the bounds of families: costs of single blocks as figures of bounds.
 */
#ifndef MF_PLANNER_FAMILY_BLOCKS_H
#define MF_PLANNER_FAMILY_BLOCKS_H

#include "planner/bound/family_bound.h"

/* Least times of a block's passes. */
mf_family_bound_pass mf_family_bound_pass_of(const mf_block_cost *q);
/* Lowers the times of passes alone to those of another block. */
void mf_family_bound_least_alone(mf_family_bound_pass *least, const mf_family_bound_pass *p);
/* Layers of a class in the model. */
int64_t mf_family_bound_layers_of(const mf_model *m, int layer_class);
/* The cost of a block whose tables are on other stages. exact: as simulated, an MTP depth for every
 * depth, wherever it stands; else layers without their workspaces. Errors: as the evaluator
 * reports. */
mf_status mf_family_bound_cost(mf_block_costs *q, const mf_layout *l, mf_position_kind kind,
                               int layer_class, unsigned parts, bool split, bool exact,
                               mf_memory_choice memory, mf_block_cost *out, mf_err *e);

#endif
