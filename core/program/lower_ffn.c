/* lower_ffn.c - forward pass of dense MLPs and of Mixture-of-Experts layers. */
#include "core/program/lower_moe.h"

static int16_t activation_tensor(mf_build *bd, int64_t rows, int64_t width, bool expert,
                                 bool routed) {
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_ACT;
    int16_t y = routed ? mf_build_routed(bd, "activation", rows, width, bd->act_B)
                       : mf_build_tensor(bd, "activation", rows, width, bd->act_B);
    bd->drop = outer;
    mf_build_t(bd, y)->offload = expert ? MF_OFFLOAD_EXPERT_FC1 : MF_OFFLOAD_FFN;
    return y;
}

/* y = silu(gate) * up (* router probability): reads 2 x width, writes width; relu(up)^2 where there
 * is no gate. */
static int16_t activation(mf_build *bd, int16_t fc1, int64_t rows, int64_t width, int16_t probs,
                          int16_t row_map) {
    bool routed = mf_build_t(bd, fc1)->routed;
    int16_t y = activation_tensor(bd, rows, width, row_map != MF_NO_TENSOR, routed);
    bool gated = !bd->m->ungated;
    mf_op *op = mf_build_memory_op(bd, gated ? MF_OP_SWIGLU_FWD : MF_OP_RELU2_FWD,
                                   gated ? "swiglu" : "relu2", rows, width,
                                   (gated ? 3.0 : 2.0) * (double)rows * (double)width * bd->act_B);
    op->flags |= routed ? MF_OPF_ROUTED : 0;
    op->flags |= bd->m->input_scaled && probs != MF_NO_TENSOR ? MF_OPF_INPUT_SCALED : 0;
    mf_op_in(op, fc1);
    mf_op_in(op, probs);
    mf_op_in(op, row_map);
    mf_op_out(op, y);
    return y;
}

/* True when the kernel of the first expert product writes the activation as well: for SwiGLU in
 * BF16 only; with FP8 the activation is quantised after it. */
static bool product_activates(const mf_build *bd, int64_t width) {
    const unsigned apart = MF_TRAIT_ACT_PASS | MF_TRAIT_UNFUSED_ACT | MF_TRAIT_EXPERT_COPIES |
                           MF_TRAIT_FUSED_EXPERTS; /* which counts its passes by its own rule */
    const mf_model *m = bd->m;
    bool swiglu = !m->ungated && !m->ffn_bias && !(m->swiglu_limit > 0) && !m->input_scaled;
    return swiglu && bd->quant_B <= 0 && width % 8 == 0 &&
           !((bd->l->traits | bd->l->software_traits) & apart);
}

/* Lets the last expert product write the activation too, multiplied by the row's probability: half
 * as many columns more. */
static int16_t activate_product(mf_build *bd, int64_t rows, int64_t width, int16_t fc1,
                                int16_t probs) {
    int16_t y = activation_tensor(bd, rows, width, true, mf_build_t(bd, fc1)->routed);
    if (bd->status != MF_OK) {
        return y;
    }
    mf_op *op = &bd->b->ops[bd->b->nops - 1];
    int16_t row_map = op->in[--op->nin];
    mf_op_in(op, probs);
    mf_op_in(op, row_map);
    mf_op_out(op, y);
    op->flags |= MF_OPF_ACT;
    op->bytes += (double)rows * (double)width * bd->act_B;
    return y;
}

mf_op mf_lower_act_apart(const mf_build *bd, const mf_op *fc1) {
    const int64_t rows = fc1->dim[MF_OP_DIM_M], width = fc1->dim[MF_OP_DIM_N] / 2;
    return (mf_op){
        .kind = MF_OP_SWIGLU_FWD,
        .pass = fc1->pass,
        .stream = fc1->stream,
        .math = bd->act_B > 2.0 ? MF_MATH_FP32 : MF_MATH_BF16,
        .module = fc1->module,
        .group = MF_GROUP_NONE,
        .nin = 3,
        .nout = 1,
        .flags = fc1->flags & MF_OPF_ROUTED,
        .in = {fc1->out[0], fc1->in[2], fc1->in[3]},
        .out = {fc1->out[1]},
        .forward = fc1->forward,
        .alpha = 1.0f,
        .shape = {1, 1},
        .dim = {rows, width},
        .bytes = 3.0 * (double)rows * (double)width * bd->act_B,
        .name = "swiglu",
    };
}

mf_op mf_lower_without_act(const mf_build *bd, const mf_op *fc1) {
    const int64_t width = fc1->dim[MF_OP_DIM_N] / 2;
    mf_op op = *fc1;
    op.flags &= ~(uint32_t)MF_OPF_ACT;
    op.in[2] = fc1->in[3];
    op.nin = 3;
    op.nout = 1;
    op.bytes -= (double)fc1->dim[MF_OP_DIM_M] * (double)width * bd->act_B;
    return op;
}

static int64_t fc1_cols(const mf_build *bd, int64_t width) {
    return bd->m->ungated ? width : 2 * width;
}

int16_t mf_lower_mlp(mf_build *bd, int16_t x, int64_t width, mf_weight_part part,
                     uint16_t drop_fc1) {
    int64_t local = width / bd->l->tp;
    mf_linear fc1 = {"fc1", part, bd->m->hidden, fc1_cols(bd, local), bd->m->ffn_bias, bd->math};
    uint16_t outer = bd->drop;
    bd->drop |= drop_fc1;
    int16_t h = mf_lower_column_parallel(bd, &fc1, x);
    mf_build_t(bd, h)->offload = MF_OFFLOAD_FFN;
    int16_t a = activation(bd, h, bd->tokens_attn, local, MF_NO_TENSOR, MF_NO_TENSOR);
    mf_linear fc2 = {"fc2", part, local, bd->m->hidden, bd->m->ffn_bias, bd->math};
    int first = bd->b->nops;
    int16_t y = mf_lower_row_parallel(bd, &fc2, a);
    mf_build_alpha_since(bd, first, mf_factor(bd->m->residual_multiplier));
    bd->drop = outer;
    return y;
}

/* --- Mixture of Experts ----------------------------------------------------------------------- */

/* Counts the choices of each expert in each scope of the auxiliary loss that has tokens of this
 * rank. */
static int16_t expert_counts(mf_build *bd) {
    int64_t scopes = bd->l->aux_scope == MF_AUX_SEQUENCE ? bd->l->mbs : 1;
    int16_t counts = mf_build_tensor(bd, "expert_counts", scopes * bd->m->experts, 1, 4.0);
    mf_build_t(bd, counts)->drop = 0;
    mf_build_t(bd, counts)->indices = true;
    return counts;
}

static void gather_counts(mf_build *bd, int16_t counts) {
    mf_group_kind group = bd->l->aux_scope == MF_AUX_GLOBAL ? MF_GROUP_TP_CP_DP : MF_GROUP_TP_CP;
    if (mf_layout_group(bd->l, group).size > 1) {
        mf_op *op = mf_build_collective(bd, MF_OP_ALL_REDUCE, "aux_loss_counts", MF_STREAM_TP,
                                        group, mf_tensor_balanced_B(mf_build_t(bd, counts)));
        mf_op_in(op, counts);
        mf_op_out(op, counts);
        mf_build_last(bd)->no_grad = true;
    }
}

/* A copy over all ranks that hold tokens of the same samples. */
static int16_t gather_choices(mf_build *bd, const char *name, int16_t t) {
    const mf_tensor from = *mf_build_t(bd, t);
    int64_t rows = from.rows * mf_layout_group(bd->l, MF_GROUP_TP_CP).size;
    int16_t all = mf_build_tensor(bd, name, rows, from.cols, 4.0);
    mf_build_t(bd, all)->drop = MF_DROP_ALWAYS;
    mf_build_t(bd, all)->indices = true;
    mf_op *op = mf_build_collective(bd, MF_OP_ALL_GATHER, name, MF_STREAM_TP, MF_GROUP_TP_CP,
                                    (double)(rows * from.cols) * 4.0);
    mf_op_in(op, t);
    mf_op_out(op, all);
    mf_build_last(bd)->no_grad = true;
    return all;
}

/* Drops choices beyond the capacity of their experts, which is per sample: each rank sees the
 * choices of all of a sample's tokens, and keeps its own. The choices that were kept are saved, as
 * choices are. */
static void drop_choices(mf_build *bd, mf_routed_rows *own) {
    const mf_tensor from = *mf_build_t(bd, own->map);
    bool by_rank = (bd->l->traits | bd->l->software_traits) & MF_TRAIT_RANK_CAPACITY;
    bool gathers = !by_rank && mf_layout_group(bd->l, MF_GROUP_TP_CP).size > 1;
    int16_t all_map = MF_NO_TENSOR, all_probs = MF_NO_TENSOR;
    if (gathers) {
        all_map = gather_choices(bd, "all_map", own->map);
        all_probs = gather_choices(bd, "all_probs", own->probs);
    }
    int16_t map = mf_build_tensor(bd, "kept_map", from.rows, from.cols, 4.0);
    mf_build_t(bd, map)->drop = 0;
    mf_build_t(bd, map)->indices = true;
    int16_t probs = mf_build_tensor(bd, "kept_probs", from.rows, from.cols, 4.0);
    double all = (double)((by_rank ? from.rows : bd->l->mbs * bd->l->seq) * from.cols);
    double bytes = 8.0 * (all + 2.0 * (double)(from.rows * from.cols));
    mf_op *op =
        mf_build_memory_op(bd, MF_OP_ROUTER_DROP, "router_drop", from.rows, from.cols, bytes);
    mf_op_in(op, own->map);
    mf_op_in(op, own->probs);
    mf_op_in(op, all_map);
    mf_op_in(op, all_probs);
    mf_op_out(op, map);
    mf_op_out(op, probs);
    own->map = map;
    own->probs = probs;
}

/* Scores, top-k, counts. The chosen experts are saved even under full recomputation: recomputation
 * is right only if routing repeats. Where a table has the experts of each token (DeepSeek-V4,
 * transformers' DeepseekV4HashRouter), scores only weight them: the product and its gradient stay,
 * and choices are read by token. */
static mf_routed_rows router(mf_build *bd, const mf_moe_sizes *s, int16_t xn) {
    const mf_model *m = bd->m;
    bd->module = MF_MODULE_ROUTER;
    mf_linear w = {"router",   MF_PART_ROUTER, m->hidden,
                   m->experts, m->router_bias, bd->act_B > 2 ? MF_MATH_FP32 : MF_MATH_BF16};
    int16_t logits = mf_lower_linear(bd, &w, xn, s->tokens);
    int16_t map = mf_build_tensor(bd, "routing_map", s->tokens, m->top_k, 4.0);
    int16_t probs = mf_build_tensor(bd, "probs", s->tokens, m->top_k, 4.0);
    mf_tensor *t = mf_build_t(bd, logits);
    t->element_B = 4.0;
    t->bytes = t->rows * t->cols * 4;
    mf_build_t(bd, map)->drop = 0;
    mf_build_t(bd, map)->indices = true;
    double n = (double)s->tokens * (double)m->experts;
    const bool hashed = m->layer_classes[bd->key.layer_class].hashed;
    double looked_up_B = hashed ? (double)s->tokens * 4.0 * (double)(1 + m->top_k) : 0;
    mf_op *op = mf_build_memory_op(bd, MF_OP_ROUTER_FWD, hashed ? "router_table" : "router_topk",
                                   s->tokens, m->experts,
                                   n * 4.0 + (double)(s->tokens * m->top_k) * 8.0 + looked_up_B);
    op->dim[MF_OP_DIM_SCORE] = m->router_score;
    /* The layer's factor is applied where its rows are weighted. */
    op->alpha = (float)(m->routed_scaling * mf_factor(m->residual_multiplier));
    op->flags |= mf_layout_padded_rows(bd->l, m) > 0 ? MF_OPF_CAPACITY : 0;
    mf_op_in(op, logits);
    mf_op_out(op, map);
    mf_op_out(op, probs);
    if (m->aux_loss_coef > 0) { /* counts of the loss's scope: its gradient reads them */
        int16_t counts = expert_counts(bd);
        mf_op_out(op, counts);
        gather_counts(bd, counts);
    }
    mf_routed_rows own = {xn, map, probs, s->tokens, m->top_k, false};
    if (bd->l->capacity_factor > 0.0) {
        drop_choices(bd, &own);
    }
    return own;
}

/* `scale`: the factor of each row's bias; none at FC1. */
static int16_t grouped_linear(mf_build *bd, const mf_moe_sizes *s, const char *name, int16_t x,
                              int16_t scale, int16_t map, int64_t n, int64_t k, uint16_t drop,
                              uint16_t offload) {
    bool covered = bd->quant_B > 0;
    int16_t q = covered ? mf_lower_quantise(bd, x) : x;
    int16_t weight = mf_build_weight(bd, name, MF_PART_EXPERT, s->experts * n, k);
    int16_t bias = bd->m->ffn_bias
                       ? mf_build_weight(bd, "expert_bias", MF_PART_EXPERT, s->experts * n, 1)
                       : MF_NO_TENSOR;
    const bool fc2 = scale != MF_NO_TENSOR;
    if (bias != MF_NO_TENSOR && fc2) {
        mf_build_sum(bd, bias, MF_SUM_ETP, s->experts * n); /* of rows that all ETP ranks have */
    }
    uint16_t outer = bd->drop;
    bd->drop |= drop;
    int16_t y = s->padded > 0 ? mf_build_tensor(bd, name, s->rows, n, bd->act_B)
                              : mf_build_routed(bd, name, s->rows, n, bd->act_B);
    bd->drop = outer;
    mf_build_t(bd, y)->offload = offload;
    mf_op *op = mf_build_gemm(bd, name, bd->math, s->rows, n, k);
    op->kind = MF_OP_GROUPED_GEMM;
    op->bias_owner = fc2 ? MF_BIAS_FIRST_ETP : MF_BIAS_EVERY;
    op->dim[MF_OP_DIM_GROUPS] = s->experts;
    op->flags |= s->padded > 0 ? 0 : MF_OPF_ROUTED;
    op->flags |= (uint32_t)(bias != MF_NO_TENSOR ? MF_OPF_BIAS : 0);
    op->bytes += (double)(s->experts - 1) * (double)k * (double)n *
                 (bd->quant_B > 0 ? bd->quant_B : bd->act_B);
    mf_op_in(op, q);
    mf_op_in(op, weight);
    mf_op_in(op, bias);
    mf_op_in(op, bias != MF_NO_TENSOR ? scale : MF_NO_TENSOR);
    mf_op_in(op, map);
    mf_op_out(op, y);
    return y;
}

static int16_t experts(mf_build *bd, const mf_moe_sizes *s, mf_routed_rows in) {
    bd->module = MF_MODULE_EXPERTS;
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_MOE;
    int16_t fc1 =
        grouped_linear(bd, s, "expert_fc1", in.x, MF_NO_TENSOR, in.map, fc1_cols(bd, s->width),
                       mf_routed_width(bd->m), MF_RECOMPUTE_EXPERTS, MF_OFFLOAD_EXPERT_FC1);
    bd->drop |= MF_RECOMPUTE_EXPERTS;
    int16_t a = product_activates(bd, s->width)
                    ? activate_product(bd, s->rows, s->width, fc1, in.probs)
                    : activation(bd, fc1, s->rows, s->width, in.probs, in.map);
    int16_t y = grouped_linear(bd, s, "expert_fc2", a, in.probs, in.map, mf_routed_width(bd->m),
                               s->width, 0, 0);
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
        mf_build_sum(bd, w, MF_SUM_TP, m->hidden);
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

/* A matrix into the experts' space or back, on own tokens; every TP rank holds all of it. */
static int16_t latent(mf_build *bd, const char *name, int16_t x, int64_t k, int64_t n) {
    mf_linear w = {name, MF_PART_SHARED_EXPERT, k, n, false, bd->math};
    int first = bd->b->ntensors;
    int16_t y = mf_lower_linear(bd, &w, bd->quant_B > 0 ? mf_lower_quantise(bd, x) : x, bd->tokens);
    mf_build_sum_since(bd, first, MF_SUM_TP, n);
    return y;
}

/* Nemotron 3, Kimi-K3: experts' output passes through a norm and a matrix. */
static int16_t from_latent(mf_build *bd, int16_t y) {
    const mf_model *m = bd->m;
    if (m->moe_latent == 0) {
        return y;
    }
    y = m->latent_norm ? mf_lower_norm(bd, "latent_norm", y, bd->tokens, m->moe_latent) : y;
    return latent(bd, "latent_up_proj", y, m->moe_latent, m->hidden);
}

static int16_t moe_layer(mf_build *bd, const mf_hyper_half *half, int16_t xn) {
    const mf_model *m = bd->m;
    const mf_layout *l = bd->l;
    mf_moe_sizes s = {
        .tokens = bd->tokens,
        .routed = bd->tokens * m->top_k,
        .rows = bd->tokens * m->top_k * l->etp,
        .experts = m->experts / l->ep,
        .width = m->moe_ffn / l->etp,
    };
    s.padded = mf_layout_padded_rows(l, m);
    s.rows = s.padded > 0 ? s.padded * s.experts : s.rows;
    bool beside = (l->overlap & MF_OVERLAP_EP) != 0;
    int16_t shared = MF_NO_TENSOR;
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_MOE;
    mf_routed_rows own = router(bd, &s, xn);
    if (m->moe_latent > 0) {
        own.x = latent(bd, "latent_down_proj", xn, m->hidden, m->moe_latent);
    }
    bd->drop = outer;
    if (m->shared_ffn > 0 && !beside) {
        shared = shared_expert(bd, xn);
    }
    bd->drop |= MF_RECOMPUTE_MOE;
    int16_t way = MF_NO_TENSOR;
    mf_routed_rows arrived = mf_lower_dispatch(bd, &s, own, &way);
    bd->drop = outer;
    if (m->shared_ffn > 0 && beside && l->ep > 1) {
        /* Issued between dispatch and experts, so that compute has work while rows travel. */
        shared = shared_expert(bd, xn);
    }
    bd->module = MF_MODULE_DISPATCH;
    mf_routed_rows rows = arrived.ordered ? arrived
                                          : mf_lower_permute(bd, arrived, s.rows, s.experts,
                                                             s.padded, 0, s.padded == 0);
    mf_build_t(bd, rows.x)->offload = MF_OFFLOAD_EXPERT_IN;
    int16_t y = experts(bd, &s, rows);
    bd->drop |= MF_RECOMPUTE_MOE;
    y = from_latent(bd, mf_lower_combine(bd, &s, y, arrived, rows.map, way));
    bd->drop = outer;
    if (m->shared_ffn > 0 && shared == MF_NO_TENSOR) {
        shared = shared_expert(bd, xn);
    }
    bd->module = MF_MODULE_EXPERTS;
    const int16_t terms[2] = {y, shared};
    return mf_lower_hyper_out(bd, "ffn_residual", half, terms, shared == MF_NO_TENSOR ? 1 : 2);
}

int16_t mf_lower_ffn(mf_build *bd, int16_t x) {
    const mf_model *m = bd->m;
    bd->module = MF_MODULE_FFN_NORM;
    const mf_hyper_half half = mf_lower_hyper_in(bd, x);
    int16_t xn = mf_lower_norm(bd, "post_attention_norm", half.read, bd->tokens, m->hidden);
    if (m->layer_classes[bd->key.layer_class].ffn == MF_FFN_MOE) {
        return moe_layer(bd, &half, xn);
    }
    bd->module = MF_MODULE_MLP;
    int16_t y = mf_lower_mlp(bd, xn, m->ffn, MF_PART_DENSE_FFN, MF_RECOMPUTE_MLP);
    return mf_lower_hyper_out(bd, "ffn_residual", &half, &y, 1);
}
