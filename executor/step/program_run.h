/* program_run.h - runs a step program on one rank: the very ops that were priced, in the order of
 * the schedule, in one static arena.
 *
 *     mf_exec_create   parameters, slots, workspace: every byte of the arena has its place
 *     mf_exec_load     weights from a checkpoint (or set them through mf_exec_param)
 *     mf_exec_step     one training step; allocates nothing. On a GPU the next one can be begun
 *                      before the results of this one are read (mf_exec_step_begin)
 *
 * Under MPI every rank makes the same calls in the same order.
 */
#ifndef MF_EXECUTOR_PROGRAM_RUN_H
#define MF_EXECUTOR_PROGRAM_RUN_H

#include "core/memory/memory.h"
#include "core/schedule/schedule.h"
#include "executor/ops/ops.h"
#include "executor/step/params.h"
#include "kernels/rows/normal.h"

typedef struct mf_exec_options {
    double beta1, beta2, eps, weight_decay;
    bool decay_matrices_only; /* no decay for vectors (norms, biases) */
    double clip;              /* global norm; 0: none */
    double aux_coef;          /* of the auxiliary loss, scope by the layout; 0: none. The model's
                                 aux_loss_coef must be positive for its counts to be there */
    double z_coef;      /* of the router's z-loss, mean over tokens, sum over layers; 0: none */
    bool force_balance; /* for benchmarks: every expert gets as many choices */
    /* ... or of each position so many, [positions][experts] over the balanced number, 0 where a
     * position has no experts; read by mf_exec_create. NULL: none are forced. */
    const double *forced;
    double mtp_coef;  /* weight of the mean loss of the MTP depths */
    double bias_rate; /* of the correction bias; 0: it stands */
    mf_comm *wire;    /* between the devices' memories; NULL: `comm`, where that is the host's */
    /* Around each op, for measuring and for tests; NULL: none. Messages between stages and ops of
     * pass O come without operands (block NULL, position -1). */
    void (*before_op)(void *user, const mf_exec_op *op);
    /* For tests that plant faults: true leaves the op out; NULL: none. */
    bool (*skips)(void *user, const mf_op *op);
    void (*after_op)(void *user, const mf_exec_op *op);
    void *user;
    bool graph;    /* a step is captured once and played from then on, where the device can */
    double word_s; /* a device that works behind the host writes a word for it on how far a step is:
                      least time of the work between two words; 0: 1 ms */
} mf_exec_options;

/* 0.9, 0.95, 1e-8, 0.1, every parameter, clip 1, no auxiliary loss, MTP 0.3, rate 0. */
void mf_exec_options_init(mf_exec_options *o);

/* What of a program a device with these kernels does not run yet, in words: of its model, its
 * layout, its ops; NULL: nothing. What mf_exec_create refuses by. */
const char *mf_exec_lacks(const mf_program *p, const mf_device_ops *ops);

/* Sample `index` of the step's global batch: seq + 1 tokens. Called for this rank's samples only.
 */
typedef struct mf_exec_batch {
    mf_status (*sample)(void *user, int64_t index, int32_t *tokens, mf_err *e);
    void *user;
} mf_exec_batch;

typedef struct mf_exec_result {
    double lm_loss;                /* mean over the labels of the global batch, before the update */
    double mtp_loss;               /* mean over depths of the mean over labels */
    double aux_loss;               /* unweighted sum over layers */
    double z_loss;                 /* likewise; 0 without z_coef */
    double grad_norm;              /* before clipping */
    double took_s;                 /* from the beginning of the step (reading its samples included),
                                      or the end of the one before where that came later, to its end,
                                      by the clock of the device that does the work */
    const double *aux_of_position; /* [positions] owned by the executor */
    double worked_s;               /* by this rank's device in blocks' ops on the queue of compute,
                                      while it waited for no other queue and no other rank; 0: of one
                                      rank, or where the device's memory is the host's */
    const int64_t *span_ns;  /* [mf_exec_spans] the same since the executor was made, by the op
                                that followed a wait; NULL: of one rank, or where the device's
                                memory is the host's */
    int64_t ops;             /* executed by this rank */
    bool skipped;            /* the update, as something was not finite or did not fit */
    int64_t updates_skipped; /* so far, this one included */
    int64_t overflowed;      /* 0; more routed rows than their buffers hold: thousandths of that
                                space that the fullest of them asked for */
} mf_exec_result;

/* Places of span_ns: op `i` of the block of `position` is at position * mf_exec_span_ops(p) + i. */
int mf_exec_span_ops(const mf_program *p);
int64_t mf_exec_spans(const mf_program *p);

typedef struct mf_exec mf_exec;

/* `program`, `schedule` and `comm` must outlive the executor. Errors: MF_INFEASIBLE for what this
 * executor cannot run yet, named; MF_NOMEM. */
mf_status mf_exec_create(const mf_program *program, const mf_schedule *schedule, mf_comm *comm,
                         mf_device *device, const mf_exec_options *options, mf_exec **out,
                         mf_err *e);
void mf_exec_destroy(mf_exec *x);

mf_status mf_exec_load(mf_exec *x, const mf_safetensors *from, mf_err *e);

/* Makes what the device needs for the ops of a step (plans of libraries, algorithms measured,
 * kernels loaded), once before the first one; weights stand already. Nothing on the CPU.
 * Collective. */
mf_status mf_exec_prepare(mf_exec *x, mf_err *e);

/* From here on steps are played as a graph, or op by op. */
void mf_exec_use_graph(mf_exec *x, bool on);

/* From here on each stream of the program has a queue of the device to itself, so that what the
 * plan overlaps is (as at first, on a device that works behind the host), or all ops follow one
 * another on one queue, as they are timed op by op. */
void mf_exec_use_streams(mf_exec *x, bool on);

/* Gradients of the batch (accumulated over its micro-batches, reduced over ranks), losses, norm. */
mf_status mf_exec_gradients(mf_exec *x, const mf_exec_batch *batch, mf_exec_result *out, mf_err *e);
/* The same, then one AdamW update with learning rate lr: begin, and finish at once. */
mf_status mf_exec_step(mf_exec *x, const mf_exec_batch *batch, double lr, mf_exec_result *out,
                       mf_err *e);
/* A step in two halves. Begin reads the samples and gives the device the whole step; it does not
 * wait for it where the device works asynchronously. Finish waits for the oldest unfinished step,
 * and for no later one, and returns its results. What out points to stays valid until mf_exec_ahead
 * more steps have finished. */
mf_status mf_exec_step_begin(mf_exec *x, const mf_exec_batch *batch, double lr, mf_err *e);
mf_status mf_exec_step_finish(mf_exec *x, mf_exec_result *out, mf_err *e);
/* Steps that begin from here on make no update where their lm_loss is above this; 0: no limit. The
 * same on all ranks. */
void mf_exec_limit_loss(mf_exec *x, double limit);
/* How far a device that works behind the host has come: a number that grows with every block of a
 * step (0 elsewhere), for a thread that watches; and what it stands for, in words: "forward of
 * position 3 (moe), micro-batch 1". */
int64_t mf_exec_progress(const mf_exec *x);
void mf_exec_progress_text(const mf_exec *x, int64_t at, char *text, size_t size);
/* Whether a device whose word says `at` waits, for other ranks or for another of its queues, and
 * does no op of a block. */
bool mf_exec_progress_waits(const mf_exec *x, int64_t at);
/* Steps that may be begun and not finished: 1 where work is done when a call returns. */
int64_t mf_exec_ahead(const mf_exec *x);

/* This rank's parameters: values and gradients of entry i of the list (master values are float;
 * under ZeRO-1 gradients are complete on this rank's shard only, unless none is sharded). NULL
 * where a shard is all that a rank keeps: weights under ZeRO-3, gradients under ZeRO-2 and -3. */
const mf_params *mf_exec_params(const mf_exec *x);
float *mf_exec_param(const mf_exec *x, int i);
float *mf_exec_gradient(mf_exec *x, int i);
/* Sets what this rank keeps of parameter i from all of its values. */
mf_status mf_exec_set_param(mf_exec *x, int i, const float *values, mf_err *e);
/* Weights and reduced gradients of the elements [first, first + count) that this rank owns. */
float *mf_exec_own_weight(const mf_exec *x, int i, int64_t *first, int64_t *count);
float *mf_exec_own_gradient(const mf_exec *x, int i, int64_t *first, int64_t *count);
/* [first, first + count) of parameter i's elements whose reduced gradient this rank holds. */
void mf_exec_owned(const mf_exec *x, int i, int64_t *first, int64_t *count);
/* Sets the weights that this rank owns of a parameter. */
mf_status mf_exec_put_own_weight(mf_exec *x, int i, const float *values, mf_err *e);
/* Whether the device can draw them itself: not the host's own memory, nor weights that lie there.
 * It then clears them, and draws pieces of the parameter: w, first and count are set here. */
bool mf_exec_draws_own_weight(const mf_exec *x, int i);
mf_status mf_exec_clear_own_weight(mf_exec *x, int i, mf_err *e);
mf_status mf_exec_draw_own_weight(mf_exec *x, int i, mf_kernel_normal piece, mf_err *e);
/* Writes what a pointer of these shows from host memory. Weights that a rank owns may be in host
 * memory themselves, and have the function above. */
mf_status mf_exec_put(mf_exec *x, void *device, const void *host, size_t size_B, mf_err *e);
/* Correction bias of a position [experts]; NULL where there is none. */
float *mf_exec_correction_bias(mf_exec *x, int position);

/* What a checkpoint keeps of parameter i, in host memory: master weight and both AdamW moments of
 * its elements [first, first + count), the range of mf_exec_owned. Each value[k] points at element
 * `first`. */
enum { MF_EXEC_WEIGHT, MF_EXEC_MOMENT1, MF_EXEC_MOMENT2, MF_EXEC_STATES };
typedef struct mf_exec_state {
    int64_t first, count;
    void *value[MF_EXEC_STATES];
    mf_kernel_dtype dtype[MF_EXEC_STATES];
} mf_exec_state;
mf_status mf_exec_state_of(mf_exec *x, int i, mf_exec_state *out, mf_err *e);
/* Copies the states of all parameters, and the correction biases, as they are now: from here on
 * mf_exec_state_of shows these copies, which stand while steps go on. Called again it takes the
 * same memory, mf_exec_staging_B bytes on the host. Errors: MF_NOMEM; those of the device. */
mf_status mf_exec_state_stage(mf_exec *x, mf_err *e);
int64_t mf_exec_staging_B(const mf_exec *x);
/* Host memory that states took for either may go; what was copied is void. */
void mf_exec_state_release(mf_exec *x);
/* After a state's values were written: puts them where they belong. */
mf_status mf_exec_state_put(mf_exec *x, int i, const mf_exec_state *s, mf_err *e);
/* Do several ranks keep the state of this parameter's half because it is not sharded (ZeRO-0)?
 * Then they are the members of *group. */
bool mf_exec_state_copied(const mf_exec *x, int i, mf_group_kind *group);
/* After master weights were set from outside: every rank gets what it computes with, as after an
 * update. Collective. */
mf_status mf_exec_share_weights(mf_exec *x, mf_err *e);
/* Updates done so far: AdamW's bias correction goes by it. As of the last step. skipped: those left
 * out. */
int64_t mf_exec_steps(const mf_exec *x);
mf_status mf_exec_set_steps(mf_exec *x, int64_t steps, int64_t skipped, mf_err *e);

/* This rank's state that survives a change of program: what a checkpoint keeps. The other executor
 * must have the same ranks and parameters and differ only in token headroom or recomputation; call
 * mf_exec_share_weights after restoring there. The state stays on the device if it fits both into
 * what is free now and into spare_B, the memory that the other program leaves free; else it goes to
 * the host, which takes seconds for each 10 GB. */
typedef struct mf_exec_kept mf_exec_kept;
mf_status mf_exec_keep(mf_exec *x, double spare_B, mf_exec_kept **out, mf_err *e);
mf_status mf_exec_restore(mf_exec *x, const mf_exec_kept *k, mf_err *e);
void mf_exec_kept_destroy(mf_exec_kept *k);

/* Tokens that each expert was given in the last step, summed over all ranks: counts[position *
 * experts + expert], for [positions * experts]. Collective. */
mf_status mf_exec_expert_load(mf_exec *x, double *counts, mf_err *e);

/* Bytes of the arena, the end of the highest place in it that a step has taken so far, and what the
 * memory plan says of this rank's stage. After a step the three are equal. */
int64_t mf_exec_arena_B(const mf_exec *x);
/* How a fused dispatcher moves rows, for the run's user; empty: there is none, or memory is the
 * host's. Bytes of the windows that it goes through, beside the arena; 0: none. */
const char *mf_exec_dispatch_text(const mf_exec *x);
int64_t mf_exec_window_B(const mf_exec *x);
int64_t mf_exec_high_B(const mf_exec *x);
double mf_exec_planned_B(const mf_exec *x);
/* Of host memory. */
int64_t mf_exec_host_B(const mf_exec *x);
double mf_exec_planned_host_B(const mf_exec *x);

#endif
