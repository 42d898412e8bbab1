/* Initial weights: the logarithm and the cosine behind them, their distribution, and blocks. */
#include "kernels/rows/normal.h"
#include "kernels/rows/normal_value.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>

enum { DRAWS = 1000000 };

/* Those of the C library; a number is off by a few roundings of a double at most. */
static void logarithm_and_cosine_are_the_librarys(void **state) {
    (void)state;
    const double pi = 3.14159265358979323846;
    double log_off = 0, cos_off = 0;
    for (int64_t i = 0; i < DRAWS; i++) {
        const double u = ((double)(mf_normal_mix((uint64_t)i) >> 11) + 0.5) * 0x1p-53;
        const double small = u * ldexp(1.0, -(int)(i % 50));
        log_off = fmax(log_off, fabs(mf_normal_log(small) / log(small) - 1.0));
        cos_off = fmax(cos_off, fabs(mf_normal_cos(u) - cos(2.0 * pi * u)));
    }
    assert_at_most(log_off, 1e-15);
    assert_at_most(cos_off, 1e-15);
}

static void numbers_are_normal(void **state) {
    (void)state;
    double sum = 0, square = 0, fourth = 0;
    int64_t beyond_two = 0;
    for (int64_t i = 0; i < DRAWS; i++) {
        const double x = mf_normal_at(7, i);
        sum += x;
        square += x * x;
        fourth += x * x * x * x;
        beyond_two += fabs(x) > 2.0;
    }
    assert_close(sum / DRAWS, 0.0, 5e-3);
    assert_close(square / DRAWS, 1.0, 1e-2);
    assert_close(fourth / DRAWS, 3.0, 0.1);
    assert_close((double)beyond_two / DRAWS, 0.0455, 1e-3);
}

/* A stretch of a block has the numbers of the whole, and nothing is written outside. */
static void a_shard_has_the_numbers_of_the_whole(void **state) {
    (void)state;
    enum { ROWS = 9, COLS = 13, WIDTH = 20, ALL = 12 * WIDTH, FIRST = 50, COUNT = 101 };
    float whole[ALL] = {0}, shard[COUNT] = {0};
    mf_kernel_normal a = {.w = whole,
                          .count = ALL,
                          .width = WIDTH,
                          .at_row = 2,
                          .at_col = 5,
                          .rows = ROWS,
                          .cols = COLS,
                          .key = 3,
                          .row = 100,
                          .col = 40,
                          .deviation = 0.02};
    assert_int_equal(mf_kernel_normal_values(&a, NULL), MF_OK);
    a.w = shard;
    a.first = FIRST;
    a.count = COUNT;
    assert_int_equal(mf_kernel_normal_values(&a, NULL), MF_OK);
    assert_memory_equal(shard, whole + FIRST, sizeof shard);
    for (int r = 0; r < ALL / WIDTH; r++) {
        for (int c = 0; c < WIDTH; c++) {
            const bool inside = r >= 2 && r < 2 + ROWS && c >= 5 && c < 5 + COLS;
            const double wanted =
                inside ? 0.02 * mf_normal_at(3, ((int64_t)(100 + r - 2) << 24) + 40 + c - 5) : 0;
            assert_close(whole[r * WIDTH + c], (float)wanted, 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logarithm_and_cosine_are_the_librarys),
        cmocka_unit_test(numbers_are_normal),
        cmocka_unit_test(a_shard_has_the_numbers_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
