/* ops_table.h - the one table of measurable ops: names, dims, their order and what they may hold.
 *
 * It gives the canonical spelling of op keys (profiles/store.h) and is what mf_point_parse, the
 * store, the importers and `moefold price` read. Adding an op or a dim is a line in ops_table.c.
 * Everything here is constant data: any thread may read it.
 */
#ifndef MF_PROFILES_OPS_TABLE_H
#define MF_PROFILES_OPS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mf_op_dim_kind {
    MF_DIM_IS_COUNT, /* whole number >= 1 */
    MF_DIM_IS_SIZE,  /* whole number >= 0 */
    MF_DIM_IS_BYTES, /* whole number >= 1; KiB, MiB, GiB are understood behind it */
    MF_DIM_IS_FLAG,  /* 0 or 1 */
    MF_DIM_IS_WORD,  /* one of `words` */
    MF_DIM_IS_NAME,  /* any name of a-z 0-9 _ - . */
} mf_op_dim_kind;

typedef struct mf_op_dim {
    const char *key;
    mf_op_dim_kind kind;
    /* What an absent dim stands for: NULL = it is required; "@h" = the value of the earlier dim h;
     * else the value itself. The canonical key always spells every dim. */
    const char *fallback;
    const char *const *words; /* MF_DIM_IS_WORD: NULL-terminated */
    const char *meaning;      /* with its unit, for help and docs */
} mf_op_dim;

typedef struct mf_op_row {
    const char *name;
    const char *meaning;
    int dims;
    const mf_op_dim *dim; /* [dims], in canonical order */
} mf_op_row;

/* All rows, in the order of the documentation. */
const mf_op_row *mf_op_rows(size_t *count);
/* By exact name; NULL when there is none. */
const mf_op_row *mf_op_row_find(const char *name);
/* The known name nearest to `name`, for "did you mean"; NULL when none is near. */
const char *mf_op_row_nearest(const char *name);
/* Dim by exact key; NULL when the op has none such. */
const mf_op_dim *mf_op_dim_find(const mf_op_row *row, const char *key);
const char *mf_op_dim_nearest(const mf_op_row *row, const char *key);

/* Rows of sequence i (0 .. count-1) of an attention_packed point: evenly from s (1 - vary/100) to
 * s (1 + vary/100), count x s in all (but for rounding), at least 1. */
int64_t mf_op_packed_length(int64_t s, int64_t vary, int64_t count, int64_t i);

/* busbw = factor x bytes / time, as nccl-tests defines it: all_reduce 2(n-1)/n; all_gather,
 * reduce_scatter and all_to_all (n-1)/n; send_recv 1. `bytes` is the size that nccl-tests prints:
 * the buffer for all_reduce, the gathered size for all_gather and reduce_scatter, what one rank
 * sends (own part included) for all_to_all, the message for send_recv. 0 for other ops.
 * Source: nccl-tests doc/PERFORMANCE.md. */
double mf_op_busbw_factor(const char *op, double ranks);

#endif
