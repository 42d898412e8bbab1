/* test_measure_reading.c - readings that spread are taken again, and the quietest counts. */
#include "tests/support/test.h"

#include "executor/measure/measure_reading.h"

#include <math.h>
#include <string.h>

/* Readings that come one after the other; the one at `fails` is an error. */
typedef struct script {
    const double (*low_high)[2]; /* around a median of 1 */
    int taken, fails;
    char seen[16]; /* algorithm that the last one was asked for */
} script;

static mf_status play(void *user, mf_measure_time *out, mf_err *e) {
    script *s = user;
    if (s->taken == s->fails) {
        return mf_err_set(e, MF_LIBRARY, "no more");
    }
    snprintf(s->seen, sizeof s->seen, "%.15s", out->choice.text);
    out->low_s = s->low_high[s->taken][0];
    out->high_s = s->low_high[s->taken][1];
    out->time_s = 1.0;
    out->samples = ++s->taken;
    strcpy(out->choice.text, "found");
    return MF_OK;
}

static void a_quiet_reading_is_taken_once(void **state) {
    (void)state;
    static const double quiet[][2] = {{0.98, 1.02}};
    script s = {quiet, 0, -1, ""};
    mf_measure_time t = {.choice = {"remembered"}};
    assert_ok(mf_measure_quietest(play, &s, 2, &t, NULL));
    assert_int_equal(s.taken, 1);
    assert_string_equal(s.seen, "remembered");
    assert_string_equal(t.choice.text, "found");
}

static void noisy_measurements_are_repeated_with_the_same_algorithm(void **state) {
    (void)state;
    static const double better[][2] = {{0.9, 1.2}, {0.97, 1.01}, {1, 1}};
    script s = {better, 0, -1, ""};
    mf_measure_time t = {.samples = 0};
    assert_ok(mf_measure_quietest(play, &s, 2, &t, NULL));
    assert_int_equal(s.taken, 2); /* the second is quiet */
    assert_int_equal(t.samples, 2);
    assert_string_equal(s.seen, "found");
}

static void the_quietest_of_all_counts(void **state) {
    (void)state;
    static const double worse[][2] = {{0.95, 1.05}, {0.9, 1.2}, {0.96, 1.05}, {1, 1}};
    script s = {worse, 0, -1, ""};
    mf_measure_time t = {.samples = 0};
    assert_ok(mf_measure_quietest(play, &s, 1, &t, NULL));
    assert_int_equal(s.taken, 2);
    assert_int_equal(t.samples, 1); /* the first, which spreads less */
    s.taken = 0;
    assert_ok(mf_measure_quietest(play, &s, 2, &t, NULL));
    assert_int_equal(s.taken, 3);
    assert_int_equal(t.samples, 3);
    s.taken = 0;
    s.fails = 1;
    assert_int_equal(mf_measure_quietest(play, &s, 2, &t, NULL), MF_LIBRARY);
}

static void a_summary_is_median_and_percentiles(void **state) {
    (void)state;
    double value[] = {9, 1, 8, 2, 7, 3, 6, 4, 5, 100, 0}, one[] = {3};
    mf_measure_time t = {.samples = 7};
    mf_measure_summary(value, 11, &t);
    assert_below(fabs(t.time_s - 5), 1e-12);
    assert_below(fabs(t.low_s - 1), 1e-12);
    assert_below(fabs(t.high_s - 9), 1e-12); /* the outlier does not show */
    assert_int_equal(t.samples, 7);
    mf_measure_summary(one, 1, &t);
    assert_below(fabs(t.time_s - 3), 1e-12);
    assert_below(fabs(t.low_s - 3), 1e-12);
    assert_below(fabs(t.high_s - 3), 1e-12);
    double two[] = {2, 1};
    mf_measure_summary(two, 2, &t);
    assert_below(fabs(t.time_s - 1.5), 1e-12);
    assert_below(fabs(t.high_s - 1.9), 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quiet_reading_is_taken_once),
        cmocka_unit_test(noisy_measurements_are_repeated_with_the_same_algorithm),
        cmocka_unit_test(the_quietest_of_all_counts),
        cmocka_unit_test(a_summary_is_median_and_percentiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
