/* program.h - the step program: what one rank does in one training step, op by op.
 *
 * The one thing that the cost model prices, the simulator plays and the executor runs. Lowering
 * (core/program/lower.h) is its only author. A program is held as *blocks* and a *schedule*:
 *
 *  - A block is the op list of one kind of position (embedding, decoder layer of a class with a
 *    memory choice, MTP layer, head): forward ops first, then the backward ops: recomputation (R),
 *    input gradient (B) and weight gradient (W). Whoever plays a block picks passes by mask:
 *    forward MF_PASS_F; backward in one go R|B|W; split R|B and W.
 *  - Positions 0 .. P-1 of the model (embedding, layers, MTP, head) refer to blocks; virtual stages
 *    hold consecutive positions; the schedule (core/schedule/schedule.h) orders (chunk,
 * micro-batch, pass).
 *
 * Within a block, an op waits for the producers of its inputs and for earlier ops of its stream.
 */
#ifndef MF_CORE_PROGRAM_H
#define MF_CORE_PROGRAM_H

#include "core/cluster/cluster.h"
#include "core/layout/layout.h"
#include "core/model/model.h"
#include "core/program/memory_runs.h"

#include <stdbool.h>
#include <stdint.h>

/* How an op is priced. */
typedef enum mf_op_class {
    MF_CLASS_GEMM,
    MF_CLASS_GROUPED,
    MF_CLASS_ATTENTION,
    MF_CLASS_MEMORY,     /* bound by bytes moved through device memory */
    MF_CLASS_COLLECTIVE, /* all ranks of a group */
    MF_CLASS_P2P,        /* a neighbour in a group */
    MF_CLASS_COPY,       /* device <-> host */
} mf_op_class;

/* X(NAME, "name", class). Places in dim[] and what `bytes` counts, by kind:
 *
 * - GEMM: M N K, Y[m,n] = A[m,k] B[k,n]; flag ACC_FP32 for weight gradients.
 * - GROUPED_GEMM: M N K GROUPS, m = rows over all local experts when balanced; weight gradients
 *   (flag WGRAD) sum over those rows: then k = rows over all local experts.
 * - ATTENTION_*: BATCH .. WINDOW; flag CAUSAL: seq_q are the last seq_q of seq_k positions; `flops`
 *   counts what causality and window leave.
 * - memory kinds: ROWS COLS (elements of the main operand); `bytes` is all traffic. Beside them,
 *   BIAS_BWD: GROUPS; PERMUTE, UNPERMUTE: CHOICES EXPERTS (in whose order rows stand) PADDED RANKS;
 * ROPE: ROPE_HEADS .. ROPE_TABLE; RMSNORM, NORM_SUM over q and k: NORM_Q .. NORM_COPIES; ROUTER:
 * SCORE; CONV: TAPS; SCAN: SCAN_RULE .. SCAN_CHUNK; INDEX: INDEX_HEADS .. INDEX_TOPK; COMPRESS:
 * COMPRESS_RATIO, COMPRESS_SERIES; HYPER_READ, HYPER_WRITE: STREAMS. SCAN and INDEX also have
 * `flops`: what they do on tensor cores may take longer than their traffic.
 * - collectives: `bytes` as nccl-tests counts a size: all-gather and reduce-scatter the gathered
 *   size, all-reduce the buffer, all-to-all what one rank sends (own part included), send_recv the
 *   message. SEND_RECV: PLACES.
 * - COPY_D2H, COPY_H2D: ROWS COLS (elements of optimizer states; else 0) GPUS.
 * - DISPATCH/COMBINE: TOKENS .. ORDERED; `bytes` = tokens * top_k * row_B. */
enum { MF_OP_DIM_M, MF_OP_DIM_N, MF_OP_DIM_K, MF_OP_DIM_GROUPS };
enum {
    MF_OP_DIM_BATCH,
    MF_OP_DIM_HEADS,
    MF_OP_DIM_KV_HEADS,
    MF_OP_DIM_SEQ_Q,
    MF_OP_DIM_SEQ_K,
    MF_OP_DIM_D_QK,
    MF_OP_DIM_D_V,
    MF_OP_DIM_WINDOW /* keys that a query reaches; 0: all */
};
enum { MF_OP_DIM_ROWS, MF_OP_DIM_COLS };
enum {
    MF_OP_DIM_TOKENS, /* per rank, balanced */
    MF_OP_DIM_ROW_B,  /* of a row on the wire */
    MF_OP_DIM_TOP_K,
    MF_OP_DIM_EXPERTS,
    MF_OP_DIM_DISPATCHER,   /* mf_dispatcher */
    MF_OP_DIM_GROUPS_MAX,   /* expert groups that a token may reach; 0: no limit */
    MF_OP_DIM_ROUTE_GROUPS, /* out of how many; 0: 8 */
    MF_OP_DIM_ORDERED       /* rows in the order of the local experts, which is how they stand at
                               their rank; 0: they stand there as they came */
};
enum {
    MF_OP_DIM_CHOICES = 2, /* experts that a row goes to */
    MF_OP_DIM_PADDED = 4,  /* rows of each expert, whatever comes; 0: as many as come */
    MF_OP_DIM_RANKS        /* whose experts these are: rows for each rank stand in a slot of their
                              own (mf_layout_slot_rows); 0: of this rank alone */
};
enum { /* of grouped-query attention; latent attention has one table and the model's widths */
       MF_OP_DIM_ROPE_HEADS = 2,
       MF_OP_DIM_ROPE_KV_HEADS,
       MF_OP_DIM_ROPE_D_QK,
       MF_OP_DIM_ROPE_D_V,
       MF_OP_DIM_ROPE_TABLE /* of mf_model_rope_tables; -1: nothing turns */
};
enum {
    MF_OP_DIM_NORM_Q = 2, /* columns of q in a row, which k follows */
    MF_OP_DIM_NORM_K,
    MF_OP_DIM_NORM_COPIES /* TP ranks that hold each head of k */
};
enum { MF_OP_DIM_SCORE = 2 }; /* mf_router_score */
enum { MF_OP_DIM_TAPS = 2 };
enum {
    MF_OP_DIM_SCAN_RULE = 2, /* mf_mixer_kind */
    MF_OP_DIM_SCAN_KEY_HEADS,
    MF_OP_DIM_SCAN_KEY_DIM,
    MF_OP_DIM_SCAN_VALUE_HEADS,
    MF_OP_DIM_SCAN_VALUE_DIM,
    MF_OP_DIM_SCAN_CHUNK /* positions taken together */
};
enum {
    MF_OP_DIM_INDEX_HEADS = 2,
    MF_OP_DIM_INDEX_DIM,
    MF_OP_DIM_INDEX_KEYS, /* of a whole sample */
    MF_OP_DIM_INDEX_TOPK  /* that a query keeps */
};
enum { MF_OP_DIM_COMPRESS_RATIO = 2, MF_OP_DIM_COMPRESS_SERIES }; /* positions, series a key */
enum { MF_OP_DIM_STREAMS = 2 };                                   /* copies side by side in a row */
enum { MF_OP_DIM_GPUS = 2 }; /* of the job, which copy at the same time; 0: one alone */
enum {
    MF_OP_DIM_PLACES, /* that messages move along the group; negative: backwards */
    MF_OP_DIM_CHUNKS /* 1: of CP's gathers and scatters, whose members have chunks that lie apart */
};
#define MF_OP_MAP(X)                                                                               \
    X(GEMM, "gemm", GEMM)                                                                          \
    X(GROUPED_GEMM, "grouped_gemm", GROUPED)                                                       \
    X(ATTENTION_FWD, "attention_fwd", ATTENTION)                                                   \
    X(ATTENTION_BWD, "attention_bwd", ATTENTION)                                                   \
    X(EMBEDDING_FWD, "embedding_fwd", MEMORY)                                                      \
    X(EMBEDDING_BWD, "embedding_bwd", MEMORY)                                                      \
    X(RMSNORM_FWD, "rmsnorm_fwd", MEMORY)                                                          \
    X(RMSNORM_BWD, "rmsnorm_bwd", MEMORY)                                                          \
    X(NORM_SUM, "norm_sum", MEMORY) /* this rank's part of what a norm over ranks needs */         \
    X(ROPE_FWD, "rope_fwd", MEMORY)                                                                \
    X(ROPE_BWD, "rope_bwd", MEMORY)                                                                \
    X(SWIGLU_FWD, "swiglu_fwd", MEMORY)                                                            \
    X(SWIGLU_BWD, "swiglu_bwd", MEMORY)                                                            \
    X(RELU2_FWD, "relu2_fwd", MEMORY) /* squared relu of FC1 without a gate */                     \
    X(RELU2_BWD, "relu2_bwd", MEMORY)                                                              \
    X(CONV_FWD, "conv_fwd", MEMORY) /* short causal convolution of each channel */                 \
    X(CONV_BWD, "conv_bwd", MEMORY)                                                                \
    X(DECAY_FWD, "decay_fwd", MEMORY) /* decays and steps of a recurrence */                       \
    X(DECAY_BWD, "decay_bwd", MEMORY)                                                              \
    X(SCAN_FWD, "scan_fwd", MEMORY) /* recurrence over a sequence, by chunks */                    \
    X(SCAN_BWD, "scan_bwd", MEMORY)                                                                \
    X(GATED_NORM_FWD, "gated_norm_fwd", MEMORY)                                                    \
    X(GATED_NORM_BWD, "gated_norm_bwd", MEMORY)                                                    \
    X(COMPRESS_FWD, "compress_fwd", MEMORY) /* one key of several positions */                     \
    X(COMPRESS_BWD, "compress_bwd", MEMORY)                                                        \
    X(HYPER_READ_FWD, "hyper_read_fwd", MEMORY) /* a sum of copies of the residual stream */       \
    X(HYPER_READ_BWD, "hyper_read_bwd", MEMORY)                                                    \
    X(HYPER_WRITE_FWD, "hyper_write_fwd", MEMORY) /* a half's output into mixed copies */          \
    X(HYPER_WRITE_BWD, "hyper_write_bwd", MEMORY)                                                  \
    X(INDEX_FWD, "index_fwd", MEMORY) /* scores of all keys, and the best of them */               \
    X(INDEX_BWD, "index_bwd", MEMORY)                                                              \
    X(ADD, "add", MEMORY)                                                                          \
    X(GATE_FWD, "gate_fwd", MEMORY)                                                                \
    X(GATE_BWD, "gate_bwd", MEMORY)                                                                \
    X(ROUTER_FWD, "router_fwd", MEMORY) /* scores, top-k, auxiliary loss, counts */                \
    X(ROUTER_BWD, "router_bwd", MEMORY)                                                            \
    X(ROUTER_DROP, "router_drop", MEMORY) /* choices beyond an expert's capacity */                \
    X(PERMUTE, "permute", MEMORY)         /* rows into expert order */                             \
    X(UNPERMUTE, "unpermute", MEMORY)     /* and back, summing the k rows of a token */            \
    X(SPLIT, "split", MEMORY)             /* slices and concatenations that move bytes */          \
    X(QUANTISE, "quantise", MEMORY)                                                                \
    X(BIAS_BWD, "bias_bwd", MEMORY)                                                                \
    X(ATTENTION_MERGE, "attention_merge", MEMORY) /* joins partial outputs of a CP ring */         \
    X(CROSS_ENTROPY, "cross_entropy", MEMORY)     /* loss and gradient, of all columns */          \
    X(CROSS_ENTROPY_FWD, "cross_entropy_fwd", MEMORY)                                              \
    X(CROSS_ENTROPY_BWD, "cross_entropy_bwd", MEMORY)                                              \
    X(GRAD_NORM, "grad_norm", MEMORY)                                                              \
    X(ADAMW, "adamw", MEMORY)                                                                      \
    X(CAST, "cast", MEMORY)                                                                        \
    X(ALL_REDUCE, "all_reduce", COLLECTIVE)                                                        \
    X(ALL_GATHER, "all_gather", COLLECTIVE)                                                        \
    X(REDUCE_SCATTER, "reduce_scatter", COLLECTIVE)                                                \
    X(ALL_TO_ALL, "all_to_all", COLLECTIVE)                                                        \
    X(DISPATCH, "dispatch", COLLECTIVE)                                                            \
    X(COMBINE, "combine", COLLECTIVE)                                                              \
    X(SEND_RECV, "send_recv", P2P)                                                                 \
    X(COPY_D2H, "copy_d2h", COPY)                                                                  \
    X(COPY_H2D, "copy_h2d", COPY)
typedef enum mf_op_kind {
#define X(name, text, class) MF_OP_##name,
    MF_OP_MAP(X)
#undef X
        MF_OP_COUNT
} mf_op_kind;

/* Passes, as bits so that readers can select. */
enum {
    MF_PASS_F = 1, /* forward */
    MF_PASS_R = 2, /* recomputation of what the memory choice dropped */
    MF_PASS_B = 4, /* gradient of inputs */
    MF_PASS_W = 8, /* gradient of weights */
    MF_PASS_O =
        16, /* at the end of a step: gradient reduction, norm, optimizer, parameter gather */
    MF_PASS_BACKWARD = MF_PASS_R | MF_PASS_B | MF_PASS_W
};

#define MF_STREAM_MAP(X)                                                                           \
    X(COMPUTE, "compute")                                                                          \
    X(TP, "tp")                                                                                    \
    X(CP, "cp")                                                                                    \
    X(EP, "ep")                                                                                    \
    X(DP, "dp")                                                                                    \
    X(PP, "pp")                                                                                    \
    X(D2H, "d2h")                                                                                  \
    X(H2D, "h2d")
typedef enum mf_stream {
#define X(name, text) MF_STREAM_##name,
    MF_STREAM_MAP(X)
#undef X
        MF_STREAM_COUNT
} mf_stream;

/* Part of the model that an op belongs to, for breakdowns and explanations. */
#define MF_MODULE_MAP(X)                                                                           \
    X(EMBEDDING, "embedding")                                                                      \
    X(ATTN_NORM, "attn_norm")                                                                      \
    X(ATTN_PROJ, "attn_proj")                                                                      \
    X(CORE_ATTN, "core_attn")                                                                      \
    X(FFN_NORM, "ffn_norm")                                                                        \
    X(MLP, "mlp")                                                                                  \
    X(ROUTER, "router")                                                                            \
    X(DISPATCH, "dispatch")                                                                        \
    X(EXPERTS, "experts")                                                                          \
    X(SHARED_EXPERT, "shared_expert")                                                              \
    X(MTP, "mtp")                                                                                  \
    X(HEAD, "head")                                                                                \
    X(LOSS, "loss")                                                                                \
    X(GRADIENTS, "gradients")                                                                      \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(PIPELINE, "pipeline")
typedef enum mf_module {
#define X(name, text) MF_MODULE_##name,
    MF_MODULE_MAP(X)
#undef X
        MF_MODULE_COUNT
} mf_module;

enum {
    MF_OPF_CAUSAL = 1,
    MF_OPF_ANEW = 1,          /* GEMM/grouped: the FP32 output is written, not added to */
    MF_OPF_ACC_FP32 = 2,      /* accumulates into an FP32 output; attention: part of a ring, over
                                 keys of another member */
    MF_OPF_ROUTED = 4,        /* work grows with the routed rows of this rank (imbalance applies) */
    MF_OPF_WGRAD = 8,         /* GEMM/grouped: reduction over tokens */
    MF_OPF_OVERLAPPED = 16,   /* a piece of an op, split so that messages overlap compute */
    MF_OPF_PREFETCH = 32,     /* may start as early as the previous block of this rank (ZeRO-3) */
    MF_OPF_BLOCK_SCALED = 64, /* GEMM whose FP8 operands carry a scale per block */
    MF_OPF_CAPACITY = 128, /* router: experts work on a fixed number of rows, so that the host need
                              not know the counts */
    MF_OPF_PACKED = 256,   /* attention: sequences of several lengths, one behind the other */
    MF_OPF_CHUNKED = 512,  /* attention: stays inside chunks of WINDOW positions */
    MF_OPF_INPUT_SCALED =
        1024, /* SWIGLU: probabilities multiply what FC1 gave, not what FC2 gets */
    MF_OPF_SPARSE =
        2048,          /* attention: over the WINDOW best keys of each query, wherever they are */
    MF_OPF_ACT = 4096, /* GROUPED_GEMM: writes y (a gate and an up half) and its activation */
    MF_OPF_SCORES = 8192,    /* attention: products of whole matrices, whose scores pass through
                                memory: `bytes` */
    MF_OPF_TOGETHER = 16384, /* GEMM, a piece: all run together, as fast as the whole */
    MF_OPF_BIAS = 32768,     /* GROUPED_GEMM: each expert's bias is added to its rows, in another
                                pass over them */
    MF_OPF_ORDERED = 65536, /* ATTENTION_BWD: score gradients pass through memory, so that sums have
                               one order */
    MF_OPF_KEPT = 131072,   /* ATTENTION_BWD of MLA: score gradients are kept for a product of their
                               own (mf_attention_may_keep), whose sums have one order, too */
    MF_OPF_SINKS = 262144   /* ATTENTION_BWD: every row adds to the gradient of its head's sink */
};

/* Facts that lowering sets on an op besides its kind; ops derived from it inherit them. */

/* Whose rank adds the bias of a product and takes its gradient: where ranks have the same rows,
 * one. */
typedef enum mf_bias_owner { MF_BIAS_EVERY, MF_BIAS_FIRST_TP, MF_BIAS_FIRST_ETP } mf_bias_owner;

/* What an all-reduce does with its buffer: sums it, or joins statistics of a loss over parts of the
 * vocabulary ([3, rows]: highest logit, sum of exponentials below it, logit of the label). */
typedef enum mf_op_reduce { MF_REDUCE_SUM, MF_REDUCE_LOGSUMEXP } mf_op_reduce;

/* What a norm (RMSNORM, NORM_SUM) goes over: the columns of a row, or parts of a row of q, k and
 * v side by side: each head of q and of k, or all of q and all of k; or each head of a row that
 * holds nothing else (behind the rotation). */
typedef enum mf_norm_scope {
    MF_NORM_ROW,
    MF_NORM_HEADS,
    MF_NORM_QK_ROWS,
    MF_NORM_ALL_HEADS
} mf_norm_scope;

/* What RMSNORM multiplies by: its weight (1 where it has none), 1 + weight; LayerNorm takes the
 * mean off before, and its weight is followed by a bias. */
typedef enum mf_norm_kind { MF_NORM_RMS, MF_NORM_RMS_PLUS_ONE, MF_NORM_LAYER } mf_norm_kind;

/* Ops of pass O that a stage runs at the end of a step (mf_program_optimizer). */
typedef enum mf_step_end_op {
    MF_STEP_END_NONE,
    MF_STEP_END_SUM_KV, /* gradients of copies: the MF_SUM_* alike */
    MF_STEP_END_SUM_TP,
    MF_STEP_END_SUM_ETP,
    MF_STEP_END_EMBEDDING_COPIES, /* gradients of tables of several stages */
    MF_STEP_END_HEAD_COPIES,
    MF_STEP_END_EXPERT_COUNTS,
    MF_STEP_END_GRAD_NORM,
    MF_STEP_END_GRAD_NORM_ALL_REDUCE,
    MF_STEP_END_STATES_IN,
    MF_STEP_END_ADAMW,
    MF_STEP_END_STATES_OUT,
    MF_STEP_END_QUANTISE, /* weights in low precision */
    MF_STEP_END_OPS
} mf_step_end_op;

/* Operands, in order ([x]: where the model or layout has it):
 *
 * - GEMM, GROUPED_GEMM: F x weight [bias [scale]] [row_map] -> y, or (ACT) x weight probs row_map
 *   -> y activation; B dy weight [row_map] -> dx;
 *   W dy x [row_map] -> dweight. BIAS_BWD: W dy [scale] [row_map] -> dbias; B dy row_map -> dscale.
 *   scale: what each row's bias is multiplied by (the probabilities, at FC2). A row of x may be
 * wider than k: the product reads its first k columns.
 * - ATTENTION: q k v [sinks] -> out lse; q k v out lse dout -> dq dk dv [dsinks].
 * - RMSNORM: x [weight [sums]] -> y rstd; dy x rstd [sums] -> dx [dweight]. NORM_SUM: x -> sums; B
 * dy x rstd -> sums. Columns past MF_OP_DIM_COLS pass through.
 * - ROPE: y -> q k v [gate], or (MLA) q kv kv_latent -> q k v, q turned in place, with the shared
 * rotary part in the last columns of kv_latent; the gradient takes dq dk dv.
 * - ROUTER_FWD: logits -> routing_map probs [expert_counts]; again (R): logits routing_map ->
 *   probs. ROUTER_BWD: dprobs logits routing_map [expert_counts] -> dlogits.
 * - ROUTER_DROP: map probs [all_map all_probs] -> kept_map kept_probs; again (R): kept_map probs ->
 *   kept_probs. No gradient of its own: dropped choices come back with none.
 * - DISPATCH, ETP all-gather, PERMUTE: x map probs -> x map probs; their gradients
 *   take dx dprobs and the routing that they went by, and give dx dprobs. The map says which
 *   experts each row goes to ([rows, choices], -1: none); what PERMUTE gives is a row map
 *   (core/program/row_map.h).
 * - UNPERMUTE: x row_map -> y; COMBINE: x map -> y.
 * - DISPATCH, COMBINE whose rows are ORDERED do what PERMUTE and UNPERMUTE do, too: x map probs ->
 *   x row_map probs; x map row_map -> y; their gradients dy map row_map -> dx; dx dprobs map
 * row_map
 *   -> dx dprobs.
 * - SWIGLU: fc1 [probs row_map] -> y; dy fc1 [probs row_map] -> dfc1 [dprobs]. Both also derive
 * from an expert product that writes its activation (ACT), R where that alone is made again.
 * - GATE: y x weight -> gated; dgated y x -> dy dx dweight. Of attention's output: y gate -> gated;
 *   dgated y gate -> dy dgate.
 * - RELU2: as SWIGLU. CONV: x weight [bias] -> y; dy x -> dx dweight [dbias].
 * - DECAY: x A_log dt_bias -> decays; its gradient dy x -> dx dA_log ddt_bias.
 * - SCAN: x [decays] [D] -> y states [matrices]; dy x [decays] [matrices] -> dx [ddecays] [dD]
 *   states. States stand for the pass alone.
 * - GATED_NORM: x gate weight -> y rstd; dy x gate rstd -> dx dgate dweight.
 * - COMPRESS: keys_and_scores places -> y; dy keys_and_scores -> dkeys_and_scores dplaces.
 * - HYPER_READ: x mixes base scale -> y [weights]; dy [dweights] x mixes -> dx dmixes dbase dscale.
 *   HYPER_WRITE: y [x [weights]] -> x; dx [y x weights] -> dy [dx [dweights]].
 * - INDEX: q k weights -> choices; choices q k weights -> dq dk dweights (of the indexer's own
 * loss).
 * - SPLIT: columns side by side, parts -> joined or joined -> parts; the gradient is the other one.
 * - CROSS_ENTROPY: logits -> logits (overwritten by their gradient) statistics. Of columns that are
 *   split, or in two passes: logits -> statistics; logits statistics -> logits (overwritten).
 *
 * Gradients of which a part stood already take that part as an input behind the operands and write
 * the sum (`sums`). R omits an output that need not be made again (`makes`). The last
 * inputs may be marks (`marks`), which an op waits for and does not read: of the gathers of its
 * weights; of the attention behind which a ring's message may take the place of its keys; of the
 * weight gradients of experts, in front of a combine. */
#define MF_OP_MAX_IN 8
#define MF_OP_MAX_OUT 6
#define MF_OP_DIMS 8

typedef struct mf_op {
    uint8_t kind;   /* mf_op_kind */
    uint8_t pass;   /* one MF_PASS_* bit */
    uint8_t stream; /* mf_stream */
    uint8_t math;   /* mf_math of GEMMs and attention */
    uint8_t module; /* mf_module */
    uint8_t group;  /* mf_group_kind, MF_GROUP_NONE outside communication */
    uint8_t nin, nout;
    uint8_t piece, pieces; /* of an op that is split to overlap; pieces <= 1: whole. Piece k of an
                              op waits for piece k of an input that is split the same way
                              (mf_op_split_axis), and for all of any other input */
    uint32_t flags;        /* MF_OPF_* */
    int16_t in[MF_OP_MAX_IN]; /* tensors of the block */
    int16_t out[MF_OP_MAX_OUT];
    int16_t forward;    /* for R, B, W ops: the forward op they derive from; -1 */
    uint8_t bias_owner; /* mf_bias_owner of GEMM, GROUPED_GEMM and their gradients */
    uint8_t reduce;     /* mf_op_reduce of ALL_REDUCE */
    uint8_t norm_scope; /* mf_norm_scope of RMSNORM, NORM_SUM */
    uint8_t norm_kind;  /* mf_norm_kind of RMSNORM */
    uint8_t step_end;   /* mf_step_end_op of pass O */
    float eps;          /* of RMSNORM, NORM_SUM: added to the mean of squares */
    float alpha;        /* a factor: on the product of GEMM (not its bias), on rows of EMBEDDING, on
                           the scores of ATTENTION, on the probabilities of ROUTER; else 1 */
    uint8_t sums;  /* bit k: a part of output k is among the inputs, which stand in the order of
                      these bits between operands and marks */
    uint8_t makes; /* of R, bit k: output k of the forward op is made again */
    uint8_t marks; /* last inputs that are marks */
    mf_group_shape shape; /* of `group` */
    int64_t dim[MF_OP_DIMS];
    double flops;
    double bytes;
    const char *name; /* static: "q_proj", "dispatch", ... */
} mf_op;

/* The row map of a routed op that lowering has just made: the last of its operands (above). */
static inline int16_t mf_op_row_map(const mf_op *op) {
    return op->in[op->nin - 1];
}

/* What a piece of an op is: a slice of the rows of every TP rank, or of the heads (columns) that
 * attention reads and context parallelism exchanges for it. */
typedef enum mf_split_axis { MF_SPLIT_NONE, MF_SPLIT_ROWS, MF_SPLIT_HEADS } mf_split_axis;
static inline mf_split_axis mf_op_split_axis(const mf_op *op) {
    bool heads = op->kind == MF_OP_ATTENTION_FWD || op->kind == MF_OP_ATTENTION_BWD ||
                 op->stream == MF_STREAM_CP;
    return op->pieces <= 1 ? MF_SPLIT_NONE : heads ? MF_SPLIT_HEADS : MF_SPLIT_ROWS;
}

typedef enum mf_tensor_class {
    MF_TENSOR_LOCAL,    /* dies inside the pass that makes it */
    MF_TENSOR_SAVED,    /* forward to backward of the same micro-batch */
    MF_TENSOR_HELD,     /* made (or kept) by B for W when the weight gradient is split off */
    MF_TENSOR_BOUNDARY, /* passed to or from the neighbouring block */
    MF_TENSOR_WEIGHT,
    MF_TENSOR_GRADIENT, /* accumulates over micro-batches */
} mf_tensor_class;

typedef struct mf_tensor {
    const char *name;   /* static */
    int64_t rows, cols; /* per rank, balanced routing */
    int64_t bytes;      /* capacity: routed tensors include the token headroom */
    double element_B;   /* bytes per element, scales included */
    uint16_t drop;      /* MF_RECOMPUTE_* bits that leave it out; MF_DROP_ALWAYS = never saved */
    uint16_t offload;   /* MF_OFFLOAD_* bit it belongs to */
    uint8_t class;      /* mf_tensor_class under this block's choice */
    uint8_t part;       /* mf_weight_part of weights and gradients */
    uint8_t sum;        /* mf_gradient_sum of weights */
    bool routed;        /* rows scale with the load of this rank */
    bool indices;       /* routing map and the like: no gradient flows */
    bool offloaded;     /* saved in host memory between forward and backward */
    bool for_w;         /* F, R or B makes it, a split weight gradient reads it */
    bool gather_mark;   /* not a weight: its readers wait for gathered weights */
    uint8_t table;      /* mf_table of weights */
    int64_t sum_rows;   /* last rows that the sum is over */
    int16_t grad;       /* tensor that holds its gradient; -1 */
    int16_t producer;   /* forward op that makes it; -1 for inputs and weights */
    mf_run_place place; /* of tensors that stay or are local */
    int64_t offset_B;   /* local tensors: place in the workspace of their pass; else -1 */
} mf_tensor;

#define MF_DROP_ALWAYS 0x8000u

/* Tables that more than one stage may hold: the embedding (tied head, MTP depths that look tokens
 * up) and the output projection (MTP depths). */
typedef enum mf_table {
    MF_TABLE_EMBEDDING,
    MF_TABLE_HEAD,
    MF_TABLES,
    MF_TABLE_NONE = MF_TABLES
} mf_table;

/* Copies of a weight inside a data-parallel rank: each copy's gradient is a part of the sum. */
typedef enum mf_gradient_sum {
    MF_SUM_NONE,
    MF_SUM_TP,  /* every TP rank holds all of it and computed with other tokens (or heads) */
    MF_SUM_KV,  /* K and V heads that TP / KV heads neighbouring TP ranks hold */
    MF_SUM_ETP, /* every ETP rank holds all of it */
    MF_SUM_COUNT
} mf_gradient_sum;

/* Bytes by parameters of one block on one rank (weights / elements are local shards). */
typedef struct mf_param_count {
    int64_t dense;          /* elements sharded over TP or replicated; ZeRO over DP*CP */
    int64_t expert;         /* elements of routed experts; ZeRO over EDP */
    int64_t dense_matrices; /* of dense, those that are FP8 candidates (2-D projections) */
} mf_param_count;

/* Elements of one block on one rank whose gradients are summed over copies. */
typedef struct mf_replica_count {
    int64_t of[MF_SUM_COUNT];
} mf_replica_count;

typedef struct mf_block {
    char label[96];
    int nops, nforward; /* ops [0, nforward) are forward */
    int ntensors;
    mf_op *ops;
    mf_tensor *tensors;
    /* Boundary tensors; -1: none. Where the input passes through there is no output of its own. */
    int16_t input, output, output_gradient, input_gradient;
    mf_param_count params;
    mf_replica_count replicas;
    int64_t shared; /* elements of tables that another block of the rank holds and this one reads */

    /* memory of one instance, bytes, every tensor rounded up to MF_ALIGN_B */
    int64_t saved_B;    /* held from forward to backward on the device */
    int64_t held_B;     /* of a split backward: held from B to W; of these */
    int64_t kept_B;     /* ... already saved by forward */
    int64_t made_B;     /* ... made by B; the rest came over the boundary */
    int64_t offload_B;  /* held in host memory instead */
    int64_t boundary_B; /* size of its output boundary tensor (0 for the head) */
    int64_t local_f_B;  /* workspace high-water mark of the forward pass */
    int64_t local_b_B;  /* ... of R|B|W in one go */
    int64_t local_bs_B; /* ... of R|B alone */
    int64_t local_w_B;  /* ... of W alone */
    int64_t gather_B;   /* ZeRO-3: gathered weights of the block (one instance) */
    /* Scratch of a GPU's kernels, beside operands; one op of each stream uses it at a time. */
    int64_t scratch_B[MF_STREAM_COUNT];
    int64_t comm_B[2];  /* buffers that the dispatcher keeps for the block's kind; [1]: under a
                         * schedule that merges passes, whatever the layout's */
    mf_block_runs runs; /* its parts that may have separate addresses */
    double flops_f, flops_b, flops_w, flops_r;
} mf_block;

#define MF_ALIGN_B 256

/* The ops of some passes lie in [*first, *end). The range of forward passes has no others. */
void mf_block_ops_of(const mf_block *b, unsigned passes, int *first, int *end);

/* Scratch of all its streams. */
int64_t mf_block_scratch_B(const mf_block *b);

/* Rounds up to the alignment that both the memory plan and the executor's arena use. */
int64_t mf_align_B(int64_t bytes);

/* Arithmetic of the linear layers that a precision recipe covers. */
mf_math mf_precision_math(mf_precision p);
/* Bytes of an operand element in it, scales included; 0 = operands are not quantised. */
double mf_precision_quantised_B(mf_precision p);

const char *mf_op_text(mf_op_kind k);
mf_op_class mf_op_kind_class(mf_op_kind k);
const char *mf_stream_text(mf_stream s);
const char *mf_module_text(mf_module m);

#endif
