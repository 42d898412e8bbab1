/* Training runs whose ranks are stopped (SIGSTOP): one of them is named with its step and ends with
 * all others; all of them together, or one for a while, go on as if nothing had happened.
 *
 * Each under mpirun, where there is one, and as ranks that meet in a file. MF_TEST: the one test to
 * run (a pattern).
 */
#include "tests/support/train_run.h"

#define PATIENCE_S 3.0
static const char four[] = "--gpus 4 --tp 2 --cp 2 --ep 4 --dispatcher alltoall --hang-after 3";
static const char two[] = "--gpus 2 --tp 2 --ep 2 --hang-after 3";

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A run that has taken some steps, and its ranks. */
static pid_t begin_ranks(const char *out, bool mpi, const char *layout, int count, pid_t *ranks) {
    int found = 0;
    setenv("PATH", mpi ? path_with : path_without, 1);
    pid_t child = begin(out, MAX_STEPS, layout);
    setenv("PATH", path_with, 1);
    assert_true(await_steps(child, out, 3));
    found = find_ranks(out, child, ranks, 16);
    for (int i = found - 1; mpi && i >= 0 && found > count; i--) { /* mpirun has the same words */
        char name[32], text[32] = "";
        snprintf(name, sizeof name, "/proc/%d/comm", (int)ranks[i]);
        FILE *f = fopen(name, "r");
        assert_non_null(f);
        assert_non_null(fgets(text, sizeof text, f));
        fclose(f);
        if (strncmp(text, "moefold", 7) != 0) {
            ranks[i] = ranks[--found];
        }
    }
    assert_int_equal(found, count);
    return child;
}

static void ends(pid_t child, const char *out, double since_s) {
    char line[96];
    pid_t ranks[16];
    int code = end(child);
    double took_s = now_s() - since_s;
    snprintf(line, sizeof line, " hangs: step ");
    if (code != 1 || !log_has(out, line) || !log_has(out, "its process is stopped for 3") ||
        log_has(out, " is gone: ")) {
        show_log(out);
        fail_msg("%s: exit code %d, and no line that names the stopped rank alone", out, code);
    }
    printf("%s: all ranks gone %.2f s after one was stopped\n", out, took_s);
    /* Patience counts from its last sign of life, a moment before it was stopped. */
    assert_above(took_s, PATIENCE_S - 0.5);
    assert_below(took_s, 15.0);
    assert_int_equal(find_ranks(out, child, ranks, 16), 0);
}

static void one_is_stopped(const char *out, bool mpi, const char *layout, int count, int which) {
    pid_t ranks[16];
    char mine[64];
    pid_t child = begin_ranks(out, mpi, layout, count, ranks);
    double since_s = now_s();
    assert_int_equal(kill(ranks[which], SIGSTOP), 0);
    snprintf(mine, sizeof mine, "(process %d on ", (int)ranks[which]);
    ends(child, out, since_s);
    if (!log_has(out, mine)) {
        show_log(out);
        fail_msg("%s: another process than %d is named", out, (int)ranks[which]);
    }
}

/* All of them, for longer than anybody's patience; then the run is told to end. */
static void all_are_stopped(const char *out, bool mpi, const char *layout, int count) {
    static double x[MAX_STEPS][3];
    pid_t ranks[16];
    pid_t child = begin_ranks(out, mpi, layout, count, ranks);
    for (int i = 0; i < count; i++) {
        assert_int_equal(kill(ranks[i], SIGSTOP), 0);
    }
    nap(2.5 * PATIENCE_S);
    int before = read_losses(out, x);
    for (int i = 0; i < count; i++) {
        assert_int_equal(kill(ranks[i], SIGCONT), 0);
    }
    await_steps(child, out, before + 5);
    nap(2.0 * PATIENCE_S);
    if (has_ended(child) || log_has(out, "hangs")) {
        show_log(out);
        fail_msg("%s: ranks that were stopped together do not go on", out);
    }
    kill(child, SIGTERM);
    assert_int_equal(end(child), 130);
}

static void one_is_stopped_for_a_while(const char *out, bool mpi) {
    static double x[MAX_STEPS][3];
    pid_t ranks[16];
    pid_t child = begin_ranks(out, mpi, two, 2, ranks);
    int before = read_losses(out, x);
    for (int i = 0; i < 3; i++) {
        kill(ranks[i % 2], SIGSTOP);
        nap(0.5 * PATIENCE_S);
        kill(ranks[i % 2], SIGCONT);
        nap(0.2);
    }
    await_steps(child, out, before + 3);
    kill(child, SIGTERM);
    int code = end(child);
    if (code != 130 || log_has(out, "hangs")) {
        show_log(out);
        fail_msg("%s: exit code %d", out, code);
    }
}

static void a_stopped_rank_is_named_and_takes_the_others_along(void **state) {
    (void)state;
    one_is_stopped("file2-1", false, two, 2, 1);
    one_is_stopped("file2-0", false, two, 2, 0);
    one_is_stopped("file4-2", false, four, 4, 2);
    if (several_ranks) {
        one_is_stopped("mpi2-1", true, two, 2, 1);
        one_is_stopped("mpi4-0", true, four, 4, 0);
    } else {
        printf("MF_SKIPPED 1 no MPI: ranks of mpirun are not stopped\n");
    }
}

static void ranks_that_are_stopped_together_go_on(void **state) {
    (void)state;
    all_are_stopped("fileall", false, two, 2);
    if (several_ranks) {
        all_are_stopped("mpiall", true, four, 4);
    }
}

static void a_rank_that_is_stopped_for_a_while_goes_on(void **state) {
    (void)state;
    one_is_stopped_for_a_while("filewhile", false);
    if (several_ranks) {
        one_is_stopped_for_a_while("mpiwhile", true);
    }
}

/* Its launcher's number for a rank. */
static int number_of(pid_t process) {
    static const char *const keys[] = {"MOEFOLD_RANK=", "OMPI_COMM_WORLD_RANK="};
    static char text[1 << 16];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)process);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t size = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[size] = '\0';
    for (size_t i = 0; i < size; i += strlen(text + i) + 1) {
        for (int k = 0; k < 2; k++) {
            if (strncmp(text + i, keys[k], strlen(keys[k])) == 0) {
                return atoi(text + i + strlen(keys[k]));
            }
        }
    }
    return -1;
}

/* A rank that runs for a fifth of the time is named, and the run goes on. */
static void is_slow_and_goes_on(const char *out, bool mpi) {
    static double x[MAX_STEPS][3];
    pid_t ranks[16];
    char mine[32];
    pid_t child = begin_ranks(out, mpi, two, 2, ranks);
    double since_s = now_s();
    snprintf(mine, sizeof mine, ": rank %d on ", number_of(ranks[1]));
    while (!log_has(out, " is slow: over 20 steps it worked ") && now_s() - since_s < 120.0) {
        kill(ranks[1], SIGSTOP);
        nap(0.08);
        kill(ranks[1], SIGCONT);
        nap(0.02);
    }
    printf("%s: named %.1f s after it became slow\n", out, now_s() - since_s);
    int before = read_losses(out, x);
    await_steps(child, out, before + 30);
    kill(child, SIGTERM);
    int code = end(child);
    if (code != 130 || log_has(out, "hangs") || !log_has(out, mine) ||
        !log_has(out, " is slow: over 20 steps it worked ")) {
        show_log(out);
        fail_msg("%s: exit code %d", out, code);
    }
}

static void a_slow_rank_is_named_and_the_run_goes_on(void **state) {
    (void)state;
    is_slow_and_goes_on("fileslow", false);
    if (several_ranks) {
        is_slow_and_goes_on("mpislow", true);
    }
}

static void with_no_patience_set_nobody_is_blamed(void **state) {
    static double x[MAX_STEPS][3];
    pid_t ranks[16];
    (void)state;
    pid_t child = begin_ranks("never", false, "--gpus 2 --tp 2 --ep 2 --hang-after 0", 2, ranks);
    kill(ranks[1], SIGSTOP);
    nap(2.0 * PATIENCE_S);
    int before = read_losses("never", x);
    kill(ranks[1], SIGCONT);
    await_steps(child, "never", before + 3);
    kill(child, SIGTERM);
    assert_int_equal(end(child), 130);
}

int main(int argc, char **argv) {
    (void)argc;
    if (!train_run_open(argv[0])) {
        return 1;
    }
    make_paths();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_rank_is_named_and_takes_the_others_along),
        cmocka_unit_test(ranks_that_are_stopped_together_go_on),
        cmocka_unit_test(a_rank_that_is_stopped_for_a_while_goes_on),
        cmocka_unit_test(a_slow_rank_is_named_and_the_run_goes_on),
        cmocka_unit_test(with_no_patience_set_nobody_is_blamed),
    };
    return train_run_close(cmocka_run_group_tests(tests, NULL, NULL));
}
