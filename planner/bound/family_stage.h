/* family_stage.h - private to the bounds of families: what a stage holds besides main layers, and
 * the memory that is left for these.
 */
#ifndef MF_PLANNER_FAMILY_STAGE_H
#define MF_PLANNER_FAMILY_STAGE_H

#include "planner/bound/family_bound.h"

enum { MF_FAMILY_STAGES = 512 };

/* What a stage holds besides layers of the main class. */
typedef struct mf_family_bound_ends {
    double time_s, plain_s, f_s, b_s, w_s;
    double least_s; /* merged: of time_s, what is sure beside any choice of main layers */
    double anew_s;  /* time saved by weight gradients of the first micro-batch */
    double used_B;  /* persistent */
    bool tables;    /* it holds the embedding or the head, another stage the other one */
    double work_B;  /* least workspace of these and layers */
} mf_family_bound_ends;

/* A layout that is bounded. */
typedef struct mf_family_bound_layout {
    const mf_layer_times *r;
    const mf_layout *l;
    const mf_order_summary *o;
    const mf_family_bound_fixed *f;
    mf_pass_mode mode;
    double layer_B;          /* persistent, of a main layer */
    double free_B;           /* of a stage that holds one, buffers aside */
    double norm_s, update_s; /* after the last pass, of a main layer */
} mf_family_bound_layout;

mf_family_bound_ends mf_family_bound_ends_of(const mf_layer_times *r, const mf_layout *l,
                                             int64_t p);
mf_family_bound_layout mf_family_bound_layout_of(const mf_layer_times *r, const mf_layout *l,
                                                 const mf_order_summary *o,
                                                 const mf_family_bound_fixed *f);
/* Memory left for activations of k main layers on a stage. */
double mf_family_bound_free_B(const mf_family_bound_layout *b, const mf_family_bound_ends *ends,
                              int k);
/* Time of a layer that may keep so many bytes of each micro-batch; INFINITY if no choice keeps so
 * little. */
double mf_family_bound_hull_at(const mf_family_bound_hull *h, double saved_B);

#endif
