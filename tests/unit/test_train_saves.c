/* Checkpoints that are written beside the steps: training goes on while one is written, the next
 * one waits for it, an end and a signal wait for both; what fails there ends the run by name of
 * file and rank, and a kill leaves the checkpoint before. A library in front of libc
 * (tests/preload/fault_io.c) makes a write slow, or fail. MF_TEST: the one test to run (a pattern).
 */
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

#include <errno.h>

static char library[512];

/* A run that saves every so many steps. */
static pid_t begin_plain(const char *out, int steps, int every, const char *more) {
    char command[2048];
    snprintf(command, sizeof command,
             "exec env ASAN_OPTIONS=detect_leaks=0 %s train --init tests/data/hf/qwen3_moe --data "
             "/usr/share/common-licenses/GPL-3 --global-batch 4 --seq 32 --lr 1e-3 --lr-schedule "
             "constant --keep 0 --steps %d --save-every %d --out %s/%s %s >%s/%s.log 2>&1",
             binary, steps, every, scratch, out, more, scratch, out);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return child;
}

static void run_plain(const char *out, int steps, int every, const char *more) {
    int code = end(begin_plain(out, steps, every, more));
    if (code != 0) {
        show_log(out);
        fail_msg("%s: exit code %d", out, code);
    }
}

/* The same, of which, on `rank`, its file of step `step`'s checkpoint does `how`: opened late
 * (SLOW), so that all of its bytes are read while steps go on; or its sync fails. Ranks start
 * without mpirun, so that all of them are our own. */
static pid_t begin_with(const char *how, const char *rank, int step, const char *out, int steps,
                        int every, const char *more) {
    char place[96], before[512];
    const int file = rank[0] == '-' ? 0 : atoi(rank);
    snprintf(place, sizeof place, "/tmp-step-%08d/rank-%05d.safetensors.tmp", step, file);
    setenv("MF_FAULT_UNDER", scratch, 1);
    setenv("MF_FAULT_NAME", strcmp(how, "SLOW") == 0 ? "open" : "fsync", 1);
    setenv("MF_FAULT_PATH", place, 1);
    setenv("MF_FAULT_CALL", "1", 1);
    setenv("MF_FAULT_KIND", how, 1);
    setenv("MF_FAULT_RANK", rank, 1);
    snprintf(before, sizeof before, "%s", binary);
    snprintf(binary, sizeof binary, "%s/bin/run",
             scratch); /* the library is for our program alone */
    pid_t child = begin_plain(out, steps, every, more);
    snprintf(binary, sizeof binary, "%s", before);
    return child;
}

static bool has_folder(const char *out, const char *begins, int step) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s/checkpoints/%s%08d", scratch, out, begins, step);
    return access(path, F_OK) == 0;
}

static double number_behind(const char *out, const char *key) {
    char path[160], line[4096];
    double value = -1.0;
    snprintf(path, sizeof path, "%s/%s.log", scratch, out);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *at = strstr(line, key);
        value = at != NULL ? strtod(at + strlen(key), NULL) : value;
    }
    if (f != NULL) {
        fclose(f);
    }
    return value;
}

static const char *const fold[] = {"--gpus 1", "--gpus 2 --ep 2"};
static const char *const last_rank[] = {"-", "1"};
static const char *const speaker[] = {"moefold train: ", "moefold train: rank 1: "};

static void steps_go_on_while_a_checkpoint_is_written(void **state) {
    (void)state;
    for (int k = cases_sampled(); k < 2; k++) {
        char out[32], more[160], calm[32];
        snprintf(out, sizeof out, "beside-%d", k);
        snprintf(calm, sizeof calm, "calm-%d", k);
        snprintf(more, sizeof more, "%s --json", fold[k]);
        pid_t child = begin_with("SLOW", last_rank[k], 4, out, 7, 4, more);
        assert_true(await_steps(child, out, 6)); /* more than the one that may come before */
        assert_true(has_folder(out, "tmp-step-", 4));
        assert_false(has_folder(out, "step-", 4));
        if (end(child) != 0) {
            show_log(out);
            fail_msg("%s", out);
        }
        assert_true(has_folder(out, "step-", 4));
        assert_true(has_folder(out, "step-", 7)); /* whose save waited */
        snprintf(more, sizeof more, "%s --save-wait", fold[k]);
        run_plain(calm, 7, 4, more);
        same_steps(out, calm, 7);
        char command[600];
        snprintf(command, sizeof command,
                 "cd %s && diff -r %s/checkpoints %s/checkpoints && diff -r %s/hf %s/hf", scratch,
                 out, calm, out, calm);
        assert_int_equal(system(command), 0);
        const double took = number_behind(out, "\"save_time_s\": ");
        const double stall = number_behind(out, "\"save_stall_s\": ");
        printf("%s: a save took %.3f s, training stood still %.3f s\n", out, took, stall);
        assert_above(took, 1.0);
        assert_below(stall, took / 4); /* a share of what it would be otherwise */
    }
}

static void a_second_save_waits_and_says_so(void **state) {
    (void)state;
    for (int k = cases_sampled(); k < 2; k++) {
        char out[32];
        snprintf(out, sizeof out, "second-%d", k);
        pid_t child = begin_with("SLOW", last_rank[k], 2, out, 6, 2, fold[k]);
        assert_int_equal(end(child), 0);
        assert_true(log_has(out, "step 4: its checkpoint waited "));
        assert_true(log_has(out, " for that of step 2 to be written"));
        for (int step = 2; step <= 6; step += 2) {
            assert_true(has_folder(out, "step-", step));
        }
    }
}

static void a_signal_waits_for_both(void **state) {
    (void)state;
    static double x[MAX_STEPS][3];
    for (int k = cases_sampled(); k < 2; k++) {
        char out[32];
        snprintf(out, sizeof out, "signal-%d", k);
        pid_t child = begin_with("SLOW", last_rank[k], 4, out, MAX_STEPS, 4, fold[k]);
        assert_true(await_steps(child, out, 5));
        kill(child, SIGTERM);
        assert_int_equal(end(child), 130);
        const int steps = read_losses(out, x);
        assert_true(has_folder(out, "step-", 4));
        assert_true(has_folder(out, "step-", steps));
        assert_true(log_has(out, ", which is saved"));
    }
}

static void what_fails_beside_the_steps_ends_the_run_by_name(void **state) {
    (void)state;
    for (int k = cases_sampled(); k < 2; k++) {
        char out[32], more[160], mark[160];
        snprintf(out, sizeof out, "fails-%d", k);
        pid_t child = begin_with("ENOSPC", last_rank[k], 4, out, MAX_STEPS, 2, fold[k]);
        const int code = end(child);
        snprintf(mark, sizeof mark,
                 "%s%s/%s/checkpoints/tmp-step-00000004/rank-%05d.safetensors: %s", speaker[k],
                 scratch, out, k, strerror(ENOSPC));
        if (code != 1 || !log_has(out, mark)) {
            show_log(out);
            fail_msg("%s: exit code %d", out, code);
        }
        assert_true(has_folder(out, "step-", 2));
        assert_false(has_folder(out, "step-", 4));
        assert_false(log_has(out, "saved\n"));
        assert_false(log_has(out, "checkpoints in "));
        snprintf(more, sizeof more, "%s --resume", fold[k]);
        run_plain(out, 6, 2, more);
        assert_true(log_has(out, "step-00000002"));
    }
}

static void a_kill_beside_the_steps_leaves_the_checkpoint_before(void **state) {
    (void)state;
    for (int k = cases_sampled(); k < 2; k++) {
        char out[32], calm[32], more[160];
        pid_t ranks[16];
        snprintf(out, sizeof out, "killed-%d", k);
        snprintf(calm, sizeof calm, "unkilled-%d", k);
        pid_t child = begin_with("SLOW", last_rank[k], 6, out, MAX_STEPS, 3, fold[k]);
        assert_true(await_steps(child, out, 7)); /* its steps are reported, and lost */
        const int n = k > 0 ? find_ranks(out, child, ranks, 16) : 0;
        kill(k > 0 ? ranks[n - 1] : child, SIGKILL);
        assert_int_not_equal(end(child), 0);
        assert_true(has_folder(out, "step-", 3));
        assert_false(has_folder(out, "step-", 6));
        snprintf(more, sizeof more, "%s --resume", fold[k]);
        run_plain(out, 9, 3, more);
        assert_true(log_has(out, "step-00000003"));
        run_plain(calm, 9, 3, fold[k]);
        same_steps(out, calm, 9);
    }
}

static bool open_saves(const char *argv0) {
    if (!train_run_open(argv0)) {
        return false;
    }
    snprintf(library, sizeof library, "%s", binary);
    char *slash = strrchr(library, '/');
    snprintf(slash, sizeof library - (size_t)(slash - library), "/fault_io.so");
    char command[2048];
    snprintf(
        command, sizeof command,
        "mkdir %s/bin && printf '#!/bin/sh\\nPATH=/nowhere LD_PRELOAD=%s "
        "ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 exec %s \"$@\"\\n' >%s/bin/run && "
        "chmod +x %s/bin/run && test -r %s",
        scratch, library, binary, scratch, scratch, library);
    return system(command) == 0;
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_go_on_while_a_checkpoint_is_written),
        cmocka_unit_test(a_second_save_waits_and_says_so),
        cmocka_unit_test(a_signal_waits_for_both),
        cmocka_unit_test(what_fails_beside_the_steps_ends_the_run_by_name),
        cmocka_unit_test(a_kill_beside_the_steps_leaves_the_checkpoint_before),
    };
    return open_saves(argv[0]) ? train_run_close(cmocka_run_group_tests(tests, NULL, NULL)) : 1;
}
