/* ops.h - translates an op of a program into calls of kernels: one function for each kind of op,
 * the same for every device. It fills argument structs and passes them to the device's table. It
 * never reads an operand's data, so its work can be captured once and played many times.
 */
#ifndef MF_EXECUTOR_OPS_H
#define MF_EXECUTOR_OPS_H

#include "core/program/dispatch_memory.h"
#include "core/program/row_map.h"
#include "executor/comm/comm.h"
#include "executor/device/device.h"

/* An operand: rows_max x cols elements of device memory, of which `rows` are used when balanced. */
typedef struct mf_exec_tensor {
    void *data;
    int64_t rows, cols, rows_max;
    mf_kernel_dtype dtype; /* F32 also for integers and statistics, which are four bytes wide */
} mf_exec_tensor;

/* The window of a fused dispatcher, and memory that goes with it. */
typedef struct mf_ops_window {
    mf_dispatch_group *group; /* NULL: none */
    mf_dispatch_view view;
    mf_dispatch_memory memory;
    char *kept; /* mf_dispatch_kept_B: the sides, then gradients on their way back */
} mf_ops_window;

/* What ops read besides their operands: the rank and the current micro-batch. All pointers except
 * model, layout and communicators are device memory. */
typedef struct mf_exec_env {
    mf_device *device;
    const mf_model *model;
    const mf_layout *layout;
    mf_rank_coords at;
    mf_comm *comm;                            /* moves what lies in the device's memory */
    mf_rope_table rope[MF_MODEL_MAX_CLASSES]; /* mf_model_rope_tables */
    const float *rope_cos[MF_MODEL_MAX_CLASSES], *rope_sin[MF_MODEL_MAX_CLASSES]; /* [seq, w/2] */

    /* of the micro-batch, rows as inside TP regions: sample by sample, [mbs * S/CP] */
    const int32_t *token, *label; /* of the current position (MTP depths look further ahead) */
    const int32_t *position;      /* in the sample */
    const int32_t *sample;        /* of the micro-batch */
    const int32_t *cu;            /* [mbs + 1] first row of each sample */
    const int32_t *ring_position; /* [cp][mbs * S/CP] positions that each CP rank holds */
    const int32_t
        *full_position;     /* [mbs * S] of keys gathered over CP, sample by sample, in order */
    const int32_t *full_cu; /* [mbs + 1] */
    const int32_t *place;   /* [mbs * S] sample * S + position of the rows that TP and CP
                               ranks hold, in order of rank */
    const int32_t *place_sample; /* [mbs * S] sample of each place */
    /* where an all-to-all joins `near` neighbours of the CP group and a ring goes over the rest */
    int64_t near;
    mf_group_kind cp_near, cp_far;
    const int32_t *near_position; /* [cp / near][mbs * near * S/CP], in order in each sample */
    const int32_t *near_cu;       /* [mbs + 1] */

    float loss_scale;      /* of the gradient of each valid label */
    double loss_weight;    /* of a row's loss in *loss_sum */
    float aux_scale;       /* of the gradient of the auxiliary loss of one micro-batch; 0: none */
    float z_scale;         /* of the gradient of a token's squared logsumexp; 0: no z-loss */
    bool force_balance;    /* every expert gets as many choices, whatever the scores */
    const int32_t *forced; /* [experts + 1] of the position: or take so many places
                              (router_choices.h); NULL: none of both */
    int64_t forced_stride;
    double *loss_sum; /* added to by the loss of this rank's rows */
    double *aux_sum;  /* of the position: added to, this rank's part of the auxiliary loss */
    double *z_sum;    /* added to: squared logsumexp of this rank's tokens */
    float *load;      /* [experts] of the position: choices of this rank's tokens in this step so
                         far, before any are dropped; NULL: no experts */
    const float *correction_bias; /* [experts] of the position; NULL: none */
    int32_t *overflow;            /* set when routed rows find no space */
    void *exchange;               /* copies of a fused dispatcher on their way; NULL: none */
    const mf_ops_window *window;  /* NULL: a fused dispatcher goes through slots of equal size */
    void *scratch;
    size_t scratch_B;
} mf_exec_env;

typedef struct mf_exec_op {
    const mf_op *op, *forward; /* forward: itself in F, else what it derives from (or itself) */
    const mf_block *block;
    mf_queue *queue;
    bool beside; /* set where it runs: not compute's queue, so compute may run at the same time */
    int position;
    int side;        /* 1: of the backward of a merged pair */
    int ring_step;   /* attention: keys of the CP rank this many before */
    int nin;         /* operands without partial sums */
    int forward_nin; /* operands of the forward op */
    mf_exec_tensor in[MF_OP_MAX_IN], out[MF_OP_MAX_OUT];
    mf_exec_tensor sum[MF_OP_MAX_OUT];   /* existing gradient to accumulate into; data NULL: none */
    mf_exec_tensor weight[MF_OP_MAX_IN]; /* operands of the forward op that are weights */
    int out_of[MF_OP_MAX_OUT]; /* which output of the forward op each output is (R leaves some out)
                                */
    bool first[MF_OP_MAX_OUT]; /* this pass has not written the output before */
    bool overwrites;           /* W: the first of the step to write this gradient, which is not
                                  cleared before */
    void *host;                /* of a copy: the host's side */
    const mf_exec_env *env;
} mf_exec_op;

typedef mf_status (*mf_exec_fn)(const mf_exec_op *x, mf_err *e);

/* The function of a kind of op; NULL: no device runs it. */
mf_exec_fn mf_exec_op_function(mf_op_kind kind);
/* What of an op no device runs, as text for the user; NULL: all of it runs. */
const char *mf_exec_op_lacks(const mf_op *op);
/* Does a weight gradient overwrite its whole output, so that the first of a step need not add? */
bool mf_exec_op_overwrites(const mf_op *op);

/* --- for the translators ---------------------------------------------------------------------- */

static inline const mf_device_ops *mf_ops_device(const mf_exec_op *x) {
    return x->queue->device->ops;
}
/* Element i of a tensor's memory. */
void *mf_ops_at(const mf_exec_tensor *t, int64_t i);
/* out[k] = its sum (when there is one) or zero, over all of its rows. */
mf_status mf_ops_begin(const mf_exec_op *x, int k, mf_err *e);
/* out[k] += its sum, for ops that wrote their own part. */
mf_status mf_ops_add_sum(const mf_exec_op *x, int k, mf_err *e);
/* dst[r, 0..cols) = src[r, 0..cols); strides in elements. */
mf_status mf_ops_copy(const mf_exec_op *x, mf_kernel_dtype d, int64_t rows, int64_t cols,
                      const void *src, int64_t src_stride, void *dst, int64_t dst_stride,
                      mf_err *e);
/* The row map of a routed product and its gradients, which is the last operand. */
mf_row_map mf_ops_row_map(const mf_exec_op *x, int64_t experts);
static inline const mf_exec_tensor *mf_ops_row_map_operand(const mf_exec_op *x) {
    return &x->in[x->nin - 1];
}
/* Does this rank add the bias of a product, and compute its gradient? */
bool mf_ops_owns_bias(const mf_exec_op *x);

/* Takes parts of the scratch memory one after the other, aligned; asserts that they fit. */
typedef struct mf_ops_scratch {
    char *at, *end;
} mf_ops_scratch;
mf_ops_scratch mf_ops_scratch_of(const mf_exec_op *x);
void *mf_ops_take(mf_ops_scratch *s, size_t size_B);

mf_status mf_op_gemm(const mf_exec_op *x, mf_err *e);
mf_status mf_op_grouped_gemm(const mf_exec_op *x, mf_err *e);
mf_status mf_op_bias_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_op_rmsnorm(const mf_exec_op *x, mf_err *e);
mf_status mf_op_rmsnorm_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_op_norm_sum(const mf_exec_op *x, mf_err *e);
mf_status mf_op_rope(const mf_exec_op *x, mf_err *e);
mf_status mf_op_rope_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_op_attention(const mf_exec_op *x, mf_err *e);
mf_status mf_op_attention_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_op_attention_merge(const mf_exec_op *x, mf_err *e);
mf_status mf_op_router(const mf_exec_op *x, mf_err *e);
mf_status mf_op_router_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_op_router_drop(const mf_exec_op *x, mf_err *e);
mf_status mf_op_permute(const mf_exec_op *x, mf_err *e);
mf_status mf_op_unpermute(const mf_exec_op *x, mf_err *e);
mf_status mf_op_swiglu(const mf_exec_op *x, mf_err *e);
mf_status mf_op_swiglu_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_op_gate(const mf_exec_op *x, mf_err *e);
mf_status mf_op_gate_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_op_all_reduce(const mf_exec_op *x, mf_err *e);
mf_status mf_op_all_gather(const mf_exec_op *x, mf_err *e);
mf_status mf_op_reduce_scatter(const mf_exec_op *x, mf_err *e);
mf_status mf_op_all_to_all(const mf_exec_op *x, mf_err *e);
mf_status mf_op_send_recv(const mf_exec_op *x, mf_err *e);
mf_status mf_op_dispatch(const mf_exec_op *x, mf_err *e);
mf_status mf_op_combine(const mf_exec_op *x, mf_err *e);

#endif
