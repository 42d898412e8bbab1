/* lower_scratch.c - scratch that a GPU's kernels need beside the operands of a block's ops: what
 * the header of each kernel says of its workspace (executor/cuda/scratch.c asks the kernels). */
#include "core/program/dispatch_memory.h"
#include "core/program/lower_build.h"
#include "core/program/row_map.h"
#include "core/program/scratch.h"

#include <string.h>

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t choices_B(const mf_build *bd, int64_t rows) {
    return mf_align_B(4 * rows * bd->m->top_k);
}

/* A router's scratch: scores, probabilities and choices of its rows, sums of the auxiliary loss
 * over blocks. */
static int64_t router_B(const mf_build *bd, int64_t rows) {
    const int64_t sums = bd->l->mbs * bd->m->experts;
    return mf_align_B(4 * rows * bd->m->experts) + 2 * choices_B(bd, rows) + mf_align_B(4 * rows) +
           2 * mf_align_B(4 * sums) + 4 * sums * 2 * 264;
}

/* Dropping's scratch: choices of whole samples by place, twice, and a sort of them. */
static int64_t drop_B(const mf_build *bd) {
    const int64_t rows = bd->l->mbs * bd->l->seq, slots = rows * bd->m->top_k;
    return 4 * choices_B(bd, rows) +
           4 * (slots + bd->m->experts + 1 + (slots / 1024 + 1) * bd->m->experts);
}

/* Attention's: gradients of queries are summed in float, or ordered from score gradients, and each
 * row and head has a statistic. */
static int64_t attention_B(const mf_build *bd, const mf_op *op) {
    const int64_t heads = op->dim[MF_OP_DIM_HEADS], batch = op->dim[MF_OP_DIM_BATCH];
    const int64_t rows = batch * op->dim[MF_OP_DIM_SEQ_Q], keys = batch * op->dim[MF_OP_DIM_SEQ_K];
    const int64_t d_qk = op->dim[MF_OP_DIM_D_QK], d_v = op->dim[MF_OP_DIM_D_V];
    if (op->flags & MF_OPF_SPARSE) { /* a query has all of its keys; a key's gradient is summed */
        return mf_op_attention_B(bd->l, bd->b, op) + mf_align_B(4 * rows * heads) +
               mf_align_B(4 * keys * op->dim[MF_OP_DIM_KV_HEADS] * d_qk);
    }
    if (op->flags & MF_OPF_KEPT) {
        return mf_op_attention_B(bd->l, bd->b, op) +
               mf_align_B(mf_attention_kept_B(batch, heads, op->dim[MF_OP_DIM_SEQ_Q]));
    }
    const bool shared = op->dim[MF_OP_DIM_KV_HEADS] < heads; /* K and V by query head, too */
    const int64_t sums_B =
        (op->flags & MF_OPF_ORDERED) != 0
            ? mf_attention_ordered_B(batch, heads, op->dim[MF_OP_DIM_KV_HEADS],
                                     op->dim[MF_OP_DIM_SEQ_Q], op->dim[MF_OP_DIM_SEQ_K])
            : 4 * rows * heads * d_qk;
    return mf_op_attention_B(bd->l, bd->b, op) +
           mf_align_B(sums_B + 4 * rows * heads + (shared ? 2 * keys * heads * (d_qk + d_v) : 0)) +
           3 * mf_align_B(4 * heads) + 4096;
}

/* Sums of columns over blocks of rows. */
static int64_t norm_B(int64_t cols) {
    int64_t blocks = (4 << 20) / (cols > 0 ? cols : 1);
    blocks = blocks < 264 ? 264 : most(1024, blocks < 1056 ? blocks : 1056);
    return 4 * blocks * cols;
}

/* Tokens sorted by their id. */
static int64_t embedding_B(int64_t tokens, int64_t vocabulary) {
    return 16 * (tokens + 4) + 4 * 512 * ((tokens + 1023) / 1024 + 1) +
           4 * ((vocabulary + 31) / 32) + 8 * ((tokens + 31) / 32 + 1) + 64;
}

static int64_t op_B(const mf_build *bd, const mf_op *op) {
    const mf_block *b = bd->b;
    const mf_tensor *first = &b->tensors[op->nin > 0 ? op->in[0] : op->out[0]];
    const int64_t rows = first->rows, cols = first->cols;
    switch (op->kind) {
    case MF_OP_GEMM:
        return first->element_B >= 4.0 ? mf_align_B(2 * rows * cols) : 0;
    case MF_OP_ATTENTION_FWD:
        return mf_op_attention_B(bd->l, b, op);
    case MF_OP_ATTENTION_BWD:
        return attention_B(bd, op);
    case MF_OP_RMSNORM_BWD:
        return norm_B(cols);
    case MF_OP_EMBEDDING_BWD:
        return embedding_B(rows, b->tensors[op->out[0]].rows);
    case MF_OP_BIAS_BWD:
        return 4 * 64 * cols * most(1, op->dim[MF_OP_DIM_GROUPS]);
    case MF_OP_GATE_FWD:
    case MF_OP_GATE_BWD:
        return 2 * mf_align_B(4 * rows) + 4 * 64 * cols;
    case MF_OP_PERMUTE: {
        const int64_t slots = mf_tensor_rows_max(first) * op->dim[MF_OP_DIM_CHOICES];
        return mf_permute_places_B(slots, op->dim[MF_OP_DIM_EXPERTS]);
    }
    case MF_OP_ROUTER_FWD:
    case MF_OP_ROUTER_BWD:
        return router_B(bd, rows);
    case MF_OP_ROUTER_DROP:
        return drop_B(bd);
    case MF_OP_CROSS_ENTROPY:
    case MF_OP_CROSS_ENTROPY_BWD:
        return mf_align_B(4 * rows);
    default:
        break;
    }
    return 0;
}

/* --- whatever the kernels ------------------------------------------------------------------------
 */

/* A copy of a token for each rank that it reaches: which ranks, the map of the copies, and after
 * that either the scratch that makes it or the choices and probabilities being sent. */
static int64_t copies_B(const mf_layout *l, const mf_op *op, int64_t rows) {
    const int64_t slots = op->dim[MF_OP_DIM_TOKENS] * l->ep;
    const int64_t choices = mf_align_B(4 * rows * op->dim[MF_OP_DIM_TOP_K]);
    return mf_align_B(4 * slots) + mf_align_B(4 * mf_row_map_elements(l->ep, rows, slots)) +
           most(2 * choices, mf_permute_places_B(slots, l->ep));
}

/* The same with rows in the order of experts: choices and probabilities (or gradients of these)
 * that arrived, and the scratch that makes the row map, be it of copies in slots or of tokens in a
 * window. */
static int64_t order_B(const mf_layout *l, const mf_op *op, int64_t rows) {
    const int64_t top_k = op->dim[MF_OP_DIM_TOP_K], own = op->dim[MF_OP_DIM_EXPERTS] / l->ep;
    const int64_t slots = most(rows, l->ep * op->dim[MF_OP_DIM_TOKENS]) * top_k;
    return 2 * mf_align_B(4 * rows * top_k) + mf_align_B(mf_permute_places_B(slots, own));
}

static int64_t dispatch_B(const mf_layout *l, const mf_model *m, const mf_block *b,
                          const mf_op *op) {
    const int16_t there = op->kind == MF_OP_DISPATCH ? op->out[0] : op->in[0];
    const bool ordered = op->dim[MF_OP_DIM_ORDERED] > 0;
    const int64_t come =
        ordered ? mf_dispatch_arriving(m, l, op->dim[MF_OP_DIM_TOKENS]) : b->tensors[there].rows;
    const int64_t rows = l->ep * mf_layout_slot_rows(l, come);
    switch ((mf_dispatcher)op->dim[MF_OP_DIM_DISPATCHER]) {
    case MF_DISPATCH_ALLTOALL: /* the experts of each row */
        return op->kind == MF_OP_DISPATCH ? mf_align_B(4 * rows) : 0;
    case MF_DISPATCH_FUSED:
        return copies_B(l, op, rows) + (ordered ? order_B(l, op, rows) : 0);
    case MF_DISPATCH_ALLGATHER:
    case MF_DISPATCH_COUNT:
        break;
    }
    return 0;
}

int64_t mf_op_exchange_B(const mf_layout *l, const mf_model *m, const mf_block *b,
                         const mf_op *op) {
    if (op->nin == 0 || op->nout == 0) {
        return 0;
    }
    const mf_tensor *in = &b->tensors[op->in[0]], *out = &b->tensors[op->out[0]];
    const int64_t widest = most(in->bytes, out->bytes);
    switch (op->kind) {
    case MF_OP_ALL_REDUCE: /* of statistics: the highest of each row */
        return op->reduce == MF_REDUCE_LOGSUMEXP ? mf_align_B(4 * in->rows) : 0;
    case MF_OP_ALL_GATHER: /* nothing where rows lie as they go */
    case MF_OP_REDUCE_SCATTER:
        return op->pieces > 1 || op->group == MF_GROUP_CP ? 3 * widest : 0;
    case MF_OP_ALL_TO_ALL:
        return 2 * widest + 2 * MF_ALIGN_B;
    case MF_OP_DISPATCH:
    case MF_OP_COMBINE:
        return dispatch_B(l, m, b, op);
    default:
        break;
    }
    return 0;
}

int64_t mf_op_attention_B(const mf_layout *l, const mf_block *b, const mf_op *op) {
    const int64_t heads = op->dim[MF_OP_DIM_HEADS];
    const int64_t rows = op->dim[MF_OP_DIM_BATCH] * op->dim[MF_OP_DIM_SEQ_Q];
    const bool gradient = op->kind == MF_OP_ATTENTION_BWD;
    int64_t scratch_B = mf_align_B(4 * heads);
    if (!gradient && op->pass == MF_PASS_R && (op->makes & 1) == 0) { /* nobody reads this output */
        scratch_B += mf_align_B(rows * heads * op->dim[MF_OP_DIM_D_V] *
                                (int64_t)b->tensors[op->in[0]].element_B);
    }
    if (l->cp == 1) {
        return scratch_B;
    }
    for (int i = 0; i < 3 && gradient; i++) {
        scratch_B += mf_align_B(b->tensors[op->in[i]].bytes);
    }
    return scratch_B + mf_align_B(4 * rows * heads);
}

/* Of whole tiles. */
static int64_t scores_B(int64_t batch, int64_t heads, int64_t seq_q, int64_t seq_k) {
    return 2 * batch * heads * ((seq_q + 63) / 64 * 64) * ((seq_k + 63) / 64 * 64);
}

int64_t mf_attention_ordered_pieces(int64_t batch, int64_t heads, int64_t kv_heads, int64_t seq_q,
                                    int64_t seq_k) {
    int64_t pieces = 1;
    while (pieces < kv_heads &&
           (kv_heads % pieces != 0 ||
            scores_B(batch, heads / pieces, seq_q, seq_k) > MF_ATTENTION_ORDERED_B)) {
        pieces++;
    }
    return pieces;
}

int64_t mf_attention_ordered_B(int64_t batch, int64_t heads, int64_t kv_heads, int64_t seq_q,
                               int64_t seq_k) {
    const int64_t fewest_B = scores_B(batch, heads / kv_heads, seq_q, seq_k);
    const int64_t most_B = most(fewest_B, MF_ATTENTION_ORDERED_B);
    const int64_t all_B = scores_B(batch, heads, seq_q, seq_k);
    return all_B < most_B ? all_B : most_B;
}

bool mf_attention_may_keep(const mf_op *op) {
    const unsigned other =
        MF_OPF_PACKED | MF_OPF_CHUNKED | MF_OPF_SPARSE | MF_OPF_SCORES | MF_OPF_ACC_FP32;
    return op->kind == MF_OP_ATTENTION_BWD && op->math == MF_MATH_BF16 &&
           (op->flags & (MF_OPF_CAUSAL | other)) == MF_OPF_CAUSAL &&
           op->dim[MF_OP_DIM_KV_HEADS] == op->dim[MF_OP_DIM_HEADS] &&
           op->dim[MF_OP_DIM_SEQ_K] == op->dim[MF_OP_DIM_SEQ_Q] &&
           op->dim[MF_OP_DIM_SEQ_Q] % 256 == 0 && op->dim[MF_OP_DIM_SEQ_Q] <= 16384 &&
           op->dim[MF_OP_DIM_D_QK] == 192 && op->dim[MF_OP_DIM_D_V] == 128 &&
           op->dim[MF_OP_DIM_WINDOW] == 0;
}

/* Tiles of 64 queries with 128 keys that causal attention sees. */
static int64_t kept_head_B(int64_t seq) {
    const int64_t blocks = seq / 128;
    return blocks * (blocks + 1) * 64 * 128 * 2;
}

int64_t mf_attention_kept_groups(int64_t batch, int64_t heads, int64_t seq) {
    const int64_t fit = MF_ATTENTION_ORDERED_B / 2 / kept_head_B(seq), all = batch * heads;
    const int64_t fewest = fit < 1 ? all : (all + fit - 1) / fit;
    return fewest < 2 && all > 1 ? 2 : fewest;
}

int64_t mf_attention_kept_B(int64_t batch, int64_t heads, int64_t seq) {
    const int64_t groups = mf_attention_kept_groups(batch, heads, seq), all = batch * heads;
    return (groups > 1 ? 2 : 1) * ((all + groups - 1) / groups) * kept_head_B(seq) + 8 * all * seq;
}

int64_t mf_permute_places_B(int64_t slots, int64_t runs) {
    return 4 * runs * ((slots + 1023) / 1024 + 1);
}

void mf_build_find_scratch(mf_build *bd) {
    mf_block *b = bd->b;
    memset(b->scratch_B, 0, sizeof b->scratch_B);
    for (int k = 0; k < b->nops; k++) {
        const mf_op *op = &b->ops[k];
        int64_t *scratch_B = &b->scratch_B[op->stream];
        *scratch_B = most(*scratch_B, most(op_B(bd, op), mf_op_exchange_B(bd->l, bd->m, b, op)));
    }
}
