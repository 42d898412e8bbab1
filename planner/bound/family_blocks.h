/* family_blocks.h - private to the bounds of families: costs of single blocks as figures of bounds.
 */
#ifndef MF_PLANNER_FAMILY_BLOCKS_H
#define MF_PLANNER_FAMILY_BLOCKS_H

#include "planner/bound/family_bound.h"

/* Least times of a block's passes. */
mf_family_bound_pass mf_family_bound_pass_of(const mf_block_cost *q);
/* Lowers the times of passes alone to those of another block. */
void mf_family_bound_least_alone(mf_family_bound_pass *least, const mf_family_bound_pass *p);
/* The figures of a kind of main layers. */
static inline mf_family_bound_other *mf_family_bound_kind(mf_layer_times *r, int kind) {
    return &r->other[r->others + kind];
}
/* The kind of a class of main layers: classes of main layers before it. */
int mf_family_bound_kind_of(const mf_model *m, int layer_class);
/* Layers of a class in the model. */
int64_t mf_family_bound_layers_of(const mf_model *m, int layer_class);
/* The cost of a block whose tables are on other stages. exact: as simulated, an MTP depth for every
 * depth, wherever it stands; else layers without their workspaces. Errors: as the evaluator
 * reports. */
mf_status mf_family_bound_cost(mf_block_costs *q, const mf_layout *l, mf_position_kind kind,
                               int layer_class, unsigned parts, bool split, bool exact,
                               mf_memory_choice memory, mf_block_cost *out, mf_err *e);
/* Merged schedules: main layers are charged their portions of a pair of main layers, which is no
 * more than its passes take alone. Errors: as the evaluator reports. */
mf_status mf_family_bound_merge(mf_block_costs *q, const mf_layout *l, mf_layer_times *r,
                                mf_err *e);
/* Merged schedules: all other positions are charged what is sure beside main layers. */
void mf_family_bound_charge_others(mf_layer_times *r);
/* Lowers what is sure of both ends beside any main layers to what is sure of them beside layers
 * whose pairs take hidden_s beyond compute, and whose passes alone take spare_s longer. */
void mf_family_bound_hide(mf_layer_times *r, double hidden_s, double spare_s);

#endif
