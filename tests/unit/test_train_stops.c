/* Training runs whose ranks are stopped (SIGSTOP), or have an op that never ends: one of them is
 * named with its step and ends with all others; all of them together, or one for a while, go on as
 * if nothing had happened.
 *
 * Each under mpirun, where there is one, and as ranks that meet in a file, side by side. MF_TEST:
 * the one test to run (a pattern).
 */
#include "core/base/clock.h"
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

#define PATIENCE_S 3.0
static const char four[] = "--gpus 4 --tp 2 --cp 2 --ep 4 --dispatcher alltoall --hang-after 3";
static const char two[] = "--gpus 2 --tp 2 --ep 2 --hang-after 3";

static char library[512], hold[128]; /* an expf that never returns after the file is there */

/* A run that has taken some steps, and its ranks. */
static pid_t begin_ranks(const char *out, bool mpi, const char *layout, int count, pid_t *ranks) {
    int found = 0;
    setenv("PATH", mpi ? path_with : path_without, 1);
    pid_t child = begin(out, MAX_STEPS, layout);
    setenv("PATH", path_with, 1);
    unsetenv("LD_PRELOAD");
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

/* Runs that go on side by side, as most of what they do is to wait. */
typedef struct stopped {
    const char *out;
    bool mpi;
    const char *layout;
    int count, which; /* ranks; the one that is stopped */
    bool works;       /* rank 1 is not stopped: an op of it never ends */
    pid_t child, ranks[16];
    double since_s;
    int before; /* steps */
} stopped;

/* The cases of a table that are run here: without MPI those of a file alone, of which there is one
 * at least; under sanitizers the first of each kind, under mpirun where one rank is stopped. */
static size_t begin_all(stopped *s, size_t count) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        bool first = i == 0 || s[i].mpi != s[i - 1].mpi || s[i].works;
        bool left = !first || (s[i].mpi && s[i].which < 0);
        if ((s[i].mpi && !several_ranks) || (cases_sampled() && left)) {
            continue;
        }
        s[n] = s[i];
        if (s[n].works) {
            setenv("LD_PRELOAD", library, 1);
        }
        s[n].child = begin_ranks(s[n].out, s[n].mpi, s[n].layout, s[n].count, s[n].ranks);
        if (s[n].works) {
            const int file = open(hold, O_WRONLY | O_CREAT, 0666);
            assert_at_least(file, 0);
            assert_true(close(file) == 0);
            s[n].since_s = mf_clock_s();
            s[n].which = number_of(s[n].ranks[0]) == 1 ? 0 : 1;
        } else if (s[n].which >= 0) {
            s[n].since_s = mf_clock_s();
            assert_int_equal(kill(s[n].ranks[s[n].which], SIGSTOP), 0);
        }
        n++;
    }
    return n;
}

static void ends_by_name(stopped *s) {
    char line[96];
    pid_t ranks[16];
    int code = end(s->child);
    double took_s = mf_clock_s() - s->since_s;
    snprintf(line, sizeof line, "(process %d on ", (int)s->ranks[s->which]);
    if (code != 1 || !log_has(s->out, " hangs: step ") ||
        !log_has(s->out, s->works ? ", for 3" : "its process is stopped for 3") ||
        (s->works && !log_has(s->out, ") of layer ") && !log_has(s->out, ") of the head")) ||
        log_has(s->out, " is gone: ")) {
        show_log(s->out);
        fail_msg("%s: exit code %d, and no line that names that rank alone", s->out, code);
    }
    if (!log_has(s->out, line)) {
        show_log(s->out);
        fail_msg("%s: another process than %d is named", s->out, (int)s->ranks[s->which]);
    }
    printf("%s: all ranks gone at most %.2f s after one was stopped\n", s->out, took_s);
    /* Patience counts from its last sign of life, a moment before it was stopped. */
    assert_above(took_s, PATIENCE_S - 0.5);
    assert_int_equal(find_ranks(s->out, s->child, ranks, 16), 0);
}

static void a_stopped_rank_is_named_and_takes_the_others_along(void **state) {
    (void)state;
    stopped s[] = {{.out = "file2-1", .layout = two, .count = 2, .which = 1},
                   {.out = "file2-0", .layout = two, .count = 2, .which = 0},
                   {.out = "file4-2", .layout = four, .count = 4, .which = 2},
                   {.out = "filework", .layout = two, .count = 2, .works = true},
                   {.out = "mpi2-1", .mpi = true, .layout = two, .count = 2, .which = 1},
                   {.out = "mpi4-0", .mpi = true, .layout = four, .count = 4, .which = 0}};
    size_t n = begin_all(s, sizeof s / sizeof s[0]);
    double since_s = n > 0 ? s[n - 1].since_s : 0.0;
    for (size_t i = 0; i < n; i++) {
        ends_by_name(&s[i]);
    }
    assert_below(mf_clock_s() - since_s, 15.0); /* behind the last one that was stopped */
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: ranks of mpirun are not stopped\n");
    }
}

static void all_get(const stopped *s, size_t n, int signal) {
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < s[i].count; k++) {
            assert_int_equal(kill(s[i].ranks[k], signal), 0);
        }
    }
}

/* Each ends on request, and blames nobody. */
static void end_calmly(const stopped *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool ended = has_ended(s[i].child);
        kill(s[i].child, SIGTERM);
        int code = end(s[i].child);
        if (ended || code != 130 || log_has(s[i].out, "hangs")) {
            show_log(s[i].out);
            fail_msg("%s: exit code %d%s", s[i].out, code, ended ? " before it was asked to" : "");
        }
    }
}

/* All of them, for longer than anybody's patience; then the run is asked to end. */
static void ranks_that_are_stopped_together_go_on(void **state) {
    static double x[MAX_STEPS][3];
    (void)state;
    if (cases_sampled()) {
        return; /* as in a run that nobody stops */
    }
    stopped s[] = {{.out = "fileall", .layout = two, .count = 2, .which = -1},
                   {.out = "mpiall", .mpi = true, .layout = four, .count = 4, .which = -1}};
    size_t n = begin_all(s, 2);
    all_get(s, n, SIGSTOP);
    nap(2.5 * PATIENCE_S);
    for (size_t i = 0; i < n; i++) {
        s[i].before = read_losses(s[i].out, x);
    }
    all_get(s, n, SIGCONT);
    for (size_t i = 0; i < n; i++) {
        await_steps(s[i].child, s[i].out, s[i].before + 5);
    }
    nap(1.5 * PATIENCE_S);
    end_calmly(s, n);
}

static void a_rank_that_is_stopped_for_a_while_continues(void **state) {
    static double x[MAX_STEPS][3];
    (void)state;
    stopped s[] = {{.out = "filewhile", .layout = two, .count = 2, .which = -1},
                   {.out = "mpiwhile", .mpi = true, .layout = two, .count = 2, .which = -1}};
    size_t n = begin_all(s, 2);
    for (size_t i = 0; i < n; i++) {
        s[i].before = read_losses(s[i].out, x);
    }
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; i < n; i++) {
            kill(s[i].ranks[k % 2], SIGSTOP);
        }
        nap(0.5 * PATIENCE_S);
        for (size_t i = 0; i < n; i++) {
            kill(s[i].ranks[k % 2], SIGCONT);
        }
        nap(0.2);
    }
    for (size_t i = 0; i < n; i++) {
        await_steps(s[i].child, s[i].out, s[i].before + 3);
    }
    end_calmly(s, n);
}

static bool is_reported(const stopped *s) {
    return log_has(s->out, " is slow: over 20 steps it worked ") &&
           log_has(s->out, "), most at ") &&
           log_has(s->out, "s where it is quickest: the others wait");
}

/* A rank that runs for a fifth of the time is named, and the run goes on. */
static void a_slow_rank_is_named_and_the_run_continues(void **state) {
    static double x[MAX_STEPS][3];
    (void)state;
    stopped s[] = {{.out = "fileslow", .layout = two, .count = 2, .which = -1},
                   {.out = "mpislow", .mpi = true, .layout = two, .count = 2, .which = -1}};
    size_t n = begin_all(s, 2), named = 0;
    double since_s = mf_clock_s();
    while (named < n && mf_clock_s() - since_s < 120.0) {
        for (size_t i = 0; i < n; i++) {
            kill(s[i].ranks[1], SIGSTOP);
        }
        nap(0.08);
        for (size_t i = 0; i < n; i++) {
            kill(s[i].ranks[1], SIGCONT);
        }
        nap(0.02);
        named = 0;
        for (size_t i = 0; i < n; i++) {
            named += is_reported(&s[i]);
        }
    }
    printf("named %.1f s after they became slow\n", mf_clock_s() - since_s);
    for (size_t i = 0; i < n; i++) {
        char mine[32];
        snprintf(mine, sizeof mine, ": rank %d on ", number_of(s[i].ranks[1]));
        await_steps(s[i].child, s[i].out, read_losses(s[i].out, x) + case_count(30, 3));
        if (!is_reported(&s[i]) || !log_has(s[i].out, mine)) {
            show_log(s[i].out);
            fail_msg("%s: no line that names the slow rank", s[i].out);
        }
    }
    end_calmly(s, n);
}

static void with_no_patience_set_nobody_is_blamed(void **state) {
    static double x[MAX_STEPS][3];
    pid_t ranks[16] = {0};
    (void)state;
    if (cases_sampled()) {
        return; /* as in the others, but that nobody looks */
    }
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
    snprintf(library, sizeof library, "%s", binary);
    char *slash = strrchr(library, '/');
    snprintf(slash, sizeof library - (size_t)(slash - library), "/fault_expf.so");
    snprintf(hold, sizeof hold, "%s/hold", scratch);
    setenv("MF_FLIP_RANK", "1", 1);
    setenv("MF_FLIP_HOLD", hold, 1);
    make_paths();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_rank_is_named_and_takes_the_others_along),
        cmocka_unit_test(ranks_that_are_stopped_together_go_on),
        cmocka_unit_test(a_rank_that_is_stopped_for_a_while_continues),
        cmocka_unit_test(a_slow_rank_is_named_and_the_run_continues),
        cmocka_unit_test(with_no_patience_set_nobody_is_blamed),
    };
    return train_run_close(cmocka_run_group_tests(tests, NULL, NULL));
}
