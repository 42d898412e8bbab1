/* step_values.h - private to launch/steps: the dimensions that a step may change, and the values of
 * each.
 */
#ifndef MF_LAUNCH_STEP_VALUES_H
#define MF_LAUNCH_STEP_VALUES_H

#include "launch/steps/steps.h"

typedef enum mf_step_dimension {
    MF_STEP_TP,
    MF_STEP_CP,
    MF_STEP_PP,
    MF_STEP_VPP,
    MF_STEP_EP,
    MF_STEP_ETP,
    MF_STEP_MICRO_BATCH,
    MF_STEP_NUMBERS, /* those before hold a number of the layout */
    MF_STEP_SCHEDULE = MF_STEP_NUMBERS,
    MF_STEP_ZERO,
    MF_STEP_DISPATCHER,
    MF_STEP_GRAPH,
    MF_STEP_OVERLAP,
    MF_STEP_RECOMPUTE,
    MF_STEP_OFFLOAD,
    MF_STEP_OPTIMIZER,
    MF_STEP_MOMENTS,
    MF_STEP_DIMENSIONS
} mf_step_dimension;

enum { MF_STEP_MOST_VALUES = 64 }; /* of a dimension */

/* Sets the i-th value of a dimension. False: the model has no such dimension, or i is past its last
 * value. */
bool mf_step_set(int dimension, int i, const mf_model *m, mf_layout *l);
/* How a user types the value that the layout has: "--tp 4". */
void mf_step_name(int dimension, const mf_layout *l, char *out, size_t size);

/* Of a dimension below MF_STEP_NUMBERS: its i-th value for the layout's GPUs (0: there is none),
 * and the one that the layout has. */
int64_t mf_step_number(int dimension, int i, const mf_layout *l);
int64_t mf_step_number_in(int dimension, const mf_layout *l);

/* The dimensions of planner/space/space.h that a search chooses it by unless they are pinned; 0: no
 * search does. */
uint32_t mf_step_chosen(int dimension);

/* Are two layouts the same in all that a step may change? */
bool mf_step_same(const mf_layout *a, const mf_layout *b);

#endif
