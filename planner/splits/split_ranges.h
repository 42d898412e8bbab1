/* split_ranges.h - how many positions a virtual stage, or a stage with all its chunks, may hold. */
#ifndef MF_PLANNER_SPLIT_RANGES_H
#define MF_PLANNER_SPLIT_RANGES_H

#include "planner/partition/partition.h"

typedef struct mf_split_range {
    int16_t lo, hi;
} mf_split_range;

/* Narrows ranges to what they say of each other. r: of virtual stages, [vstages], and with several
 * chunks behind these of stages, [stages]. Sets least and most [vstages + 1], the fewest and the
 * most positions before a virtual stage. False: no split has all of its numbers in the ranges. */
bool mf_split_narrow(const mf_partition *in, mf_split_range *r, int *least, int *most);

#endif
