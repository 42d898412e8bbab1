/* step.h - private to the simulator: the step engine's view of a program.
 *
 * Blocks are simulated once per (block, pass, load); the engine then plays chunk events of every
 * stage. An observer sees each block instance as it is placed, for traces and for memory over time.
 */
#ifndef MF_SIMULATOR_STEP_H
#define MF_SIMULATOR_STEP_H

#include "simulator/sim.h"

typedef struct mf_block_instance {
    int64_t stage;
    int64_t event; /* index into the stage's schedule events; -1 outside (optimizer) */
    int position,
        position2; /* forward (or only) position, backward position of a merged pair; -1 */
    unsigned passes;
    int32_t micro_batch, micro_batch2;
    double start_s, end_s;
    const mf_block *block, *beside;
    const mf_op *op; /* a once-a-step op (reduction, gather, optimizer) instead of a block */
    double load;
} mf_block_instance;

typedef void (*mf_instance_fn)(const mf_block_instance *i, void *user);

typedef struct mf_step_options {
    const double *load_of_position; /* [positions] routed rows over balanced; NULL = 1 */
    mf_instance_fn observe;         /* may be NULL */
    void *user;
    const volatile int *cancel;
} mf_step_options;

/* Plays the schedule with one rank per stage. Fills step_time_s, low_s, high_s, breakdown_s,
 * critical_stage, stages, stage, events, ops of *out (zeroed by the caller; stage is allocated). */
mf_status mf_step_play(const mf_cost *cost, const mf_program *p, const mf_schedule *s,
                       const mf_step_options *o, mf_sim *out, mf_err *e);

#endif
