/* inner_relax.c - the lean program's relaxation.
 *
 * It is solved once for an order; its multipliers say at which weights the chains bound together
 * (inner_mean.c).
 */
#include "planner/floor.h"
#include "planner/inner_floors.h"
#include "planner/inner_rows.h"
#include "planner/rough.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAZY = 60 };

void mf_rows_weigh(const mf_rows *b, const double *dual, mf_chains *chains) {
    int stage_of[MF_MAX_VSTAGES];
    const mf_inner *in = b->in;
    for (int i = 0; i < chains->count; i++) {
        double w = -dual[i];
        chains->weight[i] = w > 0.0 ? w : 0.0;
    }
    for (int v = 0; v < in->vstages; v++) {
        stage_of[v] = (int)mf_layout_stage_of(&in->layout, v);
    }
    mf_chains_weigh(chains, stage_of);
}

/* The split of the positions nearest to the program's point. */
static void read_split(const mf_rows *b, int *first) {
    const mf_inner *in = b->in;
    double until = 0.0;
    first[0] = 0;
    for (int v = 0; v < in->vstages; v++) {
        for (size_t i = mf_inner_cell(in, v, 0, 0); i < mf_inner_cell(in, v + 1, 0, 0); i++) {
            until += b->col[i] >= 0 ? b->count[i] : 0.0;
        }
        int at = (int)lround(until), most = in->positions - (in->vstages - 1 - v);
        at = at > first[v] ? at : first[v] + 1; /* none is empty */
        first[v + 1] = at < most ? at : most;
    }
    first[in->vstages] = in->positions;
}

mf_status mf_inner_relax(mf_inner *in, const mf_chains *known, double enough_s, mf_milp_fault fault,
                         mf_chains *chains, int *first, mf_milp_outcome *outcome, double *bound_s,
                         mf_err *e) {
    mf_rows b;
    mf_milp_result r = {.outcome = MF_MILP_FAILED};
    double *dual = NULL;
    const mf_inner_options o = {.lean = true, .cutoff_s = HUGE_VAL};
    mf_chains_init(chains, in->stages, in->chunks);
    *bound_s = 0.0;
    *outcome = MF_MILP_FAILED;
    mf_status status = mf_rows_make(&b, in, NULL, &o, known, chains, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_milp_options mo = {.cutoff = HUGE_VAL,
                                .target = enough_s / b.unit_s / MF_BOUND_SAFETY,
                                .lazy = mf_rows_lazy_chain,
                                .lazy_user = &b,
                                .fault = fault};
    dual = calloc((size_t)b.milp.rows + MAX_LAZY, sizeof *dual);
    status = dual ? mf_milp_relax(&b.milp, &mo, MAX_LAZY, dual, &r, e)
                  : mf_err_set(e, MF_NOMEM, "out of memory");
    status = status == MF_OK ? b.status : status;
    if (status == MF_OK) {
        *outcome = r.outcome;
        *bound_s = r.outcome == MF_MILP_OPTIMAL      ? r.bound * b.unit_s * MF_BOUND_SAFETY
                   : r.outcome == MF_MILP_INFEASIBLE ? HUGE_VAL
                                                     : 0.0;
        if (r.outcome == MF_MILP_OPTIMAL) {
            mf_rows_weigh(&b, dual + b.first_chain_row, chains);
            if (first) {
                read_split(&b, first);
            }
        }
    }
    free(dual);
    mf_rows_clear(&b);
    return status;
}
