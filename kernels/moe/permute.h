/* permute.h - rows of tokens into the order of their experts and back.
 *
 * A slot is one (token, choice) pair, numbered slot = token * top_k + choice. The map puts the
 * slots of expert 0 first, then expert 1, ..., within an expert by slot number (stable, so the same
 * under every run), each expert's run rounded up to `align` rows and no shorter than `least`.
 * Dropped slots (index -1) get no row. All counts stay where the kernels run. Rows that go to other
 * ranks stand in slots of equal size, one a rank, so that what is sent does not depend on routing:
 * the runs of a rank's experts begin where its slot does, and what does not fit has no row.
 *     permute:    out[row] = weight[slot] * x[slot_of_row[row] / top_k];  padding rows are zero
 *     unpermute:  y[t] = add[t] + sum over choices j of weight[t, j] * in[row_of_slot[t, j]]
 * Each is the other's backward: d(x) of permute = unpermute of d(out); d(in) of unpermute = permute
 * of dy with the same weights, and dweight[t, j] = dot(dy[t], in[row]) by
 * mf_kernel_unpermute_dweight. Regrouping after an all-to-all ([source][expert] runs into
 * [expert][source] runs) is a row map too: mf_kernel_permute_regroup, used by permute with top_k
 * = 1.
 */
#ifndef MF_KERNELS_PERMUTE_H
#define MF_KERNELS_PERMUTE_H

#include "kernels/kernel.h"

typedef struct mf_kernel_permute_map {
    int64_t tokens, top_k, experts, align; /* align 1: no padding */
    int64_t rows_max;                      /* rows that the buffers hold */
    const int32_t *index;                  /* [tokens, top_k] expert of each slot, -1 = dropped */
    int32_t *counts;                       /* [experts] slots of each expert, padding not counted */
    int32_t *offsets;                      /* [experts + 1] first row of each expert's run */
    int32_t *row_of_slot;                  /* [tokens * top_k]; -1: dropped or past rows_max */
    int32_t *slot_of_row;                  /* [rows_max]; -1: padding, and all rows past the end */
    int32_t *overflow; /* [1] set to 1 when offsets[experts] > rows_max, or where a rank's rows are
                          more than its slot has, else 0 */
    void *workspace;   /* CUDA: mf_kernel_permute_workspace_B bytes; the reference takes NULL */
    int64_t least;     /* rows of a run at least, a multiple of align: a capacity; 0: none */
    int32_t *sticky;   /* [1] raised where overflow is set to the thousandths of its space that the
                          map   asked for (mf_kernel_asked; of the fullest slot), never cleared here:
                          one   word for many maps, read after the step; NULL: none */
    int64_t ranks;     /* experts are those of so many ranks, as many of each; 0: of this one */
    int64_t rank_rows; /* rows of each rank's slot; align is 1 and least 0 then, and
                           offsets[experts] is ranks * rank_rows */
} mf_kernel_permute_map;

typedef struct mf_kernel_permute {
    mf_kernel_dtype dtype; /* x, out */
    int64_t rows, cols, top_k;
    const int32_t *rows_dev; /* e.g. &offsets[experts]; rows past it are left as they are */
    const int32_t *slot_of_row;
    const int32_t *row_of_slot; /* [tokens * top_k] the inverse map; with it each row of x is read
                                   once (CUDA, faster for top_k > 1); NULL: row by row */
    int64_t tokens;             /* rows of x; read with row_of_slot only */
    const float *weight;        /* [tokens * top_k] by slot; NULL: 1 */
    const void *x;              /* [tokens, cols] */
    void *out;                  /* [rows, cols] */
    bool sparse; /* many tokens have no row: those are not read (CUDA, with row_of_slot; where most
                    have one this takes longer) */
} mf_kernel_permute;

typedef struct mf_kernel_unpermute {
    mf_kernel_dtype dtype; /* in, add, y */
    int64_t tokens, cols, top_k;
    const int32_t *row_of_slot;
    const float *weight; /* [tokens * top_k]; NULL: 1 */
    const void *in;      /* [rows, cols] */
    const void *add;     /* [tokens, cols]; NULL: none */
    void *y;             /* [tokens, cols]; may be add */
} mf_kernel_unpermute;

typedef struct mf_kernel_unpermute_dweight {
    mf_kernel_dtype dtype; /* dy, in */
    int64_t tokens, cols, top_k;
    const int32_t *row_of_slot;
    const void *dy; /* [tokens, cols] */
    const void *in; /* [rows, cols] */
    float *dweight; /* [tokens * top_k], written; 0 for dropped slots */
} mf_kernel_unpermute_dweight;

/* out[i] = src[map[i]] or back: for values that go with rows (probabilities and their gradients).
 */
typedef struct mf_kernel_permute_scalar {
    int64_t rows;
    const int32_t *rows_dev;
    const int32_t *map; /* [rows]; -1: out[i] = 0 */
    const float *src;
    float *out;
} mf_kernel_permute_scalar;

typedef struct mf_kernel_regroup {
    int64_t sources, experts, rows_max;
    const int32_t *counts; /* [sources, experts] rows of each run, in the order they lie */
    int32_t *offsets;      /* [experts + 1] first row of each expert after regrouping */
    int32_t *from;         /* [rows_max] from[new row] = old row; -1 past the end */
    int32_t *to;           /* [rows_max] to[old row] = new row; -1 past the end */
    int32_t *overflow;     /* [1] as above */
} mf_kernel_regroup;

MF_KERNEL_C_BEGIN
size_t mf_kernel_permute_workspace_B(int64_t slots, int64_t experts);

mf_status mf_kernel_permute_map_build(const mf_kernel_permute_map *a, mf_err *e);
mf_status mf_kernel_permute_forward(const mf_kernel_permute *a, mf_err *e);
mf_status mf_kernel_unpermute_forward(const mf_kernel_unpermute *a, mf_err *e);
mf_status mf_kernel_unpermute_weight_grad(const mf_kernel_unpermute_dweight *a, mf_err *e);
mf_status mf_kernel_permute_scalars(const mf_kernel_permute_scalar *a, mf_err *e);
mf_status mf_kernel_permute_regroup(const mf_kernel_regroup *a, mf_err *e);

mf_status mf_kernel_permute_map_build_cuda(const mf_kernel_permute_map *a, void *stream, mf_err *e);
mf_status mf_kernel_permute_forward_cuda(const mf_kernel_permute *a, void *stream, mf_err *e);
mf_status mf_kernel_unpermute_forward_cuda(const mf_kernel_unpermute *a, void *stream, mf_err *e);
mf_status mf_kernel_unpermute_weight_grad_cuda(const mf_kernel_unpermute_dweight *a, void *stream,
                                               mf_err *e);
mf_status mf_kernel_permute_scalars_cuda(const mf_kernel_permute_scalar *a, void *stream,
                                         mf_err *e);
mf_status mf_kernel_permute_regroup_cuda(const mf_kernel_regroup *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
