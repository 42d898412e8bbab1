/* rope_heads.h - heads moved from rows to rows, some of them turned by their row's angle on the
 * way: what rope_split.h and mla_rope.h consist of. Each byte is read once and written once.
 *
 * A span is `heads` heads of head_dim columns side by side in rows of `from` and of `to`. Of a head
 * that turns, columns rot_at .. rot_at + rot_dim are rotated as rope.h says (inverse: back); all
 * else is copied bit by bit. With `add`: what would be stored is rounded to dtype first, then added
 * and rounded again.
 */
#ifndef MF_KERNELS_ROPE_HEADS_H
#define MF_KERNELS_ROPE_HEADS_H

#include "kernels/kernel.h"

#define MF_ROPE_SPANS 3

typedef struct mf_kernel_rope_span {
    int64_t heads;
    int64_t from_stride, to_stride; /* elements between rows */
    bool turn;                      /* false: copied */
    const void *from;
    const void *add; /* [rows], to_stride apart; NULL: none; may be to */
    void *to;        /* NULL: the span is not wanted */
} mf_kernel_rope_span;

typedef struct mf_kernel_rope_heads {
    mf_kernel_dtype dtype; /* from, add, to */
    int64_t rows;
    int64_t head_dim, rot_at, rot_dim; /* rot_dim even, rot_at + rot_dim <= head_dim */
    bool interleaved;
    bool inverse;
    const int32_t *positions; /* [rows], each < the table's length */
    const float *cos, *sin;   /* [positions, rot_dim/2] */
    int spans;
    mf_kernel_rope_span span[MF_ROPE_SPANS];
} mf_kernel_rope_heads;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_rope_heads_move(const mf_kernel_rope_heads *a, mf_err *e);
/* Fast where spans and their row strides are aligned to 16 bytes and rot_at, head_dim and rot_dim/2
 * (interleaved: rot_dim) are whole vectors of 16 bytes. */
mf_status mf_kernel_rope_heads_move_cuda(const mf_kernel_rope_heads *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
