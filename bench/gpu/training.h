/* training.h - runs of `moefold train` as a benchmark sees them: started beside this program with
 * random tokens, watched, and killed when enough was seen, for an end of their own would save what
 * they trained. */
#ifndef MF_BENCH_TRAINING_H
#define MF_BENCH_TRAINING_H

#include "bench/gpu/run_rows.h"
#include "core/base/clock.h"
#include "executor/measure/measure_cuda.h"
#include "executor/train/op_times.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TRAINING_WORDS = 96 };

/* --- tokens ---------------------------------------------------------------------------------- */

static inline void training_put(FILE *f, const void *data, size_t size) {
    if (fwrite(data, size, 1, f) != 1) {
        training_give_up("the tokens cannot be written");
    }
}

/* A Megatron-LM pair of one document, FOLDER/tokens.bin and .idx: random over the vocabulary, from
 * a seed. */
static inline void training_tokens(const char *folder, int64_t vocab, int64_t count) {
    char path[TRAINING_LINE];
    uint64_t state = 88172645463325252u, one = 1, documents = 2;
    const uint64_t version = 1;
    const uint8_t int32 = 4;
    const int32_t size = (int32_t)count;
    const int64_t begin = 0, ends[2] = {0, 1};
    snprintf(path, sizeof path, "%s/tokens.bin", folder);
    FILE *bin = fopen(path, "wb");
    snprintf(path, sizeof path, "%s/tokens.idx", folder);
    FILE *idx = fopen(path, "wb");
    if (bin == NULL || idx == NULL) {
        training_give_up("the tokens cannot be written");
    }
    for (int64_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        int32_t token = (int32_t)((state >> 11) % (uint64_t)vocab);
        training_put(bin, &token, sizeof token);
    }
    training_put(idx, "MMIDIDX\0\0", 9);
    training_put(idx, &version, sizeof version);
    training_put(idx, &int32, sizeof int32);
    training_put(idx, &one, sizeof one);
    training_put(idx, &documents, sizeof documents);
    training_put(idx, &size, sizeof size);
    training_put(idx, &begin, sizeof begin);
    training_put(idx, ends, sizeof ends);
    if (fclose(bin) != 0 || fclose(idx) != 0) {
        training_give_up("the tokens cannot be written");
    }
}

/* --- the program ----------------------------------------------------------------------------- */

/* `moefold`: where the build puts it beside its benchmarks, or beside this program, as packed. */
static inline void training_program(char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - 64);
    path[length > 0 ? length : 0] = '\0';
    char *build = strstr(path, "/gpu/bench/");
    build = build != NULL ? build : strrchr(path, '/');
    if (build == NULL) {
        training_give_up("moefold is looked for beside this program, or where the build puts it");
    }
    snprintf(build, 16, "/moefold");
}

/* Starts `moefold train` on FOLDER/tokens with FOLDER/run as its --out and FOLDER/log as its
 * output, to run until it is killed. */
static inline pid_t training_start(const char *folder, char *const *words, int count) {
    static const char *const fixed[] = {"--backend",    "cuda",    "--aux-loss", "none",
                                        "--lr",         "1e-7",    "--shuffle",  "off",
                                        "--save-every", "1000000", "--steps",    "1000000"};
    char program[TRAINING_LINE], tokens[TRAINING_LINE], run[TRAINING_LINE], log[TRAINING_LINE];
    const char *argv[TRAINING_WORDS] = {program, "train", "--data", tokens, "--out", run};
    int n = 6;
    training_program(program, sizeof program);
    snprintf(tokens, sizeof tokens, "%s/tokens", folder);
    snprintf(run, sizeof run, "%s/run", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        argv[n++] = fixed[i];
    }
    for (int i = 0; i < count && n + 1 < TRAINING_WORDS; i++) {
        argv[n++] = words[i];
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a benchmark that is killed leaves nothing running */
        setpgid(0, 0);
        FILE *to = freopen(log, "w", stdout);
        if (to != NULL && dup2(STDOUT_FILENO, STDERR_FILENO) >= 0) {
            execv(program, (char *const *)(uintptr_t)argv);
        }
        _exit(127);
    }
    return child;
}

/* --- what it says ---------------------------------------------------------------------------- */

/* The GPUs that are watched, and what the driver counts as in use on each before anything runs. */
enum { TRAINING_GPUS = 8 };
typedef struct training_gpus {
    int count;
    mf_nvml *nvml[TRAINING_GPUS];
    unsigned long long idle_B[TRAINING_GPUS];
} training_gpus;

/* The first `count` GPUs; false: there are fewer. */
static inline bool training_gpus_find(int count, training_gpus *g) {
    *g = (training_gpus){0};
    while (g->count < count && g->count < TRAINING_GPUS &&
           (g->nvml[g->count] = mf_nvml_find(g->count)) != NULL) {
        mf_measure_state state;
        mf_measure_nvml_read(g->nvml[g->count], &state);
        g->idle_B[g->count++] = state.memory_B;
    }
    return g->count == count;
}

/* Means over the steps behind the warm ones, and over the GPUs of what the driver says meanwhile.
 */
typedef struct training_result {
    int steps, samples;
    double step_s, tflops, mfu, clock_MHz, power_W;
    unsigned long long memory_B; /* the most that a GPU has in use */
    unsigned long long own_B;    /* the same beyond what it had before */
} training_result;

static inline void training_look(const training_gpus *g, training_result *r) {
    for (int i = 0; i < g->count; i++) {
        mf_measure_state state;
        mf_measure_nvml_read(g->nvml[i], &state);
        const unsigned long long own_B =
            state.memory_B > g->idle_B[i] ? state.memory_B - g->idle_B[i] : 0;
        r->samples++;
        r->clock_MHz += state.sm_MHz;
        r->power_W += state.power_W;
        r->memory_B = state.memory_B > r->memory_B ? state.memory_B : r->memory_B;
        r->own_B = own_B > r->own_B ? own_B : r->own_B;
    }
}

/* Ranks of their own end behind the program that started them: what they held is waited for, some
 * seconds. */
static inline void training_settle(const training_gpus *g) {
    enum { LOOKS = 100, SLACK_MiB = 64 };
    const struct timespec pause = {0, 50000000};
    for (int look = 0; look < LOOKS; look++) {
        training_result now = {0};
        training_look(g, &now);
        if (now.own_B <= (unsigned long long)SLACK_MiB << 20) {
            return;
        }
        nanosleep(&pause, NULL);
    }
}

/* Lines of metrics.jsonl there are; those behind `skip` go into the means. *arena_B: the last
 * step's arena (NULL: not wanted). */
static inline int training_metrics(const char *folder, int skip, double *arena_B,
                                   training_result *r) {
    char path[TRAINING_LINE], line[TRAINING_LINE];
    int lines = 0;
    snprintf(path, sizeof path, "%s/run/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strchr(line, '\n') == NULL) {
            break; /* being written */
        }
        if (arena_B != NULL) {
            *arena_B = training_field(line, "memory_B");
        }
        if (lines++ >= skip && r != NULL) {
            r->steps++;
            r->step_s += training_field(line, "step_time_s");
            r->tflops += training_field(line, "model_tflops_per_gpu");
            r->mfu += training_field(line, "mfu");
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return lines;
}

/* Steps that are watched: those behind `warm_s` seconds from the end of the first, and behind the
 * ones that are timed op by op and the one in which a graph is made, until there are `steps` of
 * them and `watch_s` seconds are over. Where routing has asked for more space all begins anew,
 * since the run had a pause. A run that has not come so far after `limit_s` seconds is given up; 0:
 * none is. */
typedef struct training_window {
    double warm_s, watch_s, limit_s;
    int steps;
} training_window;

/* Kills a run with all that it started. */
static inline void training_end(pid_t child, const training_gpus *g) {
    kill(-child, SIGKILL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    training_settle(g);
}

/* Watches a run and kills it; false: it ended by itself, which it should not, or hangs. */
static inline bool training_watch(pid_t child, const char *folder, const training_window *w,
                                  const training_gpus *g, training_result *r) {
    const struct timespec pause = {0, 50000000};
    const double start_s = mf_clock_s();
    double begun_s = 0, warm_at_s = 0, arena_B = 0, had_B = 0;
    int lines = 0, warm = -1;
    while (warm < 0 || lines < warm + w->steps || mf_clock_s() - warm_at_s < w->watch_s) {
        if (waitpid(child, NULL, WNOHANG) != 0) {
            kill(-child, SIGKILL);
            training_settle(g);
            return false;
        }
        if (w->limit_s > 0 && mf_clock_s() - start_s > w->limit_s) {
            training_end(child, g);
            return false;
        }
        nanosleep(&pause, NULL);
        lines = training_metrics(folder, 0, &arena_B, NULL);
        if (lines > 0 && (arena_B < had_B || arena_B > had_B)) {
            had_B = arena_B;
            begun_s = mf_clock_s();
            warm = -1;
            *r = (training_result){0};
        }
        if (warm < 0 && lines > MF_OP_TIMED_STEPS && mf_clock_s() - begun_s >= w->warm_s) {
            warm = lines;
            warm_at_s = mf_clock_s();
        }
        if (warm >= 0) {
            training_look(g, r);
        }
    }
    training_end(child, g);
    training_metrics(folder, warm, NULL, r);
    double n = r->steps > 0 ? r->steps : 1, looks = r->samples > 0 ? r->samples : 1;
    r->step_s /= n;
    r->tflops /= n;
    r->mfu /= n;
    r->clock_MHz /= looks;
    r->power_W /= looks;
    return true;
}

static inline void training_remove(const char *path) {
    char command[TRAINING_LINE];
    snprintf(command, sizeof command, "rm -rf '%.4000s'", path);
    if (system(command) != 0) {
        fprintf(stderr, "bench: %s stays\n", path);
    }
}

#endif
