/* known.c - what is known of names in the published table: models, releases, peculiar rows. */
#include "bench/published/rows_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    {"DeepSeek-V4-Flash", "deepseek-v4-flash", {NULL}},
    {"Llama4-Maverick-400B", "llama4-maverick", {NULL}},
    {"Nemotron-3-Nano", "nemotron-3-nano", {NULL}},
    {"Nemotron-3-Super", "nemotron-3-super", {NULL}},
    {"Nemotron-3-Ultra", "nemotron-3-ultra", {NULL}},
    {"Nemotron-3.5-Lightning", "nemotron-3.5-lightning", {NULL}},
    {"Nemotron-H-56B", "nemotron-h-56b", {NULL}},
    {"Qwen3-Next-80B-A3B", "qwen3-next-80b-a3b", {NULL}},
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
    {"ll3", "pytorch-fsdp"}, /* Meta's own PyTorch, FSDP around TP, CP and PP */
    {"ci", "megatron-26.02"},
};

/* Recipes that a source names and its rows do not spell out: what a row leaves empty is read there.
 * Megatron-Bridge's as they stand at v0.4 and v0.6 (recipes/qwen), NeMo's at the commit that
 * dgxc-benchmarking's setup.sh checks out (r2.3.0, 7a8f1cc). */
#define UNFUSED (MF_TRAIT_UNFUSED_ROPE | MF_TRAIT_UNFUSED_ACT)
static const struct {
    const char *source;
    pub_recipe recipe;
} named_recipes[] = {
    /* qwen3_30b_a3b_pretrain_config: "recompute_granularity = full", "cuda_graph_impl = none", no
     * comm_overlap; apply_flex_dispatcher_backend with DeepEP. Library recipes set neither
     * apply_rope_fusion nor bias_activation_fusion, which Megatron-Core leaves off. */
    {"perf-cpu-offloading",
     {"full", "EP A2A overlap off", "deepep", "none", false, false, UNFUSED}},
    /* qwen3_8b_pretrain_16gpu_h100_bf16_config: no recomputation, "cuda_graph_impl = none" */
    {"model_verification_cards/qwen3-8b",
     {"none in recipe", "", "", "none in recipe", true, false, UNFUSED}},
    /* qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config: no recomputation, "grad_reduce_in_fp32 =
     * False"; the rest stands in the rows */
    {"moe-dispatcher-selection", {"none in recipe", "", "", "none in recipe", true, false, 0}},
    /* recipes/llama4_e128.py with performance_mode: MegatronTokenDropCallback (capacity factor 1,
     * padded) and tp_comm_overlap; moe_token_dispatcher_type "alltoall"; launch.sh: no graphs but
     * of FP8 on H100, where they hold whole layers. */
    {"dgxc-benchmarking llama4",
     {"none in recipe", "EP A2A overlap off, TP overlap", "alltoall", "none", true, true, 0}},
    /* pretrain_deepseek_v3.py: USE_TOKEN_DROP, tp_comm_overlap off; gpt/model/deepseek.py: no fused
     * RoPE. Transformer Engine before 2.5 has no fused attention on Blackwell for heads wider than
     * 128 (fused_attn.cpp: sm_arch_ >= 100), so that core_attn is recomputed there. */
    {"dgxc-benchmarking deepseek_v3",
     {"", "EP A2A overlap off", "alltoall", "none", true, true,
      MF_TRAIT_UNFUSED_ROPE | MF_TRAIT_UNFUSED_ATTENTION}},
};

/* Rows that facts/step_model.md or the source itself calls peculiar. They stay in every mean. */
static const struct {
    const char *id, *reason;
} peculiar[] = {
    {"card-015", "step time contradicts tokens/s and TFLOP/s by a factor of 2: those stand"},
    {"card-016", "step time contradicts tokens/s and TFLOP/s by a factor of 2: those stand"},
    {"card-019",
     "a run on real data that is not steady: resumed, it took 56.7 s a step; TP, PP and EP "
     "assumed from the base recipe; natural routing"},
    {"bra-149", "VPP not stated; predicted with the 5 of its neighbours"},
    {"zoo-006",
     "not tuned by its own note, and stated to 0.1 s; kernels of gated delta nets at first"},
    {"zoo-008", "natural routing: 24 % slower than its partner zoo-007 of balanced routing"},
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
    {"dgx-089", "attention of such heads was not fused on Blackwell yet, which is priced; the rest "
                "is not known"},
    {"dgx-090", "attention of such heads was not fused on Blackwell yet, which is priced; the rest "
                "is not known"},
    {"dgx-091", "attention of such heads was not fused on Blackwell yet, which is priced; the rest "
                "is not known"},
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
    {"skl-046", "eight samples a step: what a step costs once is not known"},
    {"skl-047", "eight samples a step: what a step costs once is not known"},
    {"skl-048", "eight samples a step: what a step costs once is not known"},
    {"skl-049", "eight samples a step: what a step costs once is not known"},
    {"skl-050", "eight samples a step: what a step costs once is not known"},
    {"mpf-001", "FSDP: how far ahead parameters are gathered is not stated"},
    {"mpf-002", "FSDP: how far ahead parameters are gathered is not stated"},
    {"mpf-011", "FSDP: how far ahead parameters are gathered is not stated"},
    {"mpf-012", "FSDP: how far ahead parameters are gathered is not stated"},
    {"mpf-029", "FSDP: how far ahead parameters are gathered is not stated"},
    {"mpf-031", "FSDP: how far ahead parameters are gathered is not stated"},
    {"mpf-032", "FSDP: how far ahead parameters are gathered is not stated"},
    {"mpf-065", "FSDP: how far ahead parameters are gathered is not stated"},
    {"mpf-068", "FSDP: how far ahead parameters are gathered is not stated"},
    {"mpf-081", "FSDP: how far ahead parameters are gathered is not stated"},
    {"bra-203",
     "all-to-all over 8 nodes no faster than on B200 (bra-204), though its NICs are twice as fast"},
    {"bra-213", "B300 slower than B200 in the source (bra-214)"},
    {"tt-007",
     "one ladder of four rows: attention 1.5 x as fast over 1 and 2 ranks as over 4 and 8"},
    /* Time per token is linear in the sequence however ranks of a ring share causal work: over 1, 4
     * and 8 ranks (32K tokens each) 257, 934 and 1,825 us, on a line within 1 %; over 2 394, not
     * 483. Llama 3.1 405B in the same source: 13.2, 21.3, 32.3 and 62.5 ms, 2 ranks above it. */
    {"tt-008",
     "18 % under the line that 1, 4 and 8 ranks of its own ladder lie on; the source's 405B ladder "
     "has no such dip"},
    {"card-036", "real data, recipe of the library and not of the performance suite"},
    {"tt-023", "rowwise scales: kernels of their own, slower than BF16 in the source"},
    {"tt-024", "rowwise scales: kernels of their own, slower than BF16 in the source"},
    {"brn-005",
     "GPT-OSS: a fifth slower than its ops in most releases; which of them is not known"},
    {"bra-026",
     "GPT-OSS: a fifth slower than its ops in most releases; which of them is not known"},
    {"bra-076",
     "GPT-OSS: a fifth slower than its ops in most releases; which of them is not known"},
    {"bra-122",
     "GPT-OSS: a fifth slower than its ops in most releases; which of them is not known"},
    {"lad-001", "a step of a ladder of software work in 2025, priced as release 25.05"},
    {"lad-006", "a step of a ladder of software work in 2025, priced as release 25.05"},
    {"lad-011", "a step of a ladder of software work in 2025, priced as release 25.05"},
    {"lad-012", "a step of a ladder of software work in 2025, priced as release 25.05"},
    {"lad-013", "a step of a ladder of software work in 2025, priced as release 25.05"},
    {"ll3-001", "VPP not stated"},
    {"ll3-003", "VPP not stated"},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Sets the depths of MTP that a row ran with; the file's own need no key. */
static void set_depths(pub_row *r, int64_t depths) {
    if (r->model.mtp_layers != depths) {
        r->model.mtp_layers = depths;
        snprintf(r->set[r->sets++], sizeof r->set[0], "num_nextn_predict_layers=%lld",
                 (long long)depths);
    }
}

/* Depths that Megatron's rows of a model count: what TFLOP/s over tokens/s make a token's FLOPs
 * (facts/step_model.md): 90.8e9 of DeepSeek-V4 Flash, 85.1e9 of Nemotron 3 Super, 365e9 of Ultra,
 * 28.2e9 of 3.5 Lightning, of which a row says two (Megatron counts its Mamba layers as twice the
 * hidden size wide). AutoModel's 74.3e9 of Super and 22.3e9 of Nano: none. */
static int64_t counted_depths(const pub_row *r) {
    static const struct {
        const char *name;
        int64_t depths;
    } counted[] = {{"DeepSeek-V4-Flash", 1},
                   {"Nemotron-3-Super", 2},
                   {"Nemotron-3-Ultra", 2},
                   {"Nemotron-3.5-Lightning", 2}};
    for (size_t i = 0; i < COUNT(counted) && strcmp(r->source, "aut") != 0; i++) {
        if (strcmp(r->model_name, counted[i].name) == 0) {
            return counted[i].depths;
        }
    }
    return 0;
}

bool pub_has(const char *text, const char *part) {
    return strstr(text, part) != NULL;
}

bool pub_starts(const char *text, const char *part) {
    return strncmp(text, part, strlen(part)) == 0;
}

void pub_skip(pub_row *r, const char *why) {
    if (r->skipped[0] == '\0') {
        snprintf(r->skipped, sizeof r->skipped, "%.95s", why);
    }
}

void pub_read_software(pub_row *r, const char *source_text) {
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
        if (pub_has(source_text, containers[i])) {
            snprintf(r->software, sizeof r->software, "megatron-%s", containers[i]);
        }
    }
}

const pub_recipe *pub_named_recipe(const char *source_text) {
    static const pub_recipe none = {"", "", "", "", false, false, 0};
    for (size_t i = 0; i < COUNT(named_recipes); i++) {
        if (pub_has(source_text, named_recipes[i].source)) {
            return &named_recipes[i].recipe;
        }
    }
    return &none;
}

void pub_read_reason(pub_row *r) {
    for (size_t i = 0; i < COUNT(peculiar); i++) {
        if (strcmp(r->id, peculiar[i].id) == 0) {
            snprintf(r->reason, sizeof r->reason, "%s", peculiar[i].reason);
        }
    }
}

void pub_read_model(pub_row *r, const char *name, const char *id, mf_err *e) {
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
            pub_skip(r, e->text);
            mf_err_clear(e);
            return;
        }
        snprintf(r->shipped, sizeof r->shipped, "%s", known_models[i].shipped);
        for (size_t k = 0; k < n; k++) {
            snprintf(r->set[r->sets++], sizeof r->set[0], "%s", overrides[k]);
        }
        r->moe = r->model.experts > 0;
        /* MTP runs only where the row says so, or counts its FLOPs (facts/step_model.md). */
        static const char *const with_mtp[] = {"bra-264", "bra-265", "bra-272",
                                               "dgx-089", "dgx-090", "dgx-091"};
        bool mtp = (pub_has(r->notes, "MTP1") || pub_has(r->notes, "1 MTP") ||
                    pub_has(r->notes, "MTP 1")) &&
                   !pub_has(r->notes, "no MTP");
        for (size_t k = 0; k < COUNT(with_mtp); k++) {
            mtp |= strcmp(id, with_mtp[k]) == 0;
        }
        int64_t counted = counted_depths(r);
        set_depths(r, counted > 0 ? counted : mtp ? r->model.mtp_layers : 0);
        return;
    }
    pub_skip(r, "family not supported");
}
