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
#include "bench/gpu/training.h"
#include "core/base/clock.h"
#include "core/model/model.h"
#include "executor/train/op_times.h"

enum { SEQ = 4096, MICRO_BATCHES = 4, STEPS_OF_DATA = 30, LINE = TRAINING_LINE };

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

/* --- a run --------------------------------------------------------------------------------------
 */

static pid_t start(const struct slice *s, const char *folder) {
    char text[2][32], *words[TRAINING_WORDS] = {NULL};
    int n = 0;
    snprintf(text[0], sizeof text[0], "%" PRId64, s->micro_batch);
    snprintf(text[1], sizeof text[1], "%" PRId64, s->micro_batch * MICRO_BATCHES);
    const char *own[] = {"--model", s->model, "--micro-batch", text[0],        "--global-batch",
                         text[1],   "--seq",  "4096",          "--cuda-graph", "step"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        words[n++] = strdup(own[i]);
    }
    for (int i = 0; s->settings[i] != NULL; i++) {
        words[n++] = strdup("--set");
        words[n++] = strdup(s->settings[i]);
    }
    pid_t child = training_start(folder, words, n);
    for (int i = 0; i < n; i++) {
        free(words[i]);
    }
    return child;
}

/* The sum of a step's kernels. */
static double read_kernels(const char *folder) {
    char path[LINE];
    mf_op_times t;
    mf_err e = {.text = ""};
    double sum_s = 0;
    snprintf(path, sizeof path, "%s/run/op_times.json", folder);
    if (mf_op_times_load(path, &t, &e) == MF_OK) {
        for (int64_t i = 0; i < t.count; i++) {
            sum_s += (double)t.row[i].count * t.row[i].mean_s / (double)t.steps;
        }
        for (int i = 0; i < t.step_end_count; i++) {
            sum_s += t.step_end[i].sum_s / (double)t.steps;
        }
    }
    mf_op_times_clear(&t);
    return sum_s;
}

static bool measure(const options *o, const struct slice *s, const char *folder,
                    const training_gpus *gpus, training_result *out, double *kernels_s) {
    static mf_model model;
    char run[LINE];
    mf_err e = {.text = ""};
    const training_window window = {.warm_s = o->warm_s, .steps = o->steps};
    if (mf_model_load_with(s->model, NULL, 0, &model, &e) != MF_OK) {
        training_give_up(e.text);
    }
    training_tokens(folder, model.vocab,
                    s->micro_batch * MICRO_BATCHES * (int64_t)(SEQ + 1) * STEPS_OF_DATA);
    snprintf(run, sizeof run, "%s/run", folder);
    training_remove(run);
    *out = (training_result){0};
    if (!training_watch(start(s, folder), folder, &window, gpus, out)) {
        return false;
    }
    *kernels_s = read_kernels(folder);
    return out->steps >= o->steps;
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
            training_give_up(
                "bench_train [--only NAME] [--warm SECONDS] [--steps N] [--peer COMMAND]");
        }
    }
    if (argc % 2 == 0 || o.steps < 1) {
        training_give_up("bench_train [--only NAME] [--warm SECONDS] [--steps N] [--peer COMMAND]");
    }
    return o;
}

int main(int argc, char **argv) {
    const options o = read_options(argc, argv);
    char folder[] = "/tmp/bench-train-XXXXXX", command[64];
    training_gpus gpus;
    if (!training_gpus_find(1, &gpus)) {
        printf("no GPU: nothing to train on\n");
        return 0;
    }
    if (mkdtemp(folder) == NULL) {
        training_give_up(strerror(errno));
    }
    printf("%-9s %9s %9s %6s %10s %8s %6s %10s\n", "slice", "step ms", "TFLOP/s", "MFU",
           "kernels ms", "SM MHz", "W", "memory GB");
    int failed = 0;
    for (size_t i = 0; i < SLICES; i++) {
        training_result r;
        double kernels_s = 0;
        if (o.only != NULL && strcmp(o.only, slices[i].name) != 0) {
            continue;
        }
        double begun_s = mf_clock_s();
        if (measure(&o, &slices[i], folder, &gpus, &r, &kernels_s)) {
            printf("%-9s %9.1f %9.1f %5.1f%% %10.1f %8.0f %6.0f %10.2f\n", slices[i].name,
                   1e3 * r.step_s, r.tflops, 100 * r.mfu, 1e3 * kernels_s, r.clock_MHz, r.power_W,
                   1e-9 * (double)r.memory_B);
        } else {
            snprintf(command, sizeof command, "tail -n 3 '%s/log'", folder);
            printf("%-9s failed after %.0f s\n", slices[i].name, mf_clock_s() - begun_s);
            fflush(stdout);
            failed += system(command) != 0 ? 2 : 1;
        }
        run_peer(&o, &slices[i]);
    }
    training_remove(folder);
    return failed > 0;
}
