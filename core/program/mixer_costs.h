/* mixer_costs.h - FLOPs and traffic of ops that mixers take beside products: chunked scans, short
 * convolutions, the scores of an indexer. Lowering and prices by hand read them here. Pure. */
#ifndef MF_CORE_MIXER_COSTS_H
#define MF_CORE_MIXER_COSTS_H

#include "core/model/model.h"

/* A scan over `rows` positions: heads on this rank, widths of keys (Mamba-2: groups, state) and of
 * values, positions in a chunk. */
typedef struct mf_scan_shape {
    mf_mixer_kind rule;
    int64_t rows, key_heads, key_dim, value_heads, value_dim, chunk;
} mf_scan_shape;

/* FLOPs of a position, forward, for keys (or states) dk wide, values dv wide, chunks of C:
 * - delta rules: K K^T, w and u through the triangular inverse, the state's two products, Q K^T and
 *   the output's two: 6 dk dv + C (6 dk + 4 dv), without the inverse itself (O(C^2));
 * - Mamba-2: C B^T of each group, which is counted with its heads, the products inside a chunk and
 *   those with the state: 2 C dv + 4 dk dv, and 2 C dk of each group;
 * - lightning: Q K^T and its product with V in whole chunks, the state's two products:
 *   C (2 dk + 2 dv) + 4 dk dv. */
double mf_scan_flops(const mf_scan_shape *s);
/* The gradient's FLOPs over these: two products for each of the forward pass, and what is computed
 * again: w, u and the states between chunks, of a delta rule 4 dk dv + C (2 dk + 2 dv); of the
 * others about a third. */
double mf_scan_gradient(const mf_scan_shape *s);
/* And its traffic over the forward pass's. */
#define MF_SCAN_GRADIENT_BYTES 2.5
/* C-wide matrices that the kernels keep for the gradient, per head: one, of KDA two. */
int64_t mf_scan_matrices(mf_mixer_kind rule);
/* Columns of decays and steps, in float, that the rule reads. */
int64_t mf_scan_decays(const mf_scan_shape *s);
/* Forward traffic: inputs and outputs pass one time, states between chunks twice. */
double mf_scan_bytes(const mf_scan_shape *s, double element_B);

/* Scores of `pairs` pairs by an indexer's heads, each weighted (DeepSeek-V3.2). */
double mf_index_flops(double pairs, int64_t heads, int64_t width);
/* Bytes: a score per pair, in float, is written, and read by the choice. */
double mf_index_score_bytes(double pairs);
/* FLOPs of its own loss over the chosen pairs: two products where the forward pass takes one, and
 * the teacher's scores over `teacher` columns of all its heads. */
double mf_index_gradient_flops(double chosen, int64_t heads, int64_t width, double teacher);
#define MF_INDEX_GRADIENT_BYTES 2.0

/* A convolution's gradient's traffic over the forward pass's. */
#define MF_CONV_GRADIENT_BYTES 1.5

#endif
