/* device.h - the machine that runs a program, behind one table: its memory, its queues of work, its
 * kernels. The CPU's device does what it is given before it returns; a GPU's enqueues it.
 *
 * Who runs a program translates ops into the argument structs of kernels/ (executor/ops/) and hands
 * them to the table, the same for every device. Work of one queue happens in the order of entry. A
 * call inside a step allocates nothing and waits for nothing: sizes that depend on routing are read
 * where the work runs.
 */
#ifndef MF_EXECUTOR_DEVICE_H
#define MF_EXECUTOR_DEVICE_H

#include "executor/comm/comm.h"
#include "executor/device/kernel_list.h"
#include "kernels/dispatch/dispatch.h"

typedef struct mf_device mf_device;
typedef struct mf_queue mf_queue;

/* c = op(a) op(b) + bias (+ c when g.accumulate, or + add, which has c's type and strides). */
typedef struct mf_device_gemm {
    mf_kernel_gemm g;
    const void *add; /* NULL: none; may be c */
} mf_device_gemm;

/* kernels/grouped_gemm/grouped_gemm.h of any element type: [rows, k] x [experts, n, k]. */
typedef struct mf_device_grouped {
    mf_grouped_kind kind;
    bool accumulate; /* WGRAD */
    mf_kernel_dtype dtype, out_dtype;
    int64_t experts, rows, n, k;
    const int32_t *offsets; /* [experts + 1] */
    const void *a, *b;
    void *out;
    void *act; /* FORWARD: silu(gate) * up (* prob) of out's halves; NULL: none */
    const float *prob;
} mf_device_grouped;

/* Which keys queries see, where a sample is spread over context-parallel ranks as chunks c and
 * 2 CP - 1 - c: those of its own rank, of one before, of one behind, of all in order of position.
 * Where an all-to-all has joined ranks, their rows stand in order of position, and what they hold
 * together are such chunks of a smaller group. */
typedef enum mf_device_keys {
    MF_KEYS_OWN,
    MF_KEYS_BEFORE,
    MF_KEYS_BEHIND,
    MF_KEYS_ALL,
} mf_device_keys;

/* The same sequences as shape.cu_q and shape.cu_k: all of one length. */
typedef struct mf_device_sequences {
    int64_t seq_q, seq_k;
    mf_device_keys keys;
    int64_t member, members; /* c and CP above; 1: rows hold positions 0, 1, 2, ... */
} mf_device_sequences;

typedef struct mf_device_attention {
    mf_kernel_attention a;
    mf_device_sequences s;
    void *workspace;
    size_t workspace_B;
} mf_device_attention;

/* Queries or keys that see none of the other leave gradients as they are: with keys of other ranks
 * gradients are added (a.accumulate). */
typedef struct mf_device_attention_grad {
    mf_kernel_attention_grad a;
    mf_device_sequences s;
    size_t workspace_B;
} mf_device_attention_grad;

/* *sum += the squares of a router's logsumexp over rows. */
typedef struct mf_device_z {
    int64_t rows;
    const float *lse;
    double *sum;
} mf_device_z;

typedef struct mf_device_graph mf_device_graph; /* captured work of a queue */

/* Queues beside those of the program: of messages by slot, then those that carry what steps read,
 * ahead of them, optimizer states from the host's memory and back, and gradients that are summed
 * over data-parallel ranks while others are still made. */
enum {
    MF_DEVICE_UPLOADS = MF_COMM_SLOTS,
    MF_DEVICE_STATES_IN,
    MF_DEVICE_STATES_OUT,
    MF_DEVICE_REDUCTIONS,
    MF_DEVICE_SIDE_QUEUES
};
enum { MF_DEVICE_POINTS = 2 };

typedef struct mf_device_ops {
    const char *name;
    bool on_host;    /* its memory is the host's, and work is done when a call returns */
    bool mixed;      /* products take operands of any type, and of two */
    bool fused_sums; /* a norm's gradient adds what stands inside its kernel, rounded once */

    void (*close)(mf_device *d);
    /* "NVIDIA H200 (GPU 0, up to 1980 MHz)" */
    void (*describe)(const mf_device *d, char *text, size_t size);

    /* From here on the results of a step depend on nothing but its data: kernels that add in the
     * order in which they come to it are not taken, and algorithms are chosen by rule, not by the
     * clock. Before prepare and connect. NULL where that is always so. */
    void (*fix)(mf_device *d);

    /* Memory of the device, aligned to MF_ALIGN_B, all zero; of the host, for copies. MF_NOMEM. */
    mf_status (*allocate)(mf_device *d, int64_t size_B, void **out, mf_err *e);
    void (*release)(mf_device *d, void *memory);
    mf_status (*allocate_host)(mf_device *d, int64_t size_B, void **out, mf_err *e);
    void (*release_host)(mf_device *d, void *memory);
    /* Bytes of the device's memory that are in use, by whomever, as its driver says; 0: unknown. */
    int64_t (*used_B)(mf_device *d);

    /* The queue of a stream of the program: each has one of its own, but where work is done when a
     * call returns. */
    mf_queue *(*queue)(mf_device *d, mf_stream stream);
    /* A queue beside those of the program, number `i` below MF_DEVICE_SIDE_QUEUES: what waits there
     * for another rank holds nothing up but itself. The same queue for the same number. */
    mf_status (*side_queue)(mf_device *d, int i, mf_queue **out, mf_err *e);
    mf_status (*copy)(mf_queue *q, void *to, const void *from, size_t size_B, mf_err *e);
    mf_status (*zero)(mf_queue *q, void *to, size_t size_B, mf_err *e);
    mf_status (*fill)(mf_queue *q, void *to, int byte, size_t size_B, mf_err *e);
    /* The host waits until all work of the device is done; what went wrong in it. */
    mf_status (*wait)(mf_device *d, mf_err *e);
    /* What follows on queue `behind` waits for what was entered on `before`. */
    mf_status (*order)(mf_queue *before, mf_queue *behind, mf_err *e);

    /* Puts down signal `slot` (from 0 on; a small number) where queue `before` has come to; what
     * follows on queue `behind` waits for the signal as it was put down last, and for nothing
     * entered on `before` since. Inside a capture both are part of it. */
    mf_status (*signal)(mf_queue *before, int slot, mf_err *e);
    mf_status (*await)(mf_queue *behind, int slot, mf_err *e);

    /* Puts down point `slot` (below MF_DEVICE_POINTS) where the queue's work has come to; the host
     * waits until all in front of it is done, whatever was entered behind it. Errors as of wait.
     * NULL where work is done when a call returns. */
    mf_status (*point)(mf_queue *q, int slot, mf_err *e);
    mf_status (*reach)(mf_device *d, int slot, mf_err *e);
    /* Communicators that move what lies in the memory of the devices of all ranks of `host`: see
     * mf_comm_nccl_create. Collective. NULL where those of the processes do. */
    mf_status (*connect)(mf_device *d, mf_comm *host, const mf_layout *l, mf_comm **out, mf_err *e);

    /* The window of a fused dispatcher over the EP group of `wire`, which has to outlive it, and
     * what lies in it; `beside`: its kernels run beside compute. Collective in the group.
     * MF_INFEASIBLE with the reason where these ranks can have none, else MF_LIBRARY, MF_NOMEM; to
     * be closed by each rank, which waits for the device. NULL where no device has one. */
    mf_status (*window_open)(mf_device *d, mf_comm *wire, const mf_dispatch_shape *s, bool beside,
                             mf_dispatch_group **out, mf_dispatch_view *view, mf_err *e);
    void (*window_close)(mf_device *d, mf_dispatch_group *g);
    mf_status (*window_dispatch)(mf_queue *q, mf_dispatch_group *g, const mf_kernel_dispatch *a,
                                 mf_err *e);
    mf_status (*window_combine)(mf_queue *q, mf_dispatch_group *g, const mf_kernel_combine *a,
                                mf_err *e);

    /* Puts down a mark, number `slot`, where the queue's work has come to; once the device has been
     * waited for, the seconds from one mark to another. NULL where the host's clock tells. */
    mf_status (*mark)(mf_queue *q, int64_t slot, mf_err *e);
    mf_status (*between)(mf_device *d, int64_t from, int64_t to, double *time_s, mf_err *e);

    /* Between prepare(true) and prepare(false) work is looked at, and nothing runs: plans of
     * library kernels are made, with algorithms that are measured. NULL where there is nothing to
     * do. */
    mf_status (*prepare)(mf_device *d, bool begin, mf_err *e);

    /* Work between begin and end is kept and not done; play enqueues all of it. NULL: no graphs. */
    mf_status (*capture_begin)(mf_queue *q, mf_err *e);
    mf_status (*capture_end)(mf_queue *q, mf_device_graph **out, mf_err *e);
    mf_status (*play)(mf_queue *q, mf_device_graph *g, mf_err *e);
    void (*forget)(mf_device_graph *g);

    /* Kernels: one entry for each line of executor/device/kernel_list.h, and those that a library
     * may stand behind. */
#define X(entry, type, function) mf_status (*entry)(mf_queue * q, const type *a, mf_err *e);
    MF_KERNEL_LIST(X)
#undef X
    mf_status (*gemm)(mf_queue *q, const mf_device_gemm *a, mf_err *e);
    mf_status (*grouped)(mf_queue *q, const mf_device_grouped *a, mf_err *e);
    mf_status (*attention)(mf_queue *q, const mf_device_attention *a, mf_err *e);
    mf_status (*attention_grad)(mf_queue *q, const mf_device_attention_grad *a, mf_err *e);
    mf_status (*router_z)(mf_queue *q, const mf_device_z *a, mf_err *e);

    /* Bytes of scratch that an op of this layout can need beside its operands. */
    size_t (*scratch_B)(const mf_block *b, const mf_op *op, const mf_layout *l, const mf_model *m);
} mf_device_ops;

/* Devices begin with this. */
struct mf_device {
    const mf_device_ops *ops;
};

/* Queues begin with this. */
struct mf_queue {
    mf_device *device;
    void *stream; /* a cudaStream_t; NULL on the CPU */
};

/* The CPU: never closed, shared by all. */
mf_device *mf_device_cpu(void);

#endif
