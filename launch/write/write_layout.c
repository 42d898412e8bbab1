/* write_layout.c - a layout and its assignment as settings.
 *
 * Names and meanings: megatron/core/transformer/transformer_config.py, model_parallel_config.py,
 * megatron/training/arguments.py and training/config/ of Megatron-LM, and
 * docs/megatron-lm-to-megatron-bridge.md and training/comm_overlap.py of Megatron-Bridge, at the
 * commits of launch/target/target.c.
 */
#include "launch/write/write.h"

#include <string.h>

#define LL(x) ((long long)(x))

void mf_write_stages(const mf_model *m, const mf_assignment *a, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    for (int v = 0; v < a->vstages && used < size; v++) {
        int layers = 0, depths = 0;
        bool embedding = false, head = false;
        for (int at = a->first[v]; at < a->first[v + 1]; at++) {
            mf_position_kind kind = mf_position_kind_of(m, at);
            embedding = embedding || kind == MF_POS_EMBEDDING;
            head = head || kind == MF_POS_HEAD;
            layers += kind == MF_POS_LAYER;
            depths += kind == MF_POS_MTP;
        }
        used += (size_t)snprintf(out + used, size - used, "%s%s", v > 0 ? "|" : "",
                                 embedding ? "E" : "");
        if (layers > 0 && used < size) {
            used += (size_t)snprintf(out + used, size - used, layers > 1 ? "t*%d" : "t", layers);
        }
        for (int d = 0; d < depths && used < size; d++) {
            used += (size_t)snprintf(out + used, size - used, "m");
        }
        if (head && used < size) {
            used += (size_t)snprintf(out + used, size - used, "L");
        }
    }
}

/* Layers of virtual stages. A hybrid's letters are its layers, too: where a recipe builds it, they
 * are said for the stages alone. */
static void write_chunks(const mf_launch *x, mf_settings *s) {
    const mf_layout *l = &x->plan->layout;
    const bool several = l->pp > 1 || l->vpp > 1;
    const bool whole = x->target == MF_TARGET_MEGATRON || mf_write_builds(x);
    char stages[4096];
    if (mf_target_is_hybrid(x->model)) {
        if (several || whole) {
            mf_write_letters(x->model, &x->plan->assignment, whole, stages, sizeof stages);
            mf_settings_put(s, "hybrid-layer-pattern", "%s", stages);
        }
    } else if (several) {
        if (l->vpp > 1) {
            mf_settings_put(s, "model.virtual_pipeline_model_parallel_size", "%lld", LL(l->vpp));
        }
        mf_write_stages(x->model, &x->plan->assignment, stages, sizeof stages);
        mf_settings_put(s, "pipeline-model-parallel-layout", "%s", stages);
    }
}

static void write_degrees(const mf_launch *x, mf_settings *s) {
    const mf_layout *l = &x->plan->layout;
    mf_settings_put(s, "tensor-model-parallel-size", "%lld", LL(l->tp));
    if (l->tp > 1) {
        mf_settings_on(s, "sequence-parallel");
    }
    mf_settings_put(s, "context-parallel-size", "%lld", LL(l->cp));
    mf_settings_put(s, "pipeline-model-parallel-size", "%lld", LL(l->pp));
    write_chunks(x, s);
    if (x->model->experts > 0) {
        mf_settings_put(s, "expert-model-parallel-size", "%lld", LL(l->ep));
        mf_settings_put(s, "expert-tensor-parallel-size", "%lld", LL(l->etp));
    }
    mf_settings_put(s, "micro-batch-size", "%lld", LL(l->mbs));
    mf_settings_put(s, "global-batch-size", "%lld", LL(l->gbs));
    mf_settings_put(s, "seq-length", "%lld", LL(l->seq));
    mf_settings_put(s, "dataset.seq_length", "%lld", LL(l->seq));
}

static void write_context(const mf_launch *x, mf_settings *s) {
    static const char *const words[MF_CP_COUNT] = {
        [MF_CP_RING] = "p2p",
        [MF_CP_ALLGATHER] = "all_gather",
        [MF_CP_ALLTOALL] = "a2a",
        [MF_CP_HIERARCHICAL] = "a2a+p2p",
    };
    const mf_layout *l = &x->plan->layout;
    if (l->cp == 1) {
        return;
    }
    mf_settings_put(s, "cp-comm-type", "%s", words[l->cp_type]);
    if (l->cp_type == MF_CP_HIERARCHICAL) {
        int64_t inside = x->cluster->domain_gpus_used / l->tp;
        while (inside > 1 && l->cp % inside != 0) {
            inside--;
        }
        inside = inside < 1 ? 1 : inside > l->cp ? l->cp : inside;
        mf_settings_put(s, "hierarchical-context-parallel-sizes", "%lld %lld", LL(inside),
                        LL(l->cp / inside));
    }
}

static void write_communication(const mf_launch *x, mf_settings *s) {
    const mf_layout *l = &x->plan->layout;
    write_context(x, s);
    if (l->schedule == MF_SCHED_MERGED) {
        mf_settings_on(s, "overlap-moe-expert-parallel-comm");
        mf_settings_on(s, "delay-wgrad-compute");
    } else if ((l->overlap & MF_OVERLAP_EP) != 0) {
        mf_settings_on(s, "moe-shared-expert-overlap");
    }
    if ((l->overlap & MF_OVERLAP_PP) == 0) {
        mf_settings_on(s, "no-overlap-p2p-communication");
    }
    if ((l->overlap & MF_OVERLAP_TP) != 0) {
        mf_settings_on(s, "tp-comm-overlap");
    }
    if ((l->overlap & MF_OVERLAP_DP) != 0) {
        mf_settings_on(s, "overlap-grad-reduce");
        if (l->zero > 0) {
            mf_settings_on(s, "overlap-param-gather");
        }
    }
    if (x->model->experts == 0) {
        return;
    }
    if (l->dispatcher == MF_DISPATCH_FUSED && l->ep * l->etp > 1) {
        mf_settings_put(s, "moe-token-dispatcher-type", "flex");
        mf_settings_put(s, "moe-flex-dispatcher-backend", "hybridep");
        if ((l->traits & MF_TRAIT_DISPATCH_PERMUTES) != 0) {
            mf_settings_on(s, "moe-permute-fusion-into-hybridep");
        }
    } else {
        mf_settings_put(s, "moe-token-dispatcher-type", "%s",
                        l->dispatcher == MF_DISPATCH_ALLGATHER ? "allgather" : "alltoall");
    }
    if (l->capacity_factor > 0) {
        mf_settings_put_f64(s, "moe-expert-capacity-factor", l->capacity_factor);
    }
    if (l->pad_to_capacity) {
        mf_settings_on(s, "moe-pad-expert-input-to-capacity");
    }
}

static void write_sharding(const mf_layout *l, mf_settings *s) {
    static const char *const strategy[] = {"no_shard", "optim", "optim_grads",
                                           "optim_grads_params"};
    if (l->zero > 0) {
        mf_settings_on(s, "use-distributed-optimizer");
    }
    mf_settings_put(s, "optimizer.use_distributed_optimizer", l->zero > 0 ? "true" : "false");
    if (l->zero > 1) {
        mf_settings_on(s, "use-megatron-fsdp");
        mf_settings_put(s, "data-parallel-sharding-strategy", "%s", strategy[l->zero]);
    }
    mf_settings_put(s, "ckpt-format", "%s", l->zero > 1 ? "fsdp_dtensor" : "torch_dist");
    if (l->grads_bf16) {
        mf_settings_on(s, "grad-reduce-in-bf16");
    }
    if (l->moments_bf16 || l->offload_optimizer > 0) {
        mf_settings_on(s, "use-precision-aware-optimizer");
    }
    if (l->moments_bf16) {
        mf_settings_put(s, "exp-avg-dtype", "bf16");
        mf_settings_put(s, "exp-avg-sq-dtype", "bf16");
    }
    if (l->offload_optimizer > 0) {
        mf_settings_on(s, "optimizer-cpu-offload");
        mf_settings_put_f64(s, "optimizer-offload-fraction", l->offload_optimizer);
        mf_settings_on(s, "overlap-cpu-optimizer-d2h-h2d");
    }
}

/* Megatron-Bridge's configuration of a precision wins over what ddp and model say. It has names,
 * whose other choices (gradients, gathered weights, first and last layers) are fixed: one of them
 * where it says what the plan does, else all of it. */
static void write_named_precision(const mf_layout *l, const char *format, const char *recipe,
                                  const char *name, mf_settings *s) {
    const bool four = l->precision == MF_PREC_NVFP4, eight = format != NULL && !four;
    const bool primary = l->fp8_primary_weights;
    const bool gathers = l->precision == MF_PREC_MXFP8 || four; /* so named */
    const bool same = gathers ? primary : format == NULL;
    char low[160] = "";
    if (same && !l->grads_bf16 && !l->fp8_attention) {
        mf_settings_put(s, "mixed_precision", "%s", name);
        return;
    }
    if (format != NULL) {
        snprintf(low, sizeof low, ",%s:%s,%s_recipe:%s,%s_param_gather:%s", eight ? "fp8" : "fp4",
                 format, eight ? "fp8" : "fp4", recipe, eight ? "fp8" : "fp4",
                 primary ? "true" : "false");
    }
    mf_settings_put(s, "mixed_precision",
                    "{_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,"
                    "bf16:true,params_dtype:{_target_:torch.bfloat16,_call_:false},"
                    "pipeline_dtype:{_target_:torch.bfloat16,_call_:false},"
                    "grad_reduce_in_fp32:%s%s%s%s}",
                    l->grads_bf16 ? "false" : "true", low,
                    l->fp8_attention ? ",fp8_dot_product_attention:true" : "",
                    primary && l->precision == MF_PREC_MXFP8 && l->zero == 1
                        ? ",reuse_grad_buf_for_mxfp8_param_ag:true"
                        : "");
}

static void write_precision(const mf_layout *l, mf_settings *s) {
    static const struct {
        const char *format_flag, *format, *recipe_flag, *recipe, *bridge;
    } row[MF_PREC_COUNT] = {
        [MF_PREC_BF16] = {NULL, NULL, NULL, NULL, "bf16_mixed"},
        [MF_PREC_FP8_TENSOR] = {"fp8-format", "hybrid", "fp8-recipe", "tensorwise",
                                "bf16_with_fp8_current_scaling_mixed"},
        [MF_PREC_FP8_BLOCK] = {"fp8-format", "e4m3", "fp8-recipe", "blockwise",
                               "bf16_with_fp8_subchannel_scaling_mixed"},
        [MF_PREC_MXFP8] = {"fp8-format", "e4m3", "fp8-recipe", "mxfp8", "bf16_with_mxfp8_mixed"},
        [MF_PREC_NVFP4] = {"fp4-format", "e2m1", "fp4-recipe", "nvfp4", "bf16_with_nvfp4_mixed"},
    };
    if (l->precision == MF_PREC_FP32) { /* of Megatron-LM what holds without a flag */
        mf_settings_put(s, "mixed_precision", "null");
        return;
    }
    mf_settings_on(s, "bf16");
    write_named_precision(l, row[l->precision].format, row[l->precision].recipe,
                          row[l->precision].bridge, s);
    if (row[l->precision].format_flag != NULL) {
        mf_settings_put(s, row[l->precision].format_flag, "%s", row[l->precision].format);
        mf_settings_put(s, row[l->precision].recipe_flag, "%s", row[l->precision].recipe);
    }
    if (l->fp8_primary_weights) {
        mf_settings_on(s, l->precision == MF_PREC_NVFP4 ? "fp4-param-gather" : "fp8-param-gather");
        if (l->precision == MF_PREC_MXFP8 && l->zero == 1) {
            mf_settings_on(s, "reuse-grad-buf-for-mxfp8-param-ag");
        }
    }
    if (l->fp8_attention) {
        mf_settings_on(s, "model.fp8_dot_product_attention");
    }
}

/* --- memory choices and graphs ---------------------------------------------------------------- */

typedef struct module {
    uint16_t bit;
    const char *words;
} module;

static void join(const module *row, size_t count, uint16_t mask, char *out, size_t size) {
    out[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(out);
        if ((mask & row[i].bit) != 0) {
            snprintf(out + used, size - used, "%s%s", used > 0 ? " " : "", row[i].words);
        }
    }
}

static void write_recompute(const mf_model *m, const mf_common_choice *c, mf_settings *s) {
    static const module modules[] = {
        {MF_RECOMPUTE_NORM, "layernorm"},
        {MF_RECOMPUTE_ACT, "moe_act"},
        {MF_RECOMPUTE_MLA_UP_PROJ, "mla_up_proj"},
        {MF_RECOMPUTE_CORE_ATTN, "core_attn"},
        {MF_RECOMPUTE_SHARED_EXPERT, "shared_experts"},
        {MF_RECOMPUTE_MOE, "moe"},
        {MF_RECOMPUTE_MLP, "mlp"},
    };
    char words[256];
    (void)m;
    if ((c->recompute & MF_RECOMPUTE_LAYER) != 0) {
        mf_settings_put(s, "recompute-granularity", "full");
        mf_settings_put(s, "recompute-method", "%s", c->first > 0 ? "block" : "uniform");
        mf_settings_put(s, "recompute-num-layers", "%d", c->first > 0 ? c->first : 1);
        return;
    }
    join(modules, sizeof modules / sizeof modules[0], c->recompute, words, sizeof words);
    if (words[0] != '\0') {
        mf_settings_put(s, "recompute-granularity", "selective");
        mf_settings_put(s, "recompute-modules", "%s", words);
    }
}

static void write_offload(const mf_common_choice *c, mf_settings *s) {
    static const module modules[] = {
        {MF_OFFLOAD_INPUT, "attn_norm mlp_norm"}, {MF_OFFLOAD_QKV, "core_attn"},
        {MF_OFFLOAD_ATTN_OUT, "attn_proj"},       {MF_OFFLOAD_EXPERT_IN, "expert_fc1"},
        {MF_OFFLOAD_EXPERT_FC1, "moe_act"},
    };
    char words[256];
    join(modules, sizeof modules / sizeof modules[0], c->offload, words, sizeof words);
    if (words[0] != '\0') {
        mf_settings_on(s, "fine-grained-activation-offloading");
        mf_settings_put(s, "offload-modules", "%s", words);
        if (c->share < 1) {
            mf_settings_put_f64(s, "activation-offload-fraction", c->share);
        }
    }
}

static void write_graphs(const mf_launch *x, const mf_common_choice *c, mf_settings *s) {
    const mf_layout *l = &x->plan->layout;
    if (l->graph == MF_GRAPH_PARTIAL) {
        bool router = x->model->experts > 0 && !(c->recompute & MF_RECOMPUTE_MOE);
        mf_settings_put(s, "cuda-graph-impl", "transformer_engine");
        mf_settings_put(s, "cuda-graph-modules", "attn%s%s",
                        mf_target_is_hybrid(x->model) ? " mamba" : "",
                        router                  ? " moe_router moe_preprocess"
                        : x->model->experts > 0 ? ""
                                                : " mlp");
        mf_settings_on(s, "te-rng-tracker");
    } else if (l->graph == MF_GRAPH_STEP) {
        mf_settings_put(s, "cuda-graph-impl", "full_iteration");
        mf_settings_on(s, "no-check-for-nan-in-loss-and-grad");
        mf_settings_on(s, "te-rng-tracker");
    }
}

/* A recipe of Megatron-Bridge has choices of its own: what the plan does not choose is said, too.
 */
static void write_absences(mf_settings *s) {
    static const struct {
        const char *name, *off;
    } rows[] = {
        {"sequence-parallel", "false"},
        {"model.virtual_pipeline_model_parallel_size", "null"},
        {"pipeline-model-parallel-layout", "null"},
        {"mtp-num-layers", "null"},
        {"overlap-moe-expert-parallel-comm", "false"},
        {"delay-wgrad-compute", "false"},
        {"moe-shared-expert-overlap", "false"},
        {"tp-comm-overlap", "false"},
        {"overlap-grad-reduce", "false"},
        {"overlap-param-gather", "false"},
        {"use-distributed-optimizer", "false"},
        {"use-megatron-fsdp", "false"},
        {"fp8-param-gather", "false"},
        {"grad-reduce-in-bf16", "false"},
        {"exp-avg-dtype", "fp32"},
        {"exp-avg-sq-dtype", "fp32"},
        {"optimizer-cpu-offload", "false"},
        {"recompute-granularity", "null"},
        {"recompute-method", "null"},
        {"recompute-num-layers", "null"},
        {"fine-grained-activation-offloading", "false"},
        {"cuda-graph-impl", "none"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!mf_settings_has(s, rows[i].name)) {
            mf_settings_put(s, rows[i].name, "%s", rows[i].off);
        }
    }
}

void mf_write_layout(const mf_launch *x, mf_settings *out) {
    mf_common_choice c;
    write_degrees(x, out);
    write_communication(x, out);
    write_sharding(&x->plan->layout, out);
    write_precision(&x->plan->layout, out);
    if (mf_common_choice_of(x->model, &x->plan->assignment, &c)) {
        write_recompute(x->model, &c, out);
        write_offload(&c, out);
    }
    write_graphs(x, &c, out);
    if (x->target == MF_TARGET_BRIDGE) {
        if (x->model->classes == 1 && x->model->mtp_layers == 0) {
            mf_settings_put(out, "num-layers", "%lld", LL(x->model->layers));
        }
        if (x->model->mtp_layers > 0) {
            mf_settings_put(out, "mtp-num-layers", "%lld", LL(x->model->mtp_layers));
        }
        write_absences(out);
    }
}
