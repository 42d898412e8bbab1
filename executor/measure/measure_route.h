/* measure_route.h - routing of tokens to experts for measurements, with a given imbalance. */
#ifndef MF_EXECUTOR_MEASURE_ROUTE_H
#define MF_EXECUTOR_MEASURE_ROUTE_H

#include <stdint.h>

/* index [tokens, top_k]: experts of each token, all different. Rank 0, which owns the first experts
 * / ranks of them, is chosen skew_percent / 100 times as often as in the mean of ranks, the others
 * evenly; within a rank experts are drawn evenly. 100 <= skew_percent, no more than 100 * ranks;
 * top_k no more than the experts of a rank. */
void mf_measure_route(int32_t *index, int64_t tokens, int64_t top_k, int64_t experts, int64_t ranks,
                      int64_t skew_percent, uint64_t seed);
/* Share of the choices that fall on a rank. */
double mf_measure_route_share(int64_t rank, int64_t ranks, int64_t skew_percent);

#endif
