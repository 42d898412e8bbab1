/* step_end.c - what a rank does at the end of a step: parameter gathers, gradient reductions,
 * gradient norm and optimizer.
 */
#include "simulator/play.h"
#include "simulator/step_engine.h"

#include <math.h>
#include <stdlib.h>

static void price(const mf_step_engine *g, const mf_op *op, mf_price *out) {
    *out = (mf_price){0};
    if (op->bytes > 0 || op->flops > 0) {
        mf_cost_op(g->cost, op, 1.0, out);
    }
}

/* Puts an op on a rank's step-end stream: after the ops on it and after `from`. */
static void put(mf_step_engine *g, int64_t stage, int64_t r, int position, const mf_op *op,
                const mf_price *p, mf_when from) {
    mf_step_rank *k = mf_step_rank_of(g, stage, r);
    if (!(p->time_s > 0)) {
        return;
    }
    if (from.s > k->step_end.s) {
        k->step_end = from;
    }
    mf_block_instance i = {.stage = stage,
                           .rank = r,
                           .event = -1,
                           .position = position,
                           .position2 = -1,
                           .passes = MF_PASS_O,
                           .start_s = k->step_end.s,
                           .op = op};
    k->step_end.s += p->time_s;
    k->step_end.low_s += p->low_s;
    k->step_end.high_s += p->high_s;
    i.end_s = k->step_end.s;
    mf_step_observe(g, &i);
}

mf_status mf_step_end_price(mf_step_engine *g) {
    size_t positions = (size_t)g->p->assignment.positions;
    for (int side = 0; side < 2; side++) {
        g->reduce[side] = malloc(positions * sizeof *g->reduce[side]);
        g->gather[side] = malloc(positions * sizeof *g->gather[side]);
        if (g->reduce[side] == NULL || g->gather[side] == NULL) {
            return mf_err_set(g->e, MF_NOMEM, "simulation: out of memory");
        }
        for (size_t i = 0; i < positions; i++) {
            price(g, &g->p->dp[i].reduce[side], &g->reduce[side][i]);
            price(g, &g->p->dp[i].gather[side], &g->gather[side][i]);
        }
    }
    price(g, &g->p->send_forward, &g->send[0]);
    price(g, &g->p->send_backward, &g->send[1]);
    price(g, &g->p->send_states[0], &g->send_states[0]);
    price(g, &g->p->send_states[1], &g->send_states[1]);
    return MF_OK;
}

/* Parameters that ZeRO-1 and -2 left in shards, gathered in the order in which positions are first
 * used; beside compute when data-parallel communication may overlap. */
void mf_step_gathers(mf_step_engine *g) {
    const mf_layout *l = &g->p->layout;
    for (int64_t stage = 0; stage < l->pp; stage++) {
        for (int64_t chunk = 0; chunk < l->vpp; chunk++) {
            int64_t v = mf_layout_vstage(l, stage, chunk);
            for (int i = g->p->assignment.first[v]; i < g->p->assignment.first[v + 1]; i++) {
                for (int64_t r = 0; r < g->ranks; r++) {
                    mf_when start = {0, 0, 0};
                    put(g, stage, r, i, &g->p->dp[i].gather[0], &g->gather[0][i], start);
                    put(g, stage, r, i, &g->p->dp[i].gather[1], &g->gather[1][i], start);
                }
                g->gather_behind_s[i] = mf_step_rank_of(g, stage, 0)->step_end.s;
            }
        }
        double all = mf_step_rank_of(g, stage, 0)->step_end.s;
        for (int64_t chunk = 0; chunk < l->vpp; chunk++) {
            int64_t v = mf_layout_vstage(l, stage, chunk);
            for (int i = g->p->assignment.first[v]; i < g->p->assignment.first[v + 1]; i++) {
                g->gather_behind_s[i] = all - g->gather_behind_s[i];
            }
        }
        for (int64_t r = 0; r < g->ranks && !g->overlap_dp; r++) {
            mf_step_rank *k = mf_step_rank_of(g, stage, r);
            mf_step_wait(k, k->step_end, MF_BD_DP);
        }
    }
}

/* Gradients of a position are complete: the reduction starts when its stream is free. */
void mf_step_reduce(mf_step_engine *g, int64_t stage, int64_t r, int position) {
    mf_step_rank *k = mf_step_rank_of(g, stage, r);
    for (int side = 0; side < 2; side++) {
        put(g, stage, r, position, &g->p->dp[position].reduce[side], &g->reduce[side][position],
            k->free);
    }
    if (!g->overlap_dp) {
        mf_step_wait(k, k->step_end, MF_BD_DP);
    }
}

/* --- the end of the step ---------------------------------------------------------------------- */

/* An op on the compute stream, or one that it waits for. */
static void play_op(mf_step_engine *g, int64_t stage, int64_t r, const mf_op *op,
                    const mf_price *p) {
    mf_step_rank *k = mf_step_rank_of(g, stage, r);
    bool computes = op->stream == MF_STREAM_COMPUTE;
    mf_block_instance i = {.stage = stage,
                           .rank = r,
                           .event = -1,
                           .position = -1,
                           .position2 = -1,
                           .passes = MF_PASS_O,
                           .start_s = k->free.s,
                           .op = op};
    mf_step_pass(k, p->time_s, p->low_s, p->high_s);
    k->class_s[computes ? MF_BD_OPTIMIZER : mf_play_stream_class((mf_stream)op->stream)] +=
        p->time_s;
    k->busy_s += computes ? p->time_s : 0;
    k->host_s += mf_cost_host_s(g->cost, op, g->p->layout.graph);
    i.end_s = k->free.s;
    g->ops++;
    mf_step_observe(g, &i);
}

typedef struct tail {
    int n, at;
    bool met; /* waits at an op of several stages */
    mf_op ops[MF_STEP_END_MAX];
    mf_price price[MF_STEP_END_MAX];
} tail;

/* All ranks of the stages that wait at a shared op go on when the last of them has come; at an op
 * between stages, each rank waits for its counterparts only. */
static void meet(mf_step_engine *g, const tail *tails, bool counterparts) {
    int64_t stages = g->p->layout.pp, apart = counterparts ? g->ranks : 1;
    for (int64_t first = 0; first < apart; first++) {
        mf_when last = {0, 0, 0};
        for (int wait = 0; wait < 2; wait++) {
            for (int64_t p = 0; p < stages; p++) {
                for (int64_t r = first; tails[p].met && r < (counterparts ? first + 1 : g->ranks);
                     r++) {
                    mf_step_rank *k = mf_step_rank_of(g, p, r);
                    if (wait) {
                        mf_step_wait(k, last, MF_BD_BUBBLE);
                    } else if (k->free.s > last.s) {
                        last = k->free;
                    }
                }
            }
        }
    }
}

/* A copy to the host takes longer while another comes from there: an H100 by itself copied 55 GB/s
 * one way, 47 and 52 both ways together; an H200 54, and 44 to 50. */
static const double both_ways = 55.0 / 47.0;

/* Seconds that the host's memory takes for all copies of the tail, in and out, while the other GPUs
 * of the host copy as much; 0: no limit known. */
static double shared_s(const mf_cost *cost, const tail *t) {
    double sum_s = 0;
    for (int i = 0; i < t->n; i++) {
        if (mf_op_kind_class((mf_op_kind)t->ops[i].kind) == MF_CLASS_COPY) {
            const double share_Bps = mf_cost_host_share_Bps(cost, &t->ops[i]);
            sum_s += share_Bps > 0 ? t->ops[i].bytes / share_Bps : 0;
        }
    }
    return sum_s;
}

/* Copies of offloaded states travel beside the update, piece by piece: of update, copies in and
 * copies out the longest counts, and what copies take longer than the update is waited for. */
static void hide_copies(const mf_cost *cost, tail *t) {
    double longest = 0;
    int ways = 0;
    for (int i = 0; i < t->n; i++) {
        ways += mf_op_kind_class((mf_op_kind)t->ops[i].kind) == MF_CLASS_COPY;
        longest = t->ops[i].kind == MF_OP_ADAMW ? t->price[i].time_s : longest;
    }
    const double together_s = shared_s(cost, t);
    for (int i = 0; i < t->n; i++) {
        mf_price *p = &t->price[i];
        if (mf_op_kind_class((mf_op_kind)t->ops[i].kind) == MF_CLASS_COPY && p->time_s > 0) {
            const double longer = fmax(ways > 1 ? both_ways : 1, together_s / p->time_s);
            *p = (mf_price){.time_s = p->time_s * longer,
                            .low_s = p->low_s * longer,
                            .high_s = p->high_s * longer};
            double over = fmax(0, p->time_s - longest), part = over / p->time_s;
            longest = fmax(longest, p->time_s);
            *p = (mf_price){.time_s = over, .low_s = p->low_s * part, .high_s = p->high_s * part};
        }
    }
}

double mf_sim_host_copied(const mf_software *s, const mf_op *op) {
    const double gradient_B = 4, parameter_B = 2;
    const double element_B = op->kind == MF_OP_COPY_D2H ? gradient_B : parameter_B;
    return s->host_adam_s > 0 && op->bytes > 0
               ? element_B * (double)op->dim[MF_OP_DIM_ROWS] / op->bytes
               : 1;
}

/* A program that updates what it offloads on the host's CPU: gradients out, the update, parameters
 * in, one after the other; the device updates the rest. */
static void update_on_host(tail *t, const mf_software *s) {
    double host = 0, all = 0;
    for (int i = 0; i < t->n; i++) {
        bool copy = mf_op_kind_class((mf_op_kind)t->ops[i].kind) == MF_CLASS_COPY;
        host = copy ? (double)t->ops[i].dim[MF_OP_DIM_ROWS] : host;
        all = t->ops[i].kind == MF_OP_ADAMW ? (double)t->ops[i].dim[MF_OP_DIM_ROWS] : all;
    }
    for (int i = 0; i < t->n && host > 0; i++) {
        mf_price *p = &t->price[i];
        double part = 1, more = 0;
        if (t->ops[i].kind == MF_OP_ADAMW) {
            part = fmax(0, 1 - host / all);
        } else if (mf_op_kind_class((mf_op_kind)t->ops[i].kind) == MF_CLASS_COPY) {
            part = mf_sim_host_copied(s, &t->ops[i]);
            more = t->ops[i].kind == MF_OP_COPY_D2H ? s->host_adam_s * host : 0;
        }
        *p = (mf_price){.time_s = p->time_s * part + more,
                        .low_s = p->low_s * part + more,
                        .high_s = p->high_s * part + more};
    }
}

/* Plays a stage's ops up to that one, or all of the rest for none. */
static void play_up_to(mf_step_engine *g, int64_t stage, tail *t, mf_step_end_op step_end) {
    int end = t->at;
    while (end < t->n && (step_end == MF_STEP_END_NONE || t->ops[end].step_end != step_end)) {
        end++;
    }
    t->met = end < t->n;
    if (!t->met && step_end != MF_STEP_END_NONE) {
        return; /* shared by other stages */
    }
    for (; t->at < end; t->at++) {
        for (int64_t r = 0; r < g->ranks; r++) {
            play_op(g, stage, r, &t->ops[t->at], &t->price[t->at]);
        }
    }
}

/* Copies of tables on several stages are summed, then comes the gradient norm of all stages, then
 * each stage's own update. */
void mf_step_optimizer(mf_step_engine *g) {
    static const mf_step_end_op shared[] = {MF_STEP_END_EMBEDDING_COPIES, MF_STEP_END_HEAD_COPIES,
                                            MF_STEP_END_GRAD_NORM_ALL_REDUCE};
    int64_t stages = g->p->layout.pp;
    tail *tails = calloc((size_t)stages, sizeof *tails);
    if (tails == NULL) {
        g->status = mf_err_set(g->e, MF_NOMEM, "simulation: out of memory");
        return;
    }
    for (int64_t p = 0; p < stages; p++) {
        tail *t = &tails[p];
        t->n = mf_program_optimizer(g->p, p, t->ops, MF_STEP_END_MAX);
        for (int i = 0; i < t->n; i++) {
            price(g, &t->ops[i], &t->price[i]);
        }
        if (g->software->host_adam_s > 0) {
            update_on_host(t, g->software);
        } else {
            hide_copies(g->cost, t);
        }
        for (int64_t r = 0; r < g->ranks; r++) {
            mf_step_rank *k = mf_step_rank_of(g, p, r);
            mf_step_wait(k, k->step_end, MF_BD_DP);
        }
    }
    for (size_t part = 0; part < sizeof shared / sizeof shared[0]; part++) {
        bool any = false;
        for (int64_t p = 0; p < stages; p++) {
            play_up_to(g, p, &tails[p], shared[part]);
            any |= tails[p].met;
        }
        if (any) {
            meet(g, tails, part < 2);
        }
        for (int64_t p = 0; p < stages; p++) {
            tail *t = &tails[p];
            for (int64_t r = 0; r < g->ranks && t->met; r++) {
                play_op(g, p, r, &t->ops[t->at], &t->price[t->at]);
            }
            t->at += t->met;
        }
    }
    for (int64_t p = 0; p < stages; p++) {
        play_up_to(g, p, &tails[p], MF_STEP_END_NONE);
        for (int64_t r = 0; r < g->ranks; r++) {
            mf_step_rank *k = mf_step_rank_of(g, p, r);
            mf_step_wait(k, (mf_when){k->host_s, k->host_s, k->host_s}, MF_BD_HOST);
        }
    }
    free(tails);
}
