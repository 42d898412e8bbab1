/* exec.h - private to the executor: a rank's state and how tensors of a program are bound to it. */
#ifndef MF_EXECUTOR_EXEC_H
#define MF_EXECUTOR_EXEC_H

#include "core/memory/memory_inputs.h"
#include "core/memory/memory_place.h"
#include "core/program/pairing.h"
#include "executor/step/program_run.h"

/* What binding an op needs beyond its operands' places; one for each op of each block. */
typedef struct op_bind {
    int16_t nin;                   /* operands without partial sums and marks */
    int16_t forward_nin;           /* of the forward op, without marks */
    int16_t sum_of[MF_OP_MAX_OUT]; /* operand that is the partial sum of output k; -1 */
    int16_t out_of[MF_OP_MAX_OUT]; /* output of the forward op that output k is */
    bool first[MF_OP_MAX_OUT];     /* first writer of output k in its pass */
    bool adds[MF_OP_MAX_OUT];      /* another op wrote output k before: add to it in place */
    int16_t ring_step;
} op_bind;

/* What an op of a block does beside its work, where each stream has a queue of its own: it awaits
 * signals of other queues' ops, and signals behind its work. */
typedef struct op_order {
    int16_t await[MF_STREAM_COUNT]; /* [awaits] ops of the block */
    uint8_t awaits;
    bool begins; /* first of its queue: it awaits the signal of the block's beginning */
    bool signals;
} op_order;

/* Of the passes of a block that are played together. */
typedef struct stream_plan {
    op_order *order; /* [nops] */
    uint16_t folded; /* bit s: stream s goes on the queue of compute */
    uint16_t joins;  /* bit s: compute waits for stream s at the block's end */
    bool forks;      /* somebody awaits the block's beginning */
    bool reduces;    /* gradients into shards, on the queue of DP */
} stream_plan;

enum { MF_PASS_SETS = 3 }; /* forward; backward, with weight gradients or without; those alone */

typedef struct block_bind {
    op_bind *op;        /* [nops] */
    int64_t *host_at;   /* [nops] of a copy to or from the host: place in the block's part there */
    int16_t *weight_of; /* [ntensors] weight that a gradient tensor belongs to; -1 */
    int16_t input, output, output_gradient, input_gradient; /* -1: none */
    stream_plan streams[2][MF_PASS_SETS]; /* alone; in a merged pair. Where streams have queues */
} block_bind;

/* Elements [begin, end) of a half; `at` is where the first stands among all that the rank owns. */
typedef struct owned_part {
    int64_t begin, end, at;
} owned_part;

/* A position on this rank. */
typedef struct position_bind {
    const mf_block *block;
    const block_bind *bind;
    int *param;          /* [ntensors] entry of the parameter list of a weight; -1 */
    int64_t *inner;      /* [ntensors] element of a weight among those of its side that the block
                            computes with: its own, then tables of other positions */
    int64_t own[2];      /* elements of its own, dense and expert */
    owned_part owned[2]; /* and those of them that this rank updates */
    float *load;         /* [experts] counts of the step (correction bias); NULL */
    float *correction;   /* [experts]; NULL */
} position_bind;

/* A block that runs on a micro-batch, and the addresses of its tensors. */
typedef struct block_at {
    int position, micro_batch;
    int side; /* 0; 1: the backward of a merged pair */
    const mf_place_instance *instance;
    const mf_place_work *work;
    char *arrived, *host;       /* core/memory/memory_place.h */
    char *gradients, *gathered; /* in full, dense and then expert */
    char *staging; /* buffer of its offloaded tensors while another block runs; NULL: none */
    void *input, *output, *output_gradient, *input_gradient;
    const stream_plan *streams; /* NULL: all on the queue of compute */
    bool gathered_ahead;        /* its weights were gathered during the block before */
    bool fetches_own;           /* its own copies from the host are on a queue */
} block_at;

/* The optimizer's work list in device memory: the owned elements of every parameter. */
typedef struct mf_update_tables {
    void *memory;
    int64_t tensors, chunks, counted, counted_chunks;
    mf_kernel_adamw_tensor *tensor;
    mf_kernel_chunk *chunk;
    mf_kernel_grad_tensor *grad; /* what the norm counts */
    mf_kernel_chunk *grad_chunk;
    double *partial; /* workspace of the norm */
} mf_update_tables;

/* Elements of a tensor that are updated together if states are on the host. */
typedef struct mf_update_piece {
    mf_kernel_adamw_tensor at; /* states where they stand: mf_exec_read_state */
    int64_t first_chunk, chunks;
    int64_t turn; /* how many pieces before it travel; -1: its states are on the device */
} mf_update_piece;

typedef struct mf_update_pieces {
    int64_t count, chunks;
    mf_update_piece *piece;         /* [count] */
    void *memory;                   /* the device's, of what follows */
    mf_kernel_adamw_tensor *staged; /* [count] with states where they are updated */
    mf_kernel_chunk *chunk;         /* [chunks] */
    mf_queue *in, *out;             /* states are loaded and stored during updates */
} mf_update_pieces;

/* A message that is being sent to another rank, or that waits for a chunk of this rank. */
typedef struct mailbox {
    bool full;                          /* until it was sent, or was read */
    mf_queue *leaves;                   /* the queue of its slot; NULL: for this rank */
    int vstage, micro_batch, direction; /* 0: forward, 1: backward */
    char *data;
} mailbox;

/* A stage's copy of a table that other stages hold too. */
typedef struct table_copy {
    int64_t stage, offset, elements; /* of the copy in its position's dense part; of that part */
} table_copy;

typedef struct table_copies {
    int count;            /* stages that hold one; 0: nothing to do on this rank */
    table_copy *copy;     /* [count] by stage */
    int param, mine;      /* this rank's */
    mf_group_kind same;   /* the ranks of those stages with this rank's place in the stage */
    mf_group_kind shards; /* with this rank's place in its TP group alone */
} table_copies;

/* Host buffers of a step that the device was given. */
typedef struct step_buffers {
    char *up;       /* `rows` of every micro-batch, then the learning rate */
    char *down;     /* sums, update, loads as they stood after the step */
    int64_t *spans; /* work_clocks.span_ns after the step; NULL: nothing is timed */
    int64_t ops;
    double began_s; /* by the host's clock */
} step_buffers;

/* Where a step's work has set the word: behind a block, or behind the update (position -1); where
 * compute waits for an op, or goes on with one behind a wait. */
typedef enum progress_kind { PROGRESS_BLOCK, PROGRESS_WAITS, PROGRESS_WORKS } progress_kind;
typedef struct progress_place {
    int position, micro_batch;
    unsigned passes; /* of a block */
    int op;
    progress_kind kind;
} progress_place;

/* How long this rank's device worked: since the executor was made, by the op of a block that it
 * began with behind a wait. */
typedef struct work_clock {
    int64_t *span_ns; /* [mf_exec_spans] device memory; NULL: nothing is timed */
    int64_t span;     /* that was begun last */
    int64_t seen_ns;  /* of all spans, as the step that was read last reports it */
    bool runs;        /* where the queue of compute has come to */
} work_clock;

/* Places come in chunks, which stay where they are: another thread reads them. */
typedef struct step_progress {
    int32_t *word;          /* in the host's memory; NULL where work is done when a call returns */
    progress_place **chunk; /* [chunks] of CHUNK (progress.c) each, NULL until it is needed */
    int64_t chunks, at;     /* at: of the step that is entered, from 1 on */
    double since_s;         /* least time of the work entered since then */
} step_progress;

/* Gathers of weights and reductions of gradients that run during compute. */
typedef struct dp_beside {
    mf_queue *queue; /* NULL: reductions follow the passes, gathers the update */
    int *writes;     /* [positions] times in a step that a weight's gradient there is added to, */
    int *left;       /* and those that are still to come */
    bool *reduced;   /* [positions] */
    bool begun;      /* a gather or reduction of this step has begun */
    bool gathers;    /* blocks wait for the weights that they read; */
    int gathered;    /* positions up to this one are gathered; -1: none */
} dp_beside;

struct mf_exec {
    const mf_program *p;
    const mf_schedule *s;
    mf_comm *comm; /* host memory: what ranks agree on */
    mf_comm *wire; /* the device's memory; the same where that is the host's */
    mf_device *device;
    mf_queue *queue; /* of compute */
    mf_queue *queues[MF_STREAM_COUNT];
    bool streams; /* each stream has its queue, else all go on that of compute */
    int slots;    /* signals of a side's ops */
    bool deferred[2],
        fetched[2]; /* by side: reductions, gathers run during the neighbouring block */
    bool leaving;   /* the forward pass's block before is being copied to the host */
    mf_exec_options o;
    mf_rank_coords at;
    int64_t stage;

    block_bind *blocks;       /* [nblocks] */
    position_bind *positions; /* [positions]; block NULL on other ranks */
    mf_places *places;
    mf_params params;

    char *arena, *area; /* area: what comes and goes in a step */
    char *host;         /* host memory of offloaded activations */
    char *pinned;       /* where it is no part of the arena */
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
    char *host_states;   /* from here on the optimizer's states are in host memory, */
    char *host_memory;   /* from here on; the same where the device's memory is the host's */
    int64_t owned_count[2];
    bool master_in_whole[2]; /* the owned float weights are where layers read them, in the half */
    int64_t boundary_B, gathered_B;
    char *boundary[4]; /* input and output of the block at work, by side */
    char *gathered;    /* two buffers a side */
    int gathers[2];    /* of this step, by side */
    bool *begun;       /* [positions] has a weight gradient of this step */
    bool *reduced[2];  /* [positions], by side: has sharded gradients of this step */
    char *exchange;    /* a fused dispatcher's copies on their way, or what it keeps: */
    mf_ops_window window;
    char dispatch_text[256];
    mailbox *mail; /* [2 * sending], then [waiting] */
    int sending, waiting;

    /* what ops read of the batch, scratch, results (core/memory/memory_inputs.h) */
    int32_t *sample;  /* [seq + 1] host memory */
    int32_t *batch;   /* `rows` of every micro-batch of a step, where copies reach them */
    int32_t *rows[2]; /* tokens and labels of the micro-batch of a side, for each MTP depth */
    int32_t *zigzag;  /* host memory: positions of this rank's rows of a sample [S/CP] */
    char *inputs;     /* all that follows, as mf_inputs says */
    mf_inputs in;
    mf_scratch scratch_plan; /* of each stream */
    void *scratch;           /* the first: of compute, and of what is done outside blocks */
    mf_merged_op *merged;    /* order of a pair of blocks */
    mf_pairing pairing;      /* blocks of the event that runs */
    float *loads, *corrections;
    int32_t *forced; /* [positions][experts + 1]: places of forced choices; NULL: none */
    double *sums;    /* of the step over all ranks: MF_STEP_SUMS, auxiliary losses */
    mf_kernel_update_state *update;
    step_buffers buffers[MF_DEVICE_POINTS];
    int64_t entered, finished; /* steps given to the device, and those of them that were read */
    double loss_limit;         /* of the steps that begin; 0: none */
    mf_queue *uploads;
    char *ahead;  /* device memory: what the next step reads, then what this one does; NULL where
                     memory is the host's */
    char *report; /* of the step that was read last */
    step_progress progress;
    dp_beside beside;
    mf_update_tables tables;
    mf_update_pieces pieces;
    int64_t ops;
    work_clock work;
    bool preparing;         /* plans are made: nothing is said to other ranks */
    bool quiet;             /* before_op and after_op are not called: ops do not run */
    mf_device_graph *graph; /* of a step; NULL: none yet */
    int64_t graph_ops;

    mf_op step_end[MF_STEP_END_MAX]; /* pass O */
    int step_end_ops, step_end_at;   /* ops, the next one */
    mf_group_kind kv_copies;         /* TP ranks that hold the same K and V heads */
    table_copies table[MF_TABLES];
    char *staging; /* host memory of what checkpoints look at, where the device's is another */
    int64_t *staging_at; /* [params] place of each parameter's states in it */
    bool staged;         /* it holds all of them, of one moment */
    float *corrections_copy;
    mf_exec_env env;
};

/* Work on the queue of compute: copies between any memories, zeroes; what the host reads. */
mf_status mf_exec_copy(const mf_exec *x, void *to, const void *from, size_t size_B, mf_err *e);
mf_status mf_exec_zero_out(const mf_exec *x, void *to, size_t size_B, mf_err *e);
mf_status mf_exec_fetch(const mf_exec *x, void *host, const void *device, size_t size_B, mf_err *e);
/* Correction biases of all positions [positions, experts] in host memory, until the next call. */
mf_status mf_exec_corrections(mf_exec *x, const float **out, mf_err *e);
/* Ops that are translated from here on work in the scratch of this stream. */
void mf_exec_use_scratch(mf_exec *x, mf_stream stream);
/* Another group of ranks, on the host's wire and on the device's. */
mf_status mf_exec_add_group(mf_exec *x, int64_t color, mf_group_kind *out, mf_err *e);
static inline const mf_device_ops *mf_exec_device(const mf_exec *x) {
    return x->device->ops;
}

/* bind.c: what blocks need to know; refuses what this executor does not run. */
mf_status mf_exec_bind(mf_exec *x, mf_err *e);
void mf_exec_unbind(mf_exec *x);

/* streams.c: which ops wait for which of other streams. */
mf_status mf_exec_streams_init(mf_exec *x, mf_err *e);
void mf_exec_streams_clear(mf_exec *x);
/* A block plays `passes`, alone or in a pair: the queues of its ops, and of one of its streams. */
void mf_exec_enter_streams(const mf_exec *x, unsigned passes, bool paired, block_at *at);
mf_queue *mf_exec_queue_of(const mf_exec *x, const block_at *at, int stream);
/* Behind what compute does before a block's ops; around an op on its queue; behind the ops (ends:
 * the pass ends, too). */
mf_status mf_exec_fork(const mf_exec *x, const block_at *at, mf_err *e);
mf_status mf_exec_before_op(const mf_exec *x, const block_at *at, int op, mf_queue *q, mf_err *e);
mf_status mf_exec_after_op(const mf_exec *x, const block_at *at, int op, mf_queue *q, mf_err *e);
mf_status mf_exec_join(mf_exec *x, const block_at *at, bool ends, mf_err *e);

/* zero_beside.c: beside the neighbouring block of a pass. */
typedef mf_status (*mf_exec_run_fn)(mf_exec *x, const block_at *at, int op, mf_queue *q, mf_err *e);
bool mf_exec_is_gather(const mf_op *op, unsigned passes);
/* Before a block's ops: starts to gather the weights of the pass's next block, `position`, and
 * waits for the block's own, if these were gathered ahead. */
mf_status mf_exec_gather_ahead(mf_exec *x, const block_at *now, int position, unsigned passes,
                               mf_exec_run_fn run, mf_err *e);
mf_status mf_exec_take_gathered(mf_exec *x, block_at *at, mf_err *e);
/* At a block's end: may its reductions finish during the next block (ends: there is no next one in
 * the pass)? Compute waits for those of the block before. */
bool mf_exec_defers_reductions(const mf_exec *x, const block_at *at, bool ends);
mf_status mf_exec_join_reductions(mf_exec *x, const block_at *at, bool deferred, mf_err *e);

/* offload_beside.c: copies to and from the host during the neighbouring block. Does an op run
 * outside its place in its block? Does it fetch from the host? */
bool mf_exec_copied_beside(const block_at *at, const mf_op *op);
bool mf_exec_is_fetch(const mf_op *op);
/* Before a block's ops: waits for its tensors, if they were fetched ahead. After its begin signal:
 * a backward block that has no block before it fetches its own tensors; then the fetch of those of
 * `next` starts. */
mf_status mf_exec_take_copies(mf_exec *x, const block_at *at, mf_err *e);
mf_status mf_exec_fetch_own(mf_exec *x, block_at *at, unsigned passes, mf_exec_run_fn run,
                            mf_err *e);
mf_status mf_exec_fetch_ahead(mf_exec *x, const block_at *next, mf_exec_run_fn run, mf_err *e);
/* At a block's end compute waits for the copies that may not run during another block. After that a
 * forward block waits for the offloads of the block before and starts its own. */
mf_status mf_exec_join_copies(mf_exec *x, const block_at *at, mf_err *e);
mf_status mf_exec_start_offload(mf_exec *x, const block_at *at, mf_exec_run_fn run, mf_err *e);

/* window.c: the window of a fused dispatcher, before the arena is laid out: where it cannot be had
 * its rows go through the arena. Collective. */
mf_status mf_exec_window_open(mf_exec *x, mf_err *e);
void mf_exec_window_close(mf_exec *x);

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
/* Once, when mailboxes have their memory: queues for those to other ranks. */
mf_status mf_exec_open_messages(mf_exec *x, mf_err *e);

/* Of a gradient: does the first op of its block that writes it write it whole? */
bool mf_exec_overwrites(const mf_exec *x, int position, int16_t t);

/* zero.c: what ZeRO-2 and ZeRO-3 do inside a block. */
bool mf_exec_is_zero_op(const mf_op *op);
/* Before a step: sharded gradients that are added to begin at zero. */
mf_status mf_exec_zero_clear(mf_exec *x, int side, mf_err *e);
mf_status mf_exec_zero_op(mf_exec *x, const block_at *at, const mf_op *op, mf_queue *q, mf_err *e);
/* Before a pass that writes gradients: those that stand in full for this block alone begin at 0. */
mf_status mf_exec_zero_begin(mf_exec *x, const block_at *at, unsigned passes, mf_err *e);

/* reduce.c: gradients summed over ranks. */
mf_status mf_exec_reduce_init(mf_exec *x, mf_err *e);
void mf_exec_reduce_clear(mf_exec *x);
/* Elements of scratch that the sums of pass O need. */
int64_t mf_exec_reduce_scratch(const mf_exec *x);
/* The data-parallel reduction of a position, on the queue that the wire uses now; of all positions
 * that were not reduced beside compute. Sums over copies that pass O begins with. */
mf_status mf_exec_reduce_position(mf_exec *x, int position, mf_err *e);
mf_status mf_exec_reduce_positions(mf_exec *x, mf_err *e);
mf_status mf_exec_sum_copies(mf_exec *x, const mf_op *op, mf_err *e);
mf_status mf_exec_sum_tables(mf_exec *x, const mf_op *op, mf_err *e);
/* Elements of a parameter, from the first, that the norm counts on this rank. */
int64_t mf_exec_counted(const mf_exec *x, const mf_param *q);
/* Side 0 dense, 1 expert: ZeRO level, group, elements. */
int mf_exec_zero(const mf_exec *x, int side);
mf_group_kind mf_exec_zero_group(int side);
/* Range of a position's parameters on a side; false: it has none. */
bool mf_exec_range(const mf_exec *x, int position, int side, int64_t *begin, int64_t *end);
/* Each position is shared out by itself, so that one collective with equal parts serves it. Member
 * i's part of `elements` that `ranks` members share: as many as the others have; the last member
 * has what is left over as well. */
void mf_exec_part(int64_t elements, int64_t ranks, int64_t i, int64_t *first, int64_t *end);
/* Of elements [begin, end) of a position, how many each member has. */
void mf_exec_shares(const mf_exec *x, int position, int side, int64_t begin, int64_t end,
                    int64_t *counts);
/* Where this rank's element of a position's half stands among all that it owns. */
int64_t mf_exec_in_shard(const mf_exec *x, int position, int side, int64_t element);

/* reduce_beside.c: a step begins; a position's block is about to begin; it has made its weight
 * gradients of a micro-batch; compute waits for what goes on beside it; the update has been made.
 */
mf_status mf_exec_beside_init(mf_exec *x, mf_err *e);
void mf_exec_beside_clear(mf_exec *x);
mf_status mf_exec_beside_begin(mf_exec *x, mf_err *e);
mf_status mf_exec_beside_enter(mf_exec *x, int position, mf_err *e);
mf_status mf_exec_beside_block(mf_exec *x, int position, mf_err *e);
mf_status mf_exec_beside_join(mf_exec *x, mf_err *e);
mf_status mf_exec_beside_end(mf_exec *x, mf_err *e);

/* optimizer.c: its tables; weights of a position as other ranks updated them (ZeRO-1 and -2); pass
 * O of the rank's stage, up to the norm and after it. */
mf_status mf_exec_gather_position(mf_exec *x, int position, mf_err *e);
mf_status mf_exec_update_init(mf_exec *x, mf_err *e);
void mf_exec_update_clear(mf_exec *x);
mf_status mf_exec_step_end_gradients(mf_exec *x, mf_err *e);
mf_status mf_exec_step_end_update(mf_exec *x, mf_err *e);

/* step_buffers.c: host buffers of the steps that are begun and not finished. */
mf_status mf_exec_step_buffers_init(mf_exec *x, mf_err *e);
void mf_exec_step_buffers_clear(mf_exec *x);
/* A step begins: its samples of this rank and its learning rate are on their way to the device.
 * MF_INTERNAL when as many steps as mf_exec_ahead says are begun and not finished. */
mf_status mf_exec_send_batch(mf_exec *x, const mf_exec_batch *batch, double lr, mf_err *e);
/* Its ops are entered: its results are on their way back. */
mf_status mf_exec_request_results(mf_exec *x, mf_err *e);
/* Waits for the results of the first step that was begun and not finished. */
mf_status mf_exec_read_results(mf_exec *x, mf_exec_result *out, mf_err *e);
/* Elements of a micro-batch's tokens and labels. */
int64_t mf_exec_batch_rows(const mf_exec *x);
/* Auxiliary losses are means over what the ops see of a step: micro-batches of each DP rank (and
 * the samples in them), or micro-steps of all. */
double mf_exec_aux_scopes(const mf_exec *x);
/* optimizer_offload.c: states of which a part is in host memory; addresses of states run on there.
 * Copies of states from and to any memory, on the queue of compute. */
mf_status mf_exec_read_state(const mf_exec *x, void *to, const void *state, int64_t size_B,
                             mf_err *e);
mf_status mf_exec_write_state(const mf_exec *x, void *state, const void *from, int64_t size_B,
                              mf_err *e);
/* A state in the device's memory: as it stands, or in the scratch. */
mf_status mf_exec_state_here(const mf_exec *x, const void *state, int64_t size_B, const void **out,
                             mf_err *e);
/* Divides the optimizer's tensors into pieces; nothing without offload. Their update: `how` without
 * its tensors. */
mf_status mf_exec_offload_init(mf_exec *x, const mf_kernel_adamw_tensor *tensor, int64_t tensors,
                               mf_err *e);
void mf_exec_offload_clear(mf_exec *x);
mf_status mf_exec_offload_update(mf_exec *x, const mf_kernel_adamw *how, mf_err *e);

/* progress.c: makes the word; behind a block of a step, or the update (position -1), sets it. */
mf_status mf_exec_progress_init(mf_exec *x, mf_err *e);
void mf_exec_progress_clear(mf_exec *x);
mf_status mf_exec_progress_mark(mf_exec *x, int position, unsigned passes, int micro_batch,
                                mf_err *e);
/* Before op `here` of the queue of compute: writes the host's progress word, once the work entered
 * since the last one, this op with it, takes word_s or more (mf_exec_options). */
mf_status mf_exec_progress_op(mf_exec *x, const progress_place *here, mf_err *e);
/* The number by which `here` is known, of the step that is entered. False: it has none. */
bool mf_exec_progress_next(mf_exec *x, const progress_place *here, int32_t *place);

/* work_clock.c: makes the clock; a block of compute ends. */
mf_status mf_exec_work_init(mf_exec *x, mf_err *e);
void mf_exec_work_clear(mf_exec *x);
mf_status mf_exec_work_end(mf_exec *x, mf_err *e);
/* Before an op of a block, and what it waits for, and before its own work. */
mf_status mf_exec_work_awaits(mf_exec *x, const block_at *at, int op, const mf_queue *q, mf_err *e);
mf_status mf_exec_work_on(mf_exec *x, const block_at *at, int op, const mf_queue *q, mf_err *e);

/* program_run.c: around an op of the program that no block holds: who looks at ops hears of it
 * before and behind it. mf_exec_runs: the same as mf_exec_begins; false: it is to be left out. */
void mf_exec_begins(mf_exec *x, const mf_op *op);
bool mf_exec_runs(mf_exec *x, const mf_op *op);
void mf_exec_ran(mf_exec *x, const mf_op *op);

/* --- forced_routing.c --- */

/* Places of the choices that o.forced asks for, on the device; nothing where it asks for none. */
mf_status mf_exec_force_routing(mf_exec *x, mf_err *e);

#endif
