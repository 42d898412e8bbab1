/* lower_sparse.c - sparse attention as DeepSeek-V3.2 has it (arXiv:2512.02556, 2.1): an indexer
 * scores every key of the past for each query, and latent attention goes over the best index_topk
 * only.
 *
 * Where a sample has more keys than that, attention works on the latents themselves (the absorbed
 * form): queries go through the up-projection of keys, one K and V head of kv_lora_rank + rope and
 * kv_lora_rank columns serves all query heads, and the output goes through the up-projection of
 * values. With up to index_topk keys every key is chosen, and attention is that of DeepSeek-V3. The
 * indexer scores the rank's tokens (every TP rank has all its weights) against keys that are
 * gathered over TP and CP; it learns by a loss of its own, so no gradient flows back into what it
 * reads. Layers that take the choice of the layer before have no indexer.
 */
#include "core/program/lower_attention.h"
#include "core/program/mixer_costs.h"

#include <math.h>

/* A product of the indexer on the rank's tokens; every rank has all of its weight. */
static int16_t index_linear(mf_build *bd, const char *name, int16_t x, int64_t k, int64_t n) {
    mf_linear w = {name, MF_PART_INDEXER, k, n, false, bd->math};
    int first = bd->b->ntensors;
    int16_t q = bd->quant_B > 0 ? mf_lower_quantise(bd, x) : x;
    int16_t y = mf_lower_linear(bd, &w, q, bd->tokens);
    mf_build_last(bd)->detached = true;
    mf_build_sum_since(bd, first, MF_SUM_TP, n);
    return y;
}

int16_t mf_lower_gather_samples(mf_build *bd, const char *name, mf_group_kind group, int16_t x) {
    const mf_tensor from = *mf_build_t(bd, x);
    int64_t size = mf_layout_group(bd->l, group).size;
    if (size == 1) {
        return x;
    }
    int16_t y = mf_build_tensor(bd, name, from.rows * size, from.cols, from.element_B);
    mf_build_t(bd, y)->drop |= MF_DROP_ALWAYS;
    mf_build_t(bd, y)->indices = from.indices;
    mf_op *op =
        mf_build_collective(bd, MF_OP_ALL_GATHER, name, MF_STREAM_TP, group,
                            (double)(from.rows * size) * (double)from.cols * from.element_B);
    mf_op_in(op, x);
    mf_op_out(op, y);
    mf_build_last(bd)->no_grad = from.indices;
    return y;
}

void mf_lower_indexer(mf_build *bd, int16_t xn, int16_t q_low) {
    const mf_model *m = bd->m;
    int64_t heads = m->index_heads, d = m->index_head_dim;
    bool low = q_low != MF_NO_TENSOR;
    int16_t q = index_linear(bd, "index_q_proj", low ? q_low : xn, low ? m->q_lora_rank : m->hidden,
                             heads * d);
    int16_t k = index_linear(bd, "index_k_proj", xn, m->hidden, d);
    int16_t gamma = mf_build_weight(bd, "index_k_norm", MF_PART_INDEXER, 2 * d, 1);
    mf_build_sum(bd, gamma, MF_SUM_TP, 2 * d);
    int16_t kn = mf_build_tensor(bd, "index_k_norm", bd->tokens, d, bd->act_B);
    int16_t rstd = mf_build_tensor(bd, "rstd", bd->tokens, 1, 4.0);
    mf_op *op = mf_build_memory_op(bd, MF_OP_RMSNORM_FWD, "index_k_norm", bd->tokens, d,
                                   2.0 * (double)bd->tokens * (double)d * bd->act_B);
    op->eps = (float)m->rms_norm_eps;
    op->norm_kind = MF_NORM_LAYER;
    mf_op_in(op, k);
    mf_op_in(op, gamma);
    mf_op_out(op, kn);
    mf_op_out(op, rstd);
    int16_t weights = index_linear(bd, "index_weights", xn, m->hidden, heads);
    int16_t keys = mf_lower_gather_samples(bd, "index_keys", MF_GROUP_TP_CP, kn);
    double s = (double)bd->l->seq, n = (double)m->index_topk;
    double chosen = n >= s ? 1.0 : (n * (n + 1.0) / 2.0 + (s - n) * n) / (s * (s + 1.0) / 2.0);
    double scored = (double)bd->tokens * (s + 1.0) / 2.0;
    const mf_lower_choice c = {q,
                               keys,
                               weights,
                               bd->l->seq,
                               scored,
                               scored * chosen,
                               (double)(m->kv_lora_rank + m->qk_rope_head_dim)};
    mf_lower_choose(bd, &c);
}

/* Scores all pairs and keeps the best of each query, for all TP ranks. */
void mf_lower_choose(mf_build *bd, const mf_lower_choice *c) {
    const mf_model *m = bd->m;
    int64_t heads = m->index_heads, d = m->index_head_dim;
    int64_t kept = m->index_topk < c->keys ? m->index_topk : c->keys;
    bd->module = MF_MODULE_CORE_ATTN;
    int16_t choice = mf_build_tensor(bd, "index_choice", bd->tokens, kept, 4.0);
    mf_build_t(bd, choice)->indices = true;
    double moved = mf_tensor_balanced_B(mf_build_t(bd, c->q)) +
                   mf_tensor_balanced_B(mf_build_t(bd, c->k)) +
                   mf_tensor_balanced_B(mf_build_t(bd, choice));
    mf_op *op = mf_build_memory_op(bd, MF_OP_INDEX_FWD, "indexer", bd->tokens, kept,
                                   moved + mf_index_score_bytes(c->scored));
    op->dim[MF_OP_DIM_INDEX_HEADS] = heads;
    op->dim[MF_OP_DIM_INDEX_DIM] = d;
    op->dim[MF_OP_DIM_INDEX_KEYS] = c->keys;
    op->dim[MF_OP_DIM_INDEX_TOPK] = kept;
    op->flops = mf_index_flops(c->scored, heads, d);
    mf_op_in(op, c->q);
    mf_op_in(op, c->k);
    mf_op_in(op, c->weights);
    mf_op_out(op, choice);
    mf_build_last(bd)->chosen = c->chosen;
    mf_build_last(bd)->teacher = c->teacher;
    (void)mf_lower_gather_samples(bd, "index_choices", MF_GROUP_TP, choice);
    bd->module = MF_MODULE_ATTN_PROJ;
}

void mf_lower_block_indexer(mf_build *bd) {
    const mf_model *m = bd->m;
    int64_t d = m->index_head_dim;
    if (!m->layer_classes[bd->key.layer_class].indexer) {
        return;
    }
    int first = bd->b->ntensors;
    mf_build_weight(bd, "index_q_proj", MF_PART_INDEXER, m->index_heads * d, m->hidden);
    mf_build_weight(bd, "index_k_proj", MF_PART_INDEXER, d, m->hidden);
    mf_build_weight(bd, "index_qk_norm", MF_PART_INDEXER, 2 * d, 1);
    mf_build_sum_since(bd, first, MF_SUM_NONE, 0); /* no gradient */
}

/* A product per head: `k` columns of each head in, `n` out; on tokens of the TP region. */
static int16_t by_head(mf_build *bd, const mf_lower_heads *a, const char *name, int16_t x,
                       int64_t k, int64_t n, uint16_t drop) {
    int16_t w = mf_build_weight(bd, name, MF_PART_ATTENTION, a->heads * n, k);
    uint16_t outer = bd->drop;
    bd->drop |= drop;
    int16_t y = mf_build_tensor(bd, name, a->tokens, a->heads * n, bd->act_B);
    bd->drop = outer;
    mf_op *op = mf_build_gemm(bd, name, bd->act_B > 2 ? MF_MATH_FP32 : MF_MATH_BF16, a->tokens,
                              a->heads * n, k);
    mf_op_in(op, x);
    mf_op_in(op, w);
    mf_op_out(op, y);
    return y;
}

bool mf_lower_is_sparse(const mf_build *bd) {
    return bd->m->attn == MF_ATTN_MLA && bd->m->index_topk > 0 && bd->m->index_topk < bd->l->seq;
}

int16_t mf_lower_sparse(mf_build *bd, mf_lower_heads a, int16_t q, int16_t latents) {
    const mf_model *m = bd->m;
    int64_t rank = m->kv_lora_rank, rope = m->qk_rope_head_dim, wide = rank + rope;
    int16_t up =
        by_head(bd, &a, "q_absorbed", q, m->qk_nope_head_dim, rank, MF_RECOMPUTE_MLA_UP_PROJ);
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_MLA_UP_PROJ;
    int16_t qkv[3] = {
        mf_build_tensor(bd, "q", a.tokens, a.heads * wide, bd->act_B),
        mf_build_tensor(bd, "k", a.tokens, wide, bd->act_B),
        mf_build_tensor(bd, "v", a.tokens, rank, bd->act_B),
    };
    bd->drop = outer;
    double cols = (double)(2 * a.heads * wide + 3 * wide);
    mf_op *op = mf_build_memory_op(bd, MF_OP_ROPE_FWD, "mla_rope", a.tokens, a.heads * wide,
                                   (double)a.tokens * cols * bd->act_B);
    mf_op_in(op, up);
    mf_op_in(op, q);
    mf_op_in(op, latents);
    for (int i = 0; i < 3; i++) {
        mf_build_t(bd, qkv[i])->offload = MF_OFFLOAD_QKV;
        mf_op_out(op, qkv[i]);
    }
    double s = (double)bd->l->seq, k = (double)m->index_topk;
    a.kv_heads = 1;
    a.d_qk = wide;
    a.d_v = rank;
    a.window = m->index_topk;
    a.sparse = true;
    a.pairs = (double)bd->l->mbs * (k * (k + 1.0) / 2.0 + (s - k) * k);
    bd->module = MF_MODULE_CORE_ATTN;
    int16_t o = mf_lower_context(bd, &a, qkv[0], qkv[1], qkv[2]);
    bd->module = MF_MODULE_ATTN_PROJ;
    return by_head(bd, &a, "v_up", o, rank, m->v_head_dim, 0);
}
