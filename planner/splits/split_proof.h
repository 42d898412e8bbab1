/* split_proof.h - what a tree over splits has proven, for other layouts of its order.
 *
 * Each node of a tree that was not branched any further, closed or open, is a leaf: ranges of
 * numbers of positions, and the mean of paths that the multipliers of its program give. Every split
 * lies in some leaf's ranges, whatever the layout, and a mean of paths bounds each layout of its
 * order. So the least over the leaves of what their means say of another layout's own blocks, with
 * the positions that their ranges allow, is a bound for that layout, without a linear program: as
 * means of paths stand for the program of a tree's root (mean_bound.h), leaves do for the tree.
 */
#ifndef MF_PLANNER_SPLIT_PROOF_H
#define MF_PLANNER_SPLIT_PROOF_H

#include "planner/order/order.h"
#include "planner/splits/split_ranges.h"

typedef struct mf_split_leaf {
    mf_split_range *range; /* [sizes], owned; NULL: it was branched, and its sides are leaves */
    mf_order_path mean;
} mf_split_leaf;

typedef struct mf_split_proof {
    int sizes;     /* virtual stages and, behind these, stages with several chunks */
    int positions; /* of the model */
    int count, allocated, live;
    bool broken; /* some split may be in no leaf */
    mf_split_leaf *leaf;
} mf_split_proof;

/* Paths and their weights, of which those above 0 count. */
typedef struct mf_weighed_paths {
    const mf_order_path *path;
    const double *weight;
    int count;
} mf_weighed_paths;

/* Adds a leaf; without weights it has the mean of leaf `like` (-1: there is none). Returns which it
 * is; -1: the proof is broken. */
int mf_split_proof_add(mf_split_proof *p, int like, const mf_split_range *r,
                       const mf_weighed_paths *x);
/* A leaf was solved again, or what was taken from its ranges has become other leaves. */
void mf_split_proof_again(mf_split_proof *p, int leaf, const mf_split_range *r,
                          const mf_weighed_paths *x);
/* All of its splits are in other leaves. */
void mf_split_proof_drop(mf_split_proof *p, int leaf);
/* A copy of its leaves; NULL: it is broken or empty, or memory ran out. */
mf_split_proof *mf_split_proof_copy(const mf_split_proof *p);
void mf_split_proof_free(mf_split_proof *p);

/* No assignment of the layout is faster; 0: it says nothing of that layout, or less than proven_s.
 * A bound at or above enough_s is as good as any. The proof is a copy (mf_split_proof_copy). */
double mf_partition_proof_s(const mf_partition *in, const mf_split_proof *p, double proven_s,
                            double enough_s);

#endif
