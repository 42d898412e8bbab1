/* `moefold train --rerun` as its users see it: a fault that comes once on one rank
 * (tests/preload/fault_expf.c) ends the run with exit code 5, or lets it begin again by itself and
 * end with the steps of a calm run, bit by bit; training that diverges ends with 6. On one rank, on
 * two that meet in a file, on four of mpirun. MF_TEST: the one test to run (a pattern).
 */
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

enum { STEPS = 6 };
static char library[512];

static const struct kind {
    const char *name, *fold, *rank; /* that is at fault */
    bool mpi;
} kinds[] = {{"one", "--gpus 1", "-", false},
             {"two", "--gpus 2 --ep 2", "1", false},
             {"four", "--gpus 4 --tp 2 --ep 2", "2", true}};

/* A run with a fault on its way; exit code. */
static int run_with_fault(const struct kind *k, const char *out, const char *more) {
    char options[400], done[160];
    snprintf(done, sizeof done, "%s/%s.done", scratch, out);
    snprintf(options, sizeof options, "%s --keep 0 --rerun %s", k->fold, more);
    setenv("MF_FLIP_DONE", done, 1);
    /* Who is to begin again has a launcher, also of one rank. */
    setenv("MF_FLIP_RANK", k->rank[0] == '-' && more[0] != '\0' ? "0" : k->rank, 1);
    setenv("MF_FLIP_CALL", "60000", 1);
    setenv("PATH", k->mpi ? path_with : path_without, 1);
    setenv("LD_PRELOAD", library, 1);
    pid_t child = begin(out, STEPS, options);
    unsetenv("LD_PRELOAD");
    setenv("PATH", path_with, 1);
    int code = end(child);
    assert_int_equal(access(done, F_OK), 0); /* it came */
    return code;
}

static bool is_left_out(const struct kind *k) {
    if (k->mpi && !several_ranks) {
        printf("MF_SKIPPED 1 no MPI: its ranks have no fault\n");
    }
    return k->mpi && !several_ranks;
}

static void a_fault_that_passes_has_an_exit_code_of_its_own(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i += (size_t)case_stride(2)) {
        char out[32];
        snprintf(out, sizeof out, "ends-%s", kinds[i].name);
        if (is_left_out(&kinds[i])) {
            continue;
        }
        int code = run_with_fault(&kinds[i], out, "");
        if (code != 5 || !log_has(out, " is not a number (run again, its loss is ") ||
            !log_has(out, ": a fault that passed)")) {
            show_log(out);
            fail_msg("%s: exit code %d", out, code);
        }
    }
}

static void a_run_begins_again_behind_a_fault_that_passed(void **state) {
    (void)state;
    for (size_t i = cases_sampled(); i < sizeof kinds / sizeof kinds[0];
         i += (size_t)case_stride(2)) {
        char out[32], calm[32];
        snprintf(out, sizeof out, "again-%s", kinds[i].name);
        snprintf(calm, sizeof calm, "calm-%s", kinds[i].name);
        if (is_left_out(&kinds[i])) {
            continue;
        }
        int code = run_with_fault(&kinds[i], out, "--on-failure restart");
        if (code != 0 || !log_has(out, "restart 1 of 3, from ")) {
            show_log(out);
            fail_msg("%s: exit code %d", out, code);
        }
        run(calm, STEPS, kinds[i].fold, 0);
        same_steps(out, calm, STEPS);
    }
}

static int train_wild(const struct kind *k, const char *more) {
    char command[1024];
    snprintf(command, sizeof command,
             "ASAN_OPTIONS=detect_leaks=0 %s train --init tests/data/hf/qwen3_moe --data "
             "/usr/share/common-licenses/GPL-3 --global-batch 4 --seq 32 --steps 20 --lr 1000 "
             "--clip 0 --weight-decay 10 --max-skips 1 %s %s >%s/wild.log 2>&1",
             binary, k->fold, more, scratch);
    int result = system(command);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128;
}

static void training_that_diverges_is_a_fault_that_lasts(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i += (size_t)case_stride(3)) {
        if (is_left_out(&kinds[i])) {
            continue;
        }
        assert_int_equal(train_wild(&kinds[i], ""), 1);
        int code = train_wild(&kinds[i], "--rerun");
        if (code != 6 || !log_has("wild", "(first bad value: rank 0, layer ") ||
            !log_has("wild", "2 steps in a row")) {
            show_log("wild");
            fail_msg("%s: exit code %d", kinds[i].name, code);
        }
    }
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_that_passes_has_an_exit_code_of_its_own),
        cmocka_unit_test(a_run_begins_again_behind_a_fault_that_passed),
        cmocka_unit_test(training_that_diverges_is_a_fault_that_lasts),
    };
    if (!train_run_open(argv[0])) {
        return 1;
    }
    make_paths();
    snprintf(library, sizeof library, "%s", binary);
    char *slash = strrchr(library, '/');
    snprintf(slash, sizeof library - (size_t)(slash - library), "/fault_expf.so");
    return train_run_close(cmocka_run_group_tests(tests, NULL, NULL));
}
