/* choose_memory.h - what stands best for memory choices by layer, where a target has one for all
 * layers.
 */
#ifndef MF_LAUNCH_CHOOSE_MEMORY_H
#define MF_LAUNCH_CHOOSE_MEMORY_H

#include "launch/target/target.h"

#include "planner/planner.h"

/* Of all choices that the target has for all layers (each set of modules; whole layers, all or the
 * first ones of every virtual stage; where the plan offloads the same as far as it does, everywhere
 * or not at all), the one with which the plan, conceded to the target, fits and is fastest, each
 * being simulated. *found: false where the target can say what the plan chooses, where all layers
 * choose alike and the plan fits with what the target has nearest to that, or none fits.
 * Layout and assignment of *plan count. Errors: those of mf_planner_predict. */
mf_status mf_target_choose_memory(mf_target t, const mf_problem *p, const mf_plan *plan,
                                  mf_common_choice *out, bool *found, mf_err *e);

#endif
