/* lower_attention.c - forward pass of attention: projections, positions, context parallelism. */
#include "core/lower_build.h"

typedef struct attention {
    int64_t heads, kv_heads; /* of this TP rank; KV heads replicated where TP exceeds them */
    int64_t d_qk, d_v;
    int64_t tokens; /* of this CP rank, all TP ranks together */
    int64_t window;
    int16_t sinks; /* a learned logit for each head, in every softmax; MF_NO_TENSOR */
    double pairs;  /* (query, key) pairs per head of the whole micro-batch */
} attention;

static attention attention_shape(const mf_build *bd) {
    const mf_model *m = bd->m;
    attention a = {0};
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

/* One attention call over seq_q x seq_k positions holding `share` of the causal pairs. */
static mf_op *core_attention(mf_build *bd, const attention *a, const char *name, int64_t heads,
                             int64_t kv_heads, int64_t seq_q, int64_t seq_k, double pairs,
                             const int16_t in[3], int16_t sinks, int16_t out, int16_t lse) {
    double batch = (double)bd->l->mbs;
    mf_op *op = mf_build_op(bd, MF_OP_ATTENTION_FWD, name, MF_STREAM_COMPUTE);
    const int64_t dim[MF_OP_DIMS] = {bd->l->mbs, heads,   kv_heads, seq_q,
                                     seq_k,      a->d_qk, a->d_v,   a->window};
    for (int i = 0; i < MF_OP_DIMS; i++) {
        op->dim[i] = dim[i];
    }
    op->flags |= MF_OPF_CAUSAL;
    if (bd->l->fp8_attention) {
        op->math = MF_MATH_FP8;
    }
    op->flops = 2.0 * pairs * (double)heads * (double)(a->d_qk + a->d_v);
    op->bytes = bd->act_B * batch *
                ((double)seq_q * (double)heads * (double)(a->d_qk + a->d_v) +
                 (double)seq_k * (double)kv_heads * (double)(a->d_qk + a->d_v));
    for (int i = 0; i < 3; i++) {
        mf_op_in(op, in[i]);
    }
    mf_op_in(op, sinks);
    mf_op_out(op, out);
    mf_op_out(op, lse);
    mf_build_last(bd)->final_out = out;
    mf_build_last(bd)->final_lse = lse;
    return op;
}

static int16_t attention_output(mf_build *bd, const char *name, int64_t rows, int64_t cols) {
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_CORE_ATTN;
    int16_t o = mf_build_tensor(bd, name, rows, cols, bd->act_B);
    bd->drop = outer;
    mf_build_t(bd, o)->offload = MF_OFFLOAD_ATTN_OUT;
    return o;
}

/* Softmax statistics: needed with the output; dropped with it. */
static int16_t attention_lse(mf_build *bd, int64_t rows, int64_t heads) {
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_CORE_ATTN;
    int16_t lse = mf_build_tensor(bd, "lse", rows, heads, 4.0);
    bd->drop = outer;
    return lse;
}

/* Copies of K and V that only live until the attention call and are fetched again for gradients. */
static int16_t exchange(mf_build *bd, mf_op_kind kind, const char *name, mf_group_shape shape,
                        double bytes, int16_t x, int64_t rows, int64_t cols) {
    int16_t y = mf_build_tensor(bd, name, rows, cols, bd->act_B);
    mf_build_t(bd, y)->drop |= MF_DROP_ALWAYS;
    mf_op *op = mf_build_collective(bd, kind, name, MF_STREAM_CP, MF_GROUP_CP, bytes);
    op->shape = shape;
    op->dim[0] = kind == MF_OP_SEND_RECV ? 1 : 0;
    mf_op_in(op, x);
    mf_op_out(op, y);
    return y;
}

/* Ring over `steps` members: K and V travel while the part at hand is worked on. */
static int16_t ring(mf_build *bd, const attention *a, int64_t heads, int64_t kv_heads,
                    int64_t seq_local, double pairs, mf_group_shape shape, int16_t q, int16_t k,
                    int16_t v) {
    int64_t rows = seq_local * bd->l->mbs;
    int16_t out = attention_output(bd, "attention_out", rows, heads * a->d_v);
    int16_t lse = attention_lse(bd, rows, heads);
    double k_B = (double)rows * (double)(kv_heads * a->d_qk) * bd->act_B;
    double v_B = (double)rows * (double)(kv_heads * a->d_v) * bd->act_B;
    double out_B = (double)rows * (double)(heads * a->d_v) * bd->act_B;
    for (int64_t step = 0; step < shape.size; step++) {
        int16_t next_k = MF_NO_TENSOR, next_v = MF_NO_TENSOR;
        if (step + 1 < shape.size) { /* issued first, so that it runs beside this step */
            next_k =
                exchange(bd, MF_OP_SEND_RECV, "cp_ring_k", shape, k_B, k, rows, kv_heads * a->d_qk);
            next_v =
                exchange(bd, MF_OP_SEND_RECV, "cp_ring_v", shape, v_B, v, rows, kv_heads * a->d_v);
        }
        bool only = shape.size == 1;
        int16_t o =
            only ? out : mf_build_tensor(bd, "attention_part", rows, heads * a->d_v, bd->act_B);
        int16_t s = only ? lse : mf_build_tensor(bd, "lse_part", rows, heads, 4.0);
        const int16_t in[3] = {q, k, v};
        mf_op *part = core_attention(bd, a, "core_attention", heads, kv_heads, seq_local, seq_local,
                                     pairs / (double)shape.size, in,
                                     step == 0 ? a->sinks : MF_NO_TENSOR, o, s);
        mf_build_last(bd)->final_out = out;
        mf_build_last(bd)->final_lse = lse;
        if (!only) {
            part->flags |= MF_OPF_ACC_FP32;
            mf_build_t(bd, o)->drop |= MF_DROP_ALWAYS;
            mf_build_t(bd, s)->drop |= MF_DROP_ALWAYS;
            mf_op *op = mf_build_memory_op(bd, MF_OP_ATTENTION_MERGE, "attention_merge", rows,
                                           heads * a->d_v, (step == 0 ? 2.0 : 3.0) * out_B);
            mf_op_in(op, o);
            mf_op_in(op, s);
            mf_op_out(op, out);
            mf_op_out(op, lse);
        }
        k = next_k;
        v = next_v;
    }
    return out;
}

/* All-to-all that trades heads for sequence inside a group of `shape.size` members. */
static int16_t heads_for_sequence(mf_build *bd, const char *name, mf_group_shape shape, int16_t x,
                                  int64_t heads, int64_t d, bool back) {
    mf_tensor from = *mf_build_t(bd, x);
    int64_t n = shape.size;
    int64_t rows = back ? from.rows / n : from.rows * n;
    /* Fewer KV heads than members: each is sent to several. */
    int64_t local = back ? heads : heads >= n ? heads / n : 1;
    double bytes = (double)from.rows * (double)(heads >= n ? heads : n) * (double)d * bd->act_B;
    if (back) {
        bytes = mf_tensor_balanced_B(&from);
    }
    int16_t y = exchange(bd, MF_OP_ALL_TO_ALL, name, shape, bytes, x, rows, local * d);
    /* What core attention and the output projection read is kept rather than exchanged again. */
    mf_tensor *t = mf_build_t(bd, y);
    t->drop = (uint16_t)((t->drop & ~MF_DROP_ALWAYS) |
                         (back ? MF_RECOMPUTE_CORE_ATTN : MF_RECOMPUTE_MLA_UP_PROJ));
    t->offload = back ? MF_OFFLOAD_ATTN_OUT : MF_OFFLOAD_QKV;
    return y;
}

/* Members of the CP group that share an NVLink domain. */
static int64_t cp_inside_domain(const mf_build *bd) {
    mf_group_shape cp = mf_layout_group(bd->l, MF_GROUP_CP);
    int64_t domain = bd->c->domain_gpus_used / cp.stride;
    int64_t inside = 1;
    while (inside * 2 <= cp.size && inside * 2 <= domain && cp.size % (inside * 2) == 0 &&
           (bd->m->heads / bd->l->tp) % (inside * 2) == 0) {
        inside *= 2;
    }
    return inside;
}

static int16_t context_parallel(mf_build *bd, const attention *a, int16_t q, int16_t k, int16_t v) {
    mf_group_shape cp = mf_layout_group(bd->l, MF_GROUP_CP);
    int64_t seq_local = bd->l->seq / cp.size;
    double pairs = a->pairs / (double)cp.size; /* zig-zag shards: the same for every rank */
    mf_group_shape none = {1, 1};
    if (cp.size == 1) {
        return ring(bd, a, a->heads, a->kv_heads, seq_local, pairs, none, q, k, v);
    }
    switch (bd->l->cp_type) {
    case MF_CP_RING:
        return ring(bd, a, a->heads, a->kv_heads, seq_local, pairs, cp, q, k, v);
    case MF_CP_ALLGATHER: {
        int64_t rows = bd->l->seq * bd->l->mbs;
        int64_t k_cols = a->kv_heads * a->d_qk, v_cols = a->kv_heads * a->d_v;
        int16_t all_k = exchange(bd, MF_OP_ALL_GATHER, "cp_all_gather_k", cp,
                                 (double)rows * (double)k_cols * bd->act_B, k, rows, k_cols);
        int16_t all_v = exchange(bd, MF_OP_ALL_GATHER, "cp_all_gather_v", cp,
                                 (double)rows * (double)v_cols * bd->act_B, v, rows, v_cols);
        int16_t out = attention_output(bd, "attention_out", a->tokens, a->heads * a->d_v);
        int16_t lse = attention_lse(bd, a->tokens, a->heads);
        const int16_t in[3] = {q, all_k, all_v};
        core_attention(bd, a, "core_attention", a->heads, a->kv_heads, seq_local, bd->l->seq, pairs,
                       in, a->sinks, out, lse);
        return out;
    }
    case MF_CP_ALLTOALL:
    case MF_CP_HIERARCHICAL: {
        int64_t inside = bd->l->cp_type == MF_CP_ALLTOALL ? cp.size : cp_inside_domain(bd);
        mf_group_shape near = {inside, cp.stride};
        mf_group_shape far = {cp.size / inside, cp.stride * inside};
        int64_t heads = a->heads / inside;
        int64_t kv_heads = a->kv_heads >= inside ? a->kv_heads / inside : 1;
        if (inside > 1) {
            q = heads_for_sequence(bd, "cp_all_to_all_q", near, q, a->heads, a->d_qk, false);
            k = heads_for_sequence(bd, "cp_all_to_all_k", near, k, a->kv_heads, a->d_qk, false);
            v = heads_for_sequence(bd, "cp_all_to_all_v", near, v, a->kv_heads, a->d_v, false);
        }
        int16_t o =
            ring(bd, a, heads, kv_heads, seq_local * inside, pairs * (double)inside, far, q, k, v);
        return inside > 1
                   ? heads_for_sequence(bd, "cp_all_to_all_o", near, o, a->heads, a->d_v, true)
                   : o;
    }
    case MF_CP_COUNT:
        break;
    }
    return q;
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

static void gqa_projections(mf_build *bd, const attention *a, int16_t xn, int16_t qkv[3]) {
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
static void mla_projections(mf_build *bd, const attention *a, int16_t xn, int16_t qkv[3]) {
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
    attention a = attention_shape(bd);
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
    int16_t o = context_parallel(bd, &a, qkv[0], qkv[1], qkv[2]);
    bd->module = MF_MODULE_ATTN_PROJ;
    mf_linear w = {"o_proj",      MF_PART_ATTENTION, a.heads * a.d_v,
                   bd->m->hidden, bd->m->o_bias,     bd->math};
    int16_t y = mf_lower_row_parallel(bd, &w, o);
    bd->module = MF_MODULE_FFN_NORM;
    const int16_t terms[2] = {x, y};
    return mf_lower_add(bd, "attention_residual", terms, 2);
}
