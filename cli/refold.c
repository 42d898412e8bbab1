/* refold.c - folds a run's layout anew, on fewer ranks. */
#include "cli/refold.h"

#include "executor/files/files.h"
#include "job/search/refold.h"

mf_status mf_refold(void *user, int64_t most, mf_refolded *out, mf_err *e) {
    const mf_refold_job *job = user;
    mf_cost *own = NULL;
    mf_search_result r = {0};
    *out = (mf_refolded){.ranks = 0};
    if (!mf_path_join(out->plan, sizeof out->plan, job->s->o.out, "folded-anew.json", NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", job->s->o.out);
    }
    mf_status status = mf_folder_make(job->s->o.out, e); /* the ranks may not have come to it */
    if (status == MF_OK && job->s->detected && !job->s->o.cuda) {
        status = mf_job_refold_prices(&job->s->job, &own, e);
    }
    if (status == MF_OK) {
        const mf_cost *cost = own != NULL ? own : job->s->job.cost;
        status = mf_job_refold(&job->s->job, cost, most, job->s->o.cancel, &out->ranks, &r, e);
    }
    if (status == MF_OK && out->ranks > 0) {
        status = mf_plan_save(&r.plan[0], out->plan, e);
    }
    mf_search_result_clear(&r);
    mf_cost_destroy(own);
    return status;
}
