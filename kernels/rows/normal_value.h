/* normal_value.h - one normal number, by arithmetic that rounds alike everywhere: sums, products,
 * quotients and square roots of doubles, none fused (-ffp-contract=off, -fmad=false). */
#ifndef MF_KERNEL_NORMAL_VALUE_H
#define MF_KERNEL_NORMAL_VALUE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MF_EVERYWHERE static __host__ __device__ inline
#else
#define MF_EVERYWHERE static inline
#endif

MF_EVERYWHERE uint64_t mf_normal_mix(uint64_t v) { /* SplitMix64's finaliser */
    v ^= v >> 30;
    v *= 0xbf58476d1ce4e5b9ull;
    v ^= v >> 27;
    v *= 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

/* ln u of 0 < u < 1, normal: u = m 2^e with m in [1/sqrt 2, sqrt 2), and ln m = 2 artanh s,
 * s = (m - 1) / (m + 1), |s| < 0.172: what the series leaves out is below a double's rounding. */
MF_EVERYWHERE double mf_normal_log(double u) {
    const double series[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                             1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
    const uint64_t half_root = 0x3fe6a09e667f3bcdull; /* 1/sqrt 2 */
    uint64_t bits;
    double m;
    memcpy(&bits, &u, sizeof bits);
    const int64_t e = (int64_t)(bits - half_root) >> 52;
    bits -= (uint64_t)e << 52;
    memcpy(&m, &bits, sizeof m);
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double sum = 1.0 / 23;
    for (int k = 0; k < 11; k++) {
        sum = sum * z + series[k];
    }
    return (double)e * 0.69314718055994530942 + 2.0 * s * sum;
}

/* cos 2 pi v of 0 <= v < 1: an eighth of a turn on either side of a quarter, by Taylor's series. */
MF_EVERYWHERE double mf_normal_cos(double v) {
    const double cosine[] = {1.0 / (15 * 16), 1.0 / (13 * 14), 1.0 / (11 * 12), 1.0 / (9 * 10),
                             1.0 / (7 * 8),   1.0 / (5 * 6),   1.0 / (3 * 4),   1.0 / (1 * 2)};
    const double sine[] = {1.0 / (16 * 17), 1.0 / (14 * 15), 1.0 / (12 * 13), 1.0 / (10 * 11),
                           1.0 / (8 * 9),   1.0 / (6 * 7),   1.0 / (4 * 5),   1.0 / (2 * 3)};
    const int quarter = (int)(4.0 * v + 0.5);
    const double x = (4.0 * v - quarter) * 1.57079632679489661923, z = x * x;
    double even = 1.0, odd = 1.0;
    for (int k = 0; k < 8; k++) {
        even = 1.0 - even * (z * cosine[k]);
        odd = 1.0 - odd * (z * sine[k]);
    }
    odd *= x;
    return quarter % 4 == 0 ? even : quarter % 4 == 1 ? -odd : quarter % 4 == 2 ? -even : odd;
}

/* Standard normal number of (key, element): Box & Muller 1958. */
MF_EVERYWHERE double mf_normal_at(uint64_t key, int64_t element) {
    const uint64_t step = 0x9e3779b97f4a7c15ull;
    uint64_t a = mf_normal_mix(key + step * (uint64_t)(2 * element + 1));
    uint64_t b = mf_normal_mix(key + step * (uint64_t)(2 * element + 2));
    double u = ((double)(a >> 11) + 0.5) * 0x1p-53, v = (double)(b >> 11) * 0x1p-53;
    return sqrt(-2.0 * mf_normal_log(u)) * mf_normal_cos(v);
}

#endif
