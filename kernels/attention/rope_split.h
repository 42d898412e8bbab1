/* rope_split.h - a fused projection's rows taken apart into q, k and v with q and k turned by their
 * positions, and the gradient's way back: one pass over the bytes instead of copies and rotations
 * in place.
 *
 *     joined [rows, q heads | k heads | v heads] (row stride joined_stride), q [rows, heads,
 * head_dim], k and v [rows, kv_heads, head_dim], tight split: q, k = turn(their columns), v = its
 * columns join:  joined = (turn back(dq) | turn back(dk) | dv) + add
 *
 * The first rot_dim columns of each head of q and k turn (rope.h), the rest is copied. What `add`
 * is added to has been rounded to dtype before, as if it had been stored in between.
 */
#ifndef MF_KERNELS_ROPE_SPLIT_H
#define MF_KERNELS_ROPE_SPLIT_H

#include "kernels/attention/rope_heads.h"

typedef struct mf_kernel_rope_shape {
    mf_kernel_dtype dtype;
    int64_t rows, heads, kv_heads, head_dim;
    int64_t rot_dim;       /* even, <= head_dim */
    int64_t joined_stride; /* elements, >= (heads + 2 kv_heads) * head_dim; without v >= (heads +
                              kv_heads) * head_dim */
    bool interleaved;
    bool q_stays, k_stays;    /* copied, not turned */
    const int32_t *positions; /* [rows], each < the table's length */
    const float *cos, *sin;   /* [positions, rot_dim/2] */
} mf_kernel_rope_shape;

typedef struct mf_kernel_rope_split {
    mf_kernel_rope_shape shape;
    const void *joined;
    void *q, *k, *v; /* each may be NULL: not wanted */
} mf_kernel_rope_split;

typedef struct mf_kernel_rope_join {
    mf_kernel_rope_shape shape;
    const void *dq, *dk, *dv; /* dv NULL: its columns are left as they are */
    const void *add;          /* shape and stride of djoined; NULL: none; may be djoined */
    void *djoined;
} mf_kernel_rope_join;

MF_KERNEL_C_BEGIN
/* Which heads go where: pure, for both sides. */
mf_kernel_rope_heads mf_kernel_rope_split_heads(const mf_kernel_rope_split *a);
mf_kernel_rope_heads mf_kernel_rope_join_heads(const mf_kernel_rope_join *a);

mf_status mf_kernel_rope_split_run(const mf_kernel_rope_split *a, mf_err *e);
mf_status mf_kernel_rope_join_run(const mf_kernel_rope_join *a, mf_err *e);
mf_status mf_kernel_rope_split_run_cuda(const mf_kernel_rope_split *a, void *stream, mf_err *e);
mf_status mf_kernel_rope_join_run_cuda(const mf_kernel_rope_join *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
