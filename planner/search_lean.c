/* search_lean.c - plans where memory decides: what is fast does not fit then, and bounds do not say
 * so for long. A plan that fits, however slow, lets the search close what is slower and end in
 * time. */
#include "planner/search.h"

#include <stdlib.h>

/* Layouts that are simulated, at most. */
#define MOST_LEAN 64

static mf_status simulate(const mf_oracle *oracle, const mf_layout *l, mf_search_found *f,
                          mf_step *step, mf_err *e) {
    *f = (mf_search_found){.layout = *l};
    mf_status status = mf_assignment_even(oracle->model, l, &f->assignment, e);
    status = status == MF_OK ? oracle->ops->step(oracle->self, l, &f->assignment, true, step, e)
                             : status;
    f->time_s = step->time_s;
    return status;
}

mf_status mf_search_lean(const mf_search_request *r, mf_search_keep *keep, void *user,
                         int64_t *simulated, mf_err *e) {
    mf_layout *lean = NULL;
    int64_t count = 0;
    mf_search_found *f = malloc(sizeof *f);
    mf_status status = f ? r->lean(r->user, &lean, &count, e)
                         : mf_err_set(e, MF_NOMEM, "out of memory for a plan");
    for (int64_t i = 0; i < count && i < MOST_LEAN && status == MF_OK; i++) {
        mf_step step = {0};
        status = simulate(r->oracle, &lean[i], f, &step, e);
        *simulated += status == MF_OK;
        if (status == MF_OK && step.fits) {
            keep(user, f);
        }
    }
    free(lean);
    free(f);
    return status;
}
