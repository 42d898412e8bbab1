/* lower_traits.c - what other training programs do differently from moefold's executor
 * (MF_TRAIT_*), as changes to the ops of a block: bytes, streams, and tensors that are kept. Each
 * comment names the source where it was read. */
#include "core/program/lower_build.h"

#include <math.h>
#include <string.h>

/* What Megatron does op by op around its kernels for the experts' activation. Biases of the second
 * product, over FP32 copies: forward product, sum, concatenation and cast, 28 bytes an element of
 * the rows; backward casts, the gradient's split, and the sums that the gradients of bias and
 * probability need, 40. A clamp of both halves and their concatenation: 16 bytes an element of the
 * activation, backward 20. After an all-to-all, a copy pads rows of low precision to whole blocks
 * and another takes the padding away: 8 bytes an element of the rows in each pass. A fused kernel
 * needs none of this. */
static void add_expert_copies(const mf_model *m, const mf_layout *l, mf_block *b) {
    bool low = mf_precision_quantised_B(l->precision) > 0;
    bool pads = low && l->dispatcher == MF_DISPATCH_ALLTOALL && mf_layout_padded_rows(l, m) == 0;
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        bool forward = op->kind == MF_OP_SWIGLU_FWD;
        if ((!forward && op->kind != MF_OP_SWIGLU_BWD) || !(op->flags & MF_OPF_ROUTED)) {
            continue;
        }
        double rows = (double)op->dim[MF_OP_DIM_ROWS], width = (double)op->dim[MF_OP_DIM_COLS];
        bool again = op->pass == MF_PASS_R; /* the activation alone */
        op->bytes += m->swiglu_limit > 0 ? (forward ? 16.0 : 20.0) * rows * width : 0;
        op->bytes += m->ffn_bias && !again ? (forward ? 28.0 : 40.0) * rows * (double)m->hidden : 0;
        op->bytes += pads && !again ? 8.0 * rows * (double)m->hidden : 0;
    }
}

/* Each op of a formula a pass of its own: bytes over those of one kernel for norm and RoPE (through
 * FP32; Megatron's RoPE: halves swapped by negation and concatenation, two products, a sum, a
 * concatenation), SiLU and product. torchtitan without torch.compile runs all of them so, Megatron
 * without its fusions all but the norm. */
static void run_op_by_op(unsigned traits, mf_block *b) {
    static const struct {
        unsigned trait;
        double passes;
    } unfused[MF_OP_COUNT] = {
        [MF_OP_RMSNORM_FWD] = {MF_TRAIT_UNFUSED_NORM, 5.0},
        [MF_OP_RMSNORM_BWD] = {MF_TRAIT_UNFUSED_NORM, 5.0},
        [MF_OP_ROPE_FWD] = {MF_TRAIT_UNFUSED_ROPE, 5.0},
        [MF_OP_ROPE_BWD] = {MF_TRAIT_UNFUSED_ROPE, 5.0},
        [MF_OP_SWIGLU_FWD] = {MF_TRAIT_UNFUSED_ACT, 1.7},
        [MF_OP_SWIGLU_BWD] = {MF_TRAIT_UNFUSED_ACT, 2.0},
    };
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        op->bytes *= unfused[op->kind].trait & traits ? unfused[op->kind].passes : 1;
    }
}

/* The heads of a query group lie between keys and values in Megatron's output of the projection, so
 * that queries are copied out of it, and the gradients of all three written behind each other again
 * (attention.py: SplitAlongDim, query.reshape): 4 bytes an element each. */
static void copy_queries(const mf_model *m, mf_block *b) {
    double q = (double)m->heads, kv = (double)m->kv_heads;
    bool grouped = m->attn != MF_ATTN_MLA && kv < q;
    for (int k = 0; k < b->nops && grouped; k++) {
        mf_op *op = &b->ops[k];
        double elements = (double)op->dim[MF_OP_DIM_ROWS] * (double)op->dim[MF_OP_DIM_COLS];
        if (op->kind == MF_OP_ROPE_FWD) { /* of queries and keys */
            op->bytes += 4.0 * elements * q / (q + kv);
        } else if (op->kind == MF_OP_ROPE_BWD) {
            op->bytes += 4.0 * elements * (q + 2 * kv) / (q + kv);
        }
    }
}

/* Megatron adds the gradient of a residual to that of its norm in a pass of its own (autograd): 6
 * bytes where our kernel, which adds while it writes, counts 2. */
static void add_residuals_apart(const mf_model *m, mf_block *b) {
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        if (op->kind == MF_OP_RMSNORM_BWD && op->dim[MF_OP_DIM_COLS] == m->hidden) {
            op->bytes += 4.0 * (double)op->dim[MF_OP_DIM_ROWS] * (double)op->dim[MF_OP_DIM_COLS];
        }
    }
}

/* torchtitan's selective checkpoints save the outputs of products, attention and scattered sums,
 * but recompute every second product: of wq, wk, wv, wo, w1, w3, w2 the second, fourth and sixth.
 * The first product of the MLP represents all of them here (their sums are over the hidden size);
 * outputs of w1 and w2 are saved, keys and the sum behind attention are not. */
static void checkpoint_ops(const mf_model *m, const mf_layout *l, mf_block *b) {
    int64_t again = (m->ffn + m->kv_heads * m->head_dim + m->hidden) / l->tp;
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        if (op->pass == MF_PASS_R && op->kind == MF_OP_GEMM &&
            op->dim[MF_OP_DIM_N] == 2 * m->ffn / l->tp) {
            double part = (double)again / (double)op->dim[MF_OP_DIM_N];
            op->dim[MF_OP_DIM_N] = again;
            op->flops *= part;
            op->bytes *= part;
            double rows = (double)op->dim[MF_OP_DIM_M];
            b->saved_B += (int64_t)(2.0 * rows * (double)(m->ffn - m->kv_heads * m->head_dim) /
                                    (double)l->tp);
        }
    }
}

/* PyTorch's cross-entropy without torch.compile: an FP32 copy, its log-softmax; the gradient of the
 * choice over zeros, that of the log-softmax, its copy in BF16. 36 bytes a logit pass through
 * memory; three FP32 tensors are alive at a time, and the memory of the BF16 logits, which are
 * freed and into which none of these fits, stays reserved. Over TP's parts (loss_parallel: maximum,
 * difference, exponential, sum, difference; zeros, exponential, sum, product) 76 pass and four are
 * alive. */
static void compute_loss_plainly(const mf_layout *l, mf_block *b) {
    const double forward_B = l->tp > 1 ? 38.0 : 14.0, backward_B = l->tp > 1 ? 38.0 : 22.0;
    const double stand_B = l->tp > 1 ? 16.0 : 12.0;
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        double logits = (double)op->dim[MF_OP_DIM_ROWS] * (double)op->dim[MF_OP_DIM_COLS];
        if (op->kind == MF_OP_CROSS_ENTROPY_FWD) {
            op->bytes = forward_B * logits;
            b->local_b_B += (int64_t)(stand_B * logits);
            b->local_bs_B += (int64_t)(stand_B * logits);
        } else if (op->kind == MF_OP_CROSS_ENTROPY_BWD) {
            op->bytes = backward_B * logits;
        }
    }
}

/* "For float8 with rowwise scaling, all distributed communication is done in high precision"
 * (torchtitan's float8.md): what TP gathers is quantised behind the gather, by every rank. */
static void gather_before_quantising(const mf_layout *l, mf_block *b) {
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        if (op->kind != MF_OP_ALL_GATHER || op->stream != MF_STREAM_TP) {
            continue;
        }
        for (int j = 0; j < k; j++) {
            mf_op *before = &b->ops[j];
            if (before->kind == MF_OP_QUANTISE && before->out[0] == op->in[0]) {
                bool own = op->piece == 0 && before->pass == op->pass;
                before->bytes *= own ? (double)l->tp : 1.0;
                op->bytes *= 2.0;
            }
        }
    }
}

/* Scales of rows differ from those of columns: each orientation finds its own and reads the tensor
 * again (rows as they are read, columns in a pass before), where scales of blocks need one read.
 * Kernels for such products are within a tenth of those of a single scale (pytorch/FBGEMM#2764). */
static void scale_rows(mf_block *b) {
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        if (op->kind == MF_OP_QUANTISE) {
            op->bytes += 4.0 * (double)op->dim[MF_OP_DIM_ROWS] * (double)op->dim[MF_OP_DIM_COLS];
        }
        op->flags &= ~(uint32_t)(op->kind == MF_OP_GEMM ? MF_OPF_BLOCK_SCALED : 0);
    }
}

/* Products of a backward pass accumulate in FP32 throughout, at which that kernel is slow: torchao
 * runs the one of a single scale and multiplies its output by the scales in a pass of its own, 4
 * bytes an element (float8_ops.py; pytorch/ao#1325, #2184). Counted with the quantisation before
 * it. */
static void rescale_outputs(mf_block *b) {
    mf_op *quantise = NULL;
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        bool backward = op->pass == MF_PASS_B || op->pass == MF_PASS_W;
        if (op->kind == MF_OP_QUANTISE && op->pass == MF_PASS_B) {
            quantise = op;
        } else if (op->kind == MF_OP_GEMM && op->math == MF_MATH_FP8 && backward && quantise) {
            quantise->bytes +=
                4.0 * (double)op->dim[MF_OP_DIM_ROWS] * (double)op->dim[MF_OP_DIM_COLS];
        }
    }
}

/* Delayed scaling takes the scale of earlier steps: no pass that finds it before quantising; and
 * NeMo scatters the sums of forward products as they leave them, in FP8 (fp8_buf of its overlaps).
 */
static void delay_scales(mf_block *b) {
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        if (op->kind == MF_OP_QUANTISE) {
            op->bytes -= 2.0 * (double)op->dim[MF_OP_DIM_ROWS] *
                         (double)op->dim[MF_OP_DIM_COLS]; /* one read of BF16 less */
        }
        bool forward = op->pass == MF_PASS_F || op->pass == MF_PASS_R;
        if (forward && op->kind == MF_OP_REDUCE_SCATTER && (op->flags & MF_OPF_OVERLAPPED)) {
            op->bytes *= 0.5;
        }
    }
}

/* FP8 products of Hopper read both operands along the inner dimension, so that quantisation writes
 * two orders; those of Blackwell read either, and Transformer Engine then writes one
 * (quantizer.cpp: nvte_is_non_tn_fp8_gemm_supported). */
static void join_quantisations(mf_block *b) {
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        const bool passes = op->kind == MF_OP_QUANTISE && op->bytes > 0;
        op->bytes -= passes ? (double)op->dim[MF_OP_DIM_ROWS] * (double)op->dim[MF_OP_DIM_COLS] : 0;
    }
}

/* Fused grouped MLP: the experts' activation, its gradient and the quantisation of both cost no
 * pass over memory of their own. */
static void fuse_experts(mf_block *b) {
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        bool activation = op->kind == MF_OP_SWIGLU_FWD || op->kind == MF_OP_SWIGLU_BWD;
        if (!activation || !(op->flags & MF_OPF_ROUTED)) {
            continue;
        }
        op->bytes = 0;
        for (int j = k + 1; j < b->nops; j++) {
            mf_op *after = &b->ops[j];
            if (after->kind == MF_OP_QUANTISE && after->nin > 0 && op->nout > 0 &&
                after->in[0] == op->out[0]) {
                after->bytes = 0;
            }
        }
    }
}

/* HybridEP's dispatch and combine reorder the rows, so reordering runs where they run: beside
 * compute where expert traffic is merged with the other micro-batch. */
static void reorder_with_dispatch(mf_block *b) {
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        if (op->kind == MF_OP_PERMUTE || op->kind == MF_OP_UNPERMUTE) {
            op->stream = MF_STREAM_EP;
        }
    }
}

/* Attention without a kernel that keeps scores on the chip (Transformer Engine's
 * UnfusedDotProductAttention): the product of queries and keys writes all pairs in BF16, a masked
 * softmax reads and writes them, the product with values reads them; backward the gradient of the
 * values reads them, that of the scores is written, gone over with them and read twice. Scores,
 * probabilities or their gradients are alive at a time, and probabilities from forward to backward
 * where attention is not recomputed. */
static void store_scores(mf_block *b) {
    const double forward_B = 2 + 4 + 2, backward_B = 2 + 2 + 6 + 4, each_B = 2;
    double kept_B = 0, largest_B = 0;
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        bool forward = op->kind == MF_OP_ATTENTION_FWD;
        if (!forward && op->kind != MF_OP_ATTENTION_BWD) {
            continue;
        }
        double pairs = (double)op->dim[MF_OP_DIM_BATCH] * (double)op->dim[MF_OP_DIM_HEADS] *
                       (double)op->dim[MF_OP_DIM_SEQ_Q] * (double)op->dim[MF_OP_DIM_SEQ_K];
        op->flags |= MF_OPF_SCORES;
        op->bytes = pairs * (forward ? forward_B : backward_B);
        largest_B = fmax(largest_B, pairs * each_B);
        kept_B += (forward ? op->pass == MF_PASS_R ? -1 : 1 : 0) * pairs * each_B;
    }
    b->saved_B += (int64_t)kept_B;
    b->local_f_B += (int64_t)(2 * largest_B);
    b->local_b_B += (int64_t)(3 * largest_B);
    b->local_bs_B += (int64_t)(3 * largest_B);
}

/* Pieces of a product that run together fill each other's tails: Transformer Engine deals them to
 * three streams (comm_gemm_overlap.cpp: num_max_streams), PyTorch's async TP to two. */
static void run_pieces_together(mf_block *b) {
    for (int k = 0; k < b->nops; k++) {
        mf_op *op = &b->ops[k];
        bool piece = op->kind == MF_OP_GEMM && op->pieces > 1;
        op->flags |= (uint32_t)(piece ? MF_OPF_TOGETHER : 0);
    }
}

/* Memory beside the block's own tensors counts in sums only: the block was split into runs
 * before. */
void mf_lower_apply_traits(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                           mf_block *b) {
    const unsigned traits = l->traits | l->software_traits;
    const bool any_order =
        l->precision == MF_PREC_FP8_TENSOR && strcmp(c->gpu.arch, "blackwell") == 0;
    run_op_by_op(traits, b);
    if (traits & MF_TRAIT_QKV_COPIES) {
        copy_queries(m, b);
    }
    if (traits & MF_TRAIT_RESIDUAL_PASS) {
        add_residuals_apart(m, b);
    }
    if (traits & MF_TRAIT_FUSED_EXPERTS) {
        fuse_experts(b);
    } else if (traits & MF_TRAIT_EXPERT_COPIES) {
        add_expert_copies(m, l, b);
    }
    if (traits & MF_TRAIT_DISPATCH_PERMUTES) {
        reorder_with_dispatch(b);
    }
    if (traits & MF_TRAIT_DELAYED_SCALES) {
        delay_scales(b);
    }
    if (any_order && (traits & MF_TRAIT_ONE_ORDER)) {
        join_quantisations(b);
    }
    if (traits & MF_TRAIT_OP_CHECKPOINTS) {
        checkpoint_ops(m, l, b);
    }
    if (traits & MF_TRAIT_UNFUSED_LOSS) {
        compute_loss_plainly(l, b);
    }
    if (traits & MF_TRAIT_PIECES_TOGETHER) {
        run_pieces_together(b);
    }
    if (traits & MF_TRAIT_UNFUSED_ATTENTION) {
        store_scores(b);
    }
    if (traits & MF_TRAIT_ROW_SCALES) {
        scale_rows(b);
        gather_before_quantising(l, b);
        rescale_outputs(b);
    }
}
