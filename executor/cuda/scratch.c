/* scratch.c - the scratch of an op's kernels; core/memory/memory_scratch.c plans it. */
#include "executor/cuda/scratch.h"

#include "executor/device/device.h"

#include "core/program/scratch.h"
#include "kernels/moe/router_choices.h"

static size_t aligned(size_t size_B) {
    return (size_t)mf_align_B((int64_t)size_B);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Probabilities, choices and sums of a router, and the workspace of its statistics. */
static size_t router_B(const mf_layout *l, const mf_model *m, int64_t rows) {
    size_t choices = aligned((size_t)(rows * m->top_k) * 4);
    size_t sums = aligned((size_t)(l->mbs * m->experts) * 4);
    return aligned((size_t)(rows * m->experts) * 4) + 2 * choices + aligned((size_t)rows * 4) +
           2 * sums + mf_kernel_router_workspace_B(l->mbs, m->experts);
}

static size_t drop_B(const mf_layout *l, const mf_model *m) {
    int64_t slots = l->mbs * l->seq * m->top_k;
    return 4 * aligned((size_t)slots * 4) + mf_kernel_router_drop_workspace_B(slots, m->experts);
}

/* What cuDNN's gradient sums in float, statistics, sinks; the engine's own workspace is small. */
static size_t attention_B(const mf_block *b, const mf_op *op, const mf_layout *l) {
    size_t rows = (size_t)(op->dim[MF_OP_DIM_BATCH] * op->dim[MF_OP_DIM_SEQ_Q]);
    size_t keys = (size_t)(op->dim[MF_OP_DIM_BATCH] * op->dim[MF_OP_DIM_SEQ_K]);
    size_t parts = (size_t)mf_op_attention_B(l, b, op);
    size_t heads = (size_t)op->dim[MF_OP_DIM_HEADS];
    size_t d_qk = (size_t)op->dim[MF_OP_DIM_D_QK], d_v = (size_t)op->dim[MF_OP_DIM_D_V];
    size_t sums = rows * heads * 4 * (d_qk + 1);
    if (op->flags & MF_OPF_KEPT) {
        return parts + aligned((size_t)mf_attention_kept_B(op->dim[MF_OP_DIM_BATCH],
                                                           op->dim[MF_OP_DIM_HEADS],
                                                           op->dim[MF_OP_DIM_SEQ_Q]));
    }
    bool shared = op->dim[MF_OP_DIM_KV_HEADS] < op->dim[MF_OP_DIM_HEADS];
    sums += shared ? keys * heads * 2 * (d_qk + d_v) : 0; /* of K and V, by query head */
    return op->kind == MF_OP_ATTENTION_BWD ? parts + aligned(sums) + 3 * aligned(heads * 4) + 4096
                                           : parts;
}

static size_t norm_B(const mf_block *b, const mf_op *op) {
    size_t cols = (size_t)b->tensors[op->in[0]].cols;
    return larger(
        mf_kernel_rmsnorm_workspace_B((int64_t)cols),
        op->norm_scope == MF_NORM_QK_ROWS ? mf_kernel_norm_split_workspace_B((int64_t)cols) : 0);
}

size_t mf_cuda_scratch_B(const mf_block *b, const mf_op *op, const mf_layout *l,
                         const mf_model *m) {
    const mf_tensor *first = &b->tensors[op->nin > 0 ? op->in[0] : op->out[0]];
    int64_t rows = first->rows;
    switch (op->kind) {
    case MF_OP_GEMM: /* gradients of float logits, rounded; a bias, widened */
        return first->element_B >= 4.0 ? aligned((size_t)(rows * first->cols) * 2) : 0;
    case MF_OP_ATTENTION_FWD:
    case MF_OP_ATTENTION_BWD:
        return attention_B(b, op, l);
    case MF_OP_RMSNORM_BWD:
        return norm_B(b, op);
    case MF_OP_EMBEDDING_BWD:
        return mf_kernel_embedding_workspace_B(rows, b->tensors[op->out[0]].rows, first->cols);
    case MF_OP_BIAS_BWD:
        return mf_kernel_bias_workspace_B(
            op->dim[MF_OP_DIM_GROUPS] > 0 ? op->dim[MF_OP_DIM_GROUPS] : 1, first->cols);
    case MF_OP_PERMUTE: {
        int64_t row_B = first->cols * (int64_t)first->element_B;
        int64_t slots = first->bytes / (row_B > 0 ? row_B : 1) * op->dim[MF_OP_DIM_CHOICES];
        return mf_kernel_permute_workspace_B(slots, op->dim[MF_OP_DIM_EXPERTS]);
    }
    case MF_OP_ROUTER_FWD:
    case MF_OP_ROUTER_BWD:
        return router_B(l, m, rows);
    case MF_OP_ROUTER_DROP:
        return drop_B(l, m);
    case MF_OP_GATE_FWD:
    case MF_OP_GATE_BWD:
        return 2 * aligned((size_t)rows * 4) + mf_kernel_bias_workspace_B(1, first->cols);
    case MF_OP_CROSS_ENTROPY:
    case MF_OP_CROSS_ENTROPY_BWD:
        return aligned((size_t)rows * 4);
    default:
        break;
    }
    return (size_t)mf_op_exchange_B(l, m, b, op);
}
