/* dispatch_memory.h - what moefold's own fused dispatcher keeps for the whole run: a window that
 * the GPUs of an NVLink domain write into (kernels/dispatch/dispatch.h), one for all layers and
 * passes, and what a rank knows of the tokens that arrived in it. */
#ifndef MF_CORE_DISPATCH_MEMORY_H
#define MF_CORE_DISPATCH_MEMORY_H

#include "core/program/program.h"

/* Upper limits of ranks and of choices of a token. */
enum { MF_WINDOW_RANKS_MAX = 32, MF_WINDOW_TOP_K_MAX = 32 };

/* Bytes. A side is a running block: one, or the two of a merged pair. */
typedef struct mf_dispatch_memory {
    int64_t
        window_B;   /* mf_dispatch_window_B of the shape; partial sums use the same bytes as rows */
    int64_t side_B; /* of each side: map_B and local_B */
    int64_t map_B;  /* row map from all ranks' tokens to the rows that arrive; 0 where rows go
                       directly into the experts' order, by a map that the layer keeps */
    int64_t local_B; /* [ep * tokens, top_k] choices as this rank sees them */
    int64_t back_B;  /* [ep * tokens, top_k] gradients of probabilities on their way back */
    int sides;
} mf_dispatch_memory;

/* The shape of what a rank routes. */
typedef struct mf_routed_shape {
    int64_t tokens, top_k, cols;
    double element_B;
} mf_routed_shape;

/* True when rows go to experts and back through a window: the group is inside one NVLink domain,
 * rows have two bytes an element, and moefold itself trains (mf_layout.traits is empty). c: NULL
 * for none. */
bool mf_dispatch_has_window(const mf_layout *l, const mf_cluster *c, const mf_routed_shape *s);
/* True when dispatch and combine put rows into the order of experts and take them out of it, so
 * that no permute and unpermute stand between them (MF_OP_DIM_ORDERED): where rows go through a
 * window, and on CPU ranks, unless ETP ranks have the same rows before they are put into order. */
bool mf_dispatch_orders(const mf_layout *l, const mf_cluster *c, const mf_routed_shape *s);

/* Tokens that come to a rank from those of its EP group when routing is balanced: each token once
 * to each rank that it reaches. `tokens`: of one rank. */
int64_t mf_dispatch_arriving(const mf_model *m, const mf_layout *l, int64_t tokens);

/* The shape of a dispatch or combine of block b; all 0: it does not go through a window. */
mf_dispatch_memory mf_dispatch_memory_of(const mf_layout *l, const mf_cluster *c, const mf_block *b,
                                         const mf_op *op);

/* All of its bytes. */
int64_t mf_dispatch_memory_B(const mf_dispatch_memory *r);
/* Without the window. */
int64_t mf_dispatch_kept_B(const mf_dispatch_memory *r);

#endif
