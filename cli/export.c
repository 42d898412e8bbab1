/* export.c - a plan as settings of Megatron-LM and Megatron-Bridge.
 *
 * Names and meanings: megatron/core/transformer/transformer_config.py, model_parallel_config.py,
 * megatron/training/arguments.py and training/config/ of Megatron-LM, and
 * docs/megatron-lm-to-megatron-bridge.md and training/comm_overlap.py of Megatron-Bridge, at the
 * commits that cmd_export.c names.
 */
#include "cli/export.h"

#include <stdio.h>
#include <string.h>

#define LL(x) ((long long)(x))

/* --- building --------------------------------------------------------------------------------- */

static void put(mf_export *x, const char *flag, const char *key, const char *fmt, ...)
    MF_PRINTF(4, 5);
static void put(mf_export *x, const char *flag, const char *key, const char *fmt, ...) {
    va_list args;
    if (x->items == MF_EXPORT_MAX_ITEMS) {
        return;
    }
    mf_export_item *it = &x->item[x->items++];
    it->flag = flag;
    it->key = key;
    va_start(args, fmt);
    vsnprintf(it->value, sizeof it->value, fmt, args);
    va_end(args);
}

static void put_on(mf_export *x, const char *flag, const char *key) {
    put(x, flag, key, "%s", "");
}

static void put_list(mf_export *x, const char *flag, const char *key, const char *words) {
    put(x, flag, key, "%s", words);
    x->item[x->items - 1].list = true;
}

static void note(mf_export *x, const char *fmt, ...) MF_PRINTF(2, 3);
static void note(mf_export *x, const char *fmt, ...) {
    va_list args;
    if (x->notes == MF_EXPORT_MAX_NOTES) {
        return;
    }
    va_start(args, fmt);
    vsnprintf(x->note[x->notes++], sizeof x->note[0], fmt, args);
    va_end(args);
}

static void add_word(char *list, size_t size, const char *word) {
    size_t used = strlen(list);
    snprintf(list + used, size - used, "%s%s", used > 0 ? " " : "", word);
}

/* --- degrees and stages ----------------------------------------------------------------------- */

void mf_export_stages(const mf_plan *p, const mf_model *m, char *out, size_t size) {
    const mf_assignment *a = &p->assignment;
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

static void put_degrees(mf_export *x, const mf_plan *p, const mf_model *m) {
    const mf_layout *l = &p->layout;
    char stages[2048];
    put(x, "--tensor-model-parallel-size", "model.tensor_model_parallel_size", "%lld", LL(l->tp));
    if (l->tp > 1) {
        put_on(x, "--sequence-parallel", "model.sequence_parallel");
    }
    put(x, "--context-parallel-size", "model.context_parallel_size", "%lld", LL(l->cp));
    put(x, "--pipeline-model-parallel-size", "model.pipeline_model_parallel_size", "%lld",
        LL(l->pp));
    if (l->pp > 1) {
        if (l->vpp > 1) {
            put(x, NULL, "model.virtual_pipeline_model_parallel_size", "%lld", LL(l->vpp));
        }
        mf_export_stages(p, m, stages, sizeof stages);
        put(x, "--pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout", "%s",
            stages);
    }
    if (m->experts > 0) {
        put(x, "--expert-model-parallel-size", "model.expert_model_parallel_size", "%lld",
            LL(l->ep));
        put(x, "--expert-tensor-parallel-size", "model.expert_tensor_parallel_size", "%lld",
            LL(l->etp));
    }
    put(x, "--micro-batch-size", "train.micro_batch_size", "%lld", LL(l->mbs));
    put(x, "--global-batch-size", "train.global_batch_size", "%lld", LL(l->gbs));
    put(x, "--seq-length", "model.seq_length", "%lld", LL(l->seq));
    put(x, NULL, "dataset.seq_length", "%lld", LL(l->seq));
    if (m->mtp_layers > 0) {
        put(x, "--mtp-num-layers", "model.mtp_num_layers", "%lld", LL(m->mtp_layers));
    }
}

/* --- schedule and communication --------------------------------------------------------------- */

static void put_schedule(mf_export *x, const mf_layout *l) {
    bool ep = l->schedule == MF_SCHED_MERGED || (l->overlap & MF_OVERLAP_EP) != 0;
    switch (l->schedule) {
    case MF_SCHED_1F1B:
    case MF_SCHED_INTERLEAVED:
        break;
    case MF_SCHED_MERGED:
        put_on(x, "--delay-wgrad-compute", "comm_overlap.delay_wgrad_compute");
        break;
    case MF_SCHED_GPIPE:
    case MF_SCHED_ZB_H1:
    case MF_SCHED_ZB_V:
    case MF_SCHED_COUNT:
        note(x, "schedule %s: there is none like it; %s runs instead",
             mf_schedule_text(l->schedule), l->vpp > 1 ? "interleaved 1F1B" : "1F1B");
        break;
    }
    if (l->schedule == MF_SCHED_ZB_V) {
        note(x, "zb-v folds stages into a V; the layout above would run them round robin");
    }
    if (ep) {
        put_on(x, "--overlap-moe-expert-parallel-comm",
               "comm_overlap.overlap_moe_expert_parallel_comm");
        if (l->pp > 1 && l->vpp == 1) {
            note(x, "overlapping expert communication asks for virtual stages when PP > 1");
        }
    }
    if (l->pp > 1 && l->vpp > 1 && (l->overlap & MF_OVERLAP_PP) == 0) {
        put_on(x, "--no-overlap-p2p-communication", NULL);
        put(x, NULL, "comm_overlap.overlap_p2p_comm", "false");
    }
    if (l->tp > 1 && (l->overlap & MF_OVERLAP_TP) != 0) {
        put_on(x, "--tp-comm-overlap", "comm_overlap.tp_comm_overlap");
    }
    if ((l->overlap & MF_OVERLAP_DP) != 0 && l->zero == 0) {
        put_on(x, "--overlap-grad-reduce", "comm_overlap.overlap_grad_reduce");
    } else if ((l->overlap & MF_OVERLAP_DP) != 0) {
        put_on(x, "--overlap-grad-reduce", "comm_overlap.overlap_grad_reduce");
        put_on(x, "--overlap-param-gather", "comm_overlap.overlap_param_gather");
    }
}

static void put_communication(mf_export *x, const mf_layout *l, const mf_model *m) {
    static const char *const cp[MF_CP_COUNT] = {
        [MF_CP_RING] = "p2p",
        [MF_CP_ALLGATHER] = "all_gather",
        [MF_CP_ALLTOALL] = "a2a",
        [MF_CP_HIERARCHICAL] = "a2a+p2p",
    };
    if (l->cp > 1) {
        put(x, "--cp-comm-type", "model.cp_comm_type", "%s", cp[l->cp_type]);
        if (l->cp_type == MF_CP_HIERARCHICAL) {
            note(x, "set --hierarchical-context-parallel-sizes to the ranks inside and across the "
                    "NVLink domain");
        }
        if ((l->overlap & MF_OVERLAP_CP) != 0 && l->cp_type != MF_CP_RING) {
            note(x, "all-gather and all-to-all CP by pieces beside attention (overlap cp) has no "
                    "flag there");
        }
    }
    if (m->experts == 0) {
        return;
    }
    if (l->dispatcher == MF_DISPATCH_FUSED) {
        put(x, "--moe-token-dispatcher-type", "model.moe_token_dispatcher_type", "flex");
        put(x, "--moe-flex-dispatcher-backend", "model.moe_flex_dispatcher_backend", "hybridep");
    } else {
        put(x, "--moe-token-dispatcher-type", "model.moe_token_dispatcher_type", "%s",
            mf_dispatcher_text(l->dispatcher));
    }
    put_on(x, "--moe-grouped-gemm", "model.moe_grouped_gemm");
    put_on(x, "--moe-permute-fusion", "model.moe_permute_fusion");
}

/* --- parameters and optimizer ----------------------------------------------------------------- */

static void put_sharding(mf_export *x, const mf_layout *l, const mf_model *m) {
    static const char *const strategy[] = {"no_shard", "optim", "optim_grads",
                                           "optim_grads_params"};
    if (l->zero == 1) {
        put_on(x, "--use-distributed-optimizer", "ddp.use_distributed_optimizer");
    } else if (l->zero > 1) {
        put_on(x, "--use-megatron-fsdp", "ddp.use_megatron_fsdp");
        put(x, "--data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy", "%s",
            strategy[l->zero]);
    }
    if (m->experts > 0 && l->zero != l->expert_zero) {
        note(x, "expert ZeRO %d: dense and expert parameters are sharded alike, at level %d",
             l->expert_zero, l->zero);
    }
    if (l->grads_bf16) {
        put_on(x, "--grad-reduce-in-bf16", NULL);
        put(x, NULL, "ddp.grad_reduce_in_fp32", "false");
        note(x, "BF16 gradients: a mixed_precision that is named by a word sets "
                "grad_reduce_in_fp32 again in Megatron-Bridge; its recipe has to change it, too");
    }
    if (l->moments_bf16) {
        put_on(x, "--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer");
        put(x, "--exp-avg-dtype", "optimizer.exp_avg_dtype", "bf16");
        put(x, "--exp-avg-sq-dtype", "optimizer.exp_avg_sq_dtype", "bf16");
    }
    if (l->offload_optimizer > 0) {
        put_on(x, "--optimizer-cpu-offload", "optimizer.optimizer_cpu_offload");
        put(x, "--optimizer-offload-fraction", "optimizer.optimizer_offload_fraction", "%g",
            l->offload_optimizer);
        put_on(x, "--overlap-cpu-optimizer-d2h-h2d", "optimizer.overlap_cpu_optimizer_d2h_h2d");
    }
}

static void put_precision(mf_export *x, const mf_layout *l) {
    static const struct {
        const char *format_flag, *format, *recipe_flag, *recipe, *bridge;
    } row[MF_PREC_COUNT] = {
        [MF_PREC_BF16] = {NULL, NULL, NULL, NULL, "bf16_mixed"},
        [MF_PREC_FP8_TENSOR] = {"--fp8-format", "hybrid", "--fp8-recipe", "tensorwise",
                                "bf16_with_fp8_current_scaling_mixed"},
        [MF_PREC_FP8_BLOCK] = {"--fp8-format", "e4m3", "--fp8-recipe", "blockwise",
                               "bf16_with_fp8_subchannel_scaling_mixed"},
        [MF_PREC_MXFP8] = {"--fp8-format", "e4m3", "--fp8-recipe", "mxfp8",
                           "bf16_with_mxfp8_mixed"},
        [MF_PREC_NVFP4] = {"--fp4-format", "e2m1", "--fp4-recipe", "nvfp4",
                           "bf16_with_nvfp4_mixed"},
    };
    if (l->precision == MF_PREC_FP32) {
        note(x, "precision fp32: leave out --bf16");
        return;
    }
    put_on(x, "--bf16", NULL);
    put(x, NULL, "mixed_precision", "%s", row[l->precision].bridge);
    if (row[l->precision].format_flag != NULL) {
        put(x, row[l->precision].format_flag, NULL, "%s", row[l->precision].format);
        put(x, row[l->precision].recipe_flag, NULL, "%s", row[l->precision].recipe);
    }
    if (l->fp8_primary_weights) {
        put_on(x, l->precision == MF_PREC_NVFP4 ? "--fp4-param-gather" : "--fp8-param-gather",
               NULL);
    }
    if (l->fp8_attention) {
        put(x, NULL, "model.fp8_dot_product_attention", "true");
        note(x, "FP8 attention has no flag in Megatron-LM; it is "
                "TransformerConfig.fp8_dot_product_attention");
    }
}

/* --- memory choices and graphs ---------------------------------------------------------------- */

/* Megatron-LM has one set of recomputed modules for all layers, and one set of offloaded ones for a
 * share of them: the most common of the plan. */
typedef struct common {
    uint16_t recompute, offload;
    double offload_share;
    int others; /* layers that do otherwise in the plan */
} common;

static common common_choice(const mf_assignment *a) {
    common c = {0};
    int recompute = 0, offload = 0, layers = a->positions - 2;
    for (int i = 1; i <= layers; i++) {
        int same_recompute = 0, same_offload = 0;
        for (int k = 1; k <= layers; k++) {
            same_recompute += a->memory[i].recompute == a->memory[k].recompute;
            same_offload += a->memory[i].offload == a->memory[k].offload;
        }
        if (same_recompute > recompute) {
            recompute = same_recompute;
            c.recompute = a->memory[i].recompute;
        }
        if (a->memory[i].offload != 0 && same_offload > offload) {
            offload = same_offload;
            c.offload = a->memory[i].offload;
        }
    }
    for (int i = 1; i <= layers; i++) {
        c.others += a->memory[i].recompute != c.recompute ||
                    (a->memory[i].offload != 0 && a->memory[i].offload != c.offload);
    }
    c.offload_share = layers > 0 ? (double)offload / layers : 0;
    return c;
}

static void put_recompute(mf_export *x, const mf_model *m, uint16_t mask) {
    static const struct {
        uint16_t bit;
        const char *module;
    } modules[] = {
        {MF_RECOMPUTE_NORM, "layernorm"},
        {MF_RECOMPUTE_ACT, "moe_act"},
        {MF_RECOMPUTE_MLA_UP_PROJ, "mla_up_proj"},
        {MF_RECOMPUTE_CORE_ATTN, "core_attn"},
        {MF_RECOMPUTE_SHARED_EXPERT, "shared_experts"},
        {MF_RECOMPUTE_MOE, "moe"},
        {MF_RECOMPUTE_MLP, "mlp"},
    };
    char words[256] = "";
    if ((mask & MF_RECOMPUTE_LAYER) != 0) {
        put(x, "--recompute-granularity", "model.recompute_granularity", "full");
        put(x, "--recompute-method", "model.recompute_method", "uniform");
        put(x, "--recompute-num-layers", "model.recompute_num_layers", "1");
        return;
    }
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
        bool there = modules[i].bit != MF_RECOMPUTE_ACT || m->experts > 0;
        if ((mask & modules[i].bit) != 0 && there) {
            add_word(words, sizeof words, modules[i].module);
        }
    }
    if ((mask & MF_RECOMPUTE_ACT) != 0 && m->experts == 0) { /* moe_act is refused there */
        note(x,
             "recompute act: there is no such module for dense MLPs; mlp recomputes all of them");
    }
    if ((mask & MF_RECOMPUTE_EXPERTS) != 0) {
        note(x, "recompute experts: there is no such module; moe also recomputes router and "
                "dispatch, moe_act the activation alone");
    }
    if (words[0] != '\0') {
        put(x, "--recompute-granularity", "model.recompute_granularity", "selective");
        put_list(x, "--recompute-modules", "model.recompute_modules", words);
    }
}

static void put_offload(mf_export *x, uint16_t mask, double share) {
    static const struct {
        uint16_t bit;
        const char *modules;
    } row[] = {
        {MF_OFFLOAD_INPUT, "attn_norm mlp_norm"}, {MF_OFFLOAD_QKV, "core_attn"},
        {MF_OFFLOAD_ATTN_OUT, "attn_proj"},       {MF_OFFLOAD_EXPERT_IN, "expert_fc1"},
        {MF_OFFLOAD_EXPERT_FC1, "moe_act"},
    };
    char words[256] = "";
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        if ((mask & row[i].bit) != 0) {
            add_word(words, sizeof words, row[i].modules);
        }
    }
    if ((mask & MF_OFFLOAD_FFN) != 0) {
        note(x, "offload ffn: there is no module for dense and shared MLPs");
    }
    if (words[0] != '\0') {
        put_on(x, "--fine-grained-activation-offloading",
               "model.fine_grained_activation_offloading");
        put_list(x, "--offload-modules", "model.offload_modules", words);
        if (share < 1) {
            put(x, "--activation-offload-fraction", "model.activation_offload_fraction", "%.4g",
                share);
        }
    }
}

static void put_memory(mf_export *x, const mf_model *m, const mf_plan *p) {
    const common c = common_choice(&p->assignment);
    put_recompute(x, m, c.recompute);
    put_offload(x, c.offload, c.offload_share);
    if (c.others > 0) {
        note(x,
             "%d layers make another memory choice in the plan; here one choice, that of most "
             "layers, holds for all",
             c.others);
    }
}

static void put_graphs(mf_export *x, const mf_layout *l, const mf_model *m) {
    if (l->graph == MF_GRAPH_PARTIAL) {
        put(x, "--cuda-graph-impl", "model.cuda_graph_impl", "transformer_engine");
        put_list(x, "--cuda-graph-modules", "model.cuda_graph_modules",
                 m->experts > 0 ? "attn moe_router moe_preprocess" : "attn mlp");
    } else if (l->graph == MF_GRAPH_STEP) {
        put(x, "--cuda-graph-impl", "model.cuda_graph_impl", "full_iteration");
    }
}

void mf_export_plan(const mf_plan *p, const mf_model *m, mf_export *out) {
    memset(out, 0, sizeof *out);
    put_degrees(out, p, m);
    put_schedule(out, &p->layout);
    put_communication(out, &p->layout, m);
    put_sharding(out, &p->layout, m);
    put_precision(out, &p->layout);
    put_memory(out, m, p);
    put_graphs(out, &p->layout, m);
}
