/* train_run.h - runs `moefold train` as its users do and reads what it left.
 *
 * A test that includes it begins with train_run_open and ends with train_run_close. Runs write to
 * folders of a scratch folder; what they say goes to NAME.log beside them.
 */
#ifndef MF_TESTS_TRAIN_RUN_H
#define MF_TESTS_TRAIN_RUN_H

#include "core/base/json.h"
#include "executor/comm/comm.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STEPS = 4096 };

static char binary[512], scratch[64];
static bool several_ranks;

/* What PATH is, and one in which there is no mpirun (make_paths). */
static char path_with[4096] __attribute__((unused)), path_without[160] __attribute__((unused));

/* Runs a command line; its exit code, or 128 where it ended otherwise. */
static inline int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline int shell(const char *format, ...) {
    char command[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    int result = system(command);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128;
}

static inline void nap(double s) {
    const struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}
/* --- runs --------------------------------------------------------------------------------------
 */

#define JOB                                                                                        \
    "--init tests/data/hf/qwen3_moe --data /usr/share/common-licenses/GPL-3 --global-batch 4 "     \
    "--seq 32 --lr 1e-3 --warmup 3 --save-every 1"
/* Four ranks; under sanitizers, with which a rank takes long to start, two. */
static inline int folded_ranks(void) {
    return case_count(4, 2);
}
static inline const char *folded(void) {
    return folded_ranks() == 4 ? "--gpus 4 --tp 2 --cp 2 --ep 4 --dispatcher alltoall"
                               : "--gpus 2 --cp 2 --ep 2 --dispatcher alltoall";
}
static const char single[] __attribute__((unused)) = "--gpus 1";

/* In front of the program: a test sets it. */
static const char *start_with = "";
/* Ranks then meet in a file, where they sleep while they wait. */
#define WITHOUT_MPIRUN "PATH=/nowhere "

/* Starts the program; what it says goes to OUT.log. */
static inline pid_t begin(const char *out, int steps, const char *more) {
    char command[2048], log[160];
    snprintf(log, sizeof log, "%s/%s.log", scratch, out);
    (void)remove(log); /* a run that is killed before it writes leaves none, not the last one's */
    snprintf(command, sizeof command,
             "exec env %sASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 %s train " JOB
             " --steps %d --out %s/%s %s >%s/%s.log 2>&1",
             start_with, binary, steps, scratch, out, more, scratch, out);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGINT, SIG_DFL); /* a shell ignores it for what it starts in the background */
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return child;
}

static inline int end(pid_t child) {
    int result = 0;
    waitpid(child, &result, 0);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
}

static inline void show_log(const char *out) {
    char command[160];
    snprintf(command, sizeof command, "tail -n 20 %s/%s.log", scratch, out);
    if (system(command) != 0) {
        printf("no log\n");
    }
}

static inline bool log_has(const char *out, const char *text) {
    char path[160], line[4096];
    bool found = false;
    snprintf(path, sizeof path, "%s/%s.log", scratch, out);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        found = found || strstr(line, text) != NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

static inline void run(const char *out, int steps, const char *more, int expected) {
    int code = end(begin(out, steps, more));
    if (code != expected) {
        show_log(out);
        fail_msg("%s: exit code %d, expected %d", out, code, expected);
    }
}

/* Everything but times, as it was written: the same text is the same bits. A line that has no end
 * is one that is being written, or that a kill cut at the end of a page: a run that goes on drops
 * it. */
static inline int read_losses(const char *out, double (*values)[3]) {
    static const char *const keys[3] = {"lm_loss", "aux_loss", "grad_norm"};
    char path[160], line[4096];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", scratch, out);
    FILE *f = fopen(path, "r");
    while (f != NULL && n < MAX_STEPS && fgets(line, sizeof line, f) != NULL &&
           strchr(line, '\n') != NULL) {
        mf_json *doc = NULL;
        int64_t step = 0;
        mf_err e;
        if (mf_json_parse("metrics", line, strlen(line), &doc, &e) != MF_OK) {
            fail_msg("%s: %s", path, e.text);
        }
        assert_ok(mf_json_get_i64(mf_json_root(doc), "step", 1, 1 << 20, &step, NULL));
        assert_int_equal(step, n + 1);
        for (int k = 0; k < 3; k++) {
            assert_ok(mf_json_get_f64(mf_json_root(doc), keys[k], 0, 1e9, &values[n][k], NULL));
        }
        mf_json_destroy(doc);
        n++;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

/* It stays to be ended. */
static inline bool has_ended(pid_t child) {
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

/* How many steps a run has written: asked for every moment, so not read. */
static inline int count_steps(const char *out) {
    char path[160], block[4096];
    int n = 0;
    size_t got;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", scratch, out);
    FILE *f = fopen(path, "r");
    while (f != NULL && (got = fread(block, 1, sizeof block, f)) > 0) {
        for (const char *c = block; (c = memchr(c, '\n', got - (size_t)(c - block))) != NULL; c++) {
            n++;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

/* Waits until a run has written so many steps. False: it ended before that. */
static inline bool await_steps(pid_t child, const char *out, int steps) {
    while (count_steps(out) < steps) {
        if (has_ended(child)) {
            return count_steps(out) >= steps;
        }
        nap(0.01);
    }
    return true;
}

static inline bool await_line(pid_t child, const char *out, const char *text) {
    while (!log_has(out, text)) {
        if (has_ended(child)) {
            return log_has(out, text);
        }
        nap(0.01);
    }
    return true;
}

/* The ranks of the run that writes to `out`: they have our program's name and this folder among
 * their arguments, and are not its launcher. */
static inline int find_ranks(const char *out, pid_t launcher, pid_t *pid, int most) {
    char path[300], text[4096], mark[160];
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

static inline void same_steps(const char *a, const char *b, int steps) {
    static double x[MAX_STEPS][3], y[MAX_STEPS][3];
    assert_int_equal(read_losses(a, x), steps);
    assert_int_equal(read_losses(b, y), steps);
    for (int i = 0; i < steps; i++) {
        if (memcmp(x[i], y[i], sizeof x[i]) != 0) {
            fail_msg("step %d of %s: loss %.17g, %s: %.17g", i + 1, a, x[i][0], b, y[i][0]);
        }
    }
}
/* --- the test's frame --------------------------------------------------------------------------
 */

/* argv0: BUILD/tests/unit/test_x; the program is BUILD/moefold. MF_TEST: the one test to run (a
 * pattern). False: no scratch folder. */
/* A folder of programs in which there is no mpirun. */
static inline void make_paths(void) {
    char link[200];
    snprintf(path_with, sizeof path_with, "%s", getenv("PATH"));
    snprintf(path_without, sizeof path_without, "%s/bin", scratch);
    assert_int_equal(mkdir(path_without, 0755), 0);
    snprintf(link, sizeof link, "%s/env", path_without);
    assert_int_equal(symlink("/usr/bin/env", link), 0);
}

static inline bool train_run_open(const char *argv0) {
    char *slash = NULL;
    snprintf(binary, sizeof binary, "%s", argv0);
    for (int up = 0; up < 3 && (slash = strrchr(binary, '/')) != NULL; up++) {
        *slash = '\0';
    }
    strncat(binary, "/moefold", sizeof binary - strlen(binary) - 1);
    snprintf(scratch, sizeof scratch, "/tmp/mf-train-XXXXXX");
    several_ranks = mf_comm_has_mpi() && system("command -v mpirun >/dev/null 2>&1") == 0;
    cmocka_set_test_filter(getenv("MF_TEST"));
    return mkdtemp(scratch) != NULL;
}

static inline int train_run_close(int failed) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command) == 0 ? failed : 1;
}

#endif
