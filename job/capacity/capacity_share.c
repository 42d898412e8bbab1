/* capacity_share.c - plans that the cells of a capacity table give each other. */
#include "core/base/number_text.h"
#include "job/capacity/capacity_table.h"
#include "job/load/problem.h"
#include "planner/capacity/wavefront.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a cell says of its search once another cell's plan has taken its place. */
static void say_carried(mf_capacity_cell *c, const mf_capacity_cell *from, double asked) {
    size_t used;
    if (c->end != MF_SEARCH_END_PROVEN && c->gap <= asked) {
        c->end = MF_SEARCH_END_PROVEN;
        mf_search_end_say(c->end, asked, 0, c->ended, sizeof c->ended);
    }
    used = strcspn(c->ended, ";");
    snprintf(c->ended + used, sizeof c->ended - used, "; the plan is that of %s x %s",
             mf_number_text(from->gpus).s, from->cluster);
}

/* A search stops when its proof is tight enough: another cluster's plan of the same size, or that
 * of a larger one, may be faster here than the one that was found. So no cluster that is better in
 * every figure takes longer. */
static mf_status try_plan_of(mf_capacity *z, const mf_job *j, const mf_capacity_cell *from,
                             mf_capacity_cell *c, mf_err *e) {
    mf_problem problem;
    mf_plan plan;
    bool faster = false;
    mf_known_plan there[MF_CARRY_MOST] = {{.layout = from->layout, .assignment = from->assignment}};
    const mf_carried known = mf_capacity_carried(from);
    mf_status s = mf_problem_from_job(j, &problem, e);
    problem.base.gpus = c->gpus;
    if (s != MF_OK ||
        (from->row == c->row && mf_capacity_starts(&problem, c->row, &known, 1, there) == 0) ||
        mf_job_check_cluster(&there[0].layout, &j->cluster, NULL) != MF_OK) {
        return s;
    }
    s = mf_planner_outruns(&problem, &there[0].layout, &there[0].assignment, c->step_time_s,
                           &faster, e);
    if (s != MF_OK || !faster) {
        return s;
    }
    s = mf_planner_predict(&problem, &there[0].layout, &there[0].assignment, &plan, NULL, e);
    if (s == MF_OK && plan.prediction.fits && plan.prediction.step_time_s < c->step_time_s) {
        double bound_s = c->step_time_s / (1 + c->gap);
        s = mf_capacity_fill_cell(c, z->r, j, &plan, e);
        c->gap = fmax(0, c->step_time_s / bound_s - 1);
        say_carried(c, from, z->r->gap);
    }
    mf_plan_clear(&plan);
    return s;
}

/* May a plan be of use to a cell whose search did not know it? */
static bool may_help(const growing *g, const mf_capacity_cell *from, const mf_capacity_cell *c) {
    const int clusters = g->z->r->clusters;
    return from->feasible && from->row / clusters == c->row / clusters &&
           (from->row == c->row ? from->gpus > c->gpus && from->gpus <= 2 * c->gpus
                                : from->gpus == c->gpus);
}

/* Tries on each cell of a row the plans of from[z->count] that may help: of the row's larger sizes
 * (own), or of other clusters. Cells ascend by size: a larger one still has the plan of its own
 * search. */
static mf_status share_plans(const growing *g, const mf_capacity_cell *from, int row, bool own,
                             mf_err *e) {
    mf_capacity *z = g->z;
    mf_status s = MF_OK;
    for (int a = 0; s == MF_OK && a < z->count; a++) {
        mf_capacity_cell *c = &z->cell[a];
        for (int b = 0; s == MF_OK && c->row == row && c->feasible && b < z->count; b++) {
            if ((from[b].row == row) == own && may_help(g, &from[b], c)) {
                s = try_plan_of(z, g->row[row].job, &from[b], c, e);
            }
        }
    }
    return s;
}

/* Says what is missing at the sizes of a row where nothing fits. */
static mf_status explain_missing(growing *g, int row, mf_err *e) {
    mf_capacity *z = g->z;
    mf_status s = MF_OK;
    for (int i = 0; s == MF_OK && i < z->count; i++) {
        if (z->cell[i].row == row && z->cell[i].unexplained) {
            s = mf_capacity_explain_cell(g, &z->cell[i], e);
        }
    }
    return s;
}

static mf_status finish_row(void *user, int row, int column, mf_err *e) {
    growing *g = user;
    (void)column;
    mf_status s = explain_missing(g, row, e);
    return s == MF_OK ? share_plans(g, g->z->cell, row, true, e) : s;
}

/* The cells as they were before any row was given plans of others. */
typedef struct shared {
    growing *g;
    const mf_capacity_cell *cell;
} shared;

static mf_status share_between(void *user, int row, int column, mf_err *e) {
    const shared *x = user;
    (void)column;
    return share_plans(x->g, x->cell, row, false, e);
}

/* Several rows at the same time; a row's job is one thread's. */
mf_status mf_capacity_share_plans(growing *g, int threads, mf_err *e) {
    const mf_capacity *z = g->z;
    const size_t cells = (size_t)z->count;
    mf_capacity_cell *before = malloc((cells + 1) * sizeof *before);
    if (before == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    shared x = {g, before};
    mf_wavefront rows = {.rows = z->r->models * z->r->clusters,
                         .columns = 1,
                         .group = 1,
                         .work = finish_row,
                         .user = g};
    mf_status s = mf_wavefront_run(&rows, threads, e);
    if (s == MF_OK) {
        memcpy(before, z->cell, cells * sizeof *before);
        rows.work = share_between;
        rows.user = &x;
        s = mf_wavefront_run(&rows, threads, e);
    }
    free(before);
    return s;
}
