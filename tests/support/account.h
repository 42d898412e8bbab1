/* account.h - what an executor ran and took, held against its program, the simulator's count of it,
 * the prices of its ops and the memory plan: in every step, on every rank. */
#ifndef MF_TESTS_ACCOUNT_H
#define MF_TESTS_ACCOUNT_H

#include "costmodel/cost.h"
#include "executor/step/program_run.h"
#include "simulator/sim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct account {
    const mf_program *program;
    const mf_schedule *schedule;
    const mf_exec *exec;
    const mf_cost *cost;
    int64_t rank;
    int64_t simulated;         /* ops that the simulator played; -1: not asked yet */
    int64_t seen;              /* ops of the step at hand */
    int64_t foreign, unpriced; /* of them: not of the program, of no price */
    int64_t written, unlike;   /* gradients that were written, not added to; against the rule by
                                * which they are priced */
    char text[96];             /* the first of those */
} account;

/* Prices of the shipped CPU cluster; NULL: why in *e. To be destroyed. */
static inline mf_cost *account_cost(mf_err *e) {
    mf_cluster c;
    mf_software s;
    mf_cost *cost = NULL;
    if (mf_cluster_load("cpu", &c, e) != MF_OK || mf_software_load("ideal", &s, e) != MF_OK ||
        mf_cost_create(&c, &s, NULL, &cost, e) != MF_OK) {
        return NULL;
    }
    return cost;
}

static inline void account_open(account *a, const mf_program *p, const mf_schedule *s,
                                const mf_exec *x, const mf_comm *c, const mf_cost *cost) {
    *a = (account){.program = p,
                   .schedule = s,
                   .exec = x,
                   .cost = cost,
                   .rank = mf_comm_rank(c),
                   .simulated = -1};
}

static inline bool account_of_program(const mf_program *p, const mf_op *op, int position) {
    if (position >= 0) {
        const mf_block *b = p->blocks[p->block_of[position]];
        return op >= b->ops && op < b->ops + b->nops;
    }
    return op->pass == MF_PASS_O || op == &p->send_forward || op == &p->send_backward ||
           op == &p->send_states[0] || op == &p->send_states[1];
}

/* Gradients that the first micro-batch makes are written once a step, those that are reduced behind
 * their block always. */
static inline void account_gradient(account *a, const mf_exec_op *x) {
    const mf_program *p = a->program;
    const mf_block *b = x->position >= 0 ? p->blocks[p->block_of[x->position]] : NULL;
    if (b == NULL || !account_of_program(p, x->op, x->position) || x->op->pass != MF_PASS_W) {
        return;
    }
    const int i = (int)(x->op - b->ops);
    const bool table = x->op->module == MF_MODULE_HEAD; /* others may read it, or not */
    if (!mf_op_makes_gradient(&p->model, b, i)) {
        a->unlike += x->overwrites && !table;
    } else if (mf_layout_shards_gradients(&p->layout, mf_op_gradient_side(b, i))) {
        a->unlike += !x->overwrites;
    } else {
        a->written += x->overwrites;
    }
}

/* What is to be written so on a stage. */
static inline int64_t account_to_write(const mf_program *p, int64_t stage) {
    int64_t n = 0;
    for (int at = 0; at < p->assignment.positions; at++) {
        const mf_block *b = p->blocks[p->block_of[at]];
        for (int i = b->nforward; i < b->nops && mf_program_stage_of(p, at) == stage; i++) {
            n += mf_op_makes_gradient(&p->model, b, i) &&
                 !mf_layout_shards_gradients(&p->layout, mf_op_gradient_side(b, i));
        }
    }
    return n;
}

/* After every op that ran. */
static inline void account_look(account *a, const mf_exec_op *x) {
    mf_price price = {0};
    a->seen++;
    account_gradient(a, x);
    if (x->op->bytes > 0 || x->op->flops > 0) {
        mf_cost_op(a->cost, x->op, 1.0, &price);
    }
    bool foreign = !account_of_program(a->program, x->op, x->position);
    bool unpriced = !(price.time_s > 0);
    if ((foreign || unpriced) && a->unpriced + a->foreign == 0) {
        snprintf(a->text, sizeof a->text, "position %d %s", x->position, x->op->name);
    }
    a->foreign += foreign;
    a->unpriced += unpriced;
}

static inline int64_t account_ops_of(const mf_block *b, unsigned passes) {
    int64_t n = 0;
    for (int i = 0; i < b->nops; i++) {
        n += (b->ops[i].pass & passes) != 0;
    }
    return n;
}

static inline int64_t account_ops_of_chunk(const mf_program *p, int64_t v, unsigned passes) {
    int64_t n = 0;
    for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
        n += account_ops_of(p->blocks[p->block_of[i]], passes);
    }
    return n;
}

/* Does the result of a pass of virtual stage v leave the stage? */
static inline bool account_sends(const mf_program *p, int64_t v, bool forward) {
    int64_t to = forward ? v + 1 : v - 1;
    return to >= 0 && to < p->assignment.vstages &&
           mf_layout_stage_of(&p->layout, to) != mf_layout_stage_of(&p->layout, v);
}

/* Ops of a stage's rank in one step: those of blocks and of the optimizer, which the simulator
 * counts, and what it plays beside them: gathers and reductions of positions, messages between
 * stages. */
typedef struct account_ops {
    int64_t counted, beside;
} account_ops;

static inline account_ops account_of_step(const mf_program *p, const mf_schedule *s,
                                          int64_t stage) {
    mf_op ops[MF_STEP_END_MAX];
    account_ops n = {.counted = mf_program_optimizer(p, stage, ops, MF_STEP_END_MAX)};
    unsigned back = p->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD;
    for (int64_t i = 0; i < s->count[stage]; i++) {
        const mf_event *ev = &s->events[stage][i];
        int64_t v = mf_layout_vstage(&p->layout, stage, ev->chunk);
        bool pair = ev->pass == MF_EVENT_FB;
        if (ev->pass == MF_EVENT_F || pair) {
            n.counted += account_ops_of_chunk(p, v, MF_PASS_F);
            n.beside += account_sends(p, v, true);
        }
        if (ev->pass == MF_EVENT_W) {
            n.counted += account_ops_of_chunk(p, v, MF_PASS_W);
        }
        if (ev->pass == MF_EVENT_B || pair) {
            v = pair ? mf_layout_vstage(&p->layout, stage, ev->chunk2) : v;
            n.counted += account_ops_of_chunk(p, v, back);
            n.beside += account_sends(p, v, false);
        }
    }
    for (int i = 0; i < p->assignment.positions; i++) {
        for (int k = 0; k < 2 && mf_program_stage_of(p, i) == stage; k++) {
            n.beside += (p->dp[i].reduce[k].bytes > 0) + (p->dp[i].gather[k].bytes > 0);
        }
    }
    return n;
}

/* The simulator plays what one rank of every stage runs. */
static inline bool account_simulated(account *a, char text[200]) {
    const mf_sim_options o = {.every_rank = false};
    mf_sim *sim = NULL;
    mf_err e;
    int64_t ops = 0;
    if (a->simulated < 0) {
        if (mf_sim_step(a->cost, a->program, &o, &sim, &e) != MF_OK) {
            snprintf(text, 200, "not simulated: %.150s", e.text);
            return false;
        }
        a->simulated = sim->ops;
        mf_sim_destroy(sim);
    }
    for (int64_t s = 0; s < a->program->layout.pp; s++) {
        ops += account_of_step(a->program, a->schedule, s).counted;
    }
    if (ops != a->simulated) {
        snprintf(text, 200, "%lld ops of all stages, %lld simulated", (long long)ops,
                 (long long)a->simulated);
    }
    return ops == a->simulated;
}

/* At the end of every step: false when ops or memory differ from what was promised, why in text.
 */
static inline bool account_step(account *a, const mf_exec_result *r, char text[200]) {
    int64_t stage = mf_layout_coords(&a->program->layout, a->rank).p;
    account_ops n = account_of_step(a->program, a->schedule, stage);
    int64_t ops = n.counted + n.beside, seen = a->seen;
    double arena = (double)mf_exec_arena_B(a->exec), high = (double)mf_exec_high_B(a->exec);
    double host = (double)mf_exec_host_B(a->exec), planned = mf_exec_planned_B(a->exec);
    bool memory = arena == planned && high == planned && host == mf_exec_planned_host_B(a->exec);
    if (!memory) {
        snprintf(text, 200, "arena %.0f, up to %.0f, of %.0f, host %.0f of %.0f", arena, high,
                 planned, host, mf_exec_planned_host_B(a->exec));
    }
    const int64_t written = a->written, to_write = account_to_write(a->program, stage);
    a->seen = a->written = 0;
    if (written != to_write || a->unlike > 0) {
        snprintf(text, 200, "%d gradients written, not %d, %d against the rule", (int)written,
                 (int)to_write, (int)a->unlike);
        return false;
    }
    if (r->ops != ops || seen != ops || a->foreign > 0 || a->unpriced > 0) {
        snprintf(text, 200, "%d ops ran (%d seen) of %d, %d foreign, %d unpriced: %s", (int)r->ops,
                 (int)seen, (int)ops, (int)a->foreign, (int)a->unpriced, a->text);
        return false;
    }
    return memory && account_simulated(a, text);
}

#endif
