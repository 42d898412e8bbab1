/* lower_attention.h - private to lowering: what attention's projections and its core both need. */
#ifndef MF_CORE_LOWER_ATTENTION_H
#define MF_CORE_LOWER_ATTENTION_H

#include "core/program/lower_build.h"

typedef struct mf_lower_heads {
    int64_t heads, kv_heads; /* of this TP rank; KV heads are replicated where TP exceeds them */
    bool copies;             /* TP ranks hold the same K and V heads */
    int64_t d_qk, d_v;
    int64_t tokens; /* of this CP rank, all TP ranks together */
    int64_t window;
    bool chunked;  /* inside chunks of `window` positions */
    bool k_is_v;   /* values are the projected keys */
    bool sparse;   /* over the `window` best keys */
    double scale;  /* of scores */
    int16_t sinks; /* a learned logit for each head, in every softmax; MF_NO_TENSOR */
    double pairs;  /* (query, key) pairs per head of the whole micro-batch */
} mf_lower_heads;

/* Core attention of q, k and v over the CP group: the tensor of its output (lower_context.c). */
int16_t mf_lower_context(mf_build *bd, const mf_lower_heads *a, int16_t q, int16_t k, int16_t v);

/* The same where keys [of the whole samples, d_qk] are already gathered and are the values, too. */
int16_t mf_lower_shared_keys(mf_build *bd, const mf_lower_heads *a, int16_t q, int16_t keys);

/* Does attention go over chosen keys here (lower_sparse.c)? Then: from queries of all heads
 * [tokens, heads x (nope + rope)] and latents [tokens, kv_lora_rank + rope], its output [tokens,
 * heads x v]. */
bool mf_lower_is_sparse(const mf_build *bd);
int16_t mf_lower_sparse(mf_build *bd, mf_lower_heads a, int16_t q, int16_t latents);
/* Which keys each query chooses, from the layer's input and the low-rank queries (or none). */
void mf_lower_indexer(mf_build *bd, int16_t xn, int16_t q_low);
/* What an indexer scores and learns from. */
typedef struct mf_lower_choice {
    int16_t q, k,
        weights;    /* own queries of all heads, keys of the whole samples, a weight a head */
    int64_t keys;   /* of a sample */
    double scored;  /* pairs of this rank whose scores are made */
    double chosen;  /* of these */
    double teacher; /* columns of a key that attention itself scores by */
} mf_lower_choice;
void mf_lower_choose(mf_build *bd, const mf_lower_choice *c);
/* Rows of all ranks of a group that hold tokens of the same samples. */
int16_t mf_lower_gather_samples(mf_build *bd, const char *name, mf_group_kind group, int16_t x);
/* Attention in a window and over compressed keys (lower_compressed.c), from the layer's normed
 * input to what its output projection gives. */
int16_t mf_lower_compressed(mf_build *bd, int16_t xn);
/* The weights of an indexer that chooses blocks of keys (MiniMax-M3), where the layer has one. They
 * are stored and neither run nor trained, as Megatron-Bridge has it: attention goes over all keys.
 */
void mf_lower_block_indexer(mf_build *bd);

#endif
