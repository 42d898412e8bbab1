/* layout.h - how a job is folded onto ranks: degrees, schedule, memory and precision choices.
 *
 * The attention side is TP x CP x DP x PP, the expert side ETP x EP x EDP x PP; they have only
 * the ranks and PP in common (see docs/folding.md for the rank mapping and its reduction rules).
 * Plain data.
 */
#ifndef MF_CORE_LAYOUT_H
#define MF_CORE_LAYOUT_H

#include "core/base/status.h"
#include "core/model/model.h"

#include <stdbool.h>
#include <stdint.h>

/* X(NAME, "command-line spelling") */
/* How schedules differ beyond the order of their passes (core/schedule). */
enum {
    MF_SCHEDULE_SPLITS = 1, /* weight gradients are passes of their own */
    MF_SCHEDULE_MERGES = 2, /* a forward and a backward pass run side by side */
    MF_SCHEDULE_TURNS = 4,  /* odd chunks go through the stages backwards */
    MF_SCHEDULE_GROUPS = 8, /* with VPP > 1 micro-batches go in groups of PP */
};
/* Name, spelling, what it does, least and most VPP (0: any), least PP. */
#define MF_SCHEDULE_MAP(X)                                                                         \
    X(GPIPE, "gpipe", 0, 1, 1, 1)                                                                  \
    X(1F1B, "1f1b", 0, 1, 1, 1)                                                                    \
    X(INTERLEAVED, "interleaved", MF_SCHEDULE_GROUPS, 2, 0, 2)                                     \
    X(ZB_H1, "zb-h1", MF_SCHEDULE_SPLITS, 1, 1, 2)                                                 \
    X(ZB_V, "zb-v", MF_SCHEDULE_SPLITS | MF_SCHEDULE_TURNS, 2, 2, 2)                               \
    X(MERGED, "merged", MF_SCHEDULE_MERGES | MF_SCHEDULE_GROUPS, 1, 0, 1)
typedef enum mf_schedule_kind {
#define X(name, ...) MF_SCHED_##name,
    MF_SCHEDULE_MAP(X)
#undef X
        MF_SCHED_COUNT
} mf_schedule_kind;

typedef struct mf_schedule_rule {
    unsigned does; /* MF_SCHEDULE_* */
    int64_t least_vpp, most_vpp, least_pp;
} mf_schedule_rule;
extern const mf_schedule_rule mf_schedule_rules[MF_SCHED_COUNT];

#define MF_DISPATCHER_MAP(X)                                                                       \
    X(ALLGATHER, "allgather") /* every rank of EP sees every token; reduce-scatter back */         \
    X(ALLTOALL, "alltoall")   /* NCCL all-to-all of k copies of each token */                      \
    X(FUSED, "fused")         /* load/store over NVLink and RDMA, one copy per destination */
typedef enum mf_dispatcher {
#define X(name, text) MF_DISPATCH_##name,
    MF_DISPATCHER_MAP(X)
#undef X
        MF_DISPATCH_COUNT
} mf_dispatcher;

#define MF_CP_TYPE_MAP(X)                                                                          \
    X(RING, "ring")                                                                                \
    X(ALLGATHER, "allgather")                                                                      \
    X(ALLTOALL, "alltoall")                                                                        \
    X(HIERARCHICAL, "hierarchical") /* all-to-all inside the NVLink domain, ring beyond */
typedef enum mf_cp_type {
#define X(name, text) MF_CP_##name,
    MF_CP_TYPE_MAP(X)
#undef X
        MF_CP_COUNT
} mf_cp_type;

#define MF_PRECISION_MAP(X)                                                                        \
    X(BF16, "bf16")                                                                                \
    X(FP8_TENSOR, "fp8-tensor") /* e4m3, one scale per tensor */                                   \
    X(FP8_BLOCK, "fp8-block")   /* 1x128 activations, 128x128 weights */                           \
    X(MXFP8, "mxfp8")           /* 1x32 blocks, E8M0 scales */                                     \
    X(NVFP4, "nvfp4")           /* 1x16 blocks, FP8 scales */                                      \
    X(FP32, "fp32")             /* reference runs on CPU ranks */
typedef enum mf_precision {
#define X(name, text) MF_PREC_##name,
    MF_PRECISION_MAP(X)
#undef X
        MF_PREC_COUNT
} mf_precision;

/* Tokens over which an auxiliary loss counts (docs/folding.md). */
#define MF_AUX_SCOPE_MAP(X)                                                                        \
    X(MICRO_BATCH, "micro-batch") /* of one DP rank */                                             \
    X(SEQUENCE, "sequence")       /* one sample */                                                 \
    X(GLOBAL, "global")           /* all ranks, and this step's micro-batches so far */
typedef enum mf_aux_scope {
#define X(name, text) MF_AUX_##name,
    MF_AUX_SCOPE_MAP(X)
#undef X
        MF_AUX_COUNT
} mf_aux_scope;

#define MF_GRAPH_MAP(X) X(NONE, "none") X(PARTIAL, "partial") X(STEP, "step")
typedef enum mf_graph_mode {
#define X(name, text) MF_GRAPH_##name,
    MF_GRAPH_MAP(X)
#undef X
        MF_GRAPH_COUNT
} mf_graph_mode;

/* Sets of modules: recompute and offload choices are bit masks over these maps. */
#define MF_RECOMPUTE_MAP(X)                                                                        \
    X(NORM, "norm", 0)                                                                             \
    X(ACT, "act", 1)                                                                               \
    X(MLA_UP_PROJ, "mla_up_proj", 2)                                                               \
    X(CORE_ATTN, "core_attn", 3)                                                                   \
    X(SHARED_EXPERT, "shared_expert", 4)                                                           \
    X(EXPERTS, "experts", 5)                                                                       \
    X(MOE, "moe", 6)                                                                               \
    X(LAYER, "layer", 7)                                                                           \
    X(MLP, "mlp", 8) /* dense MLP, as "experts" is for routed ones */
enum {
#define X(name, text, bit) MF_RECOMPUTE_##name = 1u << bit,
    MF_RECOMPUTE_MAP(X)
#undef X
        MF_RECOMPUTE_NONE = 0
};

#define MF_OFFLOAD_MAP(X)                                                                          \
    X(INPUT, "input", 0)           /* layer inputs and norm outputs */                             \
    X(QKV, "qkv", 1)               /* inputs of core attention */                                  \
    X(ATTN_OUT, "attn_out", 2)     /* its output */                                                \
    X(EXPERT_IN, "expert_in", 3)   /* dispatched tokens */                                         \
    X(EXPERT_FC1, "expert_fc1", 4) /* FC1 outputs and activations of experts */                    \
    X(FFN, "ffn", 5)               /* the same of dense and shared MLPs */
enum {
#define X(name, text, bit) MF_OFFLOAD_##name = 1u << bit,
    MF_OFFLOAD_MAP(X)
#undef X
        MF_OFFLOAD_NONE = 0
};

/* Steps of the longest CP ring; the op list of a layer holds all of them. */
#define MF_CP_RING_MAX 1024

#define MF_OVERLAP_MAP(X) X(EP, "ep", 0) X(TP, "tp", 1) X(DP, "dp", 2) X(PP, "pp", 3) X(CP, "cp", 4)
enum {
#define X(name, text, bit) MF_OVERLAP_##name = 1u << bit,
    MF_OVERLAP_MAP(X)
#undef X
        MF_OVERLAP_NONE = 0
};

/* How the program that trains differs from moefold's executor where no other choice says so: what
 * ops read and write, their streams, and what is kept (core/program/lower_traits.c, with sources).
 * A software profile has some; `--traits` adds to them. */
#define MF_TRAIT_MAP(X)                                                                            \
    X(QKV_COPIES, "qkv_copies", 0)       /* queries copied out of the projection's output */       \
    X(RESIDUAL_PASS, "residual_pass", 1) /* a pass adds the gradient of a residual */              \
    X(EXPERT_COPIES, "expert_copies", 2) /* passes around the experts' activation */               \
    X(FUSED_EXPERTS, "fused_experts", 3) /* activation in the epilogue of grouped GEMMs */         \
    X(DISPATCH_PERMUTES, "dispatch_permutes", 4) /* dispatch and combine reorder rows */           \
    X(DELAYED_SCALES, "delayed_scales", 5)       /* FP8 with the scales of earlier steps */        \
    X(ROW_SCALES, "row_scales", 6)               /* FP8 with a scale a row, gathered in BF16 */    \
    X(UNFUSED_NORM, "unfused_norm", 7)           /* norms, a pass for each op of the formula */    \
    X(UNFUSED_ROPE, "unfused_rope", 8)                                                             \
    X(UNFUSED_ACT, "unfused_act", 9)                                                               \
    X(UNFUSED_LOSS, "unfused_loss", 10)                                                            \
    X(OP_CHECKPOINTS, "op_checkpoints", 11) /* every second product is made again */               \
    X(RANK_CAPACITY, "rank_capacity", 12)   /* experts' capacity goes by the tokens of a rank */   \
    X(ACT_PASS, "act_pass", 13)             /* the experts' activation in a pass of its own */     \
    X(UNFUSED_ATTENTION, "unfused_attention", 14) /* scores pass through memory */                 \
    X(PIECES_TOGETHER, "pieces_together",                                                          \
      15)                         /* of products split by TP overlap: several streams */           \
    X(LOSS_PASS, "loss_pass", 16) /* the loss's gradient in a pass of its own */                   \
    X(GENERAL_ATTENTION, "general_attention", 17) /* one kernel for MLA's gradients and others */  \
    X(ONE_ORDER, "one_order", 18) /* FP8 of one scale in one order, where products read any */
enum {
#define X(name, text, bit) MF_TRAIT_##name = 1u << bit,
    MF_TRAIT_MAP(X)
#undef X
        MF_TRAIT_NONE = 0,
    /* what moefold's executor can do, too */
    MF_TRAITS_OWN = MF_TRAIT_ACT_PASS | MF_TRAIT_LOSS_PASS | MF_TRAIT_GENERAL_ATTENTION
};

/* What one layer keeps, recomputes and offloads. */
typedef struct mf_memory_choice {
    uint16_t recompute; /* MF_RECOMPUTE_* bits */
    uint16_t offload;   /* MF_OFFLOAD_* bits: saved tensors of these modules go to host memory */
} mf_memory_choice;

typedef struct mf_layout {
    /* degrees given */
    int64_t gpus; /* world size W */
    int64_t tp, cp, pp, vpp, ep, etp;
    int64_t mbs; /* samples per DP rank and micro-batch */
    int64_t gbs; /* samples per step */
    int64_t seq; /* tokens per sample */
    /* degrees that follow (mf_layout_resolve) */
    int64_t dp, edp;
    int64_t micro_batches; /* M = gbs / (mbs * dp) */

    mf_schedule_kind schedule;
    mf_dispatcher dispatcher;
    mf_cp_type cp_type;
    mf_precision precision;
    mf_graph_mode graph;
    uint8_t overlap;           /* MF_OVERLAP_* */
    uint8_t zero, expert_zero; /* 0..3 */
    bool moments_bf16;         /* AdamW moments in BF16 instead of FP32 */
    bool grads_bf16;           /* gradients accumulate and are reduced in BF16 instead of FP32 */
    bool fp8_attention;
    bool fp8_primary_weights; /* no BF16 copy: quantised weights are the ones gathered */
    double offload_optimizer; /* share of optimizer states in host memory, 0..1 */
    mf_memory_choice memory;  /* choice for every layer unless a plan says more */
    double offload_share;     /* share of the layers that offload what memory.offload names, 0..1 */
    double token_headroom;    /* routed rows a rank can hold over the balanced number, >= 1 */
    bool headroom_worst_case; /* memory for all rows of an EP group instead; token_headroom is not
                                 read (mf_layout_token_headroom) */
    double reserve;           /* share of capacity withheld */
    mf_aux_scope aux_scope;   /* of models with an auxiliary loss */
    double capacity_factor;   /* an expert takes ceil(factor * top_k * seq / experts) choices of a
                                 sample, the others are dropped; 0: dropless */
    bool pad_to_capacity;     /* experts work on as many rows as their capacity allows, always */
    bool deterministic;       /* on GPUs every sum has one order, so that runs agree to the bit:
                                 gradients of attention keep score gradients in memory for it */
    uint32_t traits;          /* MF_TRAIT_*, beside those of the software profile */
    uint32_t software_traits; /* its own: set from the profile, in no plan file */
} mf_layout;

static inline bool mf_layout_splits(const mf_layout *l) {
    return (mf_schedule_rules[l->schedule].does & MF_SCHEDULE_SPLITS) != 0;
}
static inline bool mf_layout_merges(const mf_layout *l) {
    return (mf_schedule_rules[l->schedule].does & MF_SCHEDULE_MERGES) != 0;
}
static inline bool mf_layout_turns(const mf_layout *l) {
    return (mf_schedule_rules[l->schedule].does & MF_SCHEDULE_TURNS) != 0;
}

/* 1 everywhere, ZeRO-1, 1f1b, fused, ring, bf16, overlap dp,pp, headroom 1.25, reserve 0.05,
 * auxiliary loss by micro-batch, dropless. */
void mf_layout_init(mf_layout *l);

/* In words, the part of its arithmetic that no backend of the executor can do yet; NULL: nothing.
 * fp32: ops in FP32 are allowed, as CPU ranks have them. */
const char *mf_layout_not_executed(const mf_layout *l, bool fp32);

/* Micro-batches x PP x VPP, and micro-batches x positions / PP: bounds the memory that a schedule
 * (some 1 GB) and the play of a stage (some 7 GB) take. */
#define MF_LAYOUT_MAX_PASSES (1 << 24)

/* Fills dp, edp, micro_batches and checks every rule of folding for this model. Errors: MF_LAYOUT
 * naming the rule and the numbers, e.g. "EP 6 does not divide the 256 experts". */
mf_status mf_layout_resolve(mf_layout *l, const mf_model *m, mf_err *e);

/* The same without texts, for the search: true when valid. */
bool mf_layout_valid(mf_layout *l, const mf_model *m);

/* Choices of a sample that an expert takes; 0: all of them. */
int64_t mf_layout_capacity(const mf_layout *l, const mf_model *m);
/* Rows that an expert works on when they are padded: its capacity for all samples of which an EP x
 * ETP group can hold tokens, unless there are fewer tokens than that. 0: rows are not padded. */
int64_t mf_layout_padded_rows(const mf_layout *l, const mf_model *m);

/* Spellings. *_parse return MF_USAGE with the list of known words and a near one. Masks are comma
 * lists; "none" is empty; recompute also takes "selective" (= core_attn) and "full" (= layer). */
const char *mf_schedule_text(mf_schedule_kind v);
const char *mf_dispatcher_text(mf_dispatcher v);
const char *mf_cp_type_text(mf_cp_type v);
const char *mf_precision_text(mf_precision v);
const char *mf_graph_text(mf_graph_mode v);
const char *mf_aux_scope_text(mf_aux_scope v);
mf_status mf_schedule_parse(const char *s, mf_schedule_kind *out, mf_err *e);
mf_status mf_dispatcher_parse(const char *s, mf_dispatcher *out, mf_err *e);
mf_status mf_cp_type_parse(const char *s, mf_cp_type *out, mf_err *e);
mf_status mf_precision_parse(const char *s, mf_precision *out, mf_err *e);
mf_status mf_graph_parse(const char *s, mf_graph_mode *out, mf_err *e);
mf_status mf_aux_scope_parse(const char *s, mf_aux_scope *out, mf_err *e);
mf_status mf_recompute_parse(const char *s, uint16_t *out, mf_err *e);
mf_status mf_offload_parse(const char *s, uint16_t *out, mf_err *e);
mf_status mf_overlap_parse(const char *s, uint8_t *out, mf_err *e);
mf_status mf_traits_parse(const char *s, uint32_t *out, mf_err *e);
void mf_recompute_format(uint16_t mask, char *out, size_t size);
void mf_offload_format(uint16_t mask, char *out, size_t size);
void mf_overlap_format(uint8_t mask, char *out, size_t size);
void mf_traits_format(uint32_t mask, char *out, size_t size);

/* --- rank groups ------------------------------------------------------------------------------ */

/* Groups over rank coordinates. Every group is an arithmetic progression of ranks. */
#define MF_GROUP_MAP(X)                                                                            \
    X(TP, "tp")                                                                                    \
    X(CP, "cp")                                                                                    \
    X(DP, "dp")                                                                                    \
    X(DP_CP, "dp_cp") /* dense gradients and ZeRO shards */                                        \
    X(TP_CP, "tp_cp")                                                                              \
    X(TP_CP_DP, "tp_cp_dp") /* everything of one stage */                                          \
    X(ETP, "etp")                                                                                  \
    X(EP, "ep")                                                                                    \
    X(EDP, "edp")                                                                                  \
    X(PP, "pp")                                                                                    \
    X(WORLD, "world")
typedef enum mf_group_kind {
#define X(name, text) MF_GROUP_##name,
    MF_GROUP_MAP(X)
#undef X
        MF_GROUP_COUNT,
    MF_GROUP_NONE = 255
} mf_group_kind;

typedef struct mf_group_shape {
    int64_t size;   /* members */
    int64_t stride; /* distance between neighbouring members in rank numbers */
} mf_group_shape;

const char *mf_group_text(mf_group_kind g);
mf_group_shape mf_layout_group(const mf_layout *l, mf_group_kind g);
/* The kind whose communicator serves the ranks of `g`, which has more than one member: the world
 * where those are all ranks, else the first kind of the same ranks. A communicator does one thing
 * after another; so groups that communicate inside blocks have none in common with those whose
 * reductions and gathers run beside blocks (--overlap dp). */
mf_group_kind mf_layout_group_shared(const mf_layout *l, mf_group_kind g);

/* Coordinates of a rank on both grids, and back. */
typedef struct mf_rank_coords {
    int64_t t, c, d, p; /* dense:  r = t + TP*(c + CP*(d + DP*p)) */
    int64_t et, e, ed;  /* expert: r = et + ETP*(e + EP*(ed + EDP*p)) */
} mf_rank_coords;
mf_rank_coords mf_layout_coords(const mf_layout *l, int64_t rank);
int64_t mf_layout_rank_dense(const mf_layout *l, int64_t t, int64_t c, int64_t d, int64_t p);
int64_t mf_layout_rank_expert(const mf_layout *l, int64_t et, int64_t e, int64_t ed, int64_t p);

/* Lowest member of the group of kind g that holds `rank`; member i is first + i * stride. */
int64_t mf_layout_group_first(const mf_layout *l, mf_group_kind g, int64_t rank);

/* Routed rows that a rank is asked to have memory for over the balanced number: token_headroom, or
 * EP for the worst case. */
double mf_layout_asked_headroom(const mf_layout *l);
/* Those that it has memory for: as asked, but at most EP, since no routing sends a rank more than
 * all rows of its EP group. */
double mf_layout_token_headroom(const mf_layout *l);
/* Between expert-parallel ranks rows travel in slots of equal size, one for each rank, so that no
 * size depends on routing. Returns the rows of a slot, where a rank gets `rows` of all ranks when
 * balanced. */
int64_t mf_layout_slot_rows(const mf_layout *l, int64_t rows);

/* Bytes of an element of a weight's gradient, as it accumulates and is reduced. */
double mf_layout_gradient_B(const mf_layout *l);

/* --- stages ----------------------------------------------------------------------------------- */

/* Pipeline stage that holds virtual stage v of pp*vpp: v mod PP, or V-shaped for zb-v. */
int64_t mf_layout_stage_of(const mf_layout *l, int64_t vstage);
/* Chunk index of a virtual stage on its rank: v / PP. */
int64_t mf_layout_chunk_of(const mf_layout *l, int64_t vstage);
/* Virtual stage from (stage, chunk). */
int64_t mf_layout_vstage(const mf_layout *l, int64_t stage, int64_t chunk);

#endif
