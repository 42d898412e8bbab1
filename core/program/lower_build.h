/* lower_build.h - private to lowering: a block under construction.
 *
 * If an allocation fails, bd->status keeps that, later calls do nothing harmful, and every helper
 * returns tensor 0. So layers are written without error handling; mf_build_finish reports the
 * error.
 */
#ifndef MF_CORE_LOWER_BUILD_H
#define MF_CORE_LOWER_BUILD_H

#include "core/program/lower.h"

#define MF_NO_TENSOR ((int16_t)-1)

/* Facts about an op that only lowering needs. */
typedef struct mf_build_extra {
    int16_t final_out, final_lse; /* attention inside a CP ring: merged output and its statistics */
    bool no_grad;                 /* nothing flows back (counts, auxiliary statistics) */
    bool cloned;                  /* already re-emitted as recomputation */
    bool detached;                /* a product whose input takes no gradient from it */
    double chosen, teacher; /* of an indexer: the pairs that it keeps; columns of a key by which
                               attention scores */
} mf_build_extra;

/* K or V of one step of a CP ring, and where those of the other steps are. */
typedef struct mf_ring_link {
    int16_t
        first; /* the rank's own, where the ring begins; MF_NO_TENSOR: not received from a ring */
    int16_t before; /* of the step before */
    int16_t next;   /* of the step after; MF_NO_TENSOR: the last */
    int16_t back;   /* the one that the ring brings back for gradients; MF_NO_TENSOR: not yet */
} mf_ring_link;

typedef struct mf_build {
    const mf_model *m;
    const mf_layout *l;
    const mf_cluster *c;
    mf_block_key key;
    mf_block *b;
    mf_build_extra *extra; /* [op capacity] */
    int op_capacity, tensor_capacity;
    mf_status status;

    uint8_t pass;       /* pass of the ops that are emitted now */
    uint8_t module;     /* module of the ops that are emitted now */
    uint16_t drop;      /* MF_RECOMPUTE_* bits of new tensors */
    int16_t forward_op; /* forward op whose gradient is being emitted; -1 */
    int16_t *alias; /* [tensor capacity] the tensor that replaces a forward tensor in the backward
                       pass (recomputed, quantised or copied back), or MF_NO_TENSOR */

    int noted;               /* number of forward tensors that the next two fields describe */
    int16_t *first_producer; /* [noted] first forward op that makes each */
    mf_ring_link *ring;      /* [noted] */

    int64_t tokens;      /* of this rank outside attention: mbs*S/(TP*CP) */
    int64_t tokens_attn; /* tokens inside TP regions: mbs*S/CP */
    double act_B;        /* bytes of an activation element */
    mf_math math;        /* of linear layers that the precision recipe covers */
    double quant_B;      /* bytes of a quantised element, scales included; 0 = no quantisation */

    mf_op scrap; /* takes what is written after a failed allocation */
    mf_tensor scrap_tensor;
    mf_build_extra scrap_extra;

    int16_t input, output; /* boundary tensors of the block; MF_NO_TENSOR */
} mf_build;

/* Tensors. Sizes are those of one rank with balanced routing; the bytes of a routed tensor also
 * hold the token headroom. */
int16_t mf_build_tensor(mf_build *bd, const char *name, int64_t rows, int64_t cols,
                        double element_B);
int16_t mf_build_routed(mf_build *bd, const char *name, int64_t rows, int64_t cols,
                        double element_B);
int16_t mf_build_weight(mf_build *bd, const char *name, mf_weight_part part, int64_t rows,
                        int64_t cols);
/* Says that the last `rows` rows of a weight are copies, whose gradients have to be summed. */
void mf_build_sum(mf_build *bd, int16_t weight, mf_gradient_sum sum, int64_t rows);
/* The same for every weight made since tensor `first`. */
void mf_build_sum_since(mf_build *bd, int first, mf_gradient_sum sum, int64_t rows);
static inline mf_tensor *mf_build_t(mf_build *bd, int16_t t) {
    if (bd->status != MF_OK) {
        bd->scrap_tensor = (mf_tensor){.rows = 1, .cols = 1, .element_B = 1.0};
        return &bd->scrap_tensor;
    }
    return &bd->b->tensors[t];
}
mf_build_extra *mf_build_last(mf_build *bd); /* of the op made last */
double mf_tensor_balanced_B(const mf_tensor *t);
int64_t mf_tensor_rows_max(const mf_tensor *t); /* rows that fit into its bytes */

/* Ops. A new op gets the builder's pass and module. The returned pointer is valid until the next op
 * is made. */
mf_op *mf_build_op(mf_build *bd, mf_op_kind kind, const char *name, mf_stream stream);
static inline void mf_op_in(mf_op *op, int16_t t) {
    if (t != MF_NO_TENSOR && op->nin < MF_OP_MAX_IN) {
        op->in[op->nin++] = t;
    }
}
static inline void mf_op_out(mf_op *op, int16_t t) {
    if (t != MF_NO_TENSOR && op->nout < MF_OP_MAX_OUT) {
        op->out[op->nout++] = t;
    }
}
/* Sets the factor of the products made since op `first`. */
void mf_build_alpha_since(mf_build *bd, int first, double alpha);
/* A factor that a model may leave out (0). */
static inline double mf_factor(double x) {
    return x > 0 ? x : 1.0;
}
/* Marks an op as piece i of `pieces`, of which there are at most so many. With one piece it does
 * nothing. */
enum { MF_MOST_PIECES = 4 };
void mf_op_piece(mf_op *op, int64_t i, int64_t pieces);
/* A memory-bound op: rows and columns of its main operand, and the bytes that it moves. */
mf_op *mf_build_memory_op(mf_build *bd, mf_op_kind kind, const char *name, int64_t rows,
                          int64_t cols, double bytes);
/* Y[m,n] = A[m,k] B[k,n]; its traffic follows from the element sizes of `math`. */
mf_op *mf_build_gemm(mf_build *bd, const char *name, mf_math math, int64_t m, int64_t n, int64_t k);
/* A collective over a group of the layout. bytes: as nccl-tests counts them. */
mf_op *mf_build_collective(mf_build *bd, mf_op_kind kind, const char *name, mf_stream stream,
                           mf_group_kind group, double bytes);

/* Hand-written forward passes (lower_layer.c). */
void mf_lower_embedding(mf_build *bd);
void mf_lower_layer(mf_build *bd);
void mf_lower_mtp(mf_build *bd);
void mf_lower_head(mf_build *bd);
/* Parts of a layer (lower_attention.c, lower_mixer.c, lower_ffn.c). They take and return the
 * residual stream. */
int16_t mf_lower_attention(mf_build *bd, int16_t x);
int16_t mf_lower_mixer(mf_build *bd, int16_t x); /* in layers without attention */
int16_t mf_lower_ffn(mf_build *bd, int16_t x);

/* Building blocks of forward passes (lower_layer.c). */
int16_t mf_lower_norm(mf_build *bd, const char *name, int16_t x, int64_t rows, int64_t cols);
/* With its own epsilon instead of the model's. */
int16_t mf_lower_norm_eps(mf_build *bd, const char *name, int16_t x, int64_t rows, int64_t cols,
                          double eps);
/* The residual: the sum of count tensors. */
int16_t mf_lower_add(mf_build *bd, const char *name, const int16_t *terms, int count);
/* A linear layer. Column-parallel ones take a sequence-parallel x: they quantise it, gather it over
 * TP and multiply. */
typedef struct mf_linear {
    const char *name;
    mf_weight_part part;
    int64_t k, n; /* local widths */
    bool bias;
    mf_math math;
} mf_linear;
int16_t mf_lower_gather_tp(mf_build *bd, const char *name, int16_t x);
int16_t mf_lower_linear(mf_build *bd, const mf_linear *w, int16_t x, int64_t rows);
int16_t mf_lower_column_parallel(mf_build *bd, const mf_linear *w, int16_t x);
int16_t mf_lower_row_parallel(mf_build *bd, const mf_linear *w, int16_t x);
int16_t mf_lower_quantise(mf_build *bd, int16_t x);
/* Splits an expert product that also writes the activation of its y (MF_OPF_ACT): the activation as
 * an op of its own, and the product without it. */
mf_op mf_lower_act_apart(const mf_build *bd, const mf_op *fc1);
mf_op mf_lower_without_act(const mf_build *bd, const mf_op *fc1);
/* FC1, SwiGLU, FC2 over TP (dense MLP, shared expert). */
int16_t mf_lower_mlp(mf_build *bd, int16_t x, int64_t width, mf_weight_part part,
                     uint16_t drop_fc1);

/* Several copies of the residual stream (lower_hyper.c). With a single copy, each of these
 * functions does what a plain residual needs. How many copies stand side by side in a row: */
int64_t mf_lower_streams(const mf_model *m);
/* What half of a layer (mixer or FFN) reads from the residual, and the weights by which it writes.
 */
typedef struct mf_hyper_half {
    int16_t streams, read, weights;
} mf_hyper_half;
mf_hyper_half mf_lower_hyper_in(mf_build *bd, int16_t x);
/* Adds up to three terms to the residual. */
int16_t mf_lower_hyper_out(mf_build *bd, const char *name, const mf_hyper_half *half,
                           const int16_t *terms, int count);
/* Makes the copies of an embedding, and one stream of them at the end. */
int16_t mf_lower_hyper_begin(mf_build *bd, int16_t x);
int16_t mf_lower_hyper_end(mf_build *bd, int16_t x);
/* The input of an MTP depth: each copy of the state is projected with the embedding. */
int16_t mf_lower_hyper_mtp(mf_build *bd, int16_t state, int16_t embedded);

/* Derives recomputation and gradients from the forward ops (lower_grad.c), before anything is
 * offloaded. */
void mf_lower_backward(mf_build *bd);

/* Which forward tensors these read (lower_recompute.c). */
void mf_lower_note_forward(mf_build *bd); /* after the last forward op */
/* The tensor that replaces forward tensor t in the backward pass: t itself if it is saved, else one
 * that is made again. */
int16_t mf_lower_read_forward(mf_build *bd, int16_t t);
/* The same for the part that an op reads: the same piece of an input that is split in the same way.
 */
int16_t mf_lower_read_forward_part(mf_build *bd, int16_t t, const mf_op *reader);
/* The same for inputs of attention, whose K and V may come back around a ring. */
int16_t mf_lower_read_forward_turning(mf_build *bd, int16_t t);
/* Issues the exchange that brings K or V of the step before that of t. Does nothing outside a ring.
 */
void mf_lower_fetch_ahead(mf_build *bd, int16_t t);
/* Copies saved tensors of the chosen kinds to host memory and back. */
void mf_lower_offload(mf_build *bd);
/* Makes messages of a ring wait for the attention whose keys they may overwrite (lower_context.c).
 * It has to be called last. */
void mf_lower_pace_rings(mf_build *bd);
/* Moves ops [from, nops) to `at`; both parts keep their order. Indices below `at` stay valid. */
void mf_lower_move_ops(mf_build *bd, int from, int at);

/* Counts the block's parameters, after its last weight (lower_build.c). */
void mf_build_sum_params(mf_build *bd);

/* Sets scratch_B, after the last op (lower_scratch.c). */
void mf_build_find_scratch(mf_build *bd);
/* Gives local tensors their places in the workspaces of the passes (lower_place.c). */
void mf_build_place(mf_build *bd);

/* Changes a finished block into what the program that trains does (lower_traits.c). */
void mf_lower_apply_traits(const mf_model *m, const mf_layout *l, const mf_cluster *c, mf_block *b);

/* Turns bd->status into an error. */
mf_status mf_build_failed(const mf_build *bd, mf_err *e);

/* Finds classes of tensors, offsets in the workspace, and sums (lower_build.c). */
mf_status mf_build_finish(mf_build *bd, mf_err *e);

#endif
