/* FP8 format and block quantisation. */
#include "tests/support/kernel_test.h"

#include "kernels/rows/quantise.h"

static void every_e4m3_byte_survives_a_round_trip(void **state) {
    (void)state;
    for (int i = 0; i < 256; i++) {
        float x = mf_kernel_e4m3_widen((uint8_t)i);
        if ((i & 0x7f) == 0x7f) {
            assert_true(isnan(x));
            x = NAN;
            assert_int_equal(mf_kernel_e4m3_round(x) & 0x7f, 0x7f);
        } else {
            assert_int_equal(mf_kernel_e4m3_round(x), i);
        }
    }
    assert_true(mf_kernel_e4m3_widen(0x7e) == 448.0f);
    assert_true(mf_kernel_e4m3_widen(0x01) == 0x1p-9f);
    assert_true(mf_kernel_e4m3_widen(0x38) == 1.0f);
}

static void e4m3_rounds_to_the_nearest_value_ties_to_even(void **state) {
    (void)state;
    for (int n = 0; n < 20000; n++) {
        float x = (float)(kt_uniform(-1, 1) * exp2(kt_uniform(-12, 9)));
        uint8_t got = mf_kernel_e4m3_round(x);
        double distance = fabs((double)mf_kernel_e4m3_widen(got) - (double)x);
        double clipped = fmin(fabs((double)x), 448.0);
        for (int i = 0; i < 0x7f; i++) {
            double other = fabs((double)mf_kernel_e4m3_widen((uint8_t)i) - clipped);
            assert_at_most(distance, other + fabs((double)x) - clipped);
        }
    }
    assert_int_equal(mf_kernel_e4m3_round(1.0625f), 0x38); /* halfway to 1.125: even is 1.0 */
    assert_int_equal(mf_kernel_e4m3_round(1.1875f), 0x3a); /* halfway 1.125 .. 1.25: even is 1.25 */
    assert_int_equal(mf_kernel_e4m3_round(-0x1p-10f), 0x80); /* half the smallest step: zero */
    assert_int_equal(mf_kernel_e4m3_round(INFINITY), 0x7e);
    assert_int_equal(mf_kernel_e4m3_round(15.99f), 0x58); /* carries into the exponent */
}

enum { ROWS = 130, COLS = 200, BI = 2, BJ = 2 };

static void check_blocks(mf_quant_block block, mf_kernel_dtype d, bool pow2) {
    double *x = kt_doubles(ROWS * COLS);
    void *src = kt_random(d, ROWS * COLS, -1, 1, x);
    for (int c = 0; c < 128 && block == MF_QUANT_1X128; c++) { /* an all-zero block */
        mf_kernel_put(src, d, 3 * COLS + c, 0.0f);
        x[3 * COLS + c] = 0.0;
    }
    mf_kernel_put(src, d, 5, 40.0f); /* an outlier hurts its own block only */
    x[5] = 40.0;
    uint8_t *q = kt_poison(ROWS * COLS), *qt = kt_poison(ROWS * COLS);
    float *scale = kt_poison(sizeof(float) * ROWS * BJ);
    float *scale_t = kt_poison(sizeof(float) * COLS * BI);
    /* Scales of q stored with blocks of a row apart by ROWS (the order of cuBLASLt), qt's
     * row-major. */
    mf_kernel_quantise a = {.dtype = d,
                            .block = block,
                            .pow2 = pow2,
                            .rows = ROWS,
                            .cols = COLS,
                            .x = src,
                            .q = q,
                            .qt = qt,
                            .scale = scale,
                            .scale_i = 1,
                            .scale_j = ROWS,
                            .scale_t = scale_t,
                            .scale_t_i = BI,
                            .scale_t_j = 1};
    assert_ok(mf_kernel_quantise_e4m3(&a, NULL));
    int tall = block == MF_QUANT_1X128 ? 1 : 128;
    double difference = 0.0, size = 0.0;
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < COLS; c++) {
            float s = block == MF_QUANT_TENSOR ? scale[0] : scale[r / tall + c / 128 * ROWS];
            float st = block == MF_QUANT_1X128 ? scale_t[c * BI + r / 128] : s;
            double v = x[r * COLS + c];
            double step = (double)s * 448 / 16; /* nearest: at most half the widest step */
            assert_at_most(fabs((double)(mf_kernel_e4m3_widen(q[r * COLS + c]) * s) - v), step);
            assert_at_most(fabs((double)(mf_kernel_e4m3_widen(qt[c * ROWS + r]) * st) - v),
                           (double)st * 448 / 16);
            if (pow2) {
                int exponent;
                assert_true(frexpf(s, &exponent) == 0.5f);
            }
            if (r > 0 || c > 127) {
                double e = (double)(mf_kernel_e4m3_widen(q[r * COLS + c]) * s) - v;
                difference += e * e, size += v * v;
            }
            if (block != MF_QUANT_1X128) {
                assert_int_equal(q[r * COLS + c], qt[c * ROWS + r]);
            }
        }
    }
    if (block == MF_QUANT_1X128) {
        assert_true(scale[3] == 1.0f);
        assert_below(sqrt(difference / size), 0.04); /* 3 mantissa bits: about 2.6 % */
    }
    if (block == MF_QUANT_TENSOR && !pow2) {
        assert_below(fabs((double)scale[0] - 40.0 / 448.0), 1e-7);
    }
    free(x), free(src), free(q), free(qt), free(scale), free(scale_t);
}

static void quantised_blocks_lie_within_a_step_of_their_values(void **state) {
    (void)state;
    const mf_quant_block blocks[] = {MF_QUANT_TENSOR, MF_QUANT_1X128, MF_QUANT_128X128};
    for (int i = 0; i < 12; i++) {
        check_blocks(blocks[i % 3], i & 1 ? MF_KERNEL_BF16 : MF_KERNEL_F32, i >= 6);
    }
}

int main(void) {
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_e4m3_byte_survives_a_round_trip),
        cmocka_unit_test(e4m3_rounds_to_the_nearest_value_ties_to_even),
        cmocka_unit_test(quantised_blocks_lie_within_a_step_of_their_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
