/* elsewhere.h - what a plan of moefold would take under the newest known release of Megatron, where
 * that program can express it. */
#ifndef MF_JOB_ELSEWHERE_H
#define MF_JOB_ELSEWHERE_H

#include "core/plan/plan.h"
#include "costmodel/cost.h"
#include "simulator/sim.h"

typedef struct mf_elsewhere {
    char software[32]; /* profile */
    double step_time_s;
    mf_graph_mode graph; /* its own default where the plan has none */
    char why[64];        /* it cannot express the plan: what of it; else "" */
} mf_elsewhere;

/* store as in mf_cost_create. */
mf_status mf_elsewhere_megatron(const mf_model *m, const mf_cluster *c, const mf_plan *p,
                                const mf_routing *routing, mf_store *store, mf_elsewhere *out,
                                mf_err *e);

#endif
