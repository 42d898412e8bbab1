/* known_plans.c - plans from elsewhere that a search begins with: where one of them is near the
 * best, all that is left to do is the proof. */
#include "planner/search/search.h"
#include "planner/tuning/limits.h"

#include <stdlib.h>

/* As the memory plan has it, gaps included; its time is played first, which takes less. */
static mf_status simulate(const mf_evaluator *o, const mf_search_found *f, mf_search_outcome *out,
                          mf_step *step, mf_err *e) {
    const mf_layout *l = &f->layout;
    out->simulated++;
    out->work_ns += mf_evaluator_step_ns(l);
    mf_status status = o->ops->play(o->self, l, &f->assignment, step, e);
    if (status == MF_OK && step->fits) {
        const double time_s = step->time_s;
        status = o->ops->fit(o->self, l, &f->assignment, 0, step, e);
        out->work_ns += mf_evaluator_memory_ns(f->assignment.positions, step->looks);
        step->time_s = time_s;
    }
    return status;
}

mf_status mf_search_begin_with(const mf_search_request *r, mf_search_keep *keep, void *user,
                               mf_search_outcome *out, mf_err *e) {
    mf_status status = MF_OK;
    mf_search_found *f = malloc(sizeof *f);
    if (!f) {
        return mf_err_set(e, MF_NOMEM, "out of memory for a plan");
    }
    for (int i = 0; i < r->starts && status == MF_OK; i++) {
        mf_step step = {0};
        *f = (mf_search_found){.layout = r->start[i].layout, .assignment = r->start[i].assignment};
        if (mf_layout_resolve(&f->layout, r->space.model, NULL) != MF_OK) {
            continue;
        }
        status = simulate(r->evaluator, f, out, &step, e);
        if (status == MF_OK && step.fits) {
            f->time_s = step.time_s;
            keep(user, f);
        }
    }
    free(f);
    return status;
}
