/* overlap_loss.h - the least time that passes lose to parameter gathers and gradient reductions.
 *
 * In the simulator (simulator/step_chunk.c), while the step-end stream is busy for `left` more
 * seconds, a block that takes t loses e x min(left, t / (1 - e)) with e >= `lost`. Paths need
 * figures that hold for every assignment, so these rest on the least that virtual stages hold: one
 * position each in a family (family_mean.c), or the figures of a partition (loss_figures.c).
 *
 * Gathers: from the start of the step all stages gather for a window of some length at least. A
 * path is passes and sends without waits between. Passes in the window take 1 / (1 - e) of their
 * time; the rest of the window is sends, at most two between passes through layers.
 */
#ifndef MF_PLANNER_OVERLAP_LOSS_H
#define MF_PLANNER_OVERLAP_LOSS_H

#include "planner/order/order.h"

/* Least figures of a virtual stage, for the positions that it holds at least. */
typedef struct mf_loss_stage {
    double f_s, b_s, w_s, gather_s; /* all of them together */
    double first_s;                 /* the first block of its last backward pass */
    double last_s;                  /* the last block of its first forward pass */
    double reduce_s;   /* from its last backward pass on: the block that is reduced last at least */
    double own_most_s; /* the most by which OWN_LOST exceeds the true loss */
    /* highest speed of reductions beside its forward, backward and weight gradient passes, whose
     * exchanges use the network, too (mf_step_overlap_rate) */
    double f_rate, b_rate, w_rate;
    bool layer; /* not only the embedding or the head */
} mf_loss_stage;

typedef struct mf_loss_figures {
    const mf_layout *l;
    const mf_order_summary *order;
    double send_s, hold_s, lost;
    double cutoff_s; /* the step takes less; INFINITY = any */
    /* Layers and MTP depths of the model; least time of a micro-batch's passes through any of them
     * (0: not known); least time of its gathers. */
    int layers;
    double layer_s, layer_gather_s;
    const mf_loss_stage *stage; /* [vstages] */
} mf_loss_figures;

/* Does the summary tell how the order ends? It may be that of fewer micro-batches. */
bool mf_order_end_known(const mf_layout *l);
/* Points losses into figures[MF_ORDER_LOSS_DOUBLES(vstages)]. */
void mf_order_losses_init(mf_order_losses *x, double *figures, int vstages);
/* out: initialised. No loss where collectives of the step's end do not overlap passes. */
void mf_overlap_losses(const mf_loss_figures *x, mf_order_losses *out);

#endif
