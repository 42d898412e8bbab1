/* partition.h - the partition problem of one layout: which layers stand on which virtual stage, and
 * what each of them keeps, recomputes and offloads.
 *
 * Positions are grouped into segments: runs of a repeating pattern of layer classes. The unknowns
 * are counts: how many layers of (segment, place in the pattern) stand on virtual stage v with
 * memory choice m. Layers of a kind on one virtual stage are interchangeable, so counts suffice;
 * rows keep the order of positions (integer_program.c), and counts are written out in order.
 *
 * Bounds, from quick to thorough: partition_mean.c (a mean of paths), split_tree.c (whole splits,
 * planner/splits/splits.h), integer_program.c (whole layers). Plans are found by
 * planner/assign/assign.h.
 */
#ifndef MF_PLANNER_PARTITION_H
#define MF_PLANNER_PARTITION_H

#include "planner/order/order.h"
#include "planner/order/path_mean.h"
#include "planner/price/cost_cache.h"
#include "planner/space/catalogue.h"

#define MF_PARTITION_MAX_PERIOD 4
#define MF_PARTITION_VARIANTS 4

/* --- segments --------------------------------------------------------------------------------- */

/* Positions first, first + 1, ... : `repeats` times a pattern of `period` kinds of block. */
typedef struct mf_segment {
    int first, repeats, period;
} mf_segment;

/* Covers all positions in order. Returns the count; max: 2 + layers + MTP depths always suffice. */
int mf_segments(const mf_model *m, mf_segment *out, int max);

/* --- the problem ------------------------------------------------------------------------------ */

/* Sets of portions of merged pairs (pair_portions.c): the time that a pair hides is missing in the
 * forward pass's portion if backward passes keep their time, and the other way round. */
typedef enum mf_portions { MF_PORTIONS_B_FULL, MF_PORTIONS_F_FULL, MF_PORTIONS } mf_portions;

typedef struct mf_partition_choice {
    mf_memory_choice memory;
    mf_block_cost cost; /* the least of all that it stands for, wherever that is (least_cost.h) */
    /* On the hull, times are rounded down slightly, so that dominated choices can be dropped: no
     * time is above that of this choice or of those it dominates (see mf_partition_part_s). */
    bool hull;
    double f_floor_s;
    /* merged: portions of the forward and the backward pass, by set; a pair takes at least the sum
     * of its two portions of any set */
    double f_pair_s[MF_PORTIONS], b_pair_s[MF_PORTIONS];
    /* Merged: time of the pair with the backward pass of its own kind; and what its two passes take
     * when each is paired with the first choice, less one pair of the first choice
     * (mf_partition_own_pairs). */
    double pair_s, apart_s;
    /* Extra time of its forward pass, its backward pass and a pair with that, by set, if it is the
     * last of its virtual stage: its copies to and from the host have no neighbouring block. */
    double end_f_s, end_b_s, end_pair_s[MF_PORTIONS];
    double inside_f_s, inside_b_s; /* extra time of the passes if it is not the last */
    bool dear_last;   /* it is dear as the last block: takes much more there (end_copies.c) */
    double end_own_s; /* the same of the pair with its own forward pass (mf_partition_own_pairs) */
} mf_partition_choice;

/* Least extra time of the last position of a virtual stage if its choice is dear there. */
typedef struct mf_last_block_cost {
    bool any;
    double more_s[MF_ORDER_PARTS];
} mf_last_block_cost;

/* A kind of block under this layout, with its choices that no other one dominates. */
typedef struct mf_partition_class {
    mf_block_key key; /* memory aside */
    bool exchanges;   /* a layer whose rows travel over expert parallelism */
    double reduce_s, gather_s, persistent_B;
    double whole_B, scratch_B;   /* of its gradient (mf_evaluator_ops.unreduced_B) */
    double beside_s;             /* least reduction of the block before it in a backward pass */
    double own_lost_s;           /* its loss to that */
    double anew_s;               /* time saved by weight gradients of the first micro-batch */
    mf_step_overlap beside;      /* its own gathers and reductions */
    double rate[MF_ORDER_W + 1]; /* highest speed of reductions beside F, B, W of any choice */
    double f_host_s, b_host_s, w_host_s; /* least over the choices */
    double least_s[MF_ORDER_PARTS];      /* least over the choices */
    bool dear_last;                      /* some choices are dear as the last block; */
    double dear_last_s[MF_ORDER_PARTS];  /* the least that any of these adds there */
    int choices;
    mf_partition_choice choice[MF_CATALOGUE_MAX];
} mf_partition_class;

typedef struct mf_partition_slot {
    int segment, place;                  /* place in the pattern; gathered, of its first position */
    int first, count;                    /* the first of its positions; how many they are */
    int class_of[MF_PARTITION_VARIANTS]; /* by what the stage holds besides (mf_partition_variant)
                                          */
    int v_lo, v_hi;                      /* virtual stages that it can stand on */
    bool main;                           /* it holds main layers (family_bound.h) */
} mf_partition_slot;

typedef struct mf_partition {
    mf_block_costs *costs;
    const mf_evaluator *evaluator;
    const mf_model *model;
    mf_layout layout;
    int positions, vstages, stages, chunks;
    bool split, merged, own_pairs;
    bool gathered;                 /* slots are kinds, whatever the segment (mf_partition_gather) */
    bool dear_last;                /* some choice takes more as the last of a virtual stage: */
    mf_last_block_cost *last_cost; /* [vstages] */
    int segments, slots, classes;
    mf_segment *segment;
    mf_partition_slot *slot;
    mf_partition_class *class;
    int *slot_at;     /* [positions] */
    uint8_t *variant; /* [vstages] mf_partition_variant of each */
    mf_order_summary order;
    bool owns_order;
    mf_order *graph; /* made when first needed */
    double *pair_s;  /* [class][choice][class][choice] merged pairs; 0 = not asked yet; made when
                      * first needed */
    double send_s, hold_s, fixed_B, usable_B;
    double tables_B;      /* at least, of buffers on the stages of embedding and head */
    double tables_comm_B; /* of communicators there */
    mf_step_end_cost step_end;
    double lost;            /* least share of gathers and reductions that blocks beside them lose */
    int64_t *effort_ns;     /* [1] effort spent on it so far, in counted nanoseconds */
    mf_order_losses losses; /* losses of passes to them (loss_figures.c) */
} mf_partition;

/* Gets exact costs of all choices. order: summary of the layout's order, borrowed; NULL: makes one.
 * Errors: as the evaluator reports. */
mf_status mf_partition_create(mf_block_costs *costs, const mf_layout *l, uint32_t pinned,
                              const mf_order_summary *order, mf_partition **out, mf_err *e);
void mf_partition_destroy(mf_partition *in);
/* Layers of a kind become one slot, whichever segments they stand in: models whose kinds alternate
 * without a short pattern have a slot for nearly every layer otherwise. Linear programs of splits
 * are as tight with either, since ranges of numbers of positions say what of a slot stands up to
 * each virtual stage; the integer program, which keeps segments in order, needs those that
 * mf_partition_create makes. Counts of cells that were made before are of no use. */
void mf_partition_gather(mf_partition *in);

/* Writes to in->losses the least that passes lose to gathers and reductions, if virtual stage v
 * holds at least positions[v] (NULL: one each) and the step takes less than cutoff_s (INFINITY:
 * any). mf_partition_create calls it with NULL and INFINITY. */
void mf_partition_losses(mf_partition *in, const int *positions, double cutoff_s);
/* What of a path's time no layer adds: sends, losses, and the end of the step. */
double mf_partition_path_fixed_s(const mf_partition *in, const mf_order_path *c);

/* What a virtual stage's rank holds: bit 0 the embedding, bit 1 the head. */
int mf_partition_variant(const mf_layout *l, int vstage);
/* Buffers that a stage has at least for tables (tables_B); 0 on most. */
double mf_partition_tables_B(const mf_partition *in, int stage);
/* Likewise communicators (tables_comm_B). */
double mf_partition_tables_comm_B(const mf_partition *in, int stage);
/* The class of a slot on a virtual stage. */
const mf_partition_class *mf_partition_class_at(const mf_partition *in, int v, int slot);
/* The choice of a class that keeps, recomputes and offloads that; -1: it has none. */
int mf_partition_choice_of(const mf_partition_class *c, mf_memory_choice memory);

/* Seconds that a layer of the class with choice m adds to a part of its virtual stage. floor: the
 * rounded-down figure that holds for dominated choices, too. m < 0: the least over all choices. */
double mf_partition_part_s(const mf_partition *in, const mf_partition_class *c, int m,
                           mf_order_part part, bool floor);

/* --- last blocks (end_copies.c) --------------------------------------------------------------- */

/* What both passes of a choice take more as the last of a virtual stage than inside one: a plan's
 * order rests on it, no bound. */
static inline double mf_partition_ends_later_s(const mf_partition_choice *c) {
    return c->end_f_s + c->end_b_s - c->inside_f_s - c->inside_b_s;
}
/* Finds the dear choices of all classes. */
void mf_partition_find_ends(mf_partition *in);
/* What the last position of virtual stage v takes more with a dear one, at least:
 * [MF_ORDER_PARTS]; NULL: nothing. */
const double *mf_partition_end_more_s(const mf_partition *in, int v);
/* How much of that position is of a dear one at least. */
double mf_partition_end_share(const mf_partition *in, const double *count, int v);

/* --- answers ---------------------------------------------------------------------------------- */

/* Answers are counts: cell (v, slot, m) holds the number of layers of the slot on virtual stage v
 * that take choice m of the slot's class there. */
size_t mf_partition_cells(const mf_partition *in);
size_t mf_partition_cell(const mf_partition *in, int v, int slot, int m);

/* Time of a forward block (class f, choice m) beside a backward block (class b, choice k), the
 * least of all that they stand for. */
mf_status mf_partition_pair_s(mf_partition *in, int f, int m, int b, int k, double *time_s,
                              mf_err *e);
/* The same where the one or the other is the last of its virtual stage. */
mf_status mf_partition_end_pair_s(mf_partition *in, int f, int m, bool f_ends, int b, int k,
                                  bool b_ends, double *time_s, mf_err *e);
/* Gives every choice its portions of merged pairs (f_pair_s, b_pair_s; pair_portions.c). all:
 * layers' choices that offload or recompute are asked for where else one of them stands for the
 * others. Errors: as the evaluator reports. */
mf_status mf_partition_portion_pairs(mf_partition *in, bool all, mf_err *e);
/* Tighter portions of merged pairs than mf_partition_create gives, for some hundred pairs more. */
mf_status mf_partition_price_all_pairs(mf_partition *in, mf_err *e);
/* Merged pairs of every block with its own kind, which is what most pairs of a stage are; priced
 * when first asked for. Errors: as the evaluator reports. */
mf_status mf_partition_own_pairs(mf_partition *in, mf_err *e);

/* Writes counts out as an assignment: positions in order; inside a virtual stage, blocks of a slot
 * that would take more as its last come first, and of those that take alike the ones with the
 * larger backward workspace, so that backward frees most before they run. Errors: MF_NOMEM;
 * MF_INTERNAL when the counts are no assignment. */
mf_status mf_partition_write(const mf_partition *in, const int32_t *count, mf_assignment *out,
                             mf_err *e);
bool mf_partition_stands_before(const mf_partition_class *c, int m, int other);
/* The choice that is written next of those that are left (left[choices], one at least). */
int mf_partition_next_choice(const mf_partition_class *c, const int32_t *left);

/* The longest path for (possibly fractional) counts, all of the step included. coarse: cells of
 * choice 0 hold layers of any choice, which take the least of all; stage_extra_s[stages] is what
 * they take more on each stage, for want of memory. */
mf_status mf_partition_play(mf_partition *in, const double *count, bool coarse,
                            const double *stage_extra_s, mf_order_path *out, mf_err *e);

/* The longest path of whole layers with chosen choices, merged pairs at what they take indeed:
 * close to what the simulator finds, and no bound. pair_s: [stages][chunks][chunks], to work with.
 */
mf_status mf_partition_play_counts(mf_partition *in, const int *first, const int32_t *count,
                                   double *pair_s, mf_order_path *out, mf_err *e);

/* --- bounds ---------------------------------------------------------------------------------- */

/* What k main layers (family_bound.h) on a stage take more than their fastest choices would, for
 * want of memory: extra_s[k] for k up to the number of main layers, INFINITY from where nothing
 * fits. Grows ever faster with k. */
void mf_partition_extras(const mf_partition *in, double *extra_s);

/* A bound by a mean of paths of the layout's order: the least over all assignments, by placing
 * layers where they count least, with the mix of choices that is cheapest there and fits.
 * Errors: MF_NOMEM. */
mf_status mf_partition_mean_s(const mf_partition *in, const mf_path_set *paths, double *bound_s,
                              mf_err *e);

/* Moves one position from virtual stage `from` to `to`; those between shift. */
void mf_partition_shift(int *first, int from, int to);

/* Counted nanoseconds of a simulated step of the layout. */
int64_t mf_partition_step_ns(const mf_partition *in);

#endif
