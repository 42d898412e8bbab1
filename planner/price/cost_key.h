/* cost_key.h - what a block depends on, of its key and of the layout: the expert side where
 * experts are, samples and CP apart where there is attention, ZeRO where it gathers or reduces
 * inside the block, the GPUs of the job where it copies to the host. Neither PP, VPP nor the
 * schedule (but for whether it splits the weight gradient).
 */
#ifndef MF_PLANNER_COST_KEY_H
#define MF_PLANNER_COST_KEY_H

#include "core/program/lower.h"

#define MF_COST_KEY_WORDS 6
/* The bits of words 4 and 5, of each block one, that say what it keeps. */
#define MF_COST_KEY_MEMORY (UINT64_C(0xffffffff) << 20)
typedef struct mf_cost_key {
    uint64_t word[MF_COST_KEY_WORDS];
} mf_cost_key;

/* Of a block (b NULL), or of a merged pair of the forward pass of a with the backward pass of b. */
mf_cost_key mf_cost_key_of(const mf_model *m, const mf_layout *l, const mf_block_key *a,
                           const mf_block_key *b, bool exact);
/* Blocks of one cache entry differ at most in the sizes of data-parallel groups, which change the
 * prices of gathers and reductions (mf_priced_regroup) and nothing else. */
mf_cost_key mf_block_cache_key_of(const mf_model *m, const mf_layout *l, const mf_block_key *k);

/* The greatest, of numbers from 1 on. */
int64_t mf_common_divisor(int64_t a, int64_t b);
uint64_t mf_cost_key_hash(const mf_cost_key *key);
bool mf_cost_key_same(const mf_cost_key *a, const mf_cost_key *b);

#endif
