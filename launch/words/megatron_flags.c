/* megatron_flags.c - Megatron-LM's flags by our names. Facts: megatron/training/arguments.py at the
 * commit of launch/target/target.c. */
#include "launch/words/megatron_flags.h"

#include "launch/words/words.h"

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

/* What nothing here is called like, by all programs that have it: why, and for commands without an
 * option that this names the same without it (NULL: there is no more to say). */
#define FOLLOWS "DP follows from --gpus and the degrees"
#define FOLLOWS_PLAIN "DP follows from the number of GPUs and the degrees"
#define STEPS "it follows from --global-batch, --micro-batch and DP"
#define STEPS_PLAIN "it follows from the global batch, the micro-batch and DP"
#define NODES "--gpus has all GPUs of the job, and the cluster how many a node has"
#define NODES_PLAIN "the cluster has how many GPUs a node has"
static const struct {
    const char *flag, *why, *plain;
} derived[] = {
    {"dp", FOLLOWS, FOLLOWS_PLAIN},
    {"dp-size", FOLLOWS, FOLLOWS_PLAIN},
    {"data-parallel-size", FOLLOWS, FOLLOWS_PLAIN},
    {"data-parallel-degree", FOLLOWS, FOLLOWS_PLAIN},
    {"data-parallel-replicate-degree", FOLLOWS, FOLLOWS_PLAIN},
    {"data-parallel-shard-degree", FOLLOWS "; --zero says what it shards", FOLLOWS_PLAIN},
    {"edp", "EDP follows from --gpus, --pp, --ep and --etp",
     "EDP follows from the number of GPUs, PP, EP and ETP"},
    {"gradient-accumulation-steps", STEPS, STEPS_PLAIN},
    {"gradient-accumulation", STEPS, STEPS_PLAIN},
    {"num-microbatches", STEPS, STEPS_PLAIN},
    {"num-micro-batches", STEPS, STEPS_PLAIN},
    {"world-size", "--gpus has all GPUs of the job", NULL},
    {"nnodes", NODES, NODES_PLAIN},
    {"num-nodes", NODES, NODES_PLAIN},
    {"nodes", NODES, NODES_PLAIN},
    {"nproc-per-node", NODES, NODES_PLAIN},
    {"gpus-per-node", NODES, NODES_PLAIN},
    {"num-gpus-per-node", NODES, NODES_PLAIN},
    {"devices-per-node", NODES, NODES_PLAIN},
    {"sequence-parallel-size", "--tp always has sequence parallelism; --cp splits samples",
     "TP always has sequence parallelism; CP splits samples"},
    {"max-position-embeddings",
     "--seq is the length of a sample, --set changes the model's config.json",
     "the model's config.json has it"},
};
enum { DERIVED = sizeof derived / sizeof derived[0] };

const char *mf_megatron_flag_derived(const char *flag, const char **plain) {
    for (size_t i = 0; i < DERIVED; i++) {
        if (same(flag, derived[i].flag)) {
            *plain = derived[i].plain;
            return derived[i].why;
        }
    }
    *plain = NULL;
    return NULL;
}

const char *mf_megatron_flag_derived_at(size_t i) {
    return i < DERIVED ? derived[i].flag : NULL;
}

const char *mf_megatron_flag_at(size_t i, const char **here) {
    *here = i < FLAGS ? table[i].here : NULL;
    return i < FLAGS ? table[i].flag : NULL;
}
