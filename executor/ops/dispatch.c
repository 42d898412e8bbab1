/* dispatch.c - the exchange of routed rows between expert-parallel ranks, by its dispatchers.
 *
 * No size depends on routing: all-gather moves all tokens; the others move slots of equal size, one
 * for each rank, with some empty rows. Rows that do not fit into their slot are dropped, which sets
 * a sticky flag (mf_exec_env.overflow).
 */
#include "executor/ops/transport.h"

#include "core/program/row_map.h"

typedef struct exchange {
    const mf_exec_op *x;
    mf_comm *comm;
    int64_t ep, me, local; /* members, own place, experts of a member */
    int64_t tokens, top_k, experts;
    bool ordered;                      /* rows arrive in the order of this rank's experts */
    int64_t slot, rows;                /* rows of a slot, of all slots */
    int64_t counts[MF_COMM_MAX_GROUP]; /* rows to each member, and from each */
    mf_dispatcher by;
} exchange;

static exchange exchange_of(const mf_exec_op *x) {
    exchange s = {.x = x, .comm = x->env->comm};
    const mf_exec_tensor *arrived = x->op->kind == MF_OP_DISPATCH ? &x->out[0] : &x->in[0];
    s.ep = mf_comm_group_size(s.comm, MF_GROUP_EP);
    s.me = mf_comm_group_rank(s.comm, MF_GROUP_EP);
    s.tokens = x->op->dim[MF_OP_DIM_TOKENS];
    s.top_k = x->op->dim[MF_OP_DIM_TOP_K];
    s.experts = x->op->dim[MF_OP_DIM_EXPERTS];
    s.local = s.experts / s.ep;
    s.by = (mf_dispatcher)x->op->dim[MF_OP_DIM_DISPATCHER];
    s.ordered = x->op->dim[MF_OP_DIM_ORDERED] > 0;
    s.slot = mf_layout_slot_rows(
        x->env->layout,
        s.ordered ? mf_dispatch_arriving(x->env->model, x->env->layout, s.tokens) : arrived->rows);
    s.rows = s.ep * s.slot;
    for (int64_t i = 0; i < s.ep; i++) {
        s.counts[i] = s.slot;
    }
    return s;
}

/* Sends every slot to its rank, `width` bytes a row. */
static mf_status trade(const exchange *s, size_t width, const void *in, void *out, mf_err *e) {
    return mf_comm_all_to_all(s->comm, MF_GROUP_EP, width, in, s->counts, out, s->counts, e);
}

/* --- all-gather ----------------------------------------------------------------------------------
 */

/* Gathers all tokens; keeps the choices of this rank's experts. */
static mf_status dispatch_gathered(const exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    const int64_t choices = s->tokens * s->top_k;
    mf_status status =
        mf_comm_all_gather(s->comm, MF_GROUP_EP, mf_ops_type(&x->in[0]), x->in[0].data,
                           x->out[0].data, s->tokens * x->in[0].cols, e);
    if (x->op->pass == MF_PASS_B || status != MF_OK) {
        return status;
    }
    const mf_kernel_choices_keep keep = {.count = s->ep * choices,
                                         .first = s->me * s->local,
                                         .experts = s->local,
                                         .index = x->out[1].data};
    status = mf_comm_all_gather(s->comm, MF_GROUP_EP, MF_COMM_I32, x->in[1].data, x->out[1].data,
                                choices, e);
    if (status == MF_OK) {
        status = mf_comm_all_gather(s->comm, MF_GROUP_EP, MF_COMM_F32, x->in[2].data,
                                    x->out[2].data, choices, e);
    }
    return status == MF_OK ? mf_ops_device(x)->choices_keep(x->queue, &keep, e) : status;
}

static mf_status combine_gathered(const exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    int64_t counts[MF_COMM_MAX_GROUP];
    mf_status status = MF_OK;
    for (int k = 0; k < x->op->nout && status == MF_OK; k++) {
        for (int64_t i = 0; i < s->ep; i++) {
            counts[i] = s->tokens * x->out[k].cols;
        }
        status = mf_comm_reduce_scatter(s->comm, MF_GROUP_EP, mf_ops_type(&x->in[k]), x->in[k].data,
                                        x->out[k].data, counts, e);
    }
    return status;
}

/* --- all-to-all: a row for each choice -----------------------------------------------------------
 */

/* The permute before it has put the rows into slots; each row comes with the number of its expert.
 */
static mf_status dispatch_choices(const exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    mf_status status = trade(s, mf_ops_row_B(&x->in[0]), x->in[0].data, x->out[0].data, e);
    if (x->op->pass == MF_PASS_B || status != MF_OK) {
        return status;
    }
    const mf_row_map map = mf_row_map_of(x->in[1].data, s->experts, 0, 0);
    mf_ops_scratch scratch = mf_ops_scratch_of(x);
    int32_t *choice = mf_ops_take(&scratch, (size_t)s->rows * sizeof *choice);
    const mf_kernel_choices_of_rows of_rows = {.ranks = s->ep,
                                               .experts = s->experts,
                                               .rank_rows = s->slot,
                                               .offsets = map.offsets,
                                               .counts = map.counts,
                                               .index = choice};
    status = mf_ops_device(x)->choices_of_rows(x->queue, &of_rows, e);
    status = status == MF_OK ? trade(s, sizeof *choice, choice, x->out[1].data, e) : status;
    return status == MF_OK ? trade(s, sizeof(float), x->in[2].data, x->out[2].data, e) : status;
}

static mf_status combine_choices(const exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    mf_status status = MF_OK;
    for (int k = 0; k < x->op->nout && status == MF_OK; k++) {
        status = trade(s, mf_ops_row_B(&x->in[k]), x->in[k].data, x->out[k].data, e);
    }
    return status;
}

/* --- fused: a copy of a token for each rank that it reaches --------------------------------------
 */

/* Through a window where there is one (window.c), else in slots. */

/* Finds the row of each copy: computed again for each exchange, which is cheaper than keeping
 * it. */
typedef struct copies {
    mf_ops_order order; /* order by ranks; choice r of a token is its copy for rank r */
    mf_ops_scratch rest;
} copies;

static mf_status find_copies(const exchange *s, const int32_t *routing, copies *out, mf_err *e) {
    const mf_exec_op *x = s->x;
    const int64_t slots = s->tokens * s->ep;
    mf_ops_scratch scratch = mf_ops_scratch_of(x);
    int32_t *rank = mf_ops_take(&scratch, (size_t)slots * sizeof *rank);
    void *map = mf_ops_take(&scratch, 4 * (size_t)mf_row_map_elements(s->ep, s->rows, slots));
    const mf_kernel_choices_ranks ranks = {.tokens = s->tokens,
                                           .top_k = s->top_k,
                                           .ranks = s->ep,
                                           .experts = s->experts,
                                           .index = routing,
                                           .rank = rank};
    out->order = (mf_ops_order){.map = mf_row_map_of(map, s->ep, s->rows, slots),
                                .tokens = s->tokens,
                                .choices = s->ep,
                                .ranks = s->ep,
                                .rank_rows = s->slot};
    out->rest = scratch;
    mf_status status = mf_ops_device(x)->choices_ranks(x->queue, &ranks, e);
    return status == MF_OK ? mf_ops_order_find(x, &out->order, rank, scratch.at, e) : status;
}

/* Sends the choices and probabilities that belong to the copies. */
static mf_status send_choices(const exchange *s, copies *c, void *index, void *prob, mf_err *e) {
    const mf_exec_op *x = s->x;
    const size_t width = (size_t)s->top_k * 4;
    const mf_kernel_choices_send send = {
        .rows = s->rows,
        .top_k = s->top_k,
        .ranks = s->ep,
        .experts = s->experts,
        .slot_of_row = c->order.map.slot_of_row,
        .index = x->in[1].data,
        .prob = x->in[2].data,
        .row_index = mf_ops_take(&c->rest, (size_t)s->rows * width),
        .row_prob = mf_ops_take(&c->rest, (size_t)s->rows * width)};
    mf_status status = mf_ops_device(x)->choices_send(x->queue, &send, e);
    status = status == MF_OK ? trade(s, width, send.row_index, index, e) : status;
    return status == MF_OK ? trade(s, width, send.row_prob, prob, e) : status;
}

/* The tensor of all copies that are sent, or of those that arrive. */
static mf_exec_tensor copies_of(const exchange *s, const mf_exec_tensor *like, bool come) {
    const int64_t all_B = mf_align_B(s->rows * (int64_t)mf_ops_row_B(like));
    return (mf_exec_tensor){.data = (char *)s->x->env->exchange + (come ? all_B : 0),
                            .rows = s->rows,
                            .cols = like->cols,
                            .rows_max = s->rows,
                            .dtype = like->dtype};
}

/* Puts what arrived into the order of experts; in the forward pass by the choices that came with
 * it. */
static mf_status order_copies(const exchange *s, copies *c, mf_err *e) {
    const mf_exec_op *x = s->x;
    const bool gradient = x->op->pass == MF_PASS_B;
    const mf_exec_tensor come = copies_of(s, &x->out[0], true);
    const mf_ops_order o =
        mf_ops_order_of(x, gradient ? &x->in[2] : &x->out[1], x->out[0].rows_max, s->rows);
    if (gradient) {
        return mf_ops_order_rows(x, &o, come.data, &x->out[0], e);
    }
    const size_t choices_B = (size_t)(s->rows * s->top_k) * 4;
    mf_ops_scratch rest = c->rest;
    rest.at += 2 * mf_align_B((int64_t)choices_B); /* what is sent of them */
    int32_t *index = mf_ops_take(&rest, choices_B);
    float *prob = mf_ops_take(&rest, choices_B);
    mf_status status = send_choices(s, c, index, prob, e);
    status = status == MF_OK ? mf_ops_order_find(x, &o, index, rest.at, e) : status;
    status = status == MF_OK ? mf_ops_order_rows(x, &o, come.data, &x->out[0], e) : status;
    return status == MF_OK ? mf_ops_order_values(x, &o, prob, x->out[2].data, e) : status;
}

static mf_status dispatch_copies(const exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    copies c;
    if (x->env->window != NULL) {
        return mf_ops_window_dispatch(x, e);
    }
    const mf_exec_tensor sent = copies_of(s, &x->in[0], false);
    const mf_exec_tensor come = s->ordered ? copies_of(s, &x->in[0], true) : x->out[0];
    mf_status status = find_copies(s, x->in[1].data, &c, e);
    status = status == MF_OK ? mf_ops_order_rows(x, &c.order, x->in[0].data, &sent, e) : status;
    status = status == MF_OK ? trade(s, mf_ops_row_B(&sent), sent.data, come.data, e) : status;
    if (status != MF_OK || s->ordered) {
        return status == MF_OK ? order_copies(s, &c, e) : status;
    }
    return x->op->pass != MF_PASS_B ? send_choices(s, &c, x->out[1].data, x->out[2].data, e)
                                    : MF_OK;
}

/* Sums the experts' rows of each copy and, for a gradient, takes its values out of expert order.
 * give: what is sent back. */
static mf_status leave_experts(const exchange *s, mf_exec_tensor give[2], mf_ops_scratch *rest,
                               mf_err *e) {
    const mf_exec_op *x = s->x;
    const bool gradient = x->op->pass == MF_PASS_B;
    give[0] = x->in[0];
    give[1] = x->in[1];
    if (!s->ordered) {
        return MF_OK;
    }
    const mf_ops_order o = mf_ops_order_of(x, &x->in[gradient ? 3 : 2], x->in[0].rows_max, s->rows);
    give[0] = copies_of(s, &x->in[0], true);
    mf_status status = mf_ops_leave_order(x, &o, &x->in[0], give[0].data, e);
    if (!gradient || status != MF_OK) {
        return status;
    }
    give[1].data = mf_ops_take(rest, (size_t)(s->rows * s->top_k) * sizeof(float));
    return mf_ops_leave_order_values(x, &o, x->in[1].data, give[1].data, e);
}

/* Sums the returned copies of each token into its row; gradients of probabilities come from the
 * copy for the rank of their expert. */
static mf_status combine_copies(const exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    const bool gradient = x->op->pass == MF_PASS_B;
    const int32_t *routing = x->in[gradient ? 2 : 1].data;
    mf_exec_tensor give[2];
    copies c;
    if (x->env->window != NULL) {
        return mf_ops_window_combine(x, e);
    }
    const mf_exec_tensor back = copies_of(s, &x->out[0], false);
    mf_status status = find_copies(s, routing, &c, e);
    status = status == MF_OK ? leave_experts(s, give, &c.rest, e) : status;
    if (status == MF_OK) {
        status = trade(s, mf_ops_row_B(&back), give[0].data, back.data, e);
    }
    status = status == MF_OK ? mf_ops_leave_order(x, &c.order, &back, x->out[0].data, e) : status;
    if (!gradient || status != MF_OK) {
        return status;
    }
    const size_t width = (size_t)s->top_k * 4;
    float *values = mf_ops_take(&c.rest, (size_t)s->rows * width);
    const mf_kernel_choices_return spread = {.tokens = s->tokens,
                                             .top_k = s->top_k,
                                             .ranks = s->ep,
                                             .experts = s->experts,
                                             .row_of_slot = c.order.map.row_of_slot,
                                             .index = routing,
                                             .row_value = values,
                                             .out = x->out[1].data};
    status = trade(s, width, give[1].data, values, e);
    return status == MF_OK ? mf_ops_device(x)->choices_return(x->queue, &spread, e) : status;
}

/* --- ops -----------------------------------------------------------------------------------------
 */

typedef mf_status (*exchange_fn)(const exchange *s, mf_err *e);

mf_status mf_op_dispatch(const mf_exec_op *x, mf_err *e) {
    static const exchange_fn by[MF_DISPATCH_COUNT] = {
        [MF_DISPATCH_ALLGATHER] = dispatch_gathered,
        [MF_DISPATCH_ALLTOALL] = dispatch_choices,
        [MF_DISPATCH_FUSED] = dispatch_copies,
    };
    const exchange s = exchange_of(x);
    mf_status status = by[s.by](&s, e);
    if (status == MF_OK && x->op->pass != MF_PASS_B && s.by != MF_DISPATCH_ALLGATHER &&
        !s.ordered) {
        status = mf_ops_no_choices_after(x, &x->out[1], s.rows, e);
    }
    return status == MF_OK ? mf_ops_add_sum(x, 0, e) : status;
}

mf_status mf_op_combine(const mf_exec_op *x, mf_err *e) {
    static const exchange_fn by[MF_DISPATCH_COUNT] = {
        [MF_DISPATCH_ALLGATHER] = combine_gathered,
        [MF_DISPATCH_ALLTOALL] = combine_choices,
        [MF_DISPATCH_FUSED] = combine_copies,
    };
    const exchange s = exchange_of(x);
    mf_status status = by[s.by](&s, e);
    return status == MF_OK ? mf_ops_add_sum(x, 0, e) : status;
}
