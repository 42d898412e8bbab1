/* rope_split.c - which heads a split and a join move, and their references. */
#include "kernels/attention/rope_split.h"

#include <assert.h>

static mf_kernel_rope_heads heads_of(const mf_kernel_rope_shape *s, bool inverse) {
    assert(s->joined_stride >= (s->heads + s->kv_heads) * s->head_dim);
    return (mf_kernel_rope_heads){.dtype = s->dtype,
                                  .rows = s->rows,
                                  .head_dim = s->head_dim,
                                  .rot_dim = s->rot_dim,
                                  .interleaved = s->interleaved,
                                  .inverse = inverse,
                                  .positions = s->positions,
                                  .cos = s->cos,
                                  .sin = s->sin,
                                  .spans = 3};
}

/* Columns of q, k and v in a joined row. */
static int64_t begin_of(const mf_kernel_rope_shape *s, int which) {
    return (which == 0 ? 0 : s->heads + (which - 1) * s->kv_heads) * s->head_dim;
}

static bool turns(const mf_kernel_rope_shape *s, int which) {
    return which == 0 ? !s->q_stays : which == 1 && !s->k_stays;
}

mf_kernel_rope_heads mf_kernel_rope_split_heads(const mf_kernel_rope_split *a) {
    const mf_kernel_rope_shape *s = &a->shape;
    mf_kernel_rope_heads out = heads_of(s, false);
    void *const to[3] = {a->q, a->k, a->v};
    for (int i = 0; i < 3; i++) {
        int64_t heads = i == 0 ? s->heads : s->kv_heads;
        out.span[i] =
            (mf_kernel_rope_span){.heads = heads,
                                  .from_stride = s->joined_stride,
                                  .to_stride = heads * s->head_dim,
                                  .turn = turns(s, i),
                                  .from = mf_kernel_row(a->joined, s->dtype, begin_of(s, i), 1),
                                  .to = to[i]};
    }
    return out;
}

mf_kernel_rope_heads mf_kernel_rope_join_heads(const mf_kernel_rope_join *a) {
    const mf_kernel_rope_shape *s = &a->shape;
    mf_kernel_rope_heads out = heads_of(s, true);
    const void *const from[3] = {a->dq, a->dk, a->dv};
    for (int i = 0; i < 3; i++) {
        int64_t heads = i == 0 ? s->heads : s->kv_heads, at = begin_of(s, i);
        out.span[i] = (mf_kernel_rope_span){
            .heads = heads,
            .from_stride = heads * s->head_dim,
            .to_stride = s->joined_stride,
            .turn = turns(s, i),
            .from = from[i],
            .add = a->add ? mf_kernel_row(a->add, s->dtype, at, 1) : NULL,
            .to = from[i] ? mf_kernel_row_mut(a->djoined, s->dtype, at, 1) : NULL};
    }
    return out;
}

mf_status mf_kernel_rope_split_run(const mf_kernel_rope_split *a, mf_err *e) {
    const mf_kernel_rope_heads heads = mf_kernel_rope_split_heads(a);
    return mf_kernel_rope_heads_move(&heads, e);
}

mf_status mf_kernel_rope_join_run(const mf_kernel_rope_join *a, mf_err *e) {
    const mf_kernel_rope_heads heads = mf_kernel_rope_join_heads(a);
    return mf_kernel_rope_heads_move(&heads, e);
}
