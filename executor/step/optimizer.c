/* optimizer.c - pass O after the reductions: counts, norm, AdamW, parameters gathered. */
#include "executor/step/exec.h"

#include <stdlib.h>

/* --- what the optimizer goes over
 * -----------------------------------------------------------------
 */

/* Owned elements of parameter i as AdamW takes them. */
static mf_kernel_adamw_tensor tensor_of(const mf_exec *x, int i) {
    const mf_param *q = &x->params.list[i];
    int64_t first, count, moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type);
    float *master = mf_exec_own_weight(x, i, &first, &count);
    int64_t in_shard = mf_exec_in_shard(x, q->position, q->expert, q->offset + first);
    bool decays = !x->o.decay_matrices_only || q->cols > 1;
    return (mf_kernel_adamw_tensor){
        .master = master,
        .param = x->weight_type == MF_KERNEL_BF16 ? mf_exec_own_copy(x, i) : NULL,
        .grad = mf_exec_own_gradient(x, i, &first, &count),
        .m = x->moments[0][q->expert] + moment_B * in_shard,
        .v = x->moments[1][q->expert] + moment_B * in_shard,
        .count = count,
        .decay = decays ? (float)x->o.weight_decay : 0.0f};
}

/* Elements of parameter i's gradient that this rank counts in the norm. */
static mf_kernel_grad_tensor counted_of(const mf_exec *x, int i) {
    const mf_param *q = &x->params.list[i];
    bool sharded = mf_exec_zero(x, q->expert) >= 1;
    int64_t first, count, counted = mf_exec_counted(x, q);
    mf_kernel_grad_tensor t = {.grad = mf_exec_own_gradient(x, i, &first, &count)};
    int64_t end = first + count < counted ? first + count : counted;
    bool other = !sharded && mf_comm_group_rank(x->comm, mf_exec_zero_group(q->expert)) != 0;
    t.count = !other && end > first ? end - first : 0;
    return t;
}

/* The tables on the host, and the pieces of each. */
typedef struct host_tables {
    mf_kernel_adamw_tensor *tensor;
    mf_kernel_grad_tensor *grad;
    int64_t *counts;
    mf_kernel_chunk *chunk;
} host_tables;

static char *place(char **at, int64_t size_B) {
    char *here = *at;
    *at += mf_align_B(size_B);
    return here;
}

static mf_status upload(mf_exec *x, const host_tables *h, mf_err *e) {
    mf_update_tables *t = &x->tables;
    const size_t tensors_B = (size_t)t->tensors * sizeof *t->tensor;
    const size_t chunks_B = (size_t)t->chunks * sizeof *t->chunk;
    const size_t grads_B = (size_t)t->counted * sizeof *t->grad;
    const size_t grad_chunks_B = (size_t)t->counted_chunks * sizeof *t->grad_chunk;
    const size_t partial_B = (size_t)t->counted_chunks * sizeof *t->partial;
    int64_t all_B = (int64_t)(tensors_B + chunks_B + grads_B + grad_chunks_B + partial_B);
    mf_status status =
        mf_exec_device(x)->allocate(x->device, all_B + 6 * MF_ALIGN_B, &t->memory, e);
    if (status != MF_OK) {
        return status;
    }
    char *at = t->memory;
    t->tensor = (void *)place(&at, (int64_t)tensors_B);
    t->chunk = (void *)place(&at, (int64_t)chunks_B);
    t->grad = (void *)place(&at, (int64_t)grads_B);
    t->grad_chunk = (void *)place(&at, (int64_t)grad_chunks_B);
    t->partial = (void *)place(&at, (int64_t)partial_B);
    const struct {
        void *to;
        const void *from;
        size_t size_B;
    } copy[] = {{t->tensor, h->tensor, tensors_B},
                {t->chunk, h->chunk, chunks_B},
                {t->grad, h->grad, grads_B},
                {t->grad_chunk, h->chunk + t->chunks, grad_chunks_B}};
    for (size_t i = 0; i < sizeof copy / sizeof copy[0] && status == MF_OK; i++) {
        status = mf_exec_copy(x, copy[i].to, copy[i].from, copy[i].size_B, e);
    }
    return status == MF_OK ? mf_exec_device(x)->wait(x->device, e) : status;
}

static void fill(const mf_exec *x, host_tables *h, mf_update_tables *t) {
    for (int i = 0; i < x->params.count; i++) {
        const mf_kernel_adamw_tensor a = tensor_of(x, i);
        const mf_kernel_grad_tensor g = counted_of(x, i);
        if (a.count > 0) {
            h->tensor[t->tensors++] = a;
        }
        if (g.count > 0) {
            h->grad[t->counted++] = g;
        }
    }
}

mf_status mf_exec_update_init(mf_exec *x, mf_err *e) {
    mf_update_tables *t = &x->tables;
    const size_t n = (size_t)x->params.count + 1;
    host_tables h = {.tensor = calloc(n, sizeof *h.tensor),
                     .grad = calloc(n, sizeof *h.grad),
                     .counts = calloc(2 * n, sizeof *h.counts)};
    mf_status status = MF_OK;
    if (h.tensor == NULL || h.grad == NULL || h.counts == NULL) {
        status = mf_err_set(e, MF_NOMEM, "executor: out of memory");
        goto out;
    }
    fill(x, &h, t);
    for (int64_t i = 0; i < t->tensors; i++) {
        h.counts[i] = h.tensor[i].count;
    }
    for (int64_t i = 0; i < t->counted; i++) {
        h.counts[(int64_t)n + i] = h.grad[i].count;
    }
    t->chunks = mf_kernel_chunks(h.counts, t->tensors, NULL);
    t->counted_chunks = mf_kernel_chunks(h.counts + n, t->counted, NULL);
    h.chunk = calloc((size_t)(t->chunks + t->counted_chunks) + 1, sizeof *h.chunk);
    if (h.chunk == NULL) {
        status = mf_err_set(e, MF_NOMEM, "executor: out of memory");
        goto out;
    }
    mf_kernel_chunks(h.counts, t->tensors, h.chunk);
    mf_kernel_chunks(h.counts + n, t->counted, h.chunk + t->chunks);
    status = upload(x, &h, e);
    status = status == MF_OK ? mf_exec_offload_init(x, h.tensor, t->tensors, e) : status;
out:
    free(h.tensor);
    free(h.grad);
    free(h.counts);
    free(h.chunk);
    return status;
}

void mf_exec_update_clear(mf_exec *x) {
    mf_exec_offload_clear(x);
    mf_exec_device(x)->release(x->device, x->tables.memory);
}

/* --- before the norm -----------------------------------------------------------------------------
 */

/* Auxiliary-loss-free balancing: counts of the step over all ranks of the stage, all layers in one
 * message. */
static mf_status sum_counts(mf_exec *x, const mf_op *op, mf_err *e) {
    int64_t experts = x->p->model.experts;
    float *packed = x->scratch;
    mf_status status = MF_OK;
    for (int out = 0; out < 2 && status == MF_OK; out++) {
        int64_t at = 0;
        for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
            float *load = x->positions[i].load;
            if (load != NULL) {
                status = mf_exec_copy(x, out ? load : packed + at, out ? packed + at : load,
                                      (size_t)experts * sizeof *load, e);
                at += experts;
            }
        }
        if (out == 0 && status == MF_OK) {
            status = mf_comm_all_reduce(x->wire, (mf_group_kind)op->group, MF_COMM_F32, MF_COMM_SUM,
                                        packed, at, e);
        }
    }
    return status;
}

/* Squares of what this rank counts; the losses of its own rows stand beside it. */
static mf_status norm(mf_exec *x, const mf_op *op, mf_err *e) {
    const mf_update_tables *t = &x->tables;
    const mf_kernel_grad_norm a = {.tensors = t->counted,
                                   .chunks = t->counted_chunks,
                                   .tensor = t->grad,
                                   .chunk = t->grad_chunk,
                                   .sum_sq = &x->sums[0],
                                   .workspace = t->partial};
    (void)op;
    return t->counted > 0 ? mf_exec_device(x)->grad_norm(x->queue, &a, e) : MF_OK;
}

/* Can routed rows have no place on some rank? */
static bool may_overflow(const mf_layout *l) {
    return mf_layout_token_headroom(l) < (double)l->ep;
}

/* Sums of the step and, where rows may have had no place on a rank, that they had none: no rank
 * makes an update then. */
static mf_status sum_over_world(mf_exec *x, const mf_op *op, mf_err *e) {
    mf_status status = may_overflow(&x->p->layout)
                           ? mf_comm_all_reduce(x->wire, (mf_group_kind)op->group, MF_COMM_I32,
                                                MF_COMM_MAX, &x->update->overflow, 1, e)
                           : MF_OK;
    return status != MF_OK
               ? status
               : mf_comm_all_reduce(x->wire, (mf_group_kind)op->group, MF_COMM_F64, MF_COMM_SUM,
                                    x->sums, MF_STEP_SUMS + x->p->assignment.positions, e);
}

/* --- update
 * ------------------------------------------------------------------------------------------ */

static mf_kernel_adamw update_of(const mf_exec *x) {
    return (mf_kernel_adamw){.moments = x->moment_type,
                             .beta1 = (float)x->o.beta1,
                             .beta2 = (float)x->o.beta2,
                             .eps = (float)x->o.eps,
                             .grad_scale = 1.0f,
                             .state = x->update};
}

/* The copies go piece by piece beside the update, which does them. */
static mf_status goes_with_update(mf_exec *x, const mf_op *op, mf_err *e) {
    (void)x, (void)op, (void)e;
    return MF_OK;
}

static mf_status update_corrections(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        position_bind *q = &x->positions[i];
        const mf_kernel_router_bias a = {.experts = x->p->model.experts,
                                         .rate = (float)x->o.bias_rate,
                                         .count = q->load,
                                         .bias = q->correction,
                                         .skip = &x->update->skip};
        if (q->correction != NULL && x->o.bias_rate > 0) {
            status = mf_exec_device(x)->bias_update(x->queue, &a, e);
        }
    }
    return status;
}

static mf_status adamw(mf_exec *x, const mf_op *op, mf_err *e) {
    const mf_kernel_update_begin begin = {.sum_sq = &x->sums[0],
                                          .also_finite = &x->sums[1],
                                          .also_count = MF_STEP_SUMS - 1,
                                          .max_norm = (float)x->o.clip,
                                          .grad_scale = 1.0f,
                                          .beta1 = (float)x->o.beta1,
                                          .beta2 = (float)x->o.beta2,
                                          .state = x->update};
    mf_kernel_adamw a = update_of(x);
    a.tensors = x->tables.tensors;
    a.chunks = x->tables.chunks;
    a.tensor = x->tables.tensor;
    a.chunk = x->tables.chunk;
    (void)op;
    mf_status status = mf_exec_device(x)->update_begin(x->queue, &begin, e);
    if (status == MF_OK) {
        status = x->p->layout.offload_optimizer > 0 ? mf_exec_offload_update(x, &a, e)
                 : a.tensors > 0                    ? mf_exec_device(x)->adamw(x->queue, &a, e)
                                                    : MF_OK;
    }
    return status == MF_OK ? update_corrections(x, e) : status;
}

static mf_status gather_side(mf_exec *x, int position, int side, mf_err *e) {
    const mf_op *op = &x->p->dp[position].gather[side];
    int64_t begin, end, counts[MF_COMM_MAX_GROUP];
    if (!(op->bytes > 0) || !mf_exec_range(x, position, side, &begin, &end)) {
        return MF_OK;
    }
    mf_exec_shares(x, position, side, begin, end, counts);
    mf_comm_type type = x->weight_type == MF_KERNEL_BF16 ? MF_COMM_BF16 : MF_COMM_F32;
    mf_status status = mf_exec_runs(x, op)
                           ? mf_comm_all_gather_v(x->wire, mf_exec_zero_group(side), type,
                                                  mf_exec_weight_at(x, side, begin), counts, e)
                           : MF_OK;
    mf_exec_ran(x, op);
    return status;
}

mf_status mf_exec_gather_position(mf_exec *x, int position, mf_err *e) {
    mf_status status = gather_side(x, position, 0, e);
    return status == MF_OK ? gather_side(x, position, 1, e) : status;
}

/* --- the ops of pass O
 * ------------------------------------------------------------------------------- */

static mf_status run_step_end(mf_exec *x, bool update, mf_err *e) {
    static const struct {
        bool update;
        mf_status (*run)(mf_exec *x, const mf_op *op, mf_err *e);
    } row[MF_STEP_END_OPS] = {
        [MF_STEP_END_SUM_KV] = {false, mf_exec_sum_copies},
        [MF_STEP_END_SUM_TP] = {false, mf_exec_sum_copies},
        [MF_STEP_END_SUM_ETP] = {false, mf_exec_sum_copies},
        [MF_STEP_END_EMBEDDING_COPIES] = {false, mf_exec_sum_tables},
        [MF_STEP_END_HEAD_COPIES] = {false, mf_exec_sum_tables},
        [MF_STEP_END_EXPERT_COUNTS] = {false, sum_counts},
        [MF_STEP_END_GRAD_NORM] = {false, norm},
        [MF_STEP_END_GRAD_NORM_ALL_REDUCE] = {false, sum_over_world},
        [MF_STEP_END_STATES_IN] = {true, goes_with_update},
        [MF_STEP_END_ADAMW] = {true, adamw},
        [MF_STEP_END_STATES_OUT] = {true, goes_with_update},
    };
    mf_status status = MF_OK;
    for (; x->step_end_at < x->step_end_ops && status == MF_OK; x->step_end_at++) {
        const mf_op *op = &x->step_end[x->step_end_at];
        const int k = op->step_end;
        if (row[k].run == NULL) {
            return mf_err_set(e, MF_INTERNAL, "no way to run \"%s\" once a step", op->name);
        }
        if (row[k].update != update) {
            break;
        }
        status = mf_exec_runs(x, op) ? row[k].run(x, op, e) : MF_OK;
        if (status != MF_OK) {
            return mf_err_prefix(e, "%s", op->name);
        }
        mf_exec_ran(x, op);
    }
    return status;
}

mf_status mf_exec_step_end_gradients(mf_exec *x, mf_err *e) {
    mf_status status = mf_exec_reduce_positions(x, e);
    x->step_end_at = 0;
    return status == MF_OK ? run_step_end(x, false, e) : status;
}

/* What layers read of the owned elements of parameter i; of states on the host as many at a time as
 * the scratch holds. */
static mf_status round_own(mf_exec *x, int i, mf_err *e) {
    int64_t first, count, most = (int64_t)(x->env.scratch_B / sizeof(float));
    const float *master = mf_exec_own_weight(x, i, &first, &count);
    mf_status status = MF_OK;
    most = x->p->layout.offload_optimizer > 0 ? most : count;
    for (int64_t from = 0; from < count && status == MF_OK; from += most) {
        int64_t some = count - from < most ? count - from : most;
        const void *here = NULL;
        status = mf_exec_state_here(x, master + from, 4 * some, &here, e);
        const mf_kernel_cast round = {.src_dtype = MF_KERNEL_F32,
                                      .dst_dtype = x->weight_type,
                                      .count = some,
                                      .alpha = 1.0f,
                                      .src = here,
                                      .dst = (char *)mf_exec_own_copy(x, i) +
                                             from * mf_exec_weight_B(x)};
        status = status == MF_OK ? mf_exec_device(x)->cast(x->queue, &round, e) : status;
    }
    return status;
}

mf_status mf_exec_share_weights(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->params.count && x->weight_type != MF_KERNEL_F32 && status == MF_OK;
         i++) {
        status = round_own(x, i, e);
    }
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        status = x->positions[i].block != NULL ? mf_exec_gather_position(x, i, e) : MF_OK;
    }
    return status == MF_OK ? mf_exec_device(x)->wait(x->device, e) : status;
}

mf_status mf_exec_step_end_update(mf_exec *x, mf_err *e) {
    mf_status status = run_step_end(x, true, e);
    return status == MF_OK ? mf_exec_beside_end(x, e) : status;
}
