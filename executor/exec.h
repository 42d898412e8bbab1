/* exec.h - private to the executor: a rank's state and how tensors of a program are bound to it. */
#ifndef MF_EXECUTOR_EXEC_H
#define MF_EXECUTOR_EXEC_H

#include "core/memory_inputs.h"
#include "core/memory_place.h"
#include "core/pairing.h"
#include "executor/program_run.h"

/* What binding an op needs beyond its operands' places; one for each op of each block. */
typedef struct op_bind {
    int16_t nin;                   /* operands without partial sums and gather marks */
    int16_t forward_nin;           /* of the forward op, without gather marks */
    int16_t sum_of[MF_OP_MAX_OUT]; /* operand that is the partial sum of output k; -1 */
    int16_t out_of[MF_OP_MAX_OUT]; /* output of the forward op that output k is */
    bool first[MF_OP_MAX_OUT];     /* first writer of output k in its pass */
    bool adds[MF_OP_MAX_OUT];      /* another op wrote output k before: add to it in place */
    int16_t ring_step;
} op_bind;

typedef struct block_bind {
    op_bind *op;        /* [nops] */
    int64_t *host_at;   /* [nops] of a copy to or from the host: place in the block's part there */
    int16_t *weight_of; /* [ntensors] weight that a gradient tensor belongs to; -1 */
    int16_t input, output, output_gradient, input_gradient; /* -1: none */
} block_bind;

/* A position on this rank. */
typedef struct position_bind {
    const mf_block *block;
    const block_bind *bind;
    int *param;        /* [ntensors] entry of the parameter list of a weight; -1 */
    int64_t *inner;    /* [ntensors] element of a weight among those of its side that the block
                          computes with: its own, then tables of other positions */
    int64_t own[2];    /* elements of its own, dense and expert */
    float *load;       /* [experts] counts of the step (correction bias); NULL */
    float *correction; /* [experts]; NULL */
} position_bind;

/* A block at work on a micro-batch: where its tensors stand. */
typedef struct block_at {
    int position, micro_batch;
    int side; /* 0; 1: the backward of a merged pair */
    const mf_place_instance *instance;
    const mf_place_work *work;
    char *arrived, *host;       /* core/memory_place.h */
    char *gradients, *gathered; /* in full, dense and then expert */
    void *input, *output, *output_gradient, *input_gradient;
} block_at;

/* A message on its way to another rank, or one that waits for a chunk of this one. */
typedef struct mailbox {
    bool full;
    int vstage, micro_batch, direction; /* 0: forward, 1: backward */
    char *data;
} mailbox;

/* A stage's copy of a table that other stages hold too. */
typedef struct table_copy {
    int64_t stage, offset, dense; /* of the copy in the stage's dense half; elements of that half */
} table_copy;

typedef struct table_copies {
    int count;            /* stages that hold one; 0: nothing to do on this rank */
    table_copy *copy;     /* [count] by stage */
    int param, mine;      /* this rank's */
    mf_group_kind same;   /* the ranks of those stages with this rank's place in the stage */
    mf_group_kind shards; /* with this rank's place in its TP group alone */
} table_copies;

struct mf_exec {
    const mf_program *p;
    const mf_schedule *s;
    mf_comm *comm;
    const mf_exec_backend *backend;
    mf_exec_options o;
    mf_rank_coords at;
    int64_t stage;

    block_bind *blocks;       /* [nblocks] */
    position_bind *positions; /* [positions]; block NULL on other ranks */
    mf_places *places;
    mf_params params;

    char *arena, *area; /* area: what comes and goes in a step */
    char *host;         /* host memory of offloaded activations */
    int64_t arena_B, host_B;
    int64_t high_B; /* of the area: the end of the highest place that was taken */
    double planned_B, planned_host_B;
    mf_kernel_dtype weight_type; /* what layers compute with: the layout's precision */
    char *weights[2];            /* halves: dense, expert; a shard under ZeRO-3 */
    float *master[2];            /* the owned shard in float: part of weights where those are, else
                                    the first of the optimizer's states */
    float *gradients[2];         /* a shard under ZeRO-2 and -3 */
    mf_kernel_dtype moment_type;
    char *moments[2][2]; /* [m, v][half], of the owned shard */
    char *host_states;   /* from here on the optimizer's states are in host memory */
    int64_t owned_first[2], owned_count[2];
    int64_t boundary_B, gathered_B;
    char *boundary[4]; /* input and output of the block at work, by side */
    char *gathered;    /* two buffers a side */
    int gathers[2];    /* of this step, by side */
    char *exchange;    /* registered buffers of a fused dispatcher */
    mailbox *mail;     /* [2 * sending], then [waiting] */
    int sending, waiting;

    /* what ops read of the batch, scratch, results (core/memory_inputs.h) */
    int32_t *tokens;  /* [local samples][seq + 1] */
    int32_t *rows[2]; /* tokens and labels of the micro-batch of a side, for each MTP depth */
    int32_t *positions_of_rows, *cu, *ring_position, *full_position, *full_cu;
    int32_t *near_position, *near_cu;
    float *rope;
    void *scratch;
    int64_t scratch_B, lent_B; /* lent: its end, to sums in flight */
    mf_merged_op *merged;      /* order of a pair of blocks */
    mf_pairing pairing;        /* blocks of the event that runs */
    float *loads, *corrections;
    double *sums; /* of the step over all ranks: MF_STEP_SUMS, auxiliary losses */
    double *aux_of_position, loss_sum, mtp_sum[MF_MODEL_MAX_MTP], z_sum;
    int64_t step, ops;

    mf_op once[MF_ONCE_MAX]; /* pass O */
    int nonce, once_at;      /* ops, the next one */
    mf_group_kind kv_copies; /* TP ranks that hold the same K and V heads */
    table_copies table[MF_TABLES];
    double lr;
    mf_exec_env env;
};

/* bind.c: what blocks need to know; refuses what this executor does not run. */
mf_status mf_exec_bind(mf_exec *x, mf_err *e);
void mf_exec_unbind(mf_exec *x);

/* arena.c: the arena and the places in it. */
mf_status mf_exec_lay_out(mf_exec *x, mf_err *e);
/* Takes the places of block `step` of a chunk that plays `passes` in event `event`, all but those
 * of boundary tensors. */
void mf_exec_place(mf_exec *x, int64_t event, int step, int side, int64_t chunk, int position,
                   int micro_batch, unsigned passes, block_at *out);
/* The op with its operands' memory. */
void mf_exec_bind_op(const mf_exec *x, const block_at *at, int op, mf_exec_op *out);
/* Place of a tensor of the block; NULL where it has none of its own. */
void *mf_exec_address(const mf_exec *x, const block_at *at, int16_t t, uint8_t pass);
/* Are the weights (gradients) of a side a shard here, gathered (reduced) block by block? */
bool mf_exec_shards_weights(const mf_exec *x, int side);
bool mf_exec_shards_gradients(const mf_exec *x, int side);

/* Bytes of an element that layers compute with; where element `element` of a side stands (of the
 * shard under ZeRO-3); where the owned elements of parameter i stand. */
int64_t mf_exec_weight_B(const mf_exec *x);
void *mf_exec_weight_at(const mf_exec *x, int side, int64_t element);
void *mf_exec_own_copy(const mf_exec *x, int i);

/* messages.c: between virtual stages, through the arena's mailboxes. */
mf_status mf_exec_post(mf_exec *x, int64_t from, int64_t to, int direction, int micro_batch,
                       const void *data, mf_err *e);
mf_status mf_exec_collect(mf_exec *x, int64_t at, int64_t from, int direction, int micro_batch,
                          void *data, mf_err *e);
mf_status mf_exec_end_messages(mf_exec *x, mf_err *e);

/* zero.c: what ZeRO-2 and ZeRO-3 do inside a block. */
bool mf_exec_is_zero_op(const mf_op *op);
mf_status mf_exec_zero_op(mf_exec *x, const block_at *at, const mf_op *op, mf_err *e);
/* Before a pass that writes gradients: those that stand in full for this block alone begin at 0. */
void mf_exec_zero_begin(mf_exec *x, const block_at *at, unsigned passes);

/* reduce.c: gradients summed over ranks. */
mf_status mf_exec_reduce_init(mf_exec *x, mf_err *e);
void mf_exec_reduce_clear(mf_exec *x);
/* Elements of scratch that the sums of pass O need. */
int64_t mf_exec_reduce_scratch(const mf_exec *x);
/* Data-parallel reductions of all positions, then the sums over copies that pass O begins with. */
mf_status mf_exec_reduce_positions(mf_exec *x, mf_err *e);
mf_status mf_exec_sum_copies(mf_exec *x, const mf_op *op, mf_err *e);
mf_status mf_exec_sum_tables(mf_exec *x, const mf_op *op, mf_err *e);
/* Elements of a parameter, from the first, that the norm counts on this rank. */
int64_t mf_exec_counted(const mf_exec *x, const mf_param *q);
/* Side 0 dense, 1 expert: ZeRO level, group, elements; each member's share of [begin, end). */
int mf_exec_zero(const mf_exec *x, int side);
mf_group_kind mf_exec_zero_group(int side);
void mf_exec_shares(const mf_exec *x, int side, int64_t begin, int64_t end, int64_t *counts);
/* Range of a position's parameters on a side; false: it has none. */
bool mf_exec_range(const mf_exec *x, int position, int side, int64_t *begin, int64_t *end);

/* optimizer.c: pass O of the rank's stage, up to the norm and after it. */
mf_status mf_exec_once_gradients(mf_exec *x, mf_err *e);
mf_status mf_exec_once_update(mf_exec *x, mf_err *e);

/* program_run.c: around an op of the program that no block holds. False: it is to be left out. */
bool mf_exec_runs(mf_exec *x, const mf_op *op);
void mf_exec_ran(mf_exec *x, const mf_op *op);

#endif
