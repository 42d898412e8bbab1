/* lower_attention.c - forward pass of attention: projections, positions, the output. */
#include "core/lower_attention.h"

static mf_lower_heads heads_of(const mf_build *bd) {
    const mf_model *m = bd->m;
    mf_lower_heads a = {0};
    a.heads = m->heads / bd->l->tp;
    a.kv_heads = m->attn == MF_ATTN_MLA     ? a.heads
                 : m->kv_heads >= bd->l->tp ? m->kv_heads / bd->l->tp
                                            : 1;
    a.d_qk = m->head_dim;
    a.d_v = m->v_head_dim;
    a.tokens = bd->tokens_attn;
    a.window = m->layer_classes[bd->key.layer_class].window;
    double s = (double)bd->l->seq, w = a.window > 0 ? (double)a.window : s;
    /* Query q reaches min(q + 1, w) keys. */
    a.pairs = w >= s ? s * (s + 1.0) / 2.0 : w * (w + 1.0) / 2.0 + (s - w) * w;
    a.pairs *= (double)bd->l->mbs;
    return a;
}

/* Marks what core attention reads. */
static int16_t qkv_tensor(mf_build *bd, const char *name, int64_t rows, int64_t cols,
                          uint16_t drop) {
    uint16_t outer = bd->drop;
    bd->drop |= drop;
    int16_t t = mf_build_tensor(bd, name, rows, cols, bd->act_B);
    bd->drop = outer;
    mf_build_t(bd, t)->offload = MF_OFFLOAD_QKV;
    return t;
}

/* Squares of q and of k over the heads of all TP ranks, for a norm over the whole projection. */
static int16_t norm_sums(mf_build *bd, int64_t rows, int64_t cols, int16_t x) {
    if (bd->l->tp == 1) {
        return MF_NO_TENSOR;
    }
    int16_t sums = mf_build_tensor(bd, "qk_norm_sums", rows, 2, 4.0);
    mf_build_t(bd, sums)->drop = 0; /* eight bytes a row */
    mf_op *op = mf_build_memory_op(bd, MF_OP_NORM_SUM, "qk_norm", rows, cols,
                                   (double)rows * (double)cols * bd->act_B);
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

static void gqa_projections(mf_build *bd, const mf_lower_heads *a, int16_t xn, int16_t qkv[3]) {
    const mf_model *m = bd->m;
    int64_t q_cols = a->heads * a->d_qk, kv_cols = a->kv_heads * a->d_qk;
    mf_linear w = {"qkv_proj",           MF_PART_ATTENTION, m->hidden,
                   q_cols + 2 * kv_cols, m->qkv_bias,       bd->math};
    int first = bd->b->ntensors;
    int16_t y = mf_lower_column_parallel(bd, &w, xn);
    if (m->kv_heads < bd->l->tp) {
        mf_build_sum_since(bd, first, MF_SUM_KV, 2 * kv_cols);
    }
    double q_B = (double)a->tokens * (double)q_cols * bd->act_B;
    double kv_B = (double)a->tokens * (double)kv_cols * bd->act_B;
    if (m->qk_norm || m->qk_norm_full) {
        int64_t width = m->qk_norm ? a->d_qk : q_cols + kv_cols;
        int64_t norms = m->qk_norm ? a->heads + a->kv_heads : 2;
        int16_t gamma =
            mf_build_weight(bd, "qk_norm", MF_PART_NORM, m->qk_norm ? 2 * a->d_qk : width, 1);
        if (m->qk_norm_full) { /* a shard, as the projection it follows */
            bool copies = m->kv_heads < bd->l->tp;
            mf_build_sum(bd, gamma, copies ? MF_SUM_KV : MF_SUM_NONE, copies ? kv_cols : 0);
        }
        int16_t sums =
            m->qk_norm_full ? norm_sums(bd, a->tokens, q_cols + kv_cols, y) : MF_NO_TENSOR;
        int16_t n = qkv_tensor(bd, "qk_normed", a->tokens, q_cols + 2 * kv_cols, MF_RECOMPUTE_NORM);
        int16_t rstd = mf_build_tensor(bd, "rstd", a->tokens, norms, 4.0);
        mf_op *op =
            mf_build_memory_op(bd, MF_OP_RMSNORM_FWD, "qk_norm",
                               a->tokens * ((q_cols + kv_cols) / width), width, 2.0 * (q_B + kv_B));
        mf_op_in(op, y);
        mf_op_in(op, gamma);
        mf_op_in(op, sums);
        mf_op_out(op, n);
        mf_op_out(op, rstd);
        y = n;
    }
    qkv[0] = qkv_tensor(bd, "q", a->tokens, q_cols, 0);
    qkv[1] = qkv_tensor(bd, "k", a->tokens, kv_cols, 0);
    qkv[2] = qkv_tensor(bd, "v", a->tokens, kv_cols, 0);
    mf_op *op = mf_build_memory_op(bd, MF_OP_ROPE_FWD, "rope", a->tokens, q_cols + kv_cols,
                                   2.0 * (q_B + kv_B));
    mf_op_in(op, y);
    for (int i = 0; i < 3; i++) {
        mf_op_out(op, qkv[i]);
    }
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
        q_low = mf_lower_norm(bd, "q_a_norm", q_low, bd->tokens, m->q_lora_rank);
    }
    /* The norm covers the latent columns; the shared rotary ones pass beside it. */
    int16_t kv_n = mf_lower_norm(bd, "kv_a_norm", kv_low, bd->tokens, kv_rank);
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
    mf_linear kv_up = {"kv_b_proj", MF_PART_ATTENTION, kv_rank, kv_cols, false, bd->math};
    int16_t kv = mf_lower_column_parallel(bd, &kv_up, kv_n);
    /* The shared rotary columns were gathered with the latent ones. */
    int16_t kv_all = bd->status == MF_OK ? bd->b->ops[bd->b->nops - 1].in[0] : 0;
    mf_build_t(bd, q)->drop |= MF_RECOMPUTE_MLA_UP_PROJ;
    mf_build_t(bd, kv)->drop |= MF_RECOMPUTE_MLA_UP_PROJ;
    qkv[0] = qkv_tensor(bd, "q", a->tokens, q_cols, MF_RECOMPUTE_MLA_UP_PROJ);
    qkv[1] = qkv_tensor(bd, "k", a->tokens, q_cols, MF_RECOMPUTE_MLA_UP_PROJ);
    qkv[2] = qkv_tensor(bd, "v", a->tokens, a->heads * a->d_v, MF_RECOMPUTE_MLA_UP_PROJ);
    double in_B = ((double)q_cols + (double)kv_cols + (double)rope) * (double)a->tokens * bd->act_B;
    double out_B =
        (2.0 * (double)q_cols + (double)(a->heads * a->d_v)) * (double)a->tokens * bd->act_B;
    mf_op *op =
        mf_build_memory_op(bd, MF_OP_ROPE_FWD, "mla_rope", a->tokens, 2 * q_cols, in_B + out_B);
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
    int16_t qkv[3];
    if (bd->m->attn == MF_ATTN_MLA) {
        mla_projections(bd, &a, xn, qkv);
    } else {
        gqa_projections(bd, &a, xn, qkv);
    }
    bd->module = MF_MODULE_CORE_ATTN;
    a.sinks = bd->m->attn_sinks ? mf_build_weight(bd, "sinks", MF_PART_ATTENTION, a.heads, 1)
                                : MF_NO_TENSOR;
    int16_t o = mf_lower_context(bd, &a, qkv[0], qkv[1], qkv[2]);
    bd->module = MF_MODULE_ATTN_PROJ;
    mf_linear w = {"o_proj",      MF_PART_ATTENTION, a.heads * a.d_v,
                   bd->m->hidden, bd->m->o_bias,     bd->math};
    int16_t y = mf_lower_row_parallel(bd, &w, o);
    bd->module = MF_MODULE_FFN_NORM;
    const int16_t terms[2] = {x, y};
    return mf_lower_add(bd, "attention_residual", terms, 2);
}
