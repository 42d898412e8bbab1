/* program_run.c - a step: micro-batches, and the walk over the schedule block by block. */
#include "executor/exec.h"

#include <math.h>
#include <string.h>

/* --- batches
 * -------------------------------------------------------------------------------------- */

/* Tokens and labels of a micro-batch's rows, for the model itself and each MTP depth: depth d reads
 * the token d places further on, and predicts the one after it. Past the sample's end nothing is
 * known: token 0, label ignored. */
static mf_status fetch(mf_exec *x, const mf_exec_batch *batch, int side, int micro_batch,
                       mf_err *e) {
    const mf_layout *l = &x->p->layout;
    int64_t local = l->seq / l->cp, rows = l->mbs * local;
    int64_t first = (micro_batch * l->dp + x->at.d) * l->mbs;
    for (int64_t b = 0; b < l->mbs; b++) {
        int32_t *sample = x->tokens + b * (l->seq + 1);
        mf_status status = batch->sample(batch->user, first + b, sample, e);
        if (status != MF_OK) {
            return status;
        }
        for (int64_t depth = 0; depth <= x->p->model.mtp_layers; depth++) {
            int32_t *token = x->rows[side] + 2 * depth * rows, *label = token + rows;
            for (int64_t i = 0; i < local; i++) {
                int64_t at = x->positions_of_rows[b * local + i] + depth;
                token[b * local + i] = at <= l->seq ? sample[at] : 0;
                label[b * local + i] = at + 1 <= l->seq ? sample[at + 1] : -1;
            }
        }
    }
    return MF_OK;
}

/* Auxiliary losses are means over what the ops see of a step: micro-batches of each DP rank (and
 * the samples in them), or micro-steps of all. */
static double aux_scopes(const mf_layout *l) {
    return (double)(l->micro_batches * (l->aux_scope == MF_AUX_GLOBAL ? 1 : l->dp));
}

static void enter_position(mf_exec *x, int position, int side) {
    const mf_layout *l = &x->p->layout;
    const mf_model *m = &x->p->model;
    const position_bind *q = &x->positions[position];
    int64_t rows = l->mbs * (l->seq / l->cp);
    bool mtp = mf_position_kind_of(m, position) == MF_POS_MTP;
    int64_t depth = mtp ? mf_position_index(m, position) + 1 : 0;
    double labels = (double)(l->gbs * (l->seq - depth));
    x->env.token = x->rows[side] + 2 * depth * rows;
    x->env.label = x->env.token + rows;
    x->env.loss_scale = (float)((mtp ? x->o.mtp_coef / (double)m->mtp_layers : 1.0) / labels);
    x->env.loss_sum = mtp ? &x->mtp_sum[depth - 1] : &x->loss_sum;
    x->env.aux_sum = &x->aux_of_position[position];
    x->env.aux_scale = (float)(x->o.aux_coef / aux_scopes(l));
    x->env.z_scale = (float)(x->o.z_coef / (double)(l->gbs * l->seq));
    x->env.z_sum = &x->z_sum;
    x->env.force_balance = x->o.force_balance;
    x->env.load = q->load;
    x->env.correction_bias = q->correction;
}

static bool skipped(const mf_exec *x, const mf_op *op) {
    return x->o.skips != NULL && x->o.skips(x->o.user, op);
}

bool mf_exec_runs(mf_exec *x, const mf_op *op) {
    if (x->o.before_op != NULL) {
        const mf_exec_op one = {.op = op, .forward = op, .position = -1, .env = &x->env};
        x->o.before_op(x->o.user, &one);
    }
    return !skipped(x, op);
}

void mf_exec_ran(mf_exec *x, const mf_op *op) {
    x->ops++;
    if (x->o.after_op != NULL) {
        const mf_exec_op one = {.op = op, .forward = op, .position = -1, .env = &x->env};
        x->o.after_op(x->o.user, &one);
    }
}

/* --- passes
 * ---------------------------------------------------------------------------------------- */

/* A pass of a chunk over a micro-batch. */
typedef struct pass_run {
    unsigned passes; /* MF_PASS_F, or what is played of the backward ones */
    int64_t event, chunk, vstage;
    int micro_batch, side;
    int first, n;      /* its positions */
    char *now, *spare; /* boundary tensor that comes in, and room for the one that goes out */
} pass_run;

static pass_run pass_of(mf_exec *x, int64_t event, bool backward, int64_t chunk, int micro_batch,
                        int side) {
    const mf_assignment *a = &x->p->assignment;
    unsigned back = x->p->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD;
    pass_run r = {.passes = backward ? back : MF_PASS_F,
                  .event = event,
                  .chunk = chunk,
                  .vstage = mf_layout_vstage(&x->p->layout, x->stage, chunk),
                  .micro_batch = micro_batch,
                  .side = side,
                  .now = x->boundary[2 * side],
                  .spare = x->boundary[2 * side + 1]};
    r.first = a->first[r.vstage];
    r.n = a->first[r.vstage + 1] - r.first;
    return r;
}

static bool is_forward(const pass_run *r) {
    return r->passes == MF_PASS_F;
}

static mf_status run_op(mf_exec *x, const block_at *at, int i, mf_err *e) {
    const mf_block *b = x->positions[at->position].block;
    const mf_op *kind = &b->ops[i];
    mf_exec_op op;
    mf_exec_bind_op(x, at, i, &op);
    if (x->o.before_op != NULL) {
        x->o.before_op(x->o.user, &op);
    }
    mf_status status = skipped(x, kind)           ? MF_OK
                       : mf_exec_is_zero_op(kind) ? mf_exec_zero_op(x, at, kind, e)
                                                  : x->backend->run[kind->kind](&op, e);
    if (status != MF_OK) {
        return mf_err_prefix(e, "position %d (%s), op %d %s", at->position, b->label, i,
                             kind->name);
    }
    x->ops++;
    if (x->o.after_op != NULL) {
        x->o.after_op(x->o.user, &op);
    }
    return MF_OK;
}

static size_t size_of(const position_bind *q, int16_t t) {
    return (size_t)mf_align_B(q->block->tensors[t].bytes);
}

/* Step k of a pass: the block, with its boundary tensors in place. */
static block_at begin_block(mf_exec *x, pass_run *r, int k) {
    int position = is_forward(r) ? r->first + k : r->first + r->n - 1 - k;
    const position_bind *q = &x->positions[position];
    block_at at;
    mf_exec_place(x, r->event, k, r->side, r->chunk, position, r->micro_batch, r->passes, &at);
    int16_t in = q->bind->input;
    bool saved = in >= 0 && q->block->tensors[in].class == MF_TENSOR_SAVED;
    at.input = saved ? mf_exec_address(x, &at, in, MF_PASS_F) : is_forward(r) ? r->now : NULL;
    if (is_forward(r)) {
        at.output = r->spare;
        if (saved) {
            memcpy(at.input, r->now, size_of(q, in));
        }
    } else if ((r->passes & MF_PASS_B) != 0) {
        at.output_gradient = r->now;
        at.input_gradient = r->spare;
    } else {
        at.output_gradient = at.arrived; /* B left it for W */
    }
    at.gathered = x->gathered + (2 * r->side + x->gathers[r->side] % 2) * x->gathered_B;
    x->gathers[r->side] += q->block->gather_B > 0;
    if (!is_forward(r)) {
        mf_exec_zero_begin(x, &at, r->passes);
    }
    return at;
}

static void end_block(mf_exec *x, pass_run *r, const block_at *at) {
    const position_bind *q = &x->positions[at->position];
    if (is_forward(r) && q->bind->output < 0 && q->bind->input >= 0) {
        memcpy(r->spare, at->input, size_of(q, q->bind->input)); /* what passes through (MTP) */
    }
    if (r->passes == (MF_PASS_R | MF_PASS_B) && at->arrived != NULL) {
        memcpy(at->arrived, r->now, size_of(q, q->bind->output_gradient));
    }
    if ((r->passes & (MF_PASS_F | MF_PASS_B)) != 0) {
        char *swap = r->now;
        r->now = r->spare;
        r->spare = swap;
    }
}

/* Ops [*next, end) of a block's passes. */
static mf_status run_block(mf_exec *x, const pass_run *r, const block_at *at, mf_err *e) {
    const mf_block *b = x->positions[at->position].block;
    mf_status status = MF_OK;
    enter_position(x, at->position, r->side);
    for (int i = 0; i < b->nops && status == MF_OK; i++) {
        if ((b->ops[i].pass & r->passes) != 0) {
            status = run_op(x, at, i, e);
        }
    }
    return status;
}

/* A block's forward and another's backward, taking turns as they were lowered and priced. */
static mf_status run_pair(mf_exec *x, const pass_run *f, const block_at *fat, const pass_run *b,
                          const block_at *bat, mf_err *e) {
    const mf_block *forward = x->positions[fat->position].block;
    const mf_block *backward = x->positions[bat->position].block;
    mf_merged_op *order = x->merged;
    int n = mf_block_merge(forward, backward, order), entered = -1;
    mf_status status = MF_OK;
    for (int i = 0; i < n && status == MF_OK; i++) {
        bool back = order[i].side == 1;
        if (entered != order[i].side) {
            enter_position(x, (back ? bat : fat)->position, (back ? b : f)->side);
            entered = order[i].side;
        }
        status = run_op(x, back ? bat : fat, order[i].op, e);
    }
    return status;
}

static mf_status begin_pass(mf_exec *x, const mf_exec_batch *batch, const pass_run *r, mf_err *e) {
    mf_status status = fetch(x, batch, r->side, r->micro_batch, e);
    int64_t from = is_forward(r) ? r->vstage - 1 : r->vstage + 1;
    bool receives =
        (r->passes & (MF_PASS_F | MF_PASS_B)) != 0 && from >= 0 && from < x->p->assignment.vstages;
    return status == MF_OK && receives
               ? mf_exec_collect(x, r->vstage, from, !is_forward(r), r->micro_batch, r->now, e)
               : status;
}

static mf_status end_pass(mf_exec *x, const pass_run *r, mf_err *e) {
    int64_t to = is_forward(r) ? r->vstage + 1 : r->vstage - 1;
    bool sends =
        (r->passes & (MF_PASS_F | MF_PASS_B)) != 0 && to >= 0 && to < x->p->assignment.vstages;
    return sends ? mf_exec_post(x, r->vstage, to, !is_forward(r), r->micro_batch, r->now, e)
                 : MF_OK;
}

/* One or two passes, block by block. */
static mf_status run_passes(mf_exec *x, const mf_exec_batch *batch, pass_run *run, int count,
                            mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < count && status == MF_OK; i++) {
        status = begin_pass(x, batch, &run[i], e);
    }
    if (count == 2) {
        mf_pairing_make(&x->pairing, &x->p->model, &x->p->layout, x->p->assignment.first,
                        run[0].vstage, run[1].vstage);
    } else {
        mf_pairing_alone(&x->pairing, false, run[0].n);
    }
    for (int k = 0; k < x->pairing.count && status == MF_OK; k++) {
        const int block[2] = {x->pairing.step[k].f, x->pairing.step[k].b};
        block_at at[2];
        for (int i = 0; i < 2; i++) {
            if (block[i] >= 0) {
                at[i] = begin_block(x, &run[i], block[i]);
            }
        }
        if (block[0] >= 0 && block[1] >= 0) {
            status = run_pair(x, &run[0], &at[0], &run[1], &at[1], e);
        } else {
            int one = block[0] >= 0 ? 0 : 1;
            status = run_block(x, &run[one], &at[one], e);
        }
        for (int i = 0; i < 2; i++) {
            if (block[i] >= 0) {
                end_block(x, &run[i], &at[i]);
            }
        }
    }
    for (int i = 0; i < count && status == MF_OK; i++) {
        status = end_pass(x, &run[i], e);
    }
    return status;
}

static mf_status run_event(mf_exec *x, const mf_exec_batch *batch, int64_t event, mf_err *e) {
    const mf_event *ev = &x->s->events[x->stage][event];
    pass_run run[2] = {pass_of(x, event, ev->pass == MF_EVENT_B || ev->pass == MF_EVENT_W,
                               ev->chunk, ev->micro_batch, 0)};
    if (ev->pass == MF_EVENT_W) {
        run[0].passes = MF_PASS_W;
    }
    if (ev->pass == MF_EVENT_FB) {
        run[1] = pass_of(x, event, true, ev->chunk2, ev->micro_batch2, 1);
    }
    return run_passes(x, batch, run, ev->pass == MF_EVENT_FB ? 2 : 1, e);
}

static mf_status run_schedule(mf_exec *x, const mf_exec_batch *batch, mf_err *e) {
    mf_status status = MF_OK;
    for (int64_t i = 0; i < x->s->count[x->stage] && status == MF_OK; i++) {
        status = run_event(x, batch, i, e);
        if (status != MF_OK) {
            return mf_err_prefix(e, "rank %lld, micro-batch %d", (long long)mf_comm_rank(x->comm),
                                 x->s->events[x->stage][i].micro_batch);
        }
    }
    return mf_exec_end_messages(x, e);
}

/* From the sums over all ranks of what each of them counted of its own rows. */
static void read_losses(mf_exec *x, mf_exec_result *out) {
    const mf_layout *l = &x->p->layout;
    out->grad_norm = sqrt(x->sums[0]);
    out->lm_loss = x->sums[1] / (double)(l->gbs * l->seq);
    out->mtp_loss = x->sums[2];
    out->z_loss = x->sums[3] / (double)(l->gbs * l->seq);
    out->aux_loss = 0.0;
    for (int i = 0; i < x->p->assignment.positions; i++) {
        x->aux_of_position[i] /= aux_scopes(l);
        out->aux_loss += x->aux_of_position[i];
    }
    out->aux_of_position = x->aux_of_position;
}

mf_status mf_exec_gradients(mf_exec *x, const mf_exec_batch *batch, mf_exec_result *out,
                            mf_err *e) {
    *out = (mf_exec_result){0};
    const int64_t total[2] = {x->params.dense, x->params.expert};
    for (int h = 0; h < 2; h++) {
        int64_t count = mf_exec_shards_gradients(x, h) ? x->owned_count[h] : total[h];
        memset(x->gradients[h], 0, (size_t)count * sizeof(float));
        x->gathers[h] = 0;
    }
    memset(x->aux_of_position, 0, (size_t)x->p->assignment.positions * sizeof *x->aux_of_position);
    memset(x->loads, 0,
           (size_t)(x->p->assignment.positions * x->p->model.experts) * sizeof *x->loads);
    x->loss_sum = x->z_sum = 0.0;
    memset(x->mtp_sum, 0, sizeof x->mtp_sum);
    x->ops = 0;
    mf_status status = run_schedule(x, batch, e);
    if (status == MF_OK) {
        status = mf_exec_once_gradients(x, e);
    }
    read_losses(x, out);
    out->ops = x->ops;
    return status;
}

mf_status mf_exec_step(mf_exec *x, const mf_exec_batch *batch, double lr, mf_exec_result *out,
                       mf_err *e) {
    mf_status status = mf_exec_gradients(x, batch, out, e);
    x->lr = lr;
    if (status == MF_OK) {
        status = mf_exec_once_update(x, e);
    }
    out->ops = x->ops;
    return status;
}

/* --- what callers look at
 * --------------------------------------------------------------------------- */

const mf_params *mf_exec_params(const mf_exec *x) {
    return &x->params;
}

float *mf_exec_correction_bias(mf_exec *x, int position) {
    return x->positions[position].correction;
}
