/* compare_correction.c - a correction from a log: found, doubted, written. */
#include "compare/compare_correction.h"

#include "job/figures/reported_flops.h"
#include "launch/log/correct.h"

#include <math.h>

static mf_status save(const mf_job *j, const mf_log *l, const mf_log_correction_request *r,
                      const mf_log_correction *x, mf_err *e) {
    const mf_correction_basis on = {.cluster = j->cluster.name,
                                    .log = r->log,
                                    .steps = l->used,
                                    .measured_s = l->step_time_s,
                                    .predicted_s = j->plan.prediction.step_time_s};
    mf_status s =
        r->out != NULL ? mf_correction_save(&j->software, x->factor, &on, r->out, e) : MF_OK;
    return s == MF_OK && r->keep ? mf_correction_save(&j->software, x->factor, &on, x->kept, e) : s;
}

mf_status mf_compare_correct(const mf_job *j, const mf_log *l, const mf_log_correction_request *r,
                             mf_log_correction *out, mf_err *e) {
    const bool writes = r->out != NULL || r->keep;
    *out = (mf_log_correction){.factor = 1};
    mf_status s = mf_correction_find(j->cost, j->program, &j->routing, l->step_time_s, &out->factor,
                                     &out->nearest_s, e);
    if (s == MF_INPUT && !writes) { /* what was measured is to be seen all the same */
        out->factor = (double)NAN;
        s = MF_OK;
    }
    if (s != MF_OK) {
        return s;
    }
    out->doubtful = mf_correction_is_doubtful(out->factor);
    out->withheld = writes && !r->force && (mf_reported_is_other_job(j, l) || out->doubtful);
    if (r->keep) {
        s = mf_corrections_path(&j->asked, &j->cluster, &j->software, !out->withheld, out->kept, e);
        s = s == MF_OK ? s : mf_err_prefix(e, "--correct");
    }
    return s == MF_OK && !out->withheld ? save(j, l, r, out, e) : s;
}
