/* lower_moe.h - private to lowering of Mixture-of-Experts layers (lower_ffn.c): how rows reach
 * experts and come back (lower_dispatch.c). */
#ifndef MF_CORE_LOWER_MOE_H
#define MF_CORE_LOWER_MOE_H

#include "core/program/lower_build.h"

typedef struct mf_moe_sizes {
    int64_t tokens;  /* of this rank */
    int64_t routed;  /* rows after dispatch over EP, balanced: tokens * top_k */
    int64_t rows;    /* rows that the local experts work on: routed * ETP */
    int64_t padded;  /* of these, for each expert, whatever arrives; 0: as many as arrive */
    int64_t experts; /* local */
    int64_t width;   /* of a local expert shard */
} mf_moe_sizes;

/* Rows that are being routed: for each row the `choices` experts that it goes to and the
 * probabilities of those choices. */
typedef struct mf_routed_rows {
    int16_t x, map, probs;
    int64_t rows, choices;
    bool ordered; /* in the order of the local experts; map is the row map */
} mf_routed_rows;

/* Columns of a row that experts read and give. */
int64_t mf_routed_width(const mf_model *m);
/* Puts rows into the order of `experts` experts, one row for each choice, each with its
 * probability; `padded` rows for each of them, or as many as arrive. The experts are those of
 * `ranks` ranks, with a slot of rows for each rank, or of this rank (0). The result's map is the
 * row map. */
mf_routed_rows mf_lower_permute(mf_build *bd, mf_routed_rows in, int64_t rows, int64_t experts,
                                int64_t padded, int64_t ranks, bool routed);
/* Sends the rank's tokens to the ranks of their experts and (mf_dispatch_orders) puts them into the
 * order of these. *way, for the way back: the row map of the all-to-all's own permute, else the
 * routing map. */
mf_routed_rows mf_lower_dispatch(mf_build *bd, const mf_moe_sizes *s, mf_routed_rows own,
                                 int16_t *way);
/* The way back: the rank that owns a token sums its k rows. `arrived` is what dispatch gave, `map`
 * the row map of the experts' order. */
int16_t mf_lower_combine(mf_build *bd, const mf_moe_sizes *s, int16_t y, mf_routed_rows arrived,
                         int16_t map, int16_t way);

#endif
