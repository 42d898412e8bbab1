/* rows.h - private to splits: the partition problem's integer program while it is built and solved
 * (rows.c has columns and fixed rows, beside.c and narrow_ranges.c what memory rows rest on,
 * path_rows.c the rows of paths, integer_program.c solves, split_rows.c has what is different for
 * splits, split_bound.c for one of them).
 */
#ifndef MF_PLANNER_ROWS_H
#define MF_PLANNER_ROWS_H

#include "planner/order/path_mean.h"
#include "planner/splits/split_ranges.h"
#include "planner/splits/splits.h"

/* Paths looked for at a time. */
#define MF_ROWS_FOUND 6

#define MF_ROWS_BYTES 1e9 /* a unit of bytes in rows */

/* Splits: what a layer adds to its virtual stage: seconds of every part, bytes in flight and held.
 */
enum { MF_FIGURE_SAVED = MF_ORDER_PARTS, MF_FIGURE_HELD, MF_FIGURES };
typedef struct mf_layer_figures {
    double value[MF_FIGURES]; /* in units; of the first choice */
    bool mixed[MF_FIGURES];   /* other choices add something else */
} mf_layer_figures;

/* A path that is a row: what passes lose stands in its bound alone. */
typedef struct mf_path_row {
    mf_order_path path; /* without its counts; loss[0] is owned, the others lie behind it */
    double bound;       /* of the row, in units, but for what of the path no layer adds */
} mf_path_row;

/* Where positions can stand: on every virtual stage and, behind these, on every stage with all its
 * chunks so many; before every virtual stage at least and at most so many. */
typedef struct mf_split_ranges {
    mf_split_range range[2 * MF_MAX_VSTAGES];
    int least[MF_MAX_VSTAGES + 1], most[MF_MAX_VSTAGES + 1];
} mf_split_ranges;

typedef struct mf_rows {
    mf_partition *in;
    mf_split_ranges ranges;
    bool coarse, hull, splits, memory_ample;
    mf_milp milp;
    int *col;           /* [cells] column of x, -1 = cannot be */
    int32_t *top;       /* [cells] its upper bound */
    int *extra;         /* coarse: [stages] column of what a stage takes more */
    int *until;         /* splits: [vstages][slots] column of y, -1 = the slot is not there */
    int first_size_row; /* splits: rows of the positions of each virtual stage, then of each stage
                         */
    mf_layer_figures *figure; /* splits: [classes] */
    int *figure_col;  /* [vstages][MF_FIGURES] column of the sum over layers, -1 = there is none.
                       * Splits: over layers of classes where the figure is mixed; with every
                       * choice: of parts alone; coarse: NULL */
    int *end_col;     /* [vstages] column of how much of the last position is dear (end_rows.c),
                       * -1 = nothing is; coarse: so are all */
    double *sum;      /* splits: [columns] of a row that is being made */
    int sums;         /* columns that it may have */
    double *curves_s; /* coarse: [stages][main layers + 1] a stage's extra by its main layers */
    int step;         /* column of T */
    double unit_s;
    int first_path_row; /* rows from here on are those of kept->path, in order */
    mf_order_path path;
    double *count; /* [cells] of a relaxation's point; coarse: and [stages] what stages take more */
    /* splits and coarse: the counts that played shortest so far, and how long; the program's point;
     * paths found at and near it that are to become rows */
    double *best_count, best_count_s, *point;
    mf_order_path found[MF_ROWS_FOUND];
    int founds;
    bool at_node; /* paths are looked for at the program's point alone */
    int64_t paths;
    mf_path_set *kept; /* may be NULL: then found paths are not kept */
    bool lossy;        /* rows of paths can take other losses */
    mf_path_row *path_row;
    int path_rows, path_rows_allocated;
    mf_err *e;
    mf_status status;
} mf_rows;

/* Builds the program. known: paths to begin with (may be NULL). kept: receives the paths of all
 * rows, of known and found ones (may be NULL). Cleared again when it fails. */
mf_status mf_rows_make(mf_rows *b, mf_partition *in, const mf_partition_tried *tried,
                       const mf_partition_options *o, const mf_path_set *known, mf_path_set *kept,
                       mf_err *e);
void mf_rows_clear(mf_rows *b);

/* --- columns (rows.c) --- */
/* value[v][s] of every cell of a slot into a row, times `by`. */
void mf_rows_add_slot(mf_rows *b, int row, int v, int s, double by);
/* Choices that have columns. */
int mf_rows_choices(const mf_rows *b, const mf_partition_class *c);
void mf_rows_add_cells(mf_rows *b, double cutoff_s);
/* Placement, order, patterns; coarse: extras, else memory and what was tried. */
mf_status mf_rows_add_fixed(mf_rows *b, const mf_partition_tried *tried);

/* --- where positions can stand (narrow_ranges.c) --- */
/* Positions that take alike, of time or memory. */
typedef struct mf_rows_kind {
    double each;
    int count;
} mf_rows_kind;
/* Into a list of n that is sorted, least first. */
void mf_rows_add_kind(mf_rows_kind *list, int n, mf_rows_kind x);
/* How many positions take no more than that together, least first. */
int mf_rows_most_of(const mf_rows_kind *list, int n, double left);
/* In a step below the cutoff (INFINITY: any). */
void mf_split_ranges_by_time(const mf_partition *in, double cutoff_s, mf_split_ranges *ranges);
/* And with the memory that there is. False: nothing fits. */
bool mf_split_ranges_by_memory(const mf_partition *in, mf_split_ranges *ranges);

/* --- beside what blocks keep (beside.c) --- */
/* Least bytes that the last block of a pass on a stage needs, whichever block that is, with the
 * buffers of what is sure to stand on the stage. */
double mf_rows_least_beside_B(const mf_partition *in, const mf_split_ranges *ranges, int stage);
/* The same with a workspace of work_B at least, of whichever block. summed: without the scratch of
 * compute, where positions take what is summed over copies. */
double mf_rows_beside_with_B(const mf_partition *in, const mf_split_ranges *ranges, int stage,
                             double work_B, bool summed);
/* A slot of one layer that may stand on a stage or elsewhere, as an MTP depth does, and what the
 * stage needs more than that where it does: its buffers. The slot that needs most; -1 = none. */
typedef struct mf_guest {
    int slot;
    double more_B;
} mf_guest;
mf_guest mf_rows_guest(const mf_partition *in, const mf_split_ranges *ranges, int stage);

/* --- whole positions (most_positions.c) --- */
/* The most positions that memory allows on every virtual stage and, behind these, on every
 * stage with all its chunks: most[vstages + stages]. False: nothing fits. */
bool mf_rows_most_positions(const mf_partition *in, const mf_split_ranges *ranges, int *most);

/* --- splits (split_rows.c) --- */
/* Is there memory for the fastest choices on every stage, if it holds a layer more than all hold in
 * the mean? Then memory decides nothing, and programs without choices are as tight. */
bool mf_rows_memory_is_ample(const mf_partition *in);
/* The choice of least time. */
int mf_rows_fastest(const mf_partition_class *c);
/* Sizes, layers of each slot up to each virtual stage, figures, memory. */
mf_status mf_rows_add_splits(mf_rows *b);
/* What the layers add to a path, as entries of its row. */
void mf_rows_split_path(mf_rows *b, const mf_order_path *path, mf_milp_lazy_row *row);

/* --- last blocks (end_rows.c) --- */
void mf_rows_add_ends(mf_rows *b);
/* Seconds of a path by its column end_col[v]. */
double mf_rows_end_s(const mf_rows *b, const mf_order_path *path, int v);

/* --- one split (split_bound.c) --- */
typedef struct mf_fixed_split {
    double cutoff_s;          /* a bound at or above is as good as any */
    const mf_path_set *known; /* paths to begin with; may be NULL */
    int64_t effort_ns;        /* counted nanoseconds that its linear program may take; 0 = any */
    mf_milp_fault fault;
    double bound_s; /* out: no assignment with this split is faster; the cutoff at most; 0 = the
                     * program failed */
} mf_fixed_split;
/* The least step of one split, choices mixed in any proportion, losses as its positions tell. What
 * the partition problem knows of losses is as before when it is done. first: [vstages + 1].
 * Errors: MF_NOMEM, and as the evaluator reports. */
mf_status mf_rows_fixed_split(mf_partition *in, const int *first, mf_fixed_split *x, mf_err *e);

/* --- paths (path_rows.c) --- */
/* Rows that are there from the start. */
mf_status mf_rows_add_paths(mf_rows *b, const mf_path_set *known);
/* The rows of paths get the losses that the partition problem knows now; rows are `lossy`. */
void mf_rows_take_losses(mf_rows *b, mf_lp *lp);
/* mf_milp_lazy_fn: the longest path at a point, when it is longer than T says. */
bool mf_rows_lazy_path(void *rows, const double *x, mf_milp_lazy_row *row);

/* --- points (relaxation.c) --- */
/* Positions on every virtual stage at a program's point x: n[vstages]. */
void mf_rows_sizes(const mf_rows *b, const double *x, double *n);
/* The split of the positions nearest to such numbers; no virtual stage is empty. */
void mf_rows_nearest(const mf_partition *in, const double *n, int *first);
/* Weighs kept paths by the multipliers of their rows (relaxation.c). */
void mf_rows_weigh(const mf_rows *b, const double *dual, mf_path_set *paths);

#endif
