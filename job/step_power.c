/* step_power.c - energies of a step's ops, by stage. */
#include "job/step_power.h"

#include "job/job.h"
#include "job/prices.h"
#include "job/problem.h"

#include <math.h>

/* Of a GPU of one stage over a step: energy of ops beside what is drawn anyway, and the clock over
 * the highest one, by the time that it is held. */
typedef struct sums {
    double own_J, work_s, clock_s;
} sums;

typedef struct work {
    double own_J, rested_s, held_s;
} work;

static void add_op(work *w, const mf_cost *cost, const mf_op *op, double stretch) {
    mf_price p;
    mf_cost_op(cost, op, 1, &p);
    const bool computes = op->stream == MF_STREAM_COMPUTE;
    w->own_J += mf_cost_energy_J(cost, op, 1, 0);
    w->rested_s += computes ? p.time_s : 0;
    w->held_s += computes ? p.time_s * (mf_cost_is_clocked(op) ? stretch : 1) : 0;
}

/* Work that goes on long enough for the clock to settle. */
static void add_work(sums *s, const mf_cost *cost, const work *w, double times) {
    const double held_s = w->held_s * times;
    s->own_J += w->own_J * times;
    s->work_s += held_s;
    s->clock_s += held_s * mf_cost_clock_share(cost, w->own_J, w->rested_s);
}

static void add_block(sums *s, const mf_cost *cost, const mf_block *b, double times) {
    const double stretch = mf_cost_stretch(cost, b, 1, NULL);
    work w = {0};
    for (int i = 0; i < b->nops; i++) {
        add_op(&w, cost, &b->ops[i], stretch);
    }
    add_work(s, cost, &w, times);
}

static void add_alone(sums *s, const mf_cost *cost, const mf_op *op, double times) {
    work w = {0};
    add_op(&w, cost, op, 1);
    add_work(s, cost, &w, times);
}

/* Balanced routing stands for any: energies of ranks add up to the same. */
static sums of_stage(const mf_program *p, const mf_cost *cost, int64_t stage) {
    const mf_layout *l = &p->layout;
    const double times = (double)l->micro_batches;
    mf_op ops[64];
    sums s = {0};
    for (int64_t chunk = 0; chunk < l->vpp; chunk++) {
        int64_t v = mf_layout_vstage(l, stage, chunk);
        for (int at = p->assignment.first[v]; at < p->assignment.first[v + 1]; at++) {
            add_block(&s, cost, p->blocks[p->block_of[at]], times);
            for (int i = 0; i < 2; i++) {
                add_alone(&s, cost, &p->dp[at].reduce[i], 1);
                add_alone(&s, cost, &p->dp[at].gather[i], 1);
            }
        }
        if (l->pp > 1) {
            add_alone(&s, cost, &p->send_forward, times);
            add_alone(&s, cost, &p->send_backward, times);
        }
    }
    int count = mf_program_optimizer(p, stage, ops, (int)(sizeof ops / sizeof ops[0]));
    for (int i = 0; i < count; i++) {
        add_alone(&s, cost, &ops[i], 1);
    }
    return s;
}

mf_status mf_step_power_of(const mf_job *j, const mf_plan *plan, mf_step_power *out, mf_err *e) {
    mf_program *program = NULL;
    const mf_plan_prediction *p = &plan->prediction;
    *out = (mf_step_power){.known = false};
    if (j->cost == NULL || mf_cluster_is_cpu(&j->cluster) || !(p->step_time_s > 0)) {
        return MF_OK;
    }
    const bool capped = j->software.power_cap > 0; /* else how much more is not known */
    const bool lowered = plan == &j->plan && j->program != NULL;
    mf_status status = lowered ? MF_OK
                               : mf_program_lower(&j->model, &plan->layout, &j->cluster,
                                                  &plan->assignment, &program, e);
    const mf_power power = mf_cost_power(j->cost);
    const double step_s = p->step_time_s, stages = (double)p->stages;
    for (int64_t stage = 0; status == MF_OK && stage < p->stages; stage++) {
        const sums s = of_stage(lowered ? j->program : program, j->cost, stage);
        const double own_J = (capped ? j->software.power_cap : 1) * s.own_J;
        const double drawn_J = own_J + power.idle_W * step_s;
        /* Nothing slows a GPU down that waits. */
        const double waits_s = fmax(step_s - s.work_s, 0);
        const double share = (s.clock_s + waits_s) / (s.work_s + waits_s);
        out->energy_J += fmin(drawn_J, power.cap_W * step_s) / stages;
        out->least_s = fmax(out->least_s, own_J / fmax(power.cap_W - power.idle_W, 1));
        out->clock_Hz += capped ? share * power.clock_Hz / stages : 0;
    }
    out->known = status == MF_OK;
    out->power_W = out->energy_J / p->step_time_s;
    out->measured = power.measured;
    mf_program_destroy(program);
    return status;
}

mf_status mf_step_power_recovered(const mf_job *j, const mf_plan *plan, const mf_step_power *p,
                                  double *step_s, mf_err *e) {
    mf_problem problem;
    mf_cost *cost = NULL;
    mf_store *store = NULL;
    mf_software rested = j->software;
    mf_plan played;
    int64_t rows, damaged;
    *step_s = plan->prediction.step_time_s;
    if (!p->known || !(j->software.power_cap > 0)) {
        return MF_OK;
    }
    rested.power_cap = 0;
    mf_plan_init(&played);
    mf_status s = mf_problem_from_job(j, &problem, e);
    s = s == MF_OK ? mf_prices_open_store(j->asked.store, &store, &rows, &damaged, e) : s;
    s = s == MF_OK ? mf_cost_create(&j->cluster, &rested, store, &cost, e) : s;
    if (s == MF_OK) {
        problem.cost = cost;
        s = mf_planner_predict(&problem, &plan->layout, &plan->assignment, &played, NULL, e);
    }
    if (s == MF_OK) {
        *step_s = fmin(*step_s, fmax(played.prediction.step_time_s, p->least_s));
    }
    mf_plan_clear(&played);
    mf_cost_destroy(cost);
    mf_store_close(store);
    return s;
}

double mf_step_power_drawn_W(const mf_step_power *p, const mf_cluster *c) {
    return p->known ? p->power_W : c->gpu.power_w;
}
