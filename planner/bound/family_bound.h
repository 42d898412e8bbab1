/* family_bound.h - bounds of whole families of layouts, from the times of a few layers.
 *
 * The layer times of one attention side and one expert side bound every layout with these sides:
 * all pipeline degrees, orders, ZeRO levels and assignments. Bounds cost more and get tighter as
 * more of the layout is fixed; none is above the simulated step of any layout in the family
 * (tests/property/test_planner_bound.c).
 */
#ifndef MF_PLANNER_FAMILY_BOUND_H
#define MF_PLANNER_FAMILY_BOUND_H

#include "planner/bound/lower_hull.h"
#include "planner/bound/stage_bound.h"
#include "planner/order/path_mean.h"
#include "planner/price/cost_cache.h"
#include "planner/space/space.h"

/* Least times of one micro-batch, each with the choice that keeps everything. */
typedef struct mf_family_bound_pass {
    double f_s, b_s, w_s;         /* each pass alone; w_s where priced apart, else in b_s */
    double time_s[MF_PASS_MODES]; /* forward and backward together, as the mode plays them */
    double pair_f_s, pair_b_s;    /* portions of a merged pair if backward passes keep their time */
    double full_f_s, rest_b_s;    /* ... if forward passes do */
    double ep_f_s, ep_b_s;        /* exchanges of each */
    double compute_s;             /* of both: what they take at least beside any other passes */
} mf_family_bound_pass;

void mf_family_bound_add_pass(mf_family_bound_pass *sum, const mf_family_bound_pass *p,
                              double times);
void mf_family_bound_add_params(mf_param_count *sum, const mf_param_count *p, int64_t times);

/* After the last pass, for a block with these parameters (step_end; nothing where that is of none).
 */
double mf_family_bound_norm_s(const mf_step_end_cost *t, const mf_param_count *params);
double mf_family_bound_update_s(const mf_step_end_cost *t, const mf_param_count *params);

/* Main layers are those with the model's more common kind of FFN, or all layers where many have the
 * other one: bounds count them by stage. If they are of several classes, bounds of stages charge
 * each as the cheapest class, means of paths tell them apart. */
bool mf_family_bound_is_main(const mf_model *m, int layer_class);
int mf_family_bound_layers(const mf_model *m);
/* How many kinds main layers are of. */
int mf_family_bound_kinds(const mf_model *m);
/* The longest run of positions that are all main layers. */
void mf_family_bound_run(const mf_model *m, int *first, int *last);

/* Time of a layer's passes over what it keeps: a convex curve, from the fastest choice on. */
#define MF_FAMILY_POINTS 64
typedef struct mf_family_bound_hull {
    int points; /* 0: not known, charged no time */
    mf_time_memory_point point[MF_FAMILY_POINTS];
} mf_family_bound_hull;

/* Positions of one kind, other than main layers. */
typedef struct mf_family_bound_other {
    int count, first, last; /* positions of the first and the last one */
    mf_family_bound_pass pass;
    mf_param_count params;
    double gather_s, reduce_s; /* at the end of a step */
    double anew_s;             /* saved by each in its first micro-batch's weight gradients */
} mf_family_bound_other;
#define MF_FAMILY_OTHERS 16

/* Every memory choice of main layers: bytes that it saves, its passes, and the least bytes that
 * any choice holds between a backward pass and its weight gradients. */
typedef struct mf_family_bound_choices {
    int count;
    uint8_t kind[MF_FAMILY_POINTS]; /* of main layers, if these are of several kinds */
    double saved_B[MF_FAMILY_POINTS], held_B;
    mf_family_bound_pass pass[MF_FAMILY_POINTS];
} mf_family_bound_choices;

typedef struct mf_layer_times {
    mf_family_bound_pass all;   /* every position of the model */
    mf_family_bound_pass layer; /* a main layer */
    int layers;                 /* main layers */
    int positions;              /* of the model */
    int first, last;            /* the longest run of positions that are all main layers */
    mf_family_bound_pass embedding, head;
    double f_least_s, b_least_s;                                /* of any layer */
    mf_param_count layer_params, embedding_params, head_params; /* of one rank */
    mf_param_count all_params;                                  /* of the model */
    const mf_family_bound_hull
        *hull; /* [2] of a main layer: as the mode plays it, and passes alone; */
    const mf_family_bound_choices *choices;                /* NULL: not known; both borrowed */
    double layer_comm_B, layer_gather_B, layer_boundary_B; /* buffers, where a stage holds any */
    double work_B,
        end_work_B[2];  /* least workspaces, of any layer, embedding and head; 0: not known */
    double pair_more_s; /* merged: time of a pair of main layers beyond its portions */
    /* merged, without pair_more_s: what a pair of main layers takes beyond compute at most; what
     * the two passes alone take longer at least */
    double hidden_s, spare_s;
    double end_least_s[2]; /* merged: of embedding and head, what is sure beside any choice */
    /* merged: the backward portion of such a pair beyond its compute, in either set; forward passes
     * of other positions are charged that much less */
    double pair_excess_s, full_excess_s;
    /* Main layers of several kinds: so many, else 0. Each has an entry of `other` behind the
     * others, with figures of its own; `divided`, portions of pairs too. */
    int kinds;
    bool divided;
    /* Saved in a first micro-batch's weight gradients: by all positions together, by a main layer
     * at least and at most, by the head. */
    double anew_s, layer_anew_s[2], head_anew_s;
    double layer_gather_s, layer_reduce_s; /* at the end of a step */
    double beside_s; /* least reduction of the block before a main layer in a backward pass */
    double lost;     /* least share of these that passes beside them lose; 0: not known */
    /* last: mf_layer_times_copy leaves out unused entries */
    int others;
    mf_family_bound_other other[MF_FAMILY_OTHERS]; /* ends and heads of MTP depths included, then
                                                    * the kinds of main layers */
} mf_layer_times;

/* Copies only the entries of `other` that are in use: copies are frequent, and most are unused. */
void mf_layer_times_copy(mf_layer_times *to, const mf_layer_times *from);

/* The attention side alone (expert degrees of `l` are ignored): FFNs at the FLOP limit. */
mf_status mf_layer_times_dense(mf_block_costs *q, const mf_layout *l, mf_layer_times *out,
                               mf_err *e);
/* Both sides, from the costs of the halves of layers. */
mf_status mf_layer_times_halves(mf_block_costs *q, const mf_layout *l, mf_layer_times *out,
                                mf_err *e);
/* Both sides, whole layers, ZeRO as in `l`; without hulls and without what runs at the end of a
 * step. */
mf_status mf_layer_times_whole(mf_block_costs *q, const mf_layout *l, mf_layer_times *out,
                               mf_err *e);
/* The same from paths through blocks, which hold for every memory choice: gathers inside a block
 * may hide behind what the passes beside them recompute. */
mf_status mf_layer_times_paths(mf_block_costs *q, const mf_layout *l, mf_layer_times *out,
                               mf_err *e);
/* Raises passes to those of `with`, times of the same blocks, and takes over its buffers. If r has
 * choices, they are copied to *choices and raised, too; r then borrows *choices. */
void mf_layer_times_larger(mf_layer_times *r, const mf_layer_times *with,
                           mf_family_bound_choices *choices);
/* Adds the simulated hulls of a main layer over the catalogue, its choices and the least
 * workspaces. r borrows `hull` and *choices. */
mf_status mf_layer_times_exact_hull(mf_block_costs *q, const mf_layout *l, uint32_t pinned,
                                    mf_layer_times *r, mf_family_bound_hull hull[2],
                                    mf_family_bound_choices *choices, mf_err *e);

/* Any pipeline degree, any order in `modes` (bits by mode): work spread evenly over all stages.
 * rounds: micro-batches by pipeline degree, gbs * tp * cp / (mbs * gpus). */
double mf_family_bound_work_s(const mf_layer_times *r, unsigned modes, double rounds,
                              double fixed_s);
/* A pipeline degree: some stage holds at least the mean number of main layers, rounded up. */
double mf_family_bound_stages_s(const mf_layer_times *r, unsigned modes, int64_t pp,
                                int64_t micro_batches, double fixed_s);

/* A whole layout, with the summary of its order; INFINITY when its parameters and the least
 * activations do not fit. A bound at or above enough_s may be lower than it could be. */
typedef struct mf_family_bound_fixed {
    double send_s, hold_s, fixed_B, usable_B;
    double tables_B;      /* buffers at least where embedding or head stand, on different stages */
    double tables_comm_B; /* communicators there */
    mf_step_end_cost step_end;
} mf_family_bound_fixed;
double mf_family_bound_layout_s(const mf_layer_times *r, const mf_layout *l,
                                const mf_order_summary *o, const mf_family_bound_fixed *f,
                                double enough_s);

/* The same by means of paths that were found for the layout's order (mean_bound.h): the best of
 * them, or the first at or above enough_s. Holds for plans that take less than cutoff_s (INFINITY =
 * any). 0: none of them holds for it. *effort_ns grows by what is counted. */
double mf_family_bound_mean_s(const mf_layer_times *r, const mf_layout *l,
                              const mf_order_summary *o, const mf_family_bound_fixed *f,
                              const mf_path_set *const *set, int sets, double enough_s,
                              double cutoff_s, int64_t *effort_ns);

#endif
