/* rank_watch_slots.h - private to rank_watch.c and rank_watch_thread.c: what each rank of a host
 * writes to the shared memory.
 *
 * Text is written while others may read it: the worst case is a garbled name in a message about a
 * lost rank.
 */
#ifndef MF_EXECUTOR_RANK_WATCH_SLOTS_H
#define MF_EXECUTOR_RANK_WATCH_SLOTS_H

#include "executor/comm/comm_ops.h"
#include "executor/comm/rank_watch.h"

#include <pthread.h>
#include <stdatomic.h>

/* How far a rank is in a step. The first one, which touches memory and starts libraries, sets how
 * long ops may take and is not judged itself. */
typedef enum rank_watch_stage {
    MF_WATCH_BETWEEN,
    MF_WATCH_FIRST_STEP,
    MF_WATCH_IN_STEP
} rank_watch_stage;

typedef struct rank_watch_slot {
    atomic_int process; /* 0: not joined yet */
    atomic_int left;
    atomic_llong beats;  /* of its watching thread: a stopped process has none */
    atomic_llong moves;  /* of its main thread: to another op, into a call that waits, out of it */
    atomic_llong ran_us; /* time of its main thread on a core, as its watching thread saw it */
    atomic_int waits;    /* mf_rank_watch_waits */
    atomic_int stage;    /* rank_watch_stage */
    atomic_int longest_ms[2]; /* in steps, between two moves: while it worked, while it waited */
    int rank;
    int position, pass;
    int64_t step;
    char doing[48];
} rank_watch_slot;

typedef struct rank_watch_hosts_word {
    atomic_int wait, deadlock; /* of other hosts, as the first rank of this one has heard */
} rank_watch_hosts_word;

typedef struct rank_watch_shared {
    atomic_int reported, failed,
        suspects; /* suspects: a rank waits in mf_rank_watch_await_lost_host */
    rank_watch_hosts_word others;
    rank_watch_slot of[];
} rank_watch_shared;

/* When another rank's counts changed last, by this rank's clock. */
typedef struct rank_watch_view {
    int64_t beats, moves, ran_us; /* ran_us: at the last move */
    double beat_s, move_s;
} rank_watch_view;

struct mf_rank_watch {
    mf_comm *comm;
    const mf_model *model;
    mf_comm_shared memory;
    rank_watch_shared *all; /* in it */
    int ranks, me;          /* on this host */
    bool whole;             /* there are no other ranks than those of this host */
    double hang_s;          /* 0: only ranks that are gone are noticed */
    char host[64];
    double moved_s, waited_s;       /* of the main thread */
    mf_rank_watch_waits before;     /* the call that waits for ranks */
    rank_watch_view *view;          /* [ranks] of the watching thread */
    struct rank_watch_hosts *hosts; /* likewise; NULL: this rank does not look after other hosts */
    pthread_t watch, main;
    atomic_int stop;
    const volatile int *_Atomic asked; /* mf_rank_watch_heed */
    bool spoken;                       /* a silent host has been reported since then */
    mf_rank_watch_lost_fn lost;
    void *user;
};

/* The watching thread of the mf_rank_watch that it gets. */
void *mf_rank_watch_thread(void *watch);

#endif
