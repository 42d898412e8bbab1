/* lower_compressed.c - attention in a window and over compressed keys (DeepSeek-V4).
 *
 * Queries are of low rank and normed by head; one head is K and V alike. Where the class says so,
 * one key stands for each `compress` positions: a sum of theirs by a softmax over learned scores
 * (at 4 of two series, of these positions and of those before). At 4 an indexer, with compressed
 * keys of its own, chooses index_topk of them; at more all are seen. Queries go over their window
 * and over these keys in one softmax with a sink. The output comes back by groups of heads, each
 * through a matrix of low rank.
 *
 * TP splits heads and groups, as DeepSeek's own program does (inference/model.py); what is of one
 * head, and the indexer, every TP rank does with its own tokens, all of these weights on each. CP
 * gathers keys. The last positions of the neighbour that a window and an overlapping series need
 * are in that gather; the rotation of the output back is part of attention, where Megatron-LM has
 * it (experimental_attention_variant/csa.py).
 */
#include "core/program/lower_attention.h"

#include <math.h>

static const mf_layer_class *class_of(const mf_build *bd) {
    return &bd->m->layer_classes[bd->key.layer_class];
}

/* A product on the rank's tokens; every rank has all of its weight. */
static int16_t own_linear(mf_build *bd, const char *name, int16_t x, int64_t k, int64_t n,
                          bool detached) {
    mf_linear w = {name, MF_PART_MIXER, k, n, false, bd->math};
    int first = bd->b->ntensors;
    int16_t q = bd->quant_B > 0 ? mf_lower_quantise(bd, x) : x;
    int16_t y = mf_lower_linear(bd, &w, q, bd->tokens);
    mf_build_last(bd)->detached = detached;
    mf_build_sum_since(bd, first, MF_SUM_TP, n);
    return y;
}

/* One normed key, `d` wide, for each `ratio` of the rank's tokens; gathered over all ranks that
 * hold tokens of the same samples. */
static int16_t compressed_keys(mf_build *bd, const char *name, int16_t xn, int64_t d,
                               bool detached) {
    const mf_model *m = bd->m;
    int64_t ratio = class_of(bd)->compress, series = ratio == 4 ? 2 : 1;
    int64_t rows = (bd->tokens + ratio - 1) / ratio, cols = 2 * series * d;
    int16_t raw = own_linear(bd, name, xn, m->hidden, cols, detached);
    int16_t places = mf_build_weight(bd, "compress_places", MF_PART_MIXER, ratio * series * d, 1);
    mf_build_sum(bd, places, MF_SUM_TP, ratio * series * d);
    int16_t y = mf_build_tensor(bd, "compressed", rows, d, bd->act_B);
    mf_op *op =
        mf_build_memory_op(bd, MF_OP_COMPRESS_FWD, "compress", rows, d,
                           ((double)bd->tokens * (double)cols + (double)(rows * d)) * bd->act_B);
    op->dim[MF_OP_DIM_COMPRESS_RATIO] = ratio;
    op->dim[MF_OP_DIM_COMPRESS_SERIES] = series;
    mf_op_in(op, raw);
    mf_op_in(op, places);
    mf_op_out(op, y);
    y = mf_lower_norm(bd, "compressed_norm", y, rows, d);
    return mf_lower_gather_samples(bd, "compressed_keys", MF_GROUP_TP_CP, y);
}

/* Pairs of a query and a compressed key in a sample of s: query t of s sees t / ratio of them, at
 * most `most`. */
static double compressed_pairs(double s, double ratio, double most) {
    double whole = floor(s / ratio), last = s - whole * ratio + 1; /* that see all of them */
    double ramp = fmin(whole - 1, most), flat = whole - 1 - ramp;
    double sum = whole < 1 ? 0 : ratio * (ramp * (ramp + 1) / 2 + flat * most);
    return whole < 1 ? 0 : sum + last * fmin(whole, most);
}

/* Chooses the compressed keys that each query sees; the indexer learns by a loss of its own. */
static void choose(mf_build *bd, int16_t xn, int16_t q_low) {
    const mf_model *m = bd->m;
    double keys = floor((double)bd->l->seq / 4.0);
    mf_lower_choice c = {.keys = (int64_t)keys > 0 ? (int64_t)keys : 1,
                         .scored = (double)bd->tokens * keys};
    int64_t kept = m->index_topk < c.keys ? m->index_topk : c.keys;
    double chosen = compressed_pairs((double)bd->l->seq, 4.0, (double)kept);
    c.chosen = chosen * (double)bd->tokens / (double)bd->l->seq;
    c.teacher = (double)m->head_dim;
    c.q = own_linear(bd, "index_q_proj", q_low, m->q_lora_rank, m->index_heads * m->index_head_dim,
                     true);
    c.k = compressed_keys(bd, "index_compressor", xn, m->index_head_dim, true);
    c.weights = own_linear(bd, "index_weights", xn, m->hidden, m->index_heads, true);
    mf_lower_choose(bd, &c);
}

/* Window keys, then compressed ones. */
static int16_t joined_keys(mf_build *bd, int16_t window, int16_t compressed) {
    int64_t rows = mf_build_t(bd, window)->rows + mf_build_t(bd, compressed)->rows;
    int64_t d = bd->m->head_dim;
    int16_t y = mf_build_tensor(bd, "keys", rows, d, bd->act_B);
    mf_op *op = mf_build_memory_op(bd, MF_OP_SPLIT, "join_keys", rows, d,
                                   2.0 * (double)(rows * d) * bd->act_B);
    mf_op_in(op, window);
    mf_op_in(op, compressed);
    mf_op_out(op, y);
    return y;
}

/* Queries of this rank's heads and the one head of keys, normed and rotated. */
static void queries_and_keys(mf_build *bd, const mf_lower_heads *a, int16_t q, int16_t kv,
                             int16_t out[2]) {
    int64_t cols = a->heads * a->d_qk;
    int16_t normed = mf_build_tensor(bd, "q_normed", a->tokens, cols, bd->act_B);
    mf_build_t(bd, normed)->drop |= MF_RECOMPUTE_NORM | MF_RECOMPUTE_MLA_UP_PROJ;
    int16_t rstd = mf_build_tensor(bd, "rstd", a->tokens, a->heads, 4.0);
    mf_build_t(bd, rstd)->drop = 0;
    mf_op *op = mf_build_memory_op(bd, MF_OP_RMSNORM_FWD, "q_norm", a->tokens * a->heads, a->d_qk,
                                   2.0 * (double)a->tokens * (double)cols * bd->act_B);
    op->norm_scope = MF_NORM_ALL_HEADS;
    op->eps = (float)bd->m->rms_norm_eps;
    mf_op_in(op, q);
    mf_op_out(op, normed);
    mf_op_out(op, rstd);
    kv = mf_lower_gather_tp(bd, "tp_all_gather", kv);
    out[0] = mf_build_tensor(bd, "q", a->tokens, cols, bd->act_B);
    out[1] = mf_build_tensor(bd, "k", a->tokens, a->d_qk, bd->act_B);
    double turned = (double)a->tokens * (double)(a->heads + 1) * (double)bd->m->qk_rope_head_dim;
    op = mf_build_memory_op(bd, MF_OP_ROPE_FWD, "rope", a->tokens, cols, 2.0 * turned * bd->act_B);
    mf_op_in(op, normed);
    mf_op_in(op, kv);
    for (int i = 0; i < 2; i++) {
        mf_build_t(bd, out[i])->offload = MF_OFFLOAD_QKV;
        mf_build_t(bd, out[i])->drop |= i == 0 ? MF_RECOMPUTE_MLA_UP_PROJ : 0;
        mf_op_out(op, out[i]);
    }
}

/* The output by groups of heads: a matrix of low rank each, then one for all. */
static int16_t grouped_output(mf_build *bd, const mf_lower_heads *a, int16_t o) {
    const mf_model *m = bd->m;
    int64_t groups = m->o_groups / bd->l->tp, wide = a->heads * a->d_v / groups;
    int64_t low = groups * m->o_lora_rank;
    int16_t w = mf_build_weight(bd, "o_a_proj", MF_PART_MIXER, low, wide);
    int16_t y = mf_build_tensor(bd, "o_a_proj", a->tokens, low, bd->act_B);
    mf_op *op = mf_build_gemm(bd, "o_a_proj", bd->act_B > 2 ? MF_MATH_FP32 : MF_MATH_BF16,
                              a->tokens, low, wide);
    op->bytes += (double)a->tokens * (double)((groups - 1) * wide) * bd->act_B; /* of each group */
    mf_op_in(op, o);
    mf_op_in(op, w);
    mf_op_out(op, y);
    mf_linear up = {"o_b_proj", MF_PART_MIXER, low, m->hidden, false, bd->math};
    return mf_lower_row_parallel(bd, &up, y);
}

static mf_lower_heads heads_of(const mf_build *bd) {
    const mf_model *m = bd->m;
    const mf_layer_class *x = class_of(bd);
    double s = (double)bd->l->seq, w = fmin((double)x->window, s);
    int64_t keys = x->compress > 0 ? bd->l->seq / x->compress : 0;
    int64_t kept = x->compress == 4 && m->index_topk < keys ? m->index_topk : keys;
    double pairs = w * (w + 1.0) / 2.0 + (s - w) * w;
    if (x->compress > 0) {
        pairs += compressed_pairs(s, (double)x->compress, (double)kept);
    }
    return (mf_lower_heads){
        .heads = m->heads / bd->l->tp,
        .kv_heads = 1,
        .d_qk = m->head_dim,
        .d_v = m->head_dim,
        .tokens = bd->tokens_attn,
        .window = (int64_t)w + kept,
        .sparse = true,
        .scale = 1.0 / sqrt((double)m->head_dim),
        .pairs = pairs * (double)bd->l->mbs,
    };
}

int16_t mf_lower_compressed(mf_build *bd, int16_t xn) {
    const mf_model *m = bd->m;
    mf_lower_heads a = heads_of(bd);
    int16_t q_low = own_linear(bd, "q_a_proj", xn, m->hidden, m->q_lora_rank, false);
    q_low = mf_lower_norm(bd, "q_a_norm", q_low, bd->tokens, m->q_lora_rank);
    mf_linear up = {"q_b_proj", MF_PART_MIXER, m->q_lora_rank, a.heads * a.d_qk, false, bd->math};
    int16_t q = mf_lower_column_parallel(bd, &up, q_low);
    mf_build_t(bd, q)->drop |= MF_RECOMPUTE_MLA_UP_PROJ;
    int16_t kv = own_linear(bd, "kv_proj", xn, m->hidden, a.d_qk, false);
    kv = mf_lower_norm(bd, "kv_norm", kv, bd->tokens, a.d_qk);
    int16_t qk[2];
    queries_and_keys(bd, &a, q, kv, qk);
    int16_t keys = mf_lower_gather_samples(bd, "window_keys", MF_GROUP_CP, qk[1]);
    if (class_of(bd)->compress > 0) {
        keys = joined_keys(bd, keys, compressed_keys(bd, "compressor", xn, a.d_qk, false));
    }
    if (class_of(bd)->compress == 4) {
        choose(bd, xn, q_low);
    }
    bd->module = MF_MODULE_CORE_ATTN;
    a.sinks = mf_build_weight(bd, "sinks", MF_PART_MIXER, a.heads, 1);
    int16_t o = mf_lower_shared_keys(bd, &a, qk[0], keys);
    bd->module = MF_MODULE_ATTN_PROJ;
    return grouped_output(bd, &a, o);
}
