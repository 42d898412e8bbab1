/* steps.h - single steps from a layout: one dimension at another value, all else as it was, each
 * simulated. `tune` shows the fastest of every dimension, `fit` and `explain` those that make a
 * plan fit, alone and in pairs.
 */
#ifndef MF_LAUNCH_STEPS_H
#define MF_LAUNCH_STEPS_H

#include "launch/target/target.h"

#include "planner/planner.h"

enum { MF_STEP_TEXT = 240 };

typedef struct mf_one_step {
    char what[MF_STEP_TEXT]; /* "--tp 4", "--recompute norm,act"; of a pair both: to be typed so */
    int dimension; /* mf_step_dimension (step_values.h); steps of one exclude each other */
    int value;     /* place in it */
    mf_layout layout;
    mf_assignment assignment;
    bool fits;
    bool faster_only; /* a pair of which one fits alone: the other makes it faster */
    double step_time_s, low_s, high_s, peak_B; /* low_s, high_s: the band; 0: not known */
} mf_one_step;

/* Growing list. All zero is empty. */
typedef struct mf_steps {
    int count, allocated;
    mf_one_step *step;
} mf_steps;
void mf_steps_clear(mf_steps *s);

/* Every valid single step from (l, a), fastest first, those that fit before the rest. target: only
 * steps that it can express; NULL = all. Stages keep their layers where the step leaves them be,
 * and are even ones where not. Errors: MF_NOMEM; MF_INTERRUPTED through cancel, with what was
 * played. */
mf_status mf_steps_single(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                          const mf_target *target, const volatile int *cancel, mf_steps *out,
                          mf_err *e);

/* Of an explanation of the plan (l, a), keeps the remedies that are no option, and the options that
 * the target can express. */
void mf_steps_keep_said(mf_target t, const mf_model *m, const mf_layout *l, const mf_assignment *a,
                        mf_explanation *x);

/* What makes a plan fit that does not: single steps and pairs of them, least time first, at most
 * `most`. Pairs are tried in the order of the time that their steps alone let expect, as many as a
 * second allows; of those with a step that fits alone, the one that is faster than all else is
 * listed. Errors: as above. */
mf_status mf_steps_to_fit(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                          const mf_target *target, const volatile int *cancel, int most,
                          mf_steps *out, mf_err *e);

/* The same from the layout that needs least memory of a problem's: steps of what its search does
 * not choose by itself (what is pinned, moments, optimizer states on the host). */
mf_status mf_steps_to_fit_asked(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                                const mf_target *target, const volatile int *cancel, int most,
                                mf_steps *out, mf_err *e);
/* p as such a step asks for it. */
mf_problem mf_steps_ask(const mf_problem *p, const mf_one_step *step);
/* Copies what p's search does not choose from one layout to another. */
void mf_steps_copy_asked(const mf_problem *p, const mf_layout *from, mf_layout *to);

/* Does it change nothing but what a search of plans holds: moments, and states on the host? */
bool mf_step_is_of_held(const mf_layout *from, const mf_one_step *step);

#endif
