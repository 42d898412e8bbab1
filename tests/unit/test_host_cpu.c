/* The cluster `cpu` is this machine: whose work its cores do, and what is kept of it. */
#include "tests/support/test.h"

#include "job/host_cpu.h"
#include "job/host_load.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Work of so many CPU seconds. */
static void spin(double seconds) {
    volatile double sink = 0;
    while ((double)clock() / CLOCKS_PER_SEC < seconds) {
        sink = sink + 1;
    }
}

static pid_t start(double seconds) {
    const pid_t child = fork();
    if (child == 0) {
        spin((double)clock() / CLOCKS_PER_SEC + seconds);
        _exit(0);
    }
    assert_true(child > 0);
    return child;
}

/* Children that have ended are this program's work; those that go on are others', as strangers are.
 */
static void own_work_is_counted_apart_from_that_of_others(void **state) {
    (void)state;
    const mf_host_load first = mf_host_load_now();
    pid_t child = start(0.5);
    assert_int_equal(waitpid(child, NULL, 0), child);
    const mf_host_load second = mf_host_load_now();
    assert_at_least(second.own_s - first.own_s, 0.45);
    assert_at_least(second.all_s - first.all_s, 0.4); /* ticks */
    assert_below(mf_host_load_of_others(&first, &second), 1);

    child = start(60);
    struct timespec wait = {.tv_sec = 1};
    mf_host_load third;
    do {
        nanosleep(&wait, NULL);
        third = mf_host_load_now();
    } while (third.all_s - second.all_s < 0.3);
    assert_at_least(mf_host_load_of_others(&second, &third), 0.9);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void what_is_not_known_is_nobodys(void **state) {
    (void)state;
    const mf_host_load none = {0, 0}, later = {0, 3}, more = {4, 1};
    assert_true(mf_host_load_of_others(&none, &later) == 0);
    assert_true(mf_host_load_of_others(&none, &more) == 0.75);
    assert_true(mf_host_load_of_others(&more, &none) == 0);
}

static void a_mark_stays_until_cores_were_free(void **state) {
    (void)state;
    char folder[] = "/tmp/mf_host_cpu_XXXXXX";
    mf_host_cpu h;
    assert_non_null(mkdtemp(folder));
    setenv("MOEFOLD_CPU", folder, 1);
    assert_true(mf_host_cpu_find(1, &h));
    assert_false(h.known);
    assert_true(mf_host_cpu_marked(&h) == 0);
    snprintf(h.busy, sizeof h.busy, "%s/busy", folder);
    mf_host_cpu_mark(&h, 0.625);
    assert_true(mf_host_cpu_marked(&h) == 0.625);
    FILE *f = fopen(h.busy, "w"); /* damaged: as busy as can be */
    assert_non_null(f);
    fputs("?", f);
    fclose(f);
    assert_true(mf_host_cpu_marked(&h) == 1);
    mf_host_cpu_mark(&h, 0.5 * MF_HOST_CPU_QUIET);
    assert_true(mf_host_cpu_marked(&h) == 0);
    assert_int_equal(access(h.busy, F_OK), -1);
    assert_int_equal(rmdir(folder), 0);
    setenv("MOEFOLD_CPU", "off", 1);
    assert_false(mf_host_cpu_find(1, &h));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_work_is_counted_apart_from_that_of_others),
        cmocka_unit_test(what_is_not_known_is_nobodys),
        cmocka_unit_test(a_mark_stays_until_cores_were_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
