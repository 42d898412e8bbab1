/* stage_bound.h - the least step that one pipeline stage allows, from sums of its times.
 *
 * A stage with forward and backward passes F, B (and W when weight gradients are split off) of each
 * of M micro-batches, played in a known order:
 *
 *   (a) work        T >= way in + all events of the stage + way out
 *   (b) first back  T >= one micro-batch forward through all stages and back to this one
 *                        + all events of the stage from its first backward pass on + way out
 *   (c) reductions  T >= way in + events before the last micro-batch's weight gradients
 *                        + the stage's gradient reductions
 *   (d) gathers     T >= the stage's parameter gathers + events after its first forward pass
 *                        + way out
 *   (e) host        T >= host time of all events
 *
 * each plus the end of the step, less what the first micro-batch's weight gradients save on the
 * way: those of the stage itself; of all in (b), and where the first micro-batch is the last and
 * goes the way out. The way in is the forward pass of a micro-batch through the
 * stages before, the way out its backward pass, beside which this stage has its norm. All sums may
 * be lower bounds themselves: the result only grows with each of them. Used for families of layouts
 * (family_bound.c).
 */
#ifndef MF_PLANNER_STAGE_BOUND_H
#define MF_PLANNER_STAGE_BOUND_H

#include "core/layout/layout.h"
#include "core/program/lower.h"
#include "planner/order/order.h"

#include <stdbool.h>

/* fmax and fmin of numbers that are no NaN: calls into libm cost more than the bounds themselves.
 */
static inline double mf_larger(double a, double b) {
    return a > b ? a : b;
}
static inline double mf_smaller(double a, double b) {
    return a < b ? a : b;
}

/* How passes are played. */
typedef enum mf_pass_mode {
    MF_PASS_MODE_PLAIN,
    MF_PASS_MODE_SPLIT,  /* weight gradients apart */
    MF_PASS_MODE_MERGED, /* one micro-batch's forward beside another's backward */
    MF_PASS_MODES
} mf_pass_mode;
mf_pass_mode mf_pass_mode_of(mf_schedule_kind k);

typedef struct mf_stage_sums {
    double time_s;             /* all passes of one micro-batch, as the mode plays them together */
    double plain_s;            /* the same passes alone, no pairs */
    double f_s, b_s, w_s;      /* least of each pass alone */
    double host_s;             /* of one micro-batch */
    double hold_s;             /* time for which one micro-batch's sends block the stage */
    double gather_s, reduce_s; /* of a step, beside the passes */
    double exposed_s;          /* of a step: the part of these that passes wait for in any case */
    double in_s, out_s;        /* ways in and out */
    double behind_s;           /* one chunk: forward and backward through the later stages, with
                                * sends. Several chunks: forward through the whole model */
    double norm_s;             /* after the last pass; beside the way out of others */
    double step_end_s;         /* update and the fixed end of the step */
    /* Time saved by weight gradients of the first micro-batch: on this stage, on all stages. Not
     * yet subtracted above. */
    double anew_s, all_anew_s;
    int layers; /* of the kind that counts (mf_order_summary) */
} mf_stage_sums;

/* Least time that passes lose to gathers (or reductions) beside them: the exposed share of these,
 * without one position of each chunk, and at most of the time of the micro-batch's passes. exposed
 * 1: nothing overlaps, all of it counts. */
double mf_stage_exposed_s(double exposed, double collective_s, double uncounted_s, double beside_s);

/* Bytes of weights, gradients and optimizer states, without rounding of shards: the sums of a stage
 * are rounded. */
double mf_persistent_B(const mf_layout *l, mf_param_count params);

/* Bound of a step by stage p of a layout with this order. INFINITY if the passes' times are (no
 * choice keeps so little: the stage fits nowhere). Never a NaN. */
double mf_stage_bound_s(const mf_layout *l, const mf_order_summary *o, int64_t p,
                        const mf_stage_sums *x);

#endif
