/* device.h - the machine that runs a program, behind one table: its memory, its queues of work, its
 * kernels. The CPU's device does its work before a call returns; a GPU's enqueues it.
 *
 * executor/ops/ translates ops into the argument structs of kernels/, the same for every device,
 * and the executor passes them to the table. Work of one queue runs in the order in which it was
 * enqueued. A call inside a step neither allocates nor waits: the device itself reads sizes that
 * depend on routing.
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

/* Which keys queries see when a sample is spread over context-parallel ranks as chunks c and 2 CP -
 * 1 - c: those of the own rank, of an earlier one, of a later one, or of all in order of position.
 * After an all-to-all has joined ranks, their rows are in order of position and form such chunks of
 * a smaller group. */
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

/* Queries that see no keys, and keys that no query sees, leave gradients unchanged: gradients from
 * keys of other ranks are added (a.accumulate). */
typedef struct mf_device_attention_grad {
    mf_kernel_attention_grad a;
    mf_device_sequences s;
    size_t workspace_B;
    bool keeps; /* score gradients are kept (MF_OPF_KEPT) */
} mf_device_attention_grad;

/* *sum += the squares of a router's logsumexp over rows. */
typedef struct mf_device_z {
    int64_t rows;
    const float *lse;
    double *sum;
} mf_device_z;

typedef struct mf_device_graph mf_device_graph; /* captured work of a queue */

/* Queues in addition to those of the program: one for each slot of messages; then those that copy
 * what steps read, ahead of them; that move optimizer states from the host's memory and back; and
 * that sum gradients over data-parallel ranks while others are still computed. */
enum {
    MF_DEVICE_UPLOADS = MF_COMM_SLOTS,
    MF_DEVICE_STATES_IN,
    MF_DEVICE_STATES_OUT,
    MF_DEVICE_REDUCTIONS,
    MF_DEVICE_SIDE_QUEUES
};
enum { MF_DEVICE_POINTS = 2 };
/* The executor marks where steps begin and end, by the slots below this one; others use the rest.
 */
enum { MF_DEVICE_STEP_MARKS = 2 * MF_DEVICE_POINTS };

/* What a GPU's driver counts: joules since it was loaded, and the multiprocessors' clock. */
typedef struct mf_device_draw {
    double energy_J, clock_MHz;
} mf_device_draw;

typedef struct mf_device_ops {
    const char *name;
    bool on_host;    /* it uses the host's memory, and a call returns when its work is done */
    bool mixed;      /* products take operands of any type, and of two */
    bool fused_sums; /* norm gradients add the existing gradient in their kernel */

    void (*close)(mf_device *d);
    /* "NVIDIA H200 (GPU 0, up to 1980 MHz)" */
    void (*describe)(const mf_device *d, char *text, size_t size);

    /* Makes the results of a step depend on its data alone: the device then uses no kernels whose
     * order of addition varies, and chooses algorithms by rule, not by time. It runs programs that
     * were lowered for it (mf_layout.deterministic). Call it before prepare and connect. NULL where
     * that is always so. */
    void (*fix)(mf_device *d);

    /* Allocates memory of the device, aligned to MF_ALIGN_B and zeroed; or of the host, for copies.
     * MF_NOMEM. */
    mf_status (*allocate)(mf_device *d, int64_t size_B, void **out, mf_err *e);
    void (*release)(mf_device *d, void *memory);
    mf_status (*allocate_host)(mf_device *d, int64_t size_B, void **out, mf_err *e);
    void (*release_host)(mf_device *d, void *memory);
    /* Bytes of the device's memory that any process uses, as its driver says; 0: unknown. */
    int64_t (*used_B)(mf_device *d);
    /* What its driver counts now; false: unknown. NULL where there is nothing to ask. */
    bool (*draw)(mf_device *d, mf_device_draw *out);

    /* The queue of a stream of the program. Each stream has its own, unless work is done when a
     * call returns. */
    mf_queue *(*queue)(mf_device *d, mf_stream stream);
    /* An additional queue, number `i` below MF_DEVICE_SIDE_QUEUES: work that waits there for
     * another rank delays no other queue. The same number gives the same queue. */
    mf_status (*side_queue)(mf_device *d, int i, mf_queue **out, mf_err *e);
    mf_status (*copy)(mf_queue *q, void *to, const void *from, size_t size_B, mf_err *e);
    mf_status (*zero)(mf_queue *q, void *to, size_t size_B, mf_err *e);
    mf_status (*fill)(mf_queue *q, void *to, int byte, size_t size_B, mf_err *e);
    /* Waits on the host until all work of the device is done. Errors: those of that work. */
    mf_status (*wait)(mf_device *d, mf_err *e);
    /* Later work on queue `behind` waits for the work enqueued on `before` so far. */
    mf_status (*order)(mf_queue *before, mf_queue *behind, mf_err *e);

    /* The first enqueues signal `slot` (a small number from 0) on queue `before`. After the second,
     * later work on queue `behind` waits for the latest such signal, and not for work enqueued on
     * `before` after it. Inside a capture both are part of it. */
    mf_status (*signal)(mf_queue *before, int slot, mf_err *e);
    mf_status (*await)(mf_queue *behind, int slot, mf_err *e);

    /* The first enqueues point `slot` (below MF_DEVICE_POINTS). With the second the host waits
     * until all work before that point is done, but not for work after it. Errors: as of wait. NULL
     * where work is done when a call returns. */
    mf_status (*point)(mf_queue *q, int slot, mf_err *e);
    mf_status (*reach)(mf_device *d, int slot, mf_err *e);
    /* Creates communicators between the devices of all ranks of `host` (mf_comm_nccl_create).
     * Collective. NULL where those of the processes are used. */
    mf_status (*connect)(mf_device *d, mf_comm *host, const mf_layout *l, mf_comm **out, mf_err *e);

    /* The window of a fused dispatcher over the EP group of `wire`, which has to outlive it, and
     * the memory inside. Collective in the group. MF_INFEASIBLE with the reason where these ranks
     * can have none, else MF_LIBRARY, MF_NOMEM; each rank closes it, which waits for the device.
     * NULL where no device has one. */
    mf_status (*window_open)(mf_device *d, mf_comm *wire, const mf_dispatch_shape *s,
                             mf_dispatch_group **out, mf_dispatch_view *view, mf_err *e);
    void (*window_close)(mf_device *d, mf_dispatch_group *g);
    mf_status (*window_dispatch)(mf_queue *q, mf_dispatch_group *g, const mf_kernel_dispatch *a,
                                 mf_err *e);
    mf_status (*window_combine)(mf_queue *q, mf_dispatch_group *g, const mf_kernel_combine *a,
                                mf_err *e);

    /* mark enqueues mark `slot`. between gives the seconds from one mark to another by the device's
     * clock; the host has waited for both before it asks. NULL where the host's clock is used. */
    mf_status (*mark)(mf_queue *q, int64_t slot, mf_err *e);
    mf_status (*between)(mf_device *d, int64_t from, int64_t to, double *time_s, mf_err *e);

    /* Between prepare(true) and prepare(false) the device runs no work that is enqueued, but makes
     * plans of library kernels for it and measures their algorithms. NULL where there is nothing to
     * prepare. */
    mf_status (*prepare)(mf_device *d, bool begin, mf_err *e);

    /* Work between begin and end is recorded and does not run; play enqueues all of it. NULL: no
     * graphs. */
    mf_status (*capture_begin)(mf_queue *q, mf_err *e);
    mf_status (*capture_end)(mf_queue *q, mf_device_graph **out, mf_err *e);
    mf_status (*play)(mf_queue *q, mf_device_graph *g, mf_err *e);
    void (*forget)(mf_device_graph *g);

    /* Kernels: one entry for each line of executor/device/kernel_list.h, and those that call a
     * library. */
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
