/* export_job.c - each difference between a plan and what a target runs, with its time and memory.
 */
#include "job/exchange/export_job.h"

#include "job/load/problem.h"
#include "launch/target/choose_memory.h"

#include <stdio.h>

/* What it changes and, behind others, what all of them change up to here: one may take back what
 * another added. */
static void say_difference(const mf_exported *x, const char *why, mf_export_difference *n) {
    const mf_plan_prediction *now = &x->job.plan.prediction, *before = &x->before;
    char sum[80] = "";
    if (x->notes > 0) {
        snprintf(sum, sizeof sum, "; added up: %+.3f GB, %+.3f ms",
                 (now->peak_memory_B - before->peak_memory_B) / 1e9,
                 (now->step_time_s - before->step_time_s) * 1e3);
    }
    snprintf(n->text, sizeof n->text, "%s (%+.3f GB, %+.3f ms%s)", why,
             n->peak_memory_change_B / 1e9, n->step_time_change_s * 1e3, sum);
}

/* A difference that changes neither time nor memory is none. */
static mf_status note_difference(void *user, const mf_plan *p, const mf_concession *c, mf_err *e) {
    mf_exported *x = user;
    const double time_s = x->job.plan.prediction.step_time_s;
    const double peak_B = x->job.plan.prediction.peak_memory_B;
    (void)p;
    mf_status s = mf_job_simulate(&x->job, &(mf_sim_options){0}, e);
    if (s != MF_OK) {
        return mf_err_prefix(e, "%s", c->why);
    }
    mf_export_difference *n = &x->note[x->notes];
    n->step_time_change_s = x->job.plan.prediction.step_time_s - time_s;
    n->peak_memory_change_B = x->job.plan.prediction.peak_memory_B - peak_B;
    if (x->notes + 1 < MF_MOST_DIFFERENCES &&
        (n->step_time_change_s != 0 || n->peak_memory_change_B != 0)) {
        say_difference(x, c->why, n);
        x->notes++;
    }
    return MF_OK;
}

mf_status mf_export_concede(mf_exported *x, bool force, mf_err *e) {
    const mf_target_info *info = mf_target_info_of(x->target);
    const mf_model *m = &x->job.model;
    mf_problem problem;
    mf_common_choice choice;
    bool found = false;
    mf_status s = mf_job_simulate(&x->job, &(mf_sim_options){0}, e);
    if (s == MF_OK) {
        x->before = x->job.plan.prediction;
        x->before.stage = NULL;
        s = mf_problem_from_job(&x->job, &problem, e);
    }
    if (s == MF_OK) {
        s = mf_target_choose_memory(x->target, &problem, &x->job.plan, &choice, &found, e);
    }
    if (s == MF_OK) {
        s = mf_target_concede_to(x->target, m, &x->job.plan, found ? &choice : NULL,
                                 note_difference, x, e);
    }
    s = s == MF_OK ? mf_job_simulate(&x->job, &(mf_sim_options){0}, e) : s; /* silent steps, too */
    const mf_plan_prediction *now = &x->job.plan.prediction;
    if (s == MF_OK && !now->fits && !force) {
        return mf_err_set(
            e, MF_INFEASIBLE,
            "as %s runs it the plan does not fit: %.2f of %.2f GB%s%s; --force writes "
            "it all the same",
            info->program, now->peak_memory_B / 1e9, now->usable_B / 1e9,
            x->notes > 0 ? ", with " : "", x->notes > 0 ? x->note[0].text : "");
    }
    return s;
}
