/* Training runs that begin again by themselves when a rank is lost (--on-failure restart), and end
 * where nobody kills them any more with the steps of a run that nobody killed, bit by bit.
 *
 * MF_TEST: the one test to run (a pattern).
 */
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

#include <math.h>

/* Enough to lose ranks three times on the way; in a sample once. */
static int steps(void) {
    return case_count(24, 18);
}
static const char two[] = "--gpus 2 --tp 2 --ep 2 --keep 0";

static pid_t begin_with(bool mpi, const char *out, const char *layout, const char *more,
                        int steps) {
    char all[512];
    snprintf(all, sizeof all, "%s %s", layout, more);
    setenv("PATH", mpi ? path_with : path_without, 1);
    pid_t child = begin(out, steps, all);
    setenv("PATH", path_with, 1);
    return child;
}

static bool is_ours(pid_t process) {
    char name[32], text[32] = "";
    snprintf(name, sizeof name, "/proc/%d/comm", (int)process);
    FILE *f = fopen(name, "r");
    bool ours =
        f != NULL && fgets(text, sizeof text, f) != NULL && strncmp(text, "moefold", 7) == 0;
    if (f != NULL) {
        fclose(f);
    }
    return ours;
}

static int own_ranks(pid_t child, const char *out, pid_t *ranks) {
    pid_t found[16];
    int n = find_ranks(out, child, found, 16), own = 0;
    for (int i = 0; i < n; i++) {
        if (is_ours(found[i])) {
            ranks[own++] = found[i];
        }
    }
    return own;
}

/* Sends a signal to a rank, as soon as there are `count`. False: the run has ended. */
static bool strike(pid_t child, const char *out, int count, int signal) {
    pid_t ranks[16];
    while (!has_ended(child)) {
        if (own_ranks(child, out, ranks) == count) {
            return kill(ranks[count - 1], signal) == 0;
        }
        nap(0.002);
    }
    return false;
}

/* Lines with this text. */
static int count_lines(const char *out, const char *text) {
    char path[160], line[4096];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s.log", scratch, out);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        n += strstr(line, text) != NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

static void is_as_calm(pid_t child, const char *out, const char *calm, int restarts) {
    pid_t ranks[16];
    int code = end(child);
    if (code != 0 || count_lines(out, "moefold train: restart 1 of 3, from /") != restarts ||
        count_lines(out, "resumed ") != restarts) {
        show_log(out);
        fail_msg("%s: exit code %d, or not %d restarts", out, code, restarts);
    }
    same_steps(out, calm, steps());
    assert_int_equal(find_ranks(out, child, ranks, 16), 0);
}

static void loses_ranks(bool mpi, const char *out, int signal) {
    const int losses = cases_sampled() ? 1 : signal == SIGSTOP ? 2 : 3; /* a stop costs patience */
    pid_t child = begin_with(mpi, out, two, "--on-failure restart --hang-after 3", steps());
    for (int k = 1; k <= losses; k++) {
        assert_true(await_steps(child, out, 5 * k));
        assert_true(strike(child, out, 2, signal));
        while (!has_ended(child) && count_lines(out, "resumed ") < k) {
            nap(0.01);
        }
    }
    is_as_calm(child, out, "calm", losses);
}

static void a_run_that_loses_ranks_continues_with_the_same_results(void **state) {
    (void)state;
    run("calm", steps(), two, 0);
    loses_ranks(false, "filekill", SIGKILL);
    loses_ranks(false, "filestop", SIGSTOP);
    if (several_ranks) {
        loses_ranks(true, "mpikill", SIGKILL);
    } else {
        printf("MF_SKIPPED 1 no MPI: ranks of mpirun are not started again\n");
    }
}

static void one_rank_is_started_again(void **state) {
    (void)state;
    run("calmone", steps(), single, 0);
    pid_t child = begin_with(false, "one", "--gpus 1 --keep 0", "--on-failure restart", steps());
    assert_true(await_steps(child, "one", 5));
    assert_true(strike(child, "one", 1, SIGABRT));
    is_as_calm(child, "one", "calmone", 1);
    assert_true(log_has("one", "restart 1 of 3, from "));
}

/* Kills a rank as soon as there are `least`, until this is said; how many. */
static int strike_until(pid_t child, const char *out, int least, const char *said) {
    pid_t ranks[16], last = 0;
    int strikes = 0;
    while (!has_ended(child) && !log_has(out, said)) {
        int own = own_ranks(child, out, ranks);
        if (own >= least && ranks[own - 1] != last && kill(ranks[own - 1], SIGKILL) == 0) {
            last = ranks[own - 1];
            strikes++;
        }
        nap(0.005); /* looking costs one */
    }
    return strikes;
}

/* Where 4 ranks keep failing, fewer continue from the checkpoint of 4, by another plan. Sampled
 * runs leave it out. */
static void a_run_that_keeps_failing_continues_on_fewer_ranks(void **state) {
    static double x[MAX_STEPS][3], y[MAX_STEPS][3];
    (void)state;
    if (cases_sampled()) {
        return;
    }
    run("calmfour", steps(), folded(), 0);
    pid_t child = begin_with(false, "fewer", folded(),
                             "--keep 0 --on-failure restart --max-restarts 1", steps());
    assert_true(await_steps(child, "fewer", 6));
    int strikes = strike_until(child, "fewer", 4, "folded anew");
    int code = end(child);
    if (code != 0 || strikes < 2 ||
        count_lines("fewer", " in a row came to no new checkpoint on 4 ranks: folded anew, the run "
                             "goes on on ") != 1) {
        show_log("fewer");
        fail_msg("exit code %d after %d kills", code, strikes);
    }
    assert_int_equal(read_losses("calmfour", x), steps());
    assert_int_equal(read_losses("fewer", y), steps());
    for (int i = 0; i < steps(); i++) {
        if (fabs(x[i][0] - y[i][0]) > 1e-3 * x[i][0]) {
            fail_msg("step %d: loss %g, on 4 ranks %g", i + 1, y[i][0], x[i][0]);
        }
    }
}

static void a_run_that_comes_no_further_ends(void **state) {
    (void)state;
    pid_t child =
        begin_with(false, "hopeless", two, "--on-failure restart --max-restarts 2", steps());
    int strikes = strike_until(child, "hopeless", 1, "the run ends");
    int code = end(child);
    if (code != 1 || strikes < 6 || !log_has("hopeless", "restart 2 of 2, from ") ||

        !log_has("hopeless", "2 restarts in a row came to no new checkpoint on 2 ranks: folded "
                             "anew, the run goes on on 1 by ") ||
        !log_has("hopeless", "2 restarts in a row came to no new checkpoint: the run ends")) {
        show_log("hopeless");
        fail_msg("exit code %d after %d kills", code, strikes);
    }
}

static void what_is_not_lost_is_not_started_again(void **state) {
    (void)state;
    char path[160];
    pid_t child = begin_with(false, "asked", two, "--on-failure restart", MAX_STEPS);
    assert_true(await_steps(child, "asked", 3));
    kill(child, SIGTERM);
    assert_int_equal(end(child), 130);
    assert_false(log_has("asked", "restart 1"));
    child = begin_with(false, "vanishes", two, "--on-failure restart", MAX_STEPS);
    assert_true(await_steps(child, "vanishes", 3));
    snprintf(path, sizeof path, "%s/vanishes/lock", scratch);
    assert_int_equal(remove(path), 0);
    assert_int_equal(end(child), 1);
    assert_false(log_has("vanishes", "restart 1"));
    run("usage1", 3, "--gpus 1 --max-restarts 2", 2);
    assert_true(log_has("usage1", "--max-restarts needs --on-failure restart"));
}

int main(int argc, char **argv) {
    (void)argc;
    if (!train_run_open(argv[0])) {
        return 1;
    }
    make_paths();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_that_loses_ranks_continues_with_the_same_results),
        cmocka_unit_test(one_rank_is_started_again),
        cmocka_unit_test(a_run_that_keeps_failing_continues_on_fewer_ranks),
        cmocka_unit_test(a_run_that_comes_no_further_ends),
        cmocka_unit_test(what_is_not_lost_is_not_started_again),
    };
    return train_run_close(cmocka_run_group_tests(tests, NULL, NULL));
}
