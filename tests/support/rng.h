/* rng.h - a small seeded generator for property tests (splitmix64). Tests print their seed. */
#ifndef MF_TESTS_RNG_H
#define MF_TESTS_RNG_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct rng {
    uint64_t state;
} rng;

/* Seed from $MF_SEED, else a fixed one; printed so that a failure can be run again. */
static inline rng rng_init(uint64_t fallback) {
    const char *text = getenv("MF_SEED");
    rng r = {text ? strtoull(text, NULL, 10) : fallback};
    printf("seed %llu\n", (unsigned long long)r.state);
    return r;
}

static inline uint64_t rng_next(rng *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Whole number in [lo, hi]. */
static inline int64_t rng_range(rng *r, int64_t lo, int64_t hi) {
    return lo + (int64_t)(rng_next(r) % (uint64_t)(hi - lo + 1));
}

/* Power of two in [1, max]. */
static inline int64_t rng_pow2(rng *r, int64_t max) {
    int64_t v = 1;
    while (v * 2 <= max && rng_next(r) % 2) {
        v *= 2;
    }
    return v;
}

#endif
