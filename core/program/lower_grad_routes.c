/* lower_grad_routes.c - gradients of what travels between ranks: they go the other way, rows with
 * their probabilities back to where they came from. */
#include "core/program/lower_grad.h"

/* Is this the sum of a row-parallel GEMM's output, whose gradient is only read in low precision?
 * Then the gradient is quantised before it is gathered, as the input of a column-parallel GEMM
 * is. */
static bool gathers_quantised(const mf_build *bd, const mf_op *f) {
    int16_t producer = f->kind == MF_OP_REDUCE_SCATTER && f->stream == MF_STREAM_TP
                           ? bd->b->tensors[f->in[0]].producer
                           : (int16_t)-1;
    if (producer < 0 || bd->quant_B <= 0) {
        return false;
    }
    const mf_op *gemm = &bd->b->ops[producer];
    return gemm->kind == MF_OP_GEMM && gemm->nin == 2 &&
           (gemm->math == MF_MATH_FP8 || gemm->math == MF_MATH_FP4);
}

static void quantised_gather(mf_build *bd, const mf_op *f) {
    bd->pass = MF_PASS_B;
    int16_t dy = mf_grad_of(bd, f->out[0]);
    if (bd->alias[dy] == MF_NO_TENSOR) { /* one time for all pieces */
        int16_t q = mf_lower_quantise(bd, dy);
        bd->alias[dy] = q;
    }
    mf_op *op = mf_build_op(bd, MF_OP_ALL_GATHER, f->name, (mf_stream)f->stream);
    mf_grad_copy_shape(op, f);
    op->bytes *= bd->quant_B / bd->act_B;
    mf_op_in(op, bd->alias[dy]);
    bool first = mf_grad_of(bd, f->in[0]) == MF_NO_TENSOR;
    mf_grad_out(bd, mf_grad_last_op(bd), f->in[0]);
    int16_t g = mf_grad_of(bd, f->in[0]);
    if (first && bd->status == MF_OK) {
        mf_tensor *t = mf_build_t(bd, g);
        t->bytes = (int64_t)((double)t->bytes * bd->quant_B / t->element_B) + 1;
        t->element_B = bd->quant_B;
        bd->alias[g] = g; /* quantised already */
    }
}

void mf_grad_collective(mf_build *bd, const mf_op *f, mf_op_kind kind) {
    int16_t kept[MF_OP_MAX_IN] = {0};
    for (int i = 1; i < f->nin; i++) { /* routing */
        kept[i] = mf_lower_read_forward(bd, f->in[i]);
    }
    bd->pass = MF_PASS_B;
    double factor = 1.0;
    const mf_tensor *x = mf_build_t(bd, f->in[0]);
    if (x->element_B < bd->act_B && x->element_B > 0) {
        factor = bd->act_B / x->element_B; /* gathered quantised, reduced in full */
    }
    mf_op *op = mf_build_op(bd, kind, f->name, (mf_stream)f->stream);
    mf_grad_copy_shape(op, f);
    op->bytes *= factor;
    if (kind == MF_OP_SEND_RECV) {
        op->dim[MF_OP_DIM_PLACES] = -f->dim[MF_OP_DIM_PLACES];
    }
    mf_op_in(op, mf_grad_of(bd, f->out[0]));
    for (int i = 1; i < f->nin; i++) {
        mf_op_in(op, kept[i]);
    }
    mf_grad_out(bd, mf_grad_last_op(bd), f->in[0]);
}

void mf_grad_reduce_scatter(mf_build *bd, const mf_op *f) {
    if (gathers_quantised(bd, f)) {
        quantised_gather(bd, f);
    } else {
        mf_grad_collective(bd, f, MF_OP_ALL_GATHER);
    }
}

/* A combine that reads experts' rows itself waits for their weight gradients, where these are not
 * deferred, as an unpermute on the compute queue would: at the same time both would take longer. */
static void wait_for_experts(mf_build *bd) {
    if (bd->status != MF_OK || bd->key.split) {
        return;
    }
    mf_op *op = &bd->b->ops[mf_grad_last_op(bd)];
    for (int i = bd->b->nops - 2; i >= bd->b->nforward; i--) {
        const mf_op *before = &bd->b->ops[i];
        if (before->kind == MF_OP_GROUPED_GEMM && before->pass == MF_PASS_W) {
            const int inputs = op->nin;
            mf_op_in(op, before->out[0]);
            op->marks = (uint8_t)(op->marks + op->nin - inputs);
            return;
        }
    }
}

void mf_grad_routed(mf_build *bd, const mf_op *f, mf_op_kind kind) {
    const bool exchange = f->kind == MF_OP_DISPATCH;
    const int16_t map = exchange ? mf_lower_read_forward(bd, f->in[1]) : MF_NO_TENSOR;
    const int16_t row_map = exchange && f->dim[MF_OP_DIM_ORDERED] > 0
                                ? mf_lower_read_forward(bd, f->out[1])
                                : MF_NO_TENSOR;
    bd->pass = MF_PASS_B;
    mf_op *op = mf_build_op(bd, kind, f->name, (mf_stream)f->stream);
    mf_grad_copy_shape(op, f);
    mf_op_in(op, mf_grad_of(bd, f->out[0]));
    mf_op_in(op, mf_grad_of(bd, f->out[2]));
    mf_op_in(op, map);
    mf_op_in(op, row_map);
    mf_grad_out(bd, mf_grad_last_op(bd), f->in[0]);
    mf_grad_out(bd, mf_grad_last_op(bd), f->in[2]);
    if (row_map != MF_NO_TENSOR) {
        wait_for_experts(bd);
    }
}
