/* integer_program.c - the partition problem as an integer program.
 *
 *   minimise    T
 *   over        x[v, slot, m]   integer: layers of the slot on virtual stage v with choice m
 *               z[v, s]         binary: segment s is complete up to and including v
 *   subject to  every layer is placed; no virtual stage is empty
 *               order: segment s+1 stands on v only when z[v, s]; patterns come out in turn
 *               memory: for every undominated in-flight vector of every stage,
 *                       persistent + fixed + sum in_flight * saved + held * held_B <= usable
 *               paths: T >= sum x * (passes of the path through v * time of the layer)
 *                            + sends * send_s + ...      for the paths found so far
 *
 * Paths are added when a relaxation's point has a longer one (order.h): the optimum is the least
 * over all assignments of the longest of all paths. Memory rows leave out most of the workspaces,
 * so the program is a relaxation in that respect; what the memory plan refuses gets a cut
 * afterwards.
 *
 * Coarse, choices are left out: x[v, slot] layers take the least of all choices, and each stage
 * takes extra[p] seconds more by micro-batch, a convex function of its main layers
 * (mf_partition_extras). That is enough for a relaxation (relaxation.c), quick to solve.
 */
#include "planner/bound/stage_bound.h"
#include "planner/splits/rows.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void mf_partition_solution_clear(mf_partition_solution *s) {
    free(s->count);
    memset(s, 0, sizeof *s);
}

mf_status mf_partition_solve(mf_partition *in, const mf_partition_tried *tried,
                             const mf_partition_options *o, mf_partition_solution *out, mf_err *e) {
    mf_rows b;
    double *x = NULL;
    mf_milp_result r = {.outcome = MF_MILP_FAILED};
    memset(out, 0, sizeof *out);
    mf_status status = mf_rows_make(&b, in, tried, o, o->known, NULL, e);
    if (status != MF_OK) {
        return status;
    }
    mf_milp_options mo = {
        .cutoff = INFINITY, /* the step's own bound does it */
        .gap = o->gap,
        .node_limit = o->node_limit,
        .effort_ns = o->effort_ns,
        .cancel = o->cancel,
        .lazy = mf_rows_lazy_path,
        .lazy_user = &b,
        .fault = o->fault,
    };
    x = malloc((size_t)b.milp.cols * sizeof *x);
    out->count = calloc(mf_partition_cells(in), sizeof *out->count);
    status = x && out->count ? mf_milp_solve(&b.milp, &mo, x, &r, e)
                             : mf_err_set(e, MF_NOMEM, "out of memory");
    *in->effort_ns += r.effort_ns;
    if (status == MF_OK) {
        status = b.status;
    }
    if (status != MF_OK) {
        goto out;
    }
    out->outcome = r.outcome;
    out->bound_s = fmax(r.bound * b.unit_s * MF_BOUND_SAFETY, o->proven_s);
    if (r.outcome == MF_MILP_INFEASIBLE) {
        out->bound_s = o->cutoff_s; /* nothing below it */
    }
    out->have = r.have_x;
    for (size_t i = 0; out->have && i < mf_partition_cells(in); i++) {
        out->count[i] = b.col[i] >= 0 ? (int32_t)lround(x[b.col[i]]) : 0;
    }
out:
    free(x);
    mf_rows_clear(&b);
    if (status != MF_OK) {
        mf_partition_solution_clear(out);
    }
    return status;
}
