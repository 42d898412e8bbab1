/* comm_local.h - private: what the files of the transport of one host share (comm_local.c, with its
 * collectives in local_collectives.c and its messages in local_messages.c). */
#ifndef MF_EXECUTOR_COMM_LOCAL_H
#define MF_EXECUTOR_COMM_LOCAL_H

#include "executor/comm/local_memory.h"

typedef struct mf_local_group {
    int *who; /* world ranks of the members */
    uint64_t round;
} mf_local_group;

/* Where this process has mapped a part of the file. */
typedef struct mf_local_seen {
    void *data;
    uint64_t offset, allocated_B;
} mf_local_seen;

/* The state of one communicator. */
typedef struct mf_local_state {
    int live; /* index among this process's communicators */
    mf_local_group group[MF_COMM_GROUPS];
    mf_local_seen *seen; /* [ranks][MF_COMM_SLOTS] messages of all ranks */
    uint64_t sent;       /* messages */
} mf_local_state;

extern mf_local mf_local_world; /* a process is one rank */

static inline mf_local_turn *mf_local_turn_of(int rank, int row) {
    return &mf_local_rank_of(&mf_local_world, rank)->turn[row];
}

/* As in mf_comm_ops. */
mf_status mf_local_all_reduce(mf_comm *c, int g, mf_comm_type type, mf_comm_reduce op, void *data,
                              int64_t count, mf_err *e);
mf_status mf_local_all_gather(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                              int64_t count, mf_err *e);
mf_status mf_local_all_gather_v(mf_comm *c, int g, mf_comm_type type, void *data,
                                const int64_t *counts, mf_err *e);
mf_status mf_local_reduce_scatter(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                                  const int64_t *counts, mf_err *e);
mf_status mf_local_all_to_all(mf_comm *c, int g, size_t width, const void *in, const int64_t *send,
                              void *out, const int64_t *receive, mf_err *e);
mf_status mf_local_ring(mf_comm *c, int g, int64_t to, int64_t from, const void *in, void *out,
                        size_t size_B, mf_err *e);
mf_status mf_local_barrier(mf_comm *c, mf_err *e);
mf_status mf_local_send(mf_comm *c, int slot, int64_t to, int tag, const void *data, size_t size_B,
                        mf_err *e);
mf_status mf_local_wait_send(mf_comm *c, int slot, mf_err *e);
mf_status mf_local_receive(mf_comm *c, int slot, int64_t from, int tag, void *data, size_t size_B,
                           mf_err *e);

#endif
