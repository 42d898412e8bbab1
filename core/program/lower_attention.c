/* lower_attention.c - forward pass of attention: projections, positions, the output. */
#include "core/program/lower_attention.h"

#include <math.h>

static const mf_layer_class *class_of(const mf_build *bd) {
    return &bd->m->layer_classes[bd->key.layer_class];
}

/* (query, key) pairs of a causal square whose queries reach w keys back. */
static double reached(double s, double w) {
    return w >= s ? s * (s + 1.0) / 2.0 : w * (w + 1.0) / 2.0 + (s - w) * w;
}

/* Pairs of a sample: query q reaches min(q + 1, window) keys, or those of its chunk up to
 * itself. */
static double pairs_of(const mf_layer_class *x, double s) {
    double w = x->window > 0 ? (double)x->window : s;
    if (!x->chunked || w >= s) {
        return reached(s, w);
    }
    double whole = floor(s / w);
    return whole * reached(w, w) + reached(s - whole * w, w);
}

static mf_lower_heads heads_of(const mf_build *bd) {
    const mf_model *m = bd->m;
    const mf_layer_class *x = class_of(bd);
    const int64_t kv_heads = mf_model_kv_heads(m, x);
    mf_lower_heads a = {0};
    a.heads = mf_model_heads(m, x) / bd->l->tp;
    a.kv_heads = m->attn == MF_ATTN_MLA  ? a.heads
                 : kv_heads >= bd->l->tp ? kv_heads / bd->l->tp
                                         : 1;
    a.copies = m->attn != MF_ATTN_MLA && kv_heads < bd->l->tp;
    a.d_qk = mf_model_head_dim(m, x);
    a.d_v = mf_model_value_dim(m, x);
    a.k_is_v = x->k_is_v;
    a.tokens = bd->tokens_attn;
    a.window = x->window;
    a.chunked = x->chunked && x->window > 0;
    a.scale = m->attention_multiplier > 0
                  ? m->attention_multiplier
                  : mf_factor(m->rope_scaling.softmax_scale) / sqrt((double)a.d_qk);
    a.pairs = pairs_of(x, (double)bd->l->seq) * (double)bd->l->mbs;
    return a;
}

/* Marks a tensor that core attention reads. */
static int16_t qkv_tensor(mf_build *bd, const char *name, int64_t rows, int64_t cols,
                          uint16_t drop) {
    uint16_t outer = bd->drop;
    bd->drop |= drop;
    int16_t t = mf_build_tensor(bd, name, rows, cols, bd->act_B);
    bd->drop = outer;
    mf_build_t(bd, t)->offload = MF_OFFLOAD_QKV;
    return t;
}

/* Norms of latent projections have the epsilon of DeepSeek's published code, whatever the other
 * norms have. */
static const double latent_eps = 1e-6;

/* Columns of q and of k in the row of a norm. */
static void set_norm_dims(const mf_build *bd, const mf_lower_heads *a, mf_op *op) {
    op->dim[MF_OP_DIM_NORM_Q] = a->heads * a->d_qk;
    op->dim[MF_OP_DIM_NORM_K] = a->kv_heads * a->d_qk;
    op->dim[MF_OP_DIM_NORM_COPIES] =
        a->copies ? bd->l->tp / mf_model_kv_heads(bd->m, class_of(bd)) : 1;
}

/* Squares of q and of k over the heads of all TP ranks, for a norm over the whole projection. */
static int16_t norm_sums(mf_build *bd, const mf_lower_heads *a, int16_t x) {
    int64_t rows = a->tokens, cols = (a->heads + a->kv_heads) * a->d_qk;
    if (bd->l->tp == 1) {
        return MF_NO_TENSOR;
    }
    int16_t sums = mf_build_tensor(bd, "qk_norm_sums", rows, 2, 4.0);
    mf_build_t(bd, sums)->drop = 0; /* eight bytes a row */
    mf_op *op = mf_build_memory_op(bd, MF_OP_NORM_SUM, "qk_norm", rows, cols,
                                   (double)rows * (double)cols * bd->act_B);
    set_norm_dims(bd, a, op);
    op->norm_scope = MF_NORM_QK_ROWS;
    op->eps = (float)bd->m->rms_norm_eps;
    mf_op_in(op, x);
    mf_op_out(op, sums);
    mf_build_last(bd)->no_grad = true;
    op = mf_build_collective(bd, MF_OP_ALL_REDUCE, "qk_norm_sums", MF_STREAM_TP, MF_GROUP_TP,
                             (double)rows * 8.0);
    mf_op_in(op, sums);
    mf_op_out(op, sums);
    mf_build_last(bd)->no_grad = true;
    return sums;
}

static mf_norm_kind norm_kind(const mf_model *m) {
    return m->zero_centred_norm ? MF_NORM_RMS_PLUS_ONE : MF_NORM_RMS;
}

/* The norm of q and k by head, or over all of each, in front of the rotation. */
static int16_t qk_norm(mf_build *bd, const mf_lower_heads *a, int16_t y) {
    const mf_model *m = bd->m;
    int64_t q_cols = a->heads * a->d_qk, k_cols = a->kv_heads * a->d_qk;
    int64_t width = m->qk_norm_full ? q_cols + k_cols : a->d_qk;
    int64_t norms = m->qk_norm_full ? 2 : a->heads + a->kv_heads;
    int16_t gamma =
        mf_build_weight(bd, "qk_norm", MF_PART_NORM, m->qk_norm_full ? width : 2 * width, 1);
    if (m->qk_norm_full) { /* a shard, as the projection it follows */
        mf_build_sum(bd, gamma, a->copies ? MF_SUM_KV : MF_SUM_NONE, a->copies ? k_cols : 0);
    }
    int16_t sums = m->qk_norm_full ? norm_sums(bd, a, y) : MF_NO_TENSOR;
    int16_t n = qkv_tensor(bd, "qk_normed", a->tokens, mf_build_t(bd, y)->cols, MF_RECOMPUTE_NORM);
    int16_t rstd = mf_build_tensor(bd, "rstd", a->tokens, norms, 4.0);
    mf_op *op = mf_build_memory_op(bd, MF_OP_RMSNORM_FWD, "qk_norm",
                                   a->tokens * ((q_cols + k_cols) / width), width,
                                   2.0 * (double)a->tokens * (double)(q_cols + k_cols) * bd->act_B);
    set_norm_dims(bd, a, op);
    op->norm_scope = m->qk_norm_full ? MF_NORM_QK_ROWS : MF_NORM_HEADS;
    op->norm_kind = (uint8_t)norm_kind(m);
    op->eps = (float)m->rms_norm_eps;
    mf_op_in(op, y);
    mf_op_in(op, gamma);
    mf_op_in(op, sums);
    mf_op_out(op, n);
    mf_op_out(op, rstd);
    return n;
}

/* The norm of each head of q, or of k, behind the rotation; with a weight of its own or without. */
static int16_t late_norm(mf_build *bd, const mf_lower_heads *a, const char *name, int16_t x) {
    const mf_model *m = bd->m;
    int64_t cols = mf_build_t(bd, x)->cols, heads = cols / a->d_qk;
    int16_t gamma =
        m->qk_norm_plain ? MF_NO_TENSOR : mf_build_weight(bd, name, MF_PART_NORM, a->d_qk, 1);
    int16_t y = qkv_tensor(bd, name, a->tokens, cols, MF_RECOMPUTE_NORM);
    int16_t rstd = mf_build_tensor(bd, "rstd", a->tokens, heads, 4.0);
    mf_build_t(bd, rstd)->drop = 0;
    mf_op *op = mf_build_memory_op(bd, MF_OP_RMSNORM_FWD, name, a->tokens * heads, a->d_qk,
                                   2.0 * (double)a->tokens * (double)cols * bd->act_B);
    op->norm_scope = MF_NORM_ALL_HEADS;
    op->norm_kind = (uint8_t)norm_kind(m);
    op->eps = (float)m->rms_norm_eps;
    mf_op_in(op, x);
    mf_op_in(op, gamma);
    mf_op_out(op, y);
    mf_op_out(op, rstd);
    return y;
}

/* Columns of attention's output gate in this rank's part of the projection. */
static int64_t gate_cols(const mf_build *bd, const mf_lower_heads *a) {
    return bd->m->attn_gate == MF_ATTN_GATE_CHANNEL ? a->heads * a->d_v
           : bd->m->attn_gate == MF_ATTN_GATE_HEAD  ? a->heads
                                                    : 0;
}

/* Low-rank queries with whole keys (Step-3): a narrow product on the rank's tokens, a norm, a wide
 * one; K and V come from a product of their own. */
static void low_rank_projections(mf_build *bd, const mf_lower_heads *a, int16_t xn,
                                 int16_t joined[2]) {
    const mf_model *m = bd->m;
    int64_t kv = a->kv_heads * (a->d_qk + a->d_v);
    mf_linear down = {"q_a_proj", MF_PART_ATTENTION, m->hidden, m->q_lora_rank, false, bd->math};
    mf_linear up = {"q_b_proj", MF_PART_ATTENTION, m->q_lora_rank, a->heads * a->d_qk,
                    false,      bd->math};
    mf_linear keys = {"kv_proj", MF_PART_ATTENTION, m->hidden, kv, m->qkv_bias, bd->math};
    int first = bd->b->ntensors;
    int16_t low =
        mf_lower_linear(bd, &down, bd->quant_B > 0 ? mf_lower_quantise(bd, xn) : xn, bd->tokens);
    mf_build_sum_since(bd, first, MF_SUM_TP, m->q_lora_rank);
    low = mf_lower_norm(bd, "q_a_norm", low, bd->tokens, m->q_lora_rank);
    joined[0] = mf_lower_column_parallel(bd, &up, low);
    first = bd->b->ntensors;
    joined[1] = mf_lower_column_parallel(bd, &keys, xn);
    if (a->copies) {
        mf_build_sum_since(bd, first, MF_SUM_KV, kv);
    }
}

static int16_t fused_projection(mf_build *bd, const mf_lower_heads *a, int16_t xn) {
    const mf_model *m = bd->m;
    int64_t kv = a->kv_heads * (a->k_is_v ? a->d_qk : a->d_qk + a->d_v);
    mf_linear w = {"qkv_proj",  MF_PART_ATTENTION,
                   m->hidden,   gate_cols(bd, a) + a->heads * a->d_qk + kv,
                   m->qkv_bias, bd->math};
    int first = bd->b->ntensors;
    int16_t y = mf_lower_column_parallel(bd, &w, xn);
    if (a->copies) {
        mf_build_sum_since(bd, first, MF_SUM_KV, kv);
    }
    return y;
}

static void gqa_projections(mf_build *bd, const mf_lower_heads *a, int16_t xn, int16_t qkvg[4]) {
    const mf_model *m = bd->m;
    int64_t q_cols = a->heads * a->d_qk, k_cols = a->kv_heads * a->d_qk;
    int64_t v_cols = a->kv_heads * a->d_v, gates = gate_cols(bd, a);
    int16_t joined[2] = {MF_NO_TENSOR, MF_NO_TENSOR};
    if (m->q_lora_rank > 0) {
        low_rank_projections(bd, a, xn, joined);
    } else {
        joined[0] = fused_projection(bd, a, xn);
    }
    bool normed = mf_model_has_qk_norm(m, class_of(bd));
    if (normed && !m->qk_norm_late) {
        joined[0] = qk_norm(bd, a, joined[0]);
    }
    qkvg[0] = qkv_tensor(bd, "q", a->tokens, q_cols, 0);
    qkvg[1] = qkv_tensor(bd, "k", a->tokens, k_cols, 0);
    qkvg[2] = qkv_tensor(bd, "v", a->tokens, v_cols, 0);
    qkvg[3] = gates > 0 ? qkv_tensor(bd, "gate", a->tokens, gates, 0) : MF_NO_TENSOR;
    double moved = (double)a->tokens * (double)(q_cols + k_cols + gates) * bd->act_B;
    mf_op *op =
        mf_build_memory_op(bd, MF_OP_ROPE_FWD, "rope", a->tokens, q_cols + k_cols, 2.0 * moved);
    op->dim[MF_OP_DIM_ROPE_HEADS] = a->heads;
    op->dim[MF_OP_DIM_ROPE_KV_HEADS] = a->kv_heads;
    op->dim[MF_OP_DIM_ROPE_D_QK] = a->d_qk;
    op->dim[MF_OP_DIM_ROPE_D_V] = a->d_v;
    op->dim[MF_OP_DIM_ROPE_TABLE] = mf_model_rope_table_of(m, class_of(bd));
    mf_op_in(op, joined[0]);
    mf_op_in(op, joined[1]);
    for (int i = 0; i < 4; i++) {
        mf_op_out(op, qkvg[i]);
    }
    if (normed && m->qk_norm_late) {
        qkvg[0] = late_norm(bd, a, "q_norm", qkvg[0]);
        qkvg[1] = late_norm(bd, a, "k_norm", qkvg[1]);
    }
}

/* Multiplies attention's output by the sigmoid of its gate: a number per head or per channel. */
static int16_t gated(mf_build *bd, const mf_lower_heads *a, int16_t o, int16_t gate) {
    int64_t cols = a->heads * a->d_v, gates = gate_cols(bd, a);
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_CORE_ATTN;
    int16_t y = mf_build_tensor(bd, "attention_gated", a->tokens, cols, bd->act_B);
    bd->drop = outer;
    mf_build_t(bd, y)->offload = MF_OFFLOAD_ATTN_OUT;
    mf_op *op = mf_build_memory_op(bd, MF_OP_GATE_FWD, "attention_gate", a->tokens, cols,
                                   (double)a->tokens * (double)(2 * cols + gates) * bd->act_B);
    mf_op_in(op, o);
    mf_op_in(op, gate);
    mf_op_out(op, y);
    return y;
}

/* The gate of latent attention's output, a projection of its own (Kimi-K3). */
static int16_t latent_gate(mf_build *bd, const mf_lower_heads *a, int16_t xn) {
    int64_t cols = gate_cols(bd, a);
    mf_linear w = {"g_proj", MF_PART_ATTENTION, bd->m->hidden, cols, false, bd->math};
    int16_t gate = cols > 0 ? mf_lower_column_parallel(bd, &w, xn) : MF_NO_TENSOR;
    if (cols > 0) {
        mf_build_t(bd, gate)->offload = MF_OFFLOAD_QKV;
    }
    return gate;
}

/* Latent attention: low-rank q and kv on sequence-parallel tokens, gathered while they are narrow,
 * projected up per head; k is the up-projected part beside one shared rotated part. */
static void mla_projections(mf_build *bd, const mf_lower_heads *a, int16_t xn, int16_t qkv[3]) {
    const mf_model *m = bd->m;
    int64_t kv_rank = m->kv_lora_rank, rope = m->qk_rope_head_dim;
    int64_t q_cols = a->heads * a->d_qk, kv_cols = a->heads * (m->qk_nope_head_dim + a->d_v);
    /* Down-projections read one quantised input. */
    int16_t x = bd->quant_B > 0 ? mf_lower_quantise(bd, xn) : xn;
    int16_t q_low = MF_NO_TENSOR;
    if (m->q_lora_rank > 0) {
        mf_linear down = {"q_a_proj",     MF_PART_ATTENTION, m->hidden,
                          m->q_lora_rank, m->qkv_bias,       bd->math};
        int first = bd->b->ntensors;
        q_low = mf_lower_linear(bd, &down, x, bd->tokens);
        mf_build_sum_since(bd, first, MF_SUM_TP, m->q_lora_rank);
    }
    mf_linear kv_down = {"kv_a_proj",    MF_PART_ATTENTION, m->hidden,
                         kv_rank + rope, m->qkv_bias,       bd->math};
    int first = bd->b->ntensors;
    int16_t kv_low = mf_lower_linear(bd, &kv_down, x, bd->tokens);
    mf_build_sum_since(bd, first, MF_SUM_TP, kv_rank + rope);
    if (q_low != MF_NO_TENSOR) {
        q_low = mf_lower_norm_eps(bd, "q_a_norm", q_low, bd->tokens, m->q_lora_rank, latent_eps);
    }
    /* The norm covers the latent columns; the shared rotary ones pass through. */
    int16_t kv_n = mf_lower_norm_eps(bd, "kv_a_norm", kv_low, bd->tokens, kv_rank, latent_eps);
    mf_tensor *t = mf_build_t(bd, kv_n);
    t->cols = kv_rank + rope;
    t->bytes = (int64_t)((double)t->rows * (double)t->cols * t->element_B);
    mf_linear q_up = {m->q_lora_rank > 0 ? "q_b_proj" : "q_proj",
                      MF_PART_ATTENTION,
                      m->q_lora_rank > 0 ? m->q_lora_rank : m->hidden,
                      q_cols,
                      false,
                      bd->math};
    int16_t q =
        m->q_lora_rank > 0 ? mf_lower_column_parallel(bd, &q_up, q_low)
        : bd->quant_B > 0
            ? mf_lower_linear(bd, &q_up, mf_lower_gather_tp(bd, "tp_all_gather", x), a->tokens)
            : mf_lower_column_parallel(bd, &q_up, xn);
    if (class_of(bd)->indexer) {
        mf_lower_indexer(bd, xn, q_low);
    }
    if (mf_lower_is_sparse(bd)) {
        qkv[0] = q;
        qkv[1] = mf_lower_gather_tp(bd, "tp_all_gather", kv_n);
        return;
    }
    mf_linear kv_up = {"kv_b_proj", MF_PART_ATTENTION, kv_rank, kv_cols, false, bd->math};
    int16_t kv = mf_lower_column_parallel(bd, &kv_up, kv_n);
    /* The shared rotary columns were gathered with the latent ones. */
    int16_t kv_all = bd->status == MF_OK ? bd->b->ops[bd->b->nops - 1].in[0] : 0;
    mf_build_t(bd, q)->drop |= MF_RECOMPUTE_MLA_UP_PROJ;
    mf_build_t(bd, q)->offload = MF_OFFLOAD_QKV;
    mf_build_t(bd, kv)->drop |= MF_RECOMPUTE_MLA_UP_PROJ;
    qkv[0] = q; /* rotated in place */
    qkv[1] = qkv_tensor(bd, "k", a->tokens, q_cols, MF_RECOMPUTE_MLA_UP_PROJ);
    qkv[2] = qkv_tensor(bd, "v", a->tokens, a->heads * a->d_v, MF_RECOMPUTE_MLA_UP_PROJ);
    double read = (double)(a->heads * rope) + (double)kv_cols + (double)rope;
    double written = (double)(a->heads * rope) + (double)q_cols + (double)(a->heads * a->d_v);
    mf_op *op = mf_build_memory_op(bd, MF_OP_ROPE_FWD, "mla_rope", a->tokens, 2 * q_cols,
                                   (read + written) * (double)a->tokens * bd->act_B);
    mf_op_in(op, q);
    mf_op_in(op, kv);
    mf_op_in(op, kv_all);
    for (int i = 0; i < 3; i++) {
        mf_op_out(op, qkv[i]);
    }
}

int16_t mf_lower_attention(mf_build *bd, int16_t x) {
    mf_lower_heads a = heads_of(bd);
    bd->module = MF_MODULE_ATTN_NORM;
    int16_t xn = mf_lower_norm(bd, "input_norm", x, bd->tokens, bd->m->hidden);
    bd->module = MF_MODULE_ATTN_PROJ;
    int16_t qkv[4] = {MF_NO_TENSOR, MF_NO_TENSOR, MF_NO_TENSOR, MF_NO_TENSOR};
    if (bd->m->attn == MF_ATTN_MLA) {
        mla_projections(bd, &a, xn, qkv);
        qkv[3] = latent_gate(bd, &a, xn);
    } else {
        gqa_projections(bd, &a, xn, qkv);
        mf_lower_block_indexer(bd);
    }
    bd->module = MF_MODULE_CORE_ATTN;
    bool sinks = bd->m->attn_sinks && !class_of(bd)->no_sinks;
    a.sinks = sinks ? mf_build_weight(bd, "sinks", MF_PART_ATTENTION, a.heads, 1) : MF_NO_TENSOR;
    bool sparse = mf_lower_is_sparse(bd);
    int16_t o = sparse ? mf_lower_sparse(bd, a, qkv[0], qkv[1])
                       : mf_lower_context(bd, &a, qkv[0], qkv[1], qkv[2]);
    bd->module = MF_MODULE_CORE_ATTN;
    if (qkv[3] != MF_NO_TENSOR) {
        o = gated(bd, &a, o, qkv[3]);
    }
    bd->module = MF_MODULE_ATTN_PROJ;
    mf_linear w = {"o_proj",      MF_PART_ATTENTION, a.heads * a.d_v,
                   bd->m->hidden, bd->m->o_bias,     bd->math};
    int first = bd->b->nops;
    int16_t y = mf_lower_row_parallel(bd, &w, o);
    /* The product is linear in v. */
    mf_build_alpha_since(bd, first,
                         mf_factor(bd->m->value_scale) * mf_factor(bd->m->residual_multiplier));
    bd->module = MF_MODULE_FFN_NORM;
    const int16_t terms[2] = {x, y};
    return mf_lower_add(bd, "attention_residual", terms, 2);
}
