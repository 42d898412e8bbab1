/* words.c - the table of settings, and looking into it. */
#include "launch/words/words.h"

#include <string.h>

#define SWITCH MF_WORD_SWITCH
#define VALUE MF_WORD_VALUE
#define LIST MF_WORD_LIST
#define EACH MF_WORD_EACH
#define MODEL(flag, kind, key)                                                                     \
    { flag, kind, "model." key, NULL, false, false }
#define MOOT(flag, kind)                                                                           \
    { flag, kind, NULL, NULL, false, true }
/* What a start says beside the plan. */
#define RUN(flag, kind, key)                                                                       \
    { flag, kind, key, NULL, false, true }
/* A switch whose key says the opposite. */
#define UNLESS(flag, key)                                                                          \
    { flag, SWITCH, key, NULL, true, true }
/* What Megatron-LM has no flag for. */
#define OWN(key, kind)                                                                             \
    { key, kind, key, NULL, false, true }

static const mf_word words[] = {
    /* degrees and batch */
    MODEL("tensor-model-parallel-size", VALUE, "tensor_model_parallel_size"),
    MODEL("sequence-parallel", SWITCH, "sequence_parallel"),
    MODEL("context-parallel-size", VALUE, "context_parallel_size"),
    MODEL("cp-comm-type", EACH, "cp_comm_type"),
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
    OWN("optimizer.use_distributed_optimizer", SWITCH), /* one of the two turns both on */
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
    {"fp8-param-gather", SWITCH, "ddp.fp8_param_gather", NULL, false, false},
    {"fp4-param-gather", SWITCH, "ddp.fp4_param_gather", NULL, false, false},
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
    MODEL("multi-latent-attention", SWITCH, "multi_latent_attention"),
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
    MODEL("vocab-size", VALUE, "vocab_size"),
    /* launchers */
    {"nnodes", VALUE, NULL, NULL, false, false},
    {"nproc-per-node", VALUE, NULL, NULL, false, false},
    {"nodes", VALUE, NULL, NULL, false, false},
    {"ntasks-per-node", VALUE, NULL, NULL, false, false},
    /* what moefold writes or meets, and does not price */
    MOOT("cuda-graph-warmup-steps", VALUE),
    RUN("add-qkv-bias", SWITCH, "model.add_qkv_bias"),
    RUN("normalization", VALUE, "model.normalization"),
    RUN("norm-epsilon", VALUE, "model.layernorm_epsilon"),
    RUN("qk-layernorm", SWITCH, "model.qk_layernorm"),
    RUN("position-embedding-type", VALUE, "model.position_embedding_type"),
    RUN("rotary-base", VALUE, "model.rotary_base"),
    RUN("rotary-percent", VALUE, "model.rotary_percent"),
    MOOT("rotary-interleaved", SWITCH),
    RUN("rope-type", VALUE, "model.rope_type"),
    RUN("use-rope-scaling", SWITCH, "model.rope_scaling"),
    RUN("rope-scaling-factor", VALUE, "model.rope_scaling_factor"),
    RUN("rotary-scaling-factor", VALUE, "model.rotary_scaling_factor"),
    RUN("rotary-seq-len-interpolation-factor", VALUE, "model.seq_len_interpolation_factor"),
    RUN("mscale", VALUE, "model.mscale"),
    RUN("mscale-all-dim", VALUE, "model.mscale_all_dim"),
    RUN("yarn-original-max-position-embeddings", VALUE,
        "model.yarn_original_max_position_embeddings"),
    RUN("yarn-beta-fast", VALUE, "model.yarn_beta_fast"),
    RUN("yarn-beta-slow", VALUE, "model.yarn_beta_slow"),
    RUN("yarn-correction-range-round-to-int", SWITCH, "model.yarn_correction_range_round_to_int"),
    MOOT("no-yarn-correction-range-round-to-int", SWITCH),
    MOOT("max-position-embeddings", VALUE),
    MOOT("make-vocab-size-divisible-by", VALUE),
    MOOT("swiglu", SWITCH),
    MOOT("quick-geglu", SWITCH),
    RUN("glu-linear-offset", VALUE, "model.glu_linear_offset"),
    RUN("activation-func-clamp-value", VALUE, "model.activation_func_clamp_value"),
    MOOT("squared-relu", SWITCH),
    RUN("softmax-type", VALUE, "model.softmax_type"),
    RUN("apply-layernorm-1p", SWITCH, "model.layernorm_zero_centered_gamma"),
    RUN("attention-output-gate", SWITCH, "model.attention_output_gate"),
    RUN("experimental-attention-variant", VALUE, "model.experimental_attention_variant"),
    MOOT("linear-attention-type", VALUE), /* the same before it got that name */
    RUN("linear-attention-freq", VALUE, "model.linear_attention_freq"),
    RUN("linear-conv-kernel-dim", VALUE, "model.linear_conv_kernel_dim"),
    RUN("linear-key-head-dim", VALUE, "model.linear_key_head_dim"),
    RUN("linear-value-head-dim", VALUE, "model.linear_value_head_dim"),
    RUN("linear-num-key-heads", VALUE, "model.linear_num_key_heads"),
    RUN("linear-num-value-heads", VALUE, "model.linear_num_value_heads"),
    RUN("dsa-indexer-n-heads", VALUE, "model.dsa_indexer_n_heads"),
    RUN("dsa-indexer-head-dim", VALUE, "model.dsa_indexer_head_dim"),
    RUN("dsa-indexer-topk", VALUE, "model.dsa_indexer_topk"),
    RUN("dsa-indexer-topk-freq", VALUE, "model.dsa_indexer_topk_freq"),
    RUN("dsa-indexer-skip-topk-offset", VALUE, "model.dsa_indexer_skip_topk_offset"),
    RUN("dsa-indexer-loss-coeff", VALUE, "model.dsa_indexer_loss_coeff"),
    RUN("dsa-indexer-use-sparse-loss", SWITCH, "model.dsa_indexer_use_sparse_loss"),
    RUN("dsa-indexer-rope-interleaved", SWITCH, "model.dsa_indexer_rope_interleaved"),
    UNLESS("no-dsa-indexer-rotate-activation", "model.dsa_indexer_rotate_activation"),
    RUN("dsa-indexer-k-norm-epsilon", VALUE, "model.dsa_indexer_k_norm_epsilon"),
    MOOT("spec", LIST),
    OWN("model.gated_linear_unit", SWITCH),
    OWN("model.activation_func", VALUE),
    OWN("model.bias_activation_fusion", SWITCH),
    OWN("model.yarn_rotary_scaling_factor", VALUE),
    OWN("model.yarn_mscale", VALUE),
    OWN("model.yarn_mscale_all_dim", VALUE),
    RUN("mamba-num-heads", VALUE, "model.mamba_num_heads"),
    RUN("mamba-head-dim", VALUE, "model.mamba_head_dim"),
    RUN("mamba-num-groups", VALUE, "model.mamba_num_groups"),
    RUN("mamba-state-dim", VALUE, "model.mamba_state_dim"),
    RUN("moe-latent-size", VALUE, "model.moe_latent_size"),
    RUN("window-size", VALUE, "model.window_size"),
    RUN("window-attn-skip-freq", VALUE, "model.window_attn_skip_freq"),
    UNLESS("untie-embeddings-and-output-weights", "model.share_embeddings_and_output_weights"),
    UNLESS("disable-bias-linear", "model.add_bias_linear"),
    RUN("moe-shared-expert-gate", SWITCH, "model.moe_shared_expert_gate"),
    RUN("moe-router-score-function", VALUE, "model.moe_router_score_function"),
    RUN("moe-router-pre-softmax", SWITCH, "model.moe_router_pre_softmax"),
    RUN("moe-router-num-groups", VALUE, "model.moe_router_num_groups"),
    RUN("moe-router-group-topk", VALUE, "model.moe_router_group_topk"),
    RUN("moe-router-topk-scaling-factor", VALUE, "model.moe_router_topk_scaling_factor"),
    RUN("moe-router-enable-expert-bias", SWITCH, "model.moe_router_enable_expert_bias"),
    RUN("moe-router-bias-update-rate", VALUE, "model.moe_router_bias_update_rate"),
    RUN("moe-router-load-balancing-type", EACH, "model.moe_router_load_balancing_type"),
    RUN("moe-aux-loss-coeff", EACH, "model.moe_aux_loss_coeff"),
    RUN("moe-router-dtype", VALUE, "model.moe_router_dtype"),
    MOOT("moe-router-fusion", SWITCH),
    MOOT("moe-router-padding-for-fp8", SWITCH),
    MOOT("moe-router-padding-for-quantization", SWITCH),
    MOOT("moe-router-force-load-balancing", SWITCH),
    MODEL("moe-shared-expert-overlap", SWITCH, "moe_shared_expert_overlap"),
    MOOT("moe-hybridep-num-sms", VALUE),
    MOOT("moe-deepep-num-sms", VALUE),
    RUN("mtp-loss-scaling-factor", VALUE, "model.mtp_loss_scaling_factor"),
    MOOT("use-mcore-models", SWITCH),
    RUN("transformer-impl", VALUE, "model.transformer_impl"),
    MOOT("attention-backend", VALUE),
    MOOT("use-flash-attn", SWITCH),
    RUN("attention-dropout", VALUE, "model.attention_dropout"),
    RUN("hidden-dropout", VALUE, "model.hidden_dropout"),
    MOOT("cross-entropy-loss-fusion", SWITCH),
    MOOT("cross-entropy-fusion-impl", VALUE),
    MOOT("enable-experimental", SWITCH),
    UNLESS("no-rope-fusion", "model.apply_rope_fusion"),
    MOOT("no-bias-swiglu-fusion", SWITCH),
    MOOT("no-gradient-accumulation-fusion", SWITCH),
    MOOT("init-model-with-meta-device", SWITCH),
    MOOT("calculate-per-token-loss", SWITCH),
    RUN("te-rng-tracker", SWITCH, "rng.te_rng_tracker"),
    MOOT("main-grads-dtype", VALUE),
    MOOT("main-params-dtype", VALUE),
    RUN("reuse-grad-buf-for-mxfp8-param-ag", SWITCH, "ddp.reuse_grad_buf_for_mxfp8_param_ag"),
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
    RUN("init-method-std", VALUE, "model.init_method_std"),
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
    OWN("tokenizer.vocab_size", VALUE),
    OWN("tokenizer.use_tokenizer_vocab_size", SWITCH),
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
    MOOT("no-python", SWITCH),
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

bool mf_word_takes_several(const mf_word *w) {
    return w->kind == LIST || w->kind == EACH;
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
