/* backend_cpu_moe.c - reordering of rows, experts and gates on the CPU. */
#include "executor/backend_cpu.h"

#include "kernels/bias.h"
#include "kernels/gate.h"
#include "kernels/gemm.h"
#include "kernels/permute.h"
#include "kernels/swiglu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* --- order of rows -----------------------------------------------------------------------------
 */

mf_row_map mf_cpu_row_map(const mf_exec_op *x, int64_t experts) {
    return mf_row_map_of(x->in[x->nin - 1].data, experts, 0, 0);
}

/* Forward: rows by the experts of their choices, with the probabilities. As the gradient of an
 * unpermute: rows back into expert order by the map that stands. */
mf_status mf_cpu_permute(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    const int64_t *dim = x->op->dim;
    int64_t choices = dim[2], experts = dim[3];
    bool gradient = x->op->pass == MF_PASS_B;
    /* Of a gradient: in is dy [owners], out the rows. */
    int64_t slots = in->rows_max * choices;
    mf_row_map map =
        mf_row_map_of(gradient ? x->in[1].data : x->out[1].data, experts, out->rows_max, slots);
    mf_status status = MF_OK;
    if (!gradient) {
        const mf_kernel_permute_map build = {.tokens = in->rows_max,
                                             .top_k = choices,
                                             .experts = experts,
                                             .align = 1,
                                             .least = dim[4],
                                             .rows_max = out->rows_max,
                                             .index = x->in[1].data,
                                             .counts = map.counts,
                                             .offsets = map.offsets,
                                             .row_of_slot = map.row_of_slot,
                                             .slot_of_row = map.slot_of_row,
                                             .overflow = map.overflow};
        status = mf_kernel_permute_map_build(&build, e);
        if (status == MF_OK && *map.overflow != 0) {
            assert(dim[4] == 0); /* what was not dropped has its place */
            return mf_err_set(e, MF_INFEASIBLE,
                              "%s: %d routed rows in a buffer of %lld: the token headroom %.3g is "
                              "too small for this routing",
                              x->block->label, map.offsets[experts], (long long)out->rows_max,
                              mf_layout_token_headroom(x->env->layout));
        }
    }
    const mf_kernel_permute move = {.dtype = in->dtype,
                                    .rows = out->rows_max,
                                    .cols = in->cols,
                                    .top_k = choices,
                                    .rows_dev = &map.offsets[experts],
                                    .slot_of_row = map.slot_of_row,
                                    .x = in->data,
                                    .out = out->data};
    if (status == MF_OK) {
        status = mf_kernel_permute_forward(&move, e);
    }
    if (gradient || status != MF_OK) {
        return status == MF_OK && gradient ? mf_cpu_add_sum(x, 0, e) : status;
    }
    const mf_kernel_permute_scalar prob = {.rows = out->rows_max,
                                           .rows_dev = &map.offsets[experts],
                                           .map = map.slot_of_row,
                                           .src = x->in[2].data,
                                           .out = x->out[2].data};
    return mf_kernel_permute_scalars(&prob, e);
}

/* Forward: the sum of each owner's rows. As the gradient of a permute: the same for dx, and the
 * gradient of each choice's probability. */
mf_status mf_cpu_unpermute(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    const int64_t *dim = x->op->dim;
    int64_t choices = dim[2], experts = dim[3];
    bool gradient = x->op->pass == MF_PASS_B;
    const mf_exec_tensor *by = &x->in[gradient ? 2 : 1];
    int64_t slots = by->rows_max - 2 * experts - 2 - in->rows_max;
    mf_row_map map = mf_row_map_of(by->data, experts, in->rows_max, slots);
    const mf_kernel_unpermute sum = {.dtype = in->dtype,
                                     .tokens = slots / choices,
                                     .cols = in->cols,
                                     .top_k = choices,
                                     .row_of_slot = map.row_of_slot,
                                     .in = in->data,
                                     .y = out->data};
    mf_status status = mf_kernel_unpermute_forward(&sum, e);
    if (status == MF_OK) {
        status = mf_cpu_add_sum(x, 0, e);
    }
    if (!gradient || status != MF_OK) {
        return status;
    }
    const mf_kernel_permute_scalar prob = {
        .rows = slots, .map = map.row_of_slot, .src = x->in[1].data, .out = x->out[1].data};
    return mf_kernel_permute_scalars(&prob, e);
}

/* --- experts -----------------------------------------------------------------------------------
 */

bool mf_cpu_skips_expert_bias(const mf_exec_op *x) {
    return x->env->at.et != 0 && strcmp(x->forward->name, "expert_fc2") == 0;
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
    return mf_kernel_bias_add(&a, e);
}

mf_status mf_cpu_grouped_gemm(const mf_exec_op *x, mf_err *e) {
    const mf_op *op = x->op;
    int64_t groups = op->dim[3];
    mf_row_map map = mf_cpu_row_map(x, groups);
    bool wgrad = op->pass == MF_PASS_W, backward = op->pass == MF_PASS_B;
    const mf_exec_tensor *a = &x->in[0], *b = &x->in[1], *c = &x->out[0];
    mf_status status = MF_OK;
    for (int64_t g = 0; g < groups && status == MF_OK; g++) {
        int64_t first = map.offsets[g], rows = map.offsets[g + 1] - first;
        if (rows == 0) {
            continue;
        }
        int64_t n = op->dim[1], k = op->dim[2];
        int64_t weight = (wgrad ? op->dim[0] * n : n * k) * g;
        const mf_kernel_gemm p = {.form = wgrad      ? MF_GEMM_TN
                                          : backward ? MF_GEMM_NN
                                                     : MF_GEMM_NT,
                                  .a_dtype = a->dtype,
                                  .b_dtype = b->dtype,
                                  .c_dtype = c->dtype,
                                  .m = wgrad ? op->dim[0] : rows,
                                  .n = n,
                                  .k = wgrad ? rows : k,
                                  .lda = a->cols,
                                  .ldb = wgrad      ? b->cols
                                         : backward ? n
                                                    : k,
                                  .ldc = wgrad ? n : c->cols,
                                  .alpha = 1.0f,
                                  .accumulate = wgrad,
                                  .a = mf_cpu_at(a, first * a->cols),
                                  .b = wgrad ? mf_cpu_at(b, first * b->cols) : mf_cpu_at(b, weight),
                                  .c =
                                      wgrad ? mf_cpu_at(c, weight) : mf_cpu_at(c, first * c->cols)};
        status = mf_kernel_gemm_run(&p, e);
    }
    bool bias = !wgrad && !backward && x->nin > 3 && !mf_cpu_skips_expert_bias(x);
    return bias && status == MF_OK ? expert_bias(x, &map, e) : status;
}

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
        const int32_t *offsets = mf_cpu_row_map(x, experts).offsets;
        s.rows_dev = &offsets[experts];
    }
    return s;
}

mf_status mf_cpu_swiglu(const mf_exec_op *x, mf_err *e) {
    const mf_kernel_swiglu a = {
        .shape = swiglu_shape(x, &x->out[0], 1), .gate_up = x->in[0].data, .y = x->out[0].data};
    return mf_kernel_swiglu_forward(&a, e);
}

mf_status mf_cpu_swiglu_grad(const mf_exec_op *x, mf_err *e) {
    const mf_kernel_swiglu_grad a = {.shape = swiglu_shape(x, &x->in[0], 2),
                                     .gate_up = x->in[1].data,
                                     .dy = x->in[0].data,
                                     .dgate_up = x->out[0].data,
                                     .dprob = x->op->nout > 1 ? x->out[1].data : NULL};
    mf_status status = mf_kernel_swiglu_backward(&a, e);
    return status == MF_OK && x->op->nout > 1 ? mf_cpu_add_sum(x, 1, e) : status;
}

/* --- gate of the shared expert ------------------------------------------------------------------
 */

static float gate_logit(const mf_exec_tensor *x, const mf_exec_tensor *w, int64_t row) {
    double sum = 0.0;
    for (int64_t c = 0; c < x->cols; c++) {
        sum += (double)mf_kernel_get(x->data, x->dtype, row * x->cols + c) *
               (double)mf_kernel_get(w->data, w->dtype, c);
    }
    return (float)sum;
}

mf_status mf_cpu_gate(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *y = &x->in[0], *in = &x->in[1], *out = &x->out[0];
    mf_status status = MF_OK;
    for (int64_t r = 0; r < y->rows && status == MF_OK; r++) {
        float gate = gate_logit(in, &x->in[2], r);
        const mf_kernel_gate a = {.dtype = y->dtype,
                                  .rows = 1,
                                  .cols = y->cols,
                                  .gate = &gate,
                                  .x = mf_cpu_at(y, r * y->cols),
                                  .y = mf_cpu_at(out, r * y->cols)};
        status = mf_kernel_gate_forward(&a, e);
    }
    return status;
}

/* (dgated, y, x) -> dy, dx, dweight; the gate's own gradient goes on through its one-row product.
 */
mf_status mf_cpu_gate_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *dgated = &x->in[0], *y = &x->in[1], *in = &x->in[2];
    const mf_exec_tensor *dy = &x->out[0], *dx = &x->out[1], *w = &x->weight[2];
    float *dw = x->out[2].data;
    mf_status status = MF_OK;
    for (int64_t r = 0; r < y->rows && status == MF_OK; r++) {
        float gate = gate_logit(in, w, r), dgate = 0.0f;
        const mf_kernel_gate_grad a = {.dtype = y->dtype,
                                       .rows = 1,
                                       .cols = y->cols,
                                       .gate = &gate,
                                       .x = mf_cpu_at(y, r * y->cols),
                                       .dy = mf_cpu_at(dgated, r * y->cols),
                                       .dx = mf_cpu_at(dy, r * y->cols),
                                       .dgate = &dgate};
        status = mf_kernel_gate_backward(&a, e);
        for (int64_t c = 0; c < in->cols; c++) {
            int64_t i = r * in->cols + c;
            mf_kernel_put(dx->data, dx->dtype, i, dgate * mf_kernel_get(w->data, w->dtype, c));
            dw[c] += dgate * mf_kernel_get(in->data, in->dtype, i);
        }
    }
    for (int k = 0; k < 2 && status == MF_OK; k++) {
        status = mf_cpu_add_sum(x, k, e);
    }
    return status;
}
