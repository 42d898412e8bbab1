/* bench_cli.c - whole command lines against the clock: wall time and peak memory of the process.
 * (Plans: bench_plan.c.)
 *
 * Usage: bench_cli MOEFOLD [NAME]. A row runs three times and the best time counts; one that takes
 * long runs once and is interrupted after a minute, and then shows how far it came. NAME picks the
 * rows whose name holds it. Exit 1 when a command fails; figures that are missed are marked, they
 * depend on the machine.
 */
#define _DEFAULT_SOURCE /* wait4 */
#include "core/base/clock.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct row {
    const char *name;
    const char *args;
    double figure_s;
    double figure_B;
} row;

#define V3 "--model deepseek-v3 --cluster h100 --global-batch 8192 --seq 4096 --gpus 1024 "

static const row rows[] = {
    {"simulate DeepSeek-V3, 1,024 GPUs, one rank per stage",
     "simulate " V3 "--pp 16 --ep 64 --recompute full", 0.3, 1e9},
    {"simulate DeepSeek-V3, 1,024 GPUs, every rank",
     "simulate " V3 "--pp 16 --ep 64 --recompute full --every-rank --routing zipf:0.5", 10, 1e9},
};
enum { ROWS = sizeof rows / sizeof rows[0], RUNS = 3, MAX_WORDS = 40, PATIENCE_S = 60 };

typedef struct outcome {
    int code;
    bool interrupted; /* by us, after PATIENCE_S */
    double time_s, memory_B;
} outcome;

static void run_child(char *const *argv, const char *out) {
    int null = open("/dev/null", O_WRONLY);
    int file = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (null >= 0 && file >= 0 && dup2(file, STDOUT_FILENO) >= 0 &&
        dup2(null, STDERR_FILENO) >= 0) {
        execv(argv[0], argv);
    }
    _exit(127);
}

/* One run; its output goes to the file `out`. */
static outcome run_once(char *const *argv, const char *out) {
    outcome o = {.code = 127};
    struct rusage usage;
    int status = 0;
    double start = mf_clock_s();
    pid_t child = fork(), ended = 0;
    if (child == 0) {
        run_child(argv, out);
    }
    while (child > 0 && (ended = wait4(child, &status, WNOHANG, &usage)) == 0) {
        struct timespec pause = {.tv_nsec = 2000000};
        if (!o.interrupted && mf_clock_s() - start > PATIENCE_S) {
            o.interrupted = kill(child, SIGINT) == 0;
        }
        nanosleep(&pause, NULL);
    }
    if (ended > 0) {
        o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
        o.time_s = mf_clock_s() - start;
        o.memory_B = (double)usage.ru_maxrss * 1024;
    }
    return o;
}

static bool run_row(const char *moefold, const row *r, const char *out) {
    char *argv[MAX_WORDS] = {strdup(moefold)}, *words = strdup(r->args), *rest = NULL;
    outcome best = {.time_s = 1e300}, now = {0};
    int argc = 1;
    bool good = argv[0] != NULL && words != NULL;
    for (char *w = good ? strtok_r(words, " ", &rest) : NULL; w != NULL && argc + 2 < MAX_WORDS;
         w = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = w;
    }
    argv[argc++] = (char[]){"--json"};
    for (int i = 0; i < RUNS && good && now.time_s < 5; i++) {
        now = run_once(argv, out);
        good = now.code == 0 || (now.interrupted && now.code == 130);
        best = now.time_s < best.time_s ? now : best;
    }
    if (!good) {
        printf("%-56s exit %d\n", r->name, now.code);
    } else {
        printf("%-56s %7.3f s %s %4g s %7.0f MB %s %4.0f MB%s\n", r->name, best.time_s,
               best.time_s <= r->figure_s ? "<=" : "> ", r->figure_s, best.memory_B / 1e6,
               best.memory_B <= r->figure_B ? "<=" : "> ", r->figure_B / 1e6,
               best.interrupted ? "  interrupted" : "");
    }
    free(words);
    free(argv[0]);
    return good;
}

/* Whether the binary knows the command that the row begins with. */
static bool known(const char *moefold, const row *r, const char *out) {
    char command[32], *argv[] = {strdup(moefold), (char[]){"help"}, command, NULL};
    snprintf(command, sizeof command, "%.*s", (int)strcspn(r->args, " "), r->args);
    bool yes = argv[0] != NULL && run_once(argv, out).code == 0;
    free(argv[0]);
    if (!yes) {
        printf("%-56s not in this build\n", r->name);
    }
    return yes;
}

int main(int argc, char **argv) {
    bool good = true;
    char out[] = "/tmp/moefold-bench-XXXXXX";
    if (argc < 2) {
        fprintf(stderr, "usage: bench_cli MOEFOLD [NAME]\n");
        return 2;
    }
    int file = mkstemp(out);
    if (file < 0) {
        perror("bench_cli");
        return 1;
    }
    close(file);
    for (int i = 0; i < ROWS; i++) {
        if (argc < 3 || strstr(rows[i].name, argv[2]) != NULL) {
            good = (!known(argv[1], &rows[i], out) || run_row(argv[1], &rows[i], out)) && good;
            fflush(stdout);
        }
    }
    unlink(out);
    return good ? 0 : 1;
}
