/* bench_runs.c - what is predicted beside what is measured: training runs that differ in model,
 * depth, micro-batch, sequence, recomputation, what waits in host memory, graphs and routing (of
 * one GPU), or in how two or four GPUs share the work (--gpus 2, 4); and of one GPU a run of each
 * of 24 other models, which no price was ever fitted to (--runs models).
 *
 *     bench_runs FILE [--gpus N] [--only TEXT] [--seconds S] [--warm S] [--watch S] [--keep DIR]
 *     bench_runs FILE [--gpus N] --table CLUSTER
 *     bench_runs --list [--gpus N]
 *     --runs models instead of --gpus N
 *
 * Runs that are not in FILE yet are trained and added, one line each: a run that was cut off, or
 * that --seconds leaves out, is done by the next call. Each runs for --warm [2.5] seconds from its
 * first step and is measured over the next --watch [3] seconds, five steps at least. --keep: what
 * each run wrote of itself goes to DIR/NNN, times of its first steps' ops among it. --table
 * predicts each run of FILE by `moefold simulate` on CLUSTER, the machine that FILE was measured
 * on, and says how far the predictions are off. A third of the runs, by a hash of their options, is
 * held out: no price may be fitted to it.
 */
#include "bench/gpu/runs.h"
#include "core/base/clock.h"

#include <math.h>

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

    /* uneven routing: experts of one GPU get more and fewer rows of the same products */
    QWEN3 "--micro-batch 4 --global-batch 16 --seq 4096 --force-routing zipf:0.5" STEP,
    OLMOE "--micro-batch 4 --global-batch 16 --seq 4096 --force-routing zipf:1" STEP,
    DEEPSEEK "--set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq 4096 "
             "--force-routing zipf:0.75" STEP,
    MIXTRAL "--micro-batch 2 --global-batch 8 --seq 4096 --force-routing zipf:0.5" STEP,
    GPT_OSS "--micro-batch 4 --global-batch 8 --seq 4096 --recompute selective "
            "--force-routing zipf:1" STEP,
    /* copies to the host */
    QWEN3 "--micro-batch 4 --global-batch 16 --seq 4096 --offload-optimizer 1" STEP,
    OLMOE "--micro-batch 4 --global-batch 16 --seq 4096 --offload-optimizer 0.5" STEP,
    LLAMA "--micro-batch 2 --global-batch 8 --seq 4096 --offload-optimizer 0.25" STEP,
    MIXTRAL "--micro-batch 2 --global-batch 8 --seq 4096 --offload expert_fc1" STEP,
    DEEPSEEK "--set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq 4096 --offload "
             "input" STEP,
    GPT_OSS "--micro-batch 2 --global-batch 8 --seq 4096 --offload expert_in" STEP,
};
/* What two GPUs may share: experts, by either dispatcher, matrices, stages, samples, tokens. */
static const char *const runs_of_two[] = {
#define TWO "--gpus 2 "
#define SHALLOW "--set num_hidden_layers=2 "
    TWO QWEN3 "--ep 2 --micro-batch 2 --global-batch 8 --seq 4096 --force-balance" STEP,
    TWO QWEN3 "--ep 2 --dispatcher alltoall --micro-batch 2 --global-batch 8 --seq 4096 "
              "--force-balance" STEP,
    TWO MIXTRAL "--tp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO OLMOE "--micro-batch 2 --global-batch 8 --seq 4096" STEP,
    TWO MIXTRAL "--pp 2 --micro-batch 1 --global-batch 8 --seq 4096" STEP,
    TWO OLMOE "--zero 3 --expert-zero 3 --micro-batch 2 --global-batch 8 --seq 4096" STEP,
    TWO QWEN3 "--cp 2 --micro-batch 1 --global-batch 2 --seq 8192" STEP,
    TWO DEEPSEEK SHALLOW "--ep 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO GPT_OSS "--ep 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO LLAMA "--zero 3 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO MIXTRAL "--ep 2 --micro-batch 1 --global-batch 4 --seq 4096 --force-balance" STEP,
    TWO GPT_OSS "--tp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO DEEPSEEK SHALLOW "--pp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO OLMOE "--tp 2 --ep 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO QWEN3 "--pp 2 --vpp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO MIXTRAL "--cp 2 --micro-batch 1 --global-batch 2 --seq 8192" STEP,
    TWO DEEPSEEK SHALLOW "--tp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO DEEPSEEK SHALLOW "--ep 2 --dispatcher alltoall --micro-batch 1 --global-batch 4 --seq "
                         "4096" STEP,
    TWO QWEN3 "--ep 2 --schedule merged --overlap ep,dp,pp --micro-batch 2 --global-batch 8 "
              "--seq 4096 --force-balance" STEP,

    /* the same jobs shared otherwise, so that their order says something */
    TWO LLAMA "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO MIXTRAL "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO QWEN3 "--ep 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO OLMOE "--ep 2 --micro-batch 2 --global-batch 8 --seq 4096" STEP,
    TWO GPT_OSS "--pp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO LLAMA "--tp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO MIXTRAL "--tp 2 --ep 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO QWEN3 "--tp 2 --ep 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO OLMOE "--pp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO GPT_OSS "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO LLAMA "--pp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO MIXTRAL "--pp 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO QWEN3 "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    /* few bubbles, as in long pipelines with many micro-batches: a GPU's power cap is one on
     * average over some tens of milliseconds (bench_cap), so that short bubbles count */
    TWO LLAMA "--pp 2 --micro-batch 1 --global-batch 24 --seq 4096" STEP,
    TWO OLMOE "--pp 2 --micro-batch 1 --global-batch 24 --seq 4096" STEP,
    TWO QWEN3 "--pp 2 --vpp 2 --micro-batch 1 --global-batch 24 --seq 4096" STEP,
    TWO GPT_OSS "--pp 2 --micro-batch 1 --global-batch 24 --seq 4096" STEP,
    TWO DEEPSEEK SHALLOW "--pp 2 --micro-batch 1 --global-batch 24 --seq 4096" STEP,
    /* uneven routing: one rank's experts get more rows than the other's */
    TWO QWEN3 "--ep 2 --micro-batch 2 --global-batch 8 --seq 4096 --token-headroom 2 "
              "--force-routing zipf:0.5" STEP,
    TWO QWEN3 "--ep 2 --micro-batch 2 --global-batch 8 --seq 4096 --token-headroom 2 "
              "--force-routing zipf:1" STEP,
    TWO MIXTRAL "--ep 2 --micro-batch 1 --global-batch 4 --seq 4096 --token-headroom 2 "
                "--force-routing zipf:0.5" STEP,
    TWO DEEPSEEK SHALLOW "--ep 2 --micro-batch 1 --global-batch 4 --seq 4096 --token-headroom 2 "
                         "--force-routing zipf:0.75" STEP,
    TWO OLMOE "--tp 2 --ep 2 --micro-batch 1 --global-batch 4 --seq 4096 --token-headroom 2 "
              "--force-routing zipf:0.5" STEP,
    TWO GPT_OSS "--ep 2 --dispatcher alltoall --micro-batch 1 --global-batch 4 --seq 4096 "
                "--token-headroom 2 --force-routing zipf:1" STEP,
};

static const char *const runs_of_four[] = {
#define FOUR "--gpus 4 "
    FOUR QWEN3 "--ep 4 --micro-batch 2 --global-batch 16 --seq 4096 --force-balance" STEP,
    FOUR QWEN3 "--ep 4 --dispatcher alltoall --micro-batch 2 --global-batch 16 --seq 4096 "
               "--force-balance" STEP,
    FOUR MIXTRAL "--tp 2 --ep 4 --micro-batch 1 --global-batch 8 --seq 4096 --force-balance" STEP,
    FOUR DEEPSEEK "--set num_hidden_layers=3 --ep 4 --micro-batch 1 --global-batch 16 --seq 4096 "
                  "--force-balance" STEP,
    FOUR LLAMA "--zero 3 --micro-batch 1 --global-batch 8 --seq 4096" STEP,
    FOUR MIXTRAL
    "--set num_hidden_layers=4 --pp 4 --micro-batch 1 --global-batch 8 --seq 4096" STEP,
    FOUR OLMOE "--pp 2 --ep 2 --micro-batch 2 --global-batch 16 --seq 4096" STEP,
    FOUR GPT_OSS "--tp 2 --ep 4 --micro-batch 1 --global-batch 8 --seq 4096" STEP,
    FOUR QWEN3 "--cp 2 --ep 4 --micro-batch 1 --global-batch 8 --seq 8192" STEP,
    FOUR MIXTRAL "--tp 2 --etp 2 --ep 2 --micro-batch 1 --global-batch 8 --seq 4096" STEP,
};
/* Of these models nothing was fitted and no other run here was made. Experts are left out where the
 * states of a layer's would not fit. */
static const char *const runs_of_models[] = {
    "--model ling-mini-2.0 --set num_hidden_layers=6 --micro-batch 2 --global-batch 8 --seq "
    "4096" STEP,
    "--model deepseek-v2-lite --set num_hidden_layers=8 --micro-batch 2 --global-batch 8 --seq "
    "4096" STEP,
    "--model moonlight-16b-a3b --set num_hidden_layers=6 --micro-batch 4 --global-batch 16 --seq "
    "4096" STEP,
    "--model dots.llm1 --set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq 4096" STEP,
    "--model ernie-4.5-21b-a3b --set num_hidden_layers=5 --micro-batch 2 --global-batch 8 --seq "
    "4096" STEP,
    "--model glm-4.5 --set num_hidden_layers=2 --set first_k_dense_replace=1 --set "
    "n_routed_experts=32 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    "--model gpt-oss-120b --set num_hidden_layers=2 --set num_local_experts=64 --micro-batch 2 "
    "--global-batch 8 --seq 4096" STEP,
    "--model granite-3.1-1b-a400m --micro-batch 4 --global-batch 16 --seq 4096" STEP,
    "--model hunyuan-a13b --set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq "
    "4096" STEP,
    "--model kimi-k2 --set num_hidden_layers=2 --set n_routed_experts=48 --micro-batch 1 "
    "--global-batch 4 --seq 4096" STEP,
    "--model llama2-7b --set num_hidden_layers=12 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    "--model llama4-maverick --set num_hidden_layers=2 --set num_local_experts=16 --micro-batch 1 "
    "--global-batch 4 --seq 4096" STEP,
    "--model mimo-7b --set num_hidden_layers=8 --micro-batch 1 --global-batch 4 --seq 8192" STEP,
    "--model minimax-m2.5 --set num_hidden_layers=2 --set num_local_experts=64 --micro-batch 2 "
    "--global-batch 8 --seq 4096" STEP,
    "--model mixtral-8x22b --set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq "
    "4096" STEP,
    "--model phi-3.5-moe --set num_hidden_layers=3 --micro-batch 2 --global-batch 8 --seq "
    "4096" STEP,
    "--model qwen1.5-moe-a2.7b --set num_hidden_layers=8 --micro-batch 2 --global-batch 8 --seq "
    "4096" STEP,
    "--model qwen2-57b-a14b --set num_hidden_layers=2 --micro-batch 2 --global-batch 8 --seq "
    "4096" STEP,
    "--model qwen2.5-7b --set num_hidden_layers=8 --micro-batch 2 --global-batch 8 --seq 4096" STEP,
    "--model qwen3-8b --set num_hidden_layers=8 --micro-batch 1 --global-batch 4 --seq 16384" STEP,
    "--model qwen3-235b-a22b --set num_hidden_layers=2 --micro-batch 1 --global-batch 4 --seq "
    "4096" STEP,
    "--model step-3.5-flash --set num_hidden_layers=2 --micro-batch 1 --global-batch 4 --seq "
    "4096" STEP,
    "--model mimo-v2-flash --set num_hidden_layers=2 --set n_routed_experts=64 --micro-batch 1 "
    "--global-batch 4 --seq 4096" STEP,
    "--model hy3-preview --set num_hidden_layers=2 --set num_experts=64 --micro-batch 1 "
    "--global-batch 4 --seq 4096" STEP,
};

static const struct set {
    int gpus, count;
    const char *const *run;
    bool held_out; /* all of them */
} sets[] = {
    {1, sizeof runs / sizeof runs[0], runs, false},
    {2, sizeof runs_of_two / sizeof runs_of_two[0], runs_of_two, false},
    {4, sizeof runs_of_four / sizeof runs_of_four[0], runs_of_four, false},
};
static const struct set models = {1, sizeof runs_of_models / sizeof runs_of_models[0],
                                  runs_of_models, true};

typedef struct options {
    const char *file, *only, *table;
    const struct set *set;
    run_times times;
} options;

static int train_all(const options *o) {
    static run_row rows[RUNS_MOST];
    char folder[] = "/tmp/bench-runs-XXXXXX";
    const double begun_s = mf_clock_s();
    const int there = runs_read(o->file, rows);
    training_gpus gpus;
    int failed = 0;
    if (!training_gpus_find(o->set->gpus, &gpus)) {
        printf("%d GPUs, not %d: nothing to train on\n", gpus.count, o->set->gpus);
        return 0;
    }
    if (mkdtemp(folder) == NULL) {
        training_give_up(strerror(errno));
    }
    training_tokens(folder, RUNS_VOCABULARY, RUNS_TOKENS);
    for (int i = 0; i < o->set->count && mf_clock_s() - begun_s < o->times.seconds; i++) {
        const char *run = o->set->run[i];
        if ((o->only == NULL || strstr(run, o->only) != NULL) &&
            runs_find(rows, there, run) == NULL) {
            failed += !runs_train(o->file, &o->times, folder, &gpus, run, run);
        }
    }
    training_remove(folder);
    return failed > 0;
}

/* --- the table ----------------------------------------------------------------------------------
 */

/* What a row has at its end where it was measured before kernels of our own computed the gradients
 * of MLA's attention: its prediction is for that program. */
#define OLDER_PROGRAM " --traits general_attention"

static void without(char *text, const char *word) {
    char *at = strstr(text, word);
    if (at != NULL) {
        memmove(at, at + strlen(word), strlen(at + strlen(word)) + 1);
    }
}

/* simulate plays whatever routing it is given, and by itself a balanced one. */
static void as_simulate_has_it(char *text) {
    without(text, " --force-balance");
    char *at = strstr(text, " --force-routing");
    if (at != NULL) {
        memmove(at + 3, at + 9, strlen(at + 9) + 1);
    }
}

static void take(const char *line, const char *key, double *out) {
    double value = runs_own_field(line, key);
    *out = value > 0 ? value : *out;
}

/* A file for --routing, "" where routing says nothing; the caller removes it. */
static void write_routing(const char *routing, char path[RUNS_TEXT]) {
    path[0] = '\0';
    if (routing[0] == '\0') {
        return;
    }
    snprintf(path, RUNS_TEXT, "/tmp/bench-runs-routing-XXXXXX");
    const int file = mkstemp(path);
    FILE *f = file >= 0 ? fdopen(file, "w") : NULL;
    for (const char *c = routing; f != NULL && *c != '\0'; c++) {
        fputc(*c == ' ' ? ',' : *c == ';' ? '\n' : *c, f);
    }
    if (f == NULL || fclose(f) != 0) {
        training_give_up(path);
    }
}

static void predict(const options *o, run_row *r) {
    char program[TRAINING_LINE], command[3 * TRAINING_LINE], line[TRAINING_LINE], text[RUNS_TEXT];
    char routing[RUNS_TEXT], headroom[40] = "";
    write_routing(r->routing, routing);
    if (r->headroom > 0) {
        snprintf(headroom, sizeof headroom, " --token-headroom %.3g", r->headroom);
    }
    snprintf(text, sizeof text, "%s", r->arguments);
    as_simulate_has_it(text);
    training_program(program, sizeof program);
    snprintf(command, sizeof command, "'%s' simulate --json --cluster %s %s%s%s%s%s", program,
             o->table, o->set->gpus == 1 ? "--gpus 1 " : "", text, headroom,
             routing[0] != '\0' ? " --routing " : "", routing);
    FILE *f = popen(command, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        take(line, "step_time_s", &r->predicted_s);
        take(line, "peak_memory_B", &r->predicted_B);
        take(line, "clock_MHz", &r->predicted_MHz);
        take(line, "power_W", &r->predicted_W);
    }
    if (f == NULL || pclose(f) != 0) {
        training_give_up(command);
    }
    if (routing[0] != '\0') {
        remove(routing);
    }
}

/* By the options; a run stays where it was when --traits says that an older program was measured.
 */
static bool is_held_out(const options *o, const run_row *r) {
    char text[RUNS_TEXT];
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
    memcpy(text, r->arguments, sizeof text);
    without(text, OLDER_PROGRAM);
    for (const char *c = text; *c != '\0'; c++) {
        h = (h ^ (unsigned char)*c) * 0x100000001b3ull;
    }
    return o->set->held_out || (h ^ h >> 32) % 3 == 0;
}

/* Of the two kinds of --offload. */
static bool copies_to_the_host(const run_row *r) {
    return strstr(r->arguments, "--offload") != NULL;
}

static bool same_model(const run_row *a, const run_row *b) {
    const char *one = strstr(a->arguments, "--model "), *two = strstr(b->arguments, "--model ");
    return one != NULL && two != NULL && strcspn(one + 8, " ") == strcspn(two + 8, " ") &&
           strncmp(one, two, 8 + strcspn(one + 8, " ")) == 0;
}

/* Which runs a line of the summary is about: -1 either. */
typedef struct choice {
    const char *name;
    int held_out, host_copies;
} choice;

static bool is_chosen(const choice *c, const run_row *r) {
    return (c->held_out < 0 || r->held_out == (c->held_out > 0)) &&
           (c->host_copies < 0 || copies_to_the_host(r) == (c->host_copies > 0));
}

/* Do they differ in nothing that a prediction reads? Then there is no order to predict. */
static bool predicts_the_same(const run_row *a, const run_row *b) {
    char one[RUNS_TEXT], two[RUNS_TEXT];
    snprintf(one, sizeof one, "%s", a->arguments);
    snprintf(two, sizeof two, "%s", b->arguments);
    without(one, " --force-balance");
    without(two, " --force-balance");
    return strcmp(one, two) == 0;
}

/* Kendall's tau of the order of steps, over pairs of one model that were measured that share of the
 * shorter step apart, or more. Both of a pair are chosen. */
static double find_tau(const choice *c, const run_row *rows, int n, double apart, int *pairs) {
    double agree = 0;
    *pairs = 0;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++) {
            double a = rows[i].step_s - rows[k].step_s;
            double b = rows[i].predicted_s - rows[k].predicted_s;
            if (fabs(a) >= apart * fmin(rows[i].step_s, rows[k].step_s) &&
                same_model(&rows[i], &rows[k]) && !predicts_the_same(&rows[i], &rows[k]) &&
                is_chosen(c, &rows[i]) && is_chosen(c, &rows[k])) {
                ++*pairs;
                agree += a * b > 0 ? 1 : a * b < 0 ? -1 : 0;
            }
        }
    }
    return *pairs > 0 ? agree / *pairs : 1;
}

typedef struct sums {
    double size, bias, worst;
} sums;

static void add(sums *s, double predicted, double measured) {
    const double e = predicted / measured - 1;
    s->size += 100 * fabs(e);
    s->bias += 100 * e;
    s->worst = fmax(s->worst, 100 * fabs(e));
}

static void tell_choice(const choice *c, const run_row *rows, int n) {
    sums step = {0}, memory = {0}, clock = {0};
    int count = 0, pairs = 0, told_apart = 0;
    for (int i = 0; i < n; i++) {
        const run_row *r = &rows[i];
        if (is_chosen(c, r)) {
            count++;
            add(&step, r->predicted_s, r->step_s);
            add(&memory, r->predicted_B, r->memory_B);
            add(&clock, r->predicted_MHz, r->clock_MHz);
        }
    }
    if (count == 0) {
        return;
    }
    const double tau = find_tau(c, rows, n, 0, &pairs);
    const double apart = find_tau(c, rows, n, RUNS_APART, &told_apart);
    printf("| %s | %d | %.1f %% | %+.1f %% | %.1f %% | %.2f %% | %.2f %% | %.1f %% | %.1f %% | "
           "%.3f of %d | %.3f of %d |\n",
           c->name, count, step.size / count, step.bias / count, step.worst, memory.size / count,
           memory.worst, clock.size / count, clock.worst, tau, pairs, apart, told_apart);
}

static void tell_heading(const options *o) {
    const int gpus = o->set->gpus;
    char option[24] = "";
    if (gpus > 1 || o->set == &models) {
        snprintf(option, sizeof option, gpus > 1 ? " --gpus %d" : " --runs models", gpus);
    }
    printf("# Runs of %s (%s), predicted and measured\n\n",
           o->set == &models ? "other models"
           : gpus == 1       ? "one GPU"
           : gpus == 2       ? "two GPUs"
                             : "four GPUs",
           o->table);
    printf("`bench_runs FILE%s` trains each of its runs that FILE lacks, `bench_runs FILE%s "
           "--table CLUSTER` wrote this file: what `moefold simulate`\nsays of the same options, "
           "beside what was measured: the mean of the steps in three seconds (--watch) that begin "
           "2.5 (--warm) behind the first step,\nthe most memory that the driver counted%s, and "
           "the mean clock and power meanwhile. Tokens are random, routing is a new router's own "
           "where `--force-balance` does not stand,\nlearning rate and auxiliary loss keep it so; "
           "with `--ep` the prediction is for the rows that the run's experts got, where FILE has "
           "them (routing.csv), and for the room that the run went on with when they asked for "
           "more (`--token-headroom`, as its warning says). "
           "%s\n\n",
           option, option, gpus == 1 ? "" : " on the fullest GPU",
           o->set->held_out
               ? "No run of these models was ever used to fit a price."
               : "A third of the runs, by a hash of their options, is held out: no price may be "
                 "fitted to it.");
}

static int tell_table(const options *o) {
    static const choice choices[] = {
        {"all", -1, -1},
        {"all, without copies to the host", -1, 0},
        {"fitted, without copies to the host", 0, 0},
        {"held out", 1, -1},
        {"held out, without copies to the host", 1, 0},
        {"with copies to the host", -1, 1},
    };
    static run_row rows[RUNS_MOST];
    const int n = runs_read(o->file, rows);
    tell_heading(o);
    printf("| options | held out | measured | predicted | error | memory | predicted | error | "
           "clock | predicted | error | power | predicted "
           "|\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < n; i++) {
        run_row *r = &rows[i];
        predict(o, r);
        r->held_out = is_held_out(o, r);
        char room[48] = "";
        if (r->headroom > 0) {
            snprintf(room, sizeof room, ", went on with headroom %.3g", r->headroom);
        }
        printf("| `%s`%s | %s | %.1f ms | %.1f ms | %+.1f %% | %.2f GB | %.2f GB | %+.2f %% | %.0f "
               "MHz | %.0f MHz | %+.1f %% | %.0f W | %.0f W |\n",
               r->arguments, room, r->held_out ? "yes" : "", 1e3 * r->step_s, 1e3 * r->predicted_s,
               100 * (r->predicted_s / r->step_s - 1), 1e-9 * r->memory_B, 1e-9 * r->predicted_B,
               100 * (r->predicted_B / r->memory_B - 1), r->clock_MHz, r->predicted_MHz,
               100 * (r->predicted_MHz / r->clock_MHz - 1), r->power_W, r->predicted_W);
    }
    printf("\n| runs | | mean error | bias | worst | memory, mean | worst | clock, mean | worst | "
           "order of steps: Kendall's tau over pairs of one model that differ in more than "
           "`--force-balance` | of those %g %% apart or more |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|\n",
           100 * RUNS_APART);
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        tell_choice(&choices[i], rows, n);
    }
    return 0;
}

static const struct set *find_set(const char *gpus) {
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (sets[i].gpus == atoi(gpus)) {
            return &sets[i];
        }
    }
    training_give_up("--gpus: there are runs of 1, 2 and 4");
    return NULL;
}

static options read_options(int argc, char **argv) {
    options o = {.set = &sets[0], .times = {.warm_s = 2.5, .watch_s = 3, .seconds = 1e9}};
    bool bad = argc < 2 || argc % 2 != 0;
    for (int i = 2; !bad && i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--only") == 0) {
            o.only = value;
        } else if (strcmp(argv[i], "--table") == 0) {
            o.table = value;
        } else if (strcmp(argv[i], "--gpus") == 0) {
            o.set = find_set(value);
        } else if (strcmp(argv[i], "--runs") == 0 && strcmp(value, "models") == 0) {
            o.set = &models;
        } else {
            bad = !runs_take_option(&o.times, argv[i], value);
        }
    }
    if (bad) {
        training_give_up("bench_runs FILE [--gpus N] [--only TEXT] [--seconds S] [--warm S] "
                         "[--watch S] [--keep DIR] | FILE [--gpus N] --table CLUSTER | --list "
                         "[--gpus N]; --runs "
                         "models instead of --gpus N");
    }
    o.file = argv[1];
    return o;
}

int main(int argc, char **argv) {
    const options o = read_options(argc, argv);
    if (strcmp(o.file, "--list") == 0) {
        for (int i = 0; i < o.set->count; i++) {
            printf("%s\n", o.set->run[i]);
        }
        return 0;
    }
    return o.table != NULL ? tell_table(&o) : train_all(&o);
}
