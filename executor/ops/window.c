/* window.c - a fused dispatcher through the kernels that write into other GPUs' memory
 * (kernels/dispatch/dispatch.h).
 *
 * Dispatch: the kernel writes tokens into the window, which has a row for each token of each rank;
 * some stay empty. The queue then copies them into the order of this rank's experts. Combine reads
 * the experts' rows in place and sends each token's sum.
 *
 * Where ETP ranks share rows first (not MF_OP_DIM_ORDERED), the rows that arrived are copied out in
 * the order of ranks and tokens, and combine sends a row for each of them, already summed over this
 * rank's experts.
 *
 * Who may write when: a rank's kernel stores nothing before the kernels of its peers have begun
 * (their first barrier), and each rank enqueues its kernel after everything that reads its window.
 * That holds because a rank's exchanges are ordered: they run on the queue of EP, or on that of
 * compute, which waits for the other at the end of a block. So rows and sums share the window's
 * memory, and one window serves all layers, passes and micro-batches. The kernels' barriers count
 * on the device, so a graph that is played again continues from the last kernel's count.
 *
 * What arrived is known until the next dispatch of the same side (of a merged pair). The combine of
 * the same tokens comes before that, since each pass of a block begins with the one and ends with
 * the other.
 */
#include "executor/ops/transport.h"

/* What a rank knows of the tokens that arrived last. */
typedef struct arrivals {
    bool ordered;
    int64_t tokens, rows; /* tokens of all ranks; rows that fit among those that arrived */
    mf_ops_order
        order; /* rows in the row map's order; else in one run, of tokens with an expert here */
    int32_t *local; /* [tokens, top_k] */
    float *back;    /* [tokens, top_k] */
} arrivals;

/* `there`: rows as they stand at their experts; `map`: of MF_OP_DIM_ORDERED. */
static arrivals arrivals_of(const mf_exec_op *x, const mf_exec_tensor *there,
                            const mf_exec_tensor *map) {
    const mf_ops_window *w = x->env->window;
    const mf_layout *l = x->env->layout;
    char *at = w->kept + x->side * w->memory.side_B;
    arrivals a = {.ordered = x->op->dim[MF_OP_DIM_ORDERED] > 0,
                  .tokens = l->ep * x->op->dim[MF_OP_DIM_TOKENS]};
    if (a.ordered) {
        a.order = mf_ops_order_of(x, map, there->rows_max, a.tokens);
        a.order.sparse = true; /* tokens that did not arrive have no row */
    } else {
        a.rows = l->ep * mf_layout_slot_rows(l, there->rows);
        a.order = (mf_ops_order){
            .map = mf_row_map_of(at, 1, a.rows, a.tokens), .tokens = a.tokens, .choices = 1};
    }
    a.local = (int32_t *)(void *)(at + w->memory.map_B);
    a.back = (float *)(void *)(w->kept + w->memory.sides * w->memory.side_B);
    return a;
}

static int64_t own_experts(const mf_exec_op *x) {
    return x->op->dim[MF_OP_DIM_EXPERTS] / x->env->layout->ep;
}

static mf_status keep_choices(const mf_exec_op *x, const arrivals *a, mf_err *e) {
    const int64_t choices = a->tokens * x->op->dim[MF_OP_DIM_TOP_K];
    return mf_ops_device(x)->copy(x->queue, a->local, x->env->window->view.index,
                                  (size_t)choices * sizeof *a->local, e);
}

/* --- in the order of experts ---------------------------------------------------------------------
 */

static mf_status dispatch_ordered(const mf_exec_op *x, const arrivals *a, mf_err *e) {
    const mf_dispatch_view *v = &x->env->window->view;
    const bool gradient = x->op->pass == MF_PASS_B;
    mf_status status =
        gradient ? MF_OK : mf_ops_order_find(x, &a->order, a->local, x->env->scratch, e);
    status = status == MF_OK ? mf_ops_order_rows(x, &a->order, v->rows, &x->out[0], e) : status;
    return status == MF_OK && !gradient
               ? mf_ops_order_values(x, &a->order, v->prob, x->out[2].data, e)
               : status;
}

/* --- as they came --------------------------------------------------------------------------------
 */

/* Finds which tokens arrived, and their rows. */
static mf_status find_arrivals(const mf_exec_op *x, const arrivals *a, mf_err *e) {
    mf_ops_scratch scratch = mf_ops_scratch_of(x);
    int32_t *here = mf_ops_take(&scratch, (size_t)a->tokens * sizeof *here);
    const mf_kernel_choices_ranks came = {.tokens = a->tokens,
                                          .top_k = x->op->dim[MF_OP_DIM_TOP_K],
                                          .ranks = 1,
                                          .experts = own_experts(x),
                                          .index = a->local,
                                          .rank = here};
    mf_status status = mf_ops_device(x)->choices_ranks(x->queue, &came, e);
    return status == MF_OK ? mf_ops_order_find(x, &a->order, here, scratch.at, e) : status;
}

static mf_status dispatch_as_came(const mf_exec_op *x, const arrivals *a, mf_err *e) {
    const mf_device_ops *k = mf_ops_device(x);
    const mf_dispatch_view *v = &x->env->window->view;
    const mf_kernel_permute gather = {.dtype = x->out[0].dtype,
                                      .rows = a->rows,
                                      .cols = x->out[0].cols,
                                      .top_k = 1,
                                      .slot_of_row = a->order.map.slot_of_row,
                                      .row_of_slot = a->order.map.row_of_slot,
                                      .tokens = a->tokens,
                                      .x = v->rows,
                                      .out = x->out[0].data};
    mf_status status = find_arrivals(x, a, e);
    status = status == MF_OK ? k->permute(x->queue, &gather, e) : status;
    if (x->op->pass == MF_PASS_B || status != MF_OK) {
        return status;
    }
    const mf_kernel_choices_send beside = {.rows = a->rows,
                                           .top_k = x->op->dim[MF_OP_DIM_TOP_K],
                                           .ranks = 1,
                                           .experts = own_experts(x),
                                           .slot_of_row = a->order.map.slot_of_row,
                                           .index = a->local,
                                           .prob = v->prob,
                                           .row_index = x->out[1].data,
                                           .row_prob = x->out[2].data};
    return k->choices_send(x->queue, &beside, e);
}

/* --- both ----------------------------------------------------------------------------------------
 */

mf_status mf_ops_window_dispatch(const mf_exec_op *x, mf_err *e) {
    const bool gradient = x->op->pass == MF_PASS_B;
    const arrivals a = arrivals_of(x, &x->out[0], gradient ? &x->in[2] : &x->out[1]);
    const mf_kernel_dispatch send = {.x = x->in[0].data,
                                     .index = x->in[1].data,
                                     .prob = gradient ? NULL : x->in[2].data,
                                     .beside = x->beside};
    mf_status status = mf_ops_device(x)->window_dispatch(x->queue, x->env->window->group, &send, e);
    status = status == MF_OK ? keep_choices(x, &a, e) : status;
    if (status != MF_OK) {
        return status;
    }
    return a.ordered ? dispatch_ordered(x, &a, e) : dispatch_as_came(x, &a, e);
}

/* Spreads gradients of probabilities from the rows that arrived to the choices of all ranks'
 * tokens. A dropped choice, which no rank sends back, gets 0. */
static mf_status spread_gradients(const mf_exec_op *x, const arrivals *a, mf_err *e) {
    const mf_device_ops *k = mf_ops_device(x);
    const mf_kernel_choices_return spread = {.tokens = a->tokens,
                                             .top_k = x->op->dim[MF_OP_DIM_TOP_K],
                                             .ranks = 1,
                                             .experts = own_experts(x),
                                             .row_of_slot = a->order.map.row_of_slot,
                                             .index = a->local,
                                             .row_value = x->in[1].data,
                                             .out = a->back};
    const int64_t own = x->op->dim[MF_OP_DIM_TOKENS] * x->op->dim[MF_OP_DIM_TOP_K];
    mf_status status =
        k->zero(x->queue, x->env->window->view.prob_grad, (size_t)own * sizeof *a->back, e);
    if (status != MF_OK) {
        return status;
    }
    return a->ordered ? mf_ops_leave_order_values(x, &a->order, x->in[1].data, a->back, e)
                      : k->choices_return(x->queue, &spread, e);
}

mf_status mf_ops_window_combine(const mf_exec_op *x, mf_err *e) {
    const mf_device_ops *k = mf_ops_device(x);
    const mf_ops_window *w = x->env->window;
    const bool gradient = x->op->pass == MF_PASS_B;
    const arrivals a = arrivals_of(x, &x->in[0], &x->in[gradient ? 3 : 2]);
    const mf_kernel_combine join = {.y = x->in[0].data,
                                    .local = a.local,
                                    .row_of_slot = a.order.map.row_of_slot,
                                    .slot_grad = gradient ? a.back : NULL,
                                    .index = x->in[gradient ? 2 : 1].data,
                                    .out = x->out[0].data,
                                    .by_token = !a.ordered,
                                    .beside = x->beside};
    mf_status status = gradient ? spread_gradients(x, &a, e) : MF_OK;
    status = status == MF_OK ? k->window_combine(x->queue, w->group, &join, e) : status;
    if (!gradient || status != MF_OK) {
        return status;
    }
    const int64_t own = x->op->dim[MF_OP_DIM_TOKENS] * x->op->dim[MF_OP_DIM_TOP_K];
    return k->copy(x->queue, x->out[1].data, w->view.prob_grad, (size_t)own * sizeof(float), e);
}
