/* recipe.c - how a published row ran: precision, recomputation, offload, overlap, dispatcher,
 * graph. What it leaves unsaid is marked in `unknown`; unsaid.c says what it may have been. */
#include "bench/published/rows_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

void pub_read_precision(pub_row *r, const char *text, const char *arch) {
    mf_precision *p = &r->layout.precision;
    if (pub_starts(text, "BF16")) {
        *p = MF_PREC_BF16;
    } else if (pub_starts(text, "MXFP8") || pub_starts(text, "FP8-MX")) {
        *p = MF_PREC_MXFP8;
    } else if (pub_starts(text, "NVFP4")) {
        *p = MF_PREC_NVFP4;
    } else if (pub_has(text, "block") || pub_has(text, "rowwise")) {
        *p = pub_has(text, "32x32") && strcmp(arch, "blackwell") == 0 ? MF_PREC_MXFP8
                                                                      : MF_PREC_FP8_BLOCK;
    } else if (pub_starts(text, "FP8")) {
        *p = MF_PREC_FP8_TENSOR;
        bool nemo = strcmp(r->source, "dgx") == 0 || strcmp(r->source, "nemo") == 0;
        r->layout.traits |= nemo ? MF_TRAIT_DELAYED_SCALES : 0; /* its default until 25.05 */
    } else {
        pub_skip(r, "precision is not one of the recipes");
    }
}

void pub_read_recompute(pub_row *r, const char *text) {
    static const struct {
        const char *word;
        uint16_t bit;
    } words[] = {
        {"moe_act", MF_RECOMPUTE_ACT},
        {"layernorm", MF_RECOMPUTE_NORM},
        {"mlp", MF_RECOMPUTE_MLP},
        {"mla_up_proj", MF_RECOMPUTE_MLA_UP_PROJ},
        {"core_attn", MF_RECOMPUTE_CORE_ATTN},
    };
    bool ops = pub_starts(text, "selective (op-level)");
    r->layout.traits |= ops ? MF_TRAIT_OP_CHECKPOINTS : 0;
    if (*text == '\0') {
        r->unknown |= PUB_UNKNOWN_RECOMPUTE;
    } else if (ops) { /* norms, RoPE and activations; products: the trait */
        r->layout.memory.recompute = MF_RECOMPUTE_NORM | MF_RECOMPUTE_MLP;
    } else if (pub_starts(text, "full")) {
        r->layout.memory.recompute = MF_RECOMPUTE_LAYER;
        const char *layers = strstr(text, "full:");
        r->recompute_layers = layers != NULL ? strtol(layers + strlen("full:"), NULL, 10) : 0;
    } else if (pub_starts(text, "selective:")) {
        for (size_t i = 0; i < COUNT(words); i++) {
            if (pub_has(text, words[i].word)) {
                r->layout.memory.recompute |= words[i].bit;
            }
        }
        /* "moe" as a word of its own recomputes the MoE layer. */
        for (const char *p = text; (p = strstr(p, "moe")) != NULL; p += 3) {
            if (p[3] == '\0' || p[3] == '+' || p[3] == ' ') {
                r->layout.memory.recompute |= MF_RECOMPUTE_MOE;
            }
        }
    }
}

void pub_read_offload(pub_row *r, const char *text) {
    const char *percent = strchr(text, '%');
    if (pub_starts(text, "CPU optimizer") && percent != NULL) {
        const char *digit = percent;
        while (digit > text && isdigit((unsigned char)digit[-1])) {
            digit--;
        }
        r->layout.offload_optimizer = strtod(digit, NULL) / 100.0;
    } else if (pub_starts(text, "optimizer to CPU")) {
        r->layout.offload_optimizer = 1.0;
    } else if (pub_starts(text, "activations: expert_fc1")) {
        r->layout.memory.offload = MF_OFFLOAD_EXPERT_FC1;
    } else if (pub_starts(text, "activation") || pub_starts(text, "fine-grained")) {
        r->layout.memory.offload = MF_OFFLOAD_INPUT | (r->moe ? MF_OFFLOAD_EXPERT_FC1 : 0);
    }
}

void pub_read_run(pub_row *r, const char *overlap, const char *dispatcher, const char *graph) {
    mf_layout *l = &r->layout;
    bool megatron = pub_starts(r->software, "megatron");
    /* torchtitan's "none" says how TP ran; FSDP gathers ahead whatever TP does. */
    bool none = strcmp(overlap, "none") == 0 && strcmp(r->source, "tt") != 0;
    if (pub_has(overlap, "overlap off; non-overlap") || none) {
        l->overlap = MF_OVERLAP_NONE;
    } else if (megatron && !r->moe && l->tp > 1 && l->precision != MF_PREC_NVFP4) {
        /* NeMo and Bridge overlap TP communication of dense models, but not in NVFP4. */
        l->overlap |= MF_OVERLAP_TP;
    }
    if (pub_has(overlap, "async TP") || (pub_has(overlap, "TP overlap") && l->tp > 1)) {
        l->overlap |= MF_OVERLAP_TP;
    }
    if (l->cp > 1) {
        l->overlap |= MF_OVERLAP_CP;
    }
    bool merge = pub_has(overlap, "EP A2A overlap on") || pub_has(overlap, "inter-operator");
    if (r->moe && *overlap == '\0') {
        r->unknown |= PUB_UNKNOWN_OVERLAP;
    }
    l->schedule = merge                     ? MF_SCHED_MERGED
                  : l->vpp > 1 && l->pp > 1 ? MF_SCHED_INTERLEAVED
                                            : MF_SCHED_1F1B;
    if (l->pp == 1) {
        l->vpp = 1;
    }
    bool hybrid = pub_has(dispatcher, "hybridep");
    l->traits |= hybrid ? MF_TRAIT_DISPATCH_PERMUTES : 0;
    l->dispatcher =
        hybrid || pub_has(dispatcher, "deepep") ? MF_DISPATCH_FUSED : MF_DISPATCH_ALLTOALL;
    if (r->moe && (*dispatcher == '\0' || pub_starts(dispatcher, "library"))) {
        r->unknown |= PUB_UNKNOWN_DISPATCHER;
        r->dispatcher_open = *dispatcher == '\0';
    }
    if (pub_starts(graph, "full_iteration") || pub_starts(graph, "local:full")) {
        l->graph = MF_GRAPH_STEP;
    } else if (pub_starts(graph, "transformer_engine") || pub_starts(graph, "partial")) {
        l->graph = MF_GRAPH_PARTIAL;
    } else if (*graph == '\0') {
        r->unknown |= PUB_UNKNOWN_GRAPH;
    }
}

static bool is_source(const pub_row *r, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(r->source, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* NVIDIA's performance recipes (NeMo, Megatron-Bridge) set grad_reduce_in_fp32 to false; so does
 * Megatron's FSDP. Megatron-LM and PyTorch reduce in FP32 by default. Bridge's recipe of
 * FP8 current scaling and of MXFP8 sets fp8_param_gather: one copy of the weights, gathered as it
 * is; the command that torchtitan's float8.md gives has FSDP gather FP8, too. */
void pub_read_recipe_defaults(pub_row *r) {
    static const char *const recipes[] = {"bra", "brn", "card", "dgx", "nemo"};
    enum { BRIDGE = 3 }; /* the first ones */
    r->layout.grads_bf16 =
        is_source(r, recipes, COUNT(recipes)) || (r->fsdp && pub_starts(r->software, "megatron"));
    mf_precision precision = r->layout.precision;
    bool bridge = is_source(r, recipes, BRIDGE), titan = strcmp(r->source, "tt") == 0;
    r->layout.fp8_primary_weights = ((bridge || titan) && precision == MF_PREC_FP8_TENSOR) ||
                                    (bridge && precision == MF_PREC_MXFP8);
}

/* Llama 3 gathers keys and values (arXiv:2407.21783, 3.3.2). Rings beyond the NVLink domain
 * exchange by all-to-all inside it, as Megatron advises there; no row says which it used. */
void pub_read_cp_type(pub_row *r) {
    mf_layout *l = &r->layout;
    if (pub_has(r->notes, "CP all-to-all")) {
        l->cp_type = MF_CP_ALLTOALL;
    } else if (strcmp(r->source, "ll3") == 0) {
        l->cp_type = MF_CP_ALLGATHER;
    } else if (l->cp * l->tp > r->cluster.domain_gpus_used) {
        l->cp_type = MF_CP_HIERARCHICAL;
        r->unknown |= l->cp > 2 ? PUB_UNKNOWN_CP_TYPE : 0; /* of two ranks, a ring either way */
    }
}
