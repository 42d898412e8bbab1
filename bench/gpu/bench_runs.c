/* bench_runs.c - what is predicted beside what is measured: training runs of one GPU that differ in
 * model, depth, micro-batch, sequence, recomputation, what waits in host memory, graphs and
 * routing.
 *
 *     bench_runs FILE [--only TEXT] [--seconds S] [--warm S] [--watch S]   trains
 *     bench_runs FILE --table CLUSTER                                      tells
 *     bench_runs --list                                                    the runs
 *
 * Runs that are not in FILE yet are trained and added, one line each: a run that was cut off, or
 * that --seconds leaves out, is done by the next call. Each runs for --warm [2.5] seconds from its
 * first step and is measured over the next --watch [3] seconds, five steps at least. --table
 * predicts each run of FILE by `moefold simulate` on CLUSTER, the machine that FILE was measured
 * on, and says how far the predictions are off. A third of the runs, by a hash of their options, is
 * held out: no price may be fitted to it.
 */
#include "bench/gpu/training.h"

#include <math.h>

enum { TOKENS = 1 << 22, VOCABULARY = 32000, STEPS_LEAST = 5, RUNS_MOST = 256 };

/* Models in turns, so that a file that was cut off has some of each. */
static const char *const runs[] = {
#define MIXTRAL "--model mixtral-8x7b --set num_hidden_layers=2 "
#define QWEN3 "--model qwen3-30b-a3b --set num_hidden_layers=4 "
#define DEEPSEEK                                                                                   \
    "--model deepseek-v3 --set first_k_dense_replace=1 --set n_routed_experts=32 --set n_group=1 " \
    "--set topk_group=1 --set num_nextn_predict_layers=0 "
#define OLMOE "--model olmoe-1b-7b --set num_hidden_layers=8 "
#define LLAMA "--model llama3-8b --set num_hidden_layers=6 "
#define GPT_OSS "--model gpt-oss-20b --set num_hidden_layers=4 "
#define STEP " --cuda-graph step"
    MIXTRAL "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    QWEN3 "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    DEEPSEEK "--set num_hidden_layers=2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    OLMOE "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    LLAMA "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    GPT_OSS "--micro-batch 1 --global-batch 4 --seq 4096" STEP,

    MIXTRAL "--micro-batch 2 --global-batch 8 --seq 4096" STEP,
    QWEN3 "--micro-batch 4 --global-batch 16 --seq 4096" STEP,
    DEEPSEEK "--set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq 4096" STEP,
    OLMOE "--micro-batch 4 --global-batch 16 --seq 4096" STEP,
    LLAMA "--micro-batch 2 --global-batch 8 --seq 4096" STEP,
    GPT_OSS "--micro-batch 4 --global-batch 16 --seq 4096" STEP,

    MIXTRAL "--micro-batch 4 --global-batch 8 --seq 4096" STEP,
    QWEN3 "--micro-batch 8 --global-batch 16 --seq 2048" STEP,
    DEEPSEEK "--set num_hidden_layers=2 --micro-batch 1 --global-batch 4 --seq 8192" STEP,
    OLMOE "--micro-batch 8 --global-batch 32 --seq 2048" STEP,
    LLAMA "--micro-batch 1 --global-batch 2 --seq 32768" STEP,
    GPT_OSS "--micro-batch 2 --global-batch 8 --seq 8192" STEP,

    MIXTRAL "--micro-batch 2 --global-batch 8 --seq 4096 --recompute full" STEP,
    QWEN3 "--micro-batch 4 --global-batch 16 --seq 4096 --recompute full" STEP,
    DEEPSEEK "--set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq 4096 --recompute "
             "full" STEP,
    OLMOE "--micro-batch 4 --global-batch 16 --seq 4096 --recompute norm,act" STEP,
    LLAMA "--micro-batch 4 --global-batch 8 --seq 4096 --recompute full" STEP,
    GPT_OSS "--micro-batch 4 --global-batch 8 --seq 4096 --recompute selective" STEP,

    MIXTRAL "--micro-batch 2 --global-batch 8 --seq 4096 --cuda-graph none",
    QWEN3 "--micro-batch 4 --global-batch 16 --seq 4096 --cuda-graph none",
    DEEPSEEK "--set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq 4096 --cuda-graph "
             "none",
    OLMOE "--micro-batch 1 --global-batch 4 --seq 4096 --cuda-graph none",
    LLAMA "--micro-batch 1 --global-batch 4 --seq 4096 --cuda-graph none",
    GPT_OSS "--micro-batch 1 --global-batch 4 --seq 2048 --cuda-graph none",

    MIXTRAL "--micro-batch 2 --global-batch 8 --seq 4096 --force-balance" STEP,
    QWEN3 "--micro-batch 4 --global-batch 16 --seq 4096 --force-balance" STEP,
    DEEPSEEK "--set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq 4096 "
             "--force-balance" STEP,
    OLMOE "--micro-batch 4 --global-batch 16 --seq 4096 --force-balance" STEP,
    GPT_OSS "--micro-batch 4 --global-batch 16 --seq 4096 --force-balance" STEP,

    MIXTRAL "--micro-batch 1 --global-batch 8 --seq 4096 --offload-optimizer 0.5" STEP,
    QWEN3 "--micro-batch 1 --global-batch 2 --seq 32768" STEP,
    DEEPSEEK
    "--set num_hidden_layers=2 --micro-batch 1 --global-batch 8 --seq 4096 --moments bf16" STEP,
    OLMOE "--micro-batch 4 --global-batch 16 --seq 4096 --offload expert_fc1" STEP,
    LLAMA "--micro-batch 2 --global-batch 8 --seq 8192 --offload input,qkv" STEP,

    MIXTRAL "--micro-batch 1 --global-batch 4 --seq 16384" STEP,
    QWEN3 "--micro-batch 4 --global-batch 16 --seq 4096 --moments bf16" STEP,
    DEEPSEEK "--set num_hidden_layers=3 --micro-batch 1 --global-batch 8 --seq 4096" STEP,
    OLMOE "--micro-batch 2 --global-batch 4 --seq 16384 --recompute norm" STEP,
    LLAMA "--micro-batch 8 --global-batch 16 --seq 2048 --moments bf16" STEP,

    "--model mixtral-8x7b --set num_hidden_layers=1 --micro-batch 8 --global-batch 16 --seq "
    "2048" STEP,
    "--model qwen3-30b-a3b --set num_hidden_layers=8 --micro-batch 2 --global-batch 4 --seq "
    "8192" STEP,
    DEEPSEEK "--set num_hidden_layers=1 --micro-batch 2 --global-batch 16 --seq 4096" STEP,
    "--model olmoe-1b-7b --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    "--model llama3-8b --set num_hidden_layers=12 --micro-batch 1 --global-batch 8 --seq 4096" STEP,
    QWEN3 "--micro-batch 2 --global-batch 4 --seq 4096 --offload expert_in --cuda-graph none",
};
enum { RUNS = sizeof runs / sizeof runs[0] };

typedef struct row {
    char arguments[512];
    double step_s, memory_B, clock_MHz, power_W;
    int steps;
    double predicted_s, predicted_B; /* of --table */
} row;

typedef struct options {
    const char *file, *only, *table;
    double seconds, warm_s, watch_s;
} options;

/* --- the file -----------------------------------------------------------------------------------
 */

/* "ARGUMENTS",step_s,memory_B,clock_MHz,power_W,steps */
static int read_file(const char *path, row *rows) {
    char line[TRAINING_LINE];
    int n = 0;
    FILE *f = fopen(path, "r");
    while (f != NULL && n < RUNS_MOST && fgets(line, sizeof line, f) != NULL) {
        row *r = &rows[n];
        n += sscanf(line, "\"%511[^\"]\",%lf,%lf,%lf,%lf,%d", r->arguments, &r->step_s,
                    &r->memory_B, &r->clock_MHz, &r->power_W, &r->steps) == 6;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

static void add_to_file(const char *path, const row *r) {
    FILE *f = fopen(path, "a");
    if (f == NULL) {
        training_give_up(strerror(errno));
    }
    if (ftell(f) == 0) {
        fprintf(f, "options of moefold train,step_s,memory_B,clock_MHz,power_W,steps\n");
    }
    fprintf(f, "\"%s\",%.6g,%.9g,%.0f,%.0f,%d\n", r->arguments, r->step_s, r->memory_B,
            r->clock_MHz, r->power_W, r->steps);
    if (fclose(f) != 0) {
        training_give_up(strerror(errno));
    }
}

/* --- training -----------------------------------------------------------------------------------
 */

static int split(char *text, char **words, int most) {
    int n = 0;
    for (char *save = NULL, *word = strtok_r(text, " ", &save); word != NULL && n < most;
         word = strtok_r(NULL, " ", &save)) {
        words[n++] = word;
    }
    return n;
}

/* The driver's count of this run alone: the machine's own share is there before it. */
static bool train(const options *o, const char *folder, mf_measure_nvml *nvml, row *r) {
    char text[sizeof r->arguments], run[TRAINING_LINE], *words[TRAINING_WORDS];
    const training_window window = {o->warm_s, o->watch_s, STEPS_LEAST};
    mf_measure_state before;
    training_result result = {0};
    snprintf(run, sizeof run, "%s/run", folder);
    training_remove(run);
    mf_measure_nvml_read(nvml, &before);
    memcpy(text, r->arguments, sizeof text);
    int n = split(text, words, TRAINING_WORDS);
    if (!training_watch(training_start(folder, words, n), folder, &window, nvml, &result)) {
        return false;
    }
    r->step_s = result.step_s;
    r->memory_B = (double)result.memory_B - (double)before.memory_B;
    r->clock_MHz = result.clock_MHz;
    r->power_W = result.power_W;
    r->steps = result.steps;
    return true;
}

static bool is_there(const row *rows, int n, const char *arguments) {
    for (int i = 0; i < n; i++) {
        if (strcmp(rows[i].arguments, arguments) == 0) {
            return true;
        }
    }
    return false;
}

static int train_all(const options *o) {
    static row rows[RUNS_MOST];
    char folder[] = "/tmp/bench-runs-XXXXXX", command[TRAINING_LINE];
    const double begun_s = training_now_s();
    const int there = read_file(o->file, rows);
    mf_measure_nvml *nvml = mf_measure_nvml_find(0);
    int failed = 0;
    if (nvml == NULL) {
        printf("no GPU: nothing to train on\n");
        return 0;
    }
    if (mkdtemp(folder) == NULL) {
        training_give_up(strerror(errno));
    }
    training_tokens(folder, VOCABULARY, TOKENS);
    for (int i = 0; i < RUNS && training_now_s() - begun_s < o->seconds; i++) {
        row r = {.steps = 0};
        if ((o->only != NULL && strstr(runs[i], o->only) == NULL) ||
            is_there(rows, there, runs[i])) {
            continue;
        }
        const double at_s = training_now_s();
        snprintf(r.arguments, sizeof r.arguments, "%s", runs[i]);
        if (train(o, folder, nvml, &r)) {
            add_to_file(o->file, &r);
            printf("%8.1f ms %7.2f GB %5.0f MHz %4.0f W %3d steps %5.1f s  %s\n", 1e3 * r.step_s,
                   1e-9 * r.memory_B, r.clock_MHz, r.power_W, r.steps, training_now_s() - at_s,
                   runs[i]);
        } else {
            printf("failed after %.1f s  %s\n", training_now_s() - at_s, runs[i]);
            fflush(stdout);
            snprintf(command, sizeof command, "tail -n 2 '%s/log'", folder);
            failed += system(command) != 0 ? 2 : 1;
        }
        fflush(stdout);
    }
    training_remove(folder);
    return failed > 0;
}

/* --- the table ----------------------------------------------------------------------------------
 */

/* simulate has no word for routing that is forced: its own is balanced. */
static void without(char *text, const char *word) {
    char *at = strstr(text, word);
    if (at != NULL) {
        memmove(at, at + strlen(word), strlen(at + strlen(word)) + 1);
    }
}

static void predict(const char *cluster, row *r) {
    char program[TRAINING_LINE], command[3 * TRAINING_LINE], line[TRAINING_LINE], text[512];
    memcpy(text, r->arguments, sizeof text);
    without(text, " --force-balance");
    training_program(program, sizeof program);
    snprintf(command, sizeof command, "'%s' simulate --json --cluster %s --gpus 1 %s", program,
             cluster, text);
    FILE *f = popen(command, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        double step_s = training_field(line, "step_time_s"),
               memory_B = training_field(line, "peak_memory_B");
        bool own = strncmp(line, "  \"", 3) == 0; /* of the step, not of Megatron's or a stage's */
        r->predicted_s = own && step_s > 0 ? step_s : r->predicted_s;
        r->predicted_B = own && memory_B > 0 ? memory_B : r->predicted_B;
    }
    if (f == NULL || pclose(f) != 0) {
        training_give_up(command);
    }
}

static bool is_held_out(const row *r) {
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
    for (const char *c = r->arguments; *c != '\0'; c++) {
        h = (h ^ (unsigned char)*c) * 0x100000001b3ull;
    }
    return (h ^ h >> 32) % 3 == 0;
}

static double error_of(const row *r) {
    return r->predicted_s / r->step_s - 1.0;
}

typedef struct sums {
    int n;
    double size, bias, worst, memory, memory_worst;
} sums;

static void add(sums *s, const row *r) {
    const double e = error_of(r), m = fabs(r->predicted_B / r->memory_B - 1.0);
    s->n++;
    s->size += fabs(e);
    s->bias += e;
    s->worst = fmax(s->worst, fabs(e));
    s->memory += m;
    s->memory_worst = fmax(s->memory_worst, m);
}

static void tell_sums(const char *name, const sums *s) {
    const double n = s->n > 0 ? s->n : 1;
    printf("| %s | %d | %.1f %% | %+.1f %% | %.1f %% | %.2f %% | %.2f %% |\n", name, s->n,
           100 * s->size / n, 100 * s->bias / n, 100 * s->worst, 100 * s->memory / n,
           100 * s->memory_worst);
}

static bool same_model(const row *a, const row *b) {
    const char *one = strstr(a->arguments, "--model "), *two = strstr(b->arguments, "--model ");
    return one != NULL && two != NULL && strcspn(one + 8, " ") == strcspn(two + 8, " ") &&
           strncmp(one, two, 8 + strcspn(one + 8, " ")) == 0;
}

/* Kendall's tau of the order of steps, over pairs of one model. */
static double find_tau(const row *rows, int n) {
    double agree = 0, pairs = 0;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++) {
            double a = rows[i].step_s - rows[k].step_s;
            double b = rows[i].predicted_s - rows[k].predicted_s;
            if (same_model(&rows[i], &rows[k])) {
                pairs += 1;
                agree += a * b > 0 ? 1 : a * b < 0 ? -1 : 0;
            }
        }
    }
    return pairs > 0 ? agree / pairs : 1;
}

static const char heading[] =
    "# Runs of one GPU, predicted and measured\n\n"
    "`bench_runs FILE` trains each of its runs that FILE lacks, `bench_runs FILE --table CLUSTER` "
    "wrote this file: what `moefold simulate`\nsays of the same options, beside what was measured: "
    "the mean of the steps in three seconds (--watch) that begin 2.5 (--warm) behind the first "
    "step,\nand the "
    "most memory that the driver counted. Tokens are random, routing is a new router's own where "
    "`--force-balance` does not stand,\nlearning rate and auxiliary loss keep it so. A third of "
    "the "
    "runs, by a hash of their options, is held out: no price may be fitted to it.\n\n";

static int tell_table(const options *o) {
    static row rows[RUNS_MOST];
    const int n = read_file(o->file, rows);
    sums all = {0}, held = {0};
    printf("%s", heading);
    printf("| options | held out | measured | predicted | error | memory | predicted | error | "
           "clock | power |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < n; i++) {
        row *r = &rows[i];
        predict(o->table, r);
        add(&all, r);
        if (is_held_out(r)) {
            add(&held, r);
        }
        printf("| `%s` | %s | %.1f ms | %.1f ms | %+.1f %% | %.2f GB | %.2f GB | %+.2f %% | %.0f "
               "MHz | %.0f W |\n",
               r->arguments, is_held_out(r) ? "yes" : "", 1e3 * r->step_s, 1e3 * r->predicted_s,
               100 * error_of(r), 1e-9 * r->memory_B, 1e-9 * r->predicted_B,
               100 * (r->predicted_B / r->memory_B - 1), r->clock_MHz, r->power_W);
    }
    printf("\n| runs | | mean error | bias | worst | memory, mean | worst |\n"
           "|---|---|---|---|---|---|---|\n");
    tell_sums("all", &all);
    tell_sums("held out", &held);
    printf("\nKendall's tau over pairs of one model: %.3f\n", find_tau(rows, n));
    return 0;
}

static options read_options(int argc, char **argv) {
    options o = {.seconds = 1e9, .warm_s = 2.5, .watch_s = 3};
    bool bad = argc < 2 || argc % 2 != 0;
    for (int i = 2; !bad && i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--only") == 0) {
            o.only = value;
        } else if (strcmp(argv[i], "--table") == 0) {
            o.table = value;
        } else if (strcmp(argv[i], "--seconds") == 0) {
            o.seconds = strtod(value, NULL);
        } else if (strcmp(argv[i], "--warm") == 0) {
            o.warm_s = strtod(value, NULL);
        } else if (strcmp(argv[i], "--watch") == 0) {
            o.watch_s = strtod(value, NULL);
        } else {
            bad = true;
        }
    }
    if (bad) {
        training_give_up("bench_runs FILE [--only TEXT] [--seconds S] [--warm S] [--watch S] | "
                         "FILE --table CLUSTER");
    }
    o.file = argv[1];
    return o;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (int i = 0; i < RUNS; i++) {
            printf("%s\n", runs[i]);
        }
        return 0;
    }
    const options o = read_options(argc, argv);
    return o.table != NULL ? tell_table(&o) : train_all(&o);
}
