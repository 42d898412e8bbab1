/* fit_floor.c - what no layout can do without: parameters, gradients and optimizer states are
 * somewhere, so that some GPU holds at least its share of them. */
#include "core/program/lower.h"
#include "planner/planner.h"

#include <math.h>

/* All on one GPU. False: the model has no such layout. */
static bool count_params(const mf_problem *p, mf_layout *l, mf_param_count *out) {
    mf_assignment a;
    mf_program *program = NULL;
    l->gpus = l->tp = l->cp = l->pp = l->vpp = l->ep = l->etp = l->mbs = 1;
    l->schedule = MF_SCHED_1F1B;
    bool good =
        mf_layout_resolve(l, p->model, NULL) == MF_OK &&
        mf_assignment_even(p->model, l, &a, NULL) == MF_OK &&
        mf_program_lower(p->model, l, mf_cost_cluster(p->cost), &a, &program, NULL) == MF_OK;
    if (good) {
        *out = mf_program_stage_params(program, 0);
    }
    mf_program_destroy(program);
    return good;
}

double mf_planner_least_states_B(const mf_problem *p) {
    const uint32_t all = p->precisions != 0 ? p->precisions : 1u << p->base.precision;
    double least_B = INFINITY;
    for (int k = 0; k < MF_PREC_COUNT; k++) {
        mf_layout l = p->base;
        mf_param_count params;
        l.precision = (mf_precision)k;
        if (((all >> k) & 1u) == 0) {
            continue;
        }
        if (!count_params(p, &l, &params)) {
            return 0.0;
        }
        l.zero = l.expert_zero = 3;
        l.dp = l.edp = p->base.gpus;
        const mf_stage_memory s = mf_param_memory(&l, params);
        least_B = fmin(least_B, s.weights_B + s.gradients_B + s.optimizer_B);
    }
    return isfinite(least_B) ? least_B : 0.0;
}
