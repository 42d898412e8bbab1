/* gemm_autotune.h - which of a library's proposals for a product is fastest, from timings:
 * decisions alone, no GPU.
 *
 * One look at each proposal tells the few that may be fastest, but not which: the GPU's clock moves
 * between looks by more than they differ. So these few are timed again in turns, every round in
 * another order, and the least median wins.
 *
 * Long products run at the GPU's power cap inside a step, where what a proposal draws decides as
 * much as its cycles: of those each runs alone, for long enough to meet the cap.
 */
#ifndef MF_KERNELS_GEMM_AUTOTUNE_H
#define MF_KERNELS_GEMM_AUTOTUNE_H

#include "kernels/kernel.h"

#define MF_GEMM_AUTOTUNE_MOST 6
#define MF_GEMM_ROUNDS 5 /* at most */

/* The proposals that are worth another look. */
typedef struct mf_gemm_autotune {
    int count, proposal[MF_GEMM_AUTOTUNE_MOST]; /* fastest first */
    int rounds; /* odd, up to MF_GEMM_ROUNDS; 1 where there is one proposal */
} mf_gemm_autotune;

/* Seconds of one run: of every finalist in every round. */
typedef struct mf_gemm_rounds {
    double time_s[MF_GEMM_AUTOTUNE_MOST][MF_GEMM_ROUNDS];
} mf_gemm_rounds;

MF_KERNEL_C_BEGIN
/* time_s [n], n >= 1: seconds of one run of each proposal that was looked at, all above 0. Those
 * within 10 % of the fastest, the first (the library's own guess) among them if it is one of these.
 * runs: of one look, warming up included. Long products get fewer rounds of fewer proposals. */
mf_gemm_autotune mf_gemm_autotune_of(const double *time_s, int n, int runs);

/* The same for a product that is timed at the power cap: one round of all within 10 %. */
mf_gemm_autotune mf_gemm_autotune_at_cap(const double *time_s, int n);

/* Whose turn it is: place 0 .. count - 1 in a round. Index into `proposal`. */
int mf_gemm_turn(const mf_gemm_autotune *finals, int round, int place);

/* Index into `proposal` of the least median; of medians within 0.5 % of it the least proposal, so
 * that noise does not choose. *median_s: the winner's. */
int mf_gemm_winner(const mf_gemm_autotune *finals, const mf_gemm_rounds *rounds, double *median_s);
MF_KERNEL_C_END
#endif
