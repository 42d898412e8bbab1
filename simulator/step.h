/* step.h - private to the simulator: a program's step, played block by block on all its ranks.
 *
 * Blocks are simulated once per (block, passes, load); the engine then plays the chunk events of
 * every stage, on one rank of each stage or on all. An observer sees each block instance and each
 * op of the step's end as it is placed, for traces and for memory over time.
 */
#ifndef MF_SIMULATOR_STEP_H
#define MF_SIMULATOR_STEP_H

#include "simulator/sim.h"

typedef struct mf_block_instance {
    int64_t stage, rank; /* rank: place within the stage; 0 when one rank stands for all */
    int64_t event;       /* index into the stage's schedule events; -1 outside (optimizer) */
    int position;        /* forward (or only) position; -1 outside */
    int position2;       /* backward position of a merged pair; -1 */
    unsigned passes;
    int32_t micro_batch, micro_batch2;
    double start_s, end_s;
    const mf_block *block, *beside;
    const mf_block_time *time; /* of block; ops are kept when the options say so */
    const mf_op
        *op; /* a message or op of the step's end (reduction, gather, optimizer), not a block */
} mf_block_instance;

/* Instances of one rank and stream come in the order of time. */
typedef void (*mf_instance_fn)(const mf_block_instance *i, void *user);

typedef struct mf_step_options {
    bool every_rank;
    bool keep_ops;             /* block times carry their ops */
    const mf_routing *routing; /* NULL = balanced */
    mf_instance_fn observe;    /* may be NULL */
    void *user;
    const volatile int *cancel;
} mf_step_options;

/* Plays the schedule. Fills step_time_s, low_s, high_s, breakdown_s, critical_stage, critical_rank,
 * stages, stage, events, ops of *out (zeroed by the caller; stage is allocated also on errors).
 * Errors: MF_NOMEM, MF_INPUT (routing of another model), MF_INTERRUPTED. */
mf_status mf_step_play(const mf_cost *cost, const mf_program *p, const mf_schedule *s,
                       const mf_step_options *o, mf_sim *out, mf_err *e);

#endif
