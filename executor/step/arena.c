/* arena.c - the one static arena of a rank, sized by the memory plan, and addresses in it. */
#include "executor/step/exec.h"

#include "core/memory/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t ranks_of(const mf_exec *x, int side) {
    const mf_layout *l = &x->p->layout;
    return side == 0 ? l->dp * l->cp : l->edp;
}

bool mf_exec_shards_weights(const mf_exec *x, int side) {
    return mf_exec_zero(x, side) >= 3 && ranks_of(x, side) > 1;
}

bool mf_exec_shards_gradients(const mf_exec *x, int side) {
    return mf_exec_zero(x, side) >= 2 && ranks_of(x, side) > 1;
}

/* --- sizes --------------------------------------------------------------------------------------
 */

static void find_owned(mf_exec *x) {
    for (int h = 0; h < 2; h++) {
        const int64_t ranks = mf_exec_zero(x, h) >= 1 ? ranks_of(x, h) : 1;
        const int64_t place = ranks > 1 ? mf_comm_group_rank(x->comm, mf_exec_zero_group(h)) : 0;
        x->owned_count[h] = 0;
        for (int i = 0; i < x->p->assignment.positions; i++) {
            int64_t begin, end, first, past;
            if (mf_exec_range(x, i, h, &begin, &end)) {
                mf_exec_part(end - begin, ranks, place, &first, &past);
                x->positions[i].owned[h] =
                    (owned_part){begin + first, begin + past, x->owned_count[h]};
                x->owned_count[h] += past - first;
            }
        }
    }
}

/* Buffers that are there once: boundary tensors and messages, gathered weights, the dispatcher's
 * but for its window, which is no part of the arena. */
static void find_buffers(mf_exec *x, int64_t *exchange_B) {
    const mf_layout *l = &x->p->layout;
    const bool merged = mf_layout_merges(l);
    *exchange_B = x->gathered_B = 0;
    x->boundary_B = mf_program_boundary_B(x->p, x->stage);
    for (int i = 0; i < x->p->assignment.positions; i++) {
        const mf_block *b = x->positions[i].block;
        if (b != NULL) {
            *exchange_B = b->comm_B[merged] > *exchange_B ? b->comm_B[merged] : *exchange_B;
            x->gathered_B = b->gather_B > x->gathered_B ? b->gather_B : x->gathered_B;
        }
    }
    *exchange_B -= x->window.group != NULL ? mf_align_B(x->window.memory.window_B) : 0;
    x->sending = mf_schedule_sending(l);
    x->waiting = mf_schedule_messages(l) - 2 * x->sending;
}

/* --- the arena ---------------------------------------------------------------------------------
 */

static char *take(char **at, int64_t size_B) {
    char *here = *at;
    *at += size_B;
    return here;
}

/* Where the device's memory is the host's, host memory follows in one allocation. Optimizer states
 * of which a part is on the host are one run of elements; their addresses run on where the memory
 * does not (optimizer_offload.c). */
static mf_status allocate(mf_exec *x, int64_t size_B, int64_t padding, mf_err *e) {
    bool together = mf_exec_device(x)->on_host;
    int64_t host_B = together ? x->host_B : 0;
    void *arena = NULL, *host = NULL;
    x->arena_B = size_B;
    x->mail = calloc((size_t)(2 * x->sending + x->waiting) + 1, sizeof *x->mail);
    if (x->mail == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    mf_status status = mf_exec_device(x)->allocate(
        x->device, mf_align_B(size_B + padding + host_B) + 2 * MF_ALIGN_B, &arena, e);
    x->arena = arena;
    if (status == MF_OK && !together && x->host_B > 0) {
        status = mf_exec_device(x)->allocate_host(x->device, x->host_B + MF_ALIGN_B, &host, e);
        x->pinned = host;
    }
    return status == MF_OK
               ? MF_OK
               : mf_err_prefix(e, "executor: %lld bytes for the arena, %lld of host memory",
                               (long long)size_B, (long long)x->host_B);
}

/* Inputs and scratch at their places. */
static void lay_inputs(mf_exec *x, char **at) {
    const mf_inputs *in = &x->in;
    char *base = x->inputs = take(at, in->size_B);
    x->rows[0] = (int32_t *)(void *)(base + in->rows[0]);
    x->rows[1] = (int32_t *)(void *)(base + in->rows[1]);
    x->sums = (double *)(void *)(base + in->sums);
    x->update = (mf_kernel_update_state *)(void *)(base + in->update);
    x->loads = (float *)(void *)(base + in->loads);
    x->corrections = (float *)(void *)(base + in->corrections);
    x->scratch = take(at, x->scratch_plan.size_B);
}

mf_status mf_exec_lay_out(mf_exec *x, mf_err *e) {
    const int64_t total[2] = {x->params.dense, x->params.expert};
    const int64_t *shard = x->owned_count;
    int64_t weights[2], gradients[2], exchange_B, state = 0, owned = 0, on_host = 0;
    bool merged = mf_layout_merges(&x->p->layout);
    int sides = merged ? 2 : 1;
    x->weight_type = x->p->layout.precision == MF_PREC_FP32 ? MF_KERNEL_F32 : MF_KERNEL_BF16;
    x->moment_type = x->p->layout.moments_bf16 ? MF_KERNEL_BF16 : MF_KERNEL_F32;
    int64_t weight_B = mf_exec_weight_B(x), moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type);
    int64_t master_B = weight_B < 4 ? 4 : 0, states_B = master_B + 2 * moment_B;
    find_owned(x);
    find_buffers(x, &exchange_B);
    mf_memory_inputs(&x->p->model, &x->p->layout, &x->in);
    mf_step_end end;
    mf_program_step_end(x->p, x->stage, &end);
    mf_memory_scratch(x->p, x->stage, &end, &x->scratch_plan);
    mf_status status = mf_memory_place(x->p, x->s, x->stage, &x->places, e);
    if (status != MF_OK) {
        return status;
    }
    for (int h = 0; h < 2; h++) {
        weights[h] = mf_exec_zero(x, h) >= 3 ? shard[h] : total[h];
        gradients[h] = mf_exec_zero(x, h) >= 2 ? shard[h] : total[h];
        state += weight_B * weights[h] + 4 * gradients[h];
        owned += shard[h];
        on_host += (int64_t)floor((double)shard[h] * x->p->layout.offload_optimizer);
    }
    int64_t padding = mf_align_B(state) - state;
    int64_t buffers = 2 * sides + 2 * x->sending + x->waiting;
    x->host_B = x->places->host.size_B + states_B * on_host;
    status = allocate(x,
                      state + x->places->device.size_B + x->in.size_B + x->scratch_plan.size_B +
                          buffers * x->boundary_B + 2 * sides * x->gathered_B + exchange_B +
                          states_B * (owned - on_host),
                      padding, e);
    if (status != MF_OK) {
        return status;
    }
    char *at = x->arena;
    for (int h = 0; h < 2; h++) {
        x->gradients[h] = (float *)(void *)take(&at, 4 * gradients[h]);
    }
    for (int h = 0; h < 2; h++) { /* the narrow ones last: the rest stays aligned */
        x->weights[h] = take(&at, weight_B * weights[h]);
    }
    at = x->arena + mf_align_B(at - x->arena);
    x->area = take(&at, x->places->device.size_B);
    x->gathered = take(&at, 2 * sides * x->gathered_B);
    x->exchange = exchange_B > 0 ? take(&at, exchange_B) : NULL;
    x->window.kept = x->exchange;
    for (int i = 0; i < 2 * sides; i++) {
        x->boundary[i] = take(&at, x->boundary_B);
    }
    for (int i = 0; i < 2 * x->sending + x->waiting; i++) {
        x->mail[i].data = take(&at, x->boundary_B);
    }
    lay_inputs(x, &at);
    x->host_states = at + states_B * (owned - on_host);
    for (int h = 0; h < 2; h++) {
        char *own = master_B == 0 ? x->weights[h] : take(&at, master_B * shard[h]);
        x->master[h] = (float *)(void *)own;
        x->master_in_whole[h] = master_B == 0 && !mf_exec_shards_weights(x, h);
    }
    for (int h = 0; h < 2; h++) {
        x->moments[0][h] = take(&at, moment_B * shard[h]);
        x->moments[1][h] = take(&at, moment_B * shard[h]);
    }
    x->host_memory = x->pinned != NULL ? x->pinned : x->host_states;
    x->host = x->pinned != NULL ? x->pinned + mf_align_B(states_B * on_host)
                                : x->arena + mf_align_B(at - x->arena);
    return MF_OK;
}

/* --- addresses ---------------------------------------------------------------------------------
 */

static void take_place(mf_exec *x, int64_t at, int64_t size_B) {
    if (at >= 0 && size_B > 0 && at + size_B > x->high_B) {
        x->high_B = at + size_B;
    }
}

static void take_runs(mf_exec *x, const mf_runs *runs, const int64_t *at) {
    for (int k = 0; k < runs->count; k++) {
        take_place(x, at[k], runs->size[k]);
    }
}

/* Raises high_B to the end of the highest place that a block takes in the area. */
static void take_places(mf_exec *x, unsigned passes, const block_at *at) {
    const position_bind *q = &x->positions[at->position];
    const mf_block_runs *runs = &q->block->runs;
    const mf_place_instance *i = at->instance;
    const mf_place_work *w = at->work;
    mf_run_kind work = passes == MF_PASS_F   ? MF_RUN_WORK_F
                       : passes == MF_PASS_W ? MF_RUN_WORK_W
                                             : MF_RUN_WORK_B;
    take_runs(x, &runs->of[work], w->local);
    take_place(x, w->gradients, (int64_t)mf_memory_unreduced_B(&x->p->layout, q->block));
    take_place(x, w->leaving, q->block->offload_B);
    take_place(x, w->coming, q->block->offload_B);
    if (work == MF_RUN_WORK_F) {
        take_runs(x, &runs->of[MF_RUN_SAVED], i->saved);
        take_runs(x, &runs->of[MF_RUN_KEPT], i->kept);
    } else if (work == MF_RUN_WORK_B) {
        take_runs(x, &runs->of[MF_RUN_MADE], i->made);
        take_place(x, i->arrived, q->block->held_B - q->block->kept_B - q->block->made_B);
    }
}

void mf_exec_place(mf_exec *x, int64_t event, int step, int side, int64_t chunk, int position,
                   int micro_batch, unsigned passes, block_at *out) {
    const mf_places *p = x->places;
    int64_t v = mf_layout_vstage(&x->p->layout, x->stage, chunk);
    int block = p->first[chunk] + position - x->p->assignment.first[v];
    const mf_place_instance *i = &p->instance[block * p->micro_batches + micro_batch];
    const mf_place_work *w = &p->work[p->event[event] + 2 * step + side];
    const int64_t staging = w->leaving >= 0 ? w->leaving : w->coming;
    *out = (block_at){.position = position, .micro_batch = micro_batch, .side = side};
    out->instance = i;
    out->work = w;
    out->arrived = i->arrived >= 0 ? x->area + i->arrived : NULL;
    out->host = i->host >= 0 ? x->host + i->host : NULL;
    out->gradients = w->gradients >= 0 ? x->area + w->gradients : NULL;
    out->staging = x->streams && staging >= 0 ? x->area + staging : NULL;
    take_places(x, passes, out);
}

static float *full_gradient(const mf_exec *x, const block_at *at, int16_t weight) {
    const position_bind *q = &x->positions[at->position];
    bool expert = q->block->tensors[weight].part == MF_PART_EXPERT;
    int64_t dense_B =
        mf_exec_shards_gradients(x, 0) ? mf_align_B(4 * (q->own[0] + q->block->shared)) : 0;
    char *from = at->gradients + (expert ? dense_B : 0);
    return (float *)(void *)from + q->inner[weight];
}

static char *gathered_weight(const mf_exec *x, const block_at *at, int16_t weight) {
    const position_bind *q = &x->positions[at->position];
    bool expert = q->block->tensors[weight].part == MF_PART_EXPERT;
    int64_t weight_B = mf_exec_weight_B(x);
    int64_t dense_B =
        mf_exec_shards_weights(x, 0) ? mf_align_B(weight_B * (q->own[0] + q->block->shared)) : 0;
    return at->gathered + (expert ? dense_B : 0) + weight_B * q->inner[weight];
}

static void *weight_address(const mf_exec *x, const block_at *at, int16_t t) {
    int i = x->positions[at->position].param[t];
    if (i < 0) {
        return NULL;
    }
    const mf_param *q = &x->params.list[i];
    return mf_exec_shards_weights(x, q->expert) ? gathered_weight(x, at, t)
                                                : mf_exec_weight_at(x, q->expert, q->offset);
}

static void *in_run(const mf_exec *x, const block_at *at, const mf_run_place *place) {
    const int64_t *run = place->kind == MF_RUN_SAVED  ? at->instance->saved
                         : place->kind == MF_RUN_KEPT ? at->instance->kept
                         : place->kind == MF_RUN_MADE ? at->instance->made
                                                      : at->work->local;
    return x->area + run[place->run] + place->at;
}

static void *gradient_address(const mf_exec *x, const block_at *at, int16_t t, uint8_t pass) {
    const position_bind *b = &x->positions[at->position];
    int16_t w = b->bind->weight_of[t];
    int i = b->param[w];
    if (i < 0) {
        return NULL;
    }
    const mf_param *q = &x->params.list[i];
    if (b->block->tensors[t].for_w && pass == MF_PASS_B) {
        return in_run(x, at, &b->block->tensors[t].place);
    }
    return mf_exec_shards_gradients(x, q->expert) ? full_gradient(x, at, w)
                                                  : x->gradients[q->expert] + q->offset;
}

void *mf_exec_address(const mf_exec *x, const block_at *at, int16_t t, uint8_t pass) {
    const position_bind *q = &x->positions[at->position];
    const mf_tensor *b = &q->block->tensors[t];
    switch ((mf_tensor_class)b->class) {
    case MF_TENSOR_WEIGHT:
        return weight_address(x, at, t);
    case MF_TENSOR_GRADIENT:
        return gradient_address(x, at, t, pass);
    case MF_TENSOR_BOUNDARY:
        return t == q->bind->input             ? at->input
               : t == q->bind->output          ? at->output
               : t == q->bind->output_gradient ? at->output_gradient
                                               : at->input_gradient;
    case MF_TENSOR_SAVED:
    case MF_TENSOR_HELD:
    case MF_TENSOR_LOCAL:
        break;
    }
    return in_run(x, at, &b->place);
}

static mf_exec_tensor operand(const mf_exec *x, const block_at *at, int16_t t, uint8_t pass) {
    const mf_tensor *b = &x->positions[at->position].block->tensors[t];
    mf_exec_tensor out = {.data = mf_exec_address(x, at, t, pass),
                          .rows = b->rows,
                          .cols = b->cols,
                          .dtype = b->element_B < 4.0 ? MF_KERNEL_BF16 : MF_KERNEL_F32};
    out.rows_max = (int64_t)((double)b->bytes / ((double)b->cols * b->element_B));
    return out;
}

/* Of a gradient: its parameter; NULL: there is none. */
static const mf_param *param_of(const mf_exec *x, int position, int16_t t) {
    const position_bind *q = &x->positions[position];
    const int weight = q->bind->weight_of[t], i = weight >= 0 ? q->param[weight] : -1;
    return i >= 0 ? &x->params.list[i] : NULL;
}

bool mf_exec_overwrites(const mf_exec *x, int position, int16_t t) {
    const mf_param *p = param_of(x, position, t);
    return p != NULL && p->overwritten;
}

/* Is a gradient new with each block that makes it, or the first of a step? */
static bool begins(const mf_exec *x, int position, int16_t t) {
    const mf_param *p = param_of(x, position, t);
    return p != NULL && p->overwritten &&
           (mf_exec_shards_gradients(x, p->expert) || !x->begun[position]);
}

void mf_exec_bind_op(const mf_exec *x, const block_at *at, int op_index, mf_exec_op *out) {
    const position_bind *q = &x->positions[at->position];
    const mf_op *op = &q->block->ops[op_index];
    const op_bind *bind = &q->bind->op[op_index];
    out->op = op;
    out->forward = op->forward >= 0 ? &q->block->ops[op->forward] : op;
    out->block = q->block;
    out->position = at->position;
    out->side = at->side;
    out->ring_step = bind->ring_step;
    out->nin = bind->nin;
    out->forward_nin = bind->forward_nin;
    out->env = &x->env;
    out->queue = mf_exec_queue_of(x, at, op->stream);
    out->overwrites =
        mf_exec_op_overwrites(op) && bind->first[0] && begins(x, at->position, op->out[0]);
    out->host = at->host != NULL ? at->host + q->bind->host_at[op_index] : NULL;
    for (int k = 0; k < bind->nin; k++) {
        out->in[k] = operand(x, at, op->in[k], op->pass);
    }
    for (int k = 0; k < op->nout; k++) {
        out->out[k] = operand(x, at, op->out[k], op->pass);
        out->sum[k] = (mf_exec_tensor){0};
        if (bind->sum_of[k] >= 0) {
            out->sum[k] = operand(x, at, op->in[bind->sum_of[k]], op->pass);
        } else if (bind->adds[k]) {
            out->sum[k] = out->out[k];
        }
        out->out_of[k] = bind->out_of[k];
        out->first[k] = bind->first[k];
    }
    if (at->staging != NULL && mf_exec_copied_beside(at, op)) {
        mf_exec_tensor *copied = mf_exec_is_fetch(op) ? &out->out[0] : &out->in[0];
        copied->data = at->staging + q->bind->host_at[op_index];
    }
    for (int k = 0; k < out->forward->nin; k++) {
        int16_t t = out->forward->in[k];
        bool weight = q->block->tensors[t].class == MF_TENSOR_WEIGHT;
        out->weight[k] = weight ? operand(x, at, t, op->pass) : (mf_exec_tensor){0};
    }
}

/* --- what this rank owns ------------------------------------------------------------------------
 */

void mf_exec_owned(const mf_exec *x, int i, int64_t *first, int64_t *count) {
    const mf_param *q = &x->params.list[i];
    const owned_part *p = &x->positions[q->position].owned[q->expert];
    int64_t a = q->offset > p->begin ? q->offset : p->begin;
    int64_t b = q->offset + q->rows * q->cols < p->end ? q->offset + q->rows * q->cols : p->end;
    *first = a - q->offset;
    *count = b > a ? b - a : 0;
}

/* Element `first` of parameter i, which this rank owns: in its half, or among all that it owns. */
static int64_t own_at(const mf_exec *x, int i, int64_t first, bool in_half) {
    const mf_param *q = &x->params.list[i];
    const int64_t element = q->offset + first;
    return in_half ? element : mf_exec_in_shard(x, q->position, q->expert, element);
}

float *mf_exec_own_weight(const mf_exec *x, int i, int64_t *first, int64_t *count) {
    const mf_param *q = &x->params.list[i];
    mf_exec_owned(x, i, first, count);
    return x->master[q->expert] +
           (*count > 0 ? own_at(x, i, *first, x->master_in_whole[q->expert]) : 0);
}

float *mf_exec_own_gradient(const mf_exec *x, int i, int64_t *first, int64_t *count) {
    const mf_param *q = &x->params.list[i];
    mf_exec_owned(x, i, first, count);
    return x->gradients[q->expert] +
           (*count > 0 ? own_at(x, i, *first, !mf_exec_shards_gradients(x, q->expert)) : 0);
}

int64_t mf_exec_weight_B(const mf_exec *x) {
    return (int64_t)mf_kernel_dtype_B(x->weight_type);
}

void *mf_exec_weight_at(const mf_exec *x, int side, int64_t element) {
    return x->weights[side] + mf_exec_weight_B(x) * element;
}

/* What layers read of the owned elements of a parameter. */
void *mf_exec_own_copy(const mf_exec *x, int i) {
    const mf_param *q = &x->params.list[i];
    int64_t first, count;
    mf_exec_owned(x, i, &first, &count);
    return mf_exec_weight_at(x, q->expert,
                             own_at(x, i, first, !mf_exec_shards_weights(x, q->expert)));
}

float *mf_exec_param(const mf_exec *x, int i) {
    const mf_param *q = &x->params.list[i];
    bool whole = x->weight_type == MF_KERNEL_F32 && !mf_exec_shards_weights(x, q->expert);
    return whole ? mf_exec_weight_at(x, q->expert, q->offset) : NULL;
}

/* A float that layers read goes through scratch to be rounded. */
static mf_status set_rounded(mf_exec *x, void *to, const float *values, int64_t count, mf_err *e) {
    int64_t most = (int64_t)(x->env.scratch_B / sizeof(float));
    mf_status status = MF_OK;
    for (int64_t at = 0; at < count && status == MF_OK; at += most) {
        int64_t some = count - at < most ? count - at : most;
        const mf_kernel_cast round = {.src_dtype = MF_KERNEL_F32,
                                      .dst_dtype = x->weight_type,
                                      .count = some,
                                      .alpha = 1.0f,
                                      .src = x->scratch,
                                      .dst = (char *)to + at * mf_exec_weight_B(x)};
        status = mf_exec_copy(x, x->scratch, values + at, (size_t)some * sizeof *values, e);
        status = status == MF_OK ? mf_exec_device(x)->cast(x->queue, &round, e) : status;
        status = status == MF_OK ? mf_exec_device(x)->wait(x->device, e) : status;
    }
    return status;
}

mf_status mf_exec_set_param(mf_exec *x, int i, const float *values, mf_err *e) {
    const mf_param *q = &x->params.list[i];
    int64_t first, count;
    float *master = mf_exec_own_weight(x, i, &first, &count);
    mf_status status = mf_exec_write_state(x, master, values + first, 4 * count, e);
    void *copy = mf_exec_own_copy(x, i);
    if (!mf_exec_shards_weights(x, q->expert)) {
        first = 0;
        count = q->rows * q->cols;
        copy = mf_exec_weight_at(x, q->expert, q->offset);
    }
    return status == MF_OK ? set_rounded(x, copy, values + first, count, e) : status;
}

float *mf_exec_gradient(mf_exec *x, int i) {
    const mf_param *q = &x->params.list[i];
    return mf_exec_shards_gradients(x, q->expert) ? NULL : x->gradients[q->expert] + q->offset;
}

int64_t mf_exec_high_B(const mf_exec *x) {
    return x->arena_B - x->places->device.size_B + x->high_B;
}

int64_t mf_exec_arena_B(const mf_exec *x) {
    return x->arena_B;
}

double mf_exec_planned_B(const mf_exec *x) {
    return x->planned_B;
}

int64_t mf_exec_host_B(const mf_exec *x) {
    return x->host_B;
}

double mf_exec_planned_host_B(const mf_exec *x) {
    return x->planned_host_B;
}
