/* shadow_private.h - what the files of the shadow device share. */
#ifndef MF_TESTS_SHADOW_PRIVATE_H
#define MF_TESTS_SHADOW_PRIVATE_H

#include "tests/support/shadow_device.h"

#include "executor/comm/comm_ops.h"

/* Queues: of streams, of communication without one, beside them. */
enum {
    SHADOW_NO_STREAM = MF_STREAM_COUNT,
    SHADOW_SIDE,
    SHADOW_QUEUES = SHADOW_SIDE + MF_DEVICE_SIDE_QUEUES,
    SHADOW_LABEL = 96,
    SHADOW_PLAN_WORDS = 20
};

typedef struct shadow shadow;
typedef struct shadow_item shadow_item;

typedef struct shadow_items {
    int64_t count, allocated;
    shadow_item **item;
} shadow_items;

/* How work that other processes take part in goes on; *done: it is over. */
typedef struct shadow_comm_work {
    mf_status (*begin)(shadow_item *i, mf_err *e);
    mf_status (*poll)(shadow_item *i, bool *done, mf_err *e);
    void (*spans)(const shadow_item *i, shadow_spans *out);
    /* What it waits for, in words. */
    void (*describe)(const shadow_item *i, char *text, size_t size);
} shadow_comm_work;

struct shadow_item {
    shadow_kind kind;
    const char *name;
    char label[SHADOW_LABEL];
    int queue, lane; /* lane: of a communicator; -1 */
    int64_t number, turn, place;
    void *args;
    size_t args_B;
    const shadow_comm_work *comm;
    void *state; /* of a communicator */
    shadow_items deps, next;
    int64_t waits; /* deps that are not done */
    bool begun, done, wanted;
    shadow_spans spans;
    int64_t *wait; /* places of deps, once recorded */
};

/* The last work of a queue or lane, and what the next one waits for besides. */
typedef struct shadow_chain {
    shadow_item *last;
    shadow_items also;
} shadow_chain;

typedef struct shadow_queue {
    mf_queue queue;
    int index;
    bool captured;
    shadow_chain chain[2]; /* of work that is done, of work that is captured */
} shadow_queue;

/* Where a queue had come to; graph: of which capture, NULL: none. */
typedef struct shadow_signal {
    bool set;
    const mf_device_graph *graph;
    shadow_items at;
} shadow_signal;

typedef struct shadow_lane {
    shadow_item *last[2];
} shadow_lane;

typedef struct shadow_allocation {
    char *base;
    int64_t size_B, mapped_B;
    bool device; /* else pinned memory of the host */
} shadow_allocation;

typedef struct shadow_plan {
    int64_t word[SHADOW_PLAN_WORDS];
} shadow_plan;

struct mf_device_graph {
    shadow *device;
    shadow_items items;
};

typedef struct shadow_copy {
    void *to;
    const void *from; /* NULL: the bytes follow */
    size_t size_B;
} shadow_copy;

typedef struct shadow_fill {
    void *to;
    int byte;
    size_t size_B;
} shadow_fill;

struct shadow {
    mf_device device;
    mf_device_ops ops;
    shadow_options o;
    shadow_queue queue[SHADOW_QUEUES];
    shadow_lane *lane;
    int lanes;
    shadow_allocation *allocation;
    int allocations, allocations_max;
    int unlocked;
    bool preparing;
    mf_device_graph *capture;                     /* under way */
    shadow_items all, ready, begun;               /* all: not given back yet, in order of entry */
    int64_t entered, turns, orders, awaits, left; /* left: not done */
    int64_t no_await;                             /* this one is left out */
    shadow_signal *signal;
    int64_t signals;
    uint64_t random;
    char label[SHADOW_LABEL];
    mf_err failed; /* first failure of work: what waits say from then on */
    double *mark;
    int64_t marks;
    shadow_item *point[MF_DEVICE_POINTS];
    int checked[SHADOW_KERNEL_COUNT]; /* kernels of each kind */
    char *images;                     /* shadow_check.c */
    size_t images_B;
    shadow_plan *plan;
    int64_t plans, plans_allocated;
    shadow_work *recorded;
    int64_t recorded_count, recorded_allocated, epoch;
    shadow_items kept; /* what the recording points into */
};

static inline shadow *shadow_of(const mf_device *d) {
    return (shadow *)(uintptr_t)d;
}

/* shadow_memory.c */
mf_status shadow_allocate(shadow *x, int64_t size_B, bool device, void **out, mf_err *e);
void shadow_release(shadow *x, void *memory);
void shadow_release_all(shadow *x);
/* The allocation that holds all of [p, p + size_B), of the device or pinned; NULL: none. */
const shadow_allocation *shadow_allocation_of(const shadow *x, const void *p, int64_t size_B);
/* Device memory is open to the host in between. */
void shadow_unlock(shadow *x);
void shadow_lock(shadow *x);
/* Watches for touches of the device's memory, or no longer. */
void shadow_watch(shadow *x);
void shadow_unwatch(shadow *x);

/* shadow_work.c */
void shadow_push(shadow_items *list, shadow_item *i);
/* Enters work behind what its queue and lane hold, into the capture where one is under way. `args`
 * are copied; *out may be NULL. */
mf_status shadow_enter(shadow *x, shadow_queue *q, const shadow_item *like, shadow_item **out,
                       mf_err *e);
/* Does what `until` rests on and itself; NULL: everything. */
mf_status shadow_run(shadow *x, shadow_item *until, mf_err *e);
void shadow_forget_items(shadow_items *list);
/* Puts what is done away: freed, or into the recording. Nothing is left to be done. */
void shadow_put_away(shadow *x);

/* shadow_check.c: does a kernel, and holds what it does against its spans: it changes nothing
 * outside those that it writes, and does the same where everything else holds other bytes. */
mf_status shadow_check_kernel(shadow *x, shadow_item *i, mf_err *e);

/* shadow_graph.c */
mf_status shadow_order(mf_queue *before, mf_queue *behind, mf_err *e);
mf_status shadow_signal_down(mf_queue *before, int slot, mf_err *e);
mf_status shadow_await(mf_queue *behind, int slot, mf_err *e);
/* Work is put away: what signals stand for is done. */
void shadow_end_signals(shadow *x);
mf_status shadow_capture_begin(mf_queue *q, mf_err *e);
mf_status shadow_capture_end(mf_queue *q, mf_device_graph **out, mf_err *e);
mf_status shadow_play(mf_queue *q, mf_device_graph *g, mf_err *e);
void shadow_forget(mf_device_graph *g);
mf_status shadow_refuse_capture(const shadow *x, const char *what, mf_err *e);

/* shadow_window.c: see mf_device_ops. */
mf_status shadow_window_open(mf_device *d, mf_comm *wire, const mf_dispatch_shape *s,
                             mf_dispatch_group **out, mf_dispatch_view *view, mf_err *e);
void shadow_window_close(mf_device *d, mf_dispatch_group *g);
mf_status shadow_window_dispatch(mf_queue *q, mf_dispatch_group *g, const mf_kernel_dispatch *a,
                                 mf_err *e);
mf_status shadow_window_combine(mf_queue *q, mf_dispatch_group *g, const mf_kernel_combine *a,
                                mf_err *e);

#endif
