/* megatron_flags.c - Megatron-LM's flags by our names. Facts: megatron/training/arguments.py at the
 * commit of launch/target.c. */
#include "launch/megatron_flags.h"

#include "launch/words.h"

#include <stdbool.h>
#include <string.h>

static const struct {
    const char *flag, *here;
} table[] = {
    {"tensor-model-parallel-size", "--tp"},
    {"pipeline-model-parallel-size", "--pp"},
    {"context-parallel-size", "--cp"},
    {"expert-model-parallel-size", "--ep"},
    {"expert-tensor-parallel-size", "--etp"},
    {"num-layers-per-virtual-pipeline-stage", "--vpp (chunks a stage, not layers a chunk)"},
    {"num-virtual-stages-per-pipeline-rank", "--vpp"},
    {"pipeline-model-parallel-layout", "--pipeline-layout"},
    {"micro-batch-size", "--micro-batch"},
    {"global-batch-size", "--global-batch"},
    {"seq-length", "--seq"},
    {"bf16", "--precision bf16"},
    {"fp16", "--precision bf16"},
    {"fp8-format", "--precision"},
    {"fp8-recipe", "--precision"},
    {"sequence-parallel", "--tp, which always has it"},
    {"use-distributed-optimizer", "--zero 1 --expert-zero 1"},
    {"data-parallel-sharding-strategy", "--zero"},
    {"recompute-granularity", "--recompute"},
    {"recompute-modules", "--recompute"},
    {"recompute-num-layers", "--recompute-layers"},
    {"fine-grained-activation-offloading", "--offload"},
    {"optimizer-offload-fraction", "--offload-optimizer"},
    {"optimizer-cpu-offload", "--offload-optimizer"},
    {"enable-cuda-graph", "--cuda-graph"},
    {"cuda-graph-impl", "--cuda-graph"},
    {"moe-token-dispatcher-type", "--dispatcher"},
    {"moe-expert-capacity-factor", "--capacity-factor"},
    {"moe-pad-expert-input-to-capacity", "--pad-to-capacity"},
    {"cp-comm-type", "--cp-type"},
    {"overlap-grad-reduce", "--overlap dp"},
    {"overlap-param-gather", "--overlap dp"},
    {"tp-comm-overlap", "--overlap tp"},
    {"overlap-moe-expert-parallel-comm", "--overlap ep --schedule merged"},
    {"num-layers", "--set num_hidden_layers=N"},
    {"hidden-size", "--set hidden_size=N"},
    {"train-iters", "--steps"},
    {"data-path", "--data"},
    {"save", "--out"},
    {"save-interval", "--save-every"},
    {"load", "--resume"},
    {"min-lr", "--lr-min"},
    {"lr-decay-style", "--lr-schedule"},
    {"lr-warmup-iters", "--warmup"},
    {"clip-grad", "--clip"},
    {"moe-aux-loss-coeff", "--aux-coef"},
};
enum { FLAGS = sizeof table / sizeof table[0] };

/* '_' is '-' to Megatron as well. */
static bool same(const char *a, const char *b) {
    for (; *a != '\0' && *b != '\0'; a++, b++) {
        if ((*a == '_' ? '-' : *a) != *b) {
            return false;
        }
    }
    return *a == *b;
}

const char *mf_megatron_flag_here(const char *flag) {
    for (int i = 0; i < FLAGS; i++) {
        if (same(flag, table[i].flag)) {
            return table[i].here;
        }
    }
    return mf_word_of_flag(flag, strlen(flag)) != NULL ? "" : NULL;
}

/* What nothing here is called like, by all programs that have it. */
static const struct {
    const char *flag, *why;
} derived[] = {
    {"dp", "DP follows from --gpus and the degrees"},
    {"dp-size", "DP follows from --gpus and the degrees"},
    {"data-parallel-size", "DP follows from --gpus and the degrees"},
    {"data-parallel-degree", "DP follows from --gpus and the degrees"},
    {"data-parallel-replicate-degree", "DP follows from --gpus and the degrees"},
    {"data-parallel-shard-degree",
     "DP follows from --gpus and the degrees; --zero says what it shards"},
    {"edp", "EDP follows from --gpus, --pp, --ep and --etp"},
    {"gradient-accumulation-steps", "it follows from --global-batch, --micro-batch and DP"},
    {"gradient-accumulation", "it follows from --global-batch, --micro-batch and DP"},
    {"num-microbatches", "it follows from --global-batch, --micro-batch and DP"},
    {"num-micro-batches", "it follows from --global-batch, --micro-batch and DP"},
    {"world-size", "--gpus has all GPUs of the job"},
    {"nnodes", "--gpus has all GPUs of the job, and the cluster how many a node has"},
    {"num-nodes", "--gpus has all GPUs of the job, and the cluster how many a node has"},
    {"nodes", "--gpus has all GPUs of the job, and the cluster how many a node has"},
    {"nproc-per-node", "--gpus has all GPUs of the job, and the cluster how many a node has"},
    {"gpus-per-node", "--gpus has all GPUs of the job, and the cluster how many a node has"},
    {"num-gpus-per-node", "--gpus has all GPUs of the job, and the cluster how many a node has"},
    {"devices-per-node", "--gpus has all GPUs of the job, and the cluster how many a node has"},
    {"sequence-parallel-size", "--tp always has sequence parallelism; --cp splits samples"},
    {"max-position-embeddings",
     "--seq is the length of a sample, --set changes the model's config.json"},
};

mf_status mf_megatron_flag_refuse(const char *option, mf_err *e) {
    const char *flag = option + strspn(option, "-");
    for (size_t i = 0; i < sizeof derived / sizeof derived[0]; i++) {
        if (same(flag, derived[i].flag)) {
            return mf_err_set(e, MF_USAGE, "unknown option %s: %s", option, derived[i].why);
        }
    }
    const char *here = mf_megatron_flag_here(flag);
    if (here == NULL) {
        return MF_OK;
    }
    return here[0] != '\0'
               ? mf_err_set(e, MF_USAGE, "%s is Megatron's name: here it is %s", option, here)
               : mf_err_set(
                     e, MF_USAGE,
                     "%s is a flag of Megatron's: `moefold import` and `tune` read whole jobs",
                     option);
}

const char *mf_megatron_flag_at(size_t i, const char **here) {
    *here = i < FLAGS ? table[i].here : NULL;
    return i < FLAGS ? table[i].flag : NULL;
}
