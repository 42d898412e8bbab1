/* sampled.h - how much of a long list of cases is run. */
#ifndef MF_TESTS_SAMPLED_H
#define MF_TESTS_SAMPLED_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Under sanitizers (MF_SANITIZED, set by `make san`) a sample of the cases will do: what they look
 * for is in the first as in the last. `make san-all` (MF_SANITIZED=all) has all of them. */
static inline bool cases_sampled(void) {
    const char *sanitized = getenv("MF_SANITIZED");
    return sanitized != NULL && strcmp(sanitized, "all") != 0;
}

/* Every case, but in a sample every `sampled`-th. */
static inline int case_stride(int sampled) {
    return cases_sampled() ? sampled : 1;
}

/* So many cases, in a sample `sampled`. */
static inline int case_count(int all, int sampled) {
    return cases_sampled() ? sampled : all;
}

#endif
