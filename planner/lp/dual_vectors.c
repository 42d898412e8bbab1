/* dual_vectors.c - loops over rows of numbers, most of what dual_simplex.c takes.
 *
 * Four numbers go side by side. Where the compiler can choose as the program starts they go in one
 * wide register; sums are added up in the same order in either case, so that numbers are the same.
 */
#include "planner/lp/dual_simplex.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

typedef double four __attribute__((vector_size(32), aligned(8), may_alias));

WIDE void mf_dual_add_times(double *restrict to, const double *restrict from, double by, int n) {
#pragma GCC unroll 4
    for (int j = 0; j < n; j += 4) {
        *(four *)(to + j) += by * *(const four *)(from + j);
    }
}

WIDE double mf_dual_product(const double *restrict a, const double *restrict b, int n) {
    four s = {0.0, 0.0, 0.0, 0.0};
    for (int j = 0; j < n; j += 4) {
        s += *(const four *)(a + j) * *(const four *)(b + j);
    }
    return (s[0] + s[1]) + (s[2] + s[3]);
}
