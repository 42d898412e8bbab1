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

/* Two sets of portions of merged pairs (pair_portions.c). In one set backward passes keep their
 * whole time, and what a pair hides is missing in the portion of its forward pass. In the other set
 * it is the other way round. */
typedef enum mf_portions { MF_PORTIONS_B_FULL, MF_PORTIONS_F_FULL, MF_PORTIONS } mf_portions;

typedef struct mf_partition_choice {
    mf_memory_choice memory;
    mf_block_cost
        cost; /* the least of all choices that it stands for, at any place (least_cost.h) */
    /* It is on the lower hull of the class's choices. Times there are rounded down slightly, so
     * that it can stand for the choices that it dominates: none of them takes less
     * (mf_partition_part_s). */
    bool hull;
    double f_rounded_s;
    /* Merged schedules: portions of the forward and the backward pass, by set. A pair takes at
     * least the sum of its two portions, in either set. */
    double f_pair_s[MF_PORTIONS], b_pair_s[MF_PORTIONS];
    /* Merged schedules (mf_partition_own_pairs): the time of its forward pass beside its own
     * backward pass, and what its two passes take if each is paired with the first choice, less one
     * pair of the first choice. */
    double pair_s, apart_s;
    /* What its forward pass, its backward pass, and a pair with that backward pass (by set) take
     * more if it is the last block of its virtual stage: there its copies to and from the host have
     * no neighbouring block. */
    double end_f_s, end_b_s, end_pair_s[MF_PORTIONS];
    double inside_f_s, inside_b_s; /* what its passes take more elsewhere */
    bool dear_last;                /* it is dear as the last block: it takes much more there */
    double end_own_s;              /* as end_pair_s, of the pair with its own forward pass */
} mf_partition_choice;

/* What the last position of a virtual stage takes more at least if its choice is dear there
 * (end_copies.c). */
typedef struct mf_last_block_cost {
    bool any;
    double more_s[MF_ORDER_PARTS];
} mf_last_block_cost;

/* A kind of block under this layout, with the choices that no other choice dominates. */
typedef struct mf_partition_class {
    mf_block_key key; /* memory aside */
    bool exchanges;   /* a layer whose rows travel over expert parallelism */
    double reduce_s, gather_s, persistent_B;
    double whole_B, scratch_B; /* of its gradient (mf_evaluator_ops.unreduced_B) */
    double beside_s;   /* the least reduction of the block that runs before it in a backward pass */
    double own_lost_s; /* what it loses to that */
    double anew_s;     /* what weight gradients of the first micro-batch take less */
    mf_step_overlap beside;      /* its own gathers and reductions */
    double rate[MF_ORDER_W + 1]; /* highest speed of reductions beside F, B, W, over the choices */
    double f_host_s, b_host_s, w_host_s; /* least over the choices */
    double least_s[MF_ORDER_PARTS];      /* least over the choices */
    bool dear_last;                      /* some choices are dear as the last block ... */
    double dear_last_s[MF_ORDER_PARTS];  /* ... and add at least this there */
    int choices;
    mf_partition_choice choice[MF_CATALOGUE_MAX];
} mf_partition_class;

typedef struct mf_partition_slot {
    int segment, place; /* place in the pattern; if gathered, that of its first position */
    int first, count;   /* the first of its positions; how many they are */
    int class_of[MF_PARTITION_VARIANTS]; /* by what else the stage holds (mf_partition_variant) */
    int v_lo, v_hi;                      /* virtual stages that its layers can stand on */
    bool main;                           /* its layers are main layers (family_bound.h) */
} mf_partition_slot;

typedef struct mf_partition {
    mf_block_costs *costs;
    const mf_evaluator *evaluator;
    const mf_model *model;
    mf_layout layout;
    int positions, vstages, stages, chunks;
    bool split, merged, own_pairs;
    bool gathered;                 /* a slot holds all layers of a kind (mf_partition_gather) */
    bool dear_last;                /* some choice takes more as the last of a virtual stage ... */
    mf_last_block_cost *last_cost; /* [vstages] ... at least this */
    int segments, slots, classes;
    mf_segment *segment;
    mf_partition_slot *slot;
    mf_partition_class *class;
    int *slot_at;     /* [positions] */
    uint8_t *variant; /* [vstages] mf_partition_variant of each */
    mf_order_summary order;
    bool owns_order;
    mf_order *graph; /* made when first needed */
    double *pair_s; /* [class][choice][class][choice] times of merged pairs; 0: not priced yet; made
                     * when first needed */
    double send_s, hold_s, fixed_B, usable_B;
    double tables_B;      /* of buffers for tables on the stages of embedding and head, at least */
    double tables_comm_B; /* of communicators there, at least */
    mf_step_end_cost step_end;
    double lost; /* of gathers and reductions, the least share that blocks beside them lose */
    int64_t *effort_ns;     /* [1] effort spent on it so far, in counted nanoseconds */
    mf_order_losses losses; /* losses of passes to them (loss_figures.c) */
} mf_partition;

/* Makes the problem of a layout, with exact costs of all choices. pinned: dimensions that the user
 * fixed (MF_PIN). order: a summary of the layout's order, borrowed; NULL: it is made. Errors: those
 * of the evaluator. */
mf_status mf_partition_create(mf_block_costs *costs, const mf_layout *l, uint32_t pinned,
                              const mf_order_summary *order, mf_partition **out, mf_err *e);
void mf_partition_destroy(mf_partition *in);
/* Makes one slot of all layers of a kind, whichever segments they stand in. A model whose kinds
 * alternate without a short pattern would otherwise have a slot for nearly every layer. The linear
 * programs of splits are as tight either way, since ranges of positions say how many layers of a
 * slot stand up to each virtual stage. The integer program keeps segments in order, so it needs the
 * slots that mf_partition_create makes. Counts of cells from before the call are useless
 * afterwards. */
void mf_partition_gather(mf_partition *in);

/* Sets in->losses to what passes lose at least to gathers and reductions, if virtual stage v holds
 * at least positions[v] positions (NULL: one each) and the step takes less than cutoff_s (INFINITY:
 * any time). mf_partition_create calls it with NULL and INFINITY. */
void mf_partition_losses(mf_partition *in, const int *positions, double cutoff_s);
/* The part of a path's time that no layer adds: sends, losses, and the step's end. */
double mf_partition_path_fixed_s(const mf_partition *in, const mf_order_path *c);

/* What a virtual stage's rank holds: bit 0 the embedding, bit 1 the head. */
int mf_partition_variant(const mf_layout *l, int vstage);
/* Bytes of buffers for tables that a stage has at least (tables_B); 0 on most stages. */
double mf_partition_tables_B(const mf_partition *in, int stage);
/* The same for communicators (tables_comm_B). */
double mf_partition_tables_comm_B(const mf_partition *in, int stage);
/* The class of a slot on a virtual stage. */
const mf_partition_class *mf_partition_class_at(const mf_partition *in, int v, int slot);
/* The place of a memory choice in a class; -1: the class does not have it. */
int mf_partition_choice_of(const mf_partition_class *c, mf_memory_choice memory);

static inline uint32_t mf_partition_all_choices(const mf_partition_class *c) {
    return (uint32_t)((UINT64_C(1) << c->choices) - 1);
}
/* Of some choices of the class, a bit each, those that stand for all of them: mixtures of these
 * beat every other. */
uint32_t mf_partition_hull(const mf_partition_class *c, bool merged, uint32_t choices);

/* Seconds that a layer of the class with choice m adds to a part of its virtual stage. rounded: the
 * figure is rounded down, so that it holds for dominated choices, too. m < 0: the least over all
 * choices. */
double mf_partition_part_s(const mf_partition *in, const mf_partition_class *c, int m,
                           mf_order_part part, bool rounded);

/* --- last blocks (end_copies.c) --------------------------------------------------------------- */

/* What both passes of a choice take more as the last block of a virtual stage than inside one. It
 * decides the order in which plans are written, and no bound. */
static inline double mf_partition_ends_later_s(const mf_partition_choice *c) {
    return c->end_f_s + c->end_b_s - c->inside_f_s - c->inside_b_s;
}
/* Finds which choices of all classes are dear as the last block. */
void mf_partition_find_ends(mf_partition *in);
/* What the last position of virtual stage v takes more at least with a dear choice:
 * [MF_ORDER_PARTS]; NULL: nothing. */
const double *mf_partition_end_more_s(const mf_partition *in, int v);
/* How much of that position has a dear choice at least, given (fractional) counts. */
double mf_partition_end_share(const mf_partition *in, const double *count, int v);

/* --- answers ---------------------------------------------------------------------------------- */

/* Answers are counts: cell (v, slot, m) holds the number of layers of the slot on virtual stage v
 * that take choice m of the slot's class there. */
size_t mf_partition_cells(const mf_partition *in);
size_t mf_partition_cell(const mf_partition *in, int v, int slot, int m);

/* Time of a forward block (class f, choice m) beside a backward block (class b, choice k): the
 * least of all pairs that they stand for. */
mf_status mf_partition_pair_s(mf_partition *in, int f, int m, int b, int k, double *time_s,
                              mf_err *e);
/* The same if one or both are the last of their virtual stage. */
mf_status mf_partition_end_pair_s(mf_partition *in, int f, int m, bool f_ends, int b, int k,
                                  bool b_ends, double *time_s, mf_err *e);
/* Gives every choice its portions of merged pairs (f_pair_s, b_pair_s; pair_portions.c). all: pairs
 * of layers that offload or recompute are priced, too; otherwise one choice stands for the others.
 * Errors: those of the evaluator. */
mf_status mf_partition_portion_pairs(mf_partition *in, bool all, mf_err *e);
/* Prices some hundred pairs more than mf_partition_create, so that portions are tighter. */
mf_status mf_partition_price_all_pairs(mf_partition *in, mf_err *e);
/* Prices the merged pair of every block with its own kind, as most pairs of a stage are; only the
 * first call does. Errors: those of the evaluator. */
mf_status mf_partition_own_pairs(mf_partition *in, mf_err *e);

/* Writes counts out as an assignment, positions in order. Inside a virtual stage, those blocks of a
 * slot come first that would take more as its last block. Of blocks that take the same, those with
 * the larger backward workspace come first: they run last in a backward pass, when most memory is
 * free. Errors: MF_NOMEM; MF_INTERNAL if the counts are no assignment. */
mf_status mf_partition_write(const mf_partition *in, const int32_t *count, mf_assignment *out,
                             mf_err *e);
bool mf_partition_stands_before(const mf_partition_class *c, int m, int other);
/* Which of the choices that are left is written next (left[choices], at least one is not 0). */
int mf_partition_next_choice(const mf_partition_class *c, const int32_t *left);

/* The longest path of the whole step for counts, which may be fractional. coarse: cells of choice 0
 * hold layers of any choice, which take the least time of all choices; stage_extra_s[stages] is
 * what they take more on each stage because memory is short. */
mf_status mf_partition_play(mf_partition *in, const double *count, bool coarse,
                            const double *stage_extra_s, mf_order_path *out, mf_err *e);

/* The longest path of whole layers with known choices, with the real times of merged pairs: close
 * to a simulated step, and no bound. pair_s: [stages][chunks][chunks], scratch space. */
mf_status mf_partition_play_counts(mf_partition *in, const int *first, const int32_t *count,
                                   double *pair_s, mf_order_path *out, mf_err *e);

/* --- bounds ---------------------------------------------------------------------------------- */

/* What k main layers (family_bound.h) on a stage take more than with their fastest choices because
 * memory is short: extra_s[k] for k up to the number of main layers; INFINITY for more layers than
 * fit. It is convex in k. */
void mf_partition_extras(const mf_partition *in, double *extra_s);

/* A bound on all assignments, by a mean of paths through the layout's order: layers stand where
 * they count least, with the cheapest mix of choices that fits there. Errors: MF_NOMEM. */
mf_status mf_partition_mean_s(const mf_partition *in, const mf_path_set *paths, double *bound_s,
                              mf_err *e);

/* Moves one position from virtual stage `from` to `to`; those between shift. */
void mf_partition_shift(int *first, int from, int to);

/* Counted nanoseconds of a simulated step of the layout. */
int64_t mf_partition_step_ns(const mf_partition *in);

#endif
