/* fit_sweep.h - private to the planner: judges every combination of degrees of a size, on several
 * threads. */
#ifndef MF_PLANNER_FIT_SWEEP_H
#define MF_PLANNER_FIT_SWEEP_H

#include "planner/fit/fit_judge.h"

enum { MF_FIT_THREADS = 8 }; /* at most */

/* A judge for each thread; they keep what they lowered from one size to the next. */
typedef struct mf_fit_crew {
    int threads;
    mf_fit_judge *judge[MF_FIT_THREADS];
} mf_fit_crew;

/* threads: as in mf_fit_options. Errors: MF_NOMEM. */
mf_status mf_fit_crew_init(mf_fit_crew *crew, const mf_problem *p, int threads, mf_err *e);
void mf_fit_crew_clear(mf_fit_crew *crew);
/* Calls work(self, judge) on every thread of the crew, each with a judge of its own, and waits for
 * all. The calling thread works, too; fewer threads than wanted is no failure. */
void mf_fit_crew_run(mf_fit_crew *crew, void (*work)(void *self, mf_fit_judge *judge), void *self);

typedef struct mf_fit_sweep {
    const mf_problem *p;
    const mf_fit_options *o;
    mf_space space;  /* of the size */
    bool exact;      /* all entries */
    bool first_only; /* one that fits is enough */
} mf_fit_sweep;

/* The space of a problem at a size. */
mf_space mf_fit_space(const mf_problem *p, int64_t gpus);

/* Sets r->entry, r->count and r->feasible. The set of entries does not depend on the number of
 * threads (with first_only: only whether something fits does not), their order does.
 * MF_INTERRUPTED: the entries judged so far. */
mf_status mf_fit_sweep_run(const mf_fit_sweep *q, mf_fit_crew *crew, mf_fit_result *r, mf_err *e);

/* One layout of every combination of degrees of the space, in the order that needs least memory,
 * unjudged: *out [*count], to be freed. */
mf_status mf_fit_list(const mf_problem *p, const mf_space *space, mf_layout **out, int64_t *count,
                      mf_err *e);

#endif
