/* fit_judge.h - private to fit: what one combination of degrees needs at least. */
#ifndef MF_PLANNER_FIT_JUDGE_H
#define MF_PLANNER_FIT_JUDGE_H

#include "planner/planner.h"

/* Holds the blocks that were lowered so far: most of them are those of many layouts. One thread. */
typedef struct mf_fit_judge mf_fit_judge;

/* p is borrowed. */
mf_status mf_fit_judge_create(const mf_problem *p, mf_fit_judge **out, mf_err *e);
void mf_fit_judge_destroy(mf_fit_judge *j);

/* Sets what is not pinned of the ZeRO levels to `level`, or to what is pinned of them where both
 * are to be equal. */
void mf_fit_choose_zero(const mf_problem *p, uint8_t level, mf_layout *l);

/* The best of a few small choices of ZeRO, recomputation and offload for these degrees; dimensions
 * that the problem pins stay. fits_only: what is missing does not count, so that degrees whose
 * training state alone is too large are not looked at further. *laid_out is false where the layers
 * cannot be placed. */
mf_status mf_fit_judge_least_memory(mf_fit_judge *j, mf_layout l, bool fits_only, mf_fit_entry *out,
                                    bool *laid_out, mf_err *e);

/* Makes an entry exact, which never lowers the memory that it needs. */
mf_status mf_fit_judge_exact(mf_fit_judge *j, mf_fit_entry *x, mf_err *e);

/* Whether a layout fits with its memory choice everywhere, and what it needs. One that cannot be
 * laid out does not. */
mf_status mf_fit_judge_fits(mf_fit_judge *j, const mf_layout *l, bool *fits, double *peak_B,
                            mf_err *e);

/* For sorting: those that fit by headroom, then the rest by what is missing; equals by degrees. */
int mf_fit_by_headroom(const void *a, const void *b);

/* Device and host memory that a combination lacks, together; 0 when it fits. */
double mf_fit_missing_B(const mf_fit_entry *f);

#endif
