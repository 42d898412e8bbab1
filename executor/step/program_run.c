/* program_run.c - a step: micro-batches, and the walk over the schedule block by block. */
#include "executor/step/exec.h"

#include <string.h>

/* --- batches
 * -------------------------------------------------------------------------------------- */

static mf_status fetch(mf_exec *x, int side, int micro_batch, mf_err *e) {
    const int64_t rows = mf_exec_batch_rows(x);
    return mf_exec_copy(x, x->rows[side], x->batch + micro_batch * rows,
                        (size_t)rows * sizeof *x->batch, e);
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
    /* Of MTP the mean over depths of the mean over their labels: what is trained. */
    x->env.loss_sum = &x->sums[mtp ? 2 : 1];
    x->env.loss_weight = mtp ? 1.0 / labels / (double)m->mtp_layers : 1.0;
    x->env.aux_sum = &x->sums[MF_STEP_SUMS + position];
    x->env.aux_scale = (float)(x->o.aux_coef / mf_exec_aux_scopes(x));
    x->env.z_scale = (float)(x->o.z_coef / (double)(l->gbs * l->seq));
    x->env.z_sum = &x->sums[3];
    x->env.force_balance = x->o.force_balance;
    x->env.forced = x->forced != NULL ? x->forced + position * (m->experts + 1) : NULL;
    x->env.load = q->load;
    x->env.correction_bias = q->correction;
}

static bool skipped(const mf_exec *x, const mf_op *op) {
    return x->o.skips != NULL && x->o.skips(x->o.user, op);
}

void mf_exec_begins(mf_exec *x, const mf_op *op) {
    if (x->o.before_op != NULL && !x->quiet) {
        const mf_exec_op one = {.op = op, .forward = op, .position = -1, .env = &x->env};
        x->o.before_op(x->o.user, &one);
    }
}

bool mf_exec_runs(mf_exec *x, const mf_op *op) {
    if (x->preparing) {
        return op->group == MF_GROUP_NONE;
    }
    mf_exec_begins(x, op);
    return !skipped(x, op);
}

void mf_exec_ran(mf_exec *x, const mf_op *op) {
    x->ops++;
    if (x->o.after_op != NULL && !x->quiet) {
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
    char *now, *spare; /* boundary tensor that comes in, and space for the one that goes out */
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

/* Runs one op; its communication uses the stream of the op's queue. */
static mf_status do_op(mf_exec *x, const block_at *at, const mf_exec_op *op, mf_err *e) {
    mf_comm_use_stream(x->wire, op->queue->stream);
    mf_status status = mf_exec_is_zero_op(op->op)
                           ? mf_exec_zero_op(x, at, op->op, op->queue, e)
                           : mf_exec_op_function((mf_op_kind)op->op->kind)(op, e);
    mf_comm_use_stream(x->wire, x->queue->stream);
    return status;
}

/* On a queue that is not that of its stream, if `q` is not NULL. */
static mf_status run_op_on(mf_exec *x, const block_at *at, int i, mf_queue *q, mf_err *e) {
    const mf_block *b = x->positions[at->position].block;
    const mf_op *kind = &b->ops[i];
    mf_exec_op op;
    mf_exec_bind_op(x, at, i, &op);
    op.queue = q != NULL ? q : op.queue;
    op.beside = op.queue != x->queue;
    mf_exec_use_scratch(x, (mf_stream)kind->stream);
    if (x->o.before_op != NULL && !x->quiet) {
        x->o.before_op(x->o.user, &op);
    }
    bool left_out = x->preparing ? kind->group != MF_GROUP_NONE : skipped(x, kind);
    mf_status status = mf_exec_work_awaits(x, at, i, op.queue, e);
    status = status == MF_OK ? mf_exec_before_op(x, at, i, op.queue, e) : status;
    status = status == MF_OK ? mf_exec_work_on(x, at, i, op.queue, e) : status;
    status = status == MF_OK && !left_out ? do_op(x, at, &op, e) : status;
    status = status == MF_OK ? mf_exec_after_op(x, at, i, op.queue, e) : status;
    if (status != MF_OK) {
        return mf_err_prefix(e, "position %d (%s), op %d %s", at->position, b->label, i,
                             kind->name);
    }
    x->ops++;
    if (x->o.after_op != NULL && !x->quiet) {
        x->o.after_op(x->o.user, &op);
    }
    mf_exec_use_scratch(x, MF_STREAM_COMPUTE);
    return MF_OK;
}

static mf_status run_op(mf_exec *x, const block_at *at, int i, mf_err *e) {
    const mf_op *op = &x->positions[at->position].block->ops[i];
    bool done =
        (at->gathered_ahead && mf_exec_is_gather(op, op->pass)) || mf_exec_copied_beside(at, op);
    return done ? MF_OK : run_op_on(x, at, i, NULL, e);
}

static size_t size_of(const position_bind *q, int16_t t) {
    return (size_t)mf_align_B(q->block->tensors[t].bytes);
}

static int position_of(const pass_run *r, int k) {
    return is_forward(r) ? r->first + k : r->first + r->n - 1 - k;
}

/* Step k of a pass: the block, with its boundary tensors in place. */
static mf_status begin_block(mf_exec *x, pass_run *r, int k, block_at *out, mf_err *e) {
    int position = position_of(r, k);
    const position_bind *q = &x->positions[position];
    block_at at;
    mf_status status = mf_exec_beside_enter(x, position, e);
    mf_exec_place(x, r->event, k, r->side, r->chunk, position, r->micro_batch, r->passes, &at);
    int16_t in = q->bind->input;
    bool saved = in >= 0 && q->block->tensors[in].class == MF_TENSOR_SAVED;
    at.input = saved ? mf_exec_address(x, &at, in, MF_PASS_F) : is_forward(r) ? r->now : NULL;
    if (is_forward(r)) {
        at.output = r->spare;
        if (saved && status == MF_OK) {
            status = mf_exec_copy(x, at.input, r->now, size_of(q, in), e);
        }
    } else if ((r->passes & MF_PASS_B) != 0) {
        at.output_gradient = r->now;
        at.input_gradient = r->spare;
    } else {
        at.output_gradient = at.arrived; /* B left it for W */
    }
    at.gathered = x->gathered + (2 * r->side + x->gathers[r->side] % 2) * x->gathered_B;
    x->gathers[r->side] += q->block->gather_B > 0;
    if (!is_forward(r) && status == MF_OK) {
        status = mf_exec_zero_begin(x, &at, r->passes, e);
    }
    *out = at;
    return status;
}

static mf_status end_block(mf_exec *x, pass_run *r, const block_at *at, mf_err *e) {
    const position_bind *q = &x->positions[at->position];
    mf_status status = MF_OK;
    if (is_forward(r) && q->bind->output < 0 && q->bind->input >= 0) {
        /* what passes through (MTP) */
        status = mf_exec_copy(x, r->spare, at->input, size_of(q, q->bind->input), e);
    }
    if (r->passes == (MF_PASS_R | MF_PASS_B) && at->arrived != NULL && status == MF_OK) {
        status = mf_exec_copy(x, at->arrived, r->now, size_of(q, q->bind->output_gradient), e);
    }
    if ((r->passes & MF_PASS_W) != 0 && status == MF_OK) {
        x->begun[at->position] = true;
        status = mf_exec_beside_block(x, at->position, e);
    }
    if ((r->passes & (MF_PASS_F | MF_PASS_B)) != 0) {
        char *swap = r->now;
        r->now = r->spare;
        r->spare = swap;
    }
    return status;
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

static mf_status begin_pass(mf_exec *x, const pass_run *r, mf_err *e) {
    mf_status status = fetch(x, r->side, r->micro_batch, e);
    int64_t from = is_forward(r) ? r->vstage - 1 : r->vstage + 1;
    bool receives =
        (r->passes & (MF_PASS_F | MF_PASS_B)) != 0 && from >= 0 && from < x->p->assignment.vstages;
    return status == MF_OK && receives && !x->preparing
               ? mf_exec_collect(x, r->vstage, from, !is_forward(r), r->micro_batch, r->now, e)
               : status;
}

static mf_status end_pass(mf_exec *x, const pass_run *r, mf_err *e) {
    int64_t to = is_forward(r) ? r->vstage + 1 : r->vstage - 1;
    bool sends =
        (r->passes & (MF_PASS_F | MF_PASS_B)) != 0 && to >= 0 && to < x->p->assignment.vstages;
    return sends && !x->preparing
               ? mf_exec_post(x, r->vstage, to, !is_forward(r), r->micro_batch, r->now, e)
               : MF_OK;
}

/* What the next block has in host memory comes beside this one, which has its own first. */
static mf_status fetch_copies(mf_exec *x, const pass_run *r, int k, block_at *at, mf_err *e) {
    mf_status status = mf_exec_fetch_own(x, at, r->passes, run_op_on, e);
    block_at next;
    if (status != MF_OK || is_forward(r) || k + 1 == r->n || at->streams == NULL) {
        return status;
    }
    mf_exec_place(x, r->event, k + 1, r->side, r->chunk, position_of(r, k + 1), r->micro_batch,
                  r->passes, &next);
    return mf_exec_fetch_ahead(x, &next, run_op_on, e);
}

/* Block k's queues begin, and the next block's weights and activations come beside it. */
static mf_status fork_block(mf_exec *x, const pass_run *r, int k, block_at *at, mf_err *e) {
    mf_status status = mf_exec_fork(x, at, e);
    if (status == MF_OK && k + 1 < r->n) {
        status = mf_exec_gather_ahead(x, at, position_of(r, k + 1), r->passes, run_op_on, e);
    }
    return status == MF_OK ? fetch_copies(x, r, k, at, e) : status;
}

/* A block of either pass, or of both; block[i] < 0: not of pass i. */
static mf_status run_blocks(mf_exec *x, const pass_run *run, block_at *at, const int *block,
                            mf_err *e) {
    const bool paired = block[0] >= 0 && block[1] >= 0;
    mf_status status = MF_OK;
    for (int i = 0; i < 2 && status == MF_OK; i++) {
        if (block[i] >= 0) {
            mf_exec_enter_streams(x, run[i].passes, paired, &at[i]);
            status = mf_exec_take_gathered(x, &at[i], e);
            status = status == MF_OK ? mf_exec_take_copies(x, &at[i], e) : status;
        }
    }
    for (int i = 0; i < 2 && status == MF_OK; i++) {
        status = block[i] >= 0 ? fork_block(x, &run[i], block[i], &at[i], e) : MF_OK;
    }
    const int one = block[0] >= 0 ? 0 : 1;
    if (status == MF_OK) {
        status = paired ? run_pair(x, &run[0], &at[0], &run[1], &at[1], e)
                        : run_block(x, &run[one], &at[one], e);
    }
    status = status == MF_OK ? mf_exec_work_end(x, e) : status;
    for (int i = 0; i < 2 && status == MF_OK; i++) {
        bool ends = block[i] == run[i].n - 1;
        status = block[i] >= 0 ? mf_exec_join(x, &at[i], ends, e) : MF_OK;
    }
    return status == MF_OK && block[0] >= 0 && is_forward(&run[0])
               ? mf_exec_start_offload(x, &at[0], run_op_on, e)
               : status;
}

/* One or two passes, block by block. */
static mf_status run_passes(mf_exec *x, pass_run *run, int count, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < count && status == MF_OK; i++) {
        status = begin_pass(x, &run[i], e);
    }
    if (count == 2) {
        mf_pairing_make(&x->pairing, &x->p->model, &x->p->layout, x->p->assignment.first,
                        run[0].vstage, run[1].vstage);
    } else {
        mf_pairing_alone(&x->pairing, false, run[0].n);
    }
    for (int k = 0; k < x->pairing.count && status == MF_OK; k++) {
        const int block[2] = {x->pairing.step[k].f, x->pairing.step[k].b};
        block_at at[2] = {{0}, {0}};
        for (int i = 0; i < 2 && status == MF_OK; i++) {
            status = block[i] >= 0 ? begin_block(x, &run[i], block[i], &at[i], e) : MF_OK;
        }
        status = status == MF_OK ? run_blocks(x, run, at, block, e) : status;
        for (int i = 0; i < 2 && status == MF_OK; i++) {
            status = block[i] >= 0 ? end_block(x, &run[i], &at[i], e) : MF_OK;
            if (block[i] >= 0 && status == MF_OK) {
                status =
                    mf_exec_progress_mark(x, at[i].position, run[i].passes, run[i].micro_batch, e);
            }
        }
    }
    for (int i = 0; i < count && status == MF_OK; i++) {
        status = end_pass(x, &run[i], e);
    }
    return status;
}

static mf_status run_event(mf_exec *x, int64_t event, mf_err *e) {
    const mf_event *ev = &x->s->events[x->stage][event];
    pass_run run[2] = {pass_of(x, event, ev->pass == MF_EVENT_B || ev->pass == MF_EVENT_W,
                               ev->chunk, ev->micro_batch, 0)};
    if (ev->pass == MF_EVENT_W) {
        run[0].passes = MF_PASS_W;
    }
    if (ev->pass == MF_EVENT_FB) {
        run[1] = pass_of(x, event, true, ev->chunk2, ev->micro_batch2, 1);
    }
    return run_passes(x, run, ev->pass == MF_EVENT_FB ? 2 : 1, e);
}

static mf_status run_schedule(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int64_t i = 0; i < x->s->count[x->stage] && status == MF_OK; i++) {
        status = run_event(x, i, e);
        if (status != MF_OK) {
            return mf_err_prefix(e, "rank %lld, micro-batch %d", (long long)mf_comm_rank(x->comm),
                                 x->s->events[x->stage][i].micro_batch);
        }
    }
    return x->preparing ? MF_OK : mf_exec_end_messages(x, e);
}

/* --- a step --------------------------------------------------------------------------------------
 */

/* Gradients that are added to begin at zero; the others are written by the first of a step. */
static mf_status clear_gradients(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int h = 0; h < 2 && status == MF_OK; h++) {
        if (mf_exec_shards_gradients(x, h)) {
            status = mf_exec_zero_clear(x, h, e);
        }
        x->gathers[h] = 0;
        x->deferred[h] = x->fetched[h] = false;
    }
    x->leaving = false;
    for (int i = 0; i < x->params.count && status == MF_OK;) {
        const mf_param *q = &x->params.list[i];
        int64_t begin = q->offset, end = begin;
        if (mf_exec_shards_gradients(x, q->expert) || q->overwritten) {
            i++;
            continue;
        }
        while (i < x->params.count && !x->params.list[i].overwritten &&
               x->params.list[i].expert == q->expert && x->params.list[i].offset == end) {
            end += x->params.list[i].rows * x->params.list[i].cols;
            i++;
        }
        status = mf_exec_zero_out(x, x->gradients[q->expert] + begin,
                                  (size_t)(end - begin) * sizeof(float), e);
    }
    return status;
}

/* What overflowed once stays so: the steps behind it, which may have been begun, make no update. */
static mf_status clear_sums(mf_exec *x, mf_err *e) {
    int64_t positions = x->p->assignment.positions;
    mf_status status =
        mf_exec_zero_out(x, x->sums, (size_t)(MF_STEP_SUMS + positions) * sizeof *x->sums, e);
    return status == MF_OK
               ? mf_exec_zero_out(x, x->loads,
                                  (size_t)(positions * x->p->model.experts) * sizeof *x->loads, e)
               : status;
}

/* All of a step but its update, from the batch in host memory on. */
static mf_status play_gradients(mf_exec *x, mf_err *e) {
    x->ops = 0;
    x->work.runs = false;
    x->progress.at = 0;
    x->progress.since_s = 0;
    memset(x->begun, 0, (size_t)x->p->assignment.positions * sizeof *x->begun);
    mf_status status = mf_exec_beside_begin(x, e);
    status = status == MF_OK ? clear_gradients(x, e) : status;
    status = status == MF_OK ? clear_sums(x, e) : status;
    status = status == MF_OK ? run_schedule(x, e) : status;
    return status == MF_OK ? mf_exec_step_end_gradients(x, e) : status;
}

mf_status mf_exec_gradients(mf_exec *x, const mf_exec_batch *batch, mf_exec_result *out,
                            mf_err *e) {
    *out = (mf_exec_result){0};
    mf_status status = mf_exec_send_batch(x, batch, 0.0, e);
    status = status == MF_OK ? play_gradients(x, e) : status;
    status = status == MF_OK ? mf_exec_request_results(x, e) : status;
    return status == MF_OK ? mf_exec_read_results(x, out, e) : status;
}

void mf_exec_use_graph(mf_exec *x, bool on) {
    x->o.graph = on;
}

static mf_status play_step(mf_exec *x, mf_err *e) {
    mf_status status = play_gradients(x, e);
    status = status == MF_OK ? mf_exec_step_end_update(x, e) : status;
    return status == MF_OK ? mf_exec_progress_mark(x, -1, MF_PASS_O, 0, e) : status;
}

/* The step's work as a graph, which later steps play again: the same ops on the same memory. */
static mf_status capture_step(mf_exec *x, mf_err *e) {
    mf_err ignored;
    mf_status status = mf_exec_device(x)->capture_begin(x->queue, e);
    if (status != MF_OK) {
        return status;
    }
    status = play_step(x, e);
    mf_status ended =
        mf_exec_device(x)->capture_end(x->queue, &x->graph, status == MF_OK ? e : &ignored);
    x->graph_ops = x->ops;
    return status == MF_OK ? ended : status;
}

static mf_status make_plans(mf_exec *x, mf_err *e) {
    x->preparing = true;
    mf_status status = mf_exec_device(x)->prepare(x->device, true, e);
    status = status == MF_OK ? play_step(x, e) : status;
    x->preparing = false;
    mf_err ignored;
    mf_status ended = mf_exec_device(x)->prepare(x->device, false, status == MF_OK ? e : &ignored);
    return status == MF_OK ? ended : status;
}

/* Captures a step and drops it, so that its kernels are loaded and its communicators connected.
 * Both may wait for all work of the device, which would deadlock if that work waited for another
 * rank. */
static mf_status load_all(mf_exec *x, mf_err *e) {
    if (x->p->layout.gpus == 1 || mf_exec_device(x)->capture_begin == NULL) {
        return MF_OK;
    }
    mf_status status = capture_step(x, e);
    if (x->graph != NULL) {
        mf_exec_device(x)->forget(x->graph);
        x->graph = NULL;
    }
    return status;
}

mf_status mf_exec_prepare(mf_exec *x, mf_err *e) {
    x->quiet = true;
    mf_status status = mf_exec_device(x)->prepare != NULL ? make_plans(x, e) : MF_OK;
    status = status == MF_OK ? load_all(x, e) : status;
    x->quiet = false;
    return status;
}

static mf_status run_step(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    if (!x->o.graph || mf_exec_device(x)->capture_begin == NULL) {
        return play_step(x, e);
    }
    if (x->graph == NULL) {
        status = capture_step(x, e);
    }
    x->ops = x->graph_ops;
    return status == MF_OK ? mf_exec_device(x)->play(x->queue, x->graph, e) : status;
}

void mf_exec_limit_loss(mf_exec *x, double limit) {
    x->loss_limit = limit;
}

mf_status mf_exec_step_begin(mf_exec *x, const mf_exec_batch *batch, double lr, mf_err *e) {
    mf_status status = mf_exec_send_batch(x, batch, lr, e);
    status = status == MF_OK ? run_step(x, e) : status;
    return status == MF_OK ? mf_exec_request_results(x, e) : status;
}

mf_status mf_exec_step_finish(mf_exec *x, mf_exec_result *out, mf_err *e) {
    *out = (mf_exec_result){0};
    return mf_exec_read_results(x, out, e);
}

mf_status mf_exec_step(mf_exec *x, const mf_exec_batch *batch, double lr, mf_exec_result *out,
                       mf_err *e) {
    mf_status status = mf_exec_step_begin(x, batch, lr, e);
    return status == MF_OK ? mf_exec_step_finish(x, out, e) : status;
}

/* --- what callers look at
 * --------------------------------------------------------------------------- */

const mf_params *mf_exec_params(const mf_exec *x) {
    return &x->params;
}

float *mf_exec_correction_bias(mf_exec *x, int position) {
    return x->positions[position].correction;
}
