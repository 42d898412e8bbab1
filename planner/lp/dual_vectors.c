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

/* Sixteen numbers a turn: with four, counting and jumping take as many instructions as they do. */
WIDE void mf_dual_add_times(double *restrict to, const double *restrict from, double by, int n) {
    int j = 0;
    for (; j + 16 <= n; j += 16) {
        const four x0 = *(four *)(to + j) + by * *(const four *)(from + j);
        const four x1 = *(four *)(to + j + 4) + by * *(const four *)(from + j + 4);
        const four x2 = *(four *)(to + j + 8) + by * *(const four *)(from + j + 8);
        const four x3 = *(four *)(to + j + 12) + by * *(const four *)(from + j + 12);
        *(four *)(to + j) = x0;
        *(four *)(to + j + 4) = x1;
        *(four *)(to + j + 8) = x2;
        *(four *)(to + j + 12) = x3;
    }
    for (; j < n; j += 4) {
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

/* Four sums side by side: one alone waits for each addition before it can begin the next. */
WIDE void mf_dual_four_products(const double *const a[4], const double *const b[4], int n,
                                double out[4]) {
    const double *a0 = a[0], *a1 = a[1], *a2 = a[2], *a3 = a[3];
    const double *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
    four s0 = {0.0, 0.0, 0.0, 0.0}, s1 = s0, s2 = s0, s3 = s0;
    for (int j = 0; j < n; j += 4) {
        s0 += *(const four *)(a0 + j) * *(const four *)(b0 + j);
        s1 += *(const four *)(a1 + j) * *(const four *)(b1 + j);
        s2 += *(const four *)(a2 + j) * *(const four *)(b2 + j);
        s3 += *(const four *)(a3 + j) * *(const four *)(b3 + j);
    }
    out[0] = (s0[0] + s0[1]) + (s0[2] + s0[3]);
    out[1] = (s1[0] + s1[1]) + (s1[2] + s1[3]);
    out[2] = (s2[0] + s2[1]) + (s2[2] + s2[3]);
    out[3] = (s3[0] + s3[1]) + (s3[2] + s3[3]);
}
