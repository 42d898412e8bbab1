/* lower_hull.h - what main layers on stages add to a mean of chains, by ways to keep them.
 *
 * A layer on a stage adds what it does on that one of its virtual stages where it adds least, and
 * less if it may save more. Stages mix ways in any proportion. Used with exact costs
 * (mean_bound.c) and bounds of families (family_mean.c).
 */
#ifndef MF_PLANNER_LOWER_HULL_H
#define MF_PLANNER_LOWER_HULL_H

/* A way to keep a main layer on a stage: what it saves, and what it adds to the mean on that one of
 * the stage's virtual stages where it adds least. */
typedef struct mf_time_memory_point {
    double saved_B, time_s;
} mf_time_memory_point;

/* Leaves the lower hull of the ways, fastest first; returns their number. */
int mf_lower_hull_make(mf_time_memory_point *w, int n);
/* Least time of a layer that may keep so much; INFINITY when no way keeps so little. */
double mf_lower_hull_time_s(const mf_time_memory_point *w, int n, double saved_B);

/* Lowers y[0 .. n] to the largest convex curve that is nowhere above it. */
void mf_make_convex(double *y, int n);

/* No virtual stage is empty: all but `others` of them hold a main layer, and add what is beyond the
 * least of their stage. beyond_s[vstages] is sorted; INFINITY: none can stand there. */
double mf_least_beyond_s(double *beyond_s, int vstages, int others);

/* Layer by layer to the stage that bears it best. curve_s[stages][layers + 1]: what so many layers
 * add together, convex. held[stages]: what each holds in any case, grows by what it got. INFINITY
 * when there is no room. */
double mf_place_layers(const double *curve_s, int stages, int layers, int *held);

#endif
