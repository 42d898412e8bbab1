/* step_player.h - private to launch/steps: simulates steps from a layout into a list. */
#ifndef MF_LAUNCH_STEP_PLAYER_H
#define MF_LAUNCH_STEP_PLAYER_H

#include "launch/steps/steps.h"

typedef struct mf_step_player {
    const mf_problem *p;
    const mf_target *target;
    const volatile int *cancel;
    mf_steps *out;
    bool to_fit; /* steps that leave the memory as it is are passed over */
    bool weigh;  /* only what may fit by the sums of its memory is simulated */
    bool asked;  /* no steps of what a search chooses */
} mf_step_player;

/* Is a dimension one whose steps are played? */
bool mf_steps_is_tried(const mf_step_player *x, int dimension);

/* Plays a step from (from, a) whose layout is set, and adds it to the list; one that is not valid,
 * known, or not expressible is passed over. other: MF_STEP_RECOMPUTE for a pair of which one step
 * is a memory choice, which all layers then take. Errors: MF_NOMEM, MF_INTERRUPTED, those of the
 * simulation. */
mf_status mf_steps_play(mf_step_player *x, mf_one_step *step, const mf_layout *from,
                        const mf_assignment *a, int other, mf_err *e);

/* Plays every single step from (l, a) into an empty list, fastest first. Errors: the same. */
mf_status mf_steps_play_single(mf_step_player *x, const mf_layout *l, const mf_assignment *a,
                               mf_err *e);

/* Appends a copy; false: no memory. */
bool mf_steps_add(mf_steps *s, const mf_one_step *step);

/* For qsort: those that fit first, then by time. */
int mf_steps_by_time(const void *a, const void *b);

#endif
