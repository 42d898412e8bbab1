/* glpk_fence.c - entering GLPK and getting out again, whatever happens inside. */
#include "planner/lp/glpk_fence.h"

#include "planner/tuning/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int on_print(void *info, const char *text) {
    mf_fence *f = info;
    if (text[0] != '\n' && text[0] != '\0') {
        snprintf(f->words, sizeof f->words, "%s", text);
        f->words[strcspn(f->words, "\n")] = '\0';
    }
    return 1; /* printed: nothing reaches the terminal */
}

static void on_error(void *info) {
    mf_fence *f = info;
    longjmp(f->out, 1);
}

int mf_fence_bound_type(double lo, double hi) {
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

double mf_fence_finite(double bound) {
    return isinf(bound) ? 0.0 : bound;
}

/* False when the point needs no row. */
static void add_row(mf_fence *f, glp_prob *lp) {
    for (int k = 0; k < f->row.count; k++) {
        f->ind[k + 1] = f->row.col[k] + 1;
        f->val[k + 1] = f->row.value[k];
    }
    int i = glp_add_rows(lp, 1);
    glp_set_row_bnds(lp, i, mf_fence_bound_type(f->row.lo, f->row.hi), mf_fence_finite(f->row.lo),
                     mf_fence_finite(f->row.hi));
    glp_set_mat_row(lp, i, f->row.count, f->ind, f->val);
    f->lazy_rows++;
    f->lazy_entries += f->row.count;
}

bool mf_fence_add_lazy(mf_fence *f, glp_prob *lp) {
    const mf_milp *p = f->program;
    for (int j = 0; j < p->cols; j++) {
        f->x[j] = glp_get_col_prim(lp, j + 1);
    }
    bool added = false;
    do {
        f->row.more = false;
        if (!f->options->lazy(f->options->lazy_user, f->x, &f->row)) {
            return added;
        }
        add_row(f, lp);
        added = true;
    } while (f->row.more);
    return true;
}

static void load_columns(glp_prob *g, const mf_milp *p) {
    if (p->cols > 0) {
        glp_add_cols(g, p->cols);
    }
    for (int j = 0; j < p->cols; j++) {
        const mf_milp_col *c = &p->col[j];
        glp_set_col_kind(g, j + 1, c->integer ? GLP_IV : GLP_CV);
        glp_set_col_bnds(g, j + 1, mf_fence_bound_type(c->lo, c->hi), mf_fence_finite(c->lo),
                         mf_fence_finite(c->hi));
        glp_set_obj_coef(g, j + 1, c->cost);
    }
}

/* The program as GLPK's object, indices from 1; a finite cutoff becomes one more row. */
static glp_prob *load(const mf_milp *p, double cutoff) {
    glp_prob *g = glp_create_prob();
    glp_set_obj_dir(g, GLP_MIN);
    int below = isfinite(cutoff) ? 1 : 0;
    if (p->rows + below > 0) {
        glp_add_rows(g, p->rows + below);
    }
    load_columns(g, p);
    for (int i = 0; i < p->rows; i++) {
        const mf_milp_row *r = &p->row[i];
        glp_set_row_bnds(g, i + 1, mf_fence_bound_type(r->lo, r->hi), mf_fence_finite(r->lo),
                         mf_fence_finite(r->hi));
    }
    int most = 1 + p->entries + below * p->cols, n = 0;
    int *ia = glp_alloc(most, sizeof *ia), *ja = glp_alloc(most, sizeof *ja);
    double *ar = glp_alloc(most, sizeof *ar);
    for (int k = 0; k < p->entries; k++) {
        n++;
        ia[n] = p->entry[k].row + 1;
        ja[n] = p->entry[k].col + 1;
        ar[n] = p->entry[k].value;
    }
    if (below) {
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
    for (int i = 0; i < p->rows; i++) {
        if (p->row[i].defines >= 0) {
            glp_set_row_stat(g, i + 1, GLP_NS);
            glp_set_col_stat(g, p->row[i].defines + 1, GLP_BS);
        }
    }
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

void mf_fence_lower(mf_fence *f) {
    if (f) {
        free(f->x);
        free(f->row.col);
        free(f->row.value);
        free(f->ind);
        free(f->val);
        free(f);
    }
}

mf_fence *mf_fence_raise(const mf_milp *p, const mf_milp_options *o) {
    mf_fence *f = calloc(1, sizeof *f);
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
        mf_fence_lower(f);
        return NULL;
    }
    return f;
}

mf_milp_outcome mf_fence_odd(mf_milp_result *r, const char *call, int rc, int state) {
    snprintf(r->text, sizeof r->text, "%s returned %d, status %d", call, rc, state);
    r->bound = -INFINITY;
    r->have_x = false;
    return MF_MILP_FAILED;
}

void mf_fence_enter(mf_fence *f) {
    const mf_milp_options *o = f->options;
    glp_init_env();
    glp_term_hook(on_print, f);
    glp_error_hook(on_error, f);
    glp_mem_limit(MF_GLPK_MEMORY_MB);
    if (!f->problem) {
        f->problem = load(f->program, o->cutoff);
        inject(o->fault);
        glp_scale_prob(f->problem, GLP_SF_GM | GLP_SF_EQ | GLP_SF_2N);
    }
}

void mf_fence_leave(void) {
    glp_term_hook(NULL, NULL);
    glp_error_hook(NULL, NULL);
}

mf_milp_outcome mf_fence_gave_up(const mf_fence *f, mf_milp_result *r) {
    memset(r, 0, sizeof *r);
    r->outcome = MF_MILP_FAILED;
    r->bound = -INFINITY;
    snprintf(r->text, sizeof r->text, "%s", f->words);
    mf_fence_leave();
    glp_free_env();
    return MF_MILP_FAILED;
}
