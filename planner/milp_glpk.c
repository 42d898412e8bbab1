/* milp_glpk.c - GLPK behind a fence: silent, bounded, deterministic, and unable to end the process.
 *
 * GLPK keeps one environment per thread. When something fails inside, it calls our error hook and
 * then abort(); the hook jumps out instead, and glp_free_env gives all of its memory back.
 */
#include "planner/milp.h"

#include <glpk.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MEMORY_MB 512
#define STALL_ROUNDS 12
#define STALL_GAIN 1e-3

/* All that a solve needs to find its way back from inside GLPK. */
typedef struct fence {
    jmp_buf out;
    const mf_milp *program;
    const mf_milp_options *options;
    glp_prob *problem;
    char words[160]; /* last line that GLPK wanted to print */
    int64_t nodes, lazy_rows;
    bool cancelled, limited;
    double bound; /* best bound of the tree when it was last seen */
    double *x;    /* [cols] point of a relaxation */
    mf_milp_lazy_row row;
    int *ind;    /* [1 + cols] the row as GLPK wants it */
    double *val; /* [1 + cols] */
} fence;

static int on_print(void *info, const char *text) {
    fence *f = info;
    if (text[0] != '\n' && text[0] != '\0') {
        snprintf(f->words, sizeof f->words, "%s", text);
        f->words[strcspn(f->words, "\n")] = '\0';
    }
    return 1; /* printed: nothing reaches the terminal */
}

static void on_error(void *info) {
    fence *f = info;
    longjmp(f->out, 1);
}

static int bound_type(double lo, double hi) {
    if (isinf(lo) && isinf(hi)) {
        return GLP_FR;
    }
    if (isinf(lo)) {
        return GLP_UP;
    }
    if (isinf(hi)) {
        return GLP_LO;
    }
    return lo >= hi ? GLP_FX : GLP_DB;
}

static double finite(double bound) {
    return isinf(bound) ? 0.0 : bound;
}

/* False when the point needs no row. */
static bool add_lazy_row(fence *f, glp_prob *lp) {
    const mf_milp *p = f->program;
    for (int j = 0; j < p->cols; j++) {
        f->x[j] = glp_get_col_prim(lp, j + 1);
    }
    if (!f->options->lazy(f->options->lazy_user, f->x, &f->row)) {
        return false;
    }
    for (int k = 0; k < f->row.count; k++) {
        f->ind[k + 1] = f->row.col[k] + 1;
        f->val[k + 1] = f->row.value[k];
    }
    int i = glp_add_rows(lp, 1);
    glp_set_row_bnds(lp, i, bound_type(f->row.lo, f->row.hi), finite(f->row.lo), finite(f->row.hi));
    glp_set_mat_row(lp, i, f->row.count, f->ind, f->val);
    f->lazy_rows++;
    return true;
}

static void see_node(fence *f, glp_tree *tree) {
    f->nodes++;
    int best = glp_ios_best_node(tree);
    if (best != 0) {
        f->bound = glp_ios_node_bound(tree, best);
    }
    if (f->options->cancel && *f->options->cancel) {
        f->cancelled = true;
        glp_ios_terminate(tree);
    } else if ((f->options->node_limit > 0 && f->nodes > f->options->node_limit) ||
               (f->options->target > 0 && f->bound >= f->options->target)) {
        f->limited = true;
        glp_ios_terminate(tree);
    }
}

static void on_tree(glp_tree *tree, void *info) {
    fence *f = info;
    if (glp_ios_reason(tree) == GLP_ISELECT) {
        see_node(f, tree);
    } else if (glp_ios_reason(tree) == GLP_IROWGEN && f->options->lazy) {
        (void)add_lazy_row(f, glp_ios_get_prob(tree));
    }
}

static void load_columns(glp_prob *g, const mf_milp *p) {
    if (p->cols > 0) {
        glp_add_cols(g, p->cols);
    }
    for (int j = 0; j < p->cols; j++) {
        const mf_milp_col *c = &p->col[j];
        glp_set_col_kind(g, j + 1, c->integer ? GLP_IV : GLP_CV);
        glp_set_col_bnds(g, j + 1, bound_type(c->lo, c->hi), finite(c->lo), finite(c->hi));
        glp_set_obj_coef(g, j + 1, c->cost);
    }
}

/* The program as GLPK's object, indices from 1; a finite cutoff becomes one more row. */
static glp_prob *load(const mf_milp *p, double cutoff) {
    glp_prob *g = glp_create_prob();
    glp_set_obj_dir(g, GLP_MIN);
    int cut = isfinite(cutoff) ? 1 : 0;
    if (p->rows + cut > 0) {
        glp_add_rows(g, p->rows + cut);
    }
    load_columns(g, p);
    for (int i = 0; i < p->rows; i++) {
        const mf_milp_row *r = &p->row[i];
        glp_set_row_bnds(g, i + 1, bound_type(r->lo, r->hi), finite(r->lo), finite(r->hi));
    }
    int most = 1 + p->entries + cut * p->cols, n = 0;
    int *ia = glp_alloc(most, sizeof *ia), *ja = glp_alloc(most, sizeof *ja);
    double *ar = glp_alloc(most, sizeof *ar);
    for (int k = 0; k < p->entries; k++) {
        n++;
        ia[n] = p->entry[k].row + 1;
        ja[n] = p->entry[k].col + 1;
        ar[n] = p->entry[k].value;
    }
    if (cut) {
        glp_set_row_bnds(g, p->rows + 1, GLP_UP, 0.0, cutoff);
        for (int j = 0; j < p->cols; j++) {
            if (p->col[j].cost != 0.0) {
                n++;
                ia[n] = p->rows + 1;
                ja[n] = j + 1;
                ar[n] = p->col[j].cost;
            }
        }
    }
    glp_load_matrix(g, n, ia, ja, ar);
    glp_free(ia);
    glp_free(ja);
    glp_free(ar);
    return g;
}

static void inject(mf_milp_fault fault) {
    if (fault == MF_MILP_FAULT_ABORT) {
        glp_error("injected fault\n");
    } else if (fault == MF_MILP_FAULT_NOMEM) {
        glp_mem_limit(1);
        for (int i = 0; i < 64; i++) {
            (void)glp_alloc(1 << 16, 1);
        }
    }
}

static mf_milp_outcome gave_up(mf_milp_result *r, const char *call, int rc, int state) {
    snprintf(r->text, sizeof r->text, "%s returned %d, status %d", call, rc, state);
    r->bound = -INFINITY;
    r->have_x = false;
    return MF_MILP_FAILED;
}

static mf_milp_outcome run_mip(const mf_milp *p, fence *f, double *x, mf_milp_result *r) {
    glp_smcp lp;
    glp_iocp mip;
    glp_prob *g = f->problem;
    glp_init_smcp(&lp);
    lp.msg_lev = GLP_MSG_OFF;
    lp.meth = GLP_DUALP;
    int rc = glp_simplex(g, &lp);
    int state = glp_get_status(g);
    if (rc != 0) {
        return gave_up(r, "glp_simplex", rc, state);
    }
    if (state == GLP_NOFEAS) {
        r->bound = INFINITY;
        return MF_MILP_INFEASIBLE;
    }
    if (state != GLP_OPT) {
        return gave_up(r, "glp_simplex", rc, state);
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
    r->lazy_rows = f->lazy_rows;
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
    return rc == GLP_EMIPGAP ? MF_MILP_LIMIT : gave_up(r, "glp_intopt", rc, state);
}

static mf_milp_outcome run_duals(const mf_milp *p, const fence *f, const double *x,
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
        return gave_up(r, "glp_simplex", rc, state);
    }
    r->objective = r->bound = glp_get_obj_val(g);
    for (int i = 0; i < p->rows; i++) {
        row_dual[i] = glp_get_row_dual(g, i + 1);
    }
    return MF_MILP_OPTIMAL;
}

static mf_milp_outcome run_relaxed(const mf_milp *p, fence *f, int max_lazy, double *row_dual,
                                   mf_milp_result *r) {
    glp_smcp lp;
    glp_prob *g = f->problem;
    glp_init_smcp(&lp);
    lp.msg_lev = GLP_MSG_OFF;
    lp.meth = GLP_DUALP;
    double before = -INFINITY;
    for (int round = 0;; round++) {
        int rc = glp_simplex(g, &lp);
        int state = glp_get_status(g);
        if (rc == 0 && state == GLP_NOFEAS) {
            r->bound = INFINITY;
            return MF_MILP_INFEASIBLE;
        }
        if (rc != 0 || state != GLP_OPT) {
            return gave_up(r, "glp_simplex", rc, state);
        }
        r->objective = r->bound = glp_get_obj_val(g);
        if (round % STALL_ROUNDS == 0) { /* rows that tell little come without end */
            if (r->bound - before < STALL_GAIN * fabs(r->bound)) {
                break;
            }
            before = r->bound;
        }
        if (!f->options->lazy || f->lazy_rows >= max_lazy || !add_lazy_row(f, g)) {
            break;
        }
    }
    r->lazy_rows = f->lazy_rows;
    for (int i = 0; i < p->rows + (int)f->lazy_rows; i++) {
        row_dual[i] = glp_get_row_dual(g, i + 1);
    }
    return MF_MILP_OPTIMAL;
}

static void lower_fence(fence *f) {
    if (f) {
        free(f->x);
        free(f->row.col);
        free(f->row.value);
        free(f->ind);
        free(f->val);
        free(f);
    }
}

static fence *raise_fence(const mf_milp *p, const mf_milp_options *o) {
    fence *f = calloc(1, sizeof *f);
    size_t n = (size_t)p->cols + 1;
    if (!f) {
        return NULL;
    }
    f->program = p;
    f->options = o;
    f->bound = -INFINITY;
    f->x = calloc(n, sizeof *f->x);
    f->row.col = calloc(n, sizeof *f->row.col);
    f->row.value = calloc(n, sizeof *f->row.value);
    f->ind = calloc(n, sizeof *f->ind);
    f->val = calloc(n, sizeof *f->val);
    if (!f->x || !f->row.col || !f->row.value || !f->ind || !f->val) {
        lower_fence(f);
        return NULL;
    }
    return f;
}

/* Enters GLPK with the fence up. dual NULL: the integer program; at NULL: the relaxation with at
 * most max_lazy lazy rows; else the duals at `at`. */
static mf_status enter(const mf_milp *p, const mf_milp_options *o, double *x, const double *at,
                       int max_lazy, double *dual, mf_milp_result *r, mf_err *e) {
    memset(r, 0, sizeof *r);
    r->bound = -INFINITY;
    fence *f = p->failed ? NULL : raise_fence(p, o);
    if (!f) {
        return mf_err_set(e, MF_NOMEM, "out of memory for a linear program of %d columns", p->cols);
    }
    if (setjmp(f->out) == 0) {
        glp_init_env();
        glp_term_hook(on_print, f);
        glp_error_hook(on_error, f);
        glp_mem_limit(o->memory_limit_MB > 0 ? o->memory_limit_MB : DEFAULT_MEMORY_MB);
        f->problem = load(p, o->cutoff);
        inject(o->fault);
        glp_scale_prob(f->problem, GLP_SF_GM | GLP_SF_EQ | GLP_SF_2N);
        r->outcome = !dual ? run_mip(p, f, x, r)
                     : at  ? run_duals(p, f, at, dual, r)
                           : run_relaxed(p, f, max_lazy, dual, r);
        glp_delete_prob(f->problem);
        glp_term_hook(NULL, NULL);
        glp_error_hook(NULL, NULL);
    } else { /* GLPK gave up: its memory goes back whole */
        memset(r, 0, sizeof *r);
        r->outcome = MF_MILP_FAILED;
        r->bound = -INFINITY;
        snprintf(r->text, sizeof r->text, "%s", f->words);
        glp_error_hook(NULL, NULL);
        glp_term_hook(NULL, NULL);
        glp_free_env();
    }
    lower_fence(f);
    return MF_OK;
}

mf_status mf_milp_solve(const mf_milp *p, const mf_milp_options *o, double *x, mf_milp_result *r,
                        mf_err *e) {
    return enter(p, o, x, NULL, 0, NULL, r, e);
}

mf_status mf_milp_relax(const mf_milp *p, const mf_milp_options *o, int max_lazy, double *row_dual,
                        mf_milp_result *r, mf_err *e) {
    mf_milp_options plain = *o;
    plain.cutoff = INFINITY;
    return enter(p, &plain, NULL, NULL, max_lazy, row_dual, r, e);
}

mf_status mf_milp_duals(const mf_milp *p, const double *x, double *row_dual, mf_milp_result *r,
                        mf_err *e) {
    mf_milp_options o = {.cutoff = INFINITY};
    return enter(p, &o, NULL, x, 0, row_dual, r, e);
}

void mf_milp_thread_end(void) {
    glp_free_env();
}
