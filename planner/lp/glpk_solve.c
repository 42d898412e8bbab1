/* glpk_solve.c - integer programs and shadow prices by GLPK: the one file that solves with it. */
#include "planner/lp/glpk_fence.h"

#include "core/base/flag.h"
#include "planner/tuning/limits.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* GLPK's iterations go through its basis, which it makes anew for every relaxation, as it does its
 * copies of the program. Half of the rows that came on the way were there on average. */
static int64_t effort_ns(const mf_fence *f, glp_prob *g) {
    const mf_milp *p = f->program;
    const int64_t each_ns = MF_GLPK_NS * (p->rows + f->lazy_rows / 2 + p->cols) +
                            MF_GLPK_ENTRY_NS * (p->entries + f->lazy_entries / 2);
    return each_ns * (glp_get_it_cnt(g) + MF_GLPK_BASIS * f->relaxations) +
           MF_GLPK_RELAXATION_NS * f->relaxations;
}

static bool is_used_up(const mf_fence *f, glp_prob *g) {
    return f->options->effort_ns > 0 && effort_ns(f, g) >= f->options->effort_ns;
}

/* Iterations that a linear program may take. */
static int most_iterations(const mf_fence *f) {
    const int64_t each_ns = (int64_t)MF_GLPK_NS * (f->program->rows + f->program->cols);
    const int64_t most = f->options->effort_ns > 0 ? f->options->effort_ns / each_ns + 1 : INT_MAX;
    return most < INT_MAX ? (int)most : INT_MAX;
}

static void see_node(mf_fence *f, glp_tree *tree) {
    f->nodes++;
    int best = glp_ios_best_node(tree);
    if (best != 0) {
        f->bound = glp_ios_node_bound(tree, best);
    }
    if (mf_flag_is_set(f->options->cancel)) {
        f->cancelled = true;
        glp_ios_terminate(tree);
    } else if (is_used_up(f, glp_ios_get_prob(tree)) ||
               (f->options->node_limit > 0 && f->nodes > f->options->node_limit)) {
        f->limited = true;
        glp_ios_terminate(tree);
    }
}

static void on_tree(glp_tree *tree, void *info) {
    mf_fence *f = info;
    if (glp_ios_reason(tree) == GLP_ISELECT) {
        see_node(f, tree);
    } else if (glp_ios_reason(tree) == GLP_IROWGEN && f->options->lazy) {
        f->relaxations++;
        (void)mf_fence_add_lazy(f, glp_ios_get_prob(tree));
    }
}

static mf_milp_outcome run_mip(const mf_milp *p, mf_fence *f, double *x, mf_milp_result *r) {
    glp_smcp lp;
    glp_iocp mip;
    glp_prob *g = f->problem;
    glp_init_smcp(&lp);
    lp.msg_lev = GLP_MSG_OFF;
    lp.meth = GLP_DUALP;
    lp.it_lim = most_iterations(f);
    int rc = glp_simplex(g, &lp);
    int state = glp_get_status(g);
    r->effort_ns = effort_ns(f, g);
    if (rc == GLP_EITLIM) {
        return MF_MILP_LIMIT;
    }
    if (rc != 0) {
        return mf_fence_odd(r, "glp_simplex", rc, state);
    }
    if (state == GLP_NOFEAS) {
        r->bound = INFINITY;
        return MF_MILP_INFEASIBLE;
    }
    if (state != GLP_OPT) {
        return mf_fence_odd(r, "glp_simplex", rc, state);
    }
    f->bound = glp_get_obj_val(g);
    glp_init_iocp(&mip);
    mip.msg_lev = GLP_MSG_OFF;
    mip.cb_func = on_tree;
    mip.cb_info = f;
    mip.mip_gap = f->options->gap;
    mip.br_tech = GLP_BR_MFV;
    mip.bt_tech = GLP_BT_BLB;
    rc = glp_intopt(g, &mip);
    state = glp_mip_status(g);
    r->nodes = f->nodes;
    r->effort_ns = effort_ns(f, g);
    r->bound = f->bound;
    if (state == GLP_OPT || state == GLP_FEAS) {
        r->have_x = true;
        r->objective = glp_mip_obj_val(g);
        for (int j = 0; x && j < p->cols; j++) {
            x[j] = glp_mip_col_val(g, j + 1);
        }
    }
    if (f->cancelled || f->limited) {
        return f->cancelled ? MF_MILP_CANCELLED : MF_MILP_LIMIT;
    }
    if (rc == 0 && state == GLP_OPT) {
        r->bound = r->objective;
        return MF_MILP_OPTIMAL;
    }
    if (rc == 0 && state == GLP_NOFEAS) {
        r->bound = INFINITY;
        return MF_MILP_INFEASIBLE;
    }
    return rc == GLP_EMIPGAP ? MF_MILP_LIMIT : mf_fence_odd(r, "glp_intopt", rc, state);
}

static mf_milp_outcome run_duals(const mf_milp *p, const mf_fence *f, const double *x,
                                 double *row_dual, mf_milp_result *r) {
    glp_smcp lp;
    glp_prob *g = f->problem;
    for (int j = 0; j < p->cols; j++) {
        if (p->col[j].integer) {
            double fixed = round(x[j]);
            glp_set_col_bnds(g, j + 1, GLP_FX, fixed, fixed);
        }
    }
    glp_init_smcp(&lp);
    lp.msg_lev = GLP_MSG_OFF;
    int rc = glp_simplex(g, &lp);
    int state = glp_get_status(g);
    if (rc == 0 && state == GLP_NOFEAS) {
        return MF_MILP_INFEASIBLE;
    }
    if (rc != 0 || state != GLP_OPT) {
        return mf_fence_odd(r, "glp_simplex", rc, state);
    }
    r->objective = r->bound = glp_get_obj_val(g);
    for (int i = 0; i < p->rows; i++) {
        row_dual[i] = glp_get_row_dual(g, i + 1);
    }
    return MF_MILP_OPTIMAL;
}

/* Enters GLPK with the fence up. dual NULL: the integer program; else the duals at `at`. */
static mf_status enter(const mf_milp *p, const mf_milp_options *o, double *x, const double *at,
                       double *dual, mf_milp_result *r, mf_err *e) {
    memset(r, 0, sizeof *r);
    r->bound = -INFINITY;
    mf_fence *f = p->failed ? NULL : mf_fence_raise(p, o);
    if (!f) {
        return mf_err_set(e, MF_NOMEM, "out of memory for a linear program of %d columns", p->cols);
    }
    if (setjmp(f->out) == 0) {
        mf_fence_enter(f);
        r->outcome = dual ? run_duals(p, f, at, dual, r) : run_mip(p, f, x, r);
        glp_delete_prob(f->problem);
        mf_fence_leave();
    } else {
        (void)mf_fence_gave_up(f, r);
    }
    mf_fence_lower(f);
    return MF_OK;
}

mf_status mf_milp_solve(const mf_milp *p, const mf_milp_options *o, double *x, mf_milp_result *r,
                        mf_err *e) {
    return enter(p, o, x, NULL, NULL, r, e);
}

mf_status mf_milp_duals(const mf_milp *p, const double *x, double *row_dual, mf_milp_result *r,
                        mf_err *e) {
    mf_milp_options o = {.cutoff = INFINITY};
    return enter(p, &o, NULL, x, row_dual, r, e);
}

void mf_milp_thread_end(void) {
    glp_free_env();
}
