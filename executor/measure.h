/* measure.h - measures points on this machine's GPUs and writes them as CSV (profiles/store.h).
 *
 * What to measure is a list of points without times: an op key (profiles/ops_table.h), whether it
 * is held out of every fit, and a word about where it comes from. mf_measure_plan_* make such
 * lists; mf_measure_gpu and mf_measure_collectives time whatever list they get. A point that the
 * CSV file already holds is skipped, so that a run can be stopped and taken up again.
 *
 * How it is timed: random data, operands rotated so that no run finds its data in the L2 cache,
 * batches of runs between two events (short kernels as graphs of many, so that the host's launch
 * time does not show), warm; the median, 10th and 90th percentile of the batches; a spread of more
 * than 5 % is measured again and the quieter of the two readings kept.
 */
#ifndef MF_EXECUTOR_MEASURE_H
#define MF_EXECUTOR_MEASURE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "profiles/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- which points (no GPU needed) ------------------------------------------------------------- */

typedef struct mf_measure_list {
    mf_point *point; /* [n] canonical; gpu and times empty; source says where it was drawn */
    int64_t n, room;
} mf_measure_list;

void mf_measure_list_clear(mf_measure_list *l);
/* Appends the op key unless the list has it (compared among points of the same op); held-out points
 * stay held out. Errors: MF_INPUT of mf_point_parse, MF_NOMEM. */
mf_status mf_measure_list_add(mf_measure_list *l, const char *key, bool holdout, const char *source,
                              mf_err *e);

/* The general grid of one GPU: products, grouped products, attention, memory-bound kernels, copies,
 * launches, over the ranges of the shipped models; held-out points drawn at random with `seed`. */
mf_status mf_measure_plan_gpu(uint64_t seed, mf_measure_list *l, mf_err *e);
/* Collectives of 2 .. ranks GPUs of one host by size; three of four GPUs and sizes between powers
 * of two are held out. */
mf_status mf_measure_plan_collectives(int ranks, uint64_t seed, mf_measure_list *l, mf_err *e);

/* --- measuring -------------------------------------------------------------------------------- */

typedef struct mf_measure_options {
    const char *gpu;      /* name in the points: "h200" */
    const char *csv_path; /* appended to; created with a header */
    const char *date;     /* ISO, of the run */
    double limit_s;       /* stop, without an error, when this is spent; 0 = none */
    uint64_t seed;        /* of the data */
    bool shared;          /* measure although another process uses the GPU */
    /* Called after every point; may be NULL. left_s: estimate of the time to go. */
    void (*progress)(int64_t done, int64_t total, const mf_point *last, double left_s, void *user);
    void *user;
} mf_measure_options;

typedef struct mf_measure_counts {
    int64_t measured, skipped /* there already */, refused /* no kernel takes the shape */, left;
} mf_measure_counts;

/* Measures the points of one GPU in list order. Errors: MF_LIBRARY, MF_IO, MF_INPUT (damaged CSV; a
 * GPU that another process uses or that throttles from heat), MF_USAGE (no GPU). */
mf_status mf_measure_gpu(const mf_measure_options *o, const mf_measure_list *l,
                         mf_measure_counts *counts, mf_err *e);
/* The same for collectives and ops beside them, on all GPUs that the points ask for. */
mf_status mf_measure_collectives(const mf_measure_options *o, const mf_measure_list *l,
                                 mf_measure_counts *counts, mf_err *e);

#ifdef __cplusplus
}
#endif
#endif
