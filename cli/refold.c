/* refold.c - folds a run's layout anew, on fewer ranks. */
#include "cli/refold.h"

#include "executor/files/files.h"
#include "job/prices.h"
#include "planner/planner.h"

/* What the run is about stays; degrees and what follows from them are searched. */
static void base_of(const mf_layout *run, int64_t ranks, mf_layout *out) {
    *out = *run;
    out->gpus = ranks;
    out->tp = out->cp = out->pp = out->vpp = out->ep = out->etp = 1;
    out->mbs = 1;
    out->dp = out->edp = out->micro_batches = 0;
    out->memory = (mf_memory_choice){0};
}

/* A plan names its cluster: where this machine was detected it is the shipped one of CPU ranks,
 * whose memory whoever reads the plan counts on. */
static mf_status price(const mf_refold_job *job, mf_cost **out, mf_err *e) {
    mf_cluster shipped;
    *out = NULL;
    if (!job->s->detected || job->s->o.cuda) {
        return MF_OK;
    }
    mf_status status = mf_cluster_load("cpu", &shipped, e);
    return status == MF_OK
               ? mf_prices_create(&job->s->job.asked, &shipped, &job->s->job.software, out, e)
               : status;
}

static mf_status search(const mf_train_settings *s, const mf_cost *cost, int64_t ranks,
                        mf_search_result *r, mf_err *e) {
    const mf_job *j = &s->job;
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
    o.cancel = s->o.cancel;
    base_of(&j->plan.layout, ranks, &problem.base);
    return mf_planner_search(&problem, &o, r, e);
}

static mf_status fold(const mf_train_settings *s, const mf_cost *cost, int64_t ranks,
                      mf_refolded *out, mf_err *e) {
    mf_search_result r = {0};
    mf_status status = search(s, cost, ranks, &r, e);
    status = status == MF_OK ? mf_plan_save(&r.plan[0], out->plan, e) : status;
    out->ranks = status == MF_OK ? ranks : 0;
    mf_search_result_clear(&r);
    return status;
}

mf_status mf_refold(void *user, int64_t most, mf_refolded *out, mf_err *e) {
    const mf_refold_job *job = user;
    mf_cost *own = NULL;
    *out = (mf_refolded){.ranks = 0};
    if (!mf_path_join(out->plan, sizeof out->plan, job->s->o.out, "folded-anew.json", NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", job->s->o.out);
    }
    mf_status status = mf_folder_make(job->s->o.out, e); /* the ranks may not have come to it */
    status = status == MF_OK ? price(job, &own, e) : status;
    const mf_cost *cost = own != NULL ? own : job->s->job.cost;
    bool fits = status != MF_OK;
    for (int64_t ranks = most; ranks > 0 && !fits; ranks--) {
        status = fold(job->s, cost, ranks, out, e);
        fits = status != MF_INFEASIBLE && status != MF_LAYOUT; /* or nothing can be said of it */
    }
    mf_cost_destroy(own);
    if (!fits) {
        mf_err_clear(e);
    }
    return fits ? status : MF_OK;
}
