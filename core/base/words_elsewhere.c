/* words_elsewhere.c - what Megatron-LM, DeepSpeed, torchtitan, Hugging Face and people call our
 * commands, options and their words.
 */
#include "core/base/json.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 63 };

/* Without what is taken off a word, see stem_of. A word may mean several things: that one counts
 * which is known where it is asked for. "megatron-#": the newest release, the last of the known
 * ones that go on with a digit. */
static const struct {
    const char *elsewhere, *here;
} table[] = {
    /* options: degrees */
    {"tensor-parallel", "tp"},
    {"tensor-model-parallel", "tp"},
    {"pipeline-parallel", "pp"},
    {"pipeline-model-parallel", "pp"},
    {"virtual-pipeline", "vpp"},
    {"virtual-pipeline-parallel", "vpp"},
    {"virtual-pipeline-model-parallel", "vpp"},
    {"context-parallel", "cp"},
    {"expert-parallel", "ep"},
    {"expert-model-parallel", "ep"},
    {"moe-expert-model-parallel", "ep"},
    {"moe-expert-parallel", "ep"},
    {"moe-ep", "ep"},
    {"expert-tensor-parallel", "etp"},
    {"expert-tp", "etp"},
    {"moe-tp", "etp"},
    /* options: the job */
    {"mbs", "micro-batch"},
    {"microbatch", "micro-batch"},
    {"local-batch", "micro-batch"},
    {"train-micro-batch-size-per-gpu", "micro-batch"},
    {"per-device-batch", "micro-batch"},
    {"per-device-train-batch", "micro-batch"},
    {"batch", "global-batch"},
    {"gbs", "global-batch"},
    {"train-batch", "global-batch"},
    {"sequence", "seq"},
    {"context", "seq"},
    {"ctx", "seq"},
    {"seqlen", "seq"},
    {"gpu-count", "gpus"},
    {"devices", "gpus"},
    {"world", "gpus"},
    {"model-name", "model"},
    {"model-name-or-path", "model"},
    {"model-path", "model"},
    {"hf-path", "model"},
    {"config", "model"},
    {"hardware", "cluster"},
    {"system", "cluster"},
    {"gpu-type", "cluster"},
    {"gpu", "cluster"},
    {"framework", "software"},
    {"backend", "software"},
    /* options: choices */
    {"zero-stage", "zero"},
    {"zero-optimization", "zero"},
    {"sharding-strategy", "zero"},
    {"fsdp", "zero"},
    {"use-fsdp", "zero"},
    {"pipeline-schedule", "schedule"},
    {"pipeline-parallel-schedule", "schedule"},
    {"token-dispatcher", "dispatcher"},
    {"deepep", "dispatcher"},
    {"use-deepep", "dispatcher"},
    {"hybridep", "dispatcher"},
    {"activation-checkpoint", "recompute"},
    {"activation-checkpoint.mode", "recompute"},
    {"activation-checkpointing", "recompute"},
    {"activation-recompute", "recompute"},
    {"gradient-checkpointing", "recompute"},
    {"offload-activations", "offload"},
    {"activation-offload", "offload"},
    {"optimizer-offload", "offload-optimizer"},
    {"cpu-offload-optimizer", "offload-optimizer"},
    {"dtype", "precision"},
    {"mixed-precision", "precision"},
    {"fp8", "precision"},
    {"fp16", "precision"},
    /* options: the rest */
    {"output", "out"},
    {"outfile", "out"},
    {"out-file", "out"},
    {"output-dir", "out"},
    {"output-file", "out"},
    {"to", "format"},
    {"target", "format"},
    {"timeout", "effort"},
    {"time-limit", "effort"},
    {"tolerance", "gap"},
    {"learning-rate", "lr"},
    {"train-steps", "steps"},
    {"iterations", "steps"},
    {"train-iters", "steps"},
    {"cost", "price"},
    /* commands */
    {"sim", "simulate"},
    {"predict", "simulate"},
    {"estimate", "simulate"},
    {"trace", "simulate"},
    {"search", "plan"},
    {"optimize", "plan"},
    {"optimise", "plan"},
    {"recommend", "plan"},
    {"mem", "fit"},
    {"memory", "fit"},
    {"size", "capacity"},
    {"sizing", "capacity"},
    {"cost", "capacity"},
    {"budget", "capacity"},
    {"analyze", "explain"},
    {"analyse", "explain"},
    {"why", "explain"},
    {"run", "train"},
    {"finetune", "train"},
    {"launch", "export"},
    {"convert", "export"},
    {"write", "export"},
    {"read", "import"},
    {"measure", "profile"},
    {"bench", "profile"},
    {"benchmark", "profile"},
    {"validate", "compare"},
    {"list", "models"},
    {"gpus", "clusters"},
    {"version", "--version"},
    {"man", "help"},
    {"completion", "help"},
    /* words of options */
    {"bfloat16", "bf16"},
    {"half", "bf16"},
    {"float32", "fp32"},
    {"fp8", "fp8-block"},
    {"fp8-blockwise", "fp8-block"},
    {"blockwise", "fp8-block"},
    {"fp8-tensorwise", "fp8-tensor"},
    {"tensorwise", "fp8-tensor"},
    {"delayed", "fp8-tensor"},
    {"fp4", "nvfp4"},
    {"deepep", "fused"},
    {"hybridep", "fused"},
    {"flex", "fused"},
    {"nccl", "alltoall"},
    {"p2p", "ring"},
    {"a2a", "alltoall"},
    {"ulysses", "alltoall"},
    {"a2a+p2p", "hierarchical"},
    {"zero-bubble", "zb-h1"},
    {"zbh1", "zb-h1"},
    {"zbv", "zb-v"},
    {"afab", "gpipe"},
    {"attention", "core_attn"},
    {"moe_act", "act"},
    {"layernorm", "norm"},
    {"full-iteration", "step"},
    {"full", "step"},
    {"mcore", "megatron-#"},
    {"megatron", "megatron-#"},
    {"megatron-lm", "megatron-#"},
    {"megatron-core", "megatron-#"},
    {"megatron-bridge", "megatron-#"},
    {"nemo", "megatron-#"},
    {"bridge", "megatron-#"},
    {"fsdp", "pytorch-fsdp"},
    {"fsdp2", "pytorch-fsdp"},
    {"pytorch", "pytorch-fsdp"},
    {"torchtitan", "pytorch-fsdp"},
    {"mcore", "megatron"},
    {"megatron-core", "megatron"},
    {"nemo", "bridge"},
    {"megatron-bridge", "bridge"},
    {"slurm", "srun"},
    {"sbatch", "srun"},
    {"torch", "torchrun"},
    /* keys of config.json */
    {"layer", "num_hidden_layers"},
    {"layers", "num_hidden_layers"},
    {"dim", "hidden_size"},
    {"hidden", "hidden_size"},
    {"d-model", "hidden_size"},
    {"ffn", "intermediate_size"},
    {"ffn-hidden", "intermediate_size"},
    {"moe-ffn-hidden", "moe_intermediate_size"},
    {"heads", "num_attention_heads"},
    {"kv-heads", "num_key_value_heads"},
    {"query-groups", "num_key_value_heads"},
    {"experts", "num_experts"},
    {"experts", "n_routed_experts"},
    {"experts", "num_local_experts"},
    {"topk", "num_experts_per_tok"},
    {"top-k", "num_experts_per_tok"},
    {"moe-router-topk", "num_experts_per_tok"},
    {"position-embeddings", "max_position_embeddings"},
    {"vocab", "vocab_size"},
    {"padded-vocab", "vocab_size"},
    /* clusters and models */
    {"ampere", "a100"},
    {"hopper", "h100"},
    {"blackwell", "b200"},
    {"grace-blackwell", "gb200"},
    {"dsv2", "deepseek-v2"},
    {"dsv3", "deepseek-v3"},
    {"dsv4", "deepseek-v4-flash"},
    {"deepseek-r1", "deepseek-v3"},
    {"deepseek-v3.1", "deepseek-v3"},
};

/* Takes one of the texts off the word's beginning or its end. */
static void take_off(char *word, const char *const *texts, bool at_end) {
    for (; *texts != NULL; texts++) {
        const size_t length = strlen(word), taken = strlen(*texts);
        char *at = word + (at_end && length > taken ? length - taken : 0);
        if (length > taken && memcmp(at, *texts, taken) == 0) {
            memmove(at, at + taken, strlen(at + taken) + 1);
            return;
        }
    }
}

/* "Max_Seq_Length" -> "seq". */
static void stem_of(char *word) {
    static const char *const fronts[] = {"num-", "n-", "max-", NULL};
    static const char *const ends[] = {"-size", "-degree", "-length", "-len", NULL};
    take_off(word, ends, true);
    take_off(word, fronts, false);
}

static bool is_meant(const char *word, const char *known) {
    const size_t stem = strcspn(word, "#");
    return word[stem] == '\0'
               ? strcmp(word, known) == 0
               : strncmp(word, known, stem) == 0 && isdigit((unsigned char)known[stem]);
}

static const char *known_as(const char *word, const char *const *known, size_t count) {
    for (size_t i = count; i > 0; i--) {
        if (is_meant(word, known[i - 1])) {
            return known[i - 1];
        }
    }
    return NULL;
}

static const char *look_up(const char *word, const char *const *known, size_t count) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *here =
            strcmp(table[i].elsewhere, word) == 0 ? known_as(table[i].here, known, count) : NULL;
        if (here != NULL) {
            return here;
        }
    }
    return NULL;
}

const char *mf_word_elsewhere(const char *word, const char *const *known, size_t count) {
    char text[LONGEST + 1];
    const char *section = strrchr(word, '.'); /* torchtitan's "training.seq_len" */
    if (strlen(word) > LONGEST) {
        return NULL;
    }
    int length = snprintf(text, sizeof text, "%s", word);
    for (int i = 0; i < length; i++) {
        text[i] = (char)(text[i] == '_' ? '-' : tolower((unsigned char)text[i]));
    }
    const char *here = look_up(text, known, count);
    if (here == NULL) {
        stem_of(text);
        here = look_up(text, known, count);
        here = here != NULL ? here : known_as(text, known, count);
    }
    return here != NULL || section == NULL || !isalpha((unsigned char)section[1])
               ? here
               : mf_word_elsewhere(section + 1, known, count);
}
