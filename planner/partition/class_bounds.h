/* class_bounds.h - private to the inner problem: least figures of classes, and what a set of
 * positions costs a stage when its memory choices are mixed in any proportion.
 */
#ifndef MF_PLANNER_CLASS_BOUNDS_H
#define MF_PLANNER_CLASS_BOUNDS_H

#include "planner/bound/stage_bound.h"
#include "planner/partition/partition.h"

#define MF_NEVER_S ((double)INFINITY)
#define MF_FLOORS_MAX_CLASSES 64

/* Ways to play the passes of a micro-batch: as the schedule's mode does, or each alone; and what
 * every forward and backward pass takes more than the fastest choice's, either way. */
enum { MF_WAY_MODE, MF_WAY_ALONE, MF_WAYS_PLAYED, MF_WAY_MORE = MF_WAYS_PLAYED, MF_WAYS };

/* A step along the lower hull of a class: so many bytes less saved for so many seconds more. */
typedef struct mf_slope {
    int class;
    double time_s, saved_B, rate; /* rate = seconds by byte */
} mf_slope;

typedef struct mf_class_floor {
    double time_s[MF_WAYS], saved_B[MF_WAYS]; /* of the fastest choice: all passes of one
                                               * micro-batch */
    double f_s, b_s, w_s;                     /* least of each pass */
    double host_s, reduce_s, gather_s, norm_s, update_s;
    double persistent_B, comm_B, gather_B, boundary_B;
    double workspace_B; /* least that any choice needs while it runs */
} mf_class_floor;

typedef struct mf_floors {
    const mf_partition *in;
    mf_class_floor *of; /* [classes + 1]; the last stands for main layers (main_class) */
    int main_class;
    mf_shares shares;         /* of merged pairs; sums over a stage are of one set */
    mf_slope *slope[MF_WAYS]; /* sorted by rate */
    int slopes[MF_WAYS];
    double *f_until, *b_until;   /* [positions + 1] least seconds of the positions before */
    double f_least_s, b_least_s; /* of any position but the ends */
} mf_floors;

mf_status mf_floors_make(const mf_partition *in, mf_floors *out, mf_err *e);
void mf_floors_clear(mf_floors *f);

/* Positions that a stage holds, summed. */
typedef struct mf_load {
    int count[MF_FLOORS_MAX_CLASSES];
    double time_s[MF_WAYS], saved_B[MF_WAYS];
    double f_s, b_s, w_s, host_s, reduce_s, gather_s, norm_s, update_s;
    double gather_most_s, reduce_most_s; /* of the position that has most */
    double persistent_B, comm_B, gather_B, boundary_B;
    double workspace_B; /* of the position added last */
} mf_load;

void mf_load_add(const mf_floors *f, mf_load *x, int class);

/* Bytes that are left for what the load's micro-batches save, of `share` of the usable ones. */
double mf_load_room_B(const mf_floors *f, const mf_load *x, double share);

/* Least time of all passes when `share` of the usable bytes is for this load and `flight` of its
 * micro-batches are in flight: the fastest choices, moved along the cheapest slopes until they fit.
 * INFINITY when nothing fits. */
double mf_load_time_s(const mf_floors *f, const mf_load *x, int way, double flight, double share);

/* Least step that stage p allows with this load; in_s, out_s, behind_s, layers as in stage_bound.h.
 */
double mf_load_step_s(const mf_floors *f, const mf_load *x, const double time_s[MF_WAYS_PLAYED],
                      int p, double in_s, double out_s, double behind_s, int layers);

#endif
