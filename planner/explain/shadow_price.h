/* shadow_price.h - private to explain: what one more byte of memory would gain. */
#ifndef MF_PLANNER_SHADOW_PRICE_H
#define MF_PLANNER_SHADOW_PRICE_H

#include "planner/planner.h"

typedef struct mf_shadow {
    int64_t stage;        /* whose memory binds; -1 = none, or choices that the catalogue lacks */
    double seconds_per_B; /* that the step would be shorter by, at the margin */
} mf_shadow;

/* The plan's layers stay where they stand; their memory choices may mix in any proportion, within
 * what each stage takes now and has left. The step is then a linear program over paths
 * (integer_program.c), and the multipliers of its memory rows are seconds by byte. predicted: of
 * this very layout and assignment. Errors: MF_NOMEM; as the evaluator reports. */
mf_status mf_shadow_memory(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                           const mf_plan_prediction *predicted, mf_shadow *out, mf_err *e);

#endif
