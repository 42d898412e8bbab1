/* branch_gains.h - private to splits: which numbers a tree over splits had best branch on.
 *
 * Numbers are positions on virtual stages, then those of stages with all their chunks: the two
 * kinds. Below and above its value at a node's point a number has two sides. What the bound gained
 * there, over how far the side lies from the value, is much the same at all nodes, so it is noted
 * each time a side is solved, and sides of a number that was branched on a few times need not be
 * tried any more (pseudo-costs with reliability branching: Achterberg, Koch, Martin, "Branching
 * rules revisited", 2005).
 */
#ifndef MF_PLANNER_BRANCH_GAINS_H
#define MF_PLANNER_BRANCH_GAINS_H

#include "planner/partition/partition.h"

typedef struct mf_branch_gain {
    double per_unit[2]; /* of the sides below and above, in all, */
    int count[2];       /* of so many solves */
} mf_branch_gain;

/* A value further from every whole number is not whole. */
#define MF_BRANCH_WHOLE 1e-6

/* Of the values [from, to) the one that lies furthest between two whole numbers; -1: all are whole.
 */
int mf_branch_furthest(const double *value, int from, int to);
/* Notes what a side of a number gained: the bound above its node's, the cutoff at most. */
void mf_branch_note(mf_branch_gain *g, bool up, double value, double gain);
/* Was each side solved often enough? */
bool mf_branch_is_known(const mf_branch_gain *g);
/* The score of a number whose sides gain so much: neither may gain nothing, nothing being `least`.
 */
double mf_branch_score(const double gain[2], double least);
/* Of the numbers [from, to) that are not whole the one that promises most, by its own gains or
 * by the mean of all in the range; while none of these is known, the one furthest between two whole
 * numbers. -1: all are whole. *score: what it promises. */
int mf_branch_promising(const mf_branch_gain *g, const double *value, int from, int to,
                        double least, double *score);

#endif
