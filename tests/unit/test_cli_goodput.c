/* Goodput: limits that can be checked by hand, and the best checkpoint interval. */
#include "tests/support/test.h"

#include "planner/capacity/goodput.h"

#include <math.h>

static void without_failures_all_time_counts(void **state) {
    (void)state;
    assert_at_least(mf_goodput_of(1024, 0, 30, 900).share, 1);
    assert_at_least(mf_goodput_of(1, 1e12, 0, 0).share, 1);
}

/* Llama 3: 16,384 GPUs, a failure in 3.1 hours. A checkpoint of 30 s every 13.6 minutes. */
static void failures_of_one_gpu_become_failures_of_the_job(void **state) {
    (void)state;
    mf_goodput g = mf_goodput_of(16384, 50677, 30, 900);
    assert_below(fabs(g.mtbf_s / 3600 - (3.093)), 0.001);
    assert_below(fabs(g.interval_s - (sqrt(2 * 30 * g.mtbf_s))), 1e-9);
    double lost = (g.interval_s / 2 + 900) / g.mtbf_s;
    assert_below(fabs(g.share - ((1 - lost) * g.interval_s / (g.interval_s + 30))), 1e-12);
    assert_above(g.share, 0.84);
    assert_below(g.share, 0.86);
}

static double share_with_interval(double t, double mtbf_s, double c, double r) {
    return (1 - (t / 2 + r) / mtbf_s) * t / (t + c);
}

static void the_interval_is_close_to_the_best(void **state) {
    (void)state;
    mf_goodput g = mf_goodput_of(4096, 50677, 30, 600);
    for (double f = 0.25; f < 4; f *= 1.1) {
        assert_at_most(share_with_interval(f * g.interval_s, g.mtbf_s, 30, 600), g.share + 1e-4);
    }
}

static void more_gpus_make_less_progress_and_never_less_than_none(void **state) {
    (void)state;
    double last = 1;
    for (double gpus = 8; gpus < 1e9; gpus *= 2) {
        double share = mf_goodput_of(gpus, 50677, 30, 900).share;
        assert_at_most(share, last);
        assert_at_least(share, 0);
        last = share;
    }
    assert_at_most(last, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_failures_all_time_counts),
        cmocka_unit_test(failures_of_one_gpu_become_failures_of_the_job),
        cmocka_unit_test(the_interval_is_close_to_the_best),
        cmocka_unit_test(more_gpus_make_less_progress_and_never_less_than_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
