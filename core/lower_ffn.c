/* lower_ffn.c - forward pass of dense MLPs and of Mixture-of-Experts layers. */
#include "core/lower_build.h"

#include <math.h>

/* y = silu(gate) * up (* router probability): reads 2 x width, writes width. */
static int16_t swiglu(mf_build *bd, int16_t fc1, int64_t rows, int64_t width, bool routed,
                      int16_t probs) {
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_ACT;
    int16_t y = routed ? mf_build_routed(bd, "activation", rows, width, bd->act_B)
                       : mf_build_tensor(bd, "activation", rows, width, bd->act_B);
    bd->drop = outer;
    mf_build_t(bd, y)->offload = routed ? MF_OFFLOAD_EXPERT_FC1 : MF_OFFLOAD_FFN;
    mf_op *op = mf_build_memory_op(bd, MF_OP_SWIGLU_FWD, "swiglu", rows, width,
                                   3.0 * (double)rows * (double)width * bd->act_B);
    op->flags |= routed ? MF_OPF_ROUTED : 0;
    mf_op_in(op, fc1);
    mf_op_in(op, probs);
    mf_op_out(op, y);
    return y;
}

int16_t mf_lower_mlp(mf_build *bd, int16_t x, int64_t width, mf_weight_part part,
                     uint16_t drop_fc1) {
    int64_t local = width / bd->l->tp;
    mf_linear fc1 = {"fc1", part, bd->m->hidden, 2 * local, bd->m->ffn_bias, bd->math};
    uint16_t outer = bd->drop;
    bd->drop |= drop_fc1;
    int16_t h = mf_lower_column_parallel(bd, &fc1, x);
    mf_build_t(bd, h)->offload = MF_OFFLOAD_FFN;
    int16_t a = swiglu(bd, h, bd->tokens_attn, local, false, MF_NO_TENSOR);
    mf_linear fc2 = {"fc2", part, local, bd->m->hidden, bd->m->ffn_bias, bd->math};
    int16_t y = mf_lower_row_parallel(bd, &fc2, a);
    bd->drop = outer;
    return y;
}

/* --- Mixture of Experts ----------------------------------------------------------------------- */

typedef struct moe {
    int64_t tokens;  /* of this rank */
    int64_t routed;  /* rows after dispatch over EP, balanced: tokens * top_k */
    int64_t rows;    /* rows that the local experts work on: routed * ETP */
    int64_t experts; /* local */
    int64_t width;   /* of a local expert shard */
} moe;

/* Scores, top-k, counts. The chosen experts are kept even under full recomputation: routing the
 * second time as the first is what makes recomputation right. */
static void router(mf_build *bd, const moe *s, int16_t xn, int16_t *map, int16_t *probs) {
    const mf_model *m = bd->m;
    bd->module = MF_MODULE_ROUTER;
    mf_linear w = {"router",   MF_PART_ROUTER, m->hidden,
                   m->experts, m->router_bias, bd->act_B > 2 ? MF_MATH_FP32 : MF_MATH_BF16};
    int16_t logits = mf_lower_linear(bd, &w, xn, s->tokens);
    *map = mf_build_tensor(bd, "routing_map", s->tokens, m->top_k, 4.0);
    *probs = mf_build_tensor(bd, "probs", s->tokens, m->top_k, 4.0);
    mf_tensor *t = mf_build_t(bd, logits);
    t->element_B = 4.0;
    t->bytes = t->rows * t->cols * 4;
    mf_build_t(bd, *map)->drop = 0;
    mf_build_t(bd, *map)->indices = true;
    double n = (double)s->tokens * (double)m->experts;
    mf_op *op = mf_build_memory_op(bd, MF_OP_ROUTER_FWD, "router_topk", s->tokens, m->experts,
                                   n * 4.0 + (double)(s->tokens * m->top_k) * 8.0);
    mf_op_in(op, logits);
    mf_op_out(op, *map);
    mf_op_out(op, *probs);
    mf_group_shape shape = mf_layout_group(bd->l, MF_GROUP_TP_CP);
    if (shape.size > 1 && m->aux_loss_coef > 0) {
        int16_t counts = mf_build_tensor(bd, "expert_counts", m->experts, 1, 4.0);
        op = mf_build_collective(bd, MF_OP_ALL_REDUCE, "aux_loss_counts", MF_STREAM_TP,
                                 MF_GROUP_TP_CP, (double)m->experts * 4.0);
        mf_op_in(op, *map);
        mf_op_out(op, counts);
        mf_build_last(bd)->no_grad = true;
    }
}

/* Rows into another order. */
static int16_t reorder(mf_build *bd, mf_op_kind kind, const char *name, int16_t x, int16_t map,
                       int64_t rows_in, int64_t rows_out, bool routed) {
    int64_t h = bd->m->hidden;
    int16_t y = routed ? mf_build_routed(bd, name, rows_out, h, bd->act_B)
                       : mf_build_tensor(bd, name, rows_out, h, bd->act_B);
    mf_build_t(bd, y)->drop |= MF_RECOMPUTE_MOE;
    double moved = (double)(rows_in > rows_out ? rows_in : rows_out);
    double other = kind == MF_OP_PERMUTE ? moved : (double)rows_out;
    mf_op *op =
        mf_build_memory_op(bd, kind, name, rows_out, h, (moved + other) * (double)h * bd->act_B);
    op->flags |= MF_OPF_ROUTED;
    mf_op_in(op, x);
    mf_op_in(op, map);
    mf_op_out(op, y);
    return y;
}

/* Expected number of distinct EP ranks that a token with top_k of experts spread evenly reaches. */
static double distinct_ranks(const mf_model *m, int64_t ep) {
    double n = (double)ep, k = (double)m->top_k;
    if (m->n_group > 1 && m->topk_group > 0 && m->topk_group < m->n_group) {
        double reachable = n * (double)m->topk_group / (double)m->n_group;
        n = reachable > 1.0 ? reachable : 1.0;
    }
    return n * (1.0 - pow(1.0 - 1.0 / n, k));
}

static mf_op *exchange_op(mf_build *bd, mf_op_kind kind, const moe *s, int16_t in, int16_t map,
                          int16_t out) {
    const mf_model *m = bd->m;
    double row_B = (double)m->hidden * bd->act_B;
    mf_op *op =
        mf_build_collective(bd, kind, kind == MF_OP_DISPATCH ? "dispatch" : "combine", MF_STREAM_EP,
                            MF_GROUP_EP, (double)(s->tokens * m->top_k) * row_B);
    op->flags |= MF_OPF_ROUTED;
    op->dim[0] = s->tokens;
    op->dim[1] = (int64_t)row_B;
    op->dim[2] = m->top_k;
    op->dim[3] = m->experts;
    op->dim[4] = bd->l->dispatcher;
    op->dim[5] = m->n_group > 1 && m->topk_group < m->n_group ? m->topk_group : 0;
    op->dim[6] = m->n_group;
    mf_op_in(op, in);
    mf_op_in(op, map);
    mf_op_out(op, out);
    return op;
}

static void routed_collective(mf_build *bd, mf_op_kind kind, const char *name, mf_group_kind group,
                              double bytes, int16_t in, int16_t out) {
    mf_op *op = mf_build_collective(bd, kind, name, MF_STREAM_EP, group, bytes);
    op->flags |= MF_OPF_ROUTED;
    mf_op_in(op, in);
    mf_op_out(op, out);
}

/* Own tokens to the ranks of their experts; *rows_out is the number of rows that arrive. */
static int16_t dispatch(mf_build *bd, const moe *s, int16_t xn, int16_t map, int64_t *rows_out) {
    const mf_layout *l = bd->l;
    int64_t h = bd->m->hidden;
    double row_B = (double)h * bd->act_B;
    int16_t x = xn;
    int64_t rows_in = s->tokens;
    bd->module = MF_MODULE_DISPATCH;
    if (l->ep > 1 && l->dispatcher == MF_DISPATCH_ALLGATHER) {
        rows_in = s->tokens * l->ep;
        x = mf_build_tensor(bd, "ep_tokens", rows_in, h, bd->act_B);
        mf_build_t(bd, x)->drop |= MF_DROP_ALWAYS;
        exchange_op(bd, MF_OP_DISPATCH, s, xn, map, x);
    } else if (l->ep > 1 && l->dispatcher == MF_DISPATCH_ALLTOALL) {
        int16_t sorted =
            reorder(bd, MF_OP_PERMUTE, "permute", xn, map, s->tokens, s->routed, false);
        mf_build_t(bd, sorted)->drop |= MF_DROP_ALWAYS;
        rows_in = s->routed;
        x = mf_build_routed(bd, "ep_tokens", rows_in, h, bd->act_B);
        mf_build_t(bd, x)->drop |= MF_DROP_ALWAYS;
        exchange_op(bd, MF_OP_DISPATCH, s, sorted, map, x);
    } else if (l->ep > 1) { /* fused: one copy for each destination, spread out on arrival */
        rows_in = (int64_t)ceil((double)s->tokens * distinct_ranks(bd->m, l->ep));
        x = mf_build_routed(bd, "ep_tokens", rows_in, h, bd->act_B);
        mf_build_t(bd, x)->drop |= MF_DROP_ALWAYS;
        exchange_op(bd, MF_OP_DISPATCH, s, xn, map, x);
    }
    if (l->etp > 1) { /* every ETP rank works on the rows of all of them */
        int16_t all = mf_build_routed(bd, "etp_tokens", rows_in * l->etp, h, bd->act_B);
        mf_build_t(bd, all)->drop |= MF_DROP_ALWAYS;
        routed_collective(bd, MF_OP_ALL_GATHER, "etp_all_gather", MF_GROUP_ETP,
                          (double)(rows_in * l->etp) * row_B, x, all);
        x = all;
        rows_in *= l->etp;
    }
    *rows_out = rows_in;
    return x;
}

/* And back: the sum of a token's k rows, on the rank that owns the token. */
static int16_t combine(mf_build *bd, const moe *s, int16_t y, int16_t map) {
    const mf_layout *l = bd->l;
    int64_t h = bd->m->hidden;
    double row_B = (double)h * bd->act_B;
    bd->module = MF_MODULE_DISPATCH;
    int64_t rows_out = l->ep == 1                               ? s->tokens
                       : l->dispatcher == MF_DISPATCH_ALLGATHER ? s->tokens * l->ep
                       : l->dispatcher == MF_DISPATCH_ALLTOALL
                           ? s->routed
                           : (int64_t)ceil((double)s->tokens * distinct_ranks(bd->m, l->ep));
    int16_t x = reorder(bd, MF_OP_UNPERMUTE, "unpermute", y, map, s->rows, rows_out * l->etp,
                        l->ep > 1 || l->etp > 1);
    if (l->etp > 1) {
        int16_t own = mf_build_routed(bd, "etp_reduce_scatter", rows_out, h, bd->act_B);
        routed_collective(bd, MF_OP_REDUCE_SCATTER, "etp_reduce_scatter", MF_GROUP_ETP,
                          (double)(rows_out * l->etp) * row_B, x, own);
        x = own;
    }
    if (l->ep == 1) {
        return x;
    }
    bool sum_after = l->dispatcher == MF_DISPATCH_ALLTOALL;
    int16_t back =
        mf_build_tensor(bd, "ep_combined", sum_after ? s->routed : s->tokens, h, bd->act_B);
    exchange_op(bd, MF_OP_COMBINE, s, x, map, back);
    return sum_after
               ? reorder(bd, MF_OP_UNPERMUTE, "unpermute", back, map, s->routed, s->tokens, false)
               : back;
}

static int16_t grouped_linear(mf_build *bd, const moe *s, const char *name, int16_t x, int64_t n,
                              int64_t k, uint16_t drop, uint16_t offload) {
    bool covered = bd->quant_B > 0;
    int16_t q = covered ? mf_lower_quantise(bd, x) : x;
    int16_t weight = mf_build_weight(bd, name, MF_PART_EXPERT, s->experts * n, k);
    int16_t bias = bd->m->ffn_bias
                       ? mf_build_weight(bd, "expert_bias", MF_PART_EXPERT, s->experts * n, 1)
                       : MF_NO_TENSOR;
    uint16_t outer = bd->drop;
    bd->drop |= drop;
    int16_t y = mf_build_routed(bd, name, s->rows, n, bd->act_B);
    bd->drop = outer;
    mf_build_t(bd, y)->offload = offload;
    mf_op *op = mf_build_gemm(bd, name, bd->math, s->rows, n, k);
    op->kind = MF_OP_GROUPED_GEMM;
    op->dim[3] = s->experts;
    op->flags |= MF_OPF_ROUTED;
    op->bytes += (double)(s->experts - 1) * (double)k * (double)n *
                 (bd->quant_B > 0 ? bd->quant_B : bd->act_B);
    mf_op_in(op, q);
    mf_op_in(op, weight);
    mf_op_in(op, bias);
    mf_op_out(op, y);
    return y;
}

static int16_t experts(mf_build *bd, const moe *s, int16_t x, int16_t probs) {
    bd->module = MF_MODULE_EXPERTS;
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_MOE;
    int16_t fc1 = grouped_linear(bd, s, "expert_fc1", x, 2 * s->width, bd->m->hidden,
                                 MF_RECOMPUTE_EXPERTS, MF_OFFLOAD_EXPERT_FC1);
    bd->drop |= MF_RECOMPUTE_EXPERTS;
    int16_t a = swiglu(bd, fc1, s->rows, s->width, true, probs);
    int16_t y = grouped_linear(bd, s, "expert_fc2", a, bd->m->hidden, s->width, 0, 0);
    bd->drop = outer;
    return y;
}

/* The expert that every token passes through, with its sigmoid gate where the model has one. */
static int16_t shared_expert(mf_build *bd, int16_t xn) {
    const mf_model *m = bd->m;
    uint16_t outer = bd->drop;
    bd->module = MF_MODULE_SHARED_EXPERT;
    bd->drop |= MF_RECOMPUTE_MOE;
    int16_t y =
        mf_lower_mlp(bd, xn, m->shared_ffn, MF_PART_SHARED_EXPERT, MF_RECOMPUTE_SHARED_EXPERT);
    if (m->shared_gate) {
        int16_t w = mf_build_weight(bd, "shared_gate", MF_PART_SHARED_EXPERT, m->hidden, 1);
        int16_t gated = mf_build_tensor(bd, "shared_gated", bd->tokens, m->hidden, bd->act_B);
        mf_op *op = mf_build_memory_op(bd, MF_OP_GATE_FWD, "shared_gate", bd->tokens, m->hidden,
                                       3.0 * (double)bd->tokens * (double)m->hidden * bd->act_B);
        mf_op_in(op, y);
        mf_op_in(op, xn);
        mf_op_in(op, w);
        mf_op_out(op, gated);
        y = gated;
    }
    bd->drop = outer;
    return y;
}

static int16_t moe_layer(mf_build *bd, int16_t x, int16_t xn) {
    const mf_model *m = bd->m;
    const mf_layout *l = bd->l;
    moe s = {
        .tokens = bd->tokens,
        .routed = bd->tokens * m->top_k,
        .rows = bd->tokens * m->top_k * l->etp,
        .experts = m->experts / l->ep,
        .width = m->moe_ffn / l->etp,
    };
    bool beside = (l->overlap & MF_OVERLAP_EP) != 0;
    int16_t map, probs, shared = MF_NO_TENSOR;
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_MOE;
    router(bd, &s, xn, &map, &probs);
    bd->drop = outer;
    if (m->shared_ffn > 0 && !beside) {
        shared = shared_expert(bd, xn);
    }
    bd->drop |= MF_RECOMPUTE_MOE;
    int64_t arrived;
    int16_t rows = dispatch(bd, &s, xn, map, &arrived);
    bd->drop = outer;
    if (m->shared_ffn > 0 && beside && l->ep > 1) {
        /* Issued between dispatch and experts: the compute stream has work while rows travel. */
        shared = shared_expert(bd, xn);
    }
    bd->module = MF_MODULE_DISPATCH;
    rows = reorder(bd, MF_OP_PERMUTE, "permute", rows, map, arrived, s.rows, true);
    mf_build_t(bd, rows)->offload = MF_OFFLOAD_EXPERT_IN;
    int16_t y = experts(bd, &s, rows, probs);
    bd->drop |= MF_RECOMPUTE_MOE;
    y = combine(bd, &s, y, map);
    bd->drop = outer;
    if (m->shared_ffn > 0 && shared == MF_NO_TENSOR) {
        shared = shared_expert(bd, xn);
    }
    bd->module = MF_MODULE_EXPERTS;
    const int16_t terms[3] = {x, y, shared};
    return mf_lower_add(bd, "ffn_residual", terms, shared == MF_NO_TENSOR ? 2 : 3);
}

int16_t mf_lower_ffn(mf_build *bd, int16_t x) {
    const mf_model *m = bd->m;
    bd->module = MF_MODULE_FFN_NORM;
    int16_t xn = mf_lower_norm(bd, "post_attention_norm", x, bd->tokens, m->hidden);
    if (m->layer_classes[bd->key.layer_class].ffn == MF_FFN_MOE) {
        return moe_layer(bd, x, xn);
    }
    bd->module = MF_MODULE_MLP;
    int16_t y = mf_lower_mlp(bd, xn, m->ffn, MF_PART_DENSE_FFN, MF_RECOMPUTE_MLP);
    const int16_t terms[2] = {x, y};
    return mf_lower_add(bd, "ffn_residual", terms, 2);
}
