/* lower_grad_products.c - gradients of matrix products and of attention. */
#include "core/program/lower_grad.h"
#include "core/program/scratch.h"

#include <string.h>

/* Sums a GEMM's output gradient by column, or by row; m: rows of all pieces. */
static mf_op *build_bias_op(mf_build *bd, const mf_op *f, int64_t m) {
    const int64_t n = f->dim[MF_OP_DIM_N];
    mf_op *op =
        mf_build_memory_op(bd, MF_OP_BIAS_BWD, f->name, m, n, (double)m * (double)n * bd->act_B);
    op->flags = f->flags & MF_OPF_ROUTED;
    mf_grad_copy_meaning(op, f);
    op->dim[MF_OP_DIM_GROUPS] = f->dim[MF_OP_DIM_GROUPS];
    mf_op_in(op, mf_grad_of(bd, f->out[0]));
    return op;
}

/* Of the bias, in[2] of so many operands, and of its scale by row, in[3], where there is one. */
static void grad_gemm_bias(mf_build *bd, const mf_op *f, int operands, int64_t m, int16_t row_map) {
    if (operands > 3 && mf_grad_is_wanted(bd, f->in[3])) {
        bd->pass = MF_PASS_B;
        mf_op_in(build_bias_op(bd, f, m), row_map);
        mf_grad_out(bd, mf_grad_last_op(bd), f->in[3]);
        bd->pass = MF_PASS_W;
    }
    if (operands > 2) {
        int16_t scale = operands > 3 ? mf_lower_read_forward(bd, f->in[3]) : MF_NO_TENSOR;
        bd->pass = MF_PASS_W;
        int16_t db = mf_grad_of_weight(bd, f->in[2]);
        mf_op *op = build_bias_op(bd, f, m);
        mf_op_in(op, scale);
        mf_op_in(op, row_map);
        mf_op_out(op, db);
    }
}

void mf_grad_gemm(mf_build *bd, const mf_op *f, bool detached, bool last_piece) {
    bool low = bd->quant_B > 0 && (f->math == MF_MATH_FP8 || f->math == MF_MATH_FP4);
    /* Fetch (or recompute) X first: its all-gather then runs beside the input gradient. */
    int16_t x = mf_lower_read_forward(bd, f->in[0]);
    int16_t dy = mf_grad_of(bd, f->out[0]);
    if (low && bd->status == MF_OK) { /* one time for all GEMMs that read this gradient */
        bd->pass = MF_PASS_B;
        if (bd->alias[dy] == MF_NO_TENSOR) {
            int16_t q = mf_lower_quantise(bd, dy);
            bd->alias[dy] = q;
        }
        dy = bd->alias[dy];
    }
    int64_t m = f->dim[MF_OP_DIM_M], n = f->dim[MF_OP_DIM_N], k = f->dim[MF_OP_DIM_K];
    bool grouped = f->kind == MF_OP_GROUPED_GEMM;
    /* Grouped: where the runs of the experts begin. */
    int16_t row_map = grouped ? mf_lower_read_forward(bd, mf_op_row_map(f)) : MF_NO_TENSOR;
    int operands = grouped ? f->nin - 1 : f->nin;
    if (mf_grad_is_wanted(bd, f->in[0]) && !detached) {
        bd->pass = MF_PASS_B;
        mf_op *op = mf_build_gemm(bd, f->name, (mf_math)f->math, m, k, n);
        op->kind = f->kind;
        op->flags = f->flags & ~(uint32_t)MF_OPF_BIAS;
        op->piece = f->piece;
        op->pieces = f->pieces;
        op->dim[MF_OP_DIM_GROUPS] = f->dim[MF_OP_DIM_GROUPS];
        op->bytes = f->bytes;
        mf_grad_copy_meaning(op, f);
        mf_op_in(op, dy);
        mf_op_in(op, f->in[1]);
        mf_op_in(op, row_map);
        mf_grad_out(bd, mf_grad_last_op(bd), f->in[0]);
    }
    if (!last_piece) {
        return;
    }
    /* The weight gradient is one op over the rows of all pieces. */
    m *= f->pieces > 1 ? f->pieces : 1;
    bd->pass = MF_PASS_W;
    int16_t dw = mf_grad_of_weight(bd, f->in[1]);
    mf_op *op = mf_build_gemm(bd, f->name, (mf_math)f->math, n, k, m);
    op->kind = f->kind;
    op->flags = (f->flags & ~(uint32_t)(MF_OPF_OVERLAPPED | MF_OPF_BIAS)) | MF_OPF_WGRAD |
                (bd->l->grads_bf16 ? 0 : MF_OPF_ACC_FP32);
    op->dim[MF_OP_DIM_GROUPS] = f->dim[MF_OP_DIM_GROUPS];
    mf_grad_copy_meaning(op, f);
    /* Reads both operands, reads and writes the sum. */
    double groups = grouped ? (double)f->dim[MF_OP_DIM_GROUPS] : 1.0;
    op->bytes += groups * (double)n * (double)k * 2.0 * mf_layout_gradient_B(bd->l) -
                 (double)n * (double)k * bd->act_B;
    mf_op_in(op, dy);
    mf_op_in(op, x);
    mf_op_in(op, row_map);
    mf_op_out(op, dw);
    grad_gemm_bias(bd, f, operands, m, row_map);
}

void mf_grad_attention(mf_build *bd, const mf_op *f) {
    const mf_build_extra extra = bd->extra[bd->forward_op];
    int16_t in[3], out = mf_lower_read_forward_part(bd, extra.final_out, f);
    int16_t lse = mf_lower_read_forward_part(bd, extra.final_lse, f);
    for (int i = 0; i < 3; i++) {
        in[i] = mf_op_split_axis(f) != MF_SPLIT_NONE ? mf_lower_read_forward_part(bd, f->in[i], f)
                                                     : mf_lower_read_forward_turning(bd, f->in[i]);
    }
    for (int i = 1; i < 3; i++) { /* the keys of the next step are sent while this one runs */
        mf_lower_fetch_ahead(bd, f->in[i]);
    }
    bd->pass = MF_PASS_B;
    mf_op *op = mf_build_op(bd, MF_OP_ATTENTION_BWD, f->name, MF_STREAM_COMPUTE);
    mf_grad_copy_shape(op, f);
    const bool hopper = strcmp(bd->c->gpu.arch, "hopper") == 0; /* the kernels are for it alone */
    if (hopper && mf_attention_may_keep(op) && f->nin == 3 &&
        ((bd->l->traits | bd->l->software_traits) & MF_TRAIT_GENERAL_ATTENTION) == 0) {
        op->flags |= MF_OPF_KEPT;
    } else {
        op->flags |= bd->l->deterministic ? MF_OPF_ORDERED : 0;
    }
    op->flags |= f->nin > 3 ? MF_OPF_SINKS : 0;
    op->flops = 2.5 * f->flops; /* five products to the forward's two */
    op->bytes = 2.0 * f->bytes;
    for (int i = 0; i < 3; i++) {
        mf_op_in(op, in[i]);
    }
    mf_op_in(op, out);
    mf_op_in(op, lse);
    mf_op_in(op, mf_grad_of(bd, extra.final_out));
    const int own = f->in[1] == f->in[2] ? 2 : 3; /* keys that are the values have one gradient */
    for (int i = 0; i < own; i++) {
        int maker = bd->status == MF_OK ? bd->b->tensors[f->in[i]].producer : -1;
        bool split_heads = maker >= 0 && mf_op_split_axis(&bd->b->ops[maker]) == MF_SPLIT_HEADS;
        if (mf_grad_is_wanted(bd, f->in[i])) { /* a piece has queries of its own, not always keys */
            mf_grad_out_as(bd, mf_grad_last_op(bd), f->in[i],
                           mf_op_split_axis(f) != MF_SPLIT_NONE && (i == 0 || split_heads));
        }
    }
    if (f->nin > 3) { /* sinks */
        int16_t dsinks = mf_grad_of_weight(bd, f->in[3]);
        mf_op_out(&bd->b->ops[mf_grad_last_op(bd)], dsinks);
    }
}
