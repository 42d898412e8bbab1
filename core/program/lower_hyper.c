/* lower_hyper.c - copies of the residual stream that each half of a layer reads and writes by
 * weights of its own (manifold-constrained hyper-connections, DeepSeek-V4; Megatron-LM's
 * hyper_connection.py, transformers' DeepseekV4HyperConnection).
 *
 * A row of the residual holds all copies side by side. A product of it, normed, gives a token its
 * weights: n to read by, n to write by, n x n to mix the copies by, which some twenty turns of
 * Sinkhorn's iteration make doubly stochastic. What a half reads is one weighted sum of the copies;
 * what it gives is added to each mixed copy by that copy's weight. Every TP rank does so with its
 * own tokens, all of these weights on each. Stages hand over all copies.
 */
#include "core/program/lower_build.h"

int64_t mf_lower_streams(const mf_model *m) {
    return m->hyper_streams > 0 ? m->hyper_streams : 1;
}

static int16_t small_weight(mf_build *bd, const char *name, int64_t rows) {
    int16_t w = mf_build_weight(bd, name, MF_PART_MIXER, rows, 1);
    mf_build_sum(bd, w, MF_SUM_TP, rows);
    return w;
}

/* The sum of the copies in x by a token's weights; *weights: those to write by, or NULL where
 * nothing is written (the end of the model). Statistics are in float; the product is as accurate as
 * TF32 and takes the time of reading the copies. */
static int16_t read_streams(mf_build *bd, int16_t x, int16_t *weights) {
    const mf_model *m = bd->m;
    int64_t n = m->hyper_streams, h = m->hidden, rows = bd->tokens;
    int64_t mixed = weights != NULL ? n * n + 2 * n : n, scales = weights != NULL ? 3 : 1;
    mf_linear w = {"hyper_mixes", MF_PART_MIXER, n * h,
                   mixed,         false,         bd->act_B > 2 ? MF_MATH_FP32 : MF_MATH_BF16};
    int first = bd->b->ntensors;
    int16_t mixes = mf_lower_linear(bd, &w, x, rows);
    mf_build_sum_since(bd, first, MF_SUM_TP, mixed);
    mf_tensor *t = mf_build_t(bd, mixes);
    t->element_B = 4.0;
    t->bytes = t->rows * t->cols * 4;
    t->drop = 0;
    int16_t base = small_weight(bd, "hyper_base", mixed);
    int16_t scale = small_weight(bd, "hyper_scale", scales);
    int16_t y = mf_build_tensor(bd, "hyper_read", rows, h, bd->act_B);
    double bytes = (double)rows * ((double)((n + 1) * h) * bd->act_B + 8.0 * (double)mixed);
    mf_op *op = mf_build_memory_op(bd, MF_OP_HYPER_READ_FWD, "hyper_read", rows, h, bytes);
    op->dim[MF_OP_DIM_STREAMS] = n;
    op->eps = (float)m->rms_norm_eps;
    mf_op_in(op, x);
    mf_op_in(op, mixes);
    mf_op_in(op, base);
    mf_op_in(op, scale);
    mf_op_out(op, y);
    if (weights != NULL) {
        *weights = mf_build_tensor(bd, "hyper_weights", rows, n * n + n, 4.0);
        mf_build_t(bd, *weights)->drop = 0; /* a few numbers a token */
        mf_op_out(op, *weights);
    }
    return y;
}

/* Writes y into every copy: added to the mixed copies of x where there are weights, to x itself
 * where there are none, or alone where there is no x. */
static int16_t write_streams(mf_build *bd, const char *name, int16_t y, int16_t x,
                             int16_t weights) {
    int64_t n = bd->m->hyper_streams, h = bd->m->hidden, rows = bd->tokens;
    int16_t out = mf_build_tensor(bd, name, rows, n * h, bd->act_B);
    double copies = (double)((x != MF_NO_TENSOR ? 2 * n : n) + 1);
    double mixes = weights != MF_NO_TENSOR ? 4.0 * (double)(n * n + n) : 0.0;
    mf_op *op = mf_build_memory_op(bd, MF_OP_HYPER_WRITE_FWD, name, rows, h,
                                   (double)rows * (copies * (double)h * bd->act_B + mixes));
    op->dim[MF_OP_DIM_STREAMS] = n;
    mf_op_in(op, y);
    mf_op_in(op, x);
    mf_op_in(op, weights);
    mf_op_out(op, out);
    return out;
}

mf_hyper_half mf_lower_hyper_in(mf_build *bd, int16_t x) {
    mf_hyper_half half = {x, x, MF_NO_TENSOR};
    if (bd->m->hyper_streams > 0) {
        half.read = read_streams(bd, x, &half.weights);
    }
    return half;
}

int16_t mf_lower_hyper_out(mf_build *bd, const char *name, const mf_hyper_half *half,
                           const int16_t *terms, int count) {
    if (bd->m->hyper_streams == 0) {
        int16_t all[4] = {half->streams};
        for (int i = 0; i < count; i++) {
            all[1 + i] = terms[i];
        }
        return mf_lower_add(bd, name, all, 1 + count);
    }
    int16_t y = count > 1 ? mf_lower_add(bd, name, terms, count) : terms[0];
    return write_streams(bd, "hyper_write", y, half->streams, half->weights);
}

int16_t mf_lower_hyper_begin(mf_build *bd, int16_t x) {
    return bd->m->hyper_streams > 0
               ? write_streams(bd, "hyper_begin", x, MF_NO_TENSOR, MF_NO_TENSOR)
               : x;
}

int16_t mf_lower_hyper_end(mf_build *bd, int16_t x) {
    return bd->m->hyper_streams > 0 ? read_streams(bd, x, NULL) : x;
}

/* From this rank's columns of all rows to all columns of its own rows. */
static int16_t column_shards_joined(mf_build *bd, int16_t x, int64_t rows) {
    if (bd->l->tp == 1) {
        return x;
    }
    int16_t y = mf_build_tensor(bd, "eh_all_to_all", rows, bd->m->hidden, bd->act_B);
    mf_op *op = mf_build_collective(bd, MF_OP_ALL_TO_ALL, "eh_all_to_all", MF_STREAM_TP,
                                    MF_GROUP_TP, (double)rows * (double)bd->m->hidden * bd->act_B);
    mf_op_in(op, x);
    mf_op_out(op, y);
    return y;
}

int16_t mf_lower_hyper_mtp(mf_build *bd, int16_t state, int16_t embedded) {
    const mf_model *m = bd->m;
    int64_t h = m->hidden, rows = bd->tokens * m->hyper_streams;
    mf_linear w = {"e_proj", MF_PART_MTP, h, h / bd->l->tp, false, bd->math};
    int16_t en = mf_lower_norm(bd, "enorm", embedded, bd->tokens, h);
    int16_t e = column_shards_joined(bd, mf_lower_column_parallel(bd, &w, en), bd->tokens);
    int16_t hn = mf_lower_norm(bd, "hnorm", state, rows, h);
    w.name = "h_proj";
    int16_t x = column_shards_joined(bd, mf_lower_column_parallel(bd, &w, hn), rows);
    return write_streams(bd, "mtp_streams", e, x, MF_NO_TENSOR);
}
