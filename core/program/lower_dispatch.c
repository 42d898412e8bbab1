/* lower_dispatch.c - rows to their experts and back: into the order of experts, between ranks. */
#include "core/program/dispatch_memory.h"
#include "core/program/lower_moe.h"
#include "core/program/row_map.h"

/* Reserves rows of y in `experts` runs: `slots` choices may be put there, `balanced` of them when
 * routing is balanced. */
static int16_t row_map(mf_build *bd, int16_t y, int64_t experts, int64_t balanced, int64_t slots) {
    const mf_tensor rows = *mf_build_t(bd, y);
    int16_t t =
        mf_build_tensor(bd, "row_map", mf_row_map_elements(experts, rows.rows, balanced), 1, 4.0);
    mf_tensor *map = mf_build_t(bd, t);
    map->bytes = 4 * mf_row_map_elements(experts, mf_tensor_rows_max(&rows), slots);
    map->drop = rows.drop;
    map->routed = rows.routed;
    map->indices = true;
    return t;
}

int64_t mf_routed_width(const mf_model *m) {
    return m->moe_latent > 0 ? m->moe_latent : m->hidden;
}

static int16_t reordered(mf_build *bd, const char *name, int64_t rows, bool routed) {
    int64_t h = mf_routed_width(bd->m);
    int16_t y = routed ? mf_build_routed(bd, name, rows, h, bd->act_B)
                       : mf_build_tensor(bd, name, rows, h, bd->act_B);
    mf_build_t(bd, y)->drop |= MF_RECOMPUTE_MOE;
    return y;
}

static mf_op *reorder_op(mf_build *bd, mf_op_kind kind, const char *name, int64_t rows_in,
                         int64_t rows_out) {
    int64_t h = mf_routed_width(bd->m);
    double moved =
        (double)rows_in + (double)rows_out; /* a row with several choices is read one time */
    mf_op *op = mf_build_memory_op(bd, kind, name, rows_out, h, moved * (double)h * bd->act_B);
    op->flags |= MF_OPF_ROUTED;
    return op;
}

/* The rows of so many experts in their order, with row map and probabilities. */
static mf_routed_rows in_order(mf_build *bd, int64_t rows, int64_t experts, int64_t balanced,
                               int64_t slots, bool routed) {
    int16_t y = reordered(bd, "permute", rows, routed);
    uint16_t drop = mf_build_t(bd, y)->drop;
    int16_t map = row_map(bd, y, experts, balanced, slots);
    int16_t probs = routed ? mf_build_routed(bd, "row_probs", rows, 1, 4.0)
                           : mf_build_tensor(bd, "row_probs", rows, 1, 4.0);
    mf_build_t(bd, probs)->drop = drop;
    return (mf_routed_rows){y, map, probs, rows, 1, true};
}

mf_routed_rows mf_lower_permute(mf_build *bd, mf_routed_rows in, int64_t rows, int64_t experts,
                                int64_t padded, int64_t ranks, bool routed) {
    const mf_tensor x = *mf_build_t(bd, in.x);
    mf_routed_rows out = in_order(bd, rows, experts, x.rows * in.choices,
                                  mf_tensor_rows_max(&x) * in.choices, routed);
    mf_op *op = reorder_op(bd, MF_OP_PERMUTE, "permute", in.rows, rows);
    op->dim[MF_OP_DIM_CHOICES] = in.choices;
    op->dim[MF_OP_DIM_EXPERTS] = experts;
    op->dim[MF_OP_DIM_PADDED] = padded;
    op->dim[MF_OP_DIM_RANKS] = ranks;
    mf_op_in(op, in.x);
    mf_op_in(op, in.map);
    mf_op_in(op, in.probs);
    mf_op_out(op, out.x);
    mf_op_out(op, out.map);
    mf_op_out(op, out.probs);
    return out;
}

/* The way back by the row map of that permute: the owner of a slot's token sums its rows. */
static int16_t unpermute(mf_build *bd, int16_t x, int16_t map, int64_t choices, int64_t experts,
                         int64_t rows_in, int64_t rows_out, bool routed) {
    int16_t y = reordered(bd, "unpermute", rows_out, routed);
    mf_op *op = reorder_op(bd, MF_OP_UNPERMUTE, "unpermute", rows_in, rows_out);
    op->dim[MF_OP_DIM_CHOICES] = choices;
    op->dim[MF_OP_DIM_EXPERTS] = experts;
    mf_op_in(op, x);
    mf_op_in(op, map);
    mf_op_out(op, y);
    return y;
}

static mf_op *exchange_op(mf_build *bd, mf_op_kind kind, const mf_moe_sizes *s, bool ordered) {
    const mf_model *m = bd->m;
    double row_B = (double)mf_routed_width(m) * bd->act_B;
    mf_op *op =
        mf_build_collective(bd, kind, kind == MF_OP_DISPATCH ? "dispatch" : "combine", MF_STREAM_EP,
                            MF_GROUP_EP, (double)(s->tokens * m->top_k) * row_B);
    op->flags |= MF_OPF_ROUTED;
    op->dim[MF_OP_DIM_TOKENS] = s->tokens;
    op->dim[MF_OP_DIM_ROW_B] = (int64_t)row_B;
    op->dim[MF_OP_DIM_TOP_K] = m->top_k;
    op->dim[MF_OP_DIM_EXPERTS] = m->experts;
    op->dim[MF_OP_DIM_DISPATCHER] = bd->l->dispatcher;
    op->dim[MF_OP_DIM_GROUPS_MAX] =
        m->n_group > 1 && m->topk_group < m->n_group ? m->topk_group : 0;
    op->dim[MF_OP_DIM_ROUTE_GROUPS] = m->n_group;
    op->dim[MF_OP_DIM_ORDERED] = ordered ? s->rows : 0;
    return op;
}

static mf_op *routed_collective(mf_build *bd, mf_op_kind kind, const char *name,
                                mf_group_kind group, double bytes) {
    mf_op *op = mf_build_collective(bd, kind, name, MF_STREAM_EP, group, bytes);
    op->flags |= MF_OPF_ROUTED;
    return op;
}

/* Tensors for rows that arrive: rows, their choices and probabilities. */
static mf_routed_rows arriving(mf_build *bd, const char *name, int64_t rows, int64_t choices,
                               bool routed) {
    static const char *const beside[2] = {"arrived_map", "arrived_probs"};
    int64_t h = mf_routed_width(bd->m);
    int16_t t[3];
    for (int i = 0; i < 3; i++) {
        const char *text = i == 0 ? name : beside[i - 1];
        int64_t cols = i == 0 ? h : choices;
        double element_B = i == 0 ? bd->act_B : 4.0;
        t[i] = routed ? mf_build_routed(bd, text, rows, cols, element_B)
                      : mf_build_tensor(bd, text, rows, cols, element_B);
        mf_build_t(bd, t[i])->drop |= MF_DROP_ALWAYS;
    }
    mf_build_t(bd, t[1])->indices = true;
    return (mf_routed_rows){t[0], t[1], t[2], rows, choices, false};
}

/* The rows that arrive, of tokens in a window or of their copies in slots: the same count by either
 * way. */
static mf_routed_rows arriving_in_order(mf_build *bd, const mf_moe_sizes *s) {
    const int64_t come = mf_dispatch_arriving(bd->m, bd->l, s->tokens), k = bd->m->top_k;
    const int64_t slots = bd->l->ep * mf_layout_slot_rows(bd->l, come);
    const int64_t all = bd->l->ep * s->tokens;
    return in_order(bd, s->rows, s->experts, come * k, (slots > all ? slots : all) * k,
                    s->padded == 0);
}

mf_routed_rows mf_lower_dispatch(mf_build *bd, const mf_moe_sizes *s, mf_routed_rows own,
                                 int16_t *way) {
    const mf_layout *l = bd->l;
    double row_B = (double)mf_routed_width(bd->m) * bd->act_B;
    const mf_routed_shape shape = {s->tokens, bd->m->top_k, mf_routed_width(bd->m), bd->act_B};
    mf_routed_rows x = own;
    bd->module = MF_MODULE_DISPATCH;
    if (l->ep > 1) {
        if (l->dispatcher == MF_DISPATCH_ALLTOALL) {
            own = mf_lower_permute(bd, own, s->routed, bd->m->experts, 0, l->ep, true);
            mf_build_t(bd, own.x)->drop |= MF_DROP_ALWAYS;
            x = arriving(bd, "ep_tokens", s->routed, 1, true);
        } else if (l->dispatcher == MF_DISPATCH_ALLGATHER) {
            x = arriving(bd, "ep_tokens", s->tokens * l->ep, bd->m->top_k, false);
        } else if (mf_dispatch_orders(l, bd->c, &shape)) {
            x = arriving_in_order(bd, s);
        } else { /* fused: one copy for each destination, spread out on arrival */
            x = arriving(bd, "ep_tokens", mf_dispatch_arriving(bd->m, l, s->tokens), bd->m->top_k,
                         true);
        }
        *way = own.map;
        mf_op *op = exchange_op(bd, MF_OP_DISPATCH, s, x.ordered);
        mf_op_in(op, own.x);
        mf_op_in(op, own.map);
        mf_op_in(op, own.probs);
        mf_op_out(op, x.x);
        mf_op_out(op, x.map);
        mf_op_out(op, x.probs);
    }
    if (l->etp > 1) { /* every ETP rank works on the rows of all of them */
        mf_routed_rows all = arriving(bd, "etp_tokens", x.rows * l->etp, x.choices,
                                      l->ep > 1 && l->dispatcher != MF_DISPATCH_ALLGATHER);
        mf_op *op = routed_collective(bd, MF_OP_ALL_GATHER, "etp_all_gather", MF_GROUP_ETP,
                                      (double)all.rows * row_B);
        mf_op_in(op, x.x);
        mf_op_in(op, x.map);
        mf_op_in(op, x.probs);
        mf_op_out(op, all.x);
        mf_op_out(op, all.map);
        mf_op_out(op, all.probs);
        x = all;
    }
    return x;
}

/* Takes rows out of the order of experts and sums over ETP ranks. */
static int16_t leave_experts(mf_build *bd, const mf_moe_sizes *s, int16_t y,
                             const mf_routed_rows *arrived, int16_t map) {
    const mf_layout *l = bd->l;
    const int64_t rows_out = arrived->rows / l->etp, h = mf_routed_width(bd->m);
    bool routed = mf_build_t(bd, arrived->x)->routed;
    int16_t x = unpermute(bd, y, map, arrived->choices, s->experts, s->rows, arrived->rows, routed);
    if (l->etp > 1) {
        int16_t own = routed ? mf_build_routed(bd, "etp_reduce_scatter", rows_out, h, bd->act_B)
                             : mf_build_tensor(bd, "etp_reduce_scatter", rows_out, h, bd->act_B);
        mf_op *op = routed_collective(bd, MF_OP_REDUCE_SCATTER, "etp_reduce_scatter", MF_GROUP_ETP,
                                      (double)(rows_out * l->etp) * (double)h * bd->act_B);
        mf_op_in(op, x);
        mf_op_out(op, own);
        x = own;
    }
    return x;
}

int16_t mf_lower_combine(mf_build *bd, const mf_moe_sizes *s, int16_t y, mf_routed_rows arrived,
                         int16_t map, int16_t way) {
    const mf_layout *l = bd->l;
    const int64_t h = mf_routed_width(bd->m);
    bd->module = MF_MODULE_DISPATCH;
    int16_t x = arrived.ordered ? y : leave_experts(bd, s, y, &arrived, map);
    if (l->ep == 1) {
        return x;
    }
    bool sum_after = l->dispatcher == MF_DISPATCH_ALLTOALL;
    int16_t back = sum_after ? mf_build_routed(bd, "ep_combined", s->routed, h, bd->act_B)
                             : mf_build_tensor(bd, "ep_combined", s->tokens, h, bd->act_B);
    mf_op *op = exchange_op(bd, MF_OP_COMBINE, s, arrived.ordered);
    mf_op_in(op, x);
    mf_op_in(op, way);
    mf_op_in(op, arrived.ordered ? map : MF_NO_TENSOR);
    mf_op_out(op, back);
    return sum_after
               ? unpermute(bd, back, way, bd->m->top_k, bd->m->experts, s->routed, s->tokens, false)
               : back;
}
