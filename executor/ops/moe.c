/* moe.c - the gated activation, the gate of a shared expert. */
#include "executor/ops/ops.h"

/* --- experts -----------------------------------------------------------------------------------
 */

static mf_kernel_swiglu_shape swiglu_shape(const mf_exec_op *x, const mf_exec_tensor *y,
                                           int first) {
    const mf_model *m = x->env->model;
    bool routed = x->nin > first;
    mf_kernel_swiglu_shape s = {.dtype = y->dtype,
                                .kind = m->swiglu_limit > 0 ? MF_SWIGLU_CLAMPED : MF_SWIGLU_SILU,
                                .alpha = 1.702f,
                                .limit = (float)m->swiglu_limit,
                                .rows = y->rows_max,
                                .cols = y->cols};
    if (routed) {
        int64_t experts = m->experts / x->env->layout->ep;
        s.prob = x->in[first].data;
        s.prob_in = (x->op->flags & MF_OPF_INPUT_SCALED) != 0;
        const int32_t *offsets = mf_ops_row_map(x, experts).offsets;
        s.rows_dev = &offsets[experts];
    }
    return s;
}

mf_status mf_op_swiglu(const mf_exec_op *x, mf_err *e) {
    const mf_kernel_swiglu a = {
        .shape = swiglu_shape(x, &x->out[0], 1), .gate_up = x->in[0].data, .y = x->out[0].data};
    return mf_ops_device(x)->swiglu(x->queue, &a, e);
}

mf_status mf_op_swiglu_grad(const mf_exec_op *x, mf_err *e) {
    const mf_kernel_swiglu_grad a = {.shape = swiglu_shape(x, &x->in[0], 2),
                                     .gate_up = x->in[1].data,
                                     .dy = x->in[0].data,
                                     .dgate_up = x->out[0].data,
                                     .dprob = x->op->nout > 1 ? x->out[1].data : NULL};
    mf_status status = mf_ops_device(x)->swiglu_grad(x->queue, &a, e);
    return status == MF_OK && x->op->nout > 1 ? mf_ops_add_sum(x, 1, e) : status;
}

/* --- gate of the shared expert ------------------------------------------------------------------
 */

static mf_status gate_logits(const mf_exec_op *x, const mf_exec_tensor *in, const mf_exec_tensor *w,
                             float *gate, mf_err *e) {
    const mf_kernel_gate_logit a = {.dtype = in->dtype,
                                    .rows = in->rows,
                                    .cols = in->cols,
                                    .x = in->data,
                                    .weight = w->data,
                                    .gate = gate};
    return mf_ops_device(x)->gate_logit(x->queue, &a, e);
}

/* The gate on attention's output: (y, gate) -> gated; (dgated, y, gate) -> dy, dgate. */
static mf_status output_gate(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *y = &x->in[0], *gate = &x->in[1];
    const mf_kernel_output_gate a = {.dtype = y->dtype,
                                     .rows = y->rows,
                                     .cols = y->cols,
                                     .width = y->cols / gate->cols,
                                     .gate = gate->data,
                                     .x = y->data,
                                     .y = x->out[0].data};
    return mf_ops_device(x)->output_gate(x->queue, &a, e);
}

static mf_status output_gate_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *y = &x->in[1], *gate = &x->in[2];
    const mf_kernel_output_gate_grad a = {.dtype = y->dtype,
                                          .rows = y->rows,
                                          .cols = y->cols,
                                          .width = y->cols / gate->cols,
                                          .gate = gate->data,
                                          .x = y->data,
                                          .dy = x->in[0].data,
                                          .dx = x->out[0].data,
                                          .dgate = x->out[1].data};
    mf_status status = mf_ops_device(x)->output_gate_grad(x->queue, &a, e);
    for (int i = 0; i < 2 && status == MF_OK; i++) {
        status = mf_ops_add_sum(x, i, e);
    }
    return status;
}

mf_status mf_op_gate(const mf_exec_op *x, mf_err *e) {
    if (x->forward_nin == 2) {
        return output_gate(x, e);
    }
    const mf_exec_tensor *y = &x->in[0];
    mf_ops_scratch s = mf_ops_scratch_of(x);
    float *gate = mf_ops_take(&s, (size_t)y->rows * sizeof *gate);
    const mf_kernel_gate a = {.dtype = y->dtype,
                              .rows = y->rows,
                              .cols = y->cols,
                              .gate = gate,
                              .x = y->data,
                              .y = x->out[0].data};
    mf_status status = gate_logits(x, &x->in[1], &x->in[2], gate, e);
    return status == MF_OK ? mf_ops_device(x)->gate(x->queue, &a, e) : status;
}

/* (dgated, y, x) -> dy, dx, dweight; the gate's own gradient goes on through its one-row product.
 */
mf_status mf_op_gate_grad(const mf_exec_op *x, mf_err *e) {
    if (x->forward_nin == 2) {
        return output_gate_grad(x, e);
    }
    const mf_exec_tensor *y = &x->in[1], *in = &x->in[2], *w = &x->weight[2];
    const mf_device_ops *k = mf_ops_device(x);
    mf_ops_scratch s = mf_ops_scratch_of(x);
    float *gate = mf_ops_take(&s, (size_t)y->rows * sizeof *gate);
    float *dgate = mf_ops_take(&s, (size_t)y->rows * sizeof *dgate);
    const mf_kernel_gate_grad back = {.dtype = y->dtype,
                                      .rows = y->rows,
                                      .cols = y->cols,
                                      .gate = gate,
                                      .x = y->data,
                                      .dy = x->in[0].data,
                                      .dx = x->out[0].data,
                                      .dgate = dgate};
    const mf_kernel_gate_input_grad input = {.dtype = in->dtype,
                                             .rows = in->rows,
                                             .cols = in->cols,
                                             .dgate = dgate,
                                             .x = in->data,
                                             .weight = w->data,
                                             .dx = x->out[1].data,
                                             .dweight = x->out[2].data,
                                             .workspace = s.at};
    mf_status status = gate_logits(x, in, w, gate, e);
    status = status == MF_OK ? k->gate_grad(x->queue, &back, e) : status;
    status = status == MF_OK ? k->gate_input_grad(x->queue, &input, e) : status;
    for (int i = 0; i < 2 && status == MF_OK; i++) {
        status = mf_ops_add_sum(x, i, e);
    }
    return status;
}
