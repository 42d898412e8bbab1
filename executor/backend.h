/* backend.h - the seam between running a program and the device that runs it: one table of
 * functions over op kinds, each taking an op with its operands bound to memory.
 *
 * A backend's function enqueues (CUDA) or does (CPU) the work of one op. It allocates nothing, and
 * reads sizes that depend on routing only where the work runs.
 */
#ifndef MF_EXECUTOR_BACKEND_H
#define MF_EXECUTOR_BACKEND_H

#include "core/lower.h"
#include "executor/comm.h"
#include "kernels/kernel.h"

/* An operand: rows_max x cols elements of memory, of which `rows` are used when balanced. */
typedef struct mf_exec_tensor {
    void *data;
    int64_t rows, cols, rows_max;
    mf_kernel_dtype dtype; /* integers and statistics are four bytes wide and say F32 */
} mf_exec_tensor;

/* What ops read besides their operands: the rank and the micro-batch at hand. */
typedef struct mf_exec_env {
    const mf_model *model;
    const mf_layout *layout;
    mf_rank_coords at;
    mf_comm *comm;
    const float *rope_cos, *rope_sin; /* [seq, rot/2] */

    /* of the micro-batch, rows as inside TP regions: sample by sample, [mbs * S/CP] */
    const int32_t *token, *label; /* of the position at hand (MTP depths look further ahead) */
    const int32_t *position;      /* in the sample */
    const int32_t *cu;            /* [mbs + 1] first row of each sample */
    const int32_t *ring_position; /* [cp][mbs * S/CP] positions that each CP rank holds */
    const int32_t *full_position; /* [mbs * S] of keys gathered over CP, sample by sample */
    const int32_t *full_cu;       /* [mbs + 1] */
    /* where an all-to-all joins `near` neighbours of the CP group and a ring goes over the rest */
    int64_t near;
    mf_group_kind cp_near, cp_far;
    const int32_t *near_position; /* [cp / near][mbs * near * S/CP] */
    const int32_t *near_cu;       /* [mbs + 1] */

    float loss_scale;   /* of the gradient of each valid label */
    float aux_scale;    /* of the gradient of the auxiliary loss of one micro-batch; 0: none */
    float z_scale;      /* of the gradient of a token's squared logsumexp; 0: no z-loss */
    bool force_balance; /* choices go round the experts, whatever the scores */
    double *loss_sum;   /* added to by the loss of this rank's rows */
    double *aux_sum;    /* of the position: added to, this rank's part of the auxiliary loss */
    double *z_sum;      /* added to: squared logsumexp of this rank's tokens */
    float *load;        /* [experts] of the position: choices of this rank's tokens in this step so
                           far, before any are dropped; NULL: no experts */
    const float *correction_bias; /* [experts] of the position; NULL: none */
    void *exchange;               /* registered buffers of a fused dispatcher; NULL: none */
    void *scratch;
    size_t scratch_B;
} mf_exec_env;

typedef struct mf_exec_op {
    const mf_op *op, *forward; /* forward: itself in F, else what it derives from (or itself) */
    const mf_block *block;
    int position;
    int ring_step;   /* attention: keys of the CP rank this many before */
    int nin;         /* operands without partial sums */
    int forward_nin; /* operands of the forward op */
    mf_exec_tensor in[MF_OP_MAX_IN], out[MF_OP_MAX_OUT];
    mf_exec_tensor sum[MF_OP_MAX_OUT];   /* gradient that stands and is to be added; data NULL */
    mf_exec_tensor weight[MF_OP_MAX_IN]; /* operands of the forward op that are weights */
    int out_of[MF_OP_MAX_OUT]; /* which output of the forward op each output is (R leaves some out)
                                */
    bool first[MF_OP_MAX_OUT]; /* nothing in this pass wrote the output before */
    void *host;                /* of a copy: the host's side */
    const mf_exec_env *env;
} mf_exec_op;

typedef mf_status (*mf_exec_fn)(const mf_exec_op *x, mf_err *e);

typedef struct mf_exec_backend {
    const char *name;
    mf_exec_fn run[MF_OP_COUNT]; /* NULL: the backend cannot run this kind */
    /* Bytes of scratch that an op of this layout can need. */
    size_t (*scratch_B)(const mf_block *b, const mf_op *op, const mf_layout *l, const mf_model *m);
} mf_exec_backend;

const mf_exec_backend *mf_exec_backend_cpu(void);

/* A row map's parts (core/program.h). */
typedef struct mf_row_map {
    int64_t experts, rows_max, slots;
    int32_t *offsets, *overflow, *counts, *slot_of_row, *row_of_slot;
} mf_row_map;
static inline mf_row_map mf_row_map_of(void *data, int64_t experts, int64_t rows_max,
                                       int64_t slots) {
    int32_t *at = data;
    return (mf_row_map){experts,
                        rows_max,
                        slots,
                        at,
                        at + experts + 1,
                        at + experts + 2,
                        at + 2 * experts + 2,
                        at + 2 * experts + 2 + rows_max};
}

#endif
