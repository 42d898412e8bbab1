/* capacity_ties.h - probabilities as capacity compares them, of 13 significant bits, and how near
 * what it kept was to falling the other way: rounding in another order must not bridge that. */
#ifndef MF_TESTS_CAPACITY_TIES_H
#define MF_TESTS_CAPACITY_TIES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* *step: the distance between neighbouring values there. */
static inline double tie_rounded(double p, double *step) {
    int exponent;
    double scaled = ldexp(frexp(p, &exponent), 13);
    *step = ldexp(1.0, exponent - 13);
    return *step * floor(scaled + 0.5);
}

/* Choice i (place and probability) was kept and j was not. */
static inline double tie_apart(int64_t i, double p_i, int64_t j, double p_j) {
    double step, step_j, a = tie_rounded(p_i, &step), b = tie_rounded(p_j, &step_j);
    double falls = p_i - (a - 0.5 * step), rises = b + 0.5 * step_j - p_j;
    if (a - b > 1.5 * step) {
        return p_i - p_j;
    }
    bool both = i < j && a > b; /* a tie would be i's */
    return both ? fmax(falls, rises) : fmin(falls, rises);
}

#endif
