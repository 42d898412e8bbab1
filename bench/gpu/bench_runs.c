/* bench_runs.c - what is predicted beside what is measured: training runs that differ in model,
 * depth, micro-batch, sequence, recomputation, what waits in host memory, graphs and routing (of
 * one GPU), or in how two or four GPUs share the work (--gpus 2, 4); and of other models, which no
 * price was ever fitted to, a run of each of 24 on one GPU and 22 runs of 20 on two (--runs
 * models).
 *
 *     bench_runs FILE [--gpus N] [--only TEXT] [--seconds S] [--warm S] [--watch S] [--keep DIR]
 *     bench_runs FILE [--gpus N] --table CLUSTER
 *     bench_runs --list [--gpus N]
 *     --runs models: the other models, --gpus 1 or 2
 *
 * Runs that are not in FILE yet are trained and added, one line each: a run that was interrupted,
 * or that --seconds leaves out, is done by the next call. Each runs for --warm [2.5] seconds from
 * its first step and is measured over the next --watch [3] seconds, five steps at least. --keep:
 * what each run wrote of itself goes to DIR/NNN, times of its first steps' ops among it. --table
 * predicts each run of FILE by `moefold simulate` on CLUSTER, the machine that FILE was measured
 * on, and says how far the predictions are off (`make runs-accuracy` does so for the files here). A
 * third of the runs, by a hash of their options, is
 * held out: no price may be fitted to it.
 */
#include "bench/gpu/runs.h"
#include "bench/gpu/runs_table.h"
#include "core/base/clock.h"

#include <math.h>

/* Models in turns, so that a file that was interrupted has some of each. */
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
    /* copies to one host from both */
    TWO QWEN3 "--ep 2 --micro-batch 2 --global-batch 8 --seq 4096 --offload-optimizer 1" STEP,
    TWO MIXTRAL "--ep 2 --micro-batch 1 --global-batch 4 --seq 4096 --offload-optimizer 0.5" STEP,
    TWO OLMOE "--micro-batch 2 --global-batch 8 --seq 4096 --offload-optimizer 0.5" STEP,
    TWO MIXTRAL "--ep 2 --micro-batch 1 --global-batch 4 --seq 4096 --force-balance --offload "
                "expert_fc1" STEP,
    TWO LLAMA "--micro-batch 1 --global-batch 8 --seq 8192 --offload input,qkv" STEP,
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

/* Of the same models on two GPUs, every degree: all of it was predicted before any was run. */
static const char *const runs_of_models_on_two[] = {
    TWO "--model ling-mini-2.0 --set num_hidden_layers=6 --ep 2 --micro-batch 2 --global-batch 8 "
        "--seq 4096" STEP,
    TWO "--model deepseek-v2-lite --set num_hidden_layers=8 --tp 2 --ep 2 --micro-batch 2 "
        "--global-batch 8 --seq 4096" STEP,
    TWO "--model moonlight-16b-a3b --set num_hidden_layers=6 --pp 2 --micro-batch 2 --global-batch "
        "16 --seq 4096" STEP,
    TWO "--model dots.llm1 --set num_hidden_layers=2 --ep 2 --micro-batch 2 --global-batch 8 --seq "
        "4096" STEP,
    TWO "--model ernie-4.5-21b-a3b --set num_hidden_layers=5 --ep 2 --micro-batch 2 --global-batch "
        "8 --seq 4096" STEP,
    TWO "--model glm-4.5 --set num_hidden_layers=2 --set first_k_dense_replace=1 --set "
        "n_routed_experts=32 --ep 2 --micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO "--model gpt-oss-120b --set num_hidden_layers=2 --ep 2 --micro-batch 2 --global-batch 8 "
        "--seq 4096" STEP,
    TWO "--model granite-3.1-1b-a400m --micro-batch 4 --global-batch 32 --seq 4096" STEP,
    TWO "--model hunyuan-a13b --set num_hidden_layers=4 --pp 2 --micro-batch 1 --global-batch 8 "
        "--seq 4096" STEP,
    TWO "--model kimi-k2 --set num_hidden_layers=2 --set n_routed_experts=96 --ep 2 --micro-batch "
        "1 --global-batch 4 --seq 4096" STEP,
    TWO "--model llama2-7b --set num_hidden_layers=12 --tp 2 --micro-batch 1 --global-batch 4 "
        "--seq 4096" STEP,
    TWO "--model mimo-7b --set num_hidden_layers=8 --cp 2 --micro-batch 1 --global-batch 2 --seq "
        "16384" STEP,
    TWO "--model minimax-m2.5 --set num_hidden_layers=2 --ep 2 --micro-batch 2 --global-batch 8 "
        "--seq 4096" STEP,
    TWO "--model mixtral-8x22b --set num_hidden_layers=2 --tp 2 --ep 2 --micro-batch 1 "
        "--global-batch 4 --seq 4096" STEP,
    TWO "--model phi-3.5-moe --set num_hidden_layers=3 --ep 2 --micro-batch 2 --global-batch 8 "
        "--seq 4096" STEP,
    TWO "--model qwen1.5-moe-a2.7b --set num_hidden_layers=8 --tp 2 --micro-batch 2 --global-batch "
        "8 --seq 4096" STEP,
    TWO "--model qwen2.5-7b --set num_hidden_layers=8 --zero 3 --micro-batch 2 --global-batch 8 "
        "--seq 4096" STEP,
    TWO "--model qwen3-235b-a22b --set num_hidden_layers=2 --ep 2 --dispatcher alltoall "
        "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO "--model mimo-v2-flash --set num_hidden_layers=2 --set n_routed_experts=64 --ep 2 "
        "--micro-batch 1 --global-batch 4 --seq 4096" STEP,
    TWO "--model hy3-preview --set num_hidden_layers=2 --set num_experts=64 --ep 2 --micro-batch 1 "
        "--global-batch 4 --seq 4096" STEP,
    /* stages with copies of a table: an MTP depth's, a tied head's */
    TWO "--model mimo-7b --set num_hidden_layers=8 --pp 2 --micro-batch 1 --global-batch 8 --seq "
        "4096" STEP,
    TWO "--model granite-3.1-1b-a400m --pp 2 --micro-batch 2 --global-batch 16 --seq 4096" STEP,
};

static const struct set {
    bool models; /* that no price was fitted to */
    int gpus, count;
    const char *const *run;
} sets[] = {
    {false, 1, sizeof runs / sizeof runs[0], runs},
    {false, 2, sizeof runs_of_two / sizeof runs_of_two[0], runs_of_two},
    {false, 4, sizeof runs_of_four / sizeof runs_of_four[0], runs_of_four},
    {true, 1, sizeof runs_of_models / sizeof runs_of_models[0], runs_of_models},
    {true, 2, sizeof runs_of_models_on_two / sizeof runs_of_models_on_two[0],
     runs_of_models_on_two},
};

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

static const struct set *find_set(bool models, const char *gpus) {
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (sets[i].models == models && sets[i].gpus == atoi(gpus)) {
            return &sets[i];
        }
    }
    training_give_up("--gpus: there are runs of 1, 2 and 4, of other models of 1 and 2");
    return NULL;
}

static options read_options(int argc, char **argv) {
    const char *gpus = "1";
    bool models = false;
    options o = {.times = {.warm_s = 2.5, .watch_s = 3, .seconds = 1e9}};
    bool bad = argc < 2 || argc % 2 != 0;
    for (int i = 2; !bad && i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--only") == 0) {
            o.only = value;
        } else if (strcmp(argv[i], "--table") == 0) {
            o.table = value;
        } else if (strcmp(argv[i], "--gpus") == 0) {
            gpus = value;
        } else if (strcmp(argv[i], "--runs") == 0 && strcmp(value, "models") == 0) {
            models = true;
        } else {
            bad = !runs_take_option(&o.times, argv[i], value);
        }
    }
    if (bad) {
        training_give_up("bench_runs FILE [--gpus N] [--only TEXT] [--seconds S] [--warm S] "
                         "[--watch S] [--keep DIR] | FILE [--gpus N] --table CLUSTER | --list "
                         "[--gpus N]; --runs "
                         "models: other models, of one or two GPUs");
    }
    o.set = find_set(models, gpus);
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
    if (o.table != NULL) {
        static run_row rows[RUNS_MOST];
        char program[TRAINING_LINE];
        training_program(program, sizeof program);
        const runs_asked asked = {.program = program,
                                  .file = o.file,
                                  .cluster = o.table,
                                  .gpus = o.set->gpus,
                                  .models = o.set->models};
        runs_tell_page(stdout, &asked, rows, runs_predict_all(&asked, rows));
        return 0;
    }
    return train_all(&o);
}
