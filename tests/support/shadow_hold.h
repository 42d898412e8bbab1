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

#endif
