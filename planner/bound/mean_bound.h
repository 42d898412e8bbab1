/* mean_bound.h - the least that the main layers of a layout add to a mean of paths.
 *
 * A mean of paths visits every virtual stage about equally often, so it hardly matters where layers
 * stand. What is left to decide is how many main layers each stage takes. The cost of k layers is
 * convex in k, since a stage runs out of memory, so giving layer after layer to the stage where it
 * adds least is optimal.
 *
 * Memory: take any moment of the schedule (a row of in-flight micro-batches by chunk) and any price
 * of a byte. If layers pay that price for what they keep beyond the memory that is left, they add
 * no more than they really do. Each layer then picks its chunk and its memory choice independently,
 * so the price bounds the cost of k layers by a line in k; the curve of a stage is the highest of
 * these lines.
 *
 * Kinds: a stage takes any of the layers, so that kinds that take little would stand for all of
 * them. But how many layers of each kind there are is known. Each kind is charged as much less as
 * it takes more than the mean layer, where stages are all alike, and the model as a whole that much
 * more. Whatever is charged less, the sum of both is a bound: every layer of a kind is charged less
 * by as much as the model more. Then kinds are about alike, and it hardly matters which of them a
 * stage takes.
 *
 * The figures are those of a family of layouts (family_mean.c) or of one partition
 * (partition_mean.c).
 */
#ifndef MF_PLANNER_MEAN_BOUND_H
#define MF_PLANNER_MEAN_BOUND_H

#include "planner/bound/lower_hull.h"
#include "planner/order/path_mean.h"

/* The most memory choices of a main layer on a virtual stage, and the most stages. */
#define MF_MEAN_POINTS 256
#define MF_MEAN_STAGES 512

/* The parts that a mean of paths visits at all. */
typedef struct mf_mean_parts {
    int count;
    mf_order_part part[MF_ORDER_PARTS];
    const double *visits[MF_ORDER_PARTS]; /* [vstages] of each */
} mf_mean_parts;

mf_mean_parts mf_mean_parts_of(const mf_path_set *c);
/* What a position that takes part_s[count] in these parts adds to the mean on virtual stage v. */
static inline double mf_mean_visit_s(const mf_mean_parts *x, const double *part_s, int v) {
    double sum_s = 0.0;
    for (int i = 0; i < x->count; i++) {
        sum_s += x->visits[i][v] * part_s[i];
    }
    return sum_s;
}

/* Layers of a kind: how many, and the persistent bytes of each at least. */
typedef struct mf_mean_kind {
    int count;
    double layer_B;
} mf_mean_kind;

typedef struct mf_mean_layers {
    const mf_layout *l;
    const mf_order_summary *order;
    int layers;           /* that count: main layers of the model, or all, by kind */
    int positions;        /* of the model */
    int first, last;      /* the longest run of positions that are all main layers */
    double layer_B;       /* persistent, of each at least */
    const double *free_B; /* [stages] for them and what they keep */
    bool priced;          /* with prices of bytes, which takes longer; else every byte is free */
    /* Kinds that are told apart (at most MF_MODEL_MAX_CLASSES); fewer than two: every layer counts
     * as the kind that suits it best. */
    int kinds;
    const mf_mean_kind *kind;
    /* Writes the points of a layer (of a kind, where these are told apart) on virtual stage v, one
     * for each memory choice, and the least that any holds between backward pass and weight
     * gradient; returns their number. */
    int (*points)(const void *self, int v, int kind, mf_time_memory_point point[MF_MEAN_POINTS],
                  double *held_B);
    const void *self;
} mf_mean_layers;

/* Seconds; INFINITY: they do not fit; -INFINITY: there are more layers, stages or points than it
 * can hold. *effort_ns grows by what it takes. */
double mf_mean_layers_s(const mf_mean_layers *x, int64_t *effort_ns);

#endif
