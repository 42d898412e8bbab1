/* program_run.c - a rank's state, its micro-batches, and the walk over its schedule. */
#include "executor/exec.h"

#include "executor/rope.h"
#include "kernels/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void mf_exec_options_init(mf_exec_options *o) {
    *o = (mf_exec_options){.beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .clip = 1.0,
                           .mtp_coef = 0.3};
}

/* --- what stands for the whole run --------------------------------------------------------------
 */

/* Positions of the tokens that CP rank c holds of one sample: chunks c and 2 CP - 1 - c. */
static int32_t zigzag(const mf_layout *l, int64_t c, int64_t i) {
    int64_t half = l->seq / (2 * l->cp);
    if (l->cp == 1) {
        return (int32_t)i;
    }
    return (int32_t)(i < half ? c * half + i : (2 * l->cp - 1 - c) * half + (i - half));
}

static void fill_positions(mf_exec *x) {
    const mf_layout *l = &x->p->layout;
    int64_t local = l->seq / l->cp;
    for (int64_t c = 0; c < l->cp; c++) {
        for (int64_t b = 0; b < l->mbs; b++) {
            for (int64_t i = 0; i < local; i++) {
                int32_t at = zigzag(l, c, i);
                x->ring_position[(c * l->mbs + b) * local + i] = at;
                x->full_position[(b * l->cp + c) * local + i] = at;
            }
        }
    }
    for (int64_t b = 0; b <= l->mbs; b++) {
        x->cu[b] = (int32_t)(b * local);
        x->full_cu[b] = (int32_t)(b * l->seq);
    }
    memcpy(x->positions_of_rows, x->ring_position + x->at.c * l->mbs * local,
           (size_t)(l->mbs * local) * sizeof(int32_t));
}

static int count_messages(const mf_exec *x) {
    const mf_layout *l = &x->p->layout;
    return l->pp * l->vpp > 1 ? (int)(2 * l->vpp * l->micro_batches) : 0;
}

/* Largest that an op, a position's gradients or the sums of pass O need. */
static size_t scratch_B(const mf_exec *x) {
    size_t most = (size_t)mf_exec_reduce_scratch(x) * sizeof(float);
    for (int i = 0; i < x->p->assignment.positions; i++) {
        size_t elements = 0;
        for (int k = x->params.first[i]; k < x->params.first[i + 1]; k++) {
            elements += (size_t)(x->params.list[k].rows * x->params.list[k].cols);
        }
        most = elements * sizeof(float) > most ? elements * sizeof(float) : most;
    }
    for (int i = 0; i < x->p->nblocks; i++) {
        const mf_block *b = x->p->blocks[i];
        for (int k = 0; k < b->nops; k++) {
            size_t need = x->backend->scratch_B(b, &b->ops[k], &x->p->layout, &x->p->model);
            most = need > most ? need : most;
        }
    }
    return most;
}

static mf_status allocate_inputs(mf_exec *x, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    const mf_model *m = &x->p->model;
    size_t rows = (size_t)(l->mbs * (l->seq / l->cp)), depths = (size_t)m->mtp_layers + 1;
    size_t rot = (size_t)m->head_dim, positions = (size_t)x->p->assignment.positions;
    size_t experts = (size_t)m->experts;
    x->tokens = calloc((size_t)(l->mbs * (l->seq + 1)), sizeof *x->tokens);
    x->rows = calloc(2 * rows * depths, sizeof *x->rows);
    x->positions_of_rows = calloc(rows, sizeof *x->positions_of_rows);
    x->cu = calloc((size_t)l->mbs + 1, sizeof *x->cu);
    x->full_cu = calloc((size_t)l->mbs + 1, sizeof *x->full_cu);
    x->ring_position = calloc(rows * (size_t)l->cp, sizeof *x->ring_position);
    x->full_position = calloc(rows * (size_t)l->cp, sizeof *x->full_position);
    x->rope = calloc((size_t)l->seq * rot, sizeof *x->rope);
    x->env.scratch_B = scratch_B(x);
    x->scratch = aligned_alloc(64, (x->env.scratch_B + 63) / 64 * 64 + 64);
    x->sums = calloc(MF_SUMS + positions, sizeof *x->sums);
    x->loads = calloc(positions * experts + 1, sizeof *x->loads);
    x->corrections = calloc(positions * experts + 1, sizeof *x->corrections);
    x->nmail = count_messages(x);
    x->mail = calloc((size_t)x->nmail + 1, sizeof *x->mail);
    bool ok = x->tokens && x->rows && x->positions_of_rows && x->cu && x->full_cu &&
              x->ring_position && x->full_position && x->rope && x->scratch && x->sums &&
              x->loads && x->corrections && x->mail;
    x->aux_of_position = x->sums != NULL ? x->sums + MF_SUMS : NULL;
    for (int i = 0; i < x->nmail && ok; i++) {
        x->mail[i].data = malloc((size_t)x->boundary_B + 1);
        ok = x->mail[i].data != NULL;
    }
    return ok ? MF_OK : mf_err_set(e, MF_NOMEM, "executor: out of memory");
}

static mf_status plan_memory(mf_exec *x, mf_err *e) {
    mf_memory *plan = NULL;
    mf_status status = mf_memory_plan(x->p, x->s, &plan, e);
    if (status == MF_OK) {
        x->planned_B = plan->stage[x->stage].peak_B;
        mf_memory_destroy(plan);
    }
    return status;
}

static void fill_env(mf_exec *x) {
    const mf_model *m = &x->p->model;
    const mf_layout *l = &x->p->layout;
    float *sine = x->rope + l->seq * (mf_exec_rope_width(m) / 2);
    mf_exec_rope_table(m, l->seq, x->rope, sine);
    x->env.model = m;
    x->env.layout = l;
    x->env.at = x->at;
    x->env.comm = x->comm;
    x->env.rope_cos = x->rope;
    x->env.rope_sin = sine;
    x->env.position = x->positions_of_rows;
    x->env.cu = x->cu;
    x->env.ring_position = x->ring_position;
    x->env.full_position = x->full_position;
    x->env.full_cu = x->full_cu;
    x->env.scratch = x->scratch;
    for (int i = 0; i < x->p->assignment.positions; i++) {
        char name[128];
        position_bind *q = &x->positions[i];
        if (q->block == NULL || q->block->params.expert == 0) {
            continue;
        }
        q->load = x->loads + i * m->experts;
        if (mf_param_correction_bias(x->p, i, name, sizeof name)) {
            q->correction = x->corrections + i * m->experts;
        }
    }
}

mf_status mf_exec_create(const mf_program *program, const mf_schedule *schedule, mf_comm *comm,
                         const mf_exec_backend *backend, const mf_exec_options *options,
                         mf_exec **out, mf_err *e) {
    *out = NULL;
    mf_exec *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    x->p = program;
    x->s = schedule;
    x->comm = comm;
    x->backend = backend;
    x->o = *options;
    x->at = mf_layout_coords(&program->layout, mf_comm_rank(comm));
    x->stage = x->at.p;
    mf_status status = mf_exec_bind(x, e);
    if (status == MF_OK) {
        status = mf_exec_reduce_init(x, e);
    }
    if (status == MF_OK) {
        status = allocate_inputs(x, e);
    }
    if (status == MF_OK) {
        status = plan_memory(x, e);
    }
    if (status != MF_OK) {
        mf_exec_destroy(x);
        return status;
    }
    fill_positions(x);
    fill_env(x);
    *out = x;
    return MF_OK;
}

void mf_exec_destroy(mf_exec *x) {
    if (x == NULL) {
        return;
    }
    mf_exec_unbind(x);
    mf_exec_reduce_clear(x);
    for (int i = 0; x->mail != NULL && i < x->nmail; i++) {
        free(x->mail[i].data);
    }
    free(x->mail);
    free(x->tokens);
    free(x->rows);
    free(x->positions_of_rows);
    free(x->cu);
    free(x->full_cu);
    free(x->ring_position);
    free(x->full_position);
    free(x->rope);
    free(x->scratch);
    free(x->sums);
    free(x->loads);
    free(x->corrections);
    free(x);
}

mf_status mf_exec_load(mf_exec *x, const mf_safetensors *from, mf_err *e) {
    mf_status status =
        mf_params_load(&x->params, x->p, &x->at, from, x->weights[0], x->weights[1], e);
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        char name[128];
        if (x->positions[i].correction == NULL ||
            !mf_param_correction_bias(x->p, i, name, sizeof name)) {
            continue;
        }
        const mf_st_tensor *t = mf_safetensors_find(from, name);
        status = t == NULL ? mf_err_set(e, MF_INPUT, "the checkpoint holds no tensor \"%s\"", name)
                           : mf_st_read(t, 0, x->p->model.experts, 0, 1, x->positions[i].correction,
                                        1, e);
    }
    return status;
}

/* --- batches
 * -------------------------------------------------------------------------------------- */

/* Tokens and labels of a micro-batch's rows, for the model itself and each MTP depth: depth d reads
 * the token d places further on, and predicts the one after it. Past the sample's end nothing is
 * known: token 0, label ignored. */
static mf_status fetch(mf_exec *x, const mf_exec_batch *batch, int micro_batch, mf_err *e) {
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
            int32_t *token = x->rows + 2 * depth * rows, *label = token + rows;
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

static void enter_position(mf_exec *x, int position) {
    const mf_layout *l = &x->p->layout;
    const mf_model *m = &x->p->model;
    const position_bind *q = &x->positions[position];
    int64_t rows = l->mbs * (l->seq / l->cp);
    bool mtp = mf_position_kind_of(m, position) == MF_POS_MTP;
    int64_t depth = mtp ? mf_position_index(m, position) + 1 : 0;
    double labels = (double)(l->gbs * (l->seq - depth));
    x->env.token = x->rows + 2 * depth * rows;
    x->env.label = x->env.token + rows;
    x->env.loss_scale = (float)((mtp ? x->o.mtp_coef / (double)m->mtp_layers : 1.0) / labels);
    x->env.loss_sum = mtp ? &x->mtp_sum : &x->loss_sum;
    x->env.aux_sum = &x->aux_of_position[position];
    x->env.aux_scale = (float)(x->o.aux_coef / aux_scopes(l));
    x->env.z_scale = (float)(x->o.z_coef / (double)(l->gbs * l->seq));
    x->env.z_sum = &x->z_sum;
    x->env.force_balance = x->o.force_balance;
    x->env.load = q->load;
    x->env.correction_bias = q->correction;
}

/* --- messages between virtual stages
 * --------------------------------------------------------------- */

static mailbox *free_mailbox(mf_exec *x) {
    for (int i = 0; i < x->nmail; i++) {
        if (!x->mail[i].full) {
            return &x->mail[i];
        }
    }
    return NULL;
}

static int64_t rank_of_stage(const mf_exec *x, int64_t stage) {
    return mf_layout_rank_dense(&x->p->layout, x->at.t, x->at.c, x->at.d, stage);
}

/* To virtual stage `to`; the buffer is free again when this returns. */
static mf_status post(mf_exec *x, int64_t to, int direction, int micro_batch, const void *data,
                      mf_err *e) {
    mailbox *m = free_mailbox(x);
    if (m == NULL) {
        return mf_err_set(e, MF_INTERNAL, "no mailbox is free");
    }
    *m = (mailbox){.full = true,
                   .vstage = (int)to,
                   .micro_batch = micro_batch,
                   .direction = direction,
                   .data = m->data};
    memcpy(m->data, data, (size_t)x->boundary_B);
    int64_t stage = mf_layout_stage_of(&x->p->layout, to);
    if (stage == x->stage) {
        return MF_OK;
    }
    m->vstage = -1; /* under way: free when the step ends */
    int tag = 2 * (int)(to * x->s->micro_batches + micro_batch) + direction;
    mf_exec_ran(x, direction == 0 ? &x->p->send_forward : &x->p->send_backward);
    return mf_comm_send(x->comm, rank_of_stage(x, stage), tag, m->data, (size_t)x->boundary_B, e);
}

static mf_status collect(mf_exec *x, int64_t at, int64_t from, int direction, int micro_batch,
                         void *data, mf_err *e) {
    int64_t stage = mf_layout_stage_of(&x->p->layout, from);
    if (stage != x->stage) {
        int tag = 2 * (int)(at * x->s->micro_batches + micro_batch) + direction;
        return mf_comm_receive(x->comm, rank_of_stage(x, stage), tag, data, (size_t)x->boundary_B,
                               e);
    }
    for (int i = 0; i < x->nmail; i++) {
        mailbox *m = &x->mail[i];
        if (m->full && m->vstage == at && m->micro_batch == micro_batch &&
            m->direction == direction) {
            memcpy(data, m->data, (size_t)x->boundary_B);
            m->full = false;
            return MF_OK;
        }
    }
    return mf_err_set(e, MF_INTERNAL, "virtual stage %lld has no input for micro-batch %d",
                      (long long)at, micro_batch);
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

static mf_status run_ops(mf_exec *x, int position, int64_t chunk, int micro_batch, int first,
                         int end, const boundary_at *at, mf_err *e) {
    const mf_block *b = x->positions[position].block;
    mf_exec_op op;
    enter_position(x, position);
    for (int i = first; i < end; i++) {
        mf_exec_bind_op(x, position, chunk, micro_batch, i, at, &op);
        if (x->o.before_op != NULL) {
            x->o.before_op(x->o.user, &op);
        }
        mf_status status = x->backend->run[b->ops[i].kind](&op, e);
        if (status != MF_OK) {
            return mf_err_prefix(e, "position %d (%s), op %d %s", position, b->label, i,
                                 b->ops[i].name);
        }
        x->ops++;
        if (x->o.after_op != NULL) {
            x->o.after_op(x->o.user, &op);
        }
    }
    return MF_OK;
}

static mf_status forward(mf_exec *x, int64_t chunk, int micro_batch, mf_err *e) {
    const mf_assignment *a = &x->p->assignment;
    int64_t v = mf_layout_vstage(&x->p->layout, x->stage, chunk);
    int first = a->first[v], end = a->first[v + 1];
    void *input = mf_exec_input(x, first, chunk, micro_batch, x->boundary[0]);
    mf_status status = MF_OK;
    if (v > 0) {
        status = collect(x, v, v - 1, 0, micro_batch, input, e);
    }
    for (int i = first; i < end && status == MF_OK; i++) {
        const position_bind *q = &x->positions[i];
        void *spare = input == x->boundary[0] ? x->boundary[1] : x->boundary[0];
        /* Where the workspace lies over the next block's part of the slot, its input waits. */
        bool direct = i + 1 < end && !x->overlaid;
        void *next = direct ? mf_exec_input(x, i + 1, chunk, micro_batch, spare) : spare;
        void *kept = mf_exec_input(x, i, chunk, micro_batch, input);
        if (kept != input) {
            memcpy(kept, input, (size_t)x->boundary_B);
            input = kept;
        }
        const boundary_at at = {.input = input, .output = next};
        status = run_ops(x, i, chunk, micro_batch, 0, q->block->nforward, &at, e);
        if (q->bind->output < 0 && q->bind->input >= 0) {
            memcpy(next, input, (size_t)x->boundary_B); /* what passes through (MTP) */
        }
        input = next;
    }
    if (status == MF_OK && v + 1 < a->vstages) {
        status = post(x, v + 1, 0, micro_batch, input, e);
    }
    return status;
}

static mf_status backward(mf_exec *x, int64_t chunk, int micro_batch, mf_err *e) {
    const mf_assignment *a = &x->p->assignment;
    int64_t v = mf_layout_vstage(&x->p->layout, x->stage, chunk);
    int first = a->first[v], end = a->first[v + 1];
    char *gradient = x->boundary[0], *other = x->boundary[1];
    mf_status status = MF_OK;
    if (v + 1 < a->vstages) {
        status = collect(x, v, v + 1, 1, micro_batch, gradient, e);
    }
    for (int i = end - 1; i >= first && status == MF_OK; i--) {
        const position_bind *q = &x->positions[i];
        const boundary_at at = {.input = mf_exec_input(x, i, chunk, micro_batch, NULL),
                                .output_gradient = gradient,
                                .input_gradient = other};
        status = run_ops(x, i, chunk, micro_batch, q->block->nforward, q->block->nops, &at, e);
        char *swap = gradient;
        gradient = other;
        other = swap;
    }
    if (status == MF_OK && v > 0) {
        status = post(x, v - 1, 1, micro_batch, gradient, e);
    }
    return status;
}

static mf_status run_schedule(mf_exec *x, const mf_exec_batch *batch, mf_err *e) {
    mf_status status = MF_OK;
    for (int64_t i = 0; i < x->s->count[x->stage] && status == MF_OK; i++) {
        const mf_event *ev = &x->s->events[x->stage][i];
        status = fetch(x, batch, ev->micro_batch, e);
        if (status == MF_OK) {
            status = ev->pass == MF_EVENT_F ? forward(x, ev->chunk, ev->micro_batch, e)
                                            : backward(x, ev->chunk, ev->micro_batch, e);
        }
        if (status != MF_OK) {
            return mf_err_prefix(e, "rank %lld, micro-batch %d", (long long)mf_comm_rank(x->comm),
                                 ev->micro_batch);
        }
    }
    status = mf_comm_wait_sends(x->comm, e);
    for (int i = 0; i < x->nmail; i++) {
        x->mail[i].full = false;
    }
    return status;
}

/* From the sums over all ranks of what each of them counted of its own rows. */
static void read_losses(mf_exec *x, mf_exec_result *out) {
    const mf_layout *l = &x->p->layout;
    double mtp_labels = 0.0;
    for (int64_t d = 1; d <= x->p->model.mtp_layers; d++) {
        mtp_labels += (double)(l->gbs * (l->seq - d));
    }
    out->grad_norm = sqrt(x->sums[0]);
    out->lm_loss = x->sums[1] / (double)(l->gbs * l->seq);
    out->mtp_loss = mtp_labels > 0 ? x->sums[2] / mtp_labels : 0.0;
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
        memset(x->gradients[h], 0, (size_t)total[h] * sizeof(float));
    }
    memset(x->aux_of_position, 0, (size_t)x->p->assignment.positions * sizeof *x->aux_of_position);
    memset(x->loads, 0,
           (size_t)(x->p->assignment.positions * x->p->model.experts) * sizeof *x->loads);
    x->loss_sum = x->mtp_sum = x->z_sum = 0.0;
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

float *mf_exec_param(mf_exec *x, int i) {
    const mf_param *q = &x->params.list[i];
    return x->weights[q->expert] + q->offset;
}

float *mf_exec_gradient(mf_exec *x, int i) {
    const mf_param *q = &x->params.list[i];
    return x->gradients[q->expert] + q->offset;
}

void mf_exec_owned(const mf_exec *x, int i, int64_t *first, int64_t *count) {
    const mf_param *q = &x->params.list[i];
    int64_t begin = x->owned_first[q->expert], end = begin + x->owned_count[q->expert];
    int64_t a = q->offset > begin ? q->offset : begin;
    int64_t b = q->offset + q->rows * q->cols < end ? q->offset + q->rows * q->cols : end;
    *first = a - q->offset;
    *count = b > a ? b - a : 0;
}

float *mf_exec_correction_bias(mf_exec *x, int position) {
    return x->positions[position].correction;
}

int64_t mf_exec_arena_B(const mf_exec *x) {
    return x->arena_B;
}

double mf_exec_planned_B(const mf_exec *x) {
    return x->planned_B;
}
