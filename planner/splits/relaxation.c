/* relaxation.c - the coarse program's relaxation.
 *
 * It is solved once for an order; its multipliers say at which weights the paths bound together
 * (mean_bound.h).
 */
#include "planner/bound/family_bound.h"
#include "planner/bound/stage_bound.h"
#include "planner/partition/class_bounds.h"
#include "planner/splits/rows.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void mf_rows_weigh(const mf_rows *b, const double *dual, mf_path_set *paths) {
    int stage_of[MF_MAX_VSTAGES];
    const mf_partition *in = b->in;
    for (int i = 0; i < paths->count; i++) {
        double w = -dual[i];
        paths->weight[i] = w > 0.0 ? w : 0.0;
    }
    for (int v = 0; v < in->vstages; v++) {
        stage_of[v] = (int)mf_layout_stage_of(&in->layout, v);
    }
    mf_path_set_weigh(paths, stage_of);
}

void mf_rows_sizes(const mf_rows *b, const double *x, double *n) {
    const mf_partition *in = b->in;
    for (int v = 0; v < in->vstages; v++) {
        n[v] = 0.0;
        for (size_t i = mf_partition_cell(in, v, 0, 0); i < mf_partition_cell(in, v + 1, 0, 0);
             i++) {
            n[v] += b->col[i] >= 0 ? x[b->col[i]] : 0.0;
        }
    }
}

void mf_rows_nearest(const mf_partition *in, const double *n, int *first) {
    double until = 0.0;
    first[0] = 0;
    for (int v = 0; v < in->vstages; v++) {
        until += n[v];
        int at = (int)lround(until), most = in->positions - (in->vstages - 1 - v);
        at = at > first[v] ? at : first[v] + 1; /* none is empty */
        first[v + 1] = at < most ? at : most;
    }
    first[in->vstages] = in->positions;
}

/* The multipliers of the paths' rows become weights. */
static mf_status weigh(const mf_rows *b, const mf_lp *lp, mf_path_set *paths, mf_err *e) {
    double *dual = calloc((size_t)paths->count + 1, sizeof *dual);
    if (!dual) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int i = 0; i < paths->count; i++) {
        dual[i] = mf_lp_row_dual(lp, b->first_path_row + i);
    }
    mf_rows_weigh(b, dual, paths);
    free(dual);
    return MF_OK;
}

mf_status mf_partition_relax(mf_partition *in, const mf_path_set *known, double enough_s,
                             int64_t effort_ns, mf_milp_fault fault, mf_path_set *paths, int *first,
                             mf_milp_outcome *outcome, double *bound_s, mf_err *e) {
    mf_rows b;
    mf_lp *lp = NULL;
    const mf_partition_options o = {.coarse = true, .cutoff_s = HUGE_VAL};
    mf_path_set_init(paths, in->stages, in->chunks);
    *bound_s = 0.0;
    *outcome = MF_MILP_FAILED;
    mf_status status = mf_rows_make(&b, in, NULL, &o, known, paths, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_milp_options mo = {
        .cutoff = HUGE_VAL, .lazy = mf_rows_lazy_path, .lazy_user = &b, .fault = fault};
    status = mf_lp_open(&b.milp, &mo, &lp, e);
    if (status == MF_OK) {
        double bound, enough = enough_s / b.unit_s / MF_BOUND_SAFETY;
        mf_lp_allow(lp, effort_ns);
        mf_lp_stall(lp, MF_RELAX_STALL_ROUNDS, MF_RELAX_STALL_SHARE);
        *outcome = mf_lp_solve(lp, enough, MF_RELAX_ROUNDS, &bound);
        status = b.status;
        const bool solved = *outcome == MF_MILP_OPTIMAL, some = *outcome == MF_MILP_LIMIT;
        *bound_s = solved || some                   ? fmax(bound, 0.0) * b.unit_s * MF_BOUND_SAFETY
                   : *outcome == MF_MILP_INFEASIBLE ? HUGE_VAL
                                                    : 0.0;
        if (status == MF_OK && (solved || some)) {
            status = weigh(&b, lp, paths, e);
            if (first && solved && bound < enough) {
                double n[MF_MAX_VSTAGES] = {0};
                mf_rows_sizes(&b, mf_lp_point(lp), n);
                mf_rows_nearest(in, n, first);
            }
        }
    }
    *in->effort_ns += lp ? mf_lp_effort_ns(lp) : 0;
    mf_lp_close(lp);
    mf_rows_clear(&b);
    return status;
}
