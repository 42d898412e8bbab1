/* shadow_hold.h - two runs' results against each other, to the bit. */
#ifndef MF_TESTS_SHADOW_HOLD_H
#define MF_TESTS_SHADOW_HOLD_H

#include "tests/support/shadow_case.h"

/* MF_TOLERANCE, with the first byte that differs, or where there is nothing to compare: a run
 * begins with the results of its first step (shadow_keep_result), whose gradients are not zero. */
static inline mf_status shadow_hold(const shadow_bytes *want, const shadow_bytes *got, mf_err *e) {
    enum { NORM = 4, RESULTS = 6 };
    double a[RESULTS] = {0}, b[RESULTS] = {0};
    size_t at = 0;
    if (want->size_B < sizeof a || got->size_B < sizeof b) {
        return mf_err_set(e, MF_TOLERANCE, "a run without a step");
    }
    memcpy(a, want->data, sizeof a);
    memcpy(b, got->data, sizeof b);
    while (at < want->size_B && at < got->size_B && want->data[at] == got->data[at]) {
        at++;
    }
    bool same = at == want->size_B && at == got->size_B;
    return same && a[NORM] > 0
               ? MF_OK
               : mf_err_set(e, MF_TOLERANCE,
                            "byte %zu of %zu (%zu) differs; of the first step: loss %.9g (%.9g), "
                            "norm %.9g (%.9g), ops %g (%g)",
                            at, want->size_B, got->size_B, a[0], b[0], a[NORM], b[NORM], a[5],
                            b[5]);
}

/* The same of runs of two programs, which have numbers of ops of their own. */
static inline mf_status shadow_hold_programs(const shadow_bytes *want, const shadow_bytes *got,
                                             mf_err *e) {
    const double none = 0.0;
    shadow_bytes a = {0}, b = {0};
    shadow_bytes_add(&a, want->data, want->size_B);
    shadow_bytes_add(&b, got->data, got->size_B);
    for (int i = 0; i < want->steps && want->steps == got->steps; i++) {
        memcpy(a.data + want->ops_at[i], &none, sizeof none);
        memcpy(b.data + got->ops_at[i], &none, sizeof none);
    }
    const mf_status status = shadow_hold(&a, &b, e);
    shadow_bytes_clear(&a);
    shadow_bytes_clear(&b);
    return status;
}

#endif
