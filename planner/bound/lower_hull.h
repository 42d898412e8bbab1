/* lower_hull.h - what main layers on stages add to a mean of paths, by memory choice.
 *
 * A layer on a stage adds what it does on that one of its virtual stages where it adds least, and
 * less if it may save more. Stages mix choices in any proportion (mean_bound.h).
 */
#ifndef MF_PLANNER_LOWER_HULL_H
#define MF_PLANNER_LOWER_HULL_H

#include "planner/order/order.h"

/* A memory choice of a main layer on a stage: what it saves, and what it adds to the mean on that
 * one of the stage's virtual stages where it adds least. */
typedef struct mf_time_memory_point {
    double saved_B, time_s;
} mf_time_memory_point;

/* Leaves the lower hull of the points, fastest first; returns their number. */
int mf_lower_hull_make(mf_time_memory_point *w, int n);
/* Least time of a layer that may keep so much; INFINITY when no choice keeps so little. */
double mf_lower_hull_time_s(const mf_time_memory_point *w, int n, double saved_B);

/* What k of so many main layers add together on stage p, k = 0 .. layers, where a stage has free_B
 * for them and what they keep of the micro-batches that are in flight at least: convex; INFINITY
 * from where they do not fit. w[n]: the lower hull of the choices of one. */
void mf_layers_curve(const mf_order_summary *o, int p, int layers, double free_B, double layer_B,
                     const mf_time_memory_point *w, int n, double *curve_s);

/* Layer by layer to the stage that bears it best. curve_s[stages][layers + 1]: what so many layers
 * add together, convex. held[stages]: what each holds in any case, grows by what it got. INFINITY
 * when they do not fit. */
double mf_place_layers(const double *curve_s, int stages, int layers, int *held);

#endif
