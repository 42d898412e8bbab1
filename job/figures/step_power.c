/* step_power.c - energies of a step's ops, by stage. */
#include "job/figures/step_power.h"

#include "job/load/job.h"
#include "job/load/prices.h"
#include "job/load/problem.h"
#include "planner/tuning/limits.h"
#include "simulator/anew.h"

#include <math.h>

/* Of a GPU of one stage over a step: energy of ops beside what is drawn anyway, its work, and the
 * clock over the highest one, by the time that it is held. */
typedef struct sums {
    double own_J, work_s, clock_s, alone_s, flight_s;
    double blocks_s, held_s; /* blocks at the highest clock; of that, waits for their collectives */
    mf_work work;
} sums;

static void add_op(sums *s, const mf_cost *cost, const mf_op *op, double stretch, double clock,
                   double times) {
    const mf_power power = mf_cost_power(cost);
    const bool computes = op->stream == MF_STREAM_COMPUTE, clocked = mf_cost_is_clocked(op);
    mf_price p;
    mf_cost_op(cost, op, 1, &p);
    const double held_s = p.time_s * (clocked ? stretch : 1);
    s->own_J += times * mf_cost_energy_J(cost, op, 1, 0, clock);
    s->flight_s += mf_cost_is_collective(op) ? times * p.time_s : 0;
    *(clocked ? &s->work.clocked_J : &s->work.other_J) +=
        times * mf_cost_energy_J(cost, op, 1, 0, power.settled_clock);
    s->work.clocked_s += clocked ? times * p.time_s : 0;
    s->work_s += computes ? times * held_s : 0;
    s->clock_s += computes ? times * held_s * clock : 0;
}

/* Does the block wait for the op, whatever may run beside it? */
static bool waits_for(const mf_op *op) {
    return op->stream != MF_STREAM_COMPUTE && op->stream != MF_STREAM_DP &&
           op->stream != MF_STREAM_D2H && op->stream != MF_STREAM_H2D &&
           !(op->flags & MF_OPF_PREFETCH) && mf_op_split_axis(op) == MF_SPLIT_NONE;
}

/* What two H200 that do nothing but reduce 128 MB draw more than at rest, the bytes included. */
static const double beside_share = 157.0 / 260; /* of what one draws that is waited for */

/* A collective that runs beside the block's compute draws power of its own, and holds compute up
 * for the share of its time that stays exposed. Of the two runs with ZeRO-3, of two and of four
 * H200, that may be fitted the clock is 1.5 % off with that and 3.3 without; nothing was fitted to
 * them. */
static void add_beside(mf_work *w, const mf_cost *cost, const mf_op *op) {
    static const unsigned overlap[MF_STREAM_COUNT] = {[MF_STREAM_TP] = MF_OVERLAP_TP,
                                                      [MF_STREAM_CP] = MF_OVERLAP_CP,
                                                      [MF_STREAM_EP] = MF_OVERLAP_EP,
                                                      [MF_STREAM_DP] = MF_OVERLAP_DP,
                                                      [MF_STREAM_PP] = MF_OVERLAP_PP};
    mf_price p;
    mf_cost_op(cost, op, 1, &p);
    w->other_s += mf_cost_exposed(cost, overlap[op->stream]) * p.time_s;
    w->other_J += beside_share * mf_cost_power(cost).flight_W * p.time_s;
}

/* Power that a GPU saves while it waits for collectives lets its clock rise over the whole block.
 * Its time has not been seen to gain by that (mf_cost_stretch leaves it out): of six runs of four
 * H200 that may be fitted the clock is 2.5 % off with the waits and 5.1 without, the step 5.3
 * and 4.3. */
static mf_work work_of(const mf_cost *cost, const mf_block *b, double *held_s) {
    const mf_power power = mf_cost_power(cost);
    const double more = mf_cost_software(cost)->power_cap;
    mf_work w = {0};
    *held_s = 0;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        const bool clocked = mf_cost_is_clocked(op);
        mf_price p;
        if (op->stream != MF_STREAM_COMPUTE && !waits_for(op)) {
            if (mf_cost_is_collective(op)) {
                add_beside(&w, cost, op);
            }
            continue;
        }
        mf_cost_op(cost, op, 1, &p);
        const double time_s = p.time_s + mf_cost_signal_s(cost, op, &p);
        *held_s += op->stream != MF_STREAM_COMPUTE ? time_s : 0;
        *(clocked ? &w.clocked_s : &w.other_s) += time_s;
        *(clocked ? &w.clocked_J : &w.other_J) +=
            more * mf_cost_energy_J(cost, op, 1, 0, power.settled_clock) +
            (mf_cost_is_collective(op) ? power.flight_W * p.time_s : 0);
    }
    return w;
}

/* The first micro-batch writes weight gradients. */
static void take_off_anew(sums *s, const mf_program *p, const mf_cost *cost, const mf_block *b,
                          int i, double clock) {
    const double anew_s = mf_anew_op_s(cost, &p->model, &p->layout, b, i);
    if (anew_s > 0) {
        const double settled = mf_cost_power(cost).settled_clock;
        s->own_J -= mf_anew_op_J(cost, &p->model, &p->layout, b, i, clock);
        s->work.clocked_J -= mf_anew_op_J(cost, &p->model, &p->layout, b, i, settled);
        s->work.clocked_s -= anew_s;
        s->work_s -= anew_s;
        s->clock_s -= anew_s * clock;
    }
}

/* `rest`: seconds in which the GPU draws nothing more, for each one of the block. */
static void add_block(sums *s, const mf_program *p, const mf_cost *cost, const mf_block *b,
                      double times, double rest) {
    const bool capped = mf_cost_software(cost)->power_cap > 0;
    const double stretch = mf_cost_stretch(cost, b, 1, NULL);
    double held_s;
    mf_work w = work_of(cost, b, &held_s);
    const double block_s = w.clocked_s + w.other_s;
    w.other_s += rest * block_s;
    const double clock = capped ? mf_cost_clock_share(mf_cost_stretch_of(cost, &w))
                                : mf_cost_power(cost).settled_clock;
    s->blocks_s += times * block_s;
    s->held_s += times * held_s;
    for (int i = 0; i < b->nops; i++) {
        add_op(s, cost, &b->ops[i], stretch, clock, times);
        take_off_anew(s, p, cost, b, i, clock);
    }
}

/* Ops that a stage runs at the end of a step, or between blocks. */
static void add_alone(sums *s, const mf_cost *cost, const mf_op *op, double times) {
    const double work_s = s->work_s, clock_s = s->clock_s;
    add_op(s, cost, op, 1, 1, times);
    s->alone_s += s->work_s - work_s;
    s->work_s = work_s, s->clock_s = clock_s;
}

/* Balanced routing stands for any: energies of ranks add up to the same. */
static sums add_up(const mf_program *p, const mf_cost *cost, int64_t stage, double rest) {
    const mf_layout *l = &p->layout;
    const double times = (double)l->micro_batches;
    mf_op ops[64];
    sums s = {0};
    for (int64_t chunk = 0; chunk < l->vpp; chunk++) {
        int64_t v = mf_layout_vstage(l, stage, chunk);
        for (int at = p->assignment.first[v]; at < p->assignment.first[v + 1]; at++) {
            add_block(&s, p, cost, p->blocks[p->block_of[at]], times, rest);
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

/* Share of the power saved while a stage waits for others that raises its clock afterwards: over
 * runs of two and four H200 with PP that may be fitted, the clock is 1.2 % off and the power 6.9,
 * without it 7.5 and 11.1. Times have not been seen to gain by it either. */
static const double regained = 0.4;

static sums of_stage(const mf_program *p, const mf_cost *cost, int64_t stage, double step_s) {
    sums s = add_up(p, cost, stage, 0);
    const double waits_s = step_s - s.work_s - s.alone_s - s.held_s;
    return p->layout.pp > 1 && waits_s > 0 && s.blocks_s > 0
               ? add_up(p, cost, stage, regained * waits_s / s.blocks_s)
               : s;
}

mf_status mf_step_power_of(const mf_job *j, const mf_plan *plan, mf_step_power *out, mf_err *e) {
    mf_program *program = NULL;
    const mf_plan_prediction *p = &plan->prediction;
    *out = (mf_step_power){.known = false};
    if (j->cost == NULL || mf_cluster_is_cpu(&j->cluster) || !(p->step_time_s > 0)) {
        return MF_OK;
    }
    const bool capped = j->software.power_cap > 0; /* else how much more is not known */
    const bool limited = capped || j->software.fitted_power > 0;
    const bool lowered = plan == &j->plan && j->program != NULL;
    mf_status status = lowered ? MF_OK
                               : mf_program_lower(&j->model, &plan->layout, &j->cluster,
                                                  &plan->assignment, &program, e);
    const mf_power power = mf_cost_power(j->cost);
    const double step_s = p->step_time_s, stages = (double)p->stages;
    for (int64_t stage = 0; status == MF_OK && stage < p->stages; stage++) {
        sums s = of_stage(lowered ? j->program : program, j->cost, stage, step_s);
        const double more = capped ? j->software.power_cap : 1; /* than kernels alone */
        /* Collectives that are in flight together wait and poll together. */
        const double flight_J = power.flight_W * fmin(s.flight_s, step_s);
        const double drawn_J = more * s.own_J + flight_J + power.idle_W * step_s;
        /* Nothing slows a GPU down that waits. */
        const double waits_s = fmax(step_s - s.work_s - s.alone_s, 0);
        const double share = (s.clock_s + waits_s) / (s.work_s + waits_s);
        /* Clocks that waits raise, of blocks whose times they do not shorten, and fitted profiles,
         * whose clocks are not known, would take more than a GPU is allowed. */
        out->energy_J += (limited ? fmin(drawn_J, power.cap_W * step_s) : drawn_J) / stages;
        s.work.clocked_J *= more;
        s.work.other_J = more * s.work.other_J + flight_J;
        if (s.work.clocked_J + s.work.other_J > out->busiest.clocked_J + out->busiest.other_J) {
            out->busiest = s.work;
        }
        out->clock_Hz += capped ? share * power.clock_Hz / stages : 0;
    }
    out->known = status == MF_OK;
    out->power_W = out->energy_J / p->step_time_s;
    out->measured = power.measured;
    mf_program_destroy(program);
    return status;
}

/* Predictions apply the power cap to each stretch of work. *step_s is the step time if the cap held
 * on average over a step, so that work may draw more after a wait: at least the time with every op
 * at full clock, and at least that of the busiest stage at one clock. The averaging time of a GPU's
 * cap was not measured. Without a cap it is the predicted time. */
static mf_status recovered_s(const mf_job *j, const mf_plan *plan, const mf_step_power *p,
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
        const double rested_s = played.prediction.step_time_s;
        mf_work w = p->busiest;
        w.other_s = fmax(rested_s - w.clocked_s, 0);
        *step_s = fmin(*step_s, rested_s + (mf_cost_stretch_of(cost, &w) - 1) * w.clocked_s);
    }
    mf_plan_clear(&played);
    mf_cost_destroy(cost);
    mf_store_close(store);
    return s;
}

mf_status mf_step_power_add_waits(mf_explanation *x, const mf_job *j, const mf_plan *plan,
                                  const mf_step_power *p, mf_err *e) {
    mf_remedy r = {.what = "a power cap that holds on average over the step, waits included",
                   .basis = "re-simulated, not measured"};
    mf_status s = recovered_s(j, plan, p, &r.step_time_s, e);
    r.gain = s == MF_OK ? 1 - r.step_time_s / plan->prediction.step_time_s : 0;
    if (r.gain < MF_LEAST_GAIN || x->remedies == MF_EXPLAIN_MAX_REMEDIES) {
        return s;
    }
    int at = x->remedies++;
    for (; at > 0 && x->remedy[at - 1].gain < r.gain; at--) {
        x->remedy[at] = x->remedy[at - 1];
    }
    x->remedy[at] = r;
    return s;
}

double mf_step_power_drawn_W(const mf_step_power *p, const mf_cluster *c) {
    return p->known ? p->power_W : c->gpu.power_w;
}
