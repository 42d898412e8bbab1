/* measure_route.c - routing with a given imbalance. */
#include "executor/measure/measure_route.h"

#include "executor/measure/measure_draw.h"

#include <stdbool.h>

double mf_measure_route_share(int64_t rank, int64_t ranks, int64_t skew_percent) {
    double fullest = (double)skew_percent / 100 / (double)ranks;
    return rank == 0 || ranks == 1 ? fullest : (1 - fullest) / (double)(ranks - 1);
}

static bool among(const int32_t *chosen, int64_t n, int32_t expert) {
    for (int64_t i = 0; i < n; i++) {
        if (chosen[i] == expert) {
            return true;
        }
    }
    return false;
}

void mf_measure_route(int32_t *index, int64_t tokens, int64_t top_k, int64_t experts, int64_t ranks,
                      int64_t skew_percent, uint64_t seed) {
    const double fullest = mf_measure_route_share(0, ranks, skew_percent);
    const int64_t each = experts / ranks;
    for (int64_t t = 0; t < tokens; t++) {
        int32_t *chosen = index + t * top_k;
        for (int64_t k = 0; k < top_k; k++) {
            const double u = (double)(mf_measure_random(&seed) >> 11) * 0x1p-53;
            const int64_t rank =
                u < fullest || ranks == 1 ? 0 : 1 + mf_measure_random_int(&seed, ranks - 1);
            do { /* another one of the same rank, so that the shares hold */
                chosen[k] = (int32_t)(rank * each + mf_measure_random_int(&seed, each));
            } while (among(chosen, k, chosen[k]));
        }
    }
}
