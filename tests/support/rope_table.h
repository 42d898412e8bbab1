/* rope_table.h - the plain table of rotary angles, as tests of kernels and of Hugging Face's models
 * take it: written from the formula, apart from the executor's (executor/ops/rope.h). Also for C++.
 */
#ifndef MF_TESTS_ROPE_TABLE_H
#define MF_TESTS_ROPE_TABLE_H

#include <math.h>
#include <stdint.h>

/* Fills cos and sin [count, width/2] for positions 0 .. count-1: angle = position *
 * theta^(-2i/width), computed in double. Host memory. */
static inline void plain_rope_table(double theta, int64_t width, int64_t count, float *cos_out,
                                    float *sin_out) {
    int64_t half = width / 2;
    for (int64_t p = 0; p < count; p++) {
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * pow(theta, -2.0 * (double)i / (double)width);
            cos_out[p * half + i] = (float)cos(angle);
            sin_out[p * half + i] = (float)sin(angle);
        }
    }
}

#endif
