/* memory_bound.h - private to the planner: layouts that fit nowhere, whatever stands on which stage
 * and whatever layers keep.
 *
 * Where memory decides, the fastest layouts lack some hundred megabytes, which is less than what
 * bounds by sums leave out: gradients that wait for their reduction, the workspace that goes with
 * what a layer keeps, both sides of a merged pair. Here they are counted for main layers
 * (family_bound.h), at the least that any choice needs; a stage takes as many of these as fit, and
 * when all stages together do not take the model's, no plan of the layout fits. Follows
 * core/memory/memory.c; gaps of its arrangement are left out.
 */
#ifndef MF_PLANNER_MEMORY_BOUND_H
#define MF_PLANNER_MEMORY_BOUND_H

#include "planner/order/order.h"
#include "planner/price/cost_cache.h"
#include "planner/space/catalogue.h"

enum { MF_ROOM_WAYS = 2 * MF_CATALOGUE_MAX };

/* What one memory choice of a main layer needs, by micro-batch, and while a pass runs. */
typedef struct mf_room_way {
    double saved_B, f_B, b_B;
} mf_room_way;

/* Of one attention side, one expert side and one way to play passes. */
typedef struct mf_room {
    bool split, merged;
    bool alone; /* the model has only main layers between embedding and head */
    int layers; /* main layers */
    bool alike; /* all of one size; else nothing is known and everything fits */
    int ways;
    mf_room_way way[MF_ROOM_WAYS];
    double saved_B;   /* least of all ways, */
    double forward_B; /* and with what goes forward meanwhile */
    double comm_B, boundary_B;
    mf_param_count layer, embedding, head;
    double usable_B;
} mf_room;

/* The figures of a layout's sides; ZeRO levels do not matter. pinned: as in mf_partition_create.
 * Errors: as the evaluator reports. */
mf_status mf_room_of(mf_block_costs *q, const mf_layout *l, uint32_t pinned, mf_room *out,
                     mf_err *e);

/* May memory decide? False where main layers leave half of what there is. */
bool mf_room_is_tight(const mf_layout *l, const mf_param_count *layer, int layers, double fixed_B,
                      double usable_B);

/* False: no plan of the layout fits. order: its summary. fixed_B: as the evaluator has it. */
bool mf_room_fits(const mf_room *r, const mf_layout *l, const mf_order_summary *order,
                  double fixed_B);

#endif
