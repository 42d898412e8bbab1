/* compare.c - op by op: what was predicted, what was measured. */
#include "compare/compare.h"

#include "executor/checkpoint/checkpoint.h"
#include "simulator/anew.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void mf_compare_clear(mf_compare *c) {
    free(c->op);
    *c = (mf_compare){0};
}

static int largest_first(const void *a, const void *b) {
    const mf_compare_op *x = a, *y = b;
    double dx = fabs(x->predicted_s - x->measured_s), dy = fabs(y->predicted_s - y->measured_s);
    return (dx < dy) - (dx > dy);
}

static void judge(const mf_op_times *t, double tolerance, mf_compare_op *o) {
    double larger = o->measured_s > o->predicted_s ? o->measured_s : o->predicted_s;
    o->error = o->measured_s > 0 ? o->predicted_s / o->measured_s - 1.0 : (double)INFINITY;
    o->counts = larger >= MF_COMPARE_SHARE * t->step_time_s;
    o->outside = o->counts && fabs(o->error) > tolerance;
}

/* --- ops of blocks -----------------------------------------------------------------------------
 */

static mf_status add_row(const mf_job *j, const mf_op_times *t, const mf_op_time_row *r,
                         mf_compare_op *o, mf_err *e) {
    const mf_program *p = j->program;
    mf_price price;
    const mf_op *op = r->block < p->nblocks && r->op < p->blocks[r->block]->nops
                          ? &p->blocks[r->block]->ops[r->op]
                          : NULL;
    if (op == NULL || strcmp(op->name, r->name) != 0 ||
        strcmp(mf_op_text((mf_op_kind)op->kind), r->kind) != 0) {
        return mf_err_set(e, MF_INPUT,
                          "the run executed %s (%s) of \"%s\" as op %d of block %d: %s", r->name,
                          r->pass, r->label, r->op, r->block, "not what the plan lowers to");
    }
    mf_cost_op(j->cost, op, 1.0, &price);
    price.time_s *=
        mf_cost_slowed(j->cost, op, mf_cost_stretch(j->cost, p->blocks[r->block], 1.0, NULL));
    /* the mean over micro-batches, of which the first writes weight gradients */
    price.time_s -= mf_anew_op_s(j->cost, &p->model, &p->layout, p->blocks[r->block], r->op) /
                    (double)p->layout.micro_batches;
    *o = (mf_compare_op){.where = r->label,
                         .name = op->name,
                         .pass = r->pass,
                         .collective = op->group != MF_GROUP_NONE,
                         .count = (double)r->count / (double)(t->steps * t->ranks)};
    o->predicted_s = o->count * price.time_s;
    o->measured_s = o->count * r->mean_s;
    return MF_OK;
}

/* --- ops outside blocks ------------------------------------------------------------------------
 */

static void add_price(const mf_job *j, const mf_op *op, double times, const char *name,
                      mf_compare_op *o) {
    mf_price price;
    if (op->bytes + op->flops > 0 && strcmp(op->name, name) == 0) {
        mf_cost_op(j->cost, op, 1.0, &price);
        o->predicted_s += times * price.time_s;
        o->collective = op->group != MF_GROUP_NONE;
    }
}

/* Of stage 0, where rank 0 is. */
static void add_step_end(const mf_job *j, const mf_op_times *t, const mf_op_times_step_end *r,
                         mf_compare_op *o) {
    const mf_program *p = j->program;
    const mf_layout *l = &p->layout;
    mf_op ops[MF_STEP_END_MAX];
    *o = (mf_compare_op){.where = "once a step",
                         .name = r->name,
                         .pass = "",
                         .count = (double)r->count / (double)t->steps,
                         .measured_s = r->sum_s / (double)t->steps};
    for (int i = 0; i < p->assignment.positions; i++) {
        for (int k = 0; k < 2 && mf_program_stage_of(p, i) == 0; k++) {
            add_price(j, &p->dp[i].reduce[k], 1.0, r->name, o);
            add_price(j, &p->dp[i].gather[k], 1.0, r->name, o);
        }
    }
    int n = mf_program_optimizer(p, 0, ops, MF_STEP_END_MAX);
    for (int i = 0; i < n; i++) {
        add_price(j, &ops[i], 1.0, r->name, o);
    }
    if (l->pp > 1) {
        double messages = (double)(l->micro_batches * l->vpp);
        add_price(j, &p->send_forward, messages, r->name, o);
        add_price(j, &p->send_backward, messages, r->name, o);
    }
}

/* --- all ---------------------------------------------------------------------------------------
 */

mf_status mf_compare_run(const mf_job *j, const mf_op_times *t, double tolerance, mf_compare *out,
                         mf_err *e) {
    char model[20];
    mf_status status = MF_OK;
    *out =
        (mf_compare){.predicted_s = j->plan.prediction.step_time_s, .measured_s = t->step_time_s};
    mf_checkpoint_fingerprint(&j->model, model);
    if (t->ranks != j->plan.layout.gpus || strcmp(model, t->model) != 0) {
        return mf_err_set(e, MF_INPUT, "the run is of %s on %lld ranks, the plan is for %lld",
                          strcmp(model, t->model) != 0 ? "another model" : "this model",
                          (long long)t->ranks, (long long)j->plan.layout.gpus);
    }
    if (t->steps < 1) {
        return mf_err_set(e, MF_INPUT, "the run has no step behind its first, cold one");
    }
    out->nops = (int)t->count + t->step_end_count;
    out->op = calloc((size_t)out->nops + 1, sizeof *out->op);
    if (out->op == NULL) {
        return mf_err_set(e, MF_NOMEM, "compare: out of memory");
    }
    for (int64_t i = 0; i < t->count && status == MF_OK; i++) {
        status = add_row(j, t, &t->row[i], &out->op[i], e);
    }
    for (int i = 0; i < t->step_end_count; i++) {
        add_step_end(j, t, &t->step_end[i], &out->op[t->count + i]);
    }
    for (int i = 0; i < out->nops && status == MF_OK; i++) {
        judge(t, tolerance, &out->op[i]);
        out->noutside += out->op[i].outside;
        out->ops_predicted_s += out->op[i].predicted_s;
        out->ops_measured_s += out->op[i].measured_s;
    }
    qsort(out->op, (size_t)out->nops, sizeof *out->op, largest_first);
    out->error = out->predicted_s / out->measured_s - 1.0;
    out->outside = fabs(out->error) > tolerance;
    return status;
}
