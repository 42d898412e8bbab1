/* The cluster `cpu` is this machine: whose work its cores do, and what is kept of it. */
#include "tests/support/test.h"

#include "executor/measure/measure_ranks.h"
#include "job/kept/host_cpu.h"
#include "job/kept/host_load.h"

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
    assert_above(child, 0);
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

static void cores_that_others_use_are_busy(void **state) {
    (void)state;
    pid_t child[64];
    const long cores = sysconf(_SC_NPROCESSORS_ONLN), n = cores < 64 ? cores : 64;
    for (long i = 0; i < n; i++) {
        child[i] = start(60);
    }
    const struct timespec wait = {.tv_nsec = 500 * 1000 * 1000};
    const mf_host_load before = mf_host_load_now();
    nanosleep(&wait, NULL);
    const mf_host_load after = mf_host_load_now();
    const bool busy = mf_host_load_is_busy();
    for (long i = 0; i < n; i++) {
        kill(child[i], SIGKILL);
        assert_int_equal(waitpid(child[i], NULL, 0), child[i]);
    }
    if (after.all_s - before.all_s < 0.5 * 0.5 * (double)cores) {
        skip(); /* a quota keeps them from the cores */
    }
    assert_true(busy);
}

static void work_of_an_unknown_program_counts_for_nobody(void **state) {
    (void)state;
    const mf_host_load none = {0, 0}, later = {0, 3}, more = {4, 1};
    assert_close(mf_host_load_of_others(&none, &later), 0, 0);
    assert_close(mf_host_load_of_others(&none, &more), 0.75, 0);
    assert_close(mf_host_load_of_others(&more, &none), 0, 0);
}

/* A folder of this test, and where one rank's measurements would be in it. */
static void set_up(mf_host_cpu *h, char *folder) {
    assert_non_null(mkdtemp(folder));
    setenv("MOEFOLD_CPU", folder, 1);
    assert_true(mf_host_cpu_find(1, h));
    assert_false(h->known);
    snprintf(h->busy, sizeof h->busy, "%s/busy", folder);
}

static void a_mark_stays_until_cores_were_free(void **state) {
    (void)state;
    char folder[] = "/tmp/mf_host_cpu_XXXXXX";
    mf_host_cpu h;
    mf_host_cpu_mark mark;
    const mf_host_cpu_mark none = {0};
    set_up(&h, folder);
    assert_false(mf_host_cpu_mark_read(&h, &mark));
    mf_host_cpu_mark_write(&h, none, 0.625, 3);
    assert_true(mf_host_cpu_mark_read(&h, &mark));
    assert_close(mark.others, 0.625, 0);
    assert_int_equal(mark.noisy, 3);
    assert_int_equal(mark.repeats, 0);
    mf_host_cpu_mark_write(&h, mark, 0.5 * MF_HOST_CPU_QUIET, 0);
    assert_false(mf_host_cpu_mark_read(&h, &mark));
    assert_int_equal(access(h.busy, F_OK), -1);
    assert_int_equal(rmdir(folder), 0);
}

static void a_mark_that_cannot_be_read_says_that_others_did_all_work(void **state) {
    (void)state;
    char folder[] = "/tmp/mf_host_cpu_XXXXXX";
    static const char *const text[] = {"?", "", "7 0 0\n", "0.1 -1 0\n", "nan 0 0\n"};
    mf_host_cpu h;
    mf_host_cpu_mark mark;
    set_up(&h, folder);
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
        FILE *f = fopen(h.busy, "w");
        assert_non_null(f);
        fputs(text[i], f);
        fclose(f);
        assert_true(mf_host_cpu_mark_read(&h, &mark));
        assert_close(mark.others, 1, 0);
    }
    FILE *f = fopen(h.busy, "w"); /* as versions before wrote it */
    assert_non_null(f);
    fputs("0.880\n", f);
    fclose(f);
    assert_true(mf_host_cpu_mark_read(&h, &mark));
    assert_close(mark.others, 0.88, 0);
    assert_int_equal(mark.noisy, 0);
    assert_int_equal(unlink(h.busy), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* Some ops differ on free cores, too: they are not measured again for ever. */
static void noisy_ops_alone_are_measured_again_once(void **state) {
    (void)state;
    char folder[] = "/tmp/mf_host_cpu_XXXXXX";
    mf_host_cpu h;
    mf_host_cpu_mark mark, none = {0};
    set_up(&h, folder);
    mf_host_cpu_mark_write(&h, none, 0, 2);
    assert_true(mf_host_cpu_mark_read(&h, &mark));
    assert_int_equal(mark.noisy, 2);
    mark.repeats++;
    mf_host_cpu_mark_write(&h, mark, 0, 2);
    assert_false(mf_host_cpu_mark_read(&h, &mark));
    assert_int_equal(rmdir(folder), 0);
}

static bool others_work(void) {
    return true;
}

static bool nobody_works(void) {
    return false;
}

static void only_free_cores_measure_again(void **state) {
    (void)state;
    char folder[] = "/tmp/mf_host_cpu_XXXXXX";
    mf_host_cpu h;
    const mf_host_cpu_mark none = {0};
    set_up(&h, folder);
    assert_true(mf_host_cpu_is_due(&h, others_work)); /* nothing is measured: at once */
    h.known = true;
    assert_false(mf_host_cpu_is_due(&h, nobody_works));
    mf_host_cpu_mark_write(&h, none, 0.5, 0);
    assert_false(mf_host_cpu_is_due(&h, others_work));
    assert_true(mf_host_cpu_is_due(&h, nobody_works));
    assert_int_equal(unlink(h.busy), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void switched_off_nothing_is_kept(void **state) {
    (void)state;
    mf_host_cpu h;
    setenv("MOEFOLD_CPU", "off", 1);
    assert_false(mf_host_cpu_find(1, &h));
}

/* No rank is started for what nobody could keep: this program trains none. */
static void what_cannot_be_kept_is_not_measured(void **state) {
    (void)state;
    mf_ranks_measured m;
    const char *why = mf_measure_ranks(1, "/dev/null/cpu", "/dev/null/cpu/cpu-1.db",
                                       "/dev/null/cpu/cpu-1.json", &m);
    assert_string_equal(why, "its times cannot be kept");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_work_is_counted_apart_from_that_of_others),
        cmocka_unit_test(cores_that_others_use_are_busy),
        cmocka_unit_test(work_of_an_unknown_program_counts_for_nobody),
        cmocka_unit_test(a_mark_stays_until_cores_were_free),
        cmocka_unit_test(a_mark_that_cannot_be_read_says_that_others_did_all_work),
        cmocka_unit_test(noisy_ops_alone_are_measured_again_once),
        cmocka_unit_test(only_free_cores_measure_again),
        cmocka_unit_test(switched_off_nothing_is_kept),
        cmocka_unit_test(what_cannot_be_kept_is_not_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
