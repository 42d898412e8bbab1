/* words.c - the table of settings, and looking into it. */
#include "launch/words.h"

#include <string.h>

#define SWITCH MF_WORD_SWITCH
#define VALUE MF_WORD_VALUE
#define LIST MF_WORD_LIST
#define MODEL(flag, kind, key)                                                                     \
    { flag, kind, "model." key, NULL, false, false }
#define MOOT(flag, kind)                                                                           \
    { flag, kind, NULL, NULL, false, true }
/* What a start says beside the plan. */
#define RUN(flag, kind, key)                                                                       \
    { flag, kind, key, NULL, false, true }

static const mf_word words[] = {
    /* degrees and batch */
    MODEL("tensor-model-parallel-size", VALUE, "tensor_model_parallel_size"),
    MODEL("sequence-parallel", SWITCH, "sequence_parallel"),
    MODEL("context-parallel-size", VALUE, "context_parallel_size"),
    MODEL("cp-comm-type", LIST, "cp_comm_type"),
    MODEL("hierarchical-context-parallel-sizes", LIST, "hierarchical_context_parallel_sizes"),
    MODEL("pipeline-model-parallel-size", VALUE, "pipeline_model_parallel_size"),
    MODEL("pipeline-model-parallel-layout", VALUE, "pipeline_model_parallel_layout"),
    MODEL("hybrid-layer-pattern", VALUE, "hybrid_layer_pattern"),
    {"num-virtual-stages-per-pipeline-rank", VALUE, NULL, NULL, false, false},
    {"num-layers-per-virtual-pipeline-stage", VALUE, NULL, NULL, false, false},
    {"virtual-pipeline-model-parallel-size", VALUE, NULL, "virtual_pipeline_model_parallel_size",
     false, false}, /* of Bridge's launcher */
    {"model.virtual_pipeline_model_parallel_size", VALUE,
     "model.virtual_pipeline_model_parallel_size", NULL, false, false},
    {"decoder-first-pipeline-num-layers", VALUE, "model.num_layers_in_first_pipeline_stage", NULL,
     false, false},
    {"decoder-last-pipeline-num-layers", VALUE, "model.num_layers_in_last_pipeline_stage", NULL,
     false, false},
    MODEL("account-for-embedding-in-pipeline-split", SWITCH,
          "account_for_embedding_in_pipeline_split"),
    MODEL("account-for-loss-in-pipeline-split", SWITCH, "account_for_loss_in_pipeline_split"),
    MODEL("expert-model-parallel-size", VALUE, "expert_model_parallel_size"),
    MODEL("expert-tensor-parallel-size", VALUE, "expert_tensor_parallel_size"),
    {"micro-batch-size", VALUE, "train.micro_batch_size", NULL, false, false},
    {"global-batch-size", VALUE, "train.global_batch_size", NULL, false, false},
    MODEL("seq-length", VALUE, "seq_length"),
    {"dataset.seq_length", VALUE, "dataset.seq_length", NULL, false, false},
    {"world-size", VALUE, NULL, NULL, false, false},
    /* schedule and communication */
    {"overlap-moe-expert-parallel-comm", SWITCH, "comm_overlap.overlap_moe_expert_parallel_comm",
     NULL, false, false},
    {"delay-wgrad-compute", SWITCH, "comm_overlap.delay_wgrad_compute", NULL, false, false},
    {"no-overlap-p2p-communication", SWITCH, "comm_overlap.overlap_p2p_comm", "overlap_p2p_comm",
     true, false},
    {"tp-comm-overlap", SWITCH, "comm_overlap.tp_comm_overlap", NULL, false, false},
    {"overlap-grad-reduce", SWITCH, "comm_overlap.overlap_grad_reduce", NULL, false, false},
    {"overlap-param-gather", SWITCH, "comm_overlap.overlap_param_gather", NULL, false, false},
    MODEL("moe-token-dispatcher-type", VALUE, "moe_token_dispatcher_type"),
    MODEL("moe-flex-dispatcher-backend", VALUE, "moe_flex_dispatcher_backend"),
    MODEL("moe-enable-deepep", SWITCH, "moe_enable_deepep"),
    MODEL("moe-grouped-gemm", SWITCH, "moe_grouped_gemm"),
    MODEL("moe-permute-fusion", SWITCH, "moe_permute_fusion"),
    MODEL("moe-permute-fusion-into-hybridep", SWITCH, "moe_permute_fusion_into_hybridep"),
    MODEL("moe-expert-capacity-factor", VALUE, "moe_expert_capacity_factor"),
    MODEL("moe-pad-expert-input-to-capacity", SWITCH, "moe_pad_expert_input_to_capacity"),
    /* parameters, optimizer, precision */
    {"use-distributed-optimizer", SWITCH, "ddp.use_distributed_optimizer", NULL, false, false},
    {"use-megatron-fsdp", SWITCH, "ddp.use_megatron_fsdp", NULL, false, false},
    {"data-parallel-sharding-strategy", VALUE, "ddp.data_parallel_sharding_strategy", NULL, false,
     false},
    {"ckpt-format", VALUE, "checkpoint.ckpt_format", NULL, false, false},
    {"grad-reduce-in-bf16", SWITCH, "ddp.grad_reduce_in_fp32", NULL, true, false},
    {"accumulate-allreduce-grads-in-fp32", SWITCH, NULL, NULL, false, false},
    {"use-precision-aware-optimizer", SWITCH, "optimizer.use_precision_aware_optimizer", NULL,
     false, false},
    {"exp-avg-dtype", VALUE, "optimizer.exp_avg_dtype", NULL, false, false},
    {"exp-avg-sq-dtype", VALUE, "optimizer.exp_avg_sq_dtype", NULL, false, false},
    {"optimizer-cpu-offload", SWITCH, "optimizer.optimizer_cpu_offload", NULL, false, false},
    {"optimizer-offload-fraction", VALUE, "optimizer.optimizer_offload_fraction", NULL, false,
     false},
    {"offload-optimizer-states", SWITCH, NULL, NULL, false, false},
    {"overlap-cpu-optimizer-d2h-h2d", SWITCH, "optimizer.overlap_cpu_optimizer_d2h_h2d", NULL,
     false, false},
    {"bf16", SWITCH, NULL, NULL, false, false},
    {"fp16", SWITCH, NULL, NULL, false, false},
    {"mixed_precision", VALUE, "mixed_precision", NULL, false, false},
    {"fp8-format", VALUE, NULL, "fp8", false, false},
    {"fp8-recipe", VALUE, NULL, NULL, false, false},
    {"fp4-format", VALUE, NULL, "fp4", false, false},
    {"fp4-recipe", VALUE, NULL, NULL, false, false},
    {"fp8-param-gather", SWITCH, NULL, NULL, false, false},
    {"fp4-param-gather", SWITCH, NULL, NULL, false, false},
    {"model.fp8_dot_product_attention", SWITCH, "model.fp8_dot_product_attention", NULL, false,
     false},
    /* memory choices and graphs */
    MODEL("recompute-granularity", VALUE, "recompute_granularity"),
    MODEL("recompute-method", VALUE, "recompute_method"),
    MODEL("recompute-num-layers", VALUE, "recompute_num_layers"),
    MODEL("recompute-modules", LIST, "recompute_modules"),
    {"recompute-activations", SWITCH, NULL, NULL, false, false},
    MODEL("moe-layer-recompute", SWITCH, "moe_layer_recompute"),
    MODEL("fine-grained-activation-offloading", SWITCH, "fine_grained_activation_offloading"),
    MODEL("offload-modules", LIST, "offload_modules"),
    MODEL("activation-offload-fraction", VALUE, "activation_offload_fraction"),
    MODEL("cuda-graph-impl", VALUE, "cuda_graph_impl"),
    MODEL("cuda-graph-modules", LIST, "cuda_graph_modules"),
    MODEL("cuda-graph-scope", LIST, "cuda_graph_scope"),
    MODEL("enable-cuda-graph", SWITCH, "enable_cuda_graph"),
    MODEL("external-cuda-graph", SWITCH, "external_cuda_graph"),
    {"no-check-for-nan-in-loss-and-grad", SWITCH, "rerun_state_machine.check_for_nan_in_loss",
     "check_for_nan_in_loss_and_grad", true, true},
    /* the model */
    MODEL("num-layers", VALUE, "num_layers"),
    MODEL("hidden-size", VALUE, "hidden_size"),
    MODEL("ffn-hidden-size", VALUE, "ffn_hidden_size"),
    MODEL("num-attention-heads", VALUE, "num_attention_heads"),
    {"group-query-attention", SWITCH, NULL, NULL, false, false},
    MODEL("num-query-groups", VALUE, "num_query_groups"),
    MODEL("kv-channels", VALUE, "kv_channels"),
    {"multi-latent-attention", SWITCH, NULL, NULL, false, false},
    MODEL("q-lora-rank", VALUE, "q_lora_rank"),
    MODEL("kv-lora-rank", VALUE, "kv_lora_rank"),
    MODEL("qk-head-dim", VALUE, "qk_head_dim"),
    MODEL("qk-pos-emb-head-dim", VALUE, "qk_pos_emb_head_dim"),
    MODEL("v-head-dim", VALUE, "v_head_dim"),
    {"num-experts", VALUE, "model.num_moe_experts", NULL, false, false},
    MODEL("moe-ffn-hidden-size", VALUE, "moe_ffn_hidden_size"),
    MODEL("moe-shared-expert-intermediate-size", VALUE, "moe_shared_expert_intermediate_size"),
    MODEL("moe-layer-freq", VALUE, "moe_layer_freq"),
    MODEL("moe-router-topk", VALUE, "moe_router_topk"),
    MODEL("mtp-num-layers", VALUE, "mtp_num_layers"),
    {"model.crossattn_emb_size", VALUE, "model.crossattn_emb_size", NULL, false, false},
    {"vocab-size", VALUE, NULL, NULL, false, false},
    /* launchers */
    {"nnodes", VALUE, NULL, NULL, false, false},
    {"nproc-per-node", VALUE, NULL, NULL, false, false},
    {"nodes", VALUE, NULL, NULL, false, false},
    {"ntasks-per-node", VALUE, NULL, NULL, false, false},
    /* what moefold writes or meets, and does not price */
    MOOT("cuda-graph-warmup-steps", VALUE),
    MOOT("add-qkv-bias", SWITCH),
    MOOT("normalization", VALUE),
    MOOT("norm-epsilon", VALUE),
    MOOT("qk-layernorm", SWITCH),
    MOOT("position-embedding-type", VALUE),
    MOOT("rotary-base", VALUE),
    MOOT("rotary-percent", VALUE),
    MOOT("rotary-interleaved", SWITCH),
    MOOT("rope-type", VALUE),
    MOOT("use-rope-scaling", SWITCH),
    MOOT("rope-scaling-factor", VALUE),
    MOOT("rotary-scaling-factor", VALUE),
    MOOT("rotary-seq-len-interpolation-factor", VALUE),
    MOOT("mscale", VALUE),
    MOOT("mscale-all-dim", VALUE),
    MOOT("yarn-original-max-position-embeddings", VALUE),
    MOOT("yarn-beta-fast", VALUE),
    MOOT("yarn-beta-slow", VALUE),
    MOOT("yarn-correction-range-round-to-int", SWITCH),
    MOOT("no-yarn-correction-range-round-to-int", SWITCH),
    MOOT("max-position-embeddings", VALUE),
    MOOT("make-vocab-size-divisible-by", VALUE),
    MOOT("swiglu", SWITCH),
    MOOT("quick-geglu", SWITCH),
    MOOT("glu-linear-offset", VALUE),
    MOOT("activation-func-clamp-value", VALUE),
    MOOT("squared-relu", SWITCH),
    MOOT("softmax-type", VALUE),
    MOOT("apply-layernorm-1p", SWITCH),
    MOOT("attention-output-gate", SWITCH),
    MOOT("experimental-attention-variant", VALUE),
    MOOT("linear-attention-type", VALUE), /* the same before it got that name */
    MOOT("linear-attention-freq", VALUE),
    MOOT("linear-conv-kernel-dim", VALUE),
    MOOT("linear-key-head-dim", VALUE),
    MOOT("linear-value-head-dim", VALUE),
    MOOT("linear-num-key-heads", VALUE),
    MOOT("linear-num-value-heads", VALUE),
    MOOT("dsa-indexer-n-heads", VALUE),
    MOOT("dsa-indexer-head-dim", VALUE),
    MOOT("dsa-indexer-topk", VALUE),
    MOOT("dsa-indexer-topk-freq", VALUE),
    MOOT("dsa-indexer-skip-topk-offset", VALUE),
    MOOT("dsa-indexer-loss-coeff", VALUE),
    MOOT("dsa-indexer-use-sparse-loss", SWITCH),
    MOOT("dsa-indexer-rope-interleaved", SWITCH),
    MOOT("no-dsa-indexer-rotate-activation", SWITCH),
    MOOT("dsa-indexer-k-norm-epsilon", VALUE),
    MOOT("spec", LIST),
    MOOT("mamba-num-heads", VALUE),
    MOOT("mamba-head-dim", VALUE),
    MOOT("mamba-num-groups", VALUE),
    MOOT("mamba-state-dim", VALUE),
    MOOT("moe-latent-size", VALUE),
    MOOT("window-size", VALUE),
    MOOT("window-attn-skip-freq", VALUE),
    MOOT("untie-embeddings-and-output-weights", SWITCH),
    MOOT("disable-bias-linear", SWITCH),
    MOOT("moe-shared-expert-gate", SWITCH),
    MOOT("moe-router-score-function", VALUE),
    MOOT("moe-router-pre-softmax", SWITCH),
    MOOT("moe-router-num-groups", VALUE),
    MOOT("moe-router-group-topk", VALUE),
    MOOT("moe-router-topk-scaling-factor", VALUE),
    MOOT("moe-router-enable-expert-bias", SWITCH),
    MOOT("moe-router-bias-update-rate", VALUE),
    MOOT("moe-router-load-balancing-type", LIST),
    MOOT("moe-aux-loss-coeff", LIST),
    MOOT("moe-router-dtype", VALUE),
    MOOT("moe-router-fusion", SWITCH),
    MOOT("moe-router-padding-for-fp8", SWITCH),
    MOOT("moe-router-padding-for-quantization", SWITCH),
    MOOT("moe-router-force-load-balancing", SWITCH),
    MODEL("moe-shared-expert-overlap", SWITCH, "moe_shared_expert_overlap"),
    MOOT("moe-hybridep-num-sms", VALUE),
    MOOT("moe-deepep-num-sms", VALUE),
    MOOT("mtp-loss-scaling-factor", VALUE),
    MOOT("use-mcore-models", SWITCH),
    MOOT("transformer-impl", VALUE),
    MOOT("attention-backend", VALUE),
    MOOT("use-flash-attn", SWITCH),
    MOOT("attention-dropout", VALUE),
    MOOT("hidden-dropout", VALUE),
    MOOT("cross-entropy-loss-fusion", SWITCH),
    MOOT("cross-entropy-fusion-impl", VALUE),
    MOOT("enable-experimental", SWITCH),
    MOOT("no-rope-fusion", SWITCH),
    MOOT("no-bias-swiglu-fusion", SWITCH),
    MOOT("no-gradient-accumulation-fusion", SWITCH),
    MOOT("init-model-with-meta-device", SWITCH),
    MOOT("calculate-per-token-loss", SWITCH),
    MOOT("te-rng-tracker", SWITCH),
    MOOT("main-grads-dtype", VALUE),
    MOOT("main-params-dtype", VALUE),
    MOOT("reuse-grad-buf-for-mxfp8-param-ag", SWITCH),
    RUN("optimizer", VALUE, "optimizer.optimizer"),
    RUN("lr", VALUE, "optimizer.lr"),
    RUN("min-lr", VALUE, "optimizer.min_lr"),
    RUN("lr-decay-style", VALUE, "scheduler.lr_decay_style"),
    RUN("lr-decay-iters", VALUE, "scheduler.lr_decay_iters"),
    MOOT("lr-decay-samples", VALUE),
    RUN("lr-warmup-iters", VALUE, "scheduler.lr_warmup_iters"),
    MOOT("lr-warmup-samples", VALUE),
    MOOT("lr-warmup-init", VALUE),
    RUN("lr-warmup-fraction", VALUE, "scheduler.lr_warmup_fraction"),
    RUN("start-weight-decay", VALUE, "scheduler.start_weight_decay"),
    RUN("end-weight-decay", VALUE, "scheduler.end_weight_decay"),
    RUN("weight-decay-incr-style", VALUE, "scheduler.weight_decay_incr_style"),
    RUN("weight-decay", VALUE, "optimizer.weight_decay"),
    MOOT("no-weight-decay-cond-type", VALUE), /* which weights decay costs nothing */
    MOOT("apply-wd-to-qk-layernorm", SWITCH),
    RUN("clip-grad", VALUE, "optimizer.clip_grad"),
    RUN("adam-beta1", VALUE, "optimizer.adam_beta1"),
    RUN("adam-beta2", VALUE, "optimizer.adam_beta2"),
    MOOT("adam-eps", VALUE),
    MOOT("init-method-std", VALUE),
    RUN("train-iters", VALUE, "train.train_iters"),
    MOOT("train-samples", VALUE),
    MOOT("exit-duration-in-mins", VALUE),
    MOOT("seed", VALUE),
    MOOT("mock-data", SWITCH),
    RUN("data-path", LIST, "dataset.data_path"),
    MOOT("data-cache-path", VALUE),
    RUN("split", VALUE, "dataset.split"),
    RUN("tokenizer-type", VALUE, "tokenizer.tokenizer_type"),
    RUN("tokenizer-model", VALUE, "tokenizer.tokenizer_model"),
    {"tokenizer.vocab_size", VALUE, "tokenizer.vocab_size", NULL, false, true},
    {"tokenizer.use_tokenizer_vocab_size", SWITCH, "tokenizer.use_tokenizer_vocab_size", NULL,
     false, true},
    MOOT("num-workers", VALUE),
    MOOT("no-mmap-bin-files", SWITCH),
    MOOT("no-create-attention-mask-in-dataloader", SWITCH),
    MOOT("manual-gc", SWITCH),
    MOOT("manual-gc-interval", VALUE),
    MOOT("distributed-backend", VALUE),
    RUN("distributed-timeout-minutes", VALUE, "dist.distributed_timeout_minutes"),
    RUN("eval-iters", VALUE, "validation.eval_iters"),
    RUN("eval-interval", VALUE, "validation.eval_interval"),
    RUN("save", VALUE, "checkpoint.save"),
    RUN("load", VALUE, "checkpoint.load"),
    RUN("save-interval", VALUE, "checkpoint.save_interval"),
    MOOT("async-save", SWITCH),
    MOOT("no-save-optim", SWITCH),
    MOOT("no-load-optim", SWITCH),
    MOOT("no-load-rng", SWITCH),
    MOOT("finetune", SWITCH),
    MOOT("auto-detect-ckpt-format", SWITCH),
    MOOT("no-ckpt-fully-parallel-save", SWITCH),
    MOOT("dist-ckpt-strictness", VALUE),
    RUN("log-interval", VALUE, "logger.log_interval"),
    RUN("log-throughput", SWITCH, "logger.log_throughput"),
    MOOT("log-timers-to-tensorboard", SWITCH),
    MOOT("log-memory-to-tensorboard", SWITCH),
    MOOT("log-num-zeros-in-grad", SWITCH),
    MOOT("log-params-norm", SWITCH),
    MOOT("log-validation-ppl-to-tensorboard", SWITCH),
    MOOT("logging-level", VALUE),
    MOOT("tensorboard-dir", VALUE),
    MOOT("wandb-project", VALUE),
    MOOT("wandb-exp-name", VALUE),
    MOOT("rdzv-backend", VALUE),
    MOOT("rdzv-endpoint", VALUE),
    MOOT("rdzv-id", VALUE),
    MOOT("node-rank", VALUE),
    MOOT("master-addr", VALUE),
    MOOT("master-port", VALUE),
    MOOT("kill-on-bad-exit", VALUE),
    MOOT("max-steps", VALUE),
    MOOT("warmup-iters", VALUE),
    MOOT("pretrained-checkpoint", VALUE),
    MOOT("save-dir", VALUE),
    MOOT("load-dir", VALUE),
    MOOT("step-func", VALUE),
    MOOT("decoupled-lr", VALUE),
    MOOT("decoupled-min-lr", VALUE),
    MOOT("fp8-amax-history-len", VALUE),
    MOOT("fp8-amax-compute-algo", VALUE),
    MOOT("tiktoken-pattern", VALUE),
    MOOT("recipe", VALUE),
    MOOT("mode", VALUE),
    MOOT("dataset", VALUE),
};

const mf_word *mf_word_at(size_t i) {
    return i < sizeof words / sizeof words[0] ? &words[i] : NULL;
}

/* "a-b" and "a_b" are the same. */
static bool same(const char *a, const char *b, size_t length) {
    for (size_t i = 0; i < length; i++) {
        char x = b[i] == '_' ? '-' : b[i], y = a[i] == '_' ? '-' : a[i];
        if (x != y || x == '\0') {
            return false;
        }
    }
    return a[length] == '\0';
}

bool mf_word_is_key(const mf_word *w) {
    return w->key != NULL && strcmp(w->key, w->flag) == 0;
}

const mf_word *mf_word_of_flag(const char *flag, size_t length) {
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!mf_word_is_key(&words[i]) && same(words[i].flag, flag, length)) {
            return &words[i];
        }
    }
    return NULL;
}

const mf_word *mf_word_of_key(const char *key, size_t length) {
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (words[i].key != NULL && same(words[i].key, key, length)) {
            return &words[i];
        }
    }
    return NULL;
}

const mf_word *mf_word_of_dest(const char *dest, size_t length) {
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (words[i].dest != NULL ? same(words[i].dest, dest, length)
                                  : same(words[i].flag, dest, length)) {
            return &words[i];
        }
    }
    return NULL;
}
