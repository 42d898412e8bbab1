/* op_times.h - how long the ops of a run took, for each op template: `moefold compare` shows them
 * beside the predicted times. */
#ifndef MF_EXECUTOR_OP_TIMES_H
#define MF_EXECUTOR_OP_TIMES_H

#include "core/program/lower.h"
#include "executor/comm/comm.h"
#include "executor/device/device.h"

#define MF_OP_TIMES_FORMAT "moefold-op-times"
#define MF_OP_TIMES_VERSION 1

/* Op `op` of block `block` of the program, over all ranks, positions, micro-batches and steps. */
typedef struct mf_op_time_row {
    int block, op;
    char label[96], name[48], kind[32], pass[20]; /* what they are, for people */
    int64_t count;
    double mean_s, min_s, max_s;
} mf_op_time_row;

/* Ops outside blocks (sums of gradients, optimizer, sends) by name, of rank 0. */
typedef struct mf_op_times_step_end {
    char name[48];
    int64_t count;
    double sum_s;
} mf_op_times_step_end;
#define MF_OP_TIMES_STEP_END 64

typedef struct mf_op_times {
    int64_t ranks, steps; /* steps that were timed */
    int64_t first_step;   /* of the run of the program that timed them; 0: the file does not say */
    double step_time_s;   /* their mean */
    char model[20];       /* mf_checkpoint_fingerprint */
    double aux_coef;      /* of the auxiliary loss that the run had: 0 lowers to other ops */
    mf_aux_scope aux_scope;
    int64_t count;
    mf_op_time_row *row;
    int step_end_count;
    mf_op_times_step_end step_end[MF_OP_TIMES_STEP_END];
} mf_op_times;

void mf_op_times_clear(mf_op_times *t);
/* Errors: MF_INPUT with file:line:col. The caller clears *out. */
mf_status mf_op_times_load(const char *path, mf_op_times *out, mf_err *e);

/* --- taking them ------------------------------------------------------------------------------ */

/* Number of first steps of a run with --out whose ops are timed on a GPU, one by one, without a
 * graph and on one queue; after these each stream has its own queue, and a step is played as a
 * whole. */
enum { MF_OP_TIMED_STEPS = 4 };

typedef struct mf_op_timer mf_op_timer;

/* For a program and a device that must outlive the timer. Errors: MF_NOMEM. */
mf_status mf_op_timer_create(const mf_program *p, mf_device *device, mf_op_timer **out, mf_err *e);
void mf_op_timer_destroy(mf_op_timer *t);
void mf_op_timer_begin(mf_op_timer *t);
/* b NULL: an op outside blocks, which began at the last begin or end. */
void mf_op_timer_end(mf_op_timer *t, const mf_block *b, const mf_op *op);
/* A step ends: its times count when `keep`; else (the first, cold one) they are dropped. */
void mf_op_timer_step(mf_op_timer *t, double step_time_s, bool keep);
/* Sets whether ops are timed from here on; a new timer times them. */
void mf_op_timer_use(mf_op_timer *t, bool on);
/* Sums over ranks, written by rank 0; first_step: of this run of the program. Collective. Errors:
 * MF_IO, agreed by all. */
mf_status mf_op_timer_write(mf_op_timer *t, mf_comm *c, int64_t first_step, const char *path,
                            mf_err *e);

#endif
