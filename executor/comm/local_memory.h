/* local_memory.h - private to comm_local: the file that the ranks of one host share, and how they
 * wait for each other in it.
 *
 * MOEFOLD_RANKS_FILE names the file. It is new for each run, starts as zeros, and is removed from
 * its folder as soon as all ranks have opened it. Counters only grow.
 */
#ifndef MF_EXECUTOR_LOCAL_MEMORY_H
#define MF_EXECUTOR_LOCAL_MEMORY_H

#include "executor/comm/comm_ops.h"

#include <stdatomic.h>

enum {
    MF_LOCAL_LIVE = 8, /* communicators of a process at a time */
    MF_LOCAL_ROWS = MF_LOCAL_LIVE * MF_COMM_GROUPS + 1,
    MF_LOCAL_ALL = MF_LOCAL_ROWS - 1, /* the row over all ranks, before there is a communicator */
    MF_LOCAL_HALF_B = 1 << 20         /* what a rank shows the others in one of its two rounds */
};

/* How far a rank is in the rounds of a group. */
typedef struct mf_local_turn {
    atomic_ullong entered, left;
} mf_local_turn;

/* A message that is being sent: it is at `offset` of the file. Its receiver sets the number to 0,
 * and its sender writes the rest while it is 0. */
typedef struct mf_local_slot {
    atomic_ullong number; /* of its communicator's messages, from 1 */
    atomic_int to, tag;
    uint64_t size_B, offset, allocated_B;
} mf_local_slot;

typedef struct mf_local_rank {
    atomic_int process; /* 0: not there yet; -1: it has left */
    mf_local_turn turn[MF_LOCAL_ROWS];
    mf_local_slot slot[MF_LOCAL_LIVE][MF_COMM_SLOTS];
} mf_local_rank;

/* A process that uses the file: one rank. */
typedef struct mf_local {
    int file, ranks, me;
    bool crowded; /* more ranks than cores */
    char *base;
    size_t size_B;
    /* of the last round that showed something in each half: who reads it, in which row */
    struct {
        int row, n, *who;
        uint64_t round;
    } shown[2];
    uint32_t live; /* communicators, by bit */
} mf_local;

/* Joins the run and waits for the other ranks. Errors: MF_USAGE (what the environment says, or a
 * file of another run), MF_LIBRARY, MF_NOMEM. */
mf_status mf_local_join(mf_local *w, const char *path, int64_t rank, int64_t ranks, mf_err *e);
void mf_local_leave(mf_local *w);
/* Ends every rank that waits, or waits next, with this exit code. */
void mf_local_end(mf_local *w, int code);

mf_local_rank *mf_local_rank_of(const mf_local *w, int rank);
/* [MF_LOCAL_HALF_B] */
char *mf_local_half(const mf_local *w, int rank, uint64_t round);

/* New memory of the file, zeroed, and a view of it (mf_local_drop). Errors: MF_LIBRARY. */
mf_status mf_local_take(mf_local *w, uint64_t size_B, uint64_t *offset, mf_err *e);
mf_status mf_local_view(const mf_local *w, uint64_t offset, uint64_t size_B, void **out, mf_err *e);
void mf_local_drop(void *view, uint64_t size_B);

/* One turn of waiting for `rank`; *turns counts them, from 0. The caller checks its condition after
 * each. MF_LIBRARY when that rank has ended. Ends the process when the run has ended. */
mf_status mf_local_pause(const mf_local *w, int rank, int *turns, mf_err *e);
mf_status mf_local_wait(const mf_local *w, const atomic_ullong *counter, uint64_t value, int rank,
                        mf_err *e);

#endif
