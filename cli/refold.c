/* refold.c - folds a run's layout anew, on fewer ranks. */
#include "cli/refold.h"

#include "executor/files/files.h"
#include "job/refold.h"

static mf_status fold(const mf_train_settings *s, const mf_cost *cost, int64_t ranks,
                      mf_refolded *out, mf_err *e) {
    mf_search_result r = {0};
    mf_status status = mf_job_refold(&s->job, cost, ranks, s->o.cancel, &r, e);
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
    if (status == MF_OK && job->s->detected && !job->s->o.cuda) {
        status = mf_job_refold_prices(&job->s->job, &own, e);
    }
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
