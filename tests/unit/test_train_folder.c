/* What a run leaves and where it writes: one run at a time writes to a folder, whoever was killed
 * holds nothing and leaves nothing, a folder that vanishes and an output that is full end the run.
 * MF_TEST: the one test to run (a pattern). */
#include "executor/train/run_lock.h"
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

/* Sanitizers see one rank in most: its folder is that of several. */
static const char *layout(void) {
    return several_ranks && !cases_sampled() ? folded() : single;
}

/* Another run on OUT: exit code; what it says goes to LOG.log. */
static int beside(const char *out, const char *log, const char *more) {
    char command[2048];
    snprintf(command, sizeof command,
             "env ASAN_OPTIONS=detect_leaks=0 %s train " JOB " --out %s/%s %s >%s/%s.log 2>&1",
             binary, scratch, out, more, scratch, log);
    int result = system(command);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128;
}

static bool has_file(const char *out, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s/%s", scratch, out, name);
    return access(path, F_OK) == 0;
}

static void a_second_run_on_a_folder_is_refused_by_name_of_the_first(void **state) {
    (void)state;
    static double x[MAX_STEPS][3];
    char host[256] = "", mark[400], more[256];
    gethostname(host, sizeof host - 1);
    pid_t child = begin("held", MAX_STEPS, layout());
    assert_true(await_steps(child, "held", 2));
    snprintf(more, sizeof more, "--resume --steps 9 %s", layout());
    /* The second waits for a while: under sanitizers the first, of one process, stands meanwhile.
     */
    assert_int_equal(cases_sampled() ? kill(child, SIGSTOP) : 0, 0);
    assert_int_equal(beside("held", "second", more), 2);
    assert_int_equal(cases_sampled() ? kill(child, SIGCONT) : 0, 0);
    snprintf(mark, sizeof mark, "/held: the run on %s (process ", host);
    assert_true(log_has("second", mark));
    assert_true(log_has("second", ", since 20"));
    assert_false(log_has("second", "step 1/"));
    /* The first does not notice. */
    assert_true(await_steps(child, "held", read_losses("held", x) + 2));
    kill(child, SIGTERM);
    assert_int_equal(end(child), 130);
    assert_false(has_file("held", "lock"));
}

/* The run is killed and started again at once: the processes of the first are gone before those of
 * the second look into the folder. */
static void kill_and_resume(const char *out, const char *fold) {
    static double x[MAX_STEPS][3];
    char more[256];
    pid_t child = begin(out, MAX_STEPS, fold);
    assert_true(await_steps(child, out, 3));
    kill(child, SIGKILL);
    end(child);
    snprintf(more, sizeof more, "--resume %s", fold);
    child = begin(out, MAX_STEPS, more);
    assert_true(await_line(child, out, "resumed     "));
    assert_true(await_steps(child, out, read_losses(out, x) + 2));
    kill(child, SIGHUP); /* its terminal closes */
    assert_int_equal(end(child), 130);
    assert_true(log_has(out, ", which is saved"));
}

static void a_killed_run_leaves_its_folder_to_the_next(void **state) {
    (void)state;
    kill_and_resume("killed", single);
    assert_true(log_has("killed", "its lock is taken over"));
    if (several_ranks) { /* its launcher's end is a signal to the ranks: they save and let go */
        kill_and_resume("orphans", folded());
    }
}

/* What a file system without locks leaves to go by: the text. With locks it is nobody's. */
static void a_lock_that_nobody_holds_is_taken_over(void **state) {
    (void)state;
    char folder[96], path[128], former[256];
    mf_run_lock *l = NULL;
    mf_err e;
    snprintf(folder, sizeof folder, "%s/stale", scratch);
    snprintf(path, sizeof path, "mkdir %s", folder);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/lock", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_at_least(fputs("host elsewhere\nprocess 7\nstarted 2026-01-31T12:00:00Z\n", f), 0);
    assert_int_equal(fclose(f), 0);
    assert_ok(mf_run_lock_take(folder, 0.0, &l, former, sizeof former, &e));
    assert_string_equal(former, "the run on elsewhere (process 7, since 2026-01-31T12:00:00Z)");
    assert_ok(mf_run_lock_stands(l, &e));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mf_run_lock_stands(l, &e), MF_IO);
    mf_run_lock_release(l, true);
    assert_ok(mf_run_lock_take(folder, 0.0, &l, former, sizeof former, &e));
    assert_string_equal(former, "");
    mf_run_lock_release(l, true);
    assert_int_equal(access(path, F_OK), -1);
}

static void a_folder_that_vanishes_ends_the_run(void **state) {
    (void)state;
    char command[200];
    pid_t child = begin("gone", MAX_STEPS, layout());
    assert_true(await_steps(child, "gone", 2));
    snprintf(command, sizeof command, "mv %s/gone %s/moved", scratch, scratch);
    assert_int_equal(system(command), 0);
    int code = end(child);
    bool said = log_has("gone", "/gone: the run's folder, or the lock in it, is gone") ||
                log_has("gone", "/gone/checkpoints"); /* it went in the middle of a save */
    if (code != 1 || !said) {
        show_log("gone");
        fail_msg("exit code %d", code);
    }
}

/* A copy of step 1 that claims a later step: not gone on from, and never what a run exports. */
static void a_checkpoint_under_another_steps_name_is_refused(void **state) {
    (void)state;
    char command[600];
    run("named", 2, layout(), 0);
    snprintf(command, sizeof command,
             "cd %s && cp -r named/checkpoints/step-00000001 named/checkpoints/step-00000099 && "
             "cp named/hf/model.safetensors hf-2",
             scratch);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "%s --resume", layout());
    run("named", 3, command, 1);
    assert_true(log_has("named", "step-00000099: manifest.json is of step 1"));
    assert_true(log_has("named", "remove that folder"));
    assert_false(log_has("named", "step 3/"));
    snprintf(command, sizeof command, "cd %s && cmp named/hf/model.safetensors hf-2", scratch);
    assert_int_equal(system(command), 0);
}

/* A folder of a later step that comes to be beside the run, whole and of its model: what the run
 * exports is what the run has saved. */
static void a_run_exports_its_own_last_save(void **state) {
    (void)state;
    char command[900], more[256];
    snprintf(more, sizeof more, "%s --keep 0", layout());
    run("later", 9, more, 0);
    snprintf(more, sizeof more, "%s --keep 0", layout());
    pid_t child = begin("own", 6, more);
    assert_true(await_steps(child, "own", 1));
    snprintf(command, sizeof command,
             "cd %s && mkdir -p own/checkpoints && " /* the first save may not have begun */
             "cp -r later/checkpoints/step-00000009 own/checkpoints/step-00000009",
             scratch);
    assert_int_equal(system(command), 0);
    assert_int_equal(end(child), 0);
    run("alone", 6, layout(), 0);
    snprintf(command, sizeof command,
             "cd %s && cmp own/hf/model.safetensors alone/hf/model.safetensors", scratch);
    assert_int_equal(system(command), 0);
}

/* Nobody reads, the disk is full, or there is no output: the run saves and says so. */
static void an_output_that_fails_ends_the_run_which_is_saved(void **state) {
    (void)state;
    static const char *const to[] = {">/dev/full", ">&-", "| head -n 1 >/dev/null"};
    for (int k = 0; k < 2; k++) {
        for (size_t i = cases_sampled() ? (size_t)k : 0; i < sizeof to / sizeof to[0];
             i += (size_t)case_stride(2)) {
            char command[2048], out[32], path[128];
            snprintf(out, sizeof out, "full-%d-%zu", k, i);
            snprintf(command, sizeof command,
                     "(env ASAN_OPTIONS=detect_leaks=0 %s train " JOB " --steps %d --out %s/%s %s "
                     "2>%s/%s.log; echo code $? >>%s/%s.log) %s",
                     binary, MAX_STEPS, scratch, out,
                     k && several_ranks ? "--gpus 2 --ep 2" : single, scratch, out, scratch, out,
                     to[i]);
            (void)!system(command);
            if (!log_has(out, "moefold train: standard output: ") || !log_has(out, "code 1")) {
                show_log(out);
                fail_msg("%s", to[i]);
            }
            snprintf(path, sizeof path, "ls %s/%s/checkpoints | grep -q step-", scratch, out);
            assert_int_equal(system(path), 0);
        }
    }
}

/* Launcher, mpirun and ranks at once, as by a machine that runs out of memory. */
static void what_killed_runs_leave_behind_goes_at_the_next_start(void **state) {
    (void)state;
    char command[400], base[96], old[512];
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: its leftovers are not tested\n");
        return;
    }
    snprintf(old, sizeof old, "%s", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "");
    snprintf(base, sizeof base, "%s/tmp", scratch);
    snprintf(command, sizeof command, "mkdir %s", base);
    assert_int_equal(system(command), 0);
    setenv("TMPDIR", base, 1);
    start_with = "";
    pid_t child = begin("left", MAX_STEPS, folded());
    assert_true(await_steps(child, "left", 2));
    pid_t ranks[16];
    int n = find_ranks("left", 0, ranks, 16) /* and mpirun, whose arguments are theirs */;
    for (int i = 0; i < n; i++) {
        kill(ranks[i], SIGKILL);
    }
    kill(child, SIGKILL);
    end(child);
    snprintf(command, sizeof command, "ls -d %s/moefold-mpi-*/owner >/dev/null", base);
    assert_int_equal(system(command), 0);
    run("next", 1, "--gpus 2 --ep 2", 0);
    snprintf(command, sizeof command, "ls -d %s/moefold-* 2>/dev/null", base);
    assert_int_not_equal(system(command), 0);
    setenv("TMPDIR", old[0] != '\0' ? old : "/tmp", 1);
}

/* A run by the clock: so many checkpoints are there, and its last words. */
static int saved_by_time(const char *out, const char *minutes, const char *fold) {
    char command[2048];
    snprintf(command, sizeof command,
             "cd %s && sed 's/\"gpus_per_node\"/\"mtbf_gpu_h\": 1000, &/' "
             "\"$OLDPWD\"/profiles/clusters/cpu.json >failing.json && cd - >/dev/null && "
             "env ASAN_OPTIONS=detect_leaks=0 %s train --init tests/data/hf/qwen3_moe --data "
             "/usr/share/common-licenses/GPL-3 --global-batch 4 --seq 32 --steps 6 --keep 0 "
             "--cluster %s/failing.json --save-minutes %s --out %s/%s %s >%s/%s.log 2>&1",
             scratch, binary, scratch, minutes, scratch, out, fold, scratch, out);
    if (system(command) != 0) {
        show_log(out);
        fail_msg("--save-minutes %s", minutes);
    }
    snprintf(command, sizeof command, "exit $(ls %s/%s/checkpoints | grep -c '^step-')", scratch,
             out);
    int result = system(command);
    return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
}

static void a_checkpoint_is_written_when_its_time_has_come(void **state) {
    (void)state;
    const char *two = several_ranks && !cases_sampled() ? "--gpus 2 --ep 2" : single;
    assert_int_equal(saved_by_time("soon-1", "1e-7", single), 6);
    assert_true(log_has("soon-1", "6 checkpoints of "));
    assert_true(log_has("soon-1", "least is lost with one every "));
    assert_true(log_has("soon-1", "(Young and Daly), --save-minutes "));
    assert_int_equal(saved_by_time("soon-2", "1e-7", two), 6);
    assert_int_equal(saved_by_time("late", "1000", two), 1);
    assert_true(log_has("late", "1 checkpoint of "));
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_run_on_a_folder_is_refused_by_name_of_the_first),
        cmocka_unit_test(a_killed_run_leaves_its_folder_to_the_next),
        cmocka_unit_test(a_lock_that_nobody_holds_is_taken_over),
        cmocka_unit_test(a_folder_that_vanishes_ends_the_run),
        cmocka_unit_test(a_checkpoint_under_another_steps_name_is_refused),
        cmocka_unit_test(a_run_exports_its_own_last_save),
        cmocka_unit_test(an_output_that_fails_ends_the_run_which_is_saved),
        cmocka_unit_test(a_checkpoint_is_written_when_its_time_has_come),
        cmocka_unit_test(what_killed_runs_leave_behind_goes_at_the_next_start),
    };
    start_with = cases_sampled() ? WITHOUT_MPIRUN : "";
    return train_run_open(argv[0]) ? train_run_close(cmocka_run_group_tests(tests, NULL, NULL)) : 1;
}
