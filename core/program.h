/* program.h - the step program: what one rank does in one training step, op by op.
 *
 * The one thing that the cost model prices, the simulator plays and the executor runs. Lowering
 * (core/lower.h) is its only author. A program is held as *blocks* and a *schedule*:
 *
 *  - A block is the op list of one kind of position (embedding, decoder layer of a class with a
 *    memory choice, MTP layer, head): forward ops first, then the backward ops: recomputation (R),
 *    input gradient (B) and weight gradient (W). Whoever plays a block picks passes by mask:
 *    forward MF_PASS_F; backward in one go R|B|W; split R|B and W.
 *  - Positions 0 .. P-1 of the model (embedding, layers, MTP, head) refer to blocks; virtual stages
 *    hold consecutive positions; the schedule (core/schedule.h) orders (chunk, micro-batch, pass).
 *
 * Within a block, an op waits for the producers of its inputs and for earlier ops of its stream.
 */
#ifndef MF_CORE_PROGRAM_H
#define MF_CORE_PROGRAM_H

#include "core/cluster.h"
#include "core/layout.h"
#include "core/memory_runs.h"
#include "core/model.h"

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

/* X(NAME, "name", class). dim[] by kind:
 *
 * - GEMM: m n k, Y[m,n] = A[m,k] B[k,n]; flag ACC_FP32 for weight gradients.
 * - GROUPED_GEMM: m n k groups, m = rows over all local experts when balanced; weight gradients
 *   (flag WGRAD) sum over those rows: then k = rows over all local experts.
 * - ATTENTION_*: batch heads kv_heads seq_q seq_k d_qk d_v window; flag CAUSAL: seq_q are the last
 *   seq_q of seq_k positions; `flops` counts what causality and window leave.
 * - memory kinds: rows cols (elements of the main operand); `bytes` is all traffic.
 * - collectives: `bytes` as nccl-tests counts a size: all-gather and reduce-scatter the gathered
 *   size, all-reduce the buffer, all-to-all what one rank sends (own part included), send_recv the
 *   message. send_recv: places; messages move that many places along the group, -1: backwards.
 * - DISPATCH/COMBINE: tokens row_B top_k experts dispatcher groups_max groups: tokens per rank
 *   (balanced), bytes of a row on the wire, expert groups a token may reach (0 = no limit) out of
 *   how many; `bytes` = tokens * top_k * row_B. */
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
    MF_PASS_F = 1,  /* forward */
    MF_PASS_R = 2,  /* recomputation of what the memory choice dropped */
    MF_PASS_B = 4,  /* gradient of inputs */
    MF_PASS_W = 8,  /* gradient of weights */
    MF_PASS_O = 16, /* once a step: gradient reduction, norm, optimizer, parameter gather */
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
    MF_OPF_ACC_FP32 = 2,      /* accumulates into an FP32 output; attention: part of a ring, whose
                                 parts are merged */
    MF_OPF_ROUTED = 4,        /* work grows with the routed rows of this rank (imbalance applies) */
    MF_OPF_WGRAD = 8,         /* GEMM/grouped: reduction over tokens */
    MF_OPF_OVERLAPPED = 16,   /* a piece of what was cut to have communication beside compute */
    MF_OPF_PREFETCH = 32,     /* may start as early as the previous block of this rank (ZeRO-3) */
    MF_OPF_BLOCK_SCALED = 64, /* GEMM whose FP8 operands carry a scale per block */
    MF_OPF_PACKED = 64,       /* attention: sequences of several lengths, one behind the other */
    MF_OPF_CAPACITY = 128 /* router: rows over a fixed capacity are dropped, so that the host need
                             not know the counts */
};

/* Operands, in order ([x]: where the model or layout has it):
 *
 * - GEMM, GROUPED_GEMM: F x weight [bias [scale]] [row_map] -> y; B dy weight [row_map] -> dx;
 *   W dy x [row_map] -> dweight. BIAS_BWD: W dy [scale] [row_map] -> dbias; B dy row_map -> dscale.
 *   scale: what each row's bias is multiplied by (the probabilities, at FC2). A row of x may be
 * wider than k: the product reads its first k columns.
 * - ATTENTION: q k v [sinks] -> out lse; q k v out lse dout -> dq dk dv [dsinks].
 * - RMSNORM: x weight [sums] -> y rstd; dy x rstd [sums] -> dx dweight. NORM_SUM: x -> sums; B dy x
 *   rstd -> sums. Columns past dim[1] pass through.
 * - ROPE: y -> q k v, or (MLA) q kv kv_latent -> q k v with the shared rotary part in the last
 *   columns of kv_latent; the gradient takes dq dk dv.
 * - ROUTER_FWD: logits -> routing_map probs [expert_counts]; again (R): logits routing_map ->
 *   probs. ROUTER_BWD: dprobs logits routing_map [expert_counts] -> dlogits.
 * - ROUTER_DROP: map probs [all_map all_probs] -> kept_map kept_probs; again (R): kept_map probs ->
 *   kept_probs. No gradient of its own: dropped choices come back with none.
 * - DISPATCH, ETP all-gather, PERMUTE: x map probs -> x map probs [ep_counts]; their gradients
 *   take dx dprobs and the routing that they went by, and give dx dprobs. The map says which
 *   experts each row goes to ([rows, choices], -1: none); what PERMUTE gives is a row_map: int32
 *   offsets [experts + 1], overflow [1], counts [experts], slot_of_row [rows], row_of_slot [slots].
 * - UNPERMUTE: x row_map -> y; COMBINE: x map ep_counts -> y.
 * - SWIGLU: fc1 [probs row_map] -> y; dy fc1 [probs row_map] -> dfc1 [dprobs].
 * - GATE: y x weight -> gated; dgated y x -> dy dx dweight.
 * - SPLIT: columns side by side, parts -> joined or joined -> parts; the gradient is the other one.
 * - CROSS_ENTROPY: logits -> statistics; logits statistics -> logits (overwritten).
 *
 * Gradients of which a part stood already take that part as a last input and write the sum. An
 * output of R that need not be made again is left out; the names tell which are there. */
#define MF_OP_MAX_IN 8
#define MF_OP_MAX_OUT 6
#define MF_OP_DIMS 8

typedef struct mf_op {
    uint8_t kind;   /* mf_op_kind */
    uint8_t pass;   /* one MF_PASS_* bit */
    uint8_t stream; /* mf_stream */
    uint8_t math;   /* mf_math of GEMMs and attention */
    uint8_t module; /* mf_module */
    uint8_t flags;  /* MF_OPF_* */
    uint8_t group;  /* mf_group_kind, MF_GROUP_NONE outside communication */
    uint8_t nin, nout;
    uint8_t piece, pieces; /* of an op that is split to overlap; pieces <= 1: whole. Piece k of an
                              op waits for piece k of an input that is cut alike (mf_op_cut); of
                              any other it waits for all */
    int16_t in[MF_OP_MAX_IN]; /* tensors of the block */
    int16_t out[MF_OP_MAX_OUT];
    int16_t forward;      /* for R, B, W ops: the forward op they derive from; -1 */
    mf_group_shape shape; /* of `group` */
    int64_t dim[MF_OP_DIMS];
    double flops;
    double bytes;
    const char *name; /* static: "q_proj", "dispatch", ... */
} mf_op;

/* What a piece of an op is: a slice of the rows of every TP rank, or of the heads (columns) that
 * attention reads and context parallelism exchanges for it. */
typedef enum mf_cut { MF_CUT_NONE, MF_CUT_ROWS, MF_CUT_HEADS } mf_cut;
static inline mf_cut mf_op_cut(const mf_op *op) {
    bool heads = op->kind == MF_OP_ATTENTION_FWD || op->kind == MF_OP_ATTENTION_BWD ||
                 op->stream == MF_STREAM_CP;
    return op->pieces <= 1 ? MF_CUT_NONE : heads ? MF_CUT_HEADS : MF_CUT_ROWS;
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
    bool for_w;         /* F, R or B leaves it to a split weight gradient */
    int64_t sum_rows;   /* last rows that the sum is over */
    int16_t grad;       /* tensor that holds its gradient; -1 */
    int16_t producer;   /* forward op that makes it; -1 for inputs and weights */
    mf_run_place place; /* of tensors that stay or are local */
    int64_t offset_B;   /* local tensors: place in the workspace of their pass; else -1 */
} mf_tensor;

#define MF_DROP_ALWAYS 0x8000u

/* Copies of a weight inside a data-parallel rank: their gradients are partial sums of one. */
typedef enum mf_gradient_sum {
    MF_SUM_NONE,
    MF_SUM_TP,  /* every TP rank holds all of it and saw other tokens (or other heads) */
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
    int64_t comm_B;     /* buffers that the dispatcher / collectives keep for the block's kind */
    mf_block_runs runs; /* what of it may stand apart */
    double flops_f, flops_b, flops_w, flops_r;
} mf_block;

#define MF_ALIGN_B 256

/* Ops of some passes stand among [*first, *end): forward passes in front, no other beside them. */
void mf_block_ops_of(const mf_block *b, unsigned passes, int *first, int *end);

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
