/* compare_verdict.c - what was predicted wrongly most, and how it becomes right. */
#include "compare/compare_verdict.h"

#include "job/figures/reported_flops.h"
#include "report/text/show.h"

#include <math.h>
#include <string.h>

/* Pass as people say it: "input gradient". */
static void say_pass(const char *pass, char *out, size_t size) {
    snprintf(out, size, "%s%s", pass[0] != '\0' ? ", " : "", pass);
    for (char *at = strchr(out, '_'); at != NULL; at = strchr(at, '_')) {
        *at = ' ';
    }
}

/* "the step is predicted 12 % too short (1.1 s, measured 1.25 s), outside 10 %" */
static void say_step(double predicted_s, double measured_s, double tolerance, char *out,
                     size_t size) {
    const double error = predicted_s / measured_s - 1;
    snprintf(out, size, "the step is predicted %s too %s (%s, measured %s), %s %s",
             mf_show_percent(fabs(error)).s, error < 0 ? "short" : "long",
             mf_show_time(predicted_s).s, mf_show_time(measured_s).s,
             fabs(error) > tolerance ? "outside" : "within", mf_show_percent(tolerance).s);
}

/* --- of a run ----------------------------------------------------------------------------------
 */

/* What is off most: an op, or what stands between ops, which is the step less their sum. */
static bool say_most(const mf_compare *c, char *out, size_t size) {
    const double predicted_s = c->predicted_s - c->ops_predicted_s;
    const double measured_s = c->measured_s - c->ops_measured_s;
    const mf_compare_op *o = c->nops > 0 ? &c->op[0] : NULL;
    const double op_s = o != NULL ? fabs(o->predicted_s - o->measured_s) : 0;
    char pass[48];
    if (o != NULL && op_s >= fabs(predicted_s - measured_s)) {
        say_pass(o->pass, pass, sizeof pass);
        snprintf(out, size, "off most is %s of %s%s, by %s (%s, measured %s%s)", o->name, o->where,
                 pass, mf_show_time(op_s).s, mf_show_time(o->predicted_s).s,
                 mf_show_time(o->measured_s).s,
                 o->collective ? " with the wait for other ranks" : "");
        return !o->collective;
    }
    snprintf(out, size,
             "off most is what ops do not say: overlap, waiting and the host make the step %s %s "
             "than its ops, predicted %s %s",
             mf_show_time(fabs(measured_s)).s, measured_s < 0 ? "shorter" : "longer",
             mf_show_time(fabs(predicted_s)).s, predicted_s < 0 ? "shorter" : "longer");
    return false;
}

void mf_verdict_text_compare(mf_verdict_text *v, const mf_compare *c, const mf_compared_run *of) {
    char step[192], most[384], ops[64] = "";
    say_step(c->predicted_s, c->measured_s, of->tolerance, step, sizeof step);
    const bool priced = say_most(c, most, sizeof most);
    if (c->noutside > 0) {
        snprintf(ops, sizeof ops, ", %s %d of %d ops %s%s", c->outside ? "and so" : "but",
                 c->noutside, c->nops, c->noutside == 1 ? "is" : "are", c->outside ? "" : " not");
    }
    snprintf(v->decides, sizeof v->decides, "%s%s; %s", step, ops, most);
    if (!c->outside && c->noutside == 0) {
        snprintf(v->next, sizeof v->next, "moefold tune --plan %.256s", of->plan);
    } else if (of->record != NULL) {
        snprintf(v->next, sizeof v->next, "plan, simulate and compare with --store %.256s",
                 of->record);
    } else if (priced || c->noutside > 0) {
        const char *store = of->store != NULL ? of->store : "my.db";
        snprintf(v->next, sizeof v->next,
                 "moefold compare --run %.100s --record %.100s keeps what was measured, --store "
                 "%.100s prices from it",
                 of->run, store, store);
    } else {
        snprintf(v->next, sizeof v->next,
                 "more steps with nothing else on the machine, then compare again");
    }
}

/* --- of a log ----------------------------------------------------------------------------------
 */

void mf_verdict_text_log(mf_verdict_text *v, const mf_job *j, const mf_compared_log *of) {
    const mf_plan_prediction *p = &j->plan.prediction;
    const mf_log *l = of->log;
    const double time = p->step_time_s / l->step_time_s - 1;
    const bool held = l->memory_B > 0 && of->allocated; /* against its like */
    const double memory = held ? of->memory_B / l->memory_B - 1 : 0;
    char step[192], other[256] = "", says[240];
    say_step(p->step_time_s, l->step_time_s, of->tolerance, step, sizeof step);
    const bool other_job = mf_reported_is_other_job(j, l);
    if (other_job) {
        mf_reported_say_other_job(j, l, "the plan's", says, sizeof says);
        snprintf(other, sizeof other, "; %s", says);
    } else if (fabs(memory) > fabs(time)) {
        snprintf(other, sizeof other, "; allocated memory is off more, by %s (%s, measured %s)",
                 mf_show_percent(fabs(memory)).s, mf_show_bytes(of->memory_B).s,
                 mf_show_bytes(l->memory_B).s);
    }
    snprintf(v->decides, sizeof v->decides, "%s%s", step, other);
    if (other_job || of->unexplained) {
        snprintf(v->next, sizeof v->next,
                 "the same with the plan of the log's job (moefold import LOG --out plan.json)%s",
                 of->out != NULL || of->kept ? "; what was written corrects nothing else" : "");
    } else if (of->doubtful && !of->kept && of->out == NULL) {
        snprintf(v->next, sizeof v->next,
                 "the same with the plan, cluster and software of the log's job (moefold import "
                 "LOG --cluster NAME --out plan.json)");
    } else if (of->kept) {
        snprintf(v->next, sizeof v->next, "moefold tune --plan %.256s", of->plan);
    } else if (of->out != NULL) {
        snprintf(v->next, sizeof v->next,
                 "plan, simulate, capacity and tune with --software %.256s", of->out);
    } else if (fabs(time) > of->tolerance) {
        const bool theirs = strncmp(j->software.name, "megatron-", 9) == 0;
        snprintf(v->next, sizeof v->next, "%s",
                 theirs ? "the same with --correct, which plan, simulate, tune and capacity then "
                          "price by"
                        : "the same with --out mine.json, which --software mine.json then prices "
                          "by");
    } else {
        snprintf(v->next, sizeof v->next, "moefold tune --plan %.256s", of->plan);
    }
}
