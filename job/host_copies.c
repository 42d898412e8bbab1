/* host_copies.c - a search without host copies, and with them; what rests on them. */
#include "job/host_copies.h"

#include <stdio.h>
#include <string.h>

bool mf_host_copies_of(const mf_plan *p) {
    bool used = p->layout.offload_optimizer > 0;
    for (int i = 0; i < p->assignment.positions; i++) {
        used |= p->assignment.memory[i].offload != 0;
    }
    return used;
}

/* The search had offload pinned, but not by the user: says so. */
static void say_left_out(mf_search_stats *s) {
    static const char pinned[] = ", offload (pinned)";
    char rest[sizeof s->left_out];
    char *at = strstr(s->left_out, pinned);
    if (at != NULL) {
        snprintf(rest, sizeof rest, "%s", at + strlen(pinned));
        snprintf(at, sizeof s->left_out - (size_t)(at - s->left_out),
                 ", offload (--search-offload)%s", rest);
    }
}

static mf_status whole(void *user, const mf_problem *p, const mf_search_options *o,
                       mf_search_result *r, mf_err *e) {
    (void)user;
    return mf_planner_search(p, o, r, e);
}

mf_status mf_host_copies_search(mf_search_fn search, void *user, const mf_problem *p,
                                const mf_search_options *o, bool asked, mf_search_result *r,
                                mf_host_copies *h, mf_err *e) {
    mf_problem held = *p;
    held.pinned |= MF_PIN(OFFLOAD);
    *h = (mf_host_copies){0};
    search = search != NULL ? search : whole;
    mf_status s = search(user, &held, o, r, e);
    if (!(p->pinned & MF_PIN(OFFLOAD))) {
        h->infeasible = s == MF_INFEASIBLE;
        if ((asked && s == MF_OK) || h->infeasible) {
            h->without_s = s == MF_OK ? r->plan[0].prediction.step_time_s : 0;
            mf_search_result_clear(r);
            if (e != NULL) {
                mf_err_clear(e);
            }
            s = search(user, p, o, r, e);
        } else {
            say_left_out(&r->stats);
        }
    }
    h->used = r->count > 0 && mf_host_copies_of(&r->plan[0]);
    return s;
}

mf_status mf_host_copies_search_optimizer(mf_search_fn search, void *user, const mf_problem *p,
                                          const mf_search_options *o, mf_search_result *r,
                                          mf_host_copies *h, mf_err *e) {
    mf_problem hosted = *p;
    mf_search_result with = {0};
    mf_err own;
    mf_err_clear(&own);
    hosted.base.offload_optimizer = 1;
    mf_status s = mf_host_copies_search(search, user, &hosted, o, false, &with, h, &own);
    if (s == MF_INFEASIBLE) {
        mf_search_result_clear(&with);
        return s;
    }
    mf_search_result_clear(r);
    *r = with;
    *e = own;
    h->infeasible = h->optimizer = s == MF_OK;
    return s;
}

mf_status mf_host_copies_gain(const mf_problem *p, const mf_search_options *o, const mf_plan *best,
                              mf_host_copies *h, mf_err *e) {
    enum { COUNTED_US = 1000000 };
    const uint32_t free = MF_PIN(OFFLOAD) | MF_PIN(RECOMPUTE) | MF_PIN(STAGES);
    mf_problem one = *p;
    mf_search_options short_one = *o;
    mf_search_result r = {0};
    if (h->used || (p->pinned & MF_PIN(OFFLOAD)) != 0) {
        return MF_OK;
    }
    one.base = best->layout;
    one.base.memory = p->base.memory;
    one.precisions = 0;
    one.pinned = (MF_PIN(COUNT) - 1u) & ~free;
    one.pinned |= p->pinned & (free | MF_PIN_MOE_ACT);
    short_one.top = 1;
    short_one.budget = COUNTED_US;
    short_one.known_s = best->prediction.step_time_s;
    short_one.progress = NULL;
    mf_status s = mf_planner_search(&one, &short_one, &r, e);
    if (r.count > 0 && mf_host_copies_of(&r.plan[0])) {
        h->with_s = r.plan[0].prediction.step_time_s;
    }
    mf_search_result_clear(&r);
    if (s == MF_INFEASIBLE || s == MF_INTERRUPTED) {
        mf_err_clear(e);
        s = MF_OK;
    }
    return s;
}
