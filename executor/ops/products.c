/* products.c - dense and grouped products, their biases. */
#include "executor/ops/ops.h"

/* On a device whose products take operands of one type, gradients of float logits (the router's)
 * are rounded to the type of the weights. */
static mf_status as_weights(const mf_exec_op *x, const mf_exec_tensor *a, mf_kernel_dtype d,
                            mf_ops_scratch *s, mf_exec_tensor *out, mf_err *e) {
    bool rounds = a->dtype == MF_KERNEL_F32;
    *out = *a;
    if (a->dtype == d || (rounds && mf_ops_device(x)->mixed)) {
        return MF_OK;
    }
    const int64_t count = a->rows * a->cols;
    out->dtype = d;
    out->data = mf_ops_take(s, (size_t)count * mf_kernel_dtype_B(d));
    const mf_kernel_cast cast = {.src_dtype = a->dtype,
                                 .dst_dtype = d,
                                 .count = count,
                                 .alpha = 1.0f,
                                 .src = a->data,
                                 .dst = out->data};
    return mf_ops_device(x)->cast(x->queue, &cast, e);
}

/* The router's logits are wider than its weights, so its bias is widened, too. */
static mf_status bias_of(const mf_exec_op *x, mf_ops_scratch *s, const void **out, mf_err *e) {
    const mf_exec_tensor *b = &x->in[2], *y = &x->out[0];
    *out = NULL;
    if (x->op->pass == MF_PASS_B || x->nin < 3 || !mf_ops_owns_bias(x)) {
        return MF_OK;
    }
    mf_exec_tensor flat = *b, wide;
    flat.rows = x->op->dim[MF_OP_DIM_N];
    flat.cols = 1;
    mf_status status = as_weights(x, &flat, y->dtype, s, &wide, e);
    *out = wide.data;
    return status;
}

/* Rows [first, first + rows) of the product of F or B. */
static mf_status gemm_rows(const mf_exec_op *x, const mf_exec_tensor *a, const void *bias,
                           int64_t first, int64_t rows, bool accumulate, const void *add,
                           mf_err *e) {
    const mf_exec_tensor *w = &x->in[1], *y = &x->out[0];
    const mf_device_gemm g = {.g = {.form = x->op->pass == MF_PASS_B ? MF_GEMM_NN : MF_GEMM_NT,
                                    .a_dtype = a->dtype,
                                    .b_dtype = w->dtype,
                                    .c_dtype = y->dtype,
                                    .m = rows,
                                    .n = x->op->dim[MF_OP_DIM_N],
                                    .k = x->op->dim[MF_OP_DIM_K],
                                    .lda = a->cols,
                                    .ldb = w->cols,
                                    .ldc = y->cols,
                                    .alpha = x->op->alpha,
                                    .accumulate = accumulate,
                                    .a = mf_ops_at(a, first * a->cols),
                                    .b = w->data,
                                    .bias = bias,
                                    .c = mf_ops_at(y, first * y->cols)},
                              .add = add};
    return mf_ops_device(x)->gemm(x->queue, &g, e);
}

static mf_status weight_grad(const mf_exec_op *x, mf_err *e) {
    mf_ops_scratch s = mf_ops_scratch_of(x);
    mf_exec_tensor dy;
    mf_status status = as_weights(x, &x->in[0], x->in[1].dtype, &s, &dy, e);
    const mf_device_gemm g = {.g = {.form = MF_GEMM_TN,
                                    .a_dtype = dy.dtype,
                                    .b_dtype = x->in[1].dtype,
                                    .c_dtype = x->out[0].dtype,
                                    .m = x->op->dim[MF_OP_DIM_M],
                                    .n = x->op->dim[MF_OP_DIM_N],
                                    .k = x->op->dim[MF_OP_DIM_K],
                                    .lda = dy.cols,
                                    .ldb = x->in[1].cols,
                                    .ldc = x->out[0].cols,
                                    .alpha = x->op->alpha,
                                    .accumulate = !x->overwrites,
                                    .a = dy.data,
                                    .b = x->in[1].data,
                                    .c = x->out[0].data}};
    return status == MF_OK ? mf_ops_device(x)->gemm(x->queue, &g, e) : status;
}

mf_status mf_op_gemm(const mf_exec_op *x, mf_err *e) {
    const mf_op *op = x->op;
    if (op->pass == MF_PASS_W) {
        return weight_grad(x, e);
    }
    mf_ops_scratch s = mf_ops_scratch_of(x);
    mf_exec_tensor a;
    const void *bias;
    mf_status status = as_weights(x, &x->in[0], x->in[1].dtype, &s, &a, e);
    status = status == MF_OK ? bias_of(x, &s, &bias, e) : status;
    if (status != MF_OK) {
        return status;
    }
    bool narrow = op->dim[MF_OP_DIM_N] < x->out[0].cols;
    if (op->pieces <= 1 && !narrow) {
        return gemm_rows(x, &a, bias, 0, op->dim[MF_OP_DIM_M], false, x->sum[0].data, e);
    }
    bool accumulate = x->sum[0].data != NULL || narrow;
    if (accumulate && (x->first[0] || op->pieces <= 1)) { /* an earlier piece has begun it */
        status = mf_ops_begin(x, 0, e);
    }
    if (op->pieces <= 1) {
        return status == MF_OK
                   ? gemm_rows(x, &a, bias, 0, op->dim[MF_OP_DIM_M], accumulate, NULL, e)
                   : status;
    }
    /* A piece is a slice of the rows of every TP rank. */
    int64_t tp = x->env->layout->tp, local = x->in[0].rows / tp;
    int64_t from = local * op->piece / op->pieces, to = local * (op->piece + 1) / op->pieces;
    for (int64_t r = 0; r < tp && status == MF_OK; r++) {
        status = gemm_rows(x, &a, bias, r * local + from, to - from, accumulate, NULL, e);
    }
    return status;
}

/* y += bias of each row's expert, times the row's scale at FC2. */
static mf_status expert_bias(const mf_exec_op *x, const mf_row_map *map, mf_err *e) {
    const mf_exec_tensor *y = &x->out[0];
    const mf_kernel_bias a = {.dtype = y->dtype,
                              .rows = y->rows_max,
                              .cols = y->cols,
                              .stride = y->cols,
                              .rows_dev = &map->offsets[map->experts],
                              .groups = map->experts,
                              .offsets = map->offsets,
                              .scale = x->nin > 4 ? x->in[3].data : NULL,
                              .bias = x->in[2].data,
                              .x = y->data};
    return mf_ops_device(x)->bias(x->queue, &a, e);
}

mf_status mf_op_grouped_gemm(const mf_exec_op *x, mf_err *e) {
    const mf_op *op = x->op;
    bool activates = (op->flags & MF_OPF_ACT) != 0;
    const mf_row_map map = mf_ops_row_map(x, op->dim[MF_OP_DIM_GROUPS]);
    bool wgrad = op->pass == MF_PASS_W, dgrad = op->pass == MF_PASS_B;
    const int64_t *dim = op->dim;
    const mf_device_grouped g = {.kind = wgrad   ? MF_GROUPED_WGRAD
                                         : dgrad ? MF_GROUPED_DGRAD
                                                 : MF_GROUPED_FORWARD,
                                 .accumulate = wgrad && !x->overwrites,
                                 .dtype = x->in[0].dtype,
                                 .out_dtype = x->out[0].dtype,
                                 .experts = map.experts,
                                 .rows = x->in[0].rows_max,
                                 .n = dim[wgrad   ? MF_OP_DIM_M
                                          : dgrad ? MF_OP_DIM_K
                                                  : MF_OP_DIM_N],
                                 .k = dim[wgrad || dgrad ? MF_OP_DIM_N : MF_OP_DIM_K],
                                 .offsets = map.offsets,
                                 .a = x->in[0].data,
                                 .b = x->in[1].data,
                                 .out = x->out[0].data,
                                 .act = activates ? x->out[1].data : NULL,
                                 .prob = activates ? x->in[2].data : NULL};
    mf_status status = mf_ops_device(x)->grouped(x->queue, &g, e);
    bool bias = !wgrad && !dgrad && !activates && x->nin > 3 && mf_ops_owns_bias(x);
    return bias && status == MF_OK ? expert_bias(x, &map, e) : status;
}

mf_status mf_op_bias_grad(const mf_exec_op *x, mf_err *e) {
    bool grouped = x->forward->kind == MF_OP_GROUPED_GEMM, dscale = x->op->pass == MF_PASS_B;
    bool scaled = grouped && x->nin > 2;
    mf_status status = dscale ? mf_ops_begin(x, 0, e) : MF_OK;
    if (status != MF_OK || !mf_ops_owns_bias(x)) {
        return status;
    }
    mf_row_map map = {0};
    if (grouped) {
        map = mf_ops_row_map(x, x->op->dim[MF_OP_DIM_GROUPS]);
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
                                   .dscale = dscale ? x->out[0].data : NULL,
                                   .workspace = x->env->scratch};
    return mf_ops_device(x)->bias_grad(x->queue, &a, e);
}
