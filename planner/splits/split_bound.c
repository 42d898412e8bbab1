/* split_bound.c - what one split of the positions takes at least.
 *
 * The tree over splits (split_tree.c) knows of each virtual stage that it holds one position at
 * least, so what passes lose to gathers and reductions beside them is found for that. A whole split
 * says more: its program is made anew with what its own positions lose (loss_figures.c).
 */
#include "planner/bound/stage_bound.h"
#include "planner/splits/rows.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Layers of slot s among the first `positions`. */
static int layers_until(const mf_partition *in, int s, int positions) {
    int sum = 0;
    for (int i = 0; i < positions; i++) {
        sum += in->slot_at[i] == s;
    }
    return sum;
}

/* Every virtual stage holds its positions. */
static void put_split(mf_lp *lp, const mf_rows *b, const int *first) {
    const mf_partition *in = b->in;
    int sum[MF_MAX_VSTAGES] = {0};
    for (int v = 0; v < in->vstages; v++) {
        int n = first[v + 1] - first[v];
        sum[mf_layout_stage_of(&in->layout, v)] += n;
        mf_lp_set_row(lp, b->first_size_row + v, n, n);
        for (int s = 0; s < in->slots; s++) {
            int col = b->until[v * in->slots + s];
            int until = layers_until(in, s, first[v + 1]);
            if (col >= 0) {
                mf_lp_set_col(lp, col, until, until);
            }
        }
    }
    for (int p = 0; p < in->stages && in->chunks > 1; p++) {
        mf_lp_set_row(lp, b->first_size_row + in->vstages + p, sum[p], sum[p]);
    }
}

static mf_status solve(mf_partition *in, const int *first, mf_fixed_split *x, mf_err *e) {
    mf_rows b;
    mf_lp *lp = NULL;
    const mf_partition_options ro = {.hull = true, .splits = true, .cutoff_s = x->cutoff_s};
    mf_status status = mf_rows_make(&b, in, NULL, &ro, x->known, NULL, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_milp_options mo = {
        .cutoff = HUGE_VAL, .lazy = mf_rows_lazy_path, .lazy_user = &b, .fault = x->fault};
    status = mf_lp_open(&b.milp, &mo, &lp, e);
    if (status == MF_OK) {
        double bound;
        put_split(lp, &b, first);
        mf_lp_allow(lp, x->effort_ns);
        mf_milp_outcome outcome =
            mf_lp_solve(lp, x->cutoff_s / b.unit_s / MF_BOUND_SAFETY, MF_ROOT_ROUNDS, &bound);
        status = b.status;
        *in->effort_ns += mf_lp_effort_ns(lp);
        if (outcome == MF_MILP_INFEASIBLE) {
            x->bound_s = x->cutoff_s;
        } else if (outcome == MF_MILP_OPTIMAL || outcome == MF_MILP_LIMIT) {
            x->bound_s = fmin(bound * b.unit_s * MF_BOUND_SAFETY, x->cutoff_s);
        }
    }
    mf_lp_close(lp);
    mf_rows_clear(&b);
    return status;
}

mf_status mf_rows_fixed_split(mf_partition *in, const int *first, mf_fixed_split *x, mf_err *e) {
    int n[MF_MAX_VSTAGES];
    size_t bytes = MF_ORDER_LOSS_DOUBLES(in->vstages) * sizeof(double);
    mf_order_losses was = in->losses;
    double *losses = malloc(bytes);
    x->bound_s = 0.0;
    if (!losses) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    memcpy(losses, in->losses.left_s, bytes);
    for (int v = 0; v < in->vstages; v++) {
        n[v] = first[v + 1] - first[v];
    }
    mf_partition_losses(in, n, x->cutoff_s);
    mf_status status = solve(in, first, x, e);
    in->losses = was;
    memcpy(in->losses.left_s, losses, bytes);
    free(losses);
    return status;
}
