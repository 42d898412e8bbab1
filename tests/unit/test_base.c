/* Small helpers that all rooms share: the end of a word, numbers in order and their middle, a clock
 * for durations. */
#include "core/base/clock.h"
#include "core/base/sort.h"
#include "core/base/table.h"
#include "core/base/text.h"
#include "tests/support/test.h"

#include <time.h>

static void a_word_ends_with_its_last_letters_and_with_nothing_else(void **state) {
    (void)state;
    assert_true(mf_text_ends_with("points.csv", ".csv"));
    assert_true(mf_text_ends_with(".csv", ".csv"));
    assert_true(mf_text_ends_with("any", ""));
    assert_false(mf_text_ends_with("points.csv.gz", ".csv"));
    assert_false(mf_text_ends_with("points.CSV", ".csv"));
    assert_false(mf_text_ends_with("csv", ".csv"));
    assert_false(mf_text_ends_with("", ".csv"));
}

static void numbers_are_sorted_upwards(void **state) {
    (void)state;
    double x[] = {3, -1, 1e300, 0, -1e308, 3};
    const double sorted[] = {-1e308, -1, 0, 3, 3, 1e300};
    mf_sort_doubles(x, 6);
    assert_memory_equal(x, sorted, sizeof x);
}

static void a_median_is_the_middle_or_the_mean_of_the_two_in_the_middle(void **state) {
    (void)state;
    double one[] = {7}, three[] = {9, 1, 4}, four[] = {8, 1, 100, 2};
    assert_close(mf_median(one, 1), 7, 0);
    assert_close(mf_median(three, 3), 4, 0);
    assert_close(mf_median(four, 4), 5, 0);
    assert_close(four[0], 1, 0); /* which are sorted by then */
}

static void a_table_is_all_zero_and_can_be_written_to_its_last_byte(void **state) {
    (void)state;
    /* small ones, one that fills large pages with what stands in front of it, and one byte more */
    const size_t sizes[] = {1, 4096, ((size_t)4 << 20) - 64, ((size_t)4 << 20) - 63};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        unsigned char *table = mf_table_create(sizes[k]);
        unsigned char any = 0;
        assert_non_null(table);
        assert_int_equal((uintptr_t)table % 16, 0);
        for (size_t i = 0; i < sizes[k]; i++) {
            any |= table[i];
            table[i] = 0xff;
        }
        assert_int_equal(any, 0);
        mf_table_destroy(table);
    }
    mf_table_destroy(NULL);
}

static void the_clock_counts_seconds_and_does_not_go_back(void **state) {
    (void)state;
    const struct timespec nap = {.tv_nsec = 20 * 1000 * 1000};
    const double start_s = mf_clock_s();
    double last_s = start_s;
    for (int i = 0; i < 1000; i++) {
        const double now_s = mf_clock_s();
        assert_at_least(now_s, last_s);
        last_s = now_s;
    }
    nanosleep(&nap, NULL);
    assert_at_least(mf_clock_s() - start_s, 0.02);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_ends_with_its_last_letters_and_with_nothing_else),
        cmocka_unit_test(numbers_are_sorted_upwards),
        cmocka_unit_test(a_median_is_the_middle_or_the_mean_of_the_two_in_the_middle),
        cmocka_unit_test(the_clock_counts_seconds_and_does_not_go_back),
        cmocka_unit_test(a_table_is_all_zero_and_can_be_written_to_its_last_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
