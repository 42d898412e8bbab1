/* shadow_device.h - a device for tests that behaves as a GPU does and computes as the CPU does.
 *
 * Its memory is its own: the host faults where it touches it. A call copies its arguments and
 * returns; work is done when the host waits, in any order that the queues and mf_device_ops.order
 * allow: with a seed it is drawn, so that a dependency which is not there shows as another result.
 * Work between capture_begin and capture_end is kept and played. What CUDA refuses inside a capture
 * is refused here, as are kernels whose operands are no device memory, and products and attention
 * of a shape that was not prepared.
 *
 * Work can be recorded: every kernel and copy with the bytes that it reads and writes, and what it
 * waits for (shadow_races.h looks for pairs that are not ordered).
 */
#ifndef MF_TESTS_SHADOW_DEVICE_H
#define MF_TESTS_SHADOW_DEVICE_H

#include "executor/comm/comm.h"
#include "tests/support/shadow_kernels.h"

/* Exit code of a process whose host code touched device memory. */
#define SHADOW_TOUCHED 97

typedef struct shadow_options {
    uint64_t seed;     /* of the order of work; 0: the order of entry */
    bool eager;        /* a host that waits for a point finds what is behind it done, too */
    bool unguarded;    /* the host may touch device memory: for looking into it */
    bool unprepared;   /* products and attention need not be prepared */
    bool fused_sums;   /* as a GPU translates: the norm's gradient adds what stands in its kernel */
    bool one_type;     /* as on a GPU: products take operands of one type */
    bool records;      /* keeps what was done */
    bool slots;        /* no windows: a fused dispatcher goes through slots of equal size */
    bool checks_spans; /* of the first kernels of each kind: shadow_check_kernel */
    int64_t no_order;  /* leaves out this call of order(), counted from 1; 0: none */
    double timeout_s;  /* of communication that does not come on; 0: 20 seconds */
    /* Faults to plant: may change the copied arguments of work that is entered. NULL: none. */
    void (*plant)(void *user, int64_t number, shadow_kind kind, void *args);
    void *user;
} shadow_options;

/* To be closed by its own ops. MF_NOMEM. */
mf_status shadow_open(const shadow_options *o, mf_device **out, mf_err *e);
/* The CPU's device, with translation as `o` says (fused_sums, one_type): what a shadow's results
 * are held against. Never closed; *table is the caller's and has to outlive it. */
typedef struct shadow_twin {
    mf_device device;
    mf_device_ops ops;
    mf_queue queue;
} shadow_twin;
mf_device *shadow_twin_open(const shadow_options *o, shadow_twin *table);

/* Communication in the shadow's memory, as deferred work of the queue whose `stream` was given to
 * mf_comm_use_stream (at first a queue of its own, which nothing is ordered with). As NCCL's: a
 * send is done when its receive runs, collectives of one communicator go in the order in which they
 * were entered, and members that enter different ones, or other sizes, get an error. `host` has to
 * outlive it. */
mf_status shadow_comm_create(mf_device *d, mf_comm *host, const mf_layout *l, mf_comm **out,
                             mf_err *e);

/* Work that is entered from here on belongs to this op: for words. */
void shadow_label(mf_device *d, const char *label);

/* --- what was done ------------------------------------------------------------------------------
 */

typedef struct shadow_work {
    shadow_kind kind;
    const char *name; /* entry of the device's table, or of the communicator's */
    const char *label;
    int queue; /* mf_stream, or one more */
    int64_t number;
    int64_t turn;     /* in which it was begun */
    int64_t epoch;    /* waits of the host before it: work of different epochs is ordered */
    const void *args; /* of a kernel */
    shadow_spans spans;
    int waits;           /* for */
    const int64_t *wait; /* these places in the recording, all smaller than its own */
} shadow_work;

/* Work that was entered and is not done. */
int64_t shadow_left(const mf_device *d);
/* Calls of order() and of await() so far. */
int64_t shadow_orders(const mf_device *d);
int64_t shadow_awaits(const mf_device *d);
/* Leaves out these calls, counted from the first of all; 0: none. */
void shadow_leave_out(mf_device *d, int64_t order, int64_t await);
/* All work since the device was opened or the recording dropped, in the order of entry (of a graph:
 * each time that it is played). Only after a wait. The device's. */
int64_t shadow_recorded(const mf_device *d, const shadow_work **out);
void shadow_drop_recording(mf_device *d);
/* Of device memory: which allocation, from 0, and how far in it; -1: none of the device's. */
int64_t shadow_place(const mf_device *d, const void *p, int64_t *offset);

#endif
