/* lower_layer.c - forward passes of embedding, layer, MTP block and head, and what several of them
 * need. */
#include "core/program/lower_build.h"

/* FP32 elements per row that a norm or softmax keeps for its backward. */
#define STATISTIC_B 4.0

int16_t mf_lower_norm(mf_build *bd, const char *name, int16_t x, int64_t rows, int64_t cols) {
    return mf_lower_norm_eps(bd, name, x, rows, cols, bd->m->rms_norm_eps);
}

int16_t mf_lower_norm_eps(mf_build *bd, const char *name, int16_t x, int64_t rows, int64_t cols,
                          double eps) {
    /* LayerNorm: weights, and the biases behind them. */
    int16_t gamma = mf_build_weight(bd, name, MF_PART_NORM, bd->m->layer_norm ? 2 * cols : cols, 1);
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_NORM;
    int16_t y = mf_build_tensor(bd, name, rows, cols, bd->act_B);
    bd->drop = outer;
    int16_t rstd = mf_build_tensor(bd, "rstd", rows, 1, STATISTIC_B);
    mf_build_t(bd, y)->offload = MF_OFFLOAD_INPUT;
    /* Four bytes a row: saved even when the output is dropped, so that the norm's gradient needs no
     * second reduction. */
    mf_build_t(bd, rstd)->drop = 0;
    double n = (double)rows * (double)cols;
    mf_op *op = mf_build_memory_op(bd, MF_OP_RMSNORM_FWD, name, rows, cols,
                                   2.0 * n * bd->act_B + (double)rows * STATISTIC_B);
    op->eps = (float)eps;
    op->norm_kind = bd->m->layer_norm          ? MF_NORM_LAYER
                    : bd->m->zero_centred_norm ? MF_NORM_RMS_PLUS_ONE
                                               : MF_NORM_RMS;
    mf_op_in(op, x);
    mf_op_in(op, gamma);
    mf_op_out(op, y);
    mf_op_out(op, rstd);
    return y;
}

int16_t mf_lower_add(mf_build *bd, const char *name, const int16_t *terms, int count) {
    mf_tensor first = *mf_build_t(bd, terms[0]);
    int16_t sum = mf_build_tensor(bd, name, first.rows, first.cols, bd->act_B);
    mf_op *op = mf_build_memory_op(bd, MF_OP_ADD, name, first.rows, first.cols,
                                   (double)(count + 1) * (double)first.rows * (double)first.cols *
                                       bd->act_B);
    for (int i = 0; i < count; i++) {
        mf_op_in(op, terms[i]);
    }
    mf_op_out(op, sum);
    return sum;
}

/* Passes over a tensor that is quantised. Scales of small blocks need one; a scale of the whole
 * tensor is found in a pass before; NVFP4 has such a scale over its blocks, and turns the columns
 * by a Hadamard transform in a kernel of their own. */
static double reads_of(mf_precision p) {
    return p == MF_PREC_NVFP4 ? 3.0 : p == MF_PREC_FP8_TENSOR ? 2.0 : 1.0;
}

int16_t mf_lower_quantise(mf_build *bd, int16_t x) {
    mf_tensor from = *mf_build_t(bd, x);
    double n = (double)from.rows * (double)from.cols;
    int16_t q = mf_build_tensor(bd, "quantised", from.rows, from.cols, bd->quant_B);
    mf_tensor *t = mf_build_t(bd, q);
    t->routed = from.routed;
    t->drop = from.drop;
    t->offload = from.offload;
    t->bytes = (int64_t)((double)from.bytes * bd->quant_B / from.element_B) + 1;
    /* Written along rows and, for the weight gradient, along columns. */
    mf_op *op =
        mf_build_memory_op(bd, MF_OP_QUANTISE, "quantise", from.rows, from.cols,
                           n * (reads_of(bd->l->precision) * from.element_B + 2.0 * bd->quant_B));
    if (from.routed) {
        op->flags |= MF_OPF_ROUTED;
    }
    mf_op_in(op, x);
    mf_op_out(op, q);
    return q;
}

/* Number of pieces into which a GEMM is split so that TP communication overlaps it. */
static int64_t tp_pieces(const mf_build *bd, int64_t rows) {
    if (!(bd->l->overlap & MF_OVERLAP_TP) || bd->l->tp == 1) {
        return 1;
    }
    int64_t pieces = bd->l->tp < MF_MOST_PIECES ? bd->l->tp : MF_MOST_PIECES;
    return rows % pieces == 0 ? pieces : 1;
}

int16_t mf_lower_gather_tp(mf_build *bd, const char *name, int16_t x) {
    if (bd->l->tp == 1) {
        return x;
    }
    mf_tensor from = *mf_build_t(bd, x);
    int64_t rows = from.rows * bd->l->tp, pieces = tp_pieces(bd, rows);
    int16_t y = mf_build_tensor(bd, name, rows, from.cols, from.element_B);
    mf_build_t(bd, y)->drop |= MF_DROP_ALWAYS; /* gathered again when a gradient needs it */
    double bytes = (double)rows * (double)from.cols * from.element_B / (double)pieces;
    for (int64_t i = 0; i < pieces; i++) {
        mf_op *op =
            mf_build_collective(bd, MF_OP_ALL_GATHER, name, MF_STREAM_TP, MF_GROUP_TP, bytes);
        mf_op_piece(op, i, pieces);
        mf_op_in(op, x);
        mf_op_out(op, y);
    }
    return y;
}

/* Y[rows, n] = X W^T (+ bias), in `pieces` GEMMs with the same X and Y. */
static int16_t linear_pieces(mf_build *bd, const mf_linear *w, int16_t x, int64_t rows,
                             int64_t pieces, mf_bias_owner owner) {
    int16_t weight = mf_build_weight(bd, w->name, w->part, w->n, w->k);
    int16_t bias = w->bias ? mf_build_weight(bd, "bias", w->part, w->n, 1) : MF_NO_TENSOR;
    int16_t y = mf_build_tensor(bd, w->name, rows, w->n, bd->act_B);
    for (int64_t i = 0; i < pieces; i++) {
        mf_op *op = mf_build_gemm(bd, w->name, w->math, rows / pieces, w->n, w->k);
        op->bias_owner = (uint8_t)owner;
        mf_op_piece(op, i, pieces);
        mf_op_in(op, x);
        mf_op_in(op, weight);
        mf_op_in(op, bias);
        mf_op_out(op, y);
    }
    return y;
}

int16_t mf_lower_linear(mf_build *bd, const mf_linear *w, int16_t x, int64_t rows) {
    return linear_pieces(bd, w, x, rows, 1, MF_BIAS_EVERY);
}

static int16_t quantise_if(mf_build *bd, const mf_linear *w, int16_t x) {
    bool covered = bd->quant_B > 0 && (w->math == MF_MATH_FP8 || w->math == MF_MATH_FP4);
    return covered ? mf_lower_quantise(bd, x) : x;
}

int16_t mf_lower_column_parallel(mf_build *bd, const mf_linear *w, int16_t x) {
    int16_t q = quantise_if(bd, w, x);
    int16_t gathered = mf_lower_gather_tp(bd, "tp_all_gather", q);
    int64_t rows = mf_build_t(bd, gathered)->rows;
    /* One GEMM per piece of the gather: piece i starts when its rows are there. */
    return linear_pieces(bd, w, gathered, rows, tp_pieces(bd, rows), MF_BIAS_EVERY);
}

int16_t mf_lower_row_parallel(mf_build *bd, const mf_linear *w, int16_t x) {
    int16_t q = quantise_if(bd, w, x);
    int64_t rows = mf_build_t(bd, x)->rows, pieces = tp_pieces(bd, rows);
    int first = bd->b->ntensors;
    int16_t y = linear_pieces(bd, w, q, rows, pieces, MF_BIAS_FIRST_TP);
    if (w->bias) { /* weight, bias */
        mf_build_sum_since(bd, first + 1, MF_SUM_TP, w->n);
    }
    if (bd->l->tp == 1) {
        return y;
    }
    int16_t part = mf_build_tensor(bd, "tp_reduce_scatter", rows / bd->l->tp, w->n, bd->act_B);
    double bytes = (double)rows * (double)w->n * bd->act_B / (double)pieces;
    for (int64_t i = 0; i < pieces; i++) {
        mf_op *op = mf_build_collective(bd, MF_OP_REDUCE_SCATTER, "tp_reduce_scatter", MF_STREAM_TP,
                                        MF_GROUP_TP, bytes);
        mf_op_piece(op, i, pieces);
        mf_op_in(op, y);
        mf_op_out(op, part);
    }
    return part;
}

/* A layer's mixer and its FFN; some layers have the one, some the other. */
static int16_t halves(mf_build *bd, int16_t x, unsigned parts) {
    const mf_layer_class *c = &bd->m->layer_classes[bd->key.layer_class];
    if ((parts & MF_HALF_ATTENTION) && c->mixer == MF_MIXER_ATTENTION) {
        x = mf_lower_attention(bd, x);
    } else if ((parts & MF_HALF_ATTENTION) && c->mixer != MF_MIXER_NONE) {
        x = mf_lower_mixer(bd, x);
    }
    return (parts & MF_HALF_FFN) && c->ffn != MF_FFN_NONE ? mf_lower_ffn(bd, x) : x;
}

void mf_lower_layer(mf_build *bd) {
    bd->drop = MF_RECOMPUTE_LAYER;
    int16_t x = bd->input;
    bd->output = halves(bd, x, bd->key.parts);
}

int64_t mf_block_shared_elements(const mf_model *m, const mf_layout *l, const mf_block_key *key) {
    bool embedding = key->shared_embedding &&
                     (key->kind == MF_POS_MTP || (key->kind == MF_POS_HEAD && m->tied_embeddings));
    bool head = key->shared_head && key->kind == MF_POS_MTP;
    return ((embedding ? 1 : 0) + (head ? 1 : 0)) * mf_model_local_vocab(m, l->tp) * m->hidden;
}

/* Looks up all tokens of the TP region in the local part of the vocabulary and scatters the sum. */
static int16_t lookup(mf_build *bd, bool shared) {
    int64_t vocab = mf_model_local_vocab(bd->m, bd->l->tp);
    int16_t table = mf_build_weight(bd, "embed_tokens", MF_PART_EMBEDDING, vocab, bd->m->hidden);
    mf_build_t(bd, table)->table = MF_TABLE_EMBEDDING;
    if (shared) {
        mf_build_t(bd, table)->part = UINT8_MAX; /* counted in the block that holds it */
    }
    int16_t y = mf_build_tensor(bd, "embedding", bd->tokens_attn, bd->m->hidden, bd->act_B);
    double n = (double)bd->tokens_attn * (double)bd->m->hidden;
    mf_op *op = mf_build_memory_op(bd, MF_OP_EMBEDDING_FWD, "embedding", bd->tokens_attn,
                                   bd->m->hidden, n * bd->act_B * (1.0 + 1.0 / (double)bd->l->tp));
    op->alpha = (float)mf_factor(bd->m->embedding_multiplier);
    mf_op_in(op, table);
    mf_op_out(op, y);
    if (bd->l->tp == 1) {
        return y;
    }
    int16_t part = mf_build_tensor(bd, "tp_reduce_scatter", bd->tokens, bd->m->hidden, bd->act_B);
    op = mf_build_collective(bd, MF_OP_REDUCE_SCATTER, "tp_reduce_scatter", MF_STREAM_TP,
                             MF_GROUP_TP, n * bd->act_B);
    mf_op_in(op, y);
    mf_op_out(op, part);
    return part;
}

void mf_lower_embedding(mf_build *bd) {
    bd->module = MF_MODULE_EMBEDDING;
    bd->output = mf_lower_hyper_begin(bd, lookup(bd, false));
}

/* Whether the gradient of the loss needs nothing of other ranks and comes with it. */
static bool loss_in_one(const mf_layout *l) {
    const unsigned apart = MF_TRAIT_LOSS_PASS | MF_TRAIT_UNFUSED_LOSS;
    return l->tp == 1 && ((l->traits | l->software_traits) & apart) == 0;
}

/* Final norm, vocabulary-parallel logits, cross-entropy. The gradient overwrites the logits, so
 * that only one of them is in memory: right away where a rank has all columns. */
static void loss(mf_build *bd, int16_t x, bool shared) {
    const mf_model *m = bd->m;
    int64_t vocab = mf_model_local_vocab(m, bd->l->tp);
    bd->drop = 0; /* no recomputation beyond the last layer */
    bd->module = MF_MODULE_HEAD;
    x = mf_lower_hyper_end(bd, x);
    int16_t xn = mf_lower_norm(bd, "final_norm", x, bd->tokens, m->hidden);
    int16_t gathered = mf_lower_gather_tp(bd, "tp_all_gather", xn);
    mf_linear head = {"lm_head", MF_PART_HEAD, m->hidden,
                      vocab,     m->head_bias, bd->act_B > 2 ? MF_MATH_FP32 : MF_MATH_BF16};
    int first = bd->b->ntensors, first_op = bd->b->nops;
    int16_t logits = mf_lower_linear(bd, &head, gathered, bd->tokens_attn);
    mf_build_alpha_since(bd, first_op, mf_factor(m->logits_multiplier));
    mf_build_t(bd, (int16_t)first)->table = MF_TABLE_HEAD;
    if (shared) {
        mf_build_t(bd, (int16_t)first)->part = UINT8_MAX;
    }
    bd->module = MF_MODULE_LOSS;
    double n = (double)bd->tokens_attn * (double)vocab;
    int16_t stats = mf_build_tensor(bd, "loss_statistics", bd->tokens_attn, 3, STATISTIC_B);
    if (loss_in_one(bd->l)) {
        mf_op *whole = mf_build_memory_op(bd, MF_OP_CROSS_ENTROPY, "cross_entropy", bd->tokens_attn,
                                          vocab, 2.0 * n * bd->act_B);
        mf_op_in(whole, logits);
        mf_op_out(whole, logits);
        mf_op_out(whole, stats);
        return;
    }
    mf_op *op = mf_build_memory_op(bd, MF_OP_CROSS_ENTROPY_FWD, "cross_entropy", bd->tokens_attn,
                                   vocab, n * bd->act_B);
    mf_op_in(op, logits);
    mf_op_out(op, stats);
    if (bd->l->tp > 1) {
        op = mf_build_collective(bd, MF_OP_ALL_REDUCE, "loss_all_reduce", MF_STREAM_TP, MF_GROUP_TP,
                                 (double)bd->tokens_attn * 3.0 * STATISTIC_B);
        op->reduce = MF_REDUCE_LOGSUMEXP;
        mf_op_in(op, stats);
        mf_op_out(op, stats);
        mf_build_last(bd)->no_grad = true;
    }
}

void mf_lower_head(mf_build *bd) {
    loss(bd, bd->input, bd->m->tied_embeddings && bd->key.shared_embedding);
}

static mf_op *side_by_side(mf_build *bd, const char *name, int64_t cols) {
    return mf_build_memory_op(bd, MF_OP_SPLIT, name, bd->tokens, 2 * cols,
                              4.0 * (double)bd->tokens * (double)cols * bd->act_B);
}

static int16_t joined(mf_build *bd, const char *name, int16_t a, int16_t b) {
    int64_t cols = mf_build_t(bd, a)->cols;
    int16_t both = mf_build_tensor(bd, name, bd->tokens, 2 * cols, bd->act_B);
    mf_op *op = side_by_side(bd, name, cols);
    mf_op_in(op, a);
    mf_op_in(op, b);
    mf_op_out(op, both);
    return both;
}

/* Embedding and state side by side, projected. */
static int16_t mtp_projection(mf_build *bd, int16_t state, int16_t embedded) {
    const mf_model *m = bd->m;
    int16_t hn = mf_lower_norm(bd, "hnorm", state, bd->tokens, m->hidden);
    int16_t en = mf_lower_norm(bd, "enorm", embedded, bd->tokens, m->hidden);
    int16_t both = joined(bd, "concat", en, hn);
    mf_linear projection = {"eh_proj", MF_PART_MTP, 2 * m->hidden, m->hidden / bd->l->tp,
                            false,     bd->math};
    int16_t x = mf_lower_column_parallel(bd, &projection, both);
    if (bd->l->tp == 1) {
        return x;
    }
    /* columns of this rank, all tokens -> all columns, own tokens */
    int16_t y = mf_build_tensor(bd, "eh_all_to_all", bd->tokens, m->hidden, bd->act_B);
    mf_op *op =
        mf_build_collective(bd, MF_OP_ALL_TO_ALL, "eh_all_to_all", MF_STREAM_TP, MF_GROUP_TP,
                            (double)bd->tokens * (double)m->hidden * bd->act_B);
    mf_op_in(op, x);
    mf_op_out(op, y);
    return y;
}

/* A depth of multi-token prediction: the next token's embedding and the hidden state of the depth
 * before (the first: the model's own), projected, one layer, its own loss through the shared head
 * (DeepSeek-V3, 2.2). The model's own state passes through. */
void mf_lower_mtp(mf_build *bd) {
    const mf_model *m = bd->m;
    int16_t own = bd->input, state = own;
    bd->module = MF_MODULE_MTP;
    if (bd->key.after_depth) {
        int64_t cols = mf_lower_streams(m) * m->hidden;
        own = mf_build_tensor(bd, "own_state", bd->tokens, cols, bd->act_B);
        state = mf_build_tensor(bd, "depth_state", bd->tokens, cols, bd->act_B);
        mf_build_t(bd, state)->offload = MF_OFFLOAD_INPUT;
        mf_op *op = side_by_side(bd, "split_states", cols);
        mf_op_in(op, bd->input);
        mf_op_out(op, own);
        mf_op_out(op, state);
    }
    int16_t embedded = lookup(bd, bd->key.shared_embedding);
    int16_t x = m->hyper_streams > 0 ? mf_lower_hyper_mtp(bd, state, embedded)
                                     : mtp_projection(bd, state, embedded);
    bd->drop = MF_RECOMPUTE_LAYER;
    x = halves(bd, x, MF_HALF_BOTH);
    bd->output = bd->key.before_depth ? joined(bd, "join_states", own, x) : own;
    loss(bd, x, bd->key.shared_head);
}
