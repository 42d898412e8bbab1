/* bench_train.c - whole training steps on one GPU, at the clock that a long run holds: four slices
 * of models whose experts, heads and depths differ, each as `moefold train` runs it, in one graph.
 *
 *     bench_train [--only NAME] [--warm SECONDS] [--steps N] [--peer COMMAND]
 *
 * Each slice runs for --warm seconds [60] and then for --steps [20] steps, of which the table tells
 * the mean: time, TFLOP/s and MFU as Megatron-LM counts, the sum of the kernels' times, clock,
 * power and the GPU's memory in use meanwhile. The kernels' times are those of the first steps, op
 * by op. Tokens are random over the vocabulary, from a seed; routing is the model's own. --peer:
 * runs COMMAND NAME behind each slice and shows what it prints: another program's figures for the
 * same GPU in the same minutes.
 */
#include "core/model/model.h"
#include "executor/measure/measure_cuda.h"
#include "executor/train/op_times.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SEQ = 4096, MICRO_BATCHES = 4, WORDS = 64, STEPS_OF_DATA = 30, LINE = 4096 };

static const struct slice {
    const char *name, *model, *settings[8];
    int64_t micro_batch;
} slices[] = {
    {"mixtral", "mixtral-8x22b", {"num_hidden_layers=2"}, 4},
    {"qwen3", "qwen3-30b-a3b", {"num_hidden_layers=6"}, 4},
    {"deepseek",
     "deepseek-v3",
     {"num_hidden_layers=3", "first_k_dense_replace=1", "n_routed_experts=32", "n_group=1",
      "topk_group=1", "num_nextn_predict_layers=0"},
     2},
    {"olmoe", "olmoe-1b-7b", {NULL}, 1},
};
enum { SLICES = sizeof slices / sizeof slices[0] };

typedef struct options {
    const char *only, *peer;
    double warm_s;
    int steps;
} options;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void give_up(const char *what) {
    fprintf(stderr, "bench_train: %s\n", what);
    exit(1);
}

/* --- tokens -------------------------------------------------------------------------------------
 */

static void put(FILE *f, const void *data, size_t size) {
    if (fwrite(data, size, 1, f) != 1) {
        give_up("the tokens cannot be written");
    }
}

/* A Megatron-LM pair of one document, FOLDER/tokens.bin and .idx. */
static void write_tokens(const char *folder, int64_t vocab, int64_t count) {
    char path[LINE];
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
        give_up("the tokens cannot be written");
    }
    for (int64_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        int32_t token = (int32_t)((state >> 11) % (uint64_t)vocab);
        put(bin, &token, sizeof token);
    }
    put(idx, "MMIDIDX\0\0", 9);
    put(idx, &version, sizeof version);
    put(idx, &int32, sizeof int32);
    put(idx, &one, sizeof one);
    put(idx, &documents, sizeof documents);
    put(idx, &size, sizeof size);
    put(idx, &begin, sizeof begin);
    put(idx, ends, sizeof ends);
    if (fclose(bin) != 0 || fclose(idx) != 0) {
        give_up("the tokens cannot be written");
    }
}

/* --- a run --------------------------------------------------------------------------------------
 */

/* Means over the steps behind the warm ones. */
typedef struct result {
    int steps;
    double step_s, tflops, mfu, kernels_s, clock_MHz, power_W;
    unsigned long long memory_B;
    int samples;
} result;

static pid_t start(const struct slice *s, const char *folder) {
    static const char *const fixed[] = {
        "--backend", "cuda", "--seq", "4096",      "--cuda-graph", "step",         "--aux-loss",
        "none",      "--lr", "1e-7",  "--shuffle", "off",          "--save-every", "1000000"};
    char text[6][LINE], *argv[WORDS] = {NULL}, program[LINE];
    int n = 0;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 64);
    program[length > 0 ? length : 0] = '\0';
    char *build = strstr(program, "/gpu/bench/");
    build = build != NULL ? build : strrchr(program, '/'); /* or beside it, as packed */
    if (build == NULL) {
        give_up("moefold is looked for beside bench_train, or where the build puts it");
    }
    snprintf(build, 16, "/moefold");
    snprintf(text[0], LINE, "%" PRId64, s->micro_batch);
    snprintf(text[1], LINE, "%" PRId64, s->micro_batch * MICRO_BATCHES);
    snprintf(text[2], LINE, "1000000"); /* more than it gets to */
    snprintf(text[3], LINE, "%s/tokens", folder);
    snprintf(text[4], LINE, "%s/run", folder);
    const char *own[] = {"train",          "--model", s->model,  "--micro-batch", text[0],
                         "--global-batch", text[1],   "--steps", text[2],         "--data",
                         text[3],          "--out",   text[4]};
    argv[n++] = program;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        argv[n++] = strdup(own[i]);
    }
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        argv[n++] = strdup(fixed[i]);
    }
    for (int i = 0; s->settings[i] != NULL; i++) {
        argv[n++] = strdup("--set");
        argv[n++] = strdup(s->settings[i]);
    }
    snprintf(text[5], LINE, "%s/log", folder);
    pid_t child = fork();
    if (child == 0) {
        FILE *log = freopen(text[5], "w", stdout);
        if (log != NULL && dup2(STDOUT_FILENO, STDERR_FILENO) >= 0) {
            execv(program, argv);
        }
        _exit(127);
    }
    return child;
}

static double field(const char *line, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(line, quoted);
    return at != NULL ? strtod(at + strlen(quoted), NULL) : 0;
}

/* Lines of metrics.jsonl there are; those behind `skip` go into the means. */
static int read_metrics(const char *folder, int skip, result *r) {
    char path[LINE], line[LINE];
    int lines = 0;
    snprintf(path, sizeof path, "%s/run/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strchr(line, '\n') != NULL && lines++ >= skip && r != NULL) {
            r->steps++;
            r->step_s += field(line, "step_time_s");
            r->tflops += field(line, "model_tflops_per_gpu");
            r->mfu += field(line, "mfu");
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return lines;
}

static void read_kernels(const char *folder, result *r) {
    char path[LINE];
    mf_op_times t;
    mf_err e = {.text = ""};
    snprintf(path, sizeof path, "%s/run/op_times.json", folder);
    if (mf_op_times_load(path, &t, &e) == MF_OK) {
        for (int64_t i = 0; i < t.count; i++) {
            r->kernels_s += (double)t.row[i].count * t.row[i].mean_s / (double)t.steps;
        }
        for (int i = 0; i < t.once_count; i++) {
            r->kernels_s += t.step_end[i].sum_s / (double)t.steps;
        }
    }
    mf_op_times_clear(&t);
}

/* Has the run ended by itself? It should not have. */
static bool has_ended(pid_t child) {
    return waitpid(child, NULL, WNOHANG) != 0;
}

/* Lets the run go on for the warm seconds from its first step, looks at the GPU while it takes the
 * steps behind them, and kills it: an end of its own would save what it trained. Returns the warm
 * steps; -1: it ended. */
static int watch(const options *o, pid_t child, const char *folder, mf_measure_nvml *nvml,
                 result *r) {
    const struct timespec pause = {0, 200000000};
    double begun_s = 0;
    int lines = 0, warm = -1;
    while (warm < 0 || lines < warm + o->steps) {
        mf_measure_state state;
        if (has_ended(child)) {
            return -1;
        }
        nanosleep(&pause, NULL);
        lines = read_metrics(folder, 0, NULL);
        begun_s = lines > 0 && !(begun_s > 0) ? now_s() : begun_s;
        if (warm < 0 && lines > 0 && now_s() - begun_s >= o->warm_s) {
            warm = lines;
        }
        if (warm >= 0) {
            mf_measure_nvml_read(nvml, &state);
            r->samples++;
            r->clock_MHz += state.sm_MHz;
            r->power_W += state.power_W;
            r->memory_B = state.memory_B > r->memory_B ? state.memory_B : r->memory_B;
        }
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return warm;
}

static void finish(result *r) {
    double n = r->steps > 0 ? r->steps : 1, looks = r->samples > 0 ? r->samples : 1;
    r->step_s /= n;
    r->tflops /= n;
    r->mfu /= n;
    r->clock_MHz /= looks;
    r->power_W /= looks;
}

static void remove_run(const char *folder) {
    char command[LINE];
    snprintf(command, sizeof command, "rm -rf '%s/run'", folder);
    if (system(command) != 0) {
        fprintf(stderr, "bench_train: %s/run stays\n", folder);
    }
}

static bool measure(const options *o, const struct slice *s, const char *folder,
                    mf_measure_nvml *nvml, result *out) {
    static mf_model model;
    mf_err e = {.text = ""};
    if (mf_model_load_with(s->model, NULL, 0, &model, &e) != MF_OK) {
        give_up(e.text);
    }
    write_tokens(folder, model.vocab,
                 s->micro_batch * MICRO_BATCHES * (int64_t)(SEQ + 1) * STEPS_OF_DATA);
    remove_run(folder);
    *out = (result){0};
    int warm = watch(o, start(s, folder), folder, nvml, out);
    if (warm >= 0) {
        read_metrics(folder, warm, out);
        read_kernels(folder, out);
    }
    finish(out);
    return warm >= 0 && out->steps >= o->steps;
}

static void run_peer(const options *o, const struct slice *s) {
    char command[LINE];
    if (o->peer != NULL) {
        fflush(stdout);
        snprintf(command, sizeof command, "%s %s", o->peer, s->name);
        if (system(command) != 0) {
            printf("          the peer failed\n");
        }
    }
}

static options read_options(int argc, char **argv) {
    options o = {.warm_s = 60, .steps = 20};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--only") == 0) {
            o.only = value;
        } else if (strcmp(argv[i], "--peer") == 0) {
            o.peer = value;
        } else if (strcmp(argv[i], "--warm") == 0) {
            o.warm_s = strtod(value, NULL);
        } else if (strcmp(argv[i], "--steps") == 0) {
            o.steps = atoi(value);
        } else {
            give_up("bench_train [--only NAME] [--warm SECONDS] [--steps N] [--peer COMMAND]");
        }
    }
    if (argc % 2 == 0 || o.steps < 1) {
        give_up("bench_train [--only NAME] [--warm SECONDS] [--steps N] [--peer COMMAND]");
    }
    return o;
}

int main(int argc, char **argv) {
    const options o = read_options(argc, argv);
    char folder[] = "/tmp/bench-train-XXXXXX", command[64];
    mf_measure_nvml *nvml = mf_measure_nvml_find(0);
    if (nvml == NULL) {
        printf("no GPU: nothing to train on\n");
        return 0;
    }
    if (mkdtemp(folder) == NULL) {
        give_up(strerror(errno));
    }
    printf("%-9s %9s %9s %6s %10s %8s %6s %10s\n", "slice", "step ms", "TFLOP/s", "MFU",
           "kernels ms", "SM MHz", "W", "memory GB");
    int failed = 0;
    for (size_t i = 0; i < SLICES; i++) {
        result r;
        if (o.only != NULL && strcmp(o.only, slices[i].name) != 0) {
            continue;
        }
        double begun_s = now_s();
        if (measure(&o, &slices[i], folder, nvml, &r)) {
            printf("%-9s %9.1f %9.1f %5.1f%% %10.1f %8.0f %6.0f %10.2f\n", slices[i].name,
                   1e3 * r.step_s, r.tflops, 100 * r.mfu, 1e3 * r.kernels_s, r.clock_MHz, r.power_W,
                   1e-9 * (double)r.memory_B);
        } else {
            snprintf(command, sizeof command, "tail -n 3 '%s/log'", folder);
            printf("%-9s failed after %.0f s\n", slices[i].name, now_s() - begun_s);
            fflush(stdout);
            failed += system(command) != 0 ? 2 : 1;
        }
        run_peer(&o, &slices[i]);
    }
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) {
        fprintf(stderr, "bench_train: %s stays\n", folder);
    }
    return failed > 0;
}
