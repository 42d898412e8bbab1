/* open_splits.h - private to partition: the nodes of a tree over splits that are still open. */
#ifndef MF_PLANNER_OPEN_SPLITS_H
#define MF_PLANNER_OPEN_SPLITS_H

#include "planner/lp/milp.h"
#include "planner/splits/split_ranges.h"
#include "planner/splits/splits.h"

typedef struct mf_open_split {
    double bound;
    mf_split_range *range; /* owned */
    mf_lp_basis *basis;    /* of its last solve, owned; NULL: it was not solved in this program */
} mf_open_split;

/* Copies the ranges and takes the basis over. False: out of memory, the basis forgotten. */
bool mf_open_splits_add(mf_open_splits *o, double bound, const mf_split_range *r, int ranges,
                        mf_lp_basis *basis);
/* The one of the least bound; -1: there is none. */
int mf_open_splits_least(const mf_open_splits *o);
/* Its bound; HUGE_VAL: there is none. */
double mf_open_splits_bound(const mf_open_splits *o);
/* Takes it out; the caller owns what it holds. The last one goes to its place. */
mf_open_split mf_open_splits_take(mf_open_splits *o, int at);
/* When the program of their bases is gone. */
void mf_open_splits_forget_bases(mf_open_splits *o);

#endif
