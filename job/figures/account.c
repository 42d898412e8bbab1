/* account.c - the ops of one stage's step, priced and summed. */
#include "job/figures/account.h"

#include "job/load/job.h"
#include "simulator/anew.h"

#include <stdlib.h>
#include <string.h>

static bool on_compute_stream(const mf_op *op) {
    mf_op_class c = mf_op_kind_class((mf_op_kind)op->kind);
    return c != MF_CLASS_COLLECTIVE && c != MF_CLASS_P2P && c != MF_CLASS_COPY;
}

static mf_account_op *row_of(mf_account *a, const mf_op *op) {
    for (int i = 0; i < a->nops; i++) {
        mf_account_op *r = &a->op[i];
        if (r->kind == op->kind && r->pass == op->pass && r->module == op->module &&
            strcmp(r->name, op->name) == 0) {
            return r;
        }
    }
    if (a->nops == MF_ACCOUNT_MAX_OPS) {
        return NULL;
    }
    mf_account_op *r = &a->op[a->nops++];
    *r =
        (mf_account_op){.name = op->name, .kind = op->kind, .pass = op->pass, .module = op->module};
    return r;
}

/* stretch: of what the clock holds up. anew_s: what it takes less in the first micro-batch. */
static void add(mf_account *a, const mf_cost *cost, const mf_op *op, double load, double stretch,
                int64_t times, double anew_s) {
    mf_price p;
    mf_cost_op(cost, op, load, &p);
    if (p.time_s <= 0) {
        return;
    }
    double time_s = p.time_s * mf_cost_slowed(cost, op, stretch) * (double)times - anew_s;
    (on_compute_stream(op) ? a->compute_s : a->communication_s)[op->module] += time_s;
    a->basis_s[p.basis] += time_s;
    a->total_s += time_s;
    mf_account_op *r = row_of(a, op);
    if (r == NULL) {
        return;
    }
    r->count += times;
    r->time_s += time_s;
    r->limit_s += p.limit_s * ((double)times - anew_s / p.time_s);
    r->flops += op->flops * (double)times;
    r->bytes += op->bytes * (double)times;
    if (p.time_s > r->most_s) {
        r->most_s = p.time_s;
        r->basis = p.basis;
    }
}

static int costlier(const void *a, const void *b) {
    const mf_account_op *x = a, *y = b;
    if (x->time_s < y->time_s || x->time_s > y->time_s) {
        return x->time_s < y->time_s ? 1 : -1;
    }
    return strcmp(x->name, y->name);
}

/* MoE layers in front of a position: rows of a routing. */
static int64_t moe_before(const mf_model *m, int position) {
    int64_t n = 0;
    for (int at = 0; at < position; at++) {
        n += mf_position_is_moe(m, at);
    }
    return n;
}

void mf_account_stage(const mf_program *p, const mf_cost *cost, const mf_routing *routing,
                      int64_t stage, mf_account *out) {
    const mf_layout *l = &p->layout;
    mf_op ops[64];
    memset(out, 0, sizeof *out);
    out->stage = stage;
    for (int64_t chunk = 0; chunk < l->vpp; chunk++) {
        int64_t v = mf_layout_vstage(l, stage, chunk);
        for (int at = p->assignment.first[v]; at < p->assignment.first[v + 1]; at++) {
            const mf_block *b = p->blocks[p->block_of[at]];
            double load =
                routing != NULL && mf_position_is_moe(&p->model, at)
                    ? mf_routing_max_load(routing, &p->model, l->ep, moe_before(&p->model, at))
                    : 1;
            double stretch = mf_cost_stretch(cost, b, load, NULL);
            for (int i = 0; i < b->nops; i++) {
                add(out, cost, &b->ops[i], load, stretch, l->micro_batches,
                    mf_anew_op_s(cost, &p->model, l, b, i));
            }
            for (int i = 0; i < 2; i++) {
                add(out, cost, &p->dp[at].reduce[i], 1, 1, 1, 0);
                add(out, cost, &p->dp[at].gather[i], 1, 1, 1, 0);
            }
        }
        if (l->pp > 1) {
            add(out, cost, &p->send_forward, 1, 1, l->micro_batches, 0);
            add(out, cost, &p->send_backward, 1, 1, l->micro_batches, 0);
        }
    }
    int count = mf_program_optimizer(p, stage, ops, (int)(sizeof ops / sizeof ops[0]));
    for (int i = 0; i < count; i++) {
        add(out, cost, &ops[i], 1, 1, 1, 0);
    }
    qsort(out->op, (size_t)out->nops, sizeof out->op[0], costlier);
}
