/* A device that does not come on while a step is waited for: noticed, once, and later where it
 * waits for other ranks. */
#include "core/base/clock.h"
#include "executor/train/watchdog.h"
#include "tests/support/test.h"

#include <stdatomic.h>
#include <time.h>

#define PATIENCE_S 0.3

static void nap(double s) {
    const struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)(1e9 * (s - (double)(int)s))};
    nanosleep(&t, NULL);
}

/* A device as the watchdog sees it, and what that said. */
typedef struct device {
    atomic_llong word;
    bool waits;
    atomic_int said;
    int64_t step, at;
    double when_s;
} device;

static int64_t progress(void *user) {
    return atomic_load(&((device *)user)->word);
}

static bool waits(void *user, int64_t at) {
    (void)at;
    return ((const device *)user)->waits;
}

static void hangs(void *user, int64_t step, int64_t at) {
    device *d = user;
    d->step = step;
    d->at = at;
    d->when_s = mf_clock_s();
    atomic_fetch_add(&d->said, 1);
}

static mf_watchdog *watch(device *d) {
    const mf_watchdog_options o = {PATIENCE_S, progress, waits, hangs, d};
    mf_watchdog *w = NULL;
    mf_err e = {.text = ""};
    assert_int_equal(mf_watchdog_open(&o, &w, &e), MF_OK);
    return w;
}

/* Seconds from the begin of a step until the device is said to hang in it; 0: not in 10 s. */
static double said_after_s(device *d) {
    mf_watchdog *w = watch(d);
    const double begin_s = mf_clock_s();
    mf_watchdog_wait(w, 7);
    while (atomic_load(&d->said) == 0 && mf_clock_s() - begin_s < 10.0) {
        nap(0.01);
    }
    const double s = atomic_load(&d->said) > 0 ? d->when_s - begin_s : 0.0;
    nap(2 * PATIENCE_S);
    mf_watchdog_close(w);
    return s;
}

static void a_device_that_hangs_is_reported_once_with_step_and_place(void **state) {
    device d = {.word = 42};
    (void)state;
    assert_above(said_after_s(&d), PATIENCE_S);
    assert_int_equal(atomic_load(&d.said), 1);
    assert_int_equal(d.step, 7);
    assert_int_equal(d.at, 42);
}

static void a_device_that_waits_for_others_leaves_them_the_time_to_be_named(void **state) {
    device d = {.word = 42, .waits = true};
    (void)state;
    assert_above(said_after_s(&d), PATIENCE_S + MF_WATCHDOG_YIELDS_S);
    assert_int_equal(atomic_load(&d.said), 1);
}

static void a_device_that_comes_on_or_that_nobody_waits_for_is_left_alone(void **state) {
    device d = {.word = 1};
    mf_watchdog *w = watch(&d);
    (void)state;
    mf_watchdog_wait(w, 1);
    for (int i = 0; i < 20; i++) {
        nap(PATIENCE_S / 5);
        atomic_fetch_add(&d.word, 1);
    }
    mf_watchdog_rest(w);
    nap(3 * PATIENCE_S);
    mf_watchdog_close(w);
    assert_int_equal(atomic_load(&d.said), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_hangs_is_reported_once_with_step_and_place),
        cmocka_unit_test(a_device_that_waits_for_others_leaves_them_the_time_to_be_named),
        cmocka_unit_test(a_device_that_comes_on_or_that_nobody_waits_for_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
