/* test.h - cmocka with the includes it needs, in the order it needs them. */
#ifndef MF_TESTS_TEST_H
#define MF_TESTS_TEST_H
/* clang-format off */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
/* clang-format on */

#include "core/base/status.h"

#include <math.h>
#include <stdio.h>

/* Line by line, so that the log of a program that was ended says how far it came. */
__attribute__((constructor)) static void print_lines(void) {
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
}

/* Fails the test with the error's own words. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        mf_status status_ = (call);                                                                \
        if (status_ != MF_OK) {                                                                    \
            fail_msg("%s -> %s", #call, mf_status_text(status_));                                  \
        }                                                                                          \
    } while (0)
/* |a - b| <= eps in double (cmocka's own is in float). */
#define assert_close(a, b, eps)                                                                    \
    do {                                                                                           \
        double a_ = (a), b_ = (b);                                                                 \
        if (!(fabs(a_ - b_) <= (eps))) {                                                           \
            fail_msg("%s = %.9g, expected %.9g within %.3g", #a, a_, b_, (double)(eps));           \
        }                                                                                          \
    } while (0)

/* x and its bound, compared as double: a failure shows both. */
#define assert_compared(x, relation, bound)                                                        \
    do {                                                                                           \
        double x_ = (double)(x), bound_ = (double)(bound);                                         \
        if (!(x_ relation bound_)) {                                                               \
            fail_msg("%s = %.9g, expected %s %s = %.9g", #x, x_, #relation, #bound, bound_);       \
        }                                                                                          \
    } while (0)
#define assert_at_most(x, most) assert_compared(x, <=, most)
#define assert_at_least(x, least) assert_compared(x, >=, least)
#define assert_below(x, bound) assert_compared(x, <, bound)
#define assert_above(x, bound) assert_compared(x, >, bound)

#endif
