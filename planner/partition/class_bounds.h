/* class_bounds.h - private to partition: the least bytes of classes, and what main layers take more
 * for want of memory.
 */
#ifndef MF_PLANNER_CLASS_BOUNDS_H
#define MF_PLANNER_CLASS_BOUNDS_H

#include "planner/bound/lower_hull.h"
#include "planner/bound/stage_bound.h"
#include "planner/partition/partition.h"

#define MF_CLASS_BOUNDS_MAX 64

/* Least bytes of a class. */
typedef struct mf_class_bound {
    double persistent_B, comm_B, gather_B, boundary_B;
    double workspace_B; /* least that any choice needs while it runs */
} mf_class_bound;

typedef struct mf_class_bounds {
    const mf_partition *in;
    mf_class_bound main; /* under all classes of main layers (family_bound.h), or of any layers */
    /* Lower hull of main layers' choices: what passes of a micro-batch take more than the least
     * that any choice's take, by what is saved. Of several classes no more than the least that any
     * of them saves is known. */
    mf_time_memory_point point[MF_MODEL_MAX_CLASSES * MF_CATALOGUE_MAX];
    int points;
} mf_class_bounds;

/* in: of MF_CLASS_BOUNDS_MAX classes at most. any: not main layers alone. */
void mf_class_bounds_make(const mf_partition *in, bool any, mf_class_bounds *out);

/* Bytes of a stage that are left for main layers and what its micro-batches save. */
double mf_main_free_B(const mf_class_bounds *f);

#endif
