/* test_measure_state.c - what NVML's answers mean for measuring, with functions in its place. */
#include "tests/support/test.h"

#include "executor/measure/measure_machine.h"
#include "executor/measure/measure_nvml.h"

#include <string.h>

/* The driver under test: what every function answers. */
typedef struct fake {
    unsigned sm_MHz, memory_MHz, temperature_C, mW, processes;
    unsigned long long reasons;
    bool mute; /* none of them works: 3 = not supported */
} fake;

static int clock_of(void *device, int kind, unsigned *MHz) {
    const fake *f = device;
    *MHz = kind == MF_NVML_CLOCK_SM ? f->sm_MHz : f->memory_MHz;
    return f->mute ? 3 : 0;
}

static int temperature_of(void *device, int sensor, unsigned *C) {
    const fake *f = device;
    *C = sensor == 0 ? f->temperature_C : 999;
    return f->mute ? 3 : 0;
}

static int power_of(void *device, unsigned *mW) {
    const fake *f = device;
    *mW = f->mW;
    return f->mute ? 3 : 0;
}

static int processes_of(void *device, unsigned *count, void *infos) {
    const fake *f = device;
    assert_int_equal(*count, 0);
    assert_null(infos);
    *count = f->processes;
    return f->mute ? 3 : f->processes > 0 ? MF_NVML_INSUFFICIENT_SIZE : 0;
}

static int reasons_of(void *device, unsigned long long *bits) {
    const fake *f = device;
    *bits = f->reasons;
    return f->mute ? 3 : 0;
}

static mf_measure_state state_of(fake f) {
    const mf_nvml n = {.device = &f,
                       .clock = clock_of,
                       .temperature = temperature_of,
                       .power = power_of,
                       .processes = processes_of,
                       .reasons = reasons_of};
    mf_measure_state s;
    mf_measure_nvml_read(&n, &s);
    return s;
}

static fake quiet(void) {
    return (fake){1980, 3201, 41, 123456, 0, 0, false};
}

static void clocks_temperature_and_company_are_read(void **state) {
    (void)state;
    fake f = quiet();
    mf_measure_state s = state_of(f);
    assert_true(s.known);
    assert_true(!s.hot);
    assert_int_equal(s.sm_MHz, 1980);
    assert_int_equal(s.memory_MHz, 3201);
    assert_int_equal(s.temperature_C, 41);
    assert_int_equal(s.power_W, 123);
    assert_int_equal(s.processes, 0);
    f.processes = 3;
    assert_int_equal(state_of(f).processes, 3);
}

/* Bits of nvmlClocksThrottleReasons: idle 0x1, set clocks 0x2 and the power cap 0x4 are no heat. */
static void heat_and_the_power_brake_are_throttling_the_power_cap_is_not(void **state) {
    (void)state;
    static const struct {
        unsigned long long bits;
        bool hot;
    } cases[] = {{0, false},   {0x1, false}, {0x2, false}, {0x4, false},  {0x20, true},
                 {0x40, true}, {0x80, true}, {0x44, true}, {0x107, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake f = quiet();
        f.reasons = cases[i].bits;
        assert_int_equal(state_of(f).hot, cases[i].hot);
    }
}

static void a_driver_that_says_nothing_is_no_idle_gpu(void **state) {
    (void)state;
    fake f = quiet();
    mf_measure_state s;
    f.mute = true;
    f.processes = 2;
    f.reasons = 0x40;
    s = state_of(f);
    assert_true(!s.known);
    assert_true(!s.hot);
    assert_int_equal(s.processes, -1);
    mf_measure_nvml_read(NULL, &s);
    assert_true(!s.known);
    assert_true(s.processes == -1);
    const mf_measure_machine m = {.gpus = 1, .processes = -1}, alone = {.gpus = 1};
    assert_ok(mf_measure_machine_check(&m, false, NULL));
    assert_non_null(strstr(mf_measure_machine_blind(&m), "does not say what else computes"));
    assert_string_equal(mf_measure_machine_blind(&alone), "");
}

/* The first look counts the measuring program itself. */
static void a_run_ends_when_company_comes_or_the_gpu_is_throttled(void **state) {
    (void)state;
    mf_err e = {.text = ""};
    fake f = quiet();
    f.processes = 1;
    const mf_measure_state first = state_of(f);
    assert_ok(mf_measure_state_check(&first, &first, false, &e));
    f.processes = 2;
    mf_measure_state now = state_of(f);
    assert_int_equal(mf_measure_state_check(&first, &now, false, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "another process came to the GPU"));
    assert_non_null(strstr(e.text, "is stored, the same command goes on when it has gone"));
    assert_ok(mf_measure_state_check(&first, &now, true, &e));
    f.reasons = 0x20;
    f.sm_MHz = 1200;
    f.temperature_C = 88;
    now = state_of(f);
    assert_int_equal(mf_measure_state_check(&first, &now, true, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "throttled at 1200 MHz and 88 C"));
    f = quiet();
    f.mute = true; /* nothing to compare with */
    const mf_measure_state unknown = state_of(f);
    assert_ok(mf_measure_state_check(&unknown, &first, false, &e));
    assert_ok(mf_measure_state_check(&first, &unknown, false, &e));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clocks_temperature_and_company_are_read),
        cmocka_unit_test(heat_and_the_power_brake_are_throttling_the_power_cap_is_not),
        cmocka_unit_test(a_driver_that_says_nothing_is_no_idle_gpu),
        cmocka_unit_test(a_run_ends_when_company_comes_or_the_gpu_is_throttled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
