/* inner_fills.h - fills of stages, kept: whoever improves a split comes to the same positions on a
 * stage again and again.
 */
#ifndef MF_PLANNER_INNER_FILLS_H
#define MF_PLANNER_INNER_FILLS_H

#include "planner/inner.h"

typedef struct mf_inner_fills mf_inner_fills;

/* For an inner problem that stays as it is, and room_B[stages], which is read and stays, too. NULL
 * when memory ran out. */
mf_inner_fills *mf_inner_fills_create(const mf_inner *in, const double *room_B);
void mf_inner_fills_destroy(mf_inner_fills *f);
/* As mf_inner_fill_stage. */
bool mf_inner_fills_stage(mf_inner_fills *f, const int *first, int stage, int32_t *count);

#endif
