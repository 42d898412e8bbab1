/* runs_on.c - which program runs a plan, and the search that it limits. */
#include "job/search/runs_on.h"

#include "launch/search/search.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

mf_status mf_runs_on_parse(const char *word, const char *software, mf_runs_on *out, mf_err *e) {
    const bool megatron = strncmp(software, "megatron-", 9) == 0;
    word = word != NULL ? word : megatron ? "megatron" : "any";
    *out = (mf_runs_on){.limited = strcmp(word, "any") != 0 && strcmp(word, "moefold") != 0};
    if (!out->limited || mf_target_parse(word, &out->target, NULL) == MF_OK) {
        return MF_OK;
    }
    return mf_err_set(e, MF_USAGE,
                      "--runs-on: expected one of megatron bridge moefold any, got \"%s\"", word);
}

const char *mf_runs_on_software(const char *word, const char *asked) {
    mf_target target;
    const bool theirs = word != NULL && mf_target_parse(word, &target, NULL) == MF_OK;
    return asked != NULL ? asked : theirs ? mf_software_newest_megatron() : NULL;
}

mf_status mf_runs_on_check_model(mf_runs_on *r, const char *word, const char *software,
                                 const mf_model *m, mf_err *e) {
    mf_status s = r->limited ? mf_target_check_model(r->target, m, m->name, e) : MF_OK;
    if (s == MF_OK) {
        return s;
    }
    if (word == NULL && mf_target_check_model(MF_TARGET_BRIDGE, m, m->name, NULL) == MF_OK) {
        r->target = MF_TARGET_BRIDGE;
        return MF_OK;
    }
    return word != NULL
               ? mf_err_prefix(e, "--runs-on")
               : mf_err_prefix(e, "--software %s is run by Megatron (--runs-on any plans it)",
                               software);
}

mf_status mf_runs_on_fit_problem(const mf_runs_on *r, const mf_problem *p, mf_problem *out,
                                 mf_err *e) {
    *out = *p;
    return r->limited ? mf_target_fit_problem(&r->target, p, out, e) : MF_OK;
}

mf_status mf_runs_on_price(const mf_runs_on *r, const mf_problem *p, const mf_search_options *o,
                           mf_search_result *found, mf_err *e) {
    mf_search_result any = {0};
    mf_problem problem = *p;
    problem.pinned |= MF_PIN(OFFLOAD); /* a difference of words, not of host copies */
    mf_search_options some = *o;
    const double limited_s = found->plan[0].prediction.step_time_s;
    const double free_s = found->stats.unlimited_s; /* as the search for the target met it */
    some.known_s = free_s > 0 ? fmin(free_s, limited_s) : limited_s;
    some.top = 1;
    some.start = NULL;
    some.starts = 0;
    /* of 20: there is a plan to beat. Of an effort that is given a fifth, as it is that of all */
    some.budget = o->budget > 0 ? o->budget / 5 : o->budget == 0 ? 5000000 : o->budget;
    mf_status s = mf_planner_search(&problem, &some, &any, e);
    const double best_s = any.count > 0 ? any.plan[0].prediction.step_time_s : some.known_s;
    if (s == MF_OK || s == MF_INFEASIBLE) {
        found->stats.limited_s = limited_s;
        found->stats.unlimited_s = fmin(best_s, some.known_s); /* no faster with a limit */
        snprintf(found->stats.runs_on, sizeof found->stats.runs_on, "%s",
                 mf_target_info_of(r->target)->word);
        s = MF_OK;
    }
    mf_search_result_clear(&any);
    return s;
}

mf_status mf_runs_on_search(void *user, const mf_problem *p, const mf_search_options *o,
                            mf_search_result *r, mf_err *e) {
    const mf_runs_on *on = user;
    return on->limited ? mf_target_search(on->target, p, o, r, e) : mf_planner_search(p, o, r, e);
}
