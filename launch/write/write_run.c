/* write_run.c - what a start needs beside the plan: optimizer, environment, launch line.
 *
 * Facts: what megatron/training/arguments.py asserts of the environment
 * (CUDA_DEVICE_MAX_CONNECTIONS by architecture, FSDP and overlap; NVTE_CPU_OFFLOAD_V1;
 * NCCL_GRAPH_REGISTER beside expandable segments), scripts/training of Megatron-Bridge, and what
 * its performance recipes set for HybridEP, at the commits of launch/target/target.c.
 */
#include "launch/write/write.h"

#include "launch/words/words.h"

#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

/* A recipe has a schedule of its own, decays weights by the schedule's numbers, and takes the
 * tokenizer's vocabulary for the model's. */
static void write_instead_of_recipe(mf_settings *out) {
    mf_settings_put(out, "lr-decay-iters", "null"); /* all steps */
    mf_settings_put(out, "lr-warmup-iters", "0");
    mf_settings_put(out, "start-weight-decay", "0.1");
    mf_settings_put(out, "end-weight-decay", "0.1");
    mf_settings_put(out, "weight-decay-incr-style", "constant");
    mf_settings_put(out, "tokenizer.use_tokenizer_vocab_size", "false");
}

void mf_write_run(const mf_launch *x, mf_settings *out) {
    mf_settings_put(out, "optimizer", "adam");
    mf_settings_put(out, "lr", "${LR:-3e-4}");
    mf_settings_put(out, "min-lr", "${MIN_LR:-3e-5}");
    mf_settings_put(out, "lr-decay-style", "cosine");
    mf_settings_put(out, "lr-warmup-fraction", "${WARMUP:-0.1}"); /* of STEPS, however few */
    mf_settings_put(out, "train-iters", "${STEPS:-1000}");
    mf_settings_put(out, "weight-decay", "0.1");
    mf_settings_put(out, "clip-grad", "1.0");
    mf_settings_put(out, "adam-beta1", "0.9");
    mf_settings_put(out, "adam-beta2", "0.95");
    mf_settings_put(out, "init-method-std", "0.02");
    mf_settings_put(out, "eval-iters", "0");
    mf_settings_put(out, "eval-interval", "1000");
    mf_settings_put(out, "log-interval", "1");
    mf_settings_on(out, "log-throughput");
    mf_settings_put(out, "distributed-timeout-minutes", "60");
    if (x->target == MF_TARGET_BRIDGE) {
        write_instead_of_recipe(out);
    }
}

/* --- environment ------------------------------------------------------------------------------ */

static bool offloads(const mf_plan *p) {
    for (int i = 1; i < p->assignment.positions - 1; i++) {
        if (p->assignment.memory[i].offload != 0) {
            return true;
        }
    }
    return false;
}

/* Before Blackwell the order of kernels on several streams follows from the number of hardware
 * queues: one keeps collectives of TP and CP ahead of the products that they run beside, several
 * let sharded parameters and expert exchanges run beside compute. */
static int connections(const mf_launch *x) {
    const mf_layout *l = &x->plan->layout;
    bool one =
        strcmp(x->cluster->gpu.arch, "hopper") == 0 || strcmp(x->cluster->gpu.arch, "ampere") == 0;
    if (l->zero > 1 || l->schedule == MF_SCHED_MERGED) {
        return 32;
    }
    return one && (l->tp > 1 || l->cp > 1) ? 1 : 8;
}

void mf_write_environment(const mf_launch *x, mf_settings *out) {
    const mf_layout *l = &x->plan->layout;
    const int64_t domain = x->cluster->domain_gpus_used;
    mf_settings_put(out, "CUDA_DEVICE_MAX_CONNECTIONS", "%d", connections(x));
    mf_settings_put(out, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    mf_settings_put(out, "NCCL_GRAPH_REGISTER", "0"); /* captured graphs beside such segments */
    mf_settings_put(out, "TORCH_NCCL_AVOID_RECORD_STREAMS", "1");
    if (offloads(x->plan)) {
        mf_settings_put(out, "NVTE_CPU_OFFLOAD_V1", "1");
    }
    if (l->schedule == MF_SCHED_MERGED) { /* norms leave multiprocessors to the exchanges */
        mf_settings_put(out, "NVTE_FWD_LAYERNORM_SM_MARGIN", "20");
        mf_settings_put(out, "NVTE_BWD_LAYERNORM_SM_MARGIN", "20");
    }
    if (x->model->experts > 0 && l->dispatcher == MF_DISPATCH_FUSED && l->ep * l->etp > 1) {
        int64_t reach = l->ep * l->etp < domain ? l->ep * l->etp : domain;
        mf_settings_put(out, "NVLINK_DOMAIN_SIZE", "%lld", LL(x->cluster->domain_gpus));
        mf_settings_put(out, "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "%lld", LL(reach));
        mf_settings_put(out, "USE_MNNVL", "%d", domain > x->cluster->gpus_per_node);
    }
}

/* --- text ------------------------------------------------------------------------------------- */

static const mf_word *word_of(const char *name) {
    size_t length = strlen(name);
    const mf_word *w = mf_word_of_flag(name, length);
    return w != NULL ? w : mf_word_of_key(name, length);
}

static bool write_flag(const mf_word *w, const mf_setting *s, char *out, size_t size) {
    bool quote = strpbrk(s->value, "|*([") != NULL;
    if (mf_word_is_key(w)) {
        return false;
    }
    if (w->kind == MF_WORD_SWITCH) {
        snprintf(out, size, "--%s", s->name);
        return strcmp(s->value, "true") == 0;
    }
    snprintf(out, size, "--%s %s%s%s", s->name, quote ? "'" : "", s->value, quote ? "'" : "");
    return true;
}

static bool write_key(const mf_word *w, const mf_setting *s, char *out, size_t size) {
    if (w->key == NULL) {
        return false;
    }
    const bool each = w->kind == MF_WORD_EACH && strchr(s->value, ' ') != NULL;
    if (w->kind == MF_WORD_LIST || each) {
        int used = snprintf(out, size, "'%s=[", w->key);
        for (const char *at = s->value; *at != '\0' && (size_t)used + 3 < size; at++) {
            out[used++] = *at == ' ' ? ',' : *at;
        }
        snprintf(out + used, size - (size_t)used, "]'");
    } else if (w->kind == MF_WORD_SWITCH) {
        bool on = strcmp(s->value, "true") == 0;
        snprintf(out, size, "%s=%s", w->key, on != w->inverse ? "true" : "false");
    } else if (s->value[0] == '{') { /* in place of what is there, not merged into it */
        snprintf(out, size, "%s=null '%s=%s'", w->key, w->key, s->value);
    } else {
        bool quote = strpbrk(s->value, "|*[") != NULL;
        snprintf(out, size, "%s%s=%s%s", quote ? "'" : "", w->key, s->value, quote ? "'" : "");
    }
    return true;
}

bool mf_write_item(mf_target t, const mf_setting *s, char *out, size_t size) {
    const mf_word *w = word_of(s->name);
    if (w == NULL) {
        return false;
    }
    return t == MF_TARGET_MEGATRON ? write_flag(w, s, out, size) : write_key(w, s, out, size);
}

static void print_items(mf_target t, const mf_settings *s, FILE *out) {
    char text[4608];
    for (int i = 0; i < s->count; i++) {
        if (mf_write_item(t, &s->item[i], text, sizeof text)) {
            fprintf(out, "    %s\n", text);
        }
    }
}

static void print_head(const mf_launch *x, const char *const *notes, int count, FILE *out) {
    const mf_target_info *info = mf_target_info_of(x->target);
    const mf_layout *l = &x->plan->layout;
    const char *routing = x->plan->provenance.routing;
    mf_settings ours = {0}; /* what the target has no flag for */
    mf_settings_put(&ours, "model", "%s", x->model_name);
    mf_settings_put(&ours, "cluster", "%s", x->cluster_name);
    mf_settings_put(&ours, "software", "%s", x->plan->provenance.software);
    if (!l->headroom_worst_case) {
        mf_settings_put_f64(&ours, "token-headroom", l->token_headroom);
    }
    mf_settings_put_f64(&ours, "reserve", l->reserve);
    if (routing[0] != '\0' && strcmp(routing, "balanced") != 0) {
        mf_settings_put(&ours, "routing", "%s", routing);
    }
    fprintf(out, "#!/usr/bin/env bash\n# %s on %lld x %s, as %s spells it at commit\n# %s\n",
            x->plan->model.name, LL(l->gpus), x->plan->provenance.cluster, info->program,
            info->commit);
    fputs("# moefold:", out);
    for (int i = 0; i < ours.count; i++) {
        const char *value = ours.item[i].value; /* may be a path */
        const char *quote = strpbrk(value, " ();&|<>#") != NULL ? "'" : "";
        fprintf(out, " --%s %s%s%s", ours.item[i].name, quote, value, quote);
    }
    putc('\n', out);
    mf_settings_clear(&ours);
    for (int i = 0; i < count; i++) {
        fprintf(out, "# not the same: %s\n", notes[i]);
    }
    fputs("set -euo pipefail\n\n", out);
}

/* Mock data until there is some; a tokenizer is asked for beside it. Hydra, by which Bridge reads
 * its settings, has quotes of its own: a path may hold "=" and a list of paths blanks. */
static void print_data(const mf_launch *x, FILE *out) {
    const bool bridge = x->target == MF_TARGET_BRIDGE, recipe = bridge && !mf_write_builds(x);
    fputs("if [ -n \"${DATA_PATH:-}\" ]; then\n", out);
    if (!bridge) {
        fputs("    DATA=(--data-path $DATA_PATH --split 99,1,0 --tokenizer-type "
              "HuggingFaceTokenizer\n"
              "        --tokenizer-model \"${TOKENIZER_MODEL:?the tokenizer of DATA_PATH}\")\n"
              "else\n"
              "    DATA=(--mock-data --tokenizer-type NullTokenizer)\n"
              "fi\n"
              "[ -n \"${CHECKPOINTS:-}\" ] && DATA+=(--save \"$CHECKPOINTS\" --load "
              "\"$CHECKPOINTS\" --save-interval 500)\n\n",
              out);
        return;
    }
    fprintf(out,
            "    DATA=(%s\"dataset.data_path='$DATA_PATH'\" \"dataset.split='99,1,0'\"\n"
            "        tokenizer.tokenizer_type=HuggingFaceTokenizer "
            "\"tokenizer.tokenizer_model='${TOKENIZER_MODEL:?the tokenizer of DATA_PATH}'\")\n"
            "else\n"
            "    DATA=(%stokenizer.tokenizer_type=NullTokenizer "
            "tokenizer.tokenizer_model=null\n"
            "        tokenizer.vocab_size=%lld)\n" /* without its end of a text */
            "fi\n",
            recipe ? "--dataset megatron-indexed " : "", recipe ? "--dataset mock " : "",
            LL(x->model->vocab - 1));
    fputs("if [ -n \"${CHECKPOINTS:-}\" ]; then\n"
          "    DATA+=(\"checkpoint.save='$CHECKPOINTS'\" \"checkpoint.load='$CHECKPOINTS'\" "
          "checkpoint.save_interval=500)\n"
          "else\n"
          "    DATA+=(checkpoint.save=null checkpoint.load=null checkpoint.async_save=false)\n"
          "fi\n\n",
          out);
}

/* Where the processes meet. */
static void print_first_node(const mf_launch *x, int64_t nodes, FILE *out) {
    if (nodes == 1) {
        fputs("HEAD=${HEAD:-127.0.0.1}\n", out);
    } else if (x->launcher == MF_LAUNCHER_SRUN) {
        fputs("HEAD=${HEAD:-$(scontrol show hostnames 2>/dev/null | head -n 1 || true)}\n"
              "HEAD=${HEAD:?start this in an allocation (salloc, sbatch), or set it to the first "
              "node}\n",
              out);
    } else {
        fprintf(out, "HEAD=${HEAD:?the first of %lld nodes; start this on each of them}\n",
                LL(nodes));
    }
}

/* A file of the program that is there where the script is started. */
static const char *program_of(const mf_launch *x) {
    return mf_write_builds(x)              ? "src/megatron/bridge/training/pretrain.py"
           : x->target == MF_TARGET_BRIDGE ? "scripts/training/run_recipe.py"
           : mf_target_is_hybrid(x->model) ? "pretrain_hybrid.py"
                                           : "pretrain_gpt.py";
}

/* One launcher a node; torchrun starts its processes and gives them their ranks. */
static void print_launch(const mf_launch *x, FILE *out) {
    const int64_t gpus = x->plan->layout.gpus, node = x->cluster->gpus_per_node;
    int64_t each = gpus < node ? gpus : node; /* as many on each node */
    while (gpus % each != 0) {
        each--;
    }
    const int64_t nodes = gpus / each;
    const bool built = mf_write_builds(x);
    fprintf(out, "[ -f %s ] || { echo \"start this in the folder of %s\" >&2; exit 1; }\n",
            program_of(x), mf_target_info_of(x->target)->program);
    print_first_node(x, nodes, out);
    if (x->launcher == MF_LAUNCHER_SRUN) {
        fprintf(out, "srun --nodes %lld --ntasks-per-node 1 --kill-on-bad-exit=1 \\\n    ",
                LL(nodes));
    }
    fprintf(out,
            "torchrun --nnodes %lld --nproc-per-node %lld --rdzv-backend c10d --rdzv-endpoint "
            "\"$HEAD:29500\" --rdzv-id moefold \\\n    %s %s\"${DATA[@]}\" \"${ARGS[@]}\"\n",
            LL(nodes), LL(each), built ? "--no-python python3" : program_of(x),
            built                           ? "-c \"$TRAIN\" "
            : x->target == MF_TARGET_BRIDGE ? "--recipe \"$RECIPE\" --mode pretrain "
                                            : "");
}

void mf_write_settings(const mf_launch *x, mf_settings *out) {
    if (x->target == MF_TARGET_MEGATRON) {
        mf_write_model(x->model, &x->plan->layout, out);
    } else if (mf_write_builds(x)) {
        mf_write_bridge_model(x->model, &x->plan->layout, out);
    }
    mf_write_layout(x, out);
    mf_write_run(x, out);
}

mf_status mf_write_script(const mf_launch *x, const char *const *notes, int count, FILE *out,
                          mf_err *e) {
    mf_settings settings = {0}, environment = {0};
    mf_write_settings(x, &settings);
    mf_write_environment(x, &environment);
    bool failed = settings.failed || environment.failed;
    if (!failed) {
        print_head(x, notes, count, out);
        for (int i = 0; i < environment.count; i++) {
            fprintf(out, "export %s=%s\n", environment.item[i].name, environment.item[i].value);
        }
        fputs("\nARGS=(\n", out);
        print_items(x->target, &settings, out);
        fputs(")\n\n", out);
        print_data(x, out);
        if (mf_write_builds(x)) {
            mf_write_bridge_program(x, out);
        } else if (x->target == MF_TARGET_BRIDGE) {
            fprintf(out, "RECIPE=${RECIPE:-%s}\n", mf_target_recipe(x->model_name));
        }
        print_launch(x, out);
    }
    mf_settings_clear(&settings);
    mf_settings_clear(&environment);
    return failed ? mf_err_set(e, MF_NOMEM, "out of memory") : MF_OK;
}
