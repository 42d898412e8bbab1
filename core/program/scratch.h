/* scratch.h - memory that ops need beside their operands whatever kernels the device has: what is
 * packed for other ranks, what arrives from them, parts of results. The memory plan counts it
 * (mf_block.scratch_B), and a device with kernels of its own adds theirs. */
#ifndef MF_CORE_SCRATCH_H
#define MF_CORE_SCRATCH_H

#include "core/program/program.h"

/* Scratch of an op that moves rows between ranks; 0: none. */
int64_t mf_op_exchange_B(const mf_layout *l, const mf_model *m, const mf_block *b, const mf_op *op);

/* Scratch of attention: sinks in float; over context-parallel ranks statistics by sequence, and in
 * gradients the part that is added. */
int64_t mf_op_attention_B(const mf_layout *l, const mf_block *b, const mf_op *op);

/* First places of a stable sort of so many slots into so many runs (kernels/moe/permute.h). */
int64_t mf_permute_places_B(int64_t slots, int64_t runs);

#endif
