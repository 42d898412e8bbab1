/* norms.c - norms of rows, of heads, and of rows that TP ranks share. */
#include "executor/ops/ops.h"

/* A norm's parts: the whole row, or q heads and k heads of a fused projection, whose other columns
 * are copied. */
typedef struct norm_part {
    int64_t groups, cols, x_at, weight_at, rstd_at;
    int64_t total, copies; /* of a shared row: columns of all TP ranks, ranks that hold each */
} norm_part;

static int norm_parts(const mf_exec_op *x, const mf_exec_tensor *y, norm_part part[2]) {
    const int64_t *dim = x->forward->dim, width = dim[MF_OP_DIM_COLS];
    const int64_t q = dim[MF_OP_DIM_NORM_Q], k = dim[MF_OP_DIM_NORM_K];
    const int64_t tp = x->env->layout->tp, copies = dim[MF_OP_DIM_NORM_COPIES];
    switch ((mf_norm_scope)x->forward->norm_scope) {
    case MF_NORM_ROW:
        break;
    case MF_NORM_ALL_HEADS:
        part[0] = (norm_part){y->cols / width, width, 0, 0, 0, width, 1};
        return 1;
    case MF_NORM_QK_ROWS:
        part[0] = (norm_part){1, q, 0, 0, 0, q * tp, 1};
        part[1] = (norm_part){1, k, q, q, y->rows, k * tp / copies, copies};
        return 2;
    case MF_NORM_HEADS:
        part[0] = (norm_part){q / width, width, 0, 0, 0, width, 1};
        part[1] = (norm_part){k / width, width, q, width, y->rows * (q / width), width, 1};
        return 2;
    }
    part[0] = (norm_part){1, width, 0, 0, 0, width, 1};
    return 1;
}

static mf_status rest_of_rows(const mf_exec_op *x, const mf_exec_tensor *from,
                              const mf_exec_tensor *to, const norm_part *last, mf_err *e) {
    int64_t at = last->x_at + last->groups * last->cols;
    return at >= to->cols ? MF_OK
                          : mf_ops_copy(x, to->dtype, to->rows, to->cols - at, mf_ops_at(from, at),
                                        from->cols, mf_ops_at(to, at), to->cols, e);
}

/* Part i of a row that TP ranks share; sums are stored part by part, [2, rows]. */
static mf_kernel_norm_split split_of(const mf_exec_op *x, const norm_part *part, int i,
                                     const mf_exec_tensor *in, const mf_exec_tensor *y,
                                     float *sums) {
    const mf_exec_tensor *w = &x->weight[1]; /* none for sums of squares */
    return (mf_kernel_norm_split){.dtype = in->dtype,
                                  .rows = in->rows,
                                  .cols = part[i].cols,
                                  .total = part[i].total,
                                  .x_stride = in->cols,
                                  .y_stride = y->cols,
                                  .eps = x->forward->eps,
                                  .share = 1.0f / (float)part[i].copies,
                                  .x = mf_ops_at(in, part[i].x_at),
                                  .weight =
                                      w->data != NULL ? mf_ops_at(w, part[i].weight_at) : NULL,
                                  .sum = sums + i * in->rows,
                                  .workspace = x->env->scratch};
}

/* The part's weights; NULL: the norm has none. */
static const void *weight_of(const mf_exec_op *x, const norm_part *part) {
    return x->forward_nin > 1 ? mf_ops_at(&x->weight[1], part->weight_at) : NULL;
}

mf_status mf_op_norm_sum(const mf_exec_op *x, mf_err *e) {
    bool backward = x->op->pass == MF_PASS_B;
    const mf_exec_tensor *in = &x->in[backward ? 1 : 0], *y = &x->in[0];
    const mf_device_ops *k = mf_ops_device(x);
    norm_part part[2];
    int parts = norm_parts(x, in, part);
    mf_status status = MF_OK;
    for (int i = 0; i < parts && status == MF_OK; i++) {
        mf_kernel_norm_split a = split_of(x, part, i, in, y, x->out[0].data);
        a.dy = mf_ops_at(y, part[i].x_at);
        status = backward ? k->norm_dot(x->queue, &a, e) : k->norm_square(x->queue, &a, e);
    }
    return status;
}

mf_status mf_op_rmsnorm(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0], *y = NULL;
    const mf_device_ops *k = mf_ops_device(x);
    float *rstd = NULL;
    for (int i = 0; i < x->op->nout; i++) {
        if (x->out_of[i] == 0) {
            y = &x->out[i];
        } else {
            rstd = x->out[i].data;
        }
    }
    if (y == NULL) {
        return MF_OK;
    }
    if (x->op->norm_kind == MF_NORM_LAYER) {
        const mf_kernel_layernorm a = {.dtype = y->dtype,
                                       .rows = y->rows,
                                       .cols = y->cols,
                                       .eps = x->forward->eps,
                                       .x = in->data,
                                       .weight = x->weight[1].data,
                                       .y = y->data,
                                       .rstd = rstd};
        return k->layernorm(x->queue, &a, e);
    }
    norm_part part[2];
    int parts = norm_parts(x, y, part);
    mf_status status = MF_OK;
    for (int i = 0; i < parts && status == MF_OK; i++) {
        if (x->nin > 2) {
            mf_kernel_norm_split s = split_of(x, part, i, in, y, x->in[2].data);
            s.y = mf_ops_at(y, part[i].x_at);
            s.rstd = rstd != NULL ? rstd + part[i].rstd_at : NULL;
            status = k->norm_split(x->queue, &s, e);
            continue;
        }
        const mf_kernel_rmsnorm a = {.dtype = y->dtype,
                                     .rows = y->rows,
                                     .groups = part[i].groups,
                                     .cols = part[i].cols,
                                     .x_stride = in->cols,
                                     .y_stride = y->cols,
                                     .eps = x->forward->eps,
                                     .x = mf_ops_at(in, part[i].x_at),
                                     .weight = weight_of(x, &part[i]),
                                     .plus_one = x->op->norm_kind == MF_NORM_RMS_PLUS_ONE,
                                     .y = mf_ops_at(y, part[i].x_at),
                                     .rstd = rstd != NULL ? rstd + part[i].rstd_at : NULL};
        status = k->rmsnorm(x->queue, &a, e);
    }
    return status == MF_OK ? rest_of_rows(x, in, y, &part[parts - 1], e) : status;
}

static mf_status layernorm_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *dx = &x->out[0];
    const bool fused = mf_ops_device(x)->fused_sums;
    const mf_kernel_layernorm_grad a = {.dtype = dx->dtype,
                                        .rows = dx->rows,
                                        .cols = dx->cols,
                                        .x = x->in[1].data,
                                        .weight = x->weight[1].data,
                                        .rstd = x->in[2].data,
                                        .dy = x->in[0].data,
                                        .dx_add = fused ? x->sum[0].data : NULL,
                                        .dx = dx->data,
                                        .dweight = x->out[1].data,
                                        .workspace = x->env->scratch};
    mf_status status = mf_ops_device(x)->layernorm_grad(x->queue, &a, e);
    return status == MF_OK && !fused ? mf_ops_add_sum(x, 0, e) : status;
}

/* The kernel adds an existing gradient itself when the row has one part. */
mf_status mf_op_rmsnorm_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *dy = &x->in[0], *in = &x->in[1], *dx = &x->out[0], *dw = &x->out[1];
    const mf_device_ops *k = mf_ops_device(x);
    float *rstd = x->in[2].data;
    if (x->op->norm_kind == MF_NORM_LAYER) {
        return layernorm_grad(x, e);
    }
    norm_part part[2];
    int parts = norm_parts(x, dy, part);
    bool whole = parts == 1 && part[0].cols == dx->cols && x->forward_nin <= 2 && k->fused_sums;
    mf_status status = rest_of_rows(x, dy, dx, &part[parts - 1], e);
    for (int i = 0; i < parts && status == MF_OK; i++) {
        if (x->forward_nin > 2) {
            mf_kernel_norm_split s = split_of(x, part, i, in, dy, x->in[3].data);
            s.dy = mf_ops_at(dy, part[i].x_at);
            s.dx = mf_ops_at(dx, part[i].x_at);
            s.rstd = rstd + part[i].rstd_at;
            s.dweight = (float *)dw->data + part[i].weight_at;
            status = k->norm_split_grad(x->queue, &s, e);
            continue;
        }
        const mf_kernel_rmsnorm_grad a = {
            .dtype = dx->dtype,
            .rows = dy->rows,
            .groups = part[i].groups,
            .cols = part[i].cols,
            .x_stride = in->cols,
            .y_stride = dy->cols,
            .x = mf_ops_at(in, part[i].x_at),
            .weight = weight_of(x, &part[i]),
            .plus_one = x->op->norm_kind == MF_NORM_RMS_PLUS_ONE,
            .rstd = rstd + part[i].rstd_at,
            .dy = mf_ops_at(dy, part[i].x_at),
            .dx_add = whole ? x->sum[0].data : NULL,
            .dx = mf_ops_at(dx, part[i].x_at),
            .dweight = x->forward_nin > 1 ? (float *)dw->data + part[i].weight_at : NULL,
            .workspace = x->env->scratch};
        status = k->rmsnorm_grad(x->queue, &a, e);
    }
    return status == MF_OK && !whole ? mf_ops_add_sum(x, 0, e) : status;
}
