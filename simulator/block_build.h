/* block_build.h - private to the simulator: a block's ops with prices, ready to be played.
 *
 * Ops that belong to the neighbouring block in time (prefetched ZeRO-3 gathers, offload copies,
 * gradient reductions of ZeRO-2/3 when data-parallel communication may overlap) play beside the
 * block from its start, wait for nothing and are waited for only by its end: in a run of equal
 * blocks each carries its neighbour's.
 */
#ifndef MF_SIMULATOR_BLOCK_BUILD_H
#define MF_SIMULATOR_BLOCK_BUILD_H

#include "simulator/play.h"

enum { MF_BLOCK_SIDES = 2 };

typedef struct mf_block_play {
    mf_play play;
    const mf_cost *cost;
    const mf_layout *l;
    double load;
    bool own_out, own_in; /* copies to or from the host do not go on beside another block */
    double stretch[MF_BLOCK_SIDES];  /* of ops that the clock holds up (mf_cost_stretch) */
    mf_price *price[MF_BLOCK_SIDES]; /* [ops of the block] */
    int *deps, ndeps;
    int *before;         /* [n] of a piece: the piece written before it, of the same tensor; -1 */
    mf_merged_op *order; /* [n] side and index of each op */
    int *writer[MF_BLOCK_SIDES]; /* [tensors] the last op that writes it; -1 = outside, or a
                                    neighbour's op */
} mf_block_play;

/* Fills cost, l and load in beforehand. The ops of the passes, or those of a merged pair. To be
 * cleared, also after an error. Errors: MF_NOMEM. */
mf_status mf_block_play_build(mf_block_play *b, const mf_block *block, unsigned passes,
                              const mf_block *beside, mf_err *e);
void mf_block_play_clear(mf_block_play *b);

/* The same in steps: memory for all ops of the blocks, then the ops of some passes, which wait for
 * none that stood there already; returns their number. */
mf_status mf_block_play_init(mf_block_play *b, const mf_block *block, const mf_block *beside,
                             mf_err *e);
int mf_block_play_add(mf_block_play *b, const mf_block *block, unsigned passes);

/* What the device copies to or from the place from where, or to where, an op copies beside another
 * block, is waited for by all of its block; 0 for most ops and programs. */
double mf_block_staged_s(const mf_cost *cost, const mf_op *op, double load);
/* What a software profile leaves exposed of each stream; *inside: of MF_STREAM_DP where it stays
 * inside a domain. */
void mf_block_exposed(const mf_cost *cost, double exposed[MF_STREAM_COUNT], double *inside);
/* Price of an op, beside which compute is slowed by what it takes. */
void mf_block_price(const mf_cost *cost, const mf_op *op, double load, mf_play_op *q);

#endif
