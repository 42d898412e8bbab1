/* lower_attention.h - private to lowering: what attention's projections and its core share. */
#ifndef MF_CORE_LOWER_ATTENTION_H
#define MF_CORE_LOWER_ATTENTION_H

#include "core/lower_build.h"

typedef struct mf_lower_heads {
    int64_t heads, kv_heads; /* of this TP rank; KV heads replicated where TP exceeds them */
    int64_t d_qk, d_v;
    int64_t tokens; /* of this CP rank, all TP ranks together */
    int64_t window;
    int16_t sinks; /* a learned logit for each head, in every softmax; MF_NO_TENSOR */
    double pairs;  /* (query, key) pairs per head of the whole micro-batch */
} mf_lower_heads;

/* Core attention of q, k and v over the CP group: the tensor of its output (lower_context.c). */
int16_t mf_lower_context(mf_build *bd, const mf_lower_heads *a, int16_t q, int16_t k, int16_t v);

#endif
