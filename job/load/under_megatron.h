/* under_megatron.h - the step time that a plan of moefold would have under the newest known release
 * of Megatron, if that can express the plan. */
#ifndef MF_JOB_UNDER_MEGATRON_H
#define MF_JOB_UNDER_MEGATRON_H

#include "core/plan/plan.h"
#include "costmodel/cost.h"
#include "job/request/request.h"
#include "simulator/sim.h"

typedef struct mf_under_megatron {
    char software[32]; /* profile */
    double factor;     /* of the correction that is kept of it (job/kept/corrections.h); 0: none */
    double step_time_s;
    double more;         /* how much longer, as a share of the plan's own step time */
    mf_graph_mode graph; /* its own default where the plan has none */
    char why[64];        /* what of the plan it cannot express; "" when it can */
} mf_under_megatron;

/* Layout, assignment and step time of *p count. r: what was asked for, which may leave corrections
 * out. store as in mf_cost_create; *cost: that release's
 * prices of the cluster, NULL at first, created when they are needed, the caller's to destroy. */
mf_status mf_price_under_megatron(const mf_job_request *r, const mf_model *m, const mf_cluster *c,
                                  const mf_plan *p, const mf_routing *routing, mf_store *store,
                                  mf_cost **cost, mf_under_megatron *out, mf_err *e);

#endif
