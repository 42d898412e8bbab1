/* mla_rope.h - q, k and v of multi-head latent attention out of its projections, rotary parts
 * turned on the way, and the gradients' way back: one pass over the bytes instead of mla.h's
 * packing and rotations in place.
 *
 *     q [rows, heads, nope + rope]; kv [rows, heads, nope + v_dim]; k_rope [rows, rope], one for
 * all heads, rope_stride apart (columns of the latent rows); cos and sin [positions, rope/2]
 *     q_out[r, h] = (q[r, h, 0..nope), turn(q[r, h, nope..)))
 *     k_out[r, h] = (kv[r, h, 0..nope), turn(k_rope[r]));  v_out[r, h] = kv[r, h, nope..)
 *
 *     dq_in = (dq's plain part, turn back(dq's rotary part)) + add_q
 *     dkv[r, h] = (dk[r, h, 0..nope), dv[r, h]) + add_kv
 *     dlatent[r] = (0 in kv_rank columns, turn back(sum over heads of dk[r, h, nope..))) +
 * add_latent
 *
 * The sum over heads is taken in float (the reference: in the order of heads), rounded to dtype and
 * turned back once. What an `add` is added to has been rounded to dtype before. All tensors but
 * k_rope are tight; `add`s have the shape of their outputs and may be them. q_out may be q, and
 * dq_in, where nothing is added, dq: then rotary parts are turned where they stand, and plain ones
 * are not touched.
 */
#ifndef MF_KERNELS_MLA_ROPE_H
#define MF_KERNELS_MLA_ROPE_H

#include "kernels/attention/rope.h"
#include "kernels/attention/rope_heads.h"

typedef struct mf_kernel_mla_shape {
    mf_kernel_dtype dtype;
    int64_t rows, heads, nope, rope, v_dim; /* rope even */
    bool interleaved;
    const int32_t *positions; /* [rows], each < the table's length */
    const float *cos, *sin;
} mf_kernel_mla_shape;

typedef struct mf_kernel_mla_rope {
    mf_kernel_mla_shape shape;
    int64_t rope_stride;
    const void *q;               /* read for q_out */
    const void *kv;              /* read for k_out and v_out */
    const void *k_rope;          /* read for k_out */
    void *q_out, *k_out, *v_out; /* each may be NULL: not wanted */
} mf_kernel_mla_rope;

typedef struct mf_kernel_mla_rope_grad {
    mf_kernel_mla_shape shape;
    int64_t kv_rank;
    const void *dq, *dk, *dv;                /* of q_out, k_out, v_out */
    const void *add_q, *add_kv, *add_latent; /* NULL: none */
    void *dq_in;                             /* each output may be NULL: not wanted */
    void *dkv;                               /* [rows, heads, nope + v_dim] */
    void *dlatent;                           /* [rows, kv_rank + rope] */
} mf_kernel_mla_rope_grad;

MF_KERNEL_C_BEGIN
/* The part of q: which heads turn on their way, and which columns where they stand. Pure, for both
 * sides. */
mf_kernel_rope_heads mf_kernel_mla_rope_q(const mf_kernel_mla_shape *s, bool inverse,
                                          const void *from, const void *add, void *to);
mf_kernel_rope mf_kernel_mla_rope_in_place(const mf_kernel_mla_shape *s, bool inverse, void *q);

mf_status mf_kernel_mla_rope_forward(const mf_kernel_mla_rope *a, mf_err *e);
mf_status mf_kernel_mla_rope_backward(const mf_kernel_mla_rope_grad *a, mf_err *e);
mf_status mf_kernel_mla_rope_forward_cuda(const mf_kernel_mla_rope *a, void *stream, mf_err *e);
/* MF_INPUT where rope > 512. */
mf_status mf_kernel_mla_rope_backward_cuda(const mf_kernel_mla_rope_grad *a, void *stream,
                                           mf_err *e);
MF_KERNEL_C_END
#endif
