/* carry.h - plans carried from one cell of a table (model x cluster x size) to the next.
 *
 * What is fast on so many GPUs is nearly so on twice as many, and on another cluster. A search that
 * begins with such a plan has only the proof left to do. Prices of blocks are carried too
 * (mf_price_book).
 */
#ifndef MF_PLANNER_CARRY_H
#define MF_PLANNER_CARRY_H

#include "planner/planner.h"
#include "planner/tuning/limits.h"

/* A plan that a cell was given. Borrowed. */
typedef struct mf_carried {
    int cluster; /* any number that tells clusters apart */
    const mf_layout *layout;
    const mf_assignment *assignment;
} mf_carried;

/* The plans of known[count], all of p's model, that a search of p on `cluster` is to begin with, on
 * p's GPUs: the nearest sizes, those of the same cluster before others, the latest first. Data
 * parallelism follows from the size; what does not divide is left out, and so are host copies where
 * p pins them. Returns how many. */
int mf_carry_starts(const mf_problem *p, int cluster, const mf_carried *known, int count,
                    mf_known_plan start[MF_CARRY_MOST]);

#endif
