/* lower.h - lower(model, layout, schedule) -> step program: the only place that knows what a layer
 * consists of and how a layout splits it.
 *
 * Only forward passes are written by hand (core/program/lower_layer.c); backward passes and
 * recomputation are derived from the forward op list by each op kind's gradient rule
 * (core/program/lower_grad.c).
 */
#ifndef MF_CORE_LOWER_H
#define MF_CORE_LOWER_H

#include "core/program/program.h"

/* Kinds of position in a model, in this order: embedding, layers, MTP depths, head. */
typedef enum mf_position_kind {
    MF_POS_EMBEDDING,
    MF_POS_LAYER,
    MF_POS_MTP,
    MF_POS_HEAD,
} mf_position_kind;

/* What lowering needs to know about a block: equal keys lower to equal blocks. */
typedef struct mf_block_key {
    mf_position_kind kind;
    uint8_t layer_class;   /* LAYER, MTP: index into model->layer_classes */
    uint8_t parts;         /* LAYER: MF_HALF_* bits; both in every real program */
    bool split;            /* weight gradients are split off (zb-*, merged): HELD tensors count */
    bool shared_embedding; /* MTP, tied head: another block of this rank holds the embedding */
    bool shared_head;      /* MTP: another block of this rank holds the output projection */
    bool after_depth;      /* MTP: not the first depth: comes in with two states side by side, the
                              model's own and that of the depth before */
    bool before_depth;     /* MTP: not the last depth: goes out with two states side by side */
    bool unplaced; /* nobody needs workspaces: local tensors get no address, local_*_B are 0 */
    bool at_end;   /* prices: last of its virtual stage, so that its copies to and from the host
                      have no block beside them (simulator/sim.h); lowers to the same block */
    mf_memory_choice memory;
} mf_block_key;
enum { MF_HALF_ATTENTION = 1, MF_HALF_FFN = 2, MF_HALF_BOTH = 3 };

mf_block_key mf_block_key_layer(uint8_t layer_class, mf_memory_choice memory, bool split);

/* Elements of the tables that the block reads and another block of its rank holds
 * (mf_block.shared): its parameters do not count them. Blocks with such tables differ in nothing
 * else from those that do not. */
int64_t mf_block_shared_elements(const mf_model *m, const mf_layout *l, const mf_block_key *key);

/* Lowers one block. The layout must be resolved. The caller destroys the result. Errors: MF_NOMEM;
 * MF_LAYOUT where a layout asks for what a model cannot give. */
mf_status mf_block_lower(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                         const mf_block_key *key, mf_block **out, mf_err *e);
/* The same for readers that arrange no memory: without runs (mf_block_find_runs). */
mf_status mf_block_lower_without_runs(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                                      const mf_block_key *key, mf_block **out, mf_err *e);
void mf_block_destroy(mf_block *b);

/* True when op i of a block is a weight gradient that writes the whole of its result, to which
 * nothing else of the rank adds: then the first micro-batch of a step need not add, and what is
 * there is neither cleared nor read. A table that other blocks may read as well counts as added to.
 */
bool mf_op_makes_gradient(const mf_model *m, const mf_block *b, int i);
/* Which half of the weights an op's gradient is of: 1 routed experts, 0 all others. */
int mf_op_gradient_side(const mf_block *b, int i);
/* True when gradients of a half are reduced into shards after each block (ZeRO from level 2 on),
 * and so are no sums over the micro-batches. */
bool mf_layout_shards_gradients(const mf_layout *l, int side);

/* --- assignment of positions to virtual stages ------------------------------------------------ */

#define MF_MAX_POSITIONS (MF_MODEL_MAX_LAYERS + 16)
#define MF_MAX_VSTAGES 1024

typedef struct mf_assignment {
    int positions;                             /* 2 + layers + mtp */
    int vstages;                               /* PP * VPP */
    int first[MF_MAX_VSTAGES + 1];             /* virtual stage v holds [first[v], first[v+1]) */
    mf_memory_choice memory[MF_MAX_POSITIONS]; /* per position; ignored for embedding and head */
} mf_assignment;

int mf_model_positions(const mf_model *m);
mf_position_kind mf_position_kind_of(const mf_model *m, int position);
/* Decoder layer of a LAYER position, depth of an MTP position. */
int mf_position_index(const mf_model *m, int position);
/* "layer 3" (from 0), "MTP depth 1", "the embedding", "the head". */
void mf_position_text(const mf_model *m, int position, char *out, size_t size);
/* What its layer is of; NULL: embedding and head. */
const mf_layer_class *mf_position_class(const mf_model *m, int position);
/* Whether the FFN of a position is a Mixture of Experts. */
bool mf_position_is_moe(const mf_model *m, int position);

/* Even split: as many layers on every virtual stage where they divide (the ends come on top);
 * otherwise embedding, MTP depths and head count as one layer each, no stage has more than one
 * layer more than another, and the longer ones are in the middle. layout->memory for every
 * layer. */
mf_status mf_assignment_even(const mf_model *m, const mf_layout *l, mf_assignment *out, mf_err *e);

/* Checks order, coverage and bounds of an assignment that came from outside. */
mf_status mf_assignment_check(const mf_model *m, const mf_layout *l, const mf_assignment *a,
                              mf_err *e);

/* --- the program of a step -------------------------------------------------------------------- */

/* End-of-step ops of one position on one rank: gradient reduction and parameter gather. */
typedef struct mf_dp_ops {
    mf_op reduce[2]; /* dense over DP*CP, expert over EDP; kind by ZeRO level; bytes 0 = none */
    mf_op gather[2]; /* ZeRO-1/2: parameters after the optimizer; bytes 0 = none */
} mf_dp_ops;

typedef struct mf_stage_memory {
    double weights_B, gradients_B, optimizer_B; /* persistent on the device */
    double optimizer_host_B;
} mf_stage_memory;

typedef struct mf_program {
    mf_model model;
    mf_layout layout;
    mf_cluster cluster;
    mf_assignment assignment;
    int nblocks;
    mf_block **blocks; /* distinct blocks */
    int block_of[MF_MAX_POSITIONS];
    int32_t stage_of[MF_MAX_POSITIONS]; /* pipeline stage of each position */
    mf_dp_ops dp[MF_MAX_POSITIONS];
    mf_op send_forward; /* boundary tensor to the next virtual stage; bytes 0 when PP == 1 */
    mf_op send_backward;
    mf_op send_states[2]; /* the same between MTP depths, which pass two states side by side */
    bool split;           /* backward is split into B and W */
    bool borrowed;        /* blocks belong to the source that gave them */
} mf_program;

/* The op that sends one micro-batch's boundary tensor between neighbouring stages; bytes 0 when PP
 * is 1. name: static. */
mf_op mf_pipeline_send(const mf_model *m, const mf_layout *l, const char *name);

/* The op that carries a micro-batch's boundary tensor from virtual stage v to the next one, or
 * (direction 1) its gradient back from there; the bytes of that tensor, aligned. */
const mf_op *mf_program_send(const mf_program *p, int64_t v, int direction);
int64_t mf_program_message_B(const mf_program *p, int64_t v);
/* Largest boundary tensor that comes into a block of the stage or goes out of one. */
int64_t mf_program_boundary_B(const mf_program *p, int64_t stage);

/* Errors: MF_INFEASIBLE naming the part of the model that lowering has no ops for
 * (mf_model_not_lowered). */
mf_status mf_program_lower(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                           const mf_assignment *a, mf_program **out, mf_err *e);

/* The same with blocks from the caller: lower(user, key, ...) gives the block of a key and keeps it
 * until after mf_program_destroy. For readers that lower many layouts whose blocks are equal in the
 * parts that they read. */
typedef struct mf_block_source {
    mf_status (*lower)(void *user, const mf_block_key *key, mf_block **out, mf_err *e);
    void *user;
} mf_block_source;
mf_status mf_program_lower_from(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                                const mf_assignment *a, const mf_block_source *source,
                                mf_program **out, mf_err *e);
void mf_program_destroy(mf_program *p);

/* Parameters of a stage on one rank (its chunks' positions summed). */
mf_param_count mf_program_stage_params(const mf_program *p, int64_t stage);

/* True when a stage holds a copy of a table of its own. A tied head is a copy of the embedding. */
bool mf_program_holds(const mf_program *p, int64_t stage, mf_table table);

/* Pipeline stage of a position. */
int64_t mf_program_stage_of(const mf_program *p, int position);

/* End-of-step ops of a stage, after gradients are reduced over data-parallel ranks, in order: sums
 * over copies of weights (K and V heads, all of a TP group, expert biases, tables of other stages),
 * expert counts, gradient norm, its all-reduce together with the losses, offloaded states in,
 * AdamW, states out. The array ops holds max entries (MF_STEP_END_MAX is enough); returns the
 * count. */
#define MF_STEP_END_MAX 16
int mf_program_optimizer(const mf_program *p, int64_t stage, mf_op *ops, int max);

/* What these ops of one stage depend on; all zero but the parameters: a lower bound. */
typedef struct mf_step_end {
    mf_param_count params;
    mf_replica_count replicas;
    int64_t kv_copies;                /* TP ranks that hold the same K and V heads */
    double table_elements[MF_TABLES]; /* of this stage's copy; 0: none */
    int64_t table_copies[MF_TABLES];  /* stages that hold one */
    double expert_counts;             /* that auxiliary-loss-free balancing sums */
    double losses;                    /* FP64 sums in the same message as the norm's */
} mf_step_end;
int mf_param_optimizer(const mf_layout *l, const mf_step_end *w, mf_op *ops, int max);
void mf_program_step_end(const mf_program *p, int64_t stage, mf_step_end *out);

/* Sums of a step over all ranks before those by position: squared norm, loss, that of MTP, z-loss.
 */
#define MF_STEP_SUMS 4

/* Gradient reduction and parameter gather of a block with these parameters. */
mf_dp_ops mf_param_dp_ops(const mf_layout *l, mf_param_count params);

/* Bytes of one side's weights as ranks gather them: quantised where the quantised weights are the
 * primary ones, except norms, router and tables. */
double mf_param_gathered_B(const mf_layout *l, mf_param_count params, bool expert);

/* Persistent bytes of `params` under the layout's ZeRO levels, moments and precision. */
mf_stage_memory mf_param_memory(const mf_layout *l, mf_param_count params);

/* --- merging two passes ----------------------------------------------------------------------- */

/* Order in which a merged pair issues its ops: forward of one micro-batch interleaved with the
 * backward of another so that expert all-to-all of one runs beside compute of the other. */
typedef struct mf_merged_op {
    uint8_t side; /* 0 = forward block, 1 = backward block */
    int16_t op;
} mf_merged_op;
/* Fills order[forward->nforward + (backward->nops - backward->nforward)]. Returns the count. */
/* Where the turn of a side of a pair ends that begins at op `at` of `end`. */
int mf_block_turn(const mf_block *b, int at, int end);
int mf_block_merge(const mf_block *forward, const mf_block *backward, mf_merged_op *order);

#endif
