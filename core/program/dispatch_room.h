/* dispatch_room.h - what a fused dispatcher of this project's own keeps for the whole run: a window
 * that the GPUs of an NVLink domain write into (kernels/dispatch/dispatch.h), one for all layers
 * and passes, and which rows of it arrived.
 */
#ifndef MF_CORE_DISPATCH_ROOM_H
#define MF_CORE_DISPATCH_ROOM_H

#include "core/program/program.h"

/* Most ranks, choices of a token. */
enum { MF_WINDOW_RANKS_MAX = 32, MF_WINDOW_TOP_K_MAX = 32 };

/* Bytes. A side is a block at work: one, or the two of a merged pair. */
typedef struct mf_dispatch_room {
    int64_t window_B; /* mf_dispatch_window_B of the shape, whose partial sums lie where rows do */
    int64_t side_B;   /* of each side: map_B and local_B */
    int64_t map_B;    /* row map of all ranks' tokens into the rows that arrive */
    int64_t local_B;  /* [ep * tokens, top_k] choices as this rank sees them */
    int64_t back_B;   /* [ep * tokens, top_k] gradients of probabilities on their way back */
    int sides;
} mf_dispatch_room;

/* Of a dispatch or combine of block b; all 0: it does not go through a window. It does where the
 * group is inside one NVLink domain, rows are of two bytes an element, and no program but this one
 * trains (mf_layout.traits). */
mf_dispatch_room mf_dispatch_room_of(const mf_layout *l, const mf_cluster *c, const mf_block *b,
                                     const mf_op *op);

/* All of it. */
int64_t mf_dispatch_room_B(const mf_dispatch_room *r);
/* Without the window. */
int64_t mf_dispatch_kept_B(const mf_dispatch_room *r);

#endif
