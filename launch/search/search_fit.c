/* search_fit.c - what `fit` may list under a target's limits: combinations of degrees with choices
 * that the target has for all layers. */
#include "launch/search/search_internal.h"

/* As the target runs it. A schedule, or chunks, that were asked for are held to. */
static bool express(const void *user, const mf_problem *p, mf_layout *l, mf_assignment *a) {
    const mf_target *target = user;
    mf_plan plan;
    mf_plan_init(&plan);
    plan.layout = *l;
    plan.assignment = *a;
    const bool said = mf_target_concede(*target, p->model, &plan, NULL, NULL, NULL) == MF_OK;
    const bool other_schedule = plan.layout.schedule != l->schedule;
    const bool other_chunks = plan.layout.vpp != l->vpp;
    if (!said || ((p->pinned & MF_PIN(SCHEDULE)) != 0 && other_schedule) ||
        ((p->pinned & MF_PIN(VPP)) != 0 && other_chunks)) {
        return false;
    }
    *l = plan.layout;
    *a = plan.assignment;
    return true;
}

mf_status mf_target_fit_problem(const mf_target *t, const mf_problem *p, mf_problem *out,
                                mf_err *e) {
    mf_choice_family families[2 * MF_CHOICES];
    mf_status s = MF_OK;
    *out = mf_choice_families_limit(p);
    const int count = mf_choice_families_list(p, families);
    if (count == 0) {
        s = mf_choice_families_none(*t, p, e);
    }
    /* plain schedules need least memory; merged ones have no whole layers recomputed beside */
    mf_choice_families_schedule(out, s == MF_OK && families[0].merged);
    if (count > 0 && families[count - 1].merged) {
        out->limits.schedules |= MF_MERGED; /* to be timed */
    }
    out->express = express;
    out->express_user = t;
    return s;
}
