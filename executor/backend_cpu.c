/* backend_cpu.c - the CPU backend: ops bound to the reference kernels. Products, embedding,
 * loss, sums; norms, attention, routing, experts and communication have files of their own. */
#include "executor/backend_cpu.h"

#include "kernels/bias.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"

#include <math.h>
#include <string.h>

void *mf_cpu_at(const mf_exec_tensor *t, int64_t i) {
    return (char *)t->data + i * (int64_t)mf_kernel_dtype_B(t->dtype);
}

mf_status mf_cpu_copy(mf_kernel_dtype d, int64_t rows, int64_t cols, const void *src,
                      int64_t src_stride, void *dst, int64_t dst_stride, mf_err *e) {
    const mf_kernel_copy_rows a = {.dtype = d,
                                   .rows = rows,
                                   .cols = cols,
                                   .src_stride = src_stride,
                                   .dst_stride = dst_stride,
                                   .src = src,
                                   .dst = dst};
    return mf_kernel_copy_rows_strided(&a, e);
}

bool mf_cpu_begin(const mf_exec_op *x, int k) {
    const mf_exec_tensor *to = &x->out[k], *from = &x->sum[k];
    size_t size_B = (size_t)(to->rows_max * to->cols) * mf_kernel_dtype_B(to->dtype);
    if (from->data == NULL) {
        memset(to->data, 0, size_B);
        return false;
    }
    if (from->data != to->data) {
        memcpy(to->data, from->data, size_B);
    }
    return true;
}

mf_status mf_cpu_add_sum(const mf_exec_op *x, int k, mf_err *e) {
    if (x->sum[k].data == NULL || x->sum[k].data == x->out[k].data) {
        return MF_OK;
    }
    const mf_kernel_add a = {.dtype = x->out[k].dtype,
                             .count = x->out[k].rows_max * x->out[k].cols,
                             .a = x->out[k].data,
                             .b = x->sum[k].data,
                             .y = x->out[k].data};
    return mf_kernel_add_values(&a, e);
}

/* --- products ----------------------------------------------------------------------------------
 */

/* Bias of a row-parallel map is added, and its gradient taken, by the first TP rank alone. */
static bool skips_bias(const mf_exec_op *x) {
    const char *name = x->forward->name;
    return x->env->at.t != 0 && (strcmp(name, "o_proj") == 0 || strcmp(name, "fc2") == 0);
}

/* Rows [first, first + rows) of the product of F or B. */
static mf_status gemm_rows(const mf_exec_op *x, int64_t first, int64_t rows, bool accumulate,
                           mf_err *e) {
    bool backward = x->op->pass == MF_PASS_B;
    const mf_exec_tensor *a = &x->in[0], *w = &x->in[1], *y = &x->out[0];
    bool bias = !backward && x->nin > 2 && !skips_bias(x);
    const mf_exec_tensor *b = &x->in[2];
    if (bias && b->dtype != y->dtype) { /* the router's logits are wider than its weights */
        float *wide = x->env->scratch;
        for (int64_t i = 0; i < x->op->dim[1]; i++) {
            wide[i] = mf_kernel_get(b->data, b->dtype, i);
        }
    }
    const mf_kernel_gemm g = {.form = backward ? MF_GEMM_NN : MF_GEMM_NT,
                              .a_dtype = a->dtype,
                              .b_dtype = w->dtype,
                              .c_dtype = y->dtype,
                              .m = rows,
                              .n = x->op->dim[1],
                              .k = x->op->dim[2],
                              .lda = a->cols,
                              .ldb = w->cols,
                              .ldc = y->cols,
                              .alpha = 1.0f,
                              .accumulate = accumulate,
                              .a = mf_cpu_at(a, first * a->cols),
                              .b = w->data,
                              .bias = !bias                  ? NULL
                                      : b->dtype == y->dtype ? b->data
                                                             : x->env->scratch,
                              .c = mf_cpu_at(y, first * y->cols)};
    return mf_kernel_gemm_run(&g, e);
}

static mf_status gemm(const mf_exec_op *x, mf_err *e) {
    const mf_op *op = x->op;
    if (op->pass == MF_PASS_W) {
        const mf_kernel_gemm g = {.form = MF_GEMM_TN,
                                  .a_dtype = x->in[0].dtype,
                                  .b_dtype = x->in[1].dtype,
                                  .c_dtype = x->out[0].dtype,
                                  .m = op->dim[0],
                                  .n = op->dim[1],
                                  .k = op->dim[2],
                                  .lda = x->in[0].cols,
                                  .ldb = x->in[1].cols,
                                  .ldc = x->out[0].cols,
                                  .alpha = 1.0f,
                                  .accumulate = true,
                                  .a = x->in[0].data,
                                  .b = x->in[1].data,
                                  .c = x->out[0].data};
        return mf_kernel_gemm_run(&g, e);
    }
    bool accumulate = false;
    if (x->sum[0].data != NULL || op->dim[1] < x->out[0].cols) {
        if (x->first[0] || op->pieces <= 1) { /* later pieces find it begun */
            mf_cpu_begin(x, 0);
        }
        accumulate = true;
    }
    if (op->pieces <= 1) {
        return gemm_rows(x, 0, op->dim[0], accumulate, e);
    }
    /* A piece is a slice of the rows of every TP rank. */
    int64_t tp = x->env->layout->tp, local = x->in[0].rows / tp;
    int64_t from = local * op->piece / op->pieces, to = local * (op->piece + 1) / op->pieces;
    mf_status status = MF_OK;
    for (int64_t r = 0; r < tp && status == MF_OK; r++) {
        status = gemm_rows(x, r * local + from, to - from, accumulate, e);
    }
    return status;
}

static mf_status bias_grad(const mf_exec_op *x, mf_err *e) {
    if (skips_bias(x)) {
        return MF_OK;
    }
    bool grouped = x->forward->kind == MF_OP_GROUPED_GEMM, dscale = x->op->pass == MF_PASS_B;
    bool scaled = grouped && x->nin > 2;
    if (dscale) {
        mf_cpu_begin(x, 0);
    }
    if (mf_cpu_skips_expert_bias(x)) {
        return MF_OK;
    }
    mf_row_map map = {0};
    if (grouped) {
        map = mf_cpu_row_map(x, x->op->dim[3]);
    }
    const mf_kernel_bias_grad a = {.dtype = x->in[0].dtype,
                                   .rows = x->in[0].rows_max,
                                   .cols = x->in[0].cols,
                                   .stride = x->in[0].cols,
                                   .rows_dev = grouped ? &map.offsets[map.experts] : NULL,
                                   .groups = grouped ? map.experts : 1,
                                   .offsets = map.offsets,
                                   .scale = scaled ? x->in[1].data : NULL,
                                   .bias = dscale ? x->weight[2].data : NULL,
                                   .dy = x->in[0].data,
                                   .dbias = dscale ? NULL : x->out[0].data,
                                   .dscale = dscale ? x->out[0].data : NULL};
    return mf_kernel_bias_backward(&a, e);
}

/* --- embedding, loss, sums ---------------------------------------------------------------------
 */

static mf_status embedding(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *table = &x->in[0], *y = &x->out[0];
    const mf_kernel_embedding a = {.dtype = y->dtype,
                                   .tokens = y->rows,
                                   .cols = y->cols,
                                   .begin = x->env->at.t * table->rows,
                                   .vocab = table->rows,
                                   .token = x->env->token,
                                   .table = table->data,
                                   .y = y->data};
    return mf_kernel_embedding_forward(&a, e);
}

static mf_status embedding_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *dy = &x->in[0], *table = &x->out[0];
    const mf_kernel_embedding_grad a = {.dtype = dy->dtype,
                                        .tokens = dy->rows,
                                        .cols = dy->cols,
                                        .begin = x->env->at.t * table->rows,
                                        .vocab = table->rows,
                                        .token = x->env->token,
                                        .dy = dy->data,
                                        .dtable = table->data};
    return mf_kernel_embedding_backward(&a, e);
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
    return mf_kernel_cross_entropy_stats(&a, e);
}

/* The statistics are complete here (summed over TP): the loss itself, then the gradient. The first
 * TP rank counts the loss. */
static mf_status loss_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *logits = &x->out[0];
    float *stats = x->in[1].data, lse[256];
    int64_t rows = logits->rows, run;
    double sum = 0.0;
    mf_status status = MF_OK;
    for (int64_t r = 0; r < rows && status == MF_OK; r += run) {
        run = rows - r < 256 ? rows - r : 256;
        for (int64_t i = 0; i < run; i++) {
            double highest = (double)stats[r + i], total = (double)stats[rows + r + i];
            double value = highest + log(total);
            lse[i] = (float)value;
            sum += x->env->label[r + i] >= 0 ? value - (double)stats[2 * rows + r + i] : 0.0;
        }
        const mf_kernel_ce_grad a = {.dtype = logits->dtype,
                                     .rows = run,
                                     .cols = logits->cols,
                                     .stride = logits->cols,
                                     .begin = x->env->at.t * logits->cols,
                                     .vocab = x->env->model->vocab,
                                     .target = x->env->label + r,
                                     .lse = lse,
                                     .scale = x->env->loss_scale,
                                     .logits = mf_cpu_at(logits, r * logits->cols)};
        status = mf_kernel_cross_entropy_backward(&a, e);
    }
    if (x->env->at.t == 0) {
        *x->env->loss_sum += sum;
    }
    return status;
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
        status = mf_kernel_add_values(&a, e);
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
        status = apart ? mf_cpu_copy(part->dtype, part->rows, part->cols, mf_cpu_at(joined, at),
                                     joined->cols, part->data, part->cols, e)
                       : mf_cpu_copy(part->dtype, part->rows, part->cols, part->data, part->cols,
                                     mf_cpu_at(joined, at), joined->cols, e);
        if (status == MF_OK && apart) {
            status = mf_cpu_add_sum(x, i, e);
        }
        at += part->cols;
    }
    return status == MF_OK && !apart ? mf_cpu_add_sum(x, 0, e) : status;
}

/* --- copies to and from the host ---------------------------------------------------------------
 */

static mf_status to_host(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *t = &x->in[0];
    (void)e;
    memcpy(x->host, t->data, (size_t)x->block->tensors[x->op->in[0]].bytes);
    return MF_OK;
}

static mf_status from_host(const mf_exec_op *x, mf_err *e) {
    (void)e;
    memcpy(x->out[0].data, x->host, (size_t)x->block->tensors[x->op->out[0]].bytes);
    return MF_OK;
}

/* --- the table ---------------------------------------------------------------------------------
 */

static size_t scratch_B(const mf_block *b, const mf_op *op, const mf_layout *l, const mf_model *m) {
    size_t widest = 0, rows = (size_t)(l->mbs * l->seq);
    for (int k = 0; k < op->nin + op->nout; k++) {
        const mf_tensor *t = &b->tensors[k < op->nin ? op->in[k] : op->out[k - op->nin]];
        if (t->class != MF_TENSOR_WEIGHT && t->class != MF_TENSOR_GRADIENT &&
            (size_t)t->bytes > widest) {
            widest = (size_t)t->bytes;
        }
    }
    size_t attention = rows * (size_t)(m->head_dim + m->v_head_dim) * 8 + 4096;
    size_t exchange = 4 * widest + 4096;
    return attention + mf_cpu_router_scratch_B(l, m) + exchange;
}

const mf_exec_backend *mf_exec_backend_cpu(void) {
    static const mf_exec_backend cpu = {
        .name = "cpu",
        .run =
            {
                [MF_OP_GEMM] = gemm,
                [MF_OP_GROUPED_GEMM] = mf_cpu_grouped_gemm,
                [MF_OP_ATTENTION_FWD] = mf_cpu_attention,
                [MF_OP_ATTENTION_BWD] = mf_cpu_attention_grad,
                [MF_OP_ATTENTION_MERGE] = mf_cpu_attention_merge,
                [MF_OP_EMBEDDING_FWD] = embedding,
                [MF_OP_EMBEDDING_BWD] = embedding_grad,
                [MF_OP_RMSNORM_FWD] = mf_cpu_rmsnorm,
                [MF_OP_RMSNORM_BWD] = mf_cpu_rmsnorm_grad,
                [MF_OP_NORM_SUM] = mf_cpu_norm_sum,
                [MF_OP_ROPE_FWD] = mf_cpu_rope,
                [MF_OP_ROPE_BWD] = mf_cpu_rope_grad,
                [MF_OP_SWIGLU_FWD] = mf_cpu_swiglu,
                [MF_OP_SWIGLU_BWD] = mf_cpu_swiglu_grad,
                [MF_OP_ADD] = add,
                [MF_OP_GATE_FWD] = mf_cpu_gate,
                [MF_OP_GATE_BWD] = mf_cpu_gate_grad,
                [MF_OP_ROUTER_FWD] = mf_cpu_router,
                [MF_OP_ROUTER_BWD] = mf_cpu_router_grad,
                [MF_OP_ROUTER_DROP] = mf_cpu_router_drop,
                [MF_OP_PERMUTE] = mf_cpu_permute,
                [MF_OP_UNPERMUTE] = mf_cpu_unpermute,
                [MF_OP_SPLIT] = split,
                [MF_OP_BIAS_BWD] = bias_grad,
                [MF_OP_CROSS_ENTROPY_FWD] = loss,
                [MF_OP_CROSS_ENTROPY_BWD] = loss_grad,
                [MF_OP_ALL_REDUCE] = mf_cpu_all_reduce,
                [MF_OP_ALL_GATHER] = mf_cpu_all_gather,
                [MF_OP_REDUCE_SCATTER] = mf_cpu_reduce_scatter,
                [MF_OP_ALL_TO_ALL] = mf_cpu_all_to_all,
                [MF_OP_DISPATCH] = mf_cpu_dispatch,
                [MF_OP_COMBINE] = mf_cpu_combine,
                [MF_OP_SEND_RECV] = mf_cpu_send_recv,
                [MF_OP_COPY_D2H] = to_host,
                [MF_OP_COPY_H2D] = from_host,
            },
        .scratch_B = scratch_B,
    };
    return &cpu;
}
