/* rows.c - the published table read into models, clusters and layouts, by its own conventions. */
#include "bench/published/rows.h"

#include "profiles/csv.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum column {
    C_ID,
    C_SOURCE,
    C_MODEL,
    C_SYSTEM,
    C_GPU,
    C_GPUS,
    C_PRECISION,
    C_SEQ,
    C_GBS,
    C_MBS,
    C_TP,
    C_CP,
    C_PP,
    C_VPP,
    C_EP,
    C_ETP,
    C_DP,
    C_RECOMPUTE,
    C_OFFLOAD,
    C_OVERLAP,
    C_DISPATCHER,
    C_GRAPH,
    C_TFLOPS,
    C_MFU,
    C_TOKENS,
    C_STEP,
    C_MEMORY,
    C_NOTES,
    C_COUNT
};

/* Names in the table and the shipped model (with what the row's name overrides). Models of other
 * families are not listed: they are counted as unsupported. */
static const struct {
    const char *name, *shipped, *overrides[3];
} known_models[] = {
    {"DeepSeek-V3", "deepseek-v3", {NULL}},
    {"DeepSeek-V2", "deepseek-v2", {NULL}},
    {"DeepSeek-V2 [4 layers]", "deepseek-v2", {"num_hidden_layers=4", "first_k_dense_replace=1"}},
    {"Kimi-K2", "kimi-k2", {NULL}},
    {"Moonlight-16B-A3B", "moonlight-16b-a3b", {NULL}},
    {"Qwen3-235B-A22B", "qwen3-235b-a22b", {NULL}},
    {"Qwen3-30B-A3B", "qwen3-30b-a3b", {NULL}},
    {"Qwen2-57B-A14B", "qwen2-57b-a14b", {NULL}},
    {"Mixtral-8x7B", "mixtral-8x7b", {NULL}},
    {"Mixtral-8x22B", "mixtral-8x22b", {NULL}},
    {"Mixtral-8x22B-G8T8", "mixtral-8x22b-g8t8", {NULL}},
    {"Llama3-8x70B", "llama3-8x70b", {NULL}},
    {"GPT-OSS-120B", "gpt-oss-120b", {NULL}},
    {"GPT-OSS-20B", "gpt-oss-20b", {NULL}},
    {"Llama3-8B", "llama3-8b", {NULL}},
    {"Llama3-70B", "llama3-70b", {NULL}},
    {"Llama3-70B [12 layers]", "llama3-70b", {"num_hidden_layers=12"}},
    {"Llama3.1-405B", "llama3-405b", {NULL}},
    {"Llama3.1-405B [4 layers]", "llama3-405b", {"num_hidden_layers=4", "num_key_value_heads=16"}},
    {"Qwen3-8B", "qwen3-8b", {NULL}},
    {"Qwen2.5-7B", "qwen2.5-7b", {NULL}},
    {"Qwen2.5-32B", "qwen2.5-32b", {NULL}},
};

/* Release of the software behind a source. A release in the source's own text comes first. */
static const struct {
    const char *prefix, *software;
} source_software[] = {
    {"mpf", "megatron-25.05"}, /* arXiv:2504.14960, April 2025 */
    {"lad", "megatron-25.05"}, /* 2025 optimisation ladder on GB200 */
    {"mcm", "megatron-26.02"}, /* arXiv:2603.07685, Megatron Core 0.16 */
    {"zoo", "megatron-25.09"}, {"skl", "megatron-26.04"}, {"card", "megatron-26.04"},
    {"rec", "megatron-26.04"}, {"rpr", "megatron-26.06"}, {"smx", "megatron-eager"},
    {"tt", "pytorch-fsdp"},    {"neb", "pytorch-fsdp"},   {"aut", "pytorch-fsdp"},
    {"ll3", "megatron-24.09"}, {"ci", "megatron-26.02"},
};

/* Rows that facts/step_model.md or the source itself calls peculiar. They stay in every mean. */
static const struct {
    const char *id, *reason;
} peculiar[] = {
    {"card-015", "step time and tokens/s differ by a factor of 2 in the source"},
    {"card-016", "step time and tokens/s differ by a factor of 2 in the source"},
    {"bra-149", "VPP not stated; neighbouring rows use VPP 5"},
    {"zoo-018", "GPU stated as GB200, speed is that of GB300"},
    {"zoo-005", "recompute not stated"},
    {"bra-210", "small layers, PP2 with VPP 12/24, graph mode not stated"},
    {"bra-246",
     "small layers, PP2 with VPP 12/24, graph mode not stated; 2.0 x slower than bra-274"},
    {"bra-209", "1.9 x slower than 25.09 with the same layout"},
    {"bra-240", "1.9 x slower than 25.09 with the same layout"},
    {"bra-241", "slower than bra-267/-268 of an older release"},
    {"bra-086", "22 % from bra-132 in a point release"},
    {"bra-176", "B300 slower than B200 in the source"},
    {"bra-264", "25.09 row, token drop, MTP not stated"},
    {"bra-265", "25.09 row, token drop, MTP not stated"},
    {"bra-275", "25.09 row, software outlier"},
    {"rec-006", "41 % from the re-measured rpr-001 of the same recipe"},
    {"dgx-089", "first GB200 DeepSeek-V3 recipe, software still changing"},
    {"dgx-090", "first GB200 DeepSeek-V3 recipe, software still changing"},
    {"dgx-091", "first GB200 DeepSeek-V3 recipe, software still changing"},
    {"mpf-081", "FSDP prefetch and micro-batch not stated"},
    {"mpf-071", "FSDP prefetch and micro-batch not stated"},
    {"mpf-072", "FSDP prefetch and micro-batch not stated"},
    {"mpf-011", "FSDP prefetch and micro-batch not stated"},
    {"mcm-007", "read through a digest; configuration partly inferred"},
    {"zoo-016", "recipe partly inferred"},
    {"zoo-013", "recipe partly inferred"},
    {"zoo-014", "recipe partly inferred"},
    {"bra-003", "documented regression (cuDNN), not representative by its own note"},
    {"skl-015", "sources disagree whether 16 is CP or TP"},
    {"skl-016", "sources disagree whether 32 is CP or TP"},
    {"skl-017", "sources disagree whether 64 is CP or TP"},
    {"card-009",
     "natural routing under an untuned recipe: 28 ms a layer, nothing priced explains it"},
    {"skl-045", "eight samples a step: what a step costs once is not known"},
    {"skl-046", "eight samples a step, Adam on the host's CPU, which has no price here"},
    {"skl-047", "eight samples a step, Adam on the host's CPU, which has no price here"},
    {"skl-048", "eight samples a step, Adam on the host's CPU, which has no price here"},
    {"skl-049", "eight samples a step, Adam on the host's CPU, which has no price here"},
    {"skl-050", "eight samples a step, Adam on the host's CPU, which has no price here"},
    {"mpf-012", "FSDP: micro-batch not stated; a larger one halves what is gathered"},
    {"mpf-029", "FSDP: micro-batch not stated; a larger one halves what is gathered"},
    {"mpf-032", "FSDP: micro-batch not stated; a larger one halves what is gathered"},
    {"mpf-065", "FSDP: micro-batch not stated; a larger one halves what is gathered"},
    {"mpf-068", "FSDP: micro-batch not stated; a larger one halves what is gathered"},
    {"tt-023", "rowwise scales: kernels of their own, slower than BF16 in the source"},
    {"tt-024", "rowwise scales: kernels of their own, slower than BF16 in the source"},
    {"ll3-001", "VPP not stated"},
    {"ll3-003", "VPP not stated"},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool has(const char *text, const char *part) {
    return strstr(text, part) != NULL;
}

static bool starts(const char *text, const char *part) {
    return strncmp(text, part, strlen(part)) == 0;
}

/* Whole number of a field; `missing` when empty. */
static int64_t whole(const char *field, int64_t missing) {
    return *field ? (int64_t)llround(strtod(field, NULL)) : missing;
}

static void skip(pub_row *r, const char *why) {
    if (r->skipped[0] == '\0') {
        snprintf(r->skipped, sizeof r->skipped, "%.95s", why);
    }
}

static void read_software(pub_row *r, const char *source_text) {
    /* 24.07 runs under the oldest profile, megatron-24.09. */
    static const char *const containers[] = {"24.09", "24.11", "25.04", "25.05", "25.09",
                                             "25.11", "26.02", "26.04", "26.06", "26.08"};
    for (size_t i = 0; i < COUNT(source_software); i++) {
        if (strcmp(r->source, source_software[i].prefix) == 0) {
            snprintf(r->software, sizeof r->software, "%s", source_software[i].software);
            return;
        }
    }
    snprintf(r->software, sizeof r->software, "megatron-24.09");
    for (size_t i = 0; i < COUNT(containers); i++) {
        if (has(source_text, containers[i])) {
            snprintf(r->software, sizeof r->software, "megatron-%s", containers[i]);
        }
    }
}

static void read_precision(pub_row *r, const char *text, const char *arch) {
    mf_precision *p = &r->layout.precision;
    if (starts(text, "BF16")) {
        *p = MF_PREC_BF16;
    } else if (starts(text, "MXFP8") || starts(text, "FP8-MX")) {
        *p = MF_PREC_MXFP8;
    } else if (starts(text, "NVFP4")) {
        *p = MF_PREC_NVFP4;
    } else if (has(text, "block") || has(text, "rowwise")) {
        *p = has(text, "32x32") && strcmp(arch, "blackwell") == 0 ? MF_PREC_MXFP8
                                                                  : MF_PREC_FP8_BLOCK;
    } else if (starts(text, "FP8")) {
        *p = MF_PREC_FP8_TENSOR;
    } else {
        skip(r, "precision is not one of the recipes");
    }
}

static void read_recompute(pub_row *r, const char *text) {
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
    if (*text == '\0') {
        r->unknown |= PUB_UNKNOWN_RECOMPUTE;
    } else if (starts(text, "full")) {
        r->layout.memory.recompute = MF_RECOMPUTE_LAYER;
    } else if (starts(text, "selective:")) {
        for (size_t i = 0; i < COUNT(words); i++) {
            if (has(text, words[i].word)) {
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

static void read_offload(pub_row *r, const char *text) {
    const char *percent = strchr(text, '%');
    if (starts(text, "CPU optimizer") && percent != NULL) {
        const char *digit = percent;
        while (digit > text && isdigit((unsigned char)digit[-1])) {
            digit--;
        }
        r->layout.offload_optimizer = strtod(digit, NULL) / 100.0;
    } else if (starts(text, "optimizer to CPU")) {
        r->layout.offload_optimizer = 1.0;
    } else if (starts(text, "activations: expert_fc1")) {
        r->layout.memory.offload = MF_OFFLOAD_EXPERT_FC1;
    } else if (starts(text, "activation") || starts(text, "fine-grained")) {
        r->layout.memory.offload = MF_OFFLOAD_INPUT | MF_OFFLOAD_EXPERT_FC1;
    }
}

static void read_run(pub_row *r, const char *overlap, const char *dispatcher, const char *graph) {
    mf_layout *l = &r->layout;
    bool megatron = starts(r->software, "megatron");
    if (has(overlap, "overlap off; non-overlap") || strcmp(overlap, "none") == 0) {
        l->overlap = MF_OVERLAP_NONE;
    } else if (megatron && !r->moe && l->tp > 1) {
        l->overlap |= MF_OVERLAP_TP; /* NeMo and Bridge overlap TP communication of dense models */
    }
    if (l->cp > 1) {
        l->overlap |= MF_OVERLAP_CP;
    }
    bool merge = has(overlap, "EP A2A overlap on") || has(overlap, "inter-operator");
    if (r->moe && *overlap == '\0') {
        r->unknown |= PUB_UNKNOWN_OVERLAP;
    }
    l->schedule = merge                     ? MF_SCHED_MERGED
                  : l->vpp > 1 && l->pp > 1 ? MF_SCHED_INTERLEAVED
                                            : MF_SCHED_1F1B;
    if (l->pp == 1) {
        l->vpp = 1;
    }
    if (has(dispatcher, "hybridep") || has(dispatcher, "deepep")) {
        l->dispatcher = MF_DISPATCH_FUSED;
    } else {
        /* Megatron-LM's default; Bridge's recipes take DeepEP where tokens leave the domain. */
        bool recipe = strcmp(r->source, "bra") == 0 || strcmp(r->source, "card") == 0;
        bool far = l->ep * l->etp > r->cluster.domain_gpus_used;
        l->dispatcher =
            recipe && far && *dispatcher == '\0' ? MF_DISPATCH_FUSED : MF_DISPATCH_ALLTOALL;
        if (r->moe && (*dispatcher == '\0' || starts(dispatcher, "library"))) {
            r->unknown |= PUB_UNKNOWN_DISPATCHER;
        }
    }
    if (starts(graph, "full_iteration") || starts(graph, "local:full")) {
        l->graph = MF_GRAPH_STEP;
    } else if (starts(graph, "transformer_engine") || starts(graph, "partial")) {
        l->graph = MF_GRAPH_PARTIAL;
    } else if (*graph == '\0') {
        r->unknown |= PUB_UNKNOWN_GRAPH;
    }
}

/* NVIDIA's performance recipes (NeMo, Megatron-Bridge) set grad_reduce_in_fp32 to false; so does
 * Megatron's FSDP. Megatron-LM and PyTorch reduce in FP32 unless told otherwise. */
static void read_gradients(pub_row *r) {
    static const char *const recipes[] = {"bra", "brn", "card", "dgx", "nemo"};
    r->bf16_gradients = r->fsdp && starts(r->software, "megatron");
    for (size_t i = 0; i < COUNT(recipes); i++) {
        r->bf16_gradients |= strcmp(r->source, recipes[i]) == 0;
    }
}

/* Rings beyond the NVLink domain exchange by all-to-all inside it, as Megatron advises there; no
 * row says which it used. */
static void read_cp_type(pub_row *r) {
    mf_layout *l = &r->layout;
    if (has(r->notes, "CP all-to-all")) {
        l->cp_type = MF_CP_ALLTOALL;
    } else if (l->cp * l->tp > r->cluster.domain_gpus_used) {
        l->cp_type = MF_CP_HIERARCHICAL;
        r->unknown |= l->cp > 2 ? PUB_UNKNOWN_CP_TYPE : 0; /* of two ranks, a ring either way */
    }
}

static void read_model(pub_row *r, const char *name, const char *id, mf_err *e) {
    for (size_t i = 0; i < COUNT(known_models); i++) {
        if (strcmp(name, known_models[i].name) != 0) {
            continue;
        }
        const char *overrides[4] = {NULL};
        size_t n = 0;
        while (n < 3 && known_models[i].overrides[n] != NULL) {
            overrides[n] = known_models[i].overrides[n];
            n++;
        }
        char depth[48];
        const char *proxy = strstr(r->notes, "reduced-depth proxy: ");
        if (proxy != NULL) {
            long layers = strtol(proxy + strlen("reduced-depth proxy: "), NULL, 10);
            snprintf(depth, sizeof depth, "num_hidden_layers=%ld", layers);
            overrides[n++] = depth;
        }
        if (mf_model_load_with(known_models[i].shipped, overrides, n, &r->model, e) != MF_OK) {
            skip(r, e->text);
            mf_err_clear(e);
            return;
        }
        r->moe = r->model.experts > 0;
        /* MTP runs only where the row says so, or counts its FLOPs (facts/step_model.md). */
        static const char *const with_mtp[] = {"bra-264", "bra-265", "bra-272",
                                               "dgx-089", "dgx-090", "dgx-091"};
        bool mtp = (has(r->notes, "MTP1") || has(r->notes, "1 MTP") || has(r->notes, "MTP 1")) &&
                   !has(r->notes, "no MTP");
        for (size_t k = 0; k < COUNT(with_mtp); k++) {
            mtp |= strcmp(id, with_mtp[k]) == 0;
        }
        if (!mtp) {
            r->model.mtp_layers = 0;
        }
        return;
    }
    skip(r, "family not supported");
}

/* Step time from what the row gives: itself, tokens/s, or TFLOP/s under the source's convention. */
static void read_truth(pub_row *r, const char *const f[C_COUNT]) {
    const mf_layout *l = &r->layout;
    double tokens = (double)l->gbs * (double)l->seq, gpus = (double)l->gpus;
    if (*f[C_STEP]) {
        r->step_s = strtod(f[C_STEP], NULL);
    } else if (*f[C_TOKENS]) {
        r->step_s = tokens / (strtod(f[C_TOKENS], NULL) * gpus);
    } else if (*f[C_TFLOPS]) {
        double per_token = mf_model_flops_per_token(&r->model, l->seq);
        bool full = strcmp(r->source, "mpf") == 0 || strcmp(r->source, "nemo") == 0 ||
                    strcmp(r->source, "ll3") == 0 || has(r->notes, "full-attention FLOP");
        if (full) { /* the other causal half */
            per_token += 3.0 * (double)(r->model.layers + r->model.mtp_layers) *
                         (double)r->model.heads *
                         (double)(r->model.head_dim + r->model.v_head_dim) * (double)l->seq;
        }
        r->step_s = tokens * per_token / (strtod(f[C_TFLOPS], NULL) * 1e12 * gpus);
    }
    if (*f[C_MEMORY]) {
        r->memory_B = strtod(f[C_MEMORY], NULL) * 1e9;
    }
    if (!(r->step_s > 0)) {
        skip(r, "incomplete: no step time, tokens/s or TFLOP/s");
    }
}

/* FNV-1a over what must not leak between fit and judgement. */
static bool in_held_third(const pub_row *r) {
    char text[256];
    const mf_layout *l = &r->layout;
    snprintf(text, sizeof text, "%s %s %lld %lld %lld %lld %lld %lld %lld", r->model_name, r->gpu,
             (long long)l->gpus, (long long)l->tp, (long long)l->cp, (long long)l->pp,
             (long long)l->vpp, (long long)l->ep, (long long)l->etp);
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *p = text; *p; p++) {
        h = (h ^ (uint8_t)*p) * 0x100000001b3u;
    }
    return (h >> 17) % 3 == 0;
}

/* Virtual stages that a row leaves unsaid: as many as divide, as the Folding paper uses; the Llama
 * 3 paper interleaves 126 layers and both ends. */
static void full_vpp(mf_layout *l, const mf_model *m) {
    int64_t micro = l->gbs / (l->mbs * (l->gpus / (l->tp * l->cp * l->pp)));
    int64_t units = m->layers % l->pp == 0 ? m->layers : m->layers + 2;
    if (l->pp > 1 && units % l->pp == 0 && micro % l->pp == 0) {
        l->vpp = units / l->pp;
    }
}

/* Parts that the source says are limited below the shipped cluster's power: clocks fall by about
 * the square root of power; HBM2e moves 2.4 TB/s. */
static void limit_power(pub_row *r, const char *system) {
    if (!has(system, "HBM2e, 500 W")) {
        return;
    }
    mf_gpu *gpu = &r->cluster.gpu;
    double clocks = sqrt(500.0 / gpu->power_w), memory = 2.4e12 / gpu->memory_Bps;
    snprintf(r->cluster.name, sizeof r->cluster.name, "h100-500w");
    for (int i = 0; i < MF_MATH_COUNT; i++) {
        gpu->measured_flops[i] *= clocks;
    }
    gpu->memory_Bps *= memory;
    gpu->memory_measured_Bps *= memory;
    gpu->memory_B = 96e9;
    gpu->power_w = 500;
}

static void read_layout(pub_row *r, const char *const f[C_COUNT]) {
    mf_layout *l = &r->layout;
    mf_layout_init(l);
    static const int required[] = {C_GPUS, C_SEQ, C_GBS, C_TP, C_CP, C_PP};
    for (size_t i = 0; i < COUNT(required); i++) {
        if (*f[required[i]] == '\0') {
            skip(r, "incomplete: GPUs, sequence, batch or a degree is not stated");
            return;
        }
    }
    l->gpus = whole(f[C_GPUS], 0);
    l->seq = whole(f[C_SEQ], 0);
    l->gbs = whole(f[C_GBS], 0);
    l->mbs = whole(f[C_MBS], 1);
    l->tp = whole(f[C_TP], 1);
    l->cp = whole(f[C_CP], 1);
    l->pp = whole(f[C_PP], 1);
    l->vpp = whole(f[C_VPP], 1);
    l->ep = whole(f[C_EP], 1);
    l->etp = whole(f[C_ETP], 1);
    l->token_headroom = 1.0; /* forced balance, or capacity factor 1 */
    l->reserve = 0;
    if (r->moe && *f[C_EP] == '\0' && has(f[C_DISPATCHER], "ep")) {
        skip(r, "incomplete: a dispatcher, but no EP is stated");
        return;
    }
    r->unknown |= *f[C_MBS] ? 0 : PUB_UNKNOWN_MBS;
    r->unknown |= *f[C_VPP] || l->pp == 1 ? 0 : PUB_UNKNOWN_VPP;
    if (l->gpus <= 0 || l->mbs <= 0 || l->gpus % (l->tp * l->cp * l->pp) != 0 ||
        l->gbs % (l->mbs * (l->gpus / (l->tp * l->cp * l->pp))) != 0) {
        skip(r, "incomplete: the printed degrees do not multiply");
    }
}

static void read_row(pub_row *r, const char *const f[C_COUNT], mf_err *e) {
    memset(r, 0, sizeof *r);
    snprintf(r->id, sizeof r->id, "%s", f[C_ID]);
    snprintf(r->source, sizeof r->source, "%.*s", (int)strcspn(f[C_ID], "-"), f[C_ID]);
    snprintf(r->model_name, sizeof r->model_name, "%s", f[C_MODEL]);
    snprintf(r->gpu, sizeof r->gpu, "%s", f[C_GPU]);
    snprintf(r->precision, sizeof r->precision, "%s", f[C_PRECISION]);
    snprintf(r->notes, sizeof r->notes, "%s", f[C_NOTES]);
    for (size_t i = 0; i < COUNT(peculiar); i++) {
        if (strcmp(r->id, peculiar[i].id) == 0) {
            snprintf(r->reason, sizeof r->reason, "%s", peculiar[i].reason);
        }
    }
    if (has(r->notes, "LoRA") || has(r->notes, "LORA") || has(r->notes, "SFT")) {
        skip(r, "fine-tuning (SFT, LoRA)");
    }
    read_software(r, f[C_SOURCE]);
    read_model(r, f[C_MODEL], f[C_ID], e);
    if (r->skipped[0]) {
        return;
    }
    char cluster[16];
    size_t n = 0;
    for (; f[C_GPU][n] && n + 1 < sizeof cluster; n++) {
        cluster[n] = (char)tolower((unsigned char)f[C_GPU][n]);
    }
    cluster[n] = '\0';
    if (mf_cluster_load(cluster, &r->cluster, e) != MF_OK) {
        mf_err_clear(e);
        skip(r, "accelerator not shipped");
        return;
    }
    limit_power(r, f[C_SYSTEM]);
    read_layout(r, f);
    if (r->skipped[0]) {
        return;
    }
    r->dropped_tokens = has(r->notes, "token drop") || has(r->notes, "tokendrop");
    r->fused_experts = has(r->notes, "fused grouped MLP");
    r->fsdp = has(r->notes, "FSDP") || has(f[C_OVERLAP], "FSDP") ||
              strcmp(r->software, "pytorch-fsdp") == 0;
    if (has(f[C_OVERLAP], "ZeRO-2-like")) { /* parameters stay gathered for the step */
        r->fsdp = false;
    }
    if (r->fsdp) {
        r->layout.zero = r->layout.expert_zero = 3;
    }
    r->layout.moments_bf16 =
        has(r->notes, "BF16 optimizer moments") || has(r->notes, "BF16 Adam moments");
    r->layout.fp8_attention = has(r->notes, "FP8 attention");
    read_gradients(r);
    read_cp_type(r);
    if ((strcmp(r->source, "mpf") == 0 || strcmp(r->source, "ll3") == 0) && !r->fsdp) {
        full_vpp(&r->layout, &r->model);
    }
    read_precision(r, f[C_PRECISION], r->cluster.gpu.arch);
    read_recompute(r, f[C_RECOMPUTE]);
    read_offload(r, f[C_OFFLOAD]);
    read_run(r, f[C_OVERLAP], f[C_DISPATCHER], f[C_GRAPH]);
    read_truth(r, f);
    r->held_out = in_held_third(r);
    mf_err_clear(e);
    if (r->skipped[0] == '\0' && mf_layout_resolve(&r->layout, &r->model, e) != MF_OK) {
        char why[96];
        snprintf(why, sizeof why, "layout: %.80s", e->text);
        skip(r, why);
        mf_err_clear(e);
    }
}

mf_status pub_rows_load(const char *path, pub_row **rows, int *count, mf_err *e) {
    mf_csv *csv = NULL;
    *rows = NULL;
    *count = 0;
    int capacity = 0;
    mf_status status = mf_csv_open(path, &csv, e);
    bool more = false;
    if (status == MF_OK) {
        status = mf_csv_next(csv, &more, e); /* header */
    }
    if (status == MF_OK && (!more || mf_csv_fields(csv) != C_COUNT)) {
        status = mf_csv_fail(csv, 0, e, "expected the %d columns of the published table", C_COUNT);
    }
    while (status == MF_OK && (status = mf_csv_next(csv, &more, e)) == MF_OK && more) {
        if (*count == capacity) {
            capacity = capacity ? 2 * capacity : 128;
            pub_row *grown = realloc(*rows, (size_t)capacity * sizeof *grown);
            if (grown == NULL) {
                status = mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
                break;
            }
            *rows = grown;
        }
        const char *f[C_COUNT];
        for (int i = 0; i < C_COUNT; i++) {
            f[i] = mf_csv_field(csv, i);
        }
        read_row(&(*rows)[(*count)++], f, e);
    }
    mf_csv_close(csv);
    return status;
}
