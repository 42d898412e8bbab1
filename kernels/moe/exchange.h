/* exchange.h - choices of experts that travel between expert-parallel ranks: what rows bring along,
 * and what comes back.
 *
 * The experts of a model are those of `ranks` ranks, experts / ranks of each, in order. A choice is
 * the number of an expert, -1 for none; a rank receives numbers among its own experts.
 *
 * All-gather: every rank sees all tokens, and keeps the choices of its own experts
 * (mf_kernel_choices_keep).
 *
 * All-to-all: slots of equal size, one a rank (kernels/moe/permute.h: ranks). A row of a choice
 * says which expert it is for (mf_kernel_choices_of_rows); rows of a slot that nothing was put into
 * say -1, and are dropped where they arrive.
 *
 * One copy of a token for each rank that it reaches: a token's ranks (mf_kernel_choices_ranks) are
 * the choices of a permutation of their own, by ranks; slot s of it is rank s % ranks of token
 * s / ranks. A copy takes along the token's choices of that rank (mf_kernel_choices_send), and
 * what comes back of them goes to the token's (mf_kernel_choices_return).
 */
#ifndef MF_KERNELS_EXCHANGE_H
#define MF_KERNELS_EXCHANGE_H

#include "kernels/kernel.h"

/* index[i] -= first where that is one of `experts`, else -1. */
typedef struct mf_kernel_choices_keep {
    int64_t count, first, experts;
    int32_t *index; /* [count] */
} mf_kernel_choices_keep;

typedef struct mf_kernel_choices_of_rows {
    int64_t ranks, experts, rank_rows;
    const int32_t *offsets; /* [experts + 1] first row of each expert, */
    const int32_t *counts;  /* [experts] and its rows, of a map with slots */
    int32_t *index;         /* [ranks * rank_rows] */
} mf_kernel_choices_of_rows;

/* rank[t, r] = r where token t chose an expert of rank r, else -1. */
typedef struct mf_kernel_choices_ranks {
    int64_t tokens, top_k, ranks, experts;
    const int32_t *index; /* [tokens, top_k] */
    int32_t *rank;        /* [tokens, ranks] */
} mf_kernel_choices_ranks;

typedef struct mf_kernel_choices_send {
    int64_t rows, top_k, ranks, experts;
    const int32_t *slot_of_row; /* [rows]; -1: no copy stands there */
    const int32_t *index;       /* [tokens, top_k] */
    const float *prob;          /* [tokens, top_k] */
    int32_t *row_index;         /* [rows, top_k]; -1: an expert of another rank */
    float *row_prob;            /* [rows, top_k]; 0 there */
} mf_kernel_choices_send;

/* out[t, k] = row_value[the copy of token t for the rank of its choice k, k]; 0: dropped. */
typedef struct mf_kernel_choices_return {
    int64_t tokens, top_k, ranks, experts;
    const int32_t *row_of_slot; /* [tokens, ranks]; -1: no copy */
    const int32_t *index;       /* [tokens, top_k] */
    const float *row_value;     /* [rows, top_k] */
    float *out;                 /* [tokens, top_k] */
} mf_kernel_choices_return;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_choices_keep_own(const mf_kernel_choices_keep *a, mf_err *e);
mf_status mf_kernel_choices_of_sent_rows(const mf_kernel_choices_of_rows *a, mf_err *e);
mf_status mf_kernel_choices_find_ranks(const mf_kernel_choices_ranks *a, mf_err *e);
mf_status mf_kernel_choices_send_copies(const mf_kernel_choices_send *a, mf_err *e);
mf_status mf_kernel_choices_return_values(const mf_kernel_choices_return *a, mf_err *e);

mf_status mf_kernel_choices_keep_own_cuda(const mf_kernel_choices_keep *a, void *stream, mf_err *e);
mf_status mf_kernel_choices_of_sent_rows_cuda(const mf_kernel_choices_of_rows *a, void *stream,
                                              mf_err *e);
mf_status mf_kernel_choices_find_ranks_cuda(const mf_kernel_choices_ranks *a, void *stream,
                                            mf_err *e);
mf_status mf_kernel_choices_send_copies_cuda(const mf_kernel_choices_send *a, void *stream,
                                             mf_err *e);
mf_status mf_kernel_choices_return_values_cuda(const mf_kernel_choices_return *a, void *stream,
                                               mf_err *e);
MF_KERNEL_C_END
#endif
