/* gpu_draw.h - random numbers of GPU tests in C (xorshift64*). */
#ifndef MF_TESTS_GPU_GPU_DRAW_H
#define MF_TESTS_GPU_GPU_DRAW_H

#include <stdint.h>

static uint64_t state; /* not 0: the test seeds it */

static inline double uniform(double low, double high) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return low + (high - low) * (double)((state * 0x2545f4914f6cdd1dull) >> 11) * 0x1p-53;
}

#endif
