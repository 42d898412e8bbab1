/* lower_grad.h - private to the derivation of backward passes (lower_grad.c, of matrix products and
 * attention lower_grad_products.c, of what travels between ranks lower_grad_routes.c). */
#ifndef MF_CORE_LOWER_GRAD_H
#define MF_CORE_LOWER_GRAD_H

#include "core/program/lower_build.h"

/* The tensor that holds the gradient of t; MF_NO_TENSOR: none yet. */
static inline int16_t mf_grad_of(mf_build *bd, int16_t t) {
    return mf_build_t(bd, t)->grad;
}

static inline int16_t mf_grad_last_op(const mf_build *bd) {
    return (int16_t)(bd->b->nops - 1);
}

/* Lets op number `op` write the gradient of t, all of it or its piece's slice. A second
 * contribution to all of it reads the first and writes the sum. */
void mf_grad_out(mf_build *bd, int16_t op, int16_t t);
/* The same where it is known whether it is a slice. */
void mf_grad_out_as(mf_build *bd, int16_t op, int16_t t, bool slice);
/* Does gradient flow to this input? Weights, routing maps and given tokens take none. */
bool mf_grad_is_wanted(const mf_build *bd, int16_t t);
/* A weight's gradient accumulates over the micro-batches, in FP32 unless the layout says BF16. */
int16_t mf_grad_of_weight(mf_build *bd, int16_t w);
/* A gradient op inherits what lowering says of its forward op; with its shape, its size, too. */
void mf_grad_copy_meaning(mf_op *to, const mf_op *from);
void mf_grad_copy_shape(mf_op *to, const mf_op *from);

/* Of a matrix product. detached: no gradient flows on. last_piece: that of the weight is made now,
 * one for all pieces. */
void mf_grad_gemm(mf_build *bd, const mf_op *f, bool detached, bool last_piece);
void mf_grad_attention(mf_build *bd, const mf_op *f);

/* The transposed collective: gradients travel the other way. */
void mf_grad_collective(mf_build *bd, const mf_op *f, mf_op_kind kind);
/* The same for a sum that is scattered; operands of products in low precision are gathered in it.
 */
void mf_grad_reduce_scatter(mf_build *bd, const mf_op *f);
/* Rows and their probabilities back to where they came from: (d rows, d probabilities, routing of
 * the way there) -> (d rows, d probabilities). */
void mf_grad_routed(mf_build *bd, const mf_op *f, mf_op_kind kind);

#endif
