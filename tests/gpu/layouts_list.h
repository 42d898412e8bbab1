/* layouts_list.h - folded layouts that ranks on GPUs are held against one rank under, and the small
 * models that they run: heads 64 to 192 wide, dimensions of whole vectors, as the kernels take. */
#ifndef MF_TESTS_GPU_LAYOUTS_LIST_H
#define MF_TESTS_GPU_LAYOUTS_LIST_H

#include "core/program/lower.h"

#include <stddef.h>

enum { LAYOUTS_OVERRIDES = 16 };

typedef struct layouts_model {
    const char *name, *config; /* of tests/data/hf */
    double capacity;           /* factor; 0: dropless */
    bool even;                 /* choices are balanced by force: no rounding moves a row */
    const char *override[LAYOUTS_OVERRIDES];
} layouts_model;

#define WIDE                                                                                       \
    "vocab_size=128", "hidden_size=128", "num_attention_heads=4", "num_key_value_heads=2",         \
        "head_dim=64"
#define MIXTRAL WIDE, "intermediate_size=128", "num_local_experts=8", "num_experts_per_tok=2"

enum { MIX, MIX4, MIX8, ROUTED, DROPS, QWEN3, QWEN2, MLA, LLAMA, LAYOUTS_MODELS };
static const layouts_model layouts_models[LAYOUTS_MODELS] = {
    [MIX] = {"mixtral", "mixtral", 0, true, {MIXTRAL, "num_hidden_layers=2"}},
    [MIX4] = {"mixtral of 4 layers", "mixtral", 0, true, {MIXTRAL, "num_hidden_layers=4"}},
    [MIX8] = {"mixtral of 8 layers", "mixtral", 0, true, {MIXTRAL, "num_hidden_layers=8"}},
    [ROUTED] = {"mixtral routed", "mixtral", 0, false, {MIXTRAL, "num_hidden_layers=2"}},
    [DROPS] = {"mixtral dropping", "mixtral", 1.0, false, {MIXTRAL, "num_hidden_layers=2"}},
    [QWEN3] = {"qwen3_moe tied",
               "qwen3_moe",
               0,
               true,
               {WIDE, "moe_intermediate_size=64", "num_experts=8", "num_experts_per_tok=2",
                "num_hidden_layers=4", "tie_word_embeddings=true"}},
    [QWEN2] = {"qwen2_moe",
               "qwen2_moe",
               0,
               true,
               {WIDE, "moe_intermediate_size=64", "num_experts=8", "num_experts_per_tok=2",
                "num_hidden_layers=2", "shared_expert_intermediate_size=128"}},
    [MLA] = {"deepseek_v3",
             "deepseek_v3",
             0,
             false,
             {"vocab_size=128", "hidden_size=128", "num_attention_heads=4", "num_key_value_heads=4",
              "head_dim=64", "q_lora_rank=64", "kv_lora_rank=128", "qk_head_dim=192",
              "qk_nope_head_dim=128", "qk_rope_head_dim=64", "v_head_dim=128",
              "intermediate_size=128", "moe_intermediate_size=64", "n_routed_experts=8",
              "num_hidden_layers=2"}},
    [LLAMA] = {"llama", "llama", 0, true, {WIDE, "intermediate_size=128", "num_hidden_layers=2"}},
};

typedef struct layouts_row {
    int ranks, model;
    int tp, cp, pp, vpp, ep, etp, mbs; /* 0: 1; mbs: two micro-batches, or many in a pipeline */
    int zero, expert_zero;
    mf_schedule_kind schedule;
    mf_dispatcher dispatcher;
    mf_cp_type cp_type;
    uint16_t recompute, offload;
    double states; /* on the host */
} layouts_row;

#define AG MF_DISPATCH_ALLGATHER
#define A2A MF_DISPATCH_ALLTOALL
#define FUSED MF_DISPATCH_FUSED
#define PIPE(ranks_, kind, vpp_)                                                                   \
    {                                                                                              \
        .ranks = ranks_, .model = ranks_ == 8 || vpp_ == 2 ? MIX8 : MIX4, .pp = ranks_,            \
        .vpp = vpp_, .schedule = MF_SCHED_##kind, .dispatcher = AG                                 \
    }
#define PAIRS(kind, vpp_)                                                                          \
    {                                                                                              \
        .ranks = 2, .model = MIX, .pp = 2, .vpp = vpp_, .schedule = MF_SCHED_##kind,               \
        .dispatcher = AG                                                                           \
    }

static const layouts_row layouts_list[] = {
    /* two ranks */
    {.ranks = 2, .model = LLAMA, .zero = 0, .dispatcher = AG},
    {.ranks = 2, .model = LLAMA, .zero = 1, .dispatcher = AG},
    {.ranks = 2, .model = LLAMA, .zero = 2, .dispatcher = AG},
    {.ranks = 2, .model = LLAMA, .zero = 3, .dispatcher = AG},
    {.ranks = 2, .model = LLAMA, .tp = 2, .dispatcher = AG},
    {.ranks = 2, .model = MIX, .tp = 2, .zero = 1, .expert_zero = 1, .dispatcher = AG},
    {.ranks = 2, .model = MIX, .ep = 2, .zero = 1, .dispatcher = AG},
    {.ranks = 2, .model = MIX, .ep = 2, .zero = 1, .dispatcher = A2A},
    {.ranks = 2, .model = MIX, .ep = 2, .zero = 1, .dispatcher = FUSED},
    {.ranks = 2, .model = ROUTED, .ep = 2, .zero = 1, .dispatcher = AG},
    {.ranks = 2, .model = ROUTED, .ep = 2, .zero = 1, .dispatcher = A2A},
    {.ranks = 2, .model = ROUTED, .ep = 2, .zero = 1, .dispatcher = FUSED},
    {.ranks = 2, .model = DROPS, .ep = 2, .dispatcher = AG},
    {.ranks = 2, .model = DROPS, .ep = 2, .dispatcher = A2A},
    {.ranks = 2, .model = DROPS, .ep = 2, .dispatcher = FUSED},
    {.ranks = 2, .model = MIX, .etp = 2, .zero = 1, .dispatcher = AG},
    {.ranks = 2, .model = MIX, .expert_zero = 2, .zero = 2, .dispatcher = AG},
    {.ranks = 2, .model = MIX, .expert_zero = 3, .zero = 3, .dispatcher = AG},
    {.ranks = 2, .model = MIX, .states = 0.5, .zero = 1, .expert_zero = 1, .dispatcher = AG},
    {.ranks = 2, .model = LLAMA, .cp = 2, .cp_type = MF_CP_RING, .dispatcher = AG},
    {.ranks = 2, .model = LLAMA, .cp = 2, .cp_type = MF_CP_ALLGATHER, .dispatcher = AG},
    {.ranks = 2, .model = LLAMA, .cp = 2, .cp_type = MF_CP_ALLTOALL, .dispatcher = AG},
    {.ranks = 2, .model = QWEN2, .tp = 2, .ep = 2, .dispatcher = AG},
    {.ranks = 2, .model = MLA, .tp = 2, .ep = 2, .dispatcher = AG},
    {.ranks = 2, .model = MLA, .tp = 2, .ep = 2, .dispatcher = FUSED},
    {.ranks = 2, .model = QWEN3, .pp = 2, .schedule = MF_SCHED_1F1B, .dispatcher = AG},
    {.ranks = 2, .model = MLA, .pp = 2, .schedule = MF_SCHED_1F1B, .dispatcher = AG},
    PAIRS(GPIPE, 1),
    PAIRS(1F1B, 1),
    PAIRS(INTERLEAVED, 2),
    PAIRS(ZB_H1, 1),
    PAIRS(ZB_V, 2),
    PAIRS(MERGED, 2),
    {.ranks = 2, .model = MIX, .recompute = MF_RECOMPUTE_LAYER, .ep = 2, .dispatcher = AG},
    {.ranks = 2, .model = MIX, .recompute = MF_RECOMPUTE_LAYER, .ep = 2, .dispatcher = FUSED},
    {.ranks = 2,
     .model = ROUTED,
     .recompute = MF_RECOMPUTE_MOE,
     .ep = 2,
     .zero = 3,
     .dispatcher = FUSED},
    {.ranks = 2,
     .model = MIX,
     .recompute = MF_RECOMPUTE_MOE,
     .pp = 2,
     .schedule = MF_SCHED_1F1B,
     .dispatcher = AG},
    {.ranks = 2, .model = MIX, .offload = MF_OFFLOAD_INPUT | MF_OFFLOAD_QKV, .dispatcher = AG},
    /* four ranks */
    {.ranks = 4, .model = MIX, .tp = 2, .ep = 4, .zero = 1, .dispatcher = AG},
    {.ranks = 4, .model = MIX, .tp = 2, .ep = 4, .zero = 1, .dispatcher = A2A},
    {.ranks = 4, .model = MIX, .tp = 2, .ep = 4, .zero = 1, .dispatcher = FUSED},
    {.ranks = 4, .model = ROUTED, .tp = 2, .ep = 4, .zero = 1, .dispatcher = A2A},
    {.ranks = 4, .model = ROUTED, .ep = 2, .etp = 2, .dispatcher = FUSED},
    {.ranks = 4,
     .model = MIX,
     .pp = 2,
     .vpp = 2,
     .ep = 2,
     .schedule = MF_SCHED_MERGED,
     .dispatcher = FUSED},
    {.ranks = 4, .model = MIX, .tp = 2, .cp = 2, .ep = 4, .dispatcher = AG},
    {.ranks = 4,
     .model = MIX,
     .tp = 2,
     .cp = 2,
     .ep = 4,
     .cp_type = MF_CP_ALLGATHER,
     .dispatcher = A2A},
    {.ranks = 4, .model = MIX, .etp = 2, .ep = 2, .zero = 1, .dispatcher = AG},
    {.ranks = 4, .model = MIX, .etp = 2, .ep = 2, .zero = 2, .dispatcher = A2A},
    {.ranks = 4,
     .model = MIX,
     .tp = 2,
     .pp = 2,
     .ep = 2,
     .schedule = MF_SCHED_1F1B,
     .dispatcher = AG},
    {.ranks = 4,
     .model = MIX,
     .tp = 2,
     .pp = 2,
     .ep = 2,
     .schedule = MF_SCHED_1F1B,
     .dispatcher = A2A},
    {.ranks = 4, .model = MIX, .cp = 2, .ep = 2, .zero = 1, .expert_zero = 1, .dispatcher = AG},
    {.ranks = 4,
     .model = MIX,
     .cp = 2,
     .ep = 2,
     .zero = 2,
     .expert_zero = 2,
     .cp_type = MF_CP_ALLTOALL,
     .dispatcher = AG},
    {.ranks = 4, .model = MIX, .ep = 2, .zero = 1, .expert_zero = 1, .dispatcher = AG},
    {.ranks = 4, .model = MIX, .ep = 2, .zero = 2, .expert_zero = 2, .dispatcher = AG},
    {.ranks = 4, .model = MIX, .ep = 2, .zero = 3, .expert_zero = 3, .dispatcher = AG},
    {.ranks = 4, .model = MIX, .ep = 2, .zero = 3, .expert_zero = 1, .dispatcher = A2A},
    {.ranks = 4, .model = DROPS, .tp = 2, .ep = 2, .dispatcher = AG},
    {.ranks = 4, .model = DROPS, .ep = 4, .dispatcher = A2A},
    {.ranks = 4,
     .model = QWEN3,
     .pp = 2,
     .tp = 2,
     .zero = 1,
     .schedule = MF_SCHED_1F1B,
     .dispatcher = AG},
    {.ranks = 4, .model = QWEN3, .pp = 2, .zero = 1, .schedule = MF_SCHED_1F1B, .dispatcher = AG},
    {.ranks = 4,
     .model = QWEN3,
     .pp = 2,
     .zero = 3,
     .ep = 2,
     .schedule = MF_SCHED_1F1B,
     .dispatcher = AG},
    {.ranks = 4,
     .model = MLA,
     .pp = 2,
     .ep = 2,
     .zero = 2,
     .expert_zero = 1,
     .schedule = MF_SCHED_1F1B,
     .dispatcher = AG},
    {.ranks = 4, .model = QWEN2, .tp = 4, .ep = 2, .etp = 2, .dispatcher = AG},
    {.ranks = 4, .model = MIX, .tp = 2, .states = 0.7, .zero = 1, .dispatcher = AG},
    {.ranks = 4,
     .model = MIX,
     .pp = 2,
     .zero = 2,
     .expert_zero = 2,
     .schedule = MF_SCHED_ZB_H1,
     .dispatcher = AG},
    PIPE(4, GPIPE, 1),
    PIPE(4, 1F1B, 1),
    PIPE(4, INTERLEAVED, 2),
    PIPE(4, ZB_H1, 1),
    PIPE(4, ZB_V, 2),
    PIPE(4, MERGED, 1),
    PIPE(4, MERGED, 2),
    {.ranks = 4,
     .model = MIX8,
     .pp = 2,
     .vpp = 2,
     .ep = 2,
     .schedule = MF_SCHED_ZB_V,
     .recompute = MF_RECOMPUTE_CORE_ATTN,
     .zero = 1,
     .expert_zero = 1,
     .dispatcher = AG},
    /* eight ranks */
    {.ranks = 8, .model = MIX, .tp = 2, .ep = 4, .zero = 1, .expert_zero = 1, .dispatcher = AG},
    {.ranks = 8, .model = MIX, .tp = 2, .ep = 8, .zero = 1, .dispatcher = A2A},
    {.ranks = 8,
     .model = MIX,
     .tp = 2,
     .cp = 2,
     .pp = 2,
     .ep = 4,
     .schedule = MF_SCHED_1F1B,
     .dispatcher = AG},
    {.ranks = 8, .model = MIX, .ep = 4, .zero = 2, .expert_zero = 2, .dispatcher = FUSED},
    {.ranks = 8,
     .model = MLA,
     .tp = 2,
     .pp = 2,
     .ep = 4,
     .zero = 1,
     .schedule = MF_SCHED_1F1B,
     .dispatcher = AG},
    {.ranks = 8,
     .model = QWEN3,
     .tp = 2,
     .pp = 4,
     .ep = 2,
     .schedule = MF_SCHED_ZB_H1,
     .dispatcher = AG},
    PIPE(8, GPIPE, 1),
    PIPE(8, 1F1B, 1),
    PIPE(8, ZB_H1, 1),
    PIPE(8, MERGED, 1),
    {.ranks = 8,
     .model = MIX8,
     .pp = 4,
     .vpp = 2,
     .schedule = MF_SCHED_INTERLEAVED,
     .zero = 1,
     .dispatcher = AG},
    {.ranks = 8, .model = MIX8, .pp = 4, .vpp = 2, .schedule = MF_SCHED_ZB_V, .dispatcher = AG},
};
enum { LAYOUTS = sizeof layouts_list / sizeof layouts_list[0] };

#endif
