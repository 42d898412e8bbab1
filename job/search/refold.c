/* refold.c - a job on fewer ranks: what it is about stays, its degrees are searched. */
#include "job/search/refold.h"

#include "job/load/prices.h"

/* Degrees and what follows from them are open. */
static void base_of(const mf_layout *run, int64_t ranks, mf_layout *out) {
    *out = *run;
    out->gpus = ranks;
    out->tp = out->cp = out->pp = out->vpp = out->ep = out->etp = 1;
    out->mbs = 1;
    out->dp = out->edp = out->micro_batches = 0;
    out->memory = (mf_memory_choice){0};
}

mf_status mf_job_refold_prices(const mf_job *j, mf_cost **out, mf_err *e) {
    mf_cluster shipped;
    *out = NULL;
    mf_status s = mf_cluster_load("cpu", &shipped, e);
    return s == MF_OK ? mf_prices_create(&j->asked, &shipped, &j->software, out, e) : s;
}

static mf_status refold_on(const mf_job *j, const mf_cost *cost, int64_t ranks,
                           const volatile int *cancel, mf_search_result *out, mf_err *e) {
    mf_problem problem = {.model = &j->model,
                          .cost = cost,
                          .routing = &j->routing,
                          .pinned = MF_PIN(PRECISION),
                          .generator = j->plan.provenance.generator,
                          .cluster_name = j->plan.provenance.cluster,
                          .measurements = j->plan.provenance.measurements,
                          .routing_name = j->plan.provenance.routing};
    mf_search_options o;
    mf_search_options_init(&o);
    o.top = 1;
    o.cancel = cancel;
    base_of(&j->plan.layout, ranks, &problem.base);
    return mf_planner_search(&problem, &o, out, e);
}

mf_status mf_job_refold(const mf_job *j, const mf_cost *cost, int64_t most,
                        const volatile int *cancel, int64_t *ranks, mf_search_result *out,
                        mf_err *e) {
    *ranks = 0;
    *out = (mf_search_result){0};
    for (int64_t n = most; n > 0; n--) {
        const mf_status s = refold_on(j, cost, n, cancel, out, e);
        if (s != MF_INFEASIBLE && s != MF_LAYOUT) {
            *ranks = s == MF_OK ? n : 0;
            return s;
        }
        mf_search_result_clear(out);
    }
    mf_err_clear(e);
    return MF_OK;
}
