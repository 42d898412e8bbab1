/* explain.c - why a layout fits or does not, where its step goes, and what each remedy would gain.
 *
 * A remedy is the same plan simulated again with one thing changed: a faster link, a faster kind of
 * op, another choice of the layout; or the price of memory, a multiplier (shadow_price.h). Gains do
 * not add up.
 */
#include "planner/explain/shadow_price.h"
#include "planner/planner.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

/* --- texts ------------------------------------------------------------------------------------ */

static void say_memory(const mf_plan_prediction *p, const mf_cluster *c, mf_explanation *out) {
    int64_t worst = 0, least = 0, host = 0;
    for (int64_t i = 1; i < p->stages; i++) {
        worst = p->stage[i].peak_B > p->stage[worst].peak_B ? i : worst;
        least = p->stage[i].peak_B < p->stage[least].peak_B ? i : least;
        host = p->stage[i].host_B > p->stage[host].host_B ? i : host;
    }
    int first = 0, second = -1;
    const double *kind = p->stage[worst].kind_B;
    for (int k = 1; k < MF_MEM_COUNT; k++) {
        first = kind[k] > kind[first] ? k : first;
    }
    for (int k = 0; k < MF_MEM_COUNT; k++) {
        if (k != first && (second < 0 || kind[k] > kind[second])) {
            second = k;
        }
    }
    double over = p->stage[worst].peak_B - p->usable_B;
    snprintf(out->memory, sizeof out->memory,
             "stage %lld peaks at %.2f GB of %.2f GB usable: it %s by %.2f GB; largest kinds: %s "
             "%.2f GB there, %s %.2f GB; the emptiest stage is %lld with %.2f GB",
             LL(worst), p->stage[worst].peak_B / 1e9, p->usable_B / 1e9,
             over > 0 ? "misses" : "fits", fabs(over) / 1e9, mf_memory_name((mf_memory_kind)first),
             kind[first] / 1e9, mf_memory_name((mf_memory_kind)second), kind[second] / 1e9,
             LL(least), p->stage[least].peak_B / 1e9);
    size_t used = strlen(out->memory);
    if (c->host_memory_B > 0 && p->stage[host].host_B > c->host_memory_B) {
        snprintf(out->memory + used, sizeof out->memory - used,
                 "; stage %lld offloads %.2f GB to a host that has %.2f GB for each GPU: %.2f GB "
                 "are missing",
                 LL(host), p->stage[host].host_B / 1e9, c->host_memory_B / 1e9,
                 (p->stage[host].host_B - c->host_memory_B) / 1e9);
    }
}

static void say_time(const mf_plan_prediction *p, mf_explanation *out) {
    size_t used = 0;
    const bool in_ms = p->step_time_s < 1; /* in the unit that all else says it in */
    used += (size_t)snprintf(out->time, sizeof out->time, "of %.4g %s a step",
                             p->step_time_s * (in_ms ? 1e3 : 1), in_ms ? "ms" : "s");
    bool named[MF_PLAN_MAX_FIGURES] = {false};
    for (int n = 0; n < 5; n++) {
        int best = -1;
        for (int k = 0; k < p->breakdown_count; k++) {
            if (!named[k] && (best < 0 || p->breakdown_s[k].value > p->breakdown_s[best].value)) {
                best = k;
            }
        }
        if (best < 0 || p->breakdown_s[best].value < 0.002 * p->step_time_s) {
            break;
        }
        named[best] = true;
        if (used < sizeof out->time) {
            used += (size_t)snprintf(out->time + used, sizeof out->time - used, ", %.1f %% %s",
                                     100 * p->breakdown_s[best].value / p->step_time_s,
                                     p->breakdown_s[best].key);
        }
    }
}

/* --- remedies --------------------------------------------------------------------------------- */

typedef struct attempt {
    const mf_problem *p;
    const mf_layout *layout;
    const mf_assignment *assignment;
    double before_s;
    mf_explanation *out;
    mf_status status; /* after an error nothing more is tried */
    mf_err *e;
} attempt;

static int by_gain(const void *a, const void *b) {
    const mf_remedy *x = a, *y = b;
    return x->gain > y->gain ? -1 : x->gain < y->gain ? 1 : strcmp(x->what, y->what);
}

static void note_as(attempt *t, const char *what, double after_s, bool fits, const char *basis) {
    mf_explanation *x = t->out;
    double gain = 1.0 - after_s / t->before_s;
    if (gain < MF_LEAST_GAIN || x->remedies == MF_EXPLAIN_MAX_REMEDIES) {
        return;
    }
    mf_remedy *r = &x->remedy[x->remedies++];
    snprintf(r->what, sizeof r->what, "%s%s", what, fits ? "" : " (does not fit)");
    r->step_time_s = after_s;
    r->gain = gain;
    snprintf(r->basis, sizeof r->basis, "%s", basis);
}

static void note(attempt *t, const char *what, double after_s, bool fits) {
    note_as(t, what, after_s, fits, "re-simulated");
}

/* The plan under another cost model. */
static void with_cost(attempt *t, const char *what, const mf_cluster *c, const mf_software *s) {
    mf_cost *cost = NULL;
    mf_plan plan;
    mf_problem p = *t->p;
    if (t->status != MF_OK) {
        return;
    }
    t->status = p.reprice != NULL ? p.reprice(p.reprice_user, c, s, &cost, t->e)
                                  : mf_cost_create(c, s, NULL, &cost, t->e);
    mf_plan_init(&plan);
    if (t->status == MF_OK) {
        p.cost = cost;
        t->status = mf_planner_predict(&p, t->layout, t->assignment, &plan, NULL, t->e);
    }
    if (t->status == MF_OK) {
        note(t, what, plan.prediction.step_time_s, true);
    }
    mf_plan_clear(&plan);
    mf_cost_destroy(cost);
}

/* The plan with another choice; a layout that breaks a rule is no remedy. a: its assignment. */
static void with_layout(attempt *t, const char *what, mf_layout l, const mf_assignment *a) {
    mf_plan plan;
    mf_err ignored;
    if (t->status != MF_OK) {
        return;
    }
    mf_err_clear(&ignored);
    mf_plan_init(&plan);
    const mf_status status = mf_planner_predict(t->p, &l, a, &plan, NULL, &ignored);
    if (status == MF_OK) {
        note(t, what, plan.prediction.step_time_s, plan.prediction.fits);
    } else if (status == MF_NOMEM) {
        t->status = mf_err_set(t->e, MF_NOMEM, "%s", ignored.text);
    }
    mf_plan_clear(&plan);
}

static void try_rates(attempt *t) {
    const mf_cluster *cluster = mf_cost_cluster(t->p->cost);
    const mf_software *software = mf_cost_software(t->p->cost);
    mf_cluster c = *cluster;
    const double more = 1.1;
    mf_software faster = *software, s;
    faster.rate_cap = more * (faster.rate_cap > 0 ? faster.rate_cap : 1);
    c.nic_Bps *= more;
    with_cost(t, "network bandwidth +10 %", &c, software);
    c = *cluster;
    c.scaleup_Bps *= more;
    c.scaleup_effective_Bps *= more;
    c.scaleup_pair_Bps *= more;
    c.scaleup_pair_effective_Bps *= more;
    with_cost(t, "scale-up bandwidth +10 %", &c, software);
    c = *cluster;
    c.gpu.power_w *= more;
    if (software->power_cap > 0) {
        with_cost(t, "power limit of the GPU +10 %", &c, software);
    }
    s = faster;
    s.collective_eff *= more;
    for (int i = 0; i < MF_DISPATCH_COUNT; i++) {
        s.comm_eff[i] *= more;
    }
    with_cost(t, "all communication 10 % faster", cluster, &s);
    s = faster;
    for (int i = 0; i < MF_MATH_COUNT; i++) {
        s.gemm_eff[i] *= more;
    }
    with_cost(t, "GEMMs 10 % faster", cluster, &s);
    s = faster;
    s.attention_eff *= more;
    with_cost(t, "attention 10 % faster", cluster, &s);
    s = faster;
    s.memory_eff *= more;
    with_cost(t, "memory-bound ops 10 % faster", cluster, &s);
    s = *software;
    s.host_op_s *= 0.5;
    s.host_layer_s *= 0.5;
    with_cost(t, "half the host time", cluster, &s);
}

static void try_schedule(attempt *t, const char *what, mf_schedule_kind schedule) {
    mf_layout l = *t->layout;
    l.schedule = schedule;
    with_layout(t, what, l, t->assignment);
}

static void try_overlap(attempt *t, const char *what, uint8_t more) {
    mf_layout l = *t->layout;
    l.overlap |= more;
    with_layout(t, what, l, t->assignment);
}

static void try_choices(attempt *t) {
    const mf_layout *now = t->layout;
    mf_layout l = *now;
    if (now->graph != MF_GRAPH_STEP) {
        l.graph = MF_GRAPH_STEP;
        with_layout(t, "--cuda-graph step", l, t->assignment);
    }
    l = *now;
    if (now->ep > 1 && now->dispatcher != MF_DISPATCH_FUSED) {
        l.dispatcher = MF_DISPATCH_FUSED;
        with_layout(t, "--dispatcher fused", l, t->assignment);
    }
    if (now->ep > 1 && !mf_layout_merges(now) && !mf_layout_turns(now)) {
        try_schedule(t, "--schedule merged", MF_SCHED_MERGED);
    }
    if (now->ep > 1 && !(now->overlap & MF_OVERLAP_EP) && t->p->model->shared_ffn > 0) {
        try_overlap(t, "--overlap ep (shared expert beside dispatch)", MF_OVERLAP_EP);
    }
    if (now->tp > 1 && !(now->overlap & MF_OVERLAP_TP)) {
        try_overlap(t, "--overlap tp", MF_OVERLAP_TP);
    }
    if (now->cp > 1 && now->cp_type != MF_CP_RING && !(now->overlap & MF_OVERLAP_CP)) {
        try_overlap(t, "--overlap cp", MF_OVERLAP_CP);
    }
    if (now->pp > 1 && now->schedule == MF_SCHED_1F1B) {
        try_schedule(t, "--schedule zb-h1", MF_SCHED_ZB_H1);
    }
}

/* The cost of recomputation and offload: simulates the same plan with everything kept. */
static void try_memory(attempt *t) {
    mf_assignment a = *t->assignment;
    bool any = false;
    for (int i = 0; i < a.positions; i++) {
        any |= a.memory[i].recompute != 0 || a.memory[i].offload != 0;
        a.memory[i] = (mf_memory_choice){0, 0};
    }
    if (any) {
        with_layout(t, "memory for keeping every activation", *t->layout, &a);
    }
}

/* The gain of one more gigabyte on the stage whose memory binds. */
static void try_byte(attempt *t, const mf_plan_prediction *predicted) {
    mf_shadow price;
    char what[64];
    if (t->status == MF_OK && predicted->fits) {
        t->status = mf_shadow_memory(t->p, t->layout, t->assignment, predicted, &price, t->e);
        if (t->status == MF_OK && price.stage >= 0) {
            snprintf(what, sizeof what, "1 GB more on stage %lld", LL(price.stage));
            note_as(t, what, t->before_s - 1e9 * price.seconds_per_B, true, "dual price");
        }
    }
}

mf_status mf_planner_explain(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                             mf_explanation *out, mf_err *e) {
    mf_plan plan;
    memset(out, 0, sizeof *out);
    mf_status status = mf_planner_predict(p, l, a, &plan, NULL, e);
    if (status == MF_OK) {
        out->fits = plan.prediction.fits;
        say_memory(&plan.prediction, mf_cost_cluster(p->cost), out);
        say_time(&plan.prediction, out);
        attempt t = {.p = p,
                     .layout = &plan.layout,
                     .assignment = &plan.assignment,
                     .before_s = plan.prediction.step_time_s,
                     .out = out,
                     .e = e};
        try_rates(&t);
        try_choices(&t);
        try_memory(&t);
        try_byte(&t, &plan.prediction);
        status = t.status;
        if (out->remedies > 0) {
            qsort(out->remedy, (size_t)out->remedies, sizeof out->remedy[0], by_gain);
        }
    }
    mf_plan_clear(&plan);
    return status;
}
