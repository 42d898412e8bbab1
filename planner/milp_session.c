/* milp_session.c - a linear program that stays in GLPK between solves. */
#include "planner/milp_fence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct mf_lp {
    mf_fence *fence;
    int64_t pivots;
    int most_pivots; /* of a solve; 0 = any */
    int marked_rows, room;
    signed char *marked; /* [cols + rows] status of each in the marked basis */
    bool dead;           /* GLPK gave up: its objects are gone */
};

mf_status mf_lp_open(const mf_milp *p, const mf_milp_options *o, mf_lp **out, mf_err *e) {
    mf_lp *lp = calloc(1, sizeof *lp);
    *out = NULL;
    mf_fence *f = lp && !p->failed ? mf_fence_raise(p, o) : NULL;
    if (!f) {
        free(lp);
        return mf_err_set(e, MF_NOMEM, "out of memory for a linear program of %d columns", p->cols);
    }
    lp->fence = f;
    if (setjmp(f->out) == 0) {
        mf_fence_enter(f);
        mf_fence_leave();
    } else {
        mf_milp_result r;
        (void)mf_fence_gave_up(f, &r);
        lp->dead = true;
    }
    *out = lp;
    return MF_OK;
}

void mf_lp_close(mf_lp *lp) {
    if (lp) {
        if (!lp->dead) {
            glp_delete_prob(lp->fence->problem);
        }
        mf_fence_lower(lp->fence);
        free(lp->marked);
        free(lp);
    }
}

void mf_lp_set_col(mf_lp *lp, int col, double lo, double hi) {
    if (!lp->dead) {
        glp_set_col_bnds(lp->fence->problem, col + 1, mf_fence_bound_type(lo, hi),
                         mf_fence_finite(lo), mf_fence_finite(hi));
    }
}

void mf_lp_set_row(mf_lp *lp, int row, double lo, double hi) {
    if (!lp->dead) {
        glp_set_row_bnds(lp->fence->problem, row + 1, mf_fence_bound_type(lo, hi),
                         mf_fence_finite(lo), mf_fence_finite(hi));
    }
}

/* Drops rows that came since the mark: all, or those that bind nothing. Inside the fence. */
static void drop_rows(mf_lp *lp, bool all) {
    glp_prob *g = lp->fence->problem;
    int rows = glp_get_num_rows(g), count = 0;
    if (rows <= lp->marked_rows) {
        return;
    }
    int *drop = glp_alloc(rows - lp->marked_rows + 1, sizeof *drop);
    for (int i = lp->marked_rows + 1; i <= rows; i++) {
        if (all || glp_get_row_stat(g, i) == GLP_BS) {
            drop[++count] = i;
        }
    }
    if (count > 0) {
        glp_del_rows(g, count, drop);
    }
    glp_free(drop);
}

/* Lazy rows since the mark beyond which those that bind nothing are dropped. */
#define MANY_ROWS 40

/* Inside the fence. */
static mf_milp_outcome solve(mf_lp *lp, double cutoff, int max_lazy, double *bound) {
    mf_fence *f = lp->fence;
    glp_prob *g = f->problem;
    glp_smcp smcp;
    glp_init_smcp(&smcp);
    smcp.msg_lev = GLP_MSG_OFF;
    smcp.meth = GLP_DUALP;
    if (isfinite(cutoff)) {
        smcp.obj_ul = cutoff;
    }
    int64_t until = lp->pivots + lp->most_pivots;
    if (lp->marked_rows > 0 && glp_get_num_rows(g) - lp->marked_rows > MANY_ROWS) {
        drop_rows(lp, false);
    }
    for (int lazy = 0;; lazy++) {
        int before = glp_get_it_cnt(g);
        if (lp->most_pivots > 0) {
            smcp.it_lim = until > lp->pivots ? (int)(until - lp->pivots) : 1;
        }
        int rc = glp_simplex(g, &smcp);
        if (rc != 0 && rc != GLP_EOBJUL &&
            rc != GLP_EITLIM) { /* its numbers got stuck: from the start */
            glp_std_basis(g);
            rc = glp_simplex(g, &smcp);
        }
        int state = glp_get_status(g);
        lp->pivots += glp_get_it_cnt(g) - before;
        if (rc == GLP_EOBJUL) {
            *bound = cutoff;
            return MF_MILP_OPTIMAL;
        }
        if (rc == GLP_EITLIM) {
            return MF_MILP_LIMIT;
        }
        if (rc == 0 && state == GLP_NOFEAS) {
            *bound = INFINITY;
            return MF_MILP_INFEASIBLE;
        }
        if (rc != 0 || state != GLP_OPT) {
            return MF_MILP_FAILED;
        }
        *bound = glp_get_obj_val(g);
        if (*bound >= cutoff) {
            *bound = cutoff;
            return MF_MILP_OPTIMAL;
        }
        if (!f->options->lazy || lazy >= max_lazy || !mf_fence_add_lazy(f, g)) {
            for (int j = 0; j < f->program->cols; j++) {
                f->x[j] = glp_get_col_prim(g, j + 1);
            }
            return MF_MILP_OPTIMAL;
        }
    }
}

mf_milp_outcome mf_lp_solve(mf_lp *lp, double cutoff, int max_lazy, double *bound) {
    mf_fence *f = lp->fence;
    *bound = -INFINITY;
    if (lp->dead) {
        return MF_MILP_FAILED;
    }
    if (setjmp(f->out) != 0) {
        mf_milp_result r;
        lp->dead = true;
        *bound = -INFINITY;
        return mf_fence_gave_up(f, &r);
    }
    mf_fence_enter(f);
    mf_milp_outcome outcome = solve(lp, cutoff, max_lazy, bound);
    mf_fence_leave();
    return outcome;
}

void mf_lp_limit(mf_lp *lp, int pivots) {
    lp->most_pivots = pivots;
}

const double *mf_lp_point(const mf_lp *lp) {
    return lp->fence->x;
}

double mf_lp_row_dual(const mf_lp *lp, int row) {
    bool there = !lp->dead && row < glp_get_num_rows(lp->fence->problem);
    return there ? glp_get_row_dual(lp->fence->problem, row + 1) : 0.0;
}

void mf_lp_drop_slack(mf_lp *lp, int first, int count, bool *gone) {
    mf_fence *f = lp->fence;
    memset(gone, 0, (size_t)count * sizeof *gone);
    if (lp->dead) {
        return;
    }
    if (setjmp(f->out) != 0) {
        mf_milp_result r;
        lp->dead = true;
        (void)mf_fence_gave_up(f, &r);
        return;
    }
    mf_fence_enter(f);
    glp_prob *g = f->problem;
    int *drop = glp_alloc(count + 1, sizeof *drop), drops = 0;
    for (int i = 0; i < count; i++) {
        gone[i] = glp_get_row_stat(g, first + i + 1) == GLP_BS;
        if (gone[i]) {
            drop[++drops] = first + i + 1;
        }
    }
    if (drops > 0) {
        glp_del_rows(g, drops, drop);
    }
    glp_free(drop);
    mf_fence_leave();
}

int64_t mf_lp_pivots(const mf_lp *lp) {
    return lp->pivots;
}

int64_t mf_lp_lazy_rows(const mf_lp *lp) {
    return lp->fence->lazy_rows;
}

void mf_lp_mark(mf_lp *lp) {
    if (lp->dead) {
        return;
    }
    glp_prob *g = lp->fence->problem;
    int cols = glp_get_num_cols(g), rows = glp_get_num_rows(g);
    if (cols + rows > lp->room) {
        free(lp->marked);
        lp->room = 2 * (cols + rows);
        lp->marked = malloc((size_t)lp->room);
    }
    lp->marked_rows = lp->marked ? rows : 0;
    for (int j = 0; lp->marked && j < cols; j++) {
        lp->marked[j] = (signed char)glp_get_col_stat(g, j + 1);
    }
    for (int i = 0; lp->marked && i < rows; i++) {
        lp->marked[cols + i] = (signed char)glp_get_row_stat(g, i + 1);
    }
}

void mf_lp_back_to_mark(mf_lp *lp) {
    if (lp->dead || lp->marked_rows == 0) {
        return;
    }
    mf_fence *f = lp->fence;
    if (setjmp(f->out) != 0) {
        mf_milp_result r;
        lp->dead = true;
        (void)mf_fence_gave_up(f, &r);
        return;
    }
    mf_fence_enter(f);
    glp_prob *g = f->problem;
    drop_rows(lp, true);
    int cols = glp_get_num_cols(g);
    for (int j = 0; j < cols; j++) {
        glp_set_col_stat(g, j + 1, lp->marked[j]);
    }
    for (int i = 0; i < lp->marked_rows; i++) {
        glp_set_row_stat(g, i + 1, lp->marked[cols + i]);
    }
    mf_fence_leave();
}
