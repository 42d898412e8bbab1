/* sampled.h - how much of a long list of cases is run. */
#ifndef MF_TESTS_SAMPLED_H
#define MF_TESTS_SAMPLED_H

#include <stdlib.h>

/* Every case, but under sanitizers (MF_SANITIZED, set by `make san`) every `sanitized`-th. */
static inline int case_stride(int sanitized) {
    return getenv("MF_SANITIZED") != NULL ? sanitized : 1;
}

#endif
