/* exec.h - private to the executor: a rank's state and how tensors of a program are bound to it. */
#ifndef MF_EXECUTOR_EXEC_H
#define MF_EXECUTOR_EXEC_H

#include "executor/program_run.h"

/* What binding an op needs beyond its operands' places; one for each op of each block. */
typedef struct op_bind {
    int16_t nin;                   /* operands without partial sums and gather marks */
    int16_t sum_of[MF_OP_MAX_OUT]; /* operand that is the partial sum of output k; -1 */
    int16_t out_of[MF_OP_MAX_OUT]; /* output of the forward op that output k is */
    bool first[MF_OP_MAX_OUT];     /* first writer of output k in its pass */
    bool adds[MF_OP_MAX_OUT];      /* another op wrote output k before: add to it in place */
    int16_t ring_step;
} op_bind;

typedef struct block_bind {
    op_bind *op;        /* [nops] */
    int64_t *saved_at;  /* [ntensors] place in the block's part of a slot; -1 */
    int16_t *weight_of; /* [ntensors] weight that a gradient tensor belongs to; -1 */
    int16_t input, output, output_gradient, input_gradient; /* -1: none */
} block_bind;

/* A position on this rank. */
typedef struct position_bind {
    const mf_block *block;
    const block_bind *bind;
    int64_t slot_at;   /* of its saved tensors in a slot of its chunk */
    int *param;        /* [ntensors] entry of the parameter list of a weight; -1 */
    float *load;       /* [experts] counts of the step (correction bias); NULL */
    float *correction; /* [experts]; NULL */
} position_bind;

typedef struct chunk_slots {
    int64_t slot_B; /* saved tensors of one micro-batch */
    int slots;      /* micro-batches in flight at most */
    char *base;
    int *slot_of; /* [micro_batches] */
} chunk_slots;

/* A message that waits between two chunks of one rank, or a send under way. */
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

/* Sums of a step over all ranks before those by position: squared norm, losses. */
#define MF_SUMS 4

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
    chunk_slots *chunks;      /* [vpp] */
    mf_params params;

    char *arena;
    int64_t arena_B;
    double planned_B;
    float *weights[2], *gradients[2]; /* halves: dense, expert */
    float *moments[2][2];             /* [m, v][half], of the owned shard */
    int64_t owned_first[2], owned_count[2];
    char *workspace, *boundary[2];
    int64_t boundary_B;
    bool overlaid; /* one micro-batch in flight: the workspace lies over what is not saved yet */
    int64_t overlaid_B;

    /* outside the arena: what ops read of the batch, scratch, messages, results */
    int32_t *tokens; /* [local samples][seq + 1] */
    int32_t *rows;   /* tokens and labels of the micro-batch at hand, for each MTP depth */
    int32_t *positions_of_rows, *cu, *ring_position, *full_position, *full_cu;
    float *rope;
    void *scratch;
    mailbox *mail;
    int nmail;
    float *loads, *corrections;
    /* of the step over all ranks: squared norm, loss, MTP's, z-loss, auxiliary losses */
    double *sums;
    double *aux_of_position, loss_sum, mtp_sum, z_sum;
    int64_t step, ops;

    mf_op once[MF_ONCE_MAX]; /* pass O */
    int nonce, once_at;      /* ops, the next one */
    mf_group_kind kv_copies; /* TP ranks that hold the same K and V heads */
    table_copies table[MF_TABLES];
    double lr;
    mf_exec_env env;
};

/* bind.c */
mf_status mf_exec_bind(mf_exec *x, mf_err *e);
void mf_exec_unbind(mf_exec *x);
/* The op with its operands' memory for a micro-batch of a chunk. in/out: boundary buffers. */
typedef struct boundary_at {
    void *input, *output, *output_gradient, *input_gradient;
} boundary_at;
void mf_exec_bind_op(const mf_exec *x, int position, int64_t chunk, int micro_batch, int op,
                     const boundary_at *at, mf_exec_op *out);
/* Memory of a position's input in the forward pass of a micro-batch. */
void *mf_exec_input(const mf_exec *x, int position, int64_t chunk, int micro_batch, void *buffer);

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

/* program_run.c: an op of the program has run. */
void mf_exec_ran(mf_exec *x, const mf_op *op);

#endif
