/* dispatch_memory.h - what a fused dispatcher of this project's own keeps for the whole run: a
 * window that the GPUs of an NVLink domain write into (kernels/dispatch/dispatch.h), one for all
 * layers and passes, and what is known of the tokens that arrived in it.
 */
#ifndef MF_CORE_DISPATCH_MEMORY_H
#define MF_CORE_DISPATCH_MEMORY_H

#include "core/program/program.h"

/* Most ranks, choices of a token. */
enum { MF_WINDOW_RANKS_MAX = 32, MF_WINDOW_TOP_K_MAX = 32 };

/* Bytes. A side is a block at work: one, or the two of a merged pair. */
typedef struct mf_dispatch_memory {
    int64_t window_B; /* mf_dispatch_window_B of the shape, whose partial sums lie where rows do */
    int64_t side_B;   /* of each side: map_B and local_B */
    int64_t map_B;    /* row map of all ranks' tokens into the rows that arrive; 0 where rows go
                         into the experts' order at once, by a map that the layer keeps */
    int64_t local_B;  /* [ep * tokens, top_k] choices as this rank sees them */
    int64_t back_B;   /* [ep * tokens, top_k] gradients of probabilities on their way back */
    int sides;
} mf_dispatch_memory;

/* What a rank routes. */
typedef struct mf_routed_shape {
    int64_t tokens, top_k, cols;
    double element_B;
} mf_routed_shape;

/* Do rows go to experts and back through a window? They do where the group is inside one NVLink
 * domain, rows are of two bytes an element, and no program but this one trains (mf_layout.traits).
 * c: NULL for none. */
bool mf_dispatch_has_window(const mf_layout *l, const mf_cluster *c, const mf_routed_shape *s);
/* Do dispatch and combine put rows into the order of experts and take them out of it, so that no
 * permute and unpermute stand between them (MF_OP_DIM_ORDERED)? They do where rows go through a
 * window, and on CPU ranks, unless ETP ranks share rows before they are put into order. */
bool mf_dispatch_orders(const mf_layout *l, const mf_cluster *c, const mf_routed_shape *s);

/* Tokens that come to a rank from those of its EP group when routing is balanced: each token once
 * to each rank that it reaches. `tokens`: of one rank. */
int64_t mf_dispatch_arriving(const mf_model *m, const mf_layout *l, int64_t tokens);

/* Of a dispatch or combine of block b; all 0: it does not go through a window. */
mf_dispatch_memory mf_dispatch_memory_of(const mf_layout *l, const mf_cluster *c, const mf_block *b,
                                         const mf_op *op);

/* All of it. */
int64_t mf_dispatch_memory_B(const mf_dispatch_memory *r);
/* Without the window. */
int64_t mf_dispatch_kept_B(const mf_dispatch_memory *r);

#endif
