/* ops.c - the table of functions that translate ops, and what they share. */
#include "executor/ops/ops.h"

#include <assert.h>

/* --- what translators share ----------------------------------------------------------------------
 */

void *mf_ops_at(const mf_exec_tensor *t, int64_t i) {
    return (char *)t->data + i * (int64_t)mf_kernel_dtype_B(t->dtype);
}

mf_status mf_ops_copy(const mf_exec_op *x, mf_kernel_dtype d, int64_t rows, int64_t cols,
                      const void *src, int64_t src_stride, void *dst, int64_t dst_stride,
                      mf_err *e) {
    const mf_kernel_copy_rows a = {.dtype = d,
                                   .rows = rows,
                                   .cols = cols,
                                   .src_stride = src_stride,
                                   .dst_stride = dst_stride,
                                   .src = src,
                                   .dst = dst};
    return mf_ops_device(x)->copy_rows(x->queue, &a, e);
}

mf_status mf_ops_begin(const mf_exec_op *x, int k, mf_err *e) {
    const mf_exec_tensor *to = &x->out[k], *from = &x->sum[k];
    size_t size_B = (size_t)(to->rows_max * to->cols) * mf_kernel_dtype_B(to->dtype);
    if (from->data == NULL) {
        return mf_ops_device(x)->zero(x->queue, to->data, size_B, e);
    }
    return from->data == to->data
               ? MF_OK
               : mf_ops_device(x)->copy(x->queue, to->data, from->data, size_B, e);
}

mf_status mf_ops_add_sum(const mf_exec_op *x, int k, mf_err *e) {
    if (x->sum[k].data == NULL || x->sum[k].data == x->out[k].data) {
        return MF_OK;
    }
    const mf_kernel_add a = {.dtype = x->out[k].dtype,
                             .count = x->out[k].rows_max * x->out[k].cols,
                             .a = x->out[k].data,
                             .b = x->sum[k].data,
                             .y = x->out[k].data};
    return mf_ops_device(x)->add(x->queue, &a, e);
}

bool mf_ops_owns_bias(const mf_exec_op *x) {
    switch ((mf_bias_owner)x->forward->bias_owner) {
    case MF_BIAS_FIRST_TP:
        return x->env->at.t == 0;
    case MF_BIAS_FIRST_ETP:
        return x->env->at.et == 0;
    case MF_BIAS_EVERY:
        break;
    }
    return true;
}

mf_row_map mf_ops_row_map(const mf_exec_op *x, int64_t experts) {
    return mf_row_map_of(mf_ops_row_map_operand(x)->data, experts, 0, 0);
}

mf_ops_scratch mf_ops_scratch_of(const mf_exec_op *x) {
    char *at = x->env->scratch;
    return (mf_ops_scratch){at, at + x->env->scratch_B};
}

void *mf_ops_take(mf_ops_scratch *s, size_t size_B) {
    char *here = s->at;
    s->at += mf_align_B((int64_t)size_B);
    assert(s->at <= s->end);
    return here;
}

/* --- small ops -----------------------------------------------------------------------------------
 */

static mf_status embedding(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *table = &x->in[0], *y = &x->out[0];
    const mf_kernel_embedding a = {.dtype = y->dtype,
                                   .tokens = y->rows,
                                   .cols = y->cols,
                                   .begin = x->env->at.t * table->rows,
                                   .vocab = table->rows,
                                   .scale = x->op->alpha,
                                   .token = x->env->token,
                                   .table = table->data,
                                   .y = y->data};
    return mf_ops_device(x)->embedding(x->queue, &a, e);
}

static mf_status embedding_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *dy = &x->in[0], *table = &x->out[0];
    const mf_kernel_embedding_grad a = {.dtype = dy->dtype,
                                        .tokens = dy->rows,
                                        .cols = dy->cols,
                                        .begin = x->env->at.t * table->rows,
                                        .vocab = table->rows,
                                        .scale = x->op->alpha,
                                        .token = x->env->token,
                                        .dy = dy->data,
                                        .dtable = table->data,
                                        .workspace = x->env->scratch};
    return mf_ops_device(x)->embedding_grad(x->queue, &a, e);
}

static mf_status loss(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *logits = &x->in[0];
    const mf_kernel_ce_stats a = {.dtype = logits->dtype,
                                  .rows = logits->rows,
                                  .cols = logits->cols,
                                  .stride = logits->cols,
                                  .begin = x->env->at.t * logits->cols,
                                  .vocab = x->env->model->vocab,
                                  .logits = logits->data,
                                  .target = x->env->label,
                                  .stats = x->out[0].data};
    return mf_ops_device(x)->loss_stats(x->queue, &a, e);
}

/* Statistics are complete (summed over TP) by now: computes the loss, then the gradient. The first
 * TP rank adds the loss. */
static mf_status loss_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *logits = &x->out[0];
    mf_ops_scratch s = mf_ops_scratch_of(x);
    float *lse = mf_ops_take(&s, (size_t)logits->rows * sizeof *lse);
    const mf_kernel_ce_combine sum = {.rows = logits->rows,
                                      .ranks = 1,
                                      .stats = x->in[1].data,
                                      .target = x->env->label,
                                      .lse = lse,
                                      .loss_sum = x->env->at.t == 0 ? x->env->loss_sum : NULL,
                                      .loss_scale = x->env->loss_weight};
    const mf_kernel_ce_grad grad = {.dtype = logits->dtype,
                                    .rows = logits->rows,
                                    .cols = logits->cols,
                                    .stride = logits->cols,
                                    .begin = x->env->at.t * logits->cols,
                                    .vocab = x->env->model->vocab,
                                    .target = x->env->label,
                                    .lse = lse,
                                    .scale = x->env->loss_scale,
                                    .logits = logits->data};
    mf_status status = mf_ops_device(x)->loss_combine(x->queue, &sum, e);
    return status == MF_OK ? mf_ops_device(x)->loss_grad(x->queue, &grad, e) : status;
}

/* Loss and gradient of a rank that has all columns. */
static mf_status loss_whole(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *logits = &x->out[0];
    mf_ops_scratch s = mf_ops_scratch_of(x);
    const mf_kernel_ce_whole a = {.dtype = logits->dtype,
                                  .rows = logits->rows,
                                  .cols = logits->cols,
                                  .stride = logits->cols,
                                  .vocab = x->env->model->vocab,
                                  .target = x->env->label,
                                  .scale = x->env->loss_scale,
                                  .logits = logits->data,
                                  .stats = x->out[1].data,
                                  .lse = mf_ops_take(&s, (size_t)logits->rows * sizeof(float)),
                                  .loss_sum = x->env->loss_sum,
                                  .loss_scale = x->env->loss_weight};
    return mf_ops_device(x)->loss_whole(x->queue, &a, e);
}

static mf_status add(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *y = &x->out[0];
    mf_status status = MF_OK;
    for (int i = 1; i < x->nin && status == MF_OK; i++) {
        const mf_kernel_add a = {.dtype = y->dtype,
                                 .count = y->rows * y->cols,
                                 .a = i == 1 ? x->in[0].data : y->data,
                                 .b = x->in[i].data,
                                 .y = y->data};
        status = mf_ops_device(x)->add(x->queue, &a, e);
    }
    return status;
}

/* Columns side by side, or apart; the gradient of one is the other. */
static mf_status split(const mf_exec_op *x, mf_err *e) {
    bool apart = x->nin == 1;
    const mf_exec_tensor *joined = apart ? &x->in[0] : &x->out[0];
    int parts = apart ? x->op->nout : x->nin;
    int64_t at = 0;
    mf_status status = MF_OK;
    for (int i = 0; i < parts && status == MF_OK; i++) {
        const mf_exec_tensor *part = apart ? &x->out[i] : &x->in[i];
        status = apart ? mf_ops_copy(x, part->dtype, part->rows, part->cols, mf_ops_at(joined, at),
                                     joined->cols, part->data, part->cols, e)
                       : mf_ops_copy(x, part->dtype, part->rows, part->cols, part->data, part->cols,
                                     mf_ops_at(joined, at), joined->cols, e);
        if (status == MF_OK && apart) {
            status = mf_ops_add_sum(x, i, e);
        }
        at += part->cols;
    }
    return status == MF_OK && !apart ? mf_ops_add_sum(x, 0, e) : status;
}

static mf_status to_host(const mf_exec_op *x, mf_err *e) {
    return mf_ops_device(x)->copy(x->queue, x->host, x->in[0].data,
                                  (size_t)x->block->tensors[x->op->in[0]].bytes, e);
}

static mf_status from_host(const mf_exec_op *x, mf_err *e) {
    return mf_ops_device(x)->copy(x->queue, x->out[0].data, x->host,
                                  (size_t)x->block->tensors[x->op->out[0]].bytes, e);
}

/* --- the table ---------------------------------------------------------------------------------
 */

mf_exec_fn mf_exec_op_function(mf_op_kind kind) {
    static const mf_exec_fn function[MF_OP_COUNT] = {
        [MF_OP_GEMM] = mf_op_gemm,
        [MF_OP_GROUPED_GEMM] = mf_op_grouped_gemm,
        [MF_OP_ATTENTION_FWD] = mf_op_attention,
        [MF_OP_ATTENTION_BWD] = mf_op_attention_grad,
        [MF_OP_ATTENTION_MERGE] = mf_op_attention_merge,
        [MF_OP_EMBEDDING_FWD] = embedding,
        [MF_OP_EMBEDDING_BWD] = embedding_grad,
        [MF_OP_RMSNORM_FWD] = mf_op_rmsnorm,
        [MF_OP_RMSNORM_BWD] = mf_op_rmsnorm_grad,
        [MF_OP_NORM_SUM] = mf_op_norm_sum,
        [MF_OP_ROPE_FWD] = mf_op_rope,
        [MF_OP_ROPE_BWD] = mf_op_rope_grad,
        [MF_OP_SWIGLU_FWD] = mf_op_swiglu,
        [MF_OP_SWIGLU_BWD] = mf_op_swiglu_grad,
        [MF_OP_ADD] = add,
        [MF_OP_GATE_FWD] = mf_op_gate,
        [MF_OP_GATE_BWD] = mf_op_gate_grad,
        [MF_OP_ROUTER_FWD] = mf_op_router,
        [MF_OP_ROUTER_BWD] = mf_op_router_grad,
        [MF_OP_ROUTER_DROP] = mf_op_router_drop,
        [MF_OP_PERMUTE] = mf_op_permute,
        [MF_OP_UNPERMUTE] = mf_op_unpermute,
        [MF_OP_SPLIT] = split,
        [MF_OP_BIAS_BWD] = mf_op_bias_grad,
        [MF_OP_CROSS_ENTROPY] = loss_whole,
        [MF_OP_CROSS_ENTROPY_FWD] = loss,
        [MF_OP_CROSS_ENTROPY_BWD] = loss_grad,
        [MF_OP_ALL_REDUCE] = mf_op_all_reduce,
        [MF_OP_ALL_GATHER] = mf_op_all_gather,
        [MF_OP_REDUCE_SCATTER] = mf_op_reduce_scatter,
        [MF_OP_ALL_TO_ALL] = mf_op_all_to_all,
        [MF_OP_DISPATCH] = mf_op_dispatch,
        [MF_OP_COMBINE] = mf_op_combine,
        [MF_OP_SEND_RECV] = mf_op_send_recv,
        [MF_OP_COPY_D2H] = to_host,
        [MF_OP_COPY_H2D] = from_host,
    };
    return function[kind];
}

const char *mf_exec_op_lacks(const mf_op *op) {
    return mf_exec_op_function((mf_op_kind)op->kind) == NULL ? mf_op_text((mf_op_kind)op->kind)
                                                             : NULL;
}

bool mf_exec_op_overwrites(const mf_op *op) {
    return op->pass == MF_PASS_W && (op->kind == MF_OP_GEMM || op->kind == MF_OP_GROUPED_GEMM);
}
