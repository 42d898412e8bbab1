/* dispatch.c - the exchange of routed rows between expert-parallel ranks, by its dispatchers.
 *
 * No size depends on routing: all-gather moves all tokens; the others move slots of equal size, one
 * for each rank, of which some rows are empty. What finds no room in its slot is left out, and a
 * sticky flag tells (mf_exec_env.overflow).
 */
#include "executor/ops/transport.h"

#include "core/program/row_map.h"

typedef struct exchange {
    const mf_exec_op *x;
    mf_comm *comm;
    int64_t ep, me, local; /* members, own place, experts of a member */
    int64_t tokens, top_k, experts;
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
    s.slot = mf_layout_slot_rows(x->env->layout, arrived->rows);
    s.rows = s.ep * s.slot;
    for (int64_t i = 0; i < s.ep; i++) {
        s.counts[i] = s.slot;
    }
    return s;
}

/* Every slot to its rank: `width` bytes a row. */
static mf_status trade(const exchange *s, size_t width, const void *in, void *out, mf_err *e) {
    return mf_comm_all_to_all(s->comm, MF_GROUP_EP, width, in, s->counts, out, s->counts, e);
}

/* --- all-gather ----------------------------------------------------------------------------------
 */

/* All tokens; of their choices those of the own experts. */
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

/* The permute before has put the rows into slots; each says which expert it is for. */
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

/* Which copies stand where: made anew for each exchange, which is cheaper than keeping it. */
typedef struct copies {
    mf_row_map map; /* of ranks; slot t * ep + r: token t to rank r */
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
    out->map = mf_row_map_of(map, s->ep, s->rows, slots);
    out->rest = scratch;
    const mf_kernel_permute_map build = {.tokens = s->tokens,
                                         .top_k = s->ep,
                                         .experts = s->ep,
                                         .align = 1,
                                         .ranks = s->ep,
                                         .rank_rows = s->slot,
                                         .rows_max = s->rows,
                                         .index = rank,
                                         .counts = out->map.counts,
                                         .offsets = out->map.offsets,
                                         .row_of_slot = out->map.row_of_slot,
                                         .slot_of_row = out->map.slot_of_row,
                                         .overflow = out->map.overflow,
                                         .sticky = x->env->overflow,
                                         .workspace = scratch.at};
    mf_status status = mf_ops_device(x)->choices_ranks(x->queue, &ranks, e);
    return status == MF_OK ? mf_ops_device(x)->permute_map(x->queue, &build, e) : status;
}

/* Choices and probabilities of the copies, which travel beside them. */
static mf_status send_choices(const exchange *s, copies *c, mf_err *e) {
    const mf_exec_op *x = s->x;
    const size_t width = (size_t)s->top_k * 4;
    const mf_kernel_choices_send send = {
        .rows = s->rows,
        .top_k = s->top_k,
        .ranks = s->ep,
        .experts = s->experts,
        .slot_of_row = c->map.slot_of_row,
        .index = x->in[1].data,
        .prob = x->in[2].data,
        .row_index = mf_ops_take(&c->rest, (size_t)s->rows * width),
        .row_prob = mf_ops_take(&c->rest, (size_t)s->rows * width)};
    mf_status status = mf_ops_device(x)->choices_send(x->queue, &send, e);
    status = status == MF_OK ? trade(s, width, send.row_index, x->out[1].data, e) : status;
    return status == MF_OK ? trade(s, width, send.row_prob, x->out[2].data, e) : status;
}

static mf_status dispatch_copies(const exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    copies c;
    if (x->env->window != NULL) {
        return mf_ops_window_dispatch(x, e);
    }
    mf_status status = find_copies(s, x->in[1].data, &c, e);
    const mf_kernel_permute spread = {.dtype = x->in[0].dtype,
                                      .rows = s->rows,
                                      .cols = x->in[0].cols,
                                      .top_k = s->ep,
                                      .slot_of_row = c.map.slot_of_row,
                                      .row_of_slot = c.map.row_of_slot,
                                      .tokens = s->tokens,
                                      .x = x->in[0].data,
                                      .out = x->env->exchange};
    status = status == MF_OK ? mf_ops_device(x)->permute(x->queue, &spread, e) : status;
    if (status == MF_OK) {
        status = trade(s, mf_ops_row_B(&x->in[0]), x->env->exchange, x->out[0].data, e);
    }
    return status == MF_OK && x->op->pass != MF_PASS_B ? send_choices(s, &c, e) : status;
}

/* Each token's row is the sum of what comes back of its copies; gradients of probabilities come
 * from the copy for the rank of their expert. */
static mf_status combine_copies(const exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    const bool gradient = x->op->pass == MF_PASS_B;
    const int32_t *routing = x->in[gradient ? 2 : 1].data;
    copies c;
    if (x->env->window != NULL) {
        return mf_ops_window_combine(x, e);
    }
    mf_status status = find_copies(s, routing, &c, e);
    const mf_kernel_unpermute join = {.dtype = x->out[0].dtype,
                                      .tokens = s->tokens,
                                      .cols = x->out[0].cols,
                                      .top_k = s->ep,
                                      .row_of_slot = c.map.row_of_slot,
                                      .in = x->env->exchange,
                                      .y = x->out[0].data};
    if (status == MF_OK) {
        status = trade(s, mf_ops_row_B(&x->in[0]), x->in[0].data, x->env->exchange, e);
    }
    status = status == MF_OK ? mf_ops_device(x)->unpermute(x->queue, &join, e) : status;
    if (!gradient || status != MF_OK) {
        return status;
    }
    const size_t width = (size_t)s->top_k * 4;
    float *back = mf_ops_take(&c.rest, (size_t)s->rows * width);
    const mf_kernel_choices_return values = {.tokens = s->tokens,
                                             .top_k = s->top_k,
                                             .ranks = s->ep,
                                             .experts = s->experts,
                                             .row_of_slot = c.map.row_of_slot,
                                             .index = routing,
                                             .row_value = back,
                                             .out = x->out[1].data};
    status = trade(s, width, x->in[1].data, back, e);
    return status == MF_OK ? mf_ops_device(x)->choices_return(x->queue, &values, e) : status;
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
    if (status == MF_OK && x->op->pass != MF_PASS_B && s.by != MF_DISPATCH_ALLGATHER) {
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
