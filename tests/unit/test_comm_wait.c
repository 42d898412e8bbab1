/* What a waiting rank does where another process wants its core: it does not give a whole turn away
 * each time. Both on one core, with a process that never ends its turn by itself. */
#define _GNU_SOURCE /* sched_setaffinity */
#include "core/base/clock.h"
#include "executor/comm/comm_wait.h"
#include "tests/support/test.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void raw_yield(void) {
    (void)syscall(SYS_sched_yield);
}

/* Seconds of so many turns. */
static double turns_s(void (*turn)(void), int count) {
    double start = mf_clock_s();
    for (int i = 0; i < count; i++) {
        turn();
    }
    return mf_clock_s() - start;
}

static void a_busy_core_is_slept_for_not_yielded(void **state) {
    (void)state;
    enum { TURNS = 200 };
    cpu_set_t own, one;
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    CPU_ZERO(&one);
    size_t core = 0;
    while (!CPU_ISSET(core, &own)) {
        core++;
    }
    CPU_SET(core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    pid_t hog = fork();
    if (hog == 0) {
        for (volatile unsigned i = 0;; i++) {
        }
    }
    assert_above(hog, 0);
    double yields_s = turns_s(raw_yield, TURNS), turns_take_s = turns_s(mf_comm_give_way, TURNS);
    kill(hog, SIGKILL);
    waitpid(hog, NULL, 0);
    sched_setaffinity(0, sizeof own, &own);
    printf("%d yields %.3f s, turns %.3f s\n", TURNS, yields_s, turns_take_s);
    if (yields_s < TURNS * 3e-4) {
        printf("MF_SKIPPED 1 this system's yields do not give a core away\n");
        return;
    }
    assert_below(turns_take_s, yields_s / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_busy_core_is_slept_for_not_yielded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
