/* board_slots.h - private to the board (board.c, board_watch.c): what each rank of a host keeps in
 * the memory that they share.
 *
 * Text is copied while others may read it: a torn name in a line about a lost rank is all that can
 * come of it.
 */
#ifndef MF_EXECUTOR_BOARD_SLOTS_H
#define MF_EXECUTOR_BOARD_SLOTS_H

#include "executor/comm/board.h"
#include "executor/comm/comm_ops.h"

#include <pthread.h>
#include <stdatomic.h>

/* How far a rank is in a step. The first one, in which memory is touched and libraries start, says
 * what ops may take, and is not judged by it. */
typedef enum board_stage { BOARD_BETWEEN, BOARD_FIRST_STEP, BOARD_IN_STEP } board_stage;

typedef struct board_slot {
    atomic_int process; /* 0: not there yet */
    atomic_int left;
    atomic_llong beats;  /* of its watching thread: a stopped process has none */
    atomic_llong moves;  /* of its main thread: to another op, into a call that waits, out of it */
    atomic_llong ran_us; /* time of its main thread on a core, as its watching thread saw it */
    atomic_int waits;    /* mf_board_waits */
    atomic_int stage;    /* board_stage */
    atomic_int longest_ms[2]; /* in steps, between two moves: while it worked, while it waited */
    int rank;
    int position, pass;
    int64_t step;
    char doing[48];
} board_slot;

typedef struct board_hosts_word {
    atomic_int wait, knot; /* on other hosts, as the first rank of this one has heard */
} board_hosts_word;

typedef struct board_shared {
    atomic_int reported, failed, suspects; /* suspects: a rank waits in mf_board_suspect */
    board_hosts_word others;
    board_slot of[];
} board_shared;

/* When another rank's counts changed last, by this rank's clock. */
typedef struct board_view {
    int64_t beats, moves, ran_us; /* ran_us: at the last move */
    double beat_s, move_s;
} board_view;

struct mf_board {
    mf_comm *comm;
    const mf_model *model;
    mf_comm_shared memory;
    board_shared *all; /* in it */
    int ranks, me;     /* on this host */
    bool whole;        /* there are no other ranks than those of this host */
    double hang_s;     /* 0: nobody is looked after but for being gone */
    char host[64];
    double moved_s, waited_s;  /* of the main thread */
    mf_board_waits before;     /* the call that waits for ranks */
    board_view *view;          /* [ranks] of the watching thread */
    struct board_hosts *hosts; /* likewise; NULL: this rank does not look after other hosts */
    pthread_t watch, main;
    atomic_int stop;
    const volatile int *_Atomic asked; /* mf_board_heed */
    bool spoken;                       /* what it is told of while that is so */
    mf_board_lost_fn lost;
    void *user;
};

double mf_board_now_s(void);
/* The watching thread of the board that it gets. */
void *mf_board_watch(void *board);

#endif
