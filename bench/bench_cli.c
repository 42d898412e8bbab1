/* bench_cli.c - whole command lines against the clock: wall time and peak memory of the process.
 *
 * Usage: bench_cli MOEFOLD [NAME]. A row runs three times and the best time counts; NAME picks the
 * rows whose name holds it. Exit 1 when a command fails; figures that are missed are marked, they
 * depend on the machine.
 */
#define _DEFAULT_SOURCE /* wait4 */
#include <fcntl.h>
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
    {"plan Mixtral-8x22B, 128 GPUs",
     "plan --model mixtral-8x22b --cluster h100 --gpus 128 --global-batch 256 --seq 4096", 1, 1e9},
    {"plan DeepSeek-V3, 1,024 GPUs", "plan " V3, 2, 1e9},
    {"plan DeepSeek-V3, 16,384 GPUs",
     "plan --model deepseek-v3 --cluster h100 --gpus 16384 --global-batch 16384 --seq 4096", 10,
     1e9},
};
enum { ROWS = sizeof rows / sizeof rows[0], RUNS = 3, MAX_WORDS = 40 };

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Exit code of one run, its time and its peak memory; output goes nowhere. */
static int run_once(char *const *argv, double *time_s, double *memory_B) {
    struct rusage usage;
    int status = 0;
    double start = now_s();
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        if (null < 0 || dup2(null, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0) {
            _exit(127);
        }
        execv(argv[0], argv);
        _exit(127);
    }
    if (child < 0 || wait4(child, &status, 0, &usage) < 0) {
        return 127;
    }
    *time_s = now_s() - start;
    *memory_B = (double)usage.ru_maxrss * 1024;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static bool run_row(const char *moefold, const row *r) {
    char *argv[MAX_WORDS] = {strdup(moefold)}, *words = strdup(r->args), *rest = NULL;
    double best_s = 1e300, most_B = 0;
    int argc = 1, code = 0;
    if (argv[0] == NULL || words == NULL) {
        return false;
    }
    for (char *w = strtok_r(words, " ", &rest); w != NULL && argc + 1 < MAX_WORDS;
         w = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = w;
    }
    for (int i = 0; i < RUNS && code == 0; i++) {
        double time_s = 0, memory_B = 0;
        code = run_once(argv, &time_s, &memory_B);
        best_s = time_s < best_s ? time_s : best_s;
        most_B = memory_B > most_B ? memory_B : most_B;
    }
    if (code != 0) {
        printf("%-56s exit %d\n", r->name, code);
    } else {
        printf("%-56s %7.3f s %s %4g s %7.0f MB %s %4.0f MB\n", r->name, best_s,
               best_s <= r->figure_s ? "<=" : "> ", r->figure_s, most_B / 1e6,
               most_B <= r->figure_B ? "<=" : "> ", r->figure_B / 1e6);
    }
    free(words);
    free(argv[0]);
    return code == 0;
}

/* Whether the binary knows the command that the row begins with. */
static bool known(const char *moefold, const row *r) {
    char command[32], *argv[] = {strdup(moefold), (char[]){"help"}, command, NULL};
    double time_s, memory_B;
    snprintf(command, sizeof command, "%.*s", (int)strcspn(r->args, " "), r->args);
    bool yes = argv[0] != NULL && run_once(argv, &time_s, &memory_B) == 0;
    free(argv[0]);
    if (!yes) {
        printf("%-56s not in this build\n", r->name);
    }
    return yes;
}

int main(int argc, char **argv) {
    bool good = true;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_cli MOEFOLD [NAME]\n");
        return 2;
    }
    for (int i = 0; i < ROWS; i++) {
        if (argc < 3 || strstr(rows[i].name, argv[2]) != NULL) {
            good = (!known(argv[1], &rows[i]) || run_row(argv[1], &rows[i])) && good;
            fflush(stdout);
        }
    }
    return good ? 0 : 1;
}
