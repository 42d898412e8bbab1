/* glpk_fence.h - private to the solvers: GLPK behind a fence, silent, bounded and unable to end the
 * process.
 *
 * GLPK keeps one environment per thread. When something fails inside, it calls our error hook and
 * then abort(); the hook jumps out instead (setjmp(fence.out) before entering), and glp_free_env
 * gives all of its memory back.
 */
#ifndef MF_PLANNER_GLPK_FENCE_H
#define MF_PLANNER_GLPK_FENCE_H

#include "planner/lp/milp.h"

#include <glpk.h>
#include <setjmp.h>

/* All that a solve needs to find its way back from inside GLPK. */
typedef struct mf_fence {
    jmp_buf out;
    const mf_milp *program;
    const mf_milp_options *options;
    glp_prob *problem;
    char words[160]; /* last line that GLPK wanted to print */
    int64_t nodes, lazy_rows;
    int64_t relaxations;  /* that it asked rows for */
    int64_t lazy_entries; /* of these rows */
    bool cancelled, limited;
    double bound; /* best bound of the tree when it was last seen */
    double *x;    /* [cols] point of a relaxation */
    mf_milp_lazy_row row;
    int *ind;    /* [1 + cols] the row as GLPK wants it */
    double *val; /* [1 + cols] */
} mf_fence;

/* NULL when memory ran out. */
mf_fence *mf_fence_raise(const mf_milp *p, const mf_milp_options *o);
void mf_fence_lower(mf_fence *f);

/* Inside the fence: hooks and limits set, the program loaded, faults of tests injected. */
void mf_fence_enter(mf_fence *f);
/* Hooks taken away. */
void mf_fence_leave(void);
/* After a jump: GLPK's memory goes back whole. */
mf_milp_outcome mf_fence_gave_up(const mf_fence *f, mf_milp_result *r);

/* GLP_FR, GLP_LO, GLP_UP, GLP_DB or GLP_FX. */
int mf_fence_bound_type(double lo, double hi);
/* 0 for a bound that is none. */
double mf_fence_finite(double bound);
/* Asks for a row that the current point breaks and appends it; false when there is none. Fills in
 * f->x. */
bool mf_fence_add_lazy(mf_fence *f, glp_prob *lp);
mf_milp_outcome mf_fence_odd(mf_milp_result *r, const char *call, int rc, int state);

#endif
