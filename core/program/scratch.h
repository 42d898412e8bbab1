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

/* Gradients of attention whose sums have one order (mf_layout.deterministic) keep the score
 * gradients of their heads in memory, in BF16: of so many heads together, one piece of the op after
 * the other, that these fill a GPU and take no more than MF_ATTENTION_ORDERED_B, or of the fewest
 * that sum into one head of keys. */
#define MF_ATTENTION_ORDERED_B (512 << 20)
/* Pieces of equally many heads. */
int64_t mf_attention_ordered_pieces(int64_t batch, int64_t heads, int64_t kv_heads, int64_t seq_q,
                                    int64_t seq_k);
/* Bytes of a piece's score gradients, of these and of any shorter sequences. */
int64_t mf_attention_ordered_B(int64_t batch, int64_t heads, int64_t kv_heads, int64_t seq_q,
                               int64_t seq_k);

/* Whether gradients of attention may be those of kernels/attention/mla_grad.h, on Hopper: BF16,
 * keys of 192 and values of 128 for each query head, causal over whole sequences of a multiple of
 * 256, of 16,384 at most (two heads of which take 541 MB). They keep score gradients of two groups
 * of heads together, which take no more than MF_ATTENTION_ORDERED_B or have one head each. */
bool mf_attention_may_keep(const mf_op *op);
/* Groups of heads, each begun when the last but one has ended. */
int64_t mf_attention_kept_groups(int64_t batch, int64_t heads, int64_t seq);
/* Bytes of two groups' score gradients, and of two statistics of every row and head. */
int64_t mf_attention_kept_B(int64_t batch, int64_t heads, int64_t seq);

/* First places of a stable sort of so many slots into so many runs (kernels/moe/permute.h). */
int64_t mf_permute_places_B(int64_t slots, int64_t runs);

#endif
