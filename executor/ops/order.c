/* order.c - puts rows into the order of experts and back (kernels/moe/permute.h), as separate ops
 * and as part of exchanges. */
#include "executor/ops/transport.h"

/* --- by a map ----------------------------------------------------------------------------------
 */

mf_status mf_ops_order_find(const mf_exec_op *x, const mf_ops_order *o, const int32_t *index,
                            void *workspace, mf_err *e) {
    const mf_kernel_permute_map build = {.tokens = o->tokens,
                                         .top_k = o->choices,
                                         .experts = o->map.experts,
                                         .align = 1,
                                         .ranks = o->ranks,
                                         .rank_rows = o->rank_rows,
                                         .least = o->least,
                                         .rows_max = o->map.rows_max,
                                         .index = index,
                                         .counts = o->map.counts,
                                         .offsets = o->map.offsets,
                                         .row_of_slot = o->map.row_of_slot,
                                         .slot_of_row = o->map.slot_of_row,
                                         .overflow = o->map.overflow,
                                         .sticky = x->env->overflow,
                                         .workspace = workspace};
    return mf_ops_device(x)->permute_map(x->queue, &build, e);
}

mf_status mf_ops_order_rows(const mf_exec_op *x, const mf_ops_order *o, const void *from,
                            const mf_exec_tensor *to, mf_err *e) {
    const mf_kernel_permute move = {.dtype = to->dtype,
                                    .rows = o->map.rows_max,
                                    .cols = to->cols,
                                    .top_k = o->choices,
                                    .rows_dev = &o->map.offsets[o->map.experts],
                                    .slot_of_row = o->map.slot_of_row,
                                    .row_of_slot = o->map.row_of_slot,
                                    .tokens = o->tokens,
                                    .x = from,
                                    .out = to->data,
                                    .sparse = o->sparse};
    return mf_ops_device(x)->permute(x->queue, &move, e);
}

mf_status mf_ops_order_values(const mf_exec_op *x, const mf_ops_order *o, const float *from,
                              float *to, mf_err *e) {
    const mf_kernel_permute_scalar move = {.rows = o->map.rows_max,
                                           .rows_dev = &o->map.offsets[o->map.experts],
                                           .map = o->map.slot_of_row,
                                           .src = from,
                                           .out = to};
    return mf_ops_device(x)->permute_scalars(x->queue, &move, e);
}

mf_status mf_ops_leave_order(const mf_exec_op *x, const mf_ops_order *o, const mf_exec_tensor *from,
                             void *to, mf_err *e) {
    const mf_kernel_unpermute sum = {.dtype = from->dtype,
                                     .tokens = o->tokens,
                                     .cols = from->cols,
                                     .top_k = o->choices,
                                     .row_of_slot = o->map.row_of_slot,
                                     .in = from->data,
                                     .y = to};
    return mf_ops_device(x)->unpermute(x->queue, &sum, e);
}

mf_status mf_ops_leave_order_values(const mf_exec_op *x, const mf_ops_order *o, const float *from,
                                    float *to, mf_err *e) {
    const mf_kernel_permute_scalar move = {
        .rows = o->tokens * o->choices, .map = o->map.row_of_slot, .src = from, .out = to};
    return mf_ops_device(x)->permute_scalars(x->queue, &move, e);
}

mf_ops_order mf_ops_order_of(const mf_exec_op *x, const mf_exec_tensor *map, int64_t rows,
                             int64_t tokens) {
    const mf_layout *l = x->env->layout;
    mf_ops_order o = {.tokens = tokens,
                      .choices = x->op->dim[MF_OP_DIM_TOP_K],
                      .least = mf_layout_padded_rows(l, x->env->model)};
    o.map =
        mf_row_map_of(map->data, x->op->dim[MF_OP_DIM_EXPERTS] / l->ep, rows, tokens * o.choices);
    return o;
}

/* --- ops ---------------------------------------------------------------------------------------
 */

/* Forward: puts rows and probabilities into the order of experts. As the gradient of an unpermute:
 * puts rows back into that order by the existing map. */
mf_status mf_op_permute(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    const bool gradient = x->op->pass == MF_PASS_B;
    /* In a gradient `in` is dy [owners], out the rows. */
    mf_ops_order o = {.tokens = in->rows_max,
                      .choices = x->op->dim[MF_OP_DIM_CHOICES],
                      .least = x->op->dim[MF_OP_DIM_PADDED],
                      .ranks = x->op->dim[MF_OP_DIM_RANKS],
                      .rank_rows = mf_layout_slot_rows(x->env->layout, out->rows)};
    o.map = mf_row_map_of(gradient ? x->in[1].data : x->out[1].data, x->op->dim[MF_OP_DIM_EXPERTS],
                          out->rows_max, o.tokens * o.choices);
    mf_status status =
        gradient ? MF_OK : mf_ops_order_find(x, &o, x->in[1].data, x->env->scratch, e);
    status = status == MF_OK ? mf_ops_order_rows(x, &o, in->data, out, e) : status;
    if (gradient) {
        return status == MF_OK ? mf_ops_add_sum(x, 0, e) : status;
    }
    return status == MF_OK ? mf_ops_order_values(x, &o, x->in[2].data, x->out[2].data, e) : status;
}

/* Forward: sums each owner's rows. As the gradient of a permute: the same for dx, and computes the
 * gradient of each choice's probability. */
mf_status mf_op_unpermute(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0];
    const bool gradient = x->op->pass == MF_PASS_B;
    const int64_t experts = x->op->dim[MF_OP_DIM_EXPERTS];
    const mf_exec_tensor *by = &x->in[gradient ? 2 : 1];
    const int64_t slots = by->rows_max - mf_row_map_elements(experts, in->rows_max, 0);
    mf_ops_order o = {.choices = x->op->dim[MF_OP_DIM_CHOICES]};
    o.tokens = slots / o.choices;
    o.map = mf_row_map_of(by->data, experts, in->rows_max, slots);
    mf_status status = mf_ops_leave_order(x, &o, in, x->out[0].data, e);
    status = status == MF_OK ? mf_ops_add_sum(x, 0, e) : status;
    return status == MF_OK && gradient
               ? mf_ops_leave_order_values(x, &o, x->in[1].data, x->out[1].data, e)
               : status;
}
