/* priced.h - a block that is priced once and then played as often as search asks: each of its
 * passes alone, or beside another block as a merged pair, the host far ahead.
 */
#ifndef MF_SIMULATOR_PRICED_H
#define MF_SIMULATOR_PRICED_H

#include "costmodel/cost.h"

typedef struct mf_priced mf_priced;

/* The ops that one run plays. */
typedef enum mf_play_pass {
    MF_PLAY_FORWARD,
    MF_PLAY_BACKWARD, /* R|B|W, of a split block R|B */
    MF_PLAY_WEIGHTS,  /* of a split block W, of others nothing */
    MF_PLAY_PASSES
} mf_play_pass;

/* The block is only read, and not kept. split: its weight gradients are a pass of their own.
 * at_end: its passes are played as MF_SIM_LAST, MF_SIM_FIRST, where copies stay in their pass. The
 * cost model must outlive the result, which the caller destroys. Errors: MF_NOMEM. */
mf_status mf_priced_create(const mf_cost *cost, const mf_layout *l, const mf_block *b, bool split,
                           bool at_end, double load, mf_priced **out, mf_err *e);
void mf_priced_destroy(mf_priced *p);

/* Time of op i of the block, alone. */
double mf_priced_op_s(const mf_priced *p, int i);

/* Seconds of full use of a link by all of a pass but the data-parallel stream: of
 * mf_block_time.link_s all that any groups have. */
double mf_priced_link_s(const mf_priced *p, mf_play_pass pass, mf_link_kind link);

/* Gives it the sizes of the layout's data-parallel groups (DP*CP, EDP) and prices gathers and
 * reductions anew. A group that had more than one member when the block was lowered keeps more than
 * one. */
void mf_priced_regroup(mf_priced *p, const mf_layout *l);
/* True when it has the groups of the layout already. */
bool mf_priced_suits(const mf_priced *p, const mf_layout *l);
/* Time of a pass's ops on the data-parallel stream, one after the other. */
double mf_priced_dp_s(const mf_priced *p, mf_play_pass pass);

/* Host time to issue that. */
double mf_priced_dp_host_s(const mf_priced *p, mf_play_pass pass);

/* Exactly gpu_time_s of mf_sim_block for the passes. This and what follows, any number of threads
 * may ask at the same time. Errors: MF_NOMEM. */
mf_status mf_priced_time_s(mf_priced *p, mf_play_pass pass, double *time_s, mf_err *e);

/* ZeRO from level 2 on adds to a block gathers in front of its passes and reductions behind them,
 * for which nothing waits where data parallelism is overlapped. So a block lowered without ZeRO
 * (`block`) and another one lowered with it (`zero`; NULL = none), alike but for what they keep,
 * make the passes of the first with it. */
typedef struct mf_priced_zero {
    mf_priced *block;
    const mf_priced *zero;
} mf_priced_zero;
/* mf_priced_time_s of that. Errors: MF_NOMEM. */
mf_status mf_priced_zero_s(const mf_priced_zero *p, mf_play_pass pass, double *time_s, mf_err *e);
/* The same of a merged pair; neither block is split, each has its own load. Some may be one.
 * Errors: MF_NOMEM. */
mf_status mf_priced_pair_s(const mf_priced_zero *forward, const mf_priced_zero *backward,
                           double *time_s, mf_err *e);

#endif
