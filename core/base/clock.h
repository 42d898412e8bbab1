/* clock.h - what time it is, for durations: seconds on a clock that nobody sets. Thread-safe. */
#ifndef MF_CORE_BASE_CLOCK_H
#define MF_CORE_BASE_CLOCK_H

#include <time.h>

static inline double mf_clock_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
