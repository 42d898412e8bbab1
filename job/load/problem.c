/* problem.c - a job as the planner's problem. */
#include "job/load/problem.h"

#include "job/load/option_applicability.h"

#include <string.h>

/* Comma list of precision recipes, as bits. */
static mf_status parse_precisions(const char *text, const mf_cluster *c, mf_layout probe,
                                  uint32_t *out, mf_err *e) {
    char word[32];
    *out = 0;
    for (const char *p = text;; p++) {
        size_t length = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)(length < 31 ? length : 31), p);
        mf_status s = mf_precision_parse(word, &probe.precision, e);
        if (s == MF_OK) {
            s = mf_job_check_cluster(&probe, c, e);
        }
        if (s != MF_OK) {
            return s;
        }
        *out |= 1u << probe.precision;
        p += length;
        if (*p == '\0') {
            return MF_OK;
        }
    }
}

static mf_status reprice(const void *user, const mf_cluster *c, const mf_software *s, mf_cost **out,
                         mf_err *e) {
    return mf_job_price_as(user, c, s, out, e);
}

mf_status mf_problem_from_job(const mf_job *j, mf_problem *out, mf_err *e) {
    const mf_job_request *r = &j->asked;
    mf_status s = MF_OK;
    *out = (mf_problem){
        .model = &j->model,
        .cost = j->cost,
        .reprice = reprice,
        .reprice_user = j,
        .routing = &j->routing,
        .base = j->plan.layout,
        .pinned = r->pinned,
        .generator = j->plan.provenance.generator,
        .cluster_name = j->plan.provenance.cluster,
        .measurements = j->plan.provenance.measurements,
        .routing_name = j->plan.provenance.routing,
    };
    s = mf_job_check_options(j, e);
    if (s != MF_OK) {
        return s;
    }
    if (r->precisions != NULL) {
        if (mf_request_gives(r, MF_GIVEN_PRECISION)) {
            return mf_err_set(e, MF_USAGE, "--precision and --precisions exclude each other");
        }
        s = parse_precisions(r->precisions, &j->cluster, out->base, &out->precisions, e);
        return s == MF_OK ? s : mf_err_prefix(e, "--precisions");
    }
    return mf_job_check_cluster(&out->base, &j->cluster, e);
}

void mf_problem_nothing_fits(const mf_fit_result *r, mf_err *e) {
    if (r->smallest_gpus > 0) {
        mf_err_set(e, MF_INFEASIBLE, "nothing fits: %s; the smallest size that would: %lld GPUs",
                   r->missing, (long long)r->smallest_gpus);
    } else {
        mf_err_set(e, MF_INFEASIBLE,
                   "nothing fits: %s; no larger size of this cluster was found that would",
                   r->missing);
    }
}
