/* Training runs that are cut: signals save and the run goes on from there, killed ranks take the
 * others with them and are named, saves that are cut short leave a whole checkpoint.
 *
 * MF_KILLS: how many saves are killed (default 6; `make test-kills` takes 50). MF_TEST: the one
 * test to run (a pattern). */
#include "executor/checkpoint.h"
#include "tests/rng.h"
#include "tests/train_run.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The ranks of the run that writes to `out`: they have our program's name and this folder among
 * their arguments, and are not its launcher. */
static int find_ranks(const char *out, pid_t launcher, pid_t *pid, int most) {
    char path[300], text[4096], mark[128];
    int n = 0;
    DIR *d = opendir("/proc");
    struct dirent *entry;
    snprintf(mark, sizeof mark, "%s/%s", scratch, out);
    while (n < most && d != NULL && (entry = readdir(d)) != NULL) {
        pid_t p = (pid_t)atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int fd = p > 0 && p != launcher ? open(path, O_RDONLY) : -1;
        ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
        if (fd >= 0) {
            close(fd);
        }
        if (length <= 0 || strstr(text, "moefold") == NULL) {
            continue; /* argv[0] is the first text */
        }
        for (ssize_t i = 0; i < length; i++) {
            text[i] = text[i] == '\0' ? ' ' : text[i];
        }
        text[length] = '\0';
        if (strstr(text, mark) != NULL) {
            pid[n++] = p;
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

/* Behind `text`: the step, a comma, and what was being done in it. */
static bool log_names_an_op(const char *out, const char *text) {
    char path[160], line[4096];
    bool named = false;
    snprintf(path, sizeof path, "%s/%s.log", scratch, out);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *at = strstr(line, text);
        long long step = at != NULL ? strtoll(at + strlen(text), NULL, 10) : 0;
        at = at != NULL ? strstr(at, ", ") : NULL;
        named = named || (step > 0 && at != NULL && strlen(at) > 5);
    }
    if (f != NULL) {
        fclose(f);
    }
    return named;
}

static void a_signal_saves_and_the_run_goes_on_from_there(void **state) {
    (void)state;
    const char *layout = several_ranks ? folded : single;
    char more[256], path[200];
    pid_t child = begin("signal", MAX_STEPS, layout); /* more than end before the signal */
    static double x[MAX_STEPS][3];
    for (int i = 0; i < 1000 && read_losses("signal", x) < 3; i++) {
        nap(0.02);
    }
    kill(child, SIGTERM);
    int code = end(child);
    if (code != 130) {
        show_log("signal");
    }
    assert_int_equal(code, 130);
    int steps = read_losses("signal", x);
    assert_in_range(steps, 3, MAX_STEPS - 1);
    snprintf(path, sizeof path, "%s/signal/checkpoints/step-%08d/manifest.json", scratch, steps);
    assert_int_equal(access(path, R_OK), 0);
    snprintf(more, sizeof more, "%s --resume", layout);
    run("signal", steps, more, 0);
}

static void a_killed_rank_is_named_and_takes_the_others_along(void **state) {
    (void)state;
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: killed ranks are not tested\n");
        return;
    }
    rng r = rng_init((uint64_t)getpid());
    static double x[MAX_STEPS][3];
    int rounds = getenv("MF_KILLS") != NULL ? 8 : 2; /* each rank twice */
    for (int round = 0; round < rounds; round++) {
        char out[16], expected[64];
        snprintf(out, sizeof out, "kill%d", round);
        pid_t child = begin(out, 5000, folded), ranks[16];
        for (int i = 0; i < 1000 && read_losses(out, x) < 2; i++) {
            nap(0.02);
        }
        assert_int_equal(find_ranks(out, child, ranks, 16), 4);
        pid_t victim = ranks[rounds > 2 ? round % 4 : rng_range(&r, 0, 3)];
        nap(0.001 * (double)rng_range(&r, 0, 200));
        double start = now_s();
        kill(victim, SIGKILL);
        int code = end(child);
        double took = now_s() - start;
        snprintf(expected, sizeof expected, "(process %d) is gone: step ", (int)victim);
        if (!log_names_an_op(out, expected) || code != 1) {
            show_log(out);
            fail_msg("exit code %d, no line with \"%s\"", code, expected);
        }
        printf("all ranks gone %.2f s after one was killed\n", took);
        assert_true(took < 10.0);
        assert_int_equal(find_ranks(out, child, ranks, 16), 0);
    }
}

static int check_tensor(const mf_model_tensor *t, void *user) {
    mf_err e;
    float *values = malloc((size_t)(t->rows * t->cols) * sizeof *values);
    for (int kind = 0; kind < (t->buffer ? 1 : MF_EXEC_STATES); kind++) {
        if (mf_checkpoint_tensor(user, kind, t, values, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
    }
    free(values);
    return 0;
}

/* Waits until a save is under way, for two seconds at most. */
static void await_save(const char *out) {
    char folder[160];
    snprintf(folder, sizeof folder, "%s/%s/checkpoints", scratch, out);
    for (double until = now_s() + 2.0; now_s() < until;) {
        bool found = false;
        DIR *d = opendir(folder);
        struct dirent *entry;
        while (d != NULL && (entry = readdir(d)) != NULL) {
            found = found || strncmp(entry->d_name, "tmp-", 4) == 0;
        }
        if (d != NULL) {
            closedir(d);
        }
        if (found) {
            return;
        }
    }
}

static void killed_saves_leave_a_whole_checkpoint(void **state) {
    (void)state;
    enum { STEPS = 60 };
    const char *layout = several_ranks ? "--gpus 2 --ep 2 --resume" : "--gpus 1 --resume";
    const char *wanted = getenv("MF_KILLS");
    int kills = wanted != NULL ? atoi(wanted) : 6, done = 0, in_save = 0, resumed = 0;
    char path[256];
    mf_model m;
    mf_err e;
    rng r = rng_init((uint64_t)getpid());
    run("calm", STEPS, layout, 0);
    assert_ok(mf_model_load("tests/data/hf/qwen3_moe/config.json", &m, &e));
    for (int attempt = 0; in_save < kills && attempt < 20 * kills; attempt++) {
        static double x[MAX_STEPS][3];
        pid_t child = begin("storm", STEPS, layout), ranks[16];
        int before = read_losses("storm", x);
        for (int i = 0; i < 500 && read_losses("storm", x) <= before && before < STEPS - 1; i++) {
            nap(0.01);
        }
        int n = several_ranks ? find_ranks("storm", child, ranks, 16) : 1;
        await_save("storm");
        /* somewhere in a save, be it a slow or a quick one */
        nap((attempt % 2 ? 0.004 : 0.03) * (double)rng_range(&r, 0, 1000) / 1000.0);
        if (n > 0) {
            kill(several_ranks ? ranks[rng_range(&r, 0, n - 1)] : child, SIGKILL);
            done++;
        }
        if (end(child) == 0) { /* it was through */
            snprintf(path, sizeof path, "rm -r %s/storm", scratch);
            assert_int_equal(system(path), 0);
            continue;
        }
        snprintf(path, sizeof path, "ls %s/storm/checkpoints | grep -q tmp-", scratch);
        in_save += system(path) == 0;
        char folder[160];
        mf_checkpoint *c = NULL;
        snprintf(folder, sizeof folder, "%s/storm/checkpoints", scratch);
        mf_checkpoint_newest(folder, path, sizeof path, &e);
        if (path[0] == '\0') {
            continue; /* killed before the first one */
        }
        if (mf_checkpoint_open(path, &m, &c, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        mf_model_tensors(&m, check_tensor, c);
        resumed += mf_checkpoint_stands(c)->step > 0;
        mf_checkpoint_close(c);
    }
    printf("%d kills, %d in a save, %d with a checkpoint to go on from\n", done, in_save, resumed);
    assert_true(in_save >= kills);
    run("storm", STEPS, layout, 0);
    same_steps("calm", "storm", STEPS);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_saves_and_the_run_goes_on_from_there),
        cmocka_unit_test(a_killed_rank_is_named_and_takes_the_others_along),
        cmocka_unit_test(killed_saves_leave_a_whole_checkpoint),
    };
    return train_run_open(argv[0]) ? train_run_close(cmocka_run_group_tests(tests, NULL, NULL)) : 1;
}
