/* milp_session.c - a linear program that stays in GLPK between solves. */
#include "planner/milp_fence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A basis: what is in it, and at which bound the rest stands. Rows are known by numbers, since some
 * come and go. */
typedef struct kept_basis {
    int rows, room;
    int *id;           /* [rows] ascending */
    signed char *stat; /* [rows + cols] rows, then columns */
} kept_basis;

struct mf_lp {
    mf_fence *fence;
    int64_t pivots;
    int most_pivots; /* of a solve; 0 = any */
    int stall_rounds;
    double stall_share;
    int own_rows; /* the first so many rows never go */
    int *id;      /* [rows] of the rows that are there, ascending */
    int id_room, next_id;
    kept_basis *kept; /* [keep_room], the first `keeps` hold one */
    int keeps, keep_room;
    bool dead; /* GLPK gave up: its objects are gone */
};

/* --- rows by number --------------------------------------------------------------------------- */

/* Numbers for the rows that were appended. */
static bool number_rows(mf_lp *lp, int before) {
    int rows = glp_get_num_rows(lp->fence->problem);
    if (rows > lp->id_room) {
        int room = 2 * rows;
        int *grown = realloc(lp->id, (size_t)room * sizeof *grown);
        if (!grown) {
            return false;
        }
        lp->id = grown;
        lp->id_room = room;
    }
    for (int i = before; i < rows; i++) {
        lp->id[i] = lp->next_id++;
    }
    return true;
}

/* Deletes the rows whose numbers (from 1, GLPK's) are in drop[1 ... count], ascending. */
static void delete_rows(mf_lp *lp, int count, const int *drop) {
    glp_prob *g = lp->fence->problem;
    int rows = glp_get_num_rows(g), kept = 0, next = 1;
    if (count == 0) {
        return;
    }
    for (int i = 0; i < rows; i++) {
        if (next <= count && drop[next] == i + 1) {
            next++;
        } else {
            lp->id[kept++] = lp->id[i];
        }
    }
    glp_del_rows(g, count, drop);
}

/* --- open and close --------------------------------------------------------------------------- */

mf_status mf_lp_open(const mf_milp *p, const mf_milp_options *o, mf_lp **out, mf_err *e) {
    mf_lp *lp = calloc(1, sizeof *lp);
    *out = NULL;
    mf_fence *f = lp && !p->failed ? mf_fence_raise(p, o) : NULL;
    if (!f) {
        free(lp);
        return mf_err_set(e, MF_NOMEM, "out of memory for a linear program of %d columns", p->cols);
    }
    lp->fence = f;
    lp->own_rows = p->rows;
    if (setjmp(f->out) == 0) {
        mf_fence_enter(f);
        mf_fence_leave();
        lp->dead = !number_rows(lp, 0);
        if (lp->dead) {
            glp_delete_prob(f->problem);
        }
    } else {
        mf_milp_result r;
        (void)mf_fence_gave_up(f, &r);
        lp->dead = true;
    }
    *out = lp;
    return MF_OK;
}

void mf_lp_close(mf_lp *lp) {
    if (!lp) {
        return;
    }
    if (!lp->dead) {
        glp_delete_prob(lp->fence->problem);
    }
    for (int i = 0; i < lp->keep_room; i++) {
        free(lp->kept[i].id);
        free(lp->kept[i].stat);
    }
    mf_fence_lower(lp->fence);
    free(lp->kept);
    free(lp->id);
    free(lp);
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

/* --- solving ---------------------------------------------------------------------------------- */

/* Does any kept basis need the row, as one that binds? */
static bool is_held(const mf_lp *lp, int id) {
    for (int k = 0; k < lp->keeps; k++) {
        const kept_basis *b = &lp->kept[k];
        int lo = 0, hi = b->rows;
        while (lo < hi) {
            int mid = lo + (hi - lo) / 2;
            if (b->id[mid] < id) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        if (lo < b->rows && b->id[lo] == id && b->stat[lo] != GLP_BS) {
            return true;
        }
    }
    return false;
}

/* Drops rows from `first` on that bind nothing. Inside the fence. */
static void drop_rows(mf_lp *lp, int first) {
    glp_prob *g = lp->fence->problem;
    int rows = glp_get_num_rows(g), count = 0;
    int *drop = glp_alloc(rows - first + 1, sizeof *drop);
    for (int i = first; i < rows; i++) {
        if (glp_get_row_stat(g, i + 1) == GLP_BS && !is_held(lp, lp->id[i])) {
            drop[++count] = i + 1;
        }
    }
    delete_rows(lp, count, drop);
    glp_free(drop);
}

/* Lazy rows beyond which those that bind nothing are dropped. */
#define MANY_ROWS 40

/* One program, without further rows. Inside the fence. */
static mf_milp_outcome solve_once(mf_lp *lp, double cutoff, int most_pivots, double *bound) {
    glp_prob *g = lp->fence->problem;
    glp_smcp smcp;
    glp_init_smcp(&smcp);
    smcp.msg_lev = GLP_MSG_OFF;
    smcp.meth = GLP_DUALP;
    if (isfinite(cutoff)) {
        smcp.obj_ul = cutoff;
    }
    if (most_pivots > 0) {
        smcp.it_lim = most_pivots;
    }
    int before = glp_get_it_cnt(g);
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
    if (rc == GLP_EITLIM) { /* the objective of a dual feasible basis is a bound */
        *bound = -HUGE_VAL;
        if (glp_get_dual_stat(g) == GLP_FEAS) {
            *bound = fmin(glp_get_obj_val(g), cutoff);
        }
        return MF_MILP_LIMIT;
    }
    if (rc == 0 && state == GLP_NOFEAS) {
        *bound = INFINITY;
        return MF_MILP_INFEASIBLE;
    }
    if (rc != 0 || state != GLP_OPT) {
        return MF_MILP_FAILED;
    }
    *bound = fmin(glp_get_obj_val(g), cutoff);
    return MF_MILP_OPTIMAL;
}

/* Inside the fence. */
static mf_milp_outcome solve(mf_lp *lp, double cutoff, int max_lazy, double *bound) {
    mf_fence *f = lp->fence;
    glp_prob *g = f->problem;
    int64_t until = lp->pivots + lp->most_pivots;
    double before = -INFINITY;
    if (glp_get_num_rows(g) - lp->own_rows > MANY_ROWS) {
        drop_rows(lp, lp->own_rows);
    }
    for (int round = 0;; round++) {
        int left = until > lp->pivots ? (int)(until - lp->pivots) : 1;
        mf_milp_outcome outcome = solve_once(lp, cutoff, lp->most_pivots > 0 ? left : 0, bound);
        if (outcome != MF_MILP_OPTIMAL || *bound >= cutoff) {
            return outcome;
        }
        bool enough = !f->options->lazy || round >= max_lazy;
        if (lp->stall_rounds > 0 && round % lp->stall_rounds == 0) {
            double room = isfinite(cutoff) ? cutoff - *bound : 0.1 * fabs(*bound);
            enough = enough || *bound - before < lp->stall_share * room;
            before = *bound;
        }
        int rows = glp_get_num_rows(g);
        if (enough || !mf_fence_add_lazy(f, g)) {
            for (int j = 0; j < f->program->cols; j++) {
                f->x[j] = glp_get_col_prim(g, j + 1);
            }
            return MF_MILP_OPTIMAL;
        }
        if (!number_rows(lp, rows)) {
            glp_error("out of memory for rows\n");
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

void mf_lp_stall(mf_lp *lp, int rounds, double share) {
    lp->stall_rounds = rounds;
    lp->stall_share = share;
}

const double *mf_lp_point(const mf_lp *lp) {
    return lp->fence->x;
}

double mf_lp_row_dual(const mf_lp *lp, int row) {
    bool there = !lp->dead && row < glp_get_num_rows(lp->fence->problem);
    return there ? glp_get_row_dual(lp->fence->problem, row + 1) : 0.0;
}

void mf_lp_drop_slack(mf_lp *lp, int first) {
    mf_fence *f = lp->fence;
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
    lp->own_rows = first < lp->own_rows ? first : lp->own_rows;
    drop_rows(lp, first);
    mf_fence_leave();
}

int64_t mf_lp_pivots(const mf_lp *lp) {
    return lp->pivots;
}

int64_t mf_lp_lazy_rows(const mf_lp *lp) {
    return lp->fence->lazy_rows;
}

/* --- bases ------------------------------------------------------------------------------------ */

/* Room for one more basis of so many rows and columns; NULL when memory ran out. */
static kept_basis *basis_room(mf_lp *lp, int number, int rows, int cols) {
    if (number >= lp->keep_room) {
        int room = 2 * number + 8;
        kept_basis *grown = realloc(lp->kept, (size_t)room * sizeof *grown);
        if (!grown) {
            return NULL;
        }
        memset(grown + lp->keep_room, 0, (size_t)(room - lp->keep_room) * sizeof *grown);
        lp->kept = grown;
        lp->keep_room = room;
    }
    kept_basis *b = &lp->kept[number];
    if (rows > b->room) {
        free(b->id);
        free(b->stat);
        b->room = rows + rows / 4 + 16;
        b->id = malloc((size_t)b->room * sizeof *b->id);
        b->stat = malloc((size_t)b->room + (size_t)cols);
        if (!b->id || !b->stat) {
            b->room = 0;
            return NULL;
        }
    }
    return b;
}

void mf_lp_keep(mf_lp *lp, int number) {
    if (lp->dead) {
        return;
    }
    glp_prob *g = lp->fence->problem;
    int cols = glp_get_num_cols(g), rows = glp_get_num_rows(g);
    kept_basis *b = number <= lp->keeps ? basis_room(lp, number, rows, cols) : NULL;
    lp->keeps = number < lp->keeps ? number : lp->keeps;
    if (!b) {
        return;
    }
    b->rows = rows;
    for (int i = 0; i < rows; i++) {
        b->id[i] = lp->id[i];
        b->stat[i] = (signed char)glp_get_row_stat(g, i + 1);
    }
    for (int j = 0; j < cols; j++) {
        b->stat[rows + j] = (signed char)glp_get_col_stat(g, j + 1);
    }
    lp->keeps = number + 1;
}

/* Are all rows that bind in the basis still there? */
static bool is_whole(const mf_lp *lp, const kept_basis *b, int rows) {
    int at = 0;
    for (int i = 0; i < b->rows; i++) {
        while (at < rows && lp->id[at] < b->id[i]) {
            at++;
        }
        bool there = at < rows && lp->id[at] == b->id[i];
        if (!there && b->stat[i] != GLP_BS) {
            return false;
        }
    }
    return true;
}

void mf_lp_back_to(mf_lp *lp, int number) {
    if (lp->dead || number >= lp->keeps) {
        return;
    }
    mf_fence *f = lp->fence;
    glp_prob *g = f->problem;
    const kept_basis *b = &lp->kept[number];
    int cols = glp_get_num_cols(g), rows = glp_get_num_rows(g), at = 0;
    lp->keeps = number + 1;
    if (!is_whole(lp, b, rows)) {
        return;
    }
    if (setjmp(f->out) != 0) {
        mf_milp_result r;
        lp->dead = true;
        (void)mf_fence_gave_up(f, &r);
        return;
    }
    mf_fence_enter(f);
    for (int j = 0; j < cols; j++) {
        glp_set_col_stat(g, j + 1, b->stat[b->rows + j]);
    }
    for (int i = 0; i < rows; i++) {
        while (at < b->rows && b->id[at] < lp->id[i]) {
            at++;
        }
        bool was = at < b->rows && b->id[at] == lp->id[i];
        glp_set_row_stat(g, i + 1, was ? b->stat[at] : GLP_BS);
    }
    mf_fence_leave();
}
