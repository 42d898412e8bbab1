/* kernel_test.h - what tests of kernels share: seeded random data, relative error norms, central
 * differences of a double-precision model of the kernel. */
#ifndef MF_TESTS_KERNEL_TEST_H
#define MF_TESTS_KERNEL_TEST_H

#include "tests/support/test.h"

#include "kernels/kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t kt_state;

/* Seeds from MF_SEED or the clock, and says so. */
static inline void kt_seed(void) {
    const char *text = getenv("MF_SEED");
    unsigned long long seed = text ? strtoull(text, NULL, 10) : (unsigned long long)time(NULL);
    printf("seed %llu\n", seed);
    fflush(stdout);
    kt_state = seed * 0x9e3779b97f4a7c15ull + 1;
}

static inline uint64_t kt_bits(void) {
    kt_state ^= kt_state << 13;
    kt_state ^= kt_state >> 7;
    kt_state ^= kt_state << 17;
    return kt_state * 0x2545f4914f6cdd1dull;
}

static inline double kt_uniform(double low, double high) {
    return low + (high - low) * (double)(kt_bits() >> 11) * 0x1p-53;
}

static inline int64_t kt_int(int64_t low, int64_t high) {
    return low + (int64_t)(kt_bits() % (uint64_t)(high - low + 1));
}

/* n random values of type d in [low, high); `wide` (may be NULL) gets what was stored. */
static inline void *kt_random(mf_kernel_dtype d, int64_t n, double low, double high, double *wide) {
    void *p = malloc((size_t)n * mf_kernel_dtype_B(d) + 1);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) {
        mf_kernel_put(p, d, i, (float)kt_uniform(low, high));
        if (wide) {
            wide[i] = (double)mf_kernel_get(p, d, i);
        }
    }
    return p;
}

/* n elements of NaN (of any type): an output that a kernel must overwrite. */
static inline void *kt_poison(size_t size_B) {
    void *p = malloc(size_B + 1);
    assert_non_null(p);
    memset(p, 0xff, size_B);
    return p;
}

static inline void *kt_zeros(size_t size_B) {
    void *p = calloc(size_B + 1, 1);
    assert_non_null(p);
    return p;
}

static inline double *kt_doubles(int64_t n) {
    return (double *)kt_zeros((size_t)n * sizeof(double));
}

/* |got - want| / |want| over n elements; NaN anywhere gives NaN. */
static inline double kt_error(const void *got, mf_kernel_dtype d, const double *want, int64_t n) {
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double delta = (double)mf_kernel_get(got, d, i) - want[i];
        difference += delta * delta;
        size += want[i] * want[i];
    }
    return sqrt(difference) / (sqrt(size) + 1e-30);
}

#define kt_assert_close(got, dtype, want, n, bound)                                                \
    do {                                                                                           \
        double error_ = kt_error((got), (dtype), (want), (n));                                     \
        if (!(error_ <= (bound))) {                                                                \
            fail_msg("%s: relative error %.3g > %.3g", #got, error_, (double)(bound));             \
        }                                                                                          \
    } while (0)

/* grad[i] = d f / d x[i] by central differences; x is restored. */
typedef double (*kt_function)(const double *x, void *user);
static inline void kt_gradient(kt_function f, void *user, double *x, int64_t n, double *grad) {
    for (int64_t i = 0; i < n; i++) {
        double keep = x[i], h = 1e-6 * (fabs(keep) + 1.0);
        x[i] = keep + h;
        double up = f(x, user);
        x[i] = keep - h;
        double down = f(x, user);
        x[i] = keep;
        grad[i] = (up - down) / (2.0 * h);
    }
}

/* Bound for a result that is stored as d after float arithmetic. */
static inline double kt_bound(mf_kernel_dtype d) {
    return d == MF_KERNEL_BF16 ? 4e-3 : 2e-6;
}

#endif
