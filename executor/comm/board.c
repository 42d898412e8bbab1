/* board.c - ranks of one host in shared memory: what this one puts there. */
#include "executor/comm/board.h"

#include "executor/comm/board_hosts.h"
#include "executor/comm/comm_status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

double mf_board_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static board_slot *own(mf_board *b) {
    return &b->all->of[b->me];
}

/* Another op, into a call that waits, or out of it: the time since the last such moment was spent
 * on what is written there. */
static void move(mf_board *b) {
    board_slot *s = own(b);
    const double now_s = mf_board_now_s(), took_s = now_s - b->moved_s;
    const mf_board_waits waits = (mf_board_waits)atomic_load(&s->waits);
    b->moved_s = now_s;
    b->waited_s += waits == MF_BOARD_FOR_RANKS ? took_s : 0.0;
    if (atomic_load(&s->stage) != BOARD_BETWEEN) {
        atomic_int *longest_ms = &s->longest_ms[waits == MF_BOARD_WORKS ? 0 : 1];
        const int ms = (int)fmin(1e3 * took_s, 1e9);
        if (ms > atomic_load(longest_ms)) {
            atomic_store(longest_ms, ms);
        }
    }
    atomic_fetch_add(&s->moves, 1);
}

static void put(mf_board *b, int64_t step, int position, int pass, const char *doing) {
    board_slot *s = own(b);
    move(b);
    s->step = step;
    s->position = position;
    s->pass = pass;
    snprintf(s->doing, sizeof s->doing, "%s", doing);
}

void mf_board_op(mf_board *b, int64_t step, int position, const mf_op *op) {
    if (b != NULL) {
        put(b, step, position, op->pass, op->name);
    }
}

void mf_board_phase(mf_board *b, int64_t step, const char *phase) {
    if (b != NULL) {
        put(b, step, -1, 0, phase);
    }
}

void mf_board_wait(mf_board *b, mf_board_waits what) {
    if (b != NULL) {
        move(b);
        atomic_store(&own(b)->waits, (int)what);
    }
}

/* The communicator's word, in front of a call and behind it. */
static void waits_for_ranks(void *user, bool waits) {
    mf_board *b = user;
    if (waits) {
        b->before = (mf_board_waits)atomic_load(&own(b)->waits);
    }
    mf_board_wait(b, waits ? MF_BOARD_FOR_RANKS : b->before);
}

void mf_board_enter_step(mf_board *b, bool first) {
    if (b != NULL) {
        move(b);
        atomic_store(&own(b)->stage, first ? BOARD_FIRST_STEP : BOARD_IN_STEP);
    }
}

void mf_board_leave_step(mf_board *b) {
    if (b != NULL) {
        move(b);
        atomic_store(&own(b)->stage, BOARD_BETWEEN);
    }
}

void mf_board_heed(mf_board *b, const volatile int *asked) {
    if (b != NULL) {
        atomic_store(&b->asked, asked);
    }
}

double mf_board_waited_s(const mf_board *b) {
    return b != NULL ? b->waited_s : 0.0;
}

bool mf_board_first(mf_board *b) {
    return b == NULL || atomic_exchange(&b->all->failed, 1) == 0;
}

void mf_board_speak(mf_board *b) {
    if (b != NULL) {
        atomic_store(&b->all->reported, 1);
    }
}

void mf_board_suspect(mf_board *b) {
    if (b == NULL || b->whole) {
        return;
    }
    const double since_s = mf_board_now_s();
    const struct timespec look = {.tv_nsec = (long)(1e9 * MF_BOARD_PERIOD_S)};
    atomic_store(&b->all->suspects, 1);
    while (mf_board_now_s() - since_s < MF_BOARD_SUSPECT_S) {
        nanosleep(&look, NULL);
    }
}

void mf_board_leave(mf_board *b) {
    if (b != NULL) {
        atomic_store(&own(b)->left, 1);
    }
}

/* --- coming and going ---------------------------------------------------------------------------
 */

static mf_status share(mf_board *b, mf_err *e) {
    mf_status status =
        mf_comm_share(b->comm, sizeof(board_shared), sizeof(board_slot), &b->memory, e);
    b->all = b->memory.data;
    b->ranks = b->memory.ranks;
    b->me = b->memory.me;
    b->whole = b->ranks == (int)mf_comm_group_size(b->comm, MF_GROUP_WORLD);
    return status;
}

static mf_status start_watch(mf_board *b, mf_err *e) {
    board_slot *s = own(b);
    b->view = calloc((size_t)b->ranks, sizeof *b->view);
    if (b->view == NULL) {
        return mf_err_set(e, MF_NOMEM, "board: out of memory");
    }
    s->rank = (int)mf_comm_rank(b->comm);
    mf_board_phase(b, 0, "start");
    atomic_store(&s->process, (int)getpid());
    return pthread_create(&b->watch, NULL, mf_board_watch, b) == 0
               ? MF_OK
               : mf_err_set(e, MF_LIBRARY, "pthread_create: no watching thread");
}

/* releases: as all ranks do. */
static void close_parts(mf_board *b, bool watched, bool releases) {
    if (watched) {
        mf_board_leave(b);
        atomic_store(&b->stop, 1);
        pthread_join(b->watch, NULL);
    }
    board_hosts_close(b->hosts);
    if (releases) {
        b->memory.release(&b->memory);
    }
    free(b->view);
    free(b);
}

mf_status mf_board_open(mf_comm *c, const mf_model *model, double hang_s, mf_board_lost_fn lost,
                        void *user, mf_board **out, mf_err *e) {
    *out = NULL;
    if (mf_comm_group_size(c, MF_GROUP_WORLD) == 1) {
        return MF_OK;
    }
    mf_board *b = calloc(1, sizeof *b);
    mf_status status =
        mf_comm_agree(c, b != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "board: out of memory"), e);
    if (status != MF_OK || b == NULL) {
        free(b);
        return status;
    }
    b->comm = c;
    b->model = model;
    b->hang_s = hang_s;
    b->lost = lost;
    b->user = user;
    b->main = pthread_self();
    b->moved_s = mf_board_now_s();
    if (gethostname(b->host, sizeof b->host - 1) != 0) {
        snprintf(b->host, sizeof b->host, "this host");
    }
    status = share(b, e);
    const bool shared = status == MF_OK;
    if (status == MF_OK && !b->whole) {
        status = board_hosts_open(c, b->me, b->ranks, &b->hosts, e);
    }
    status = status == MF_OK ? start_watch(b, e) : status;
    const bool watched = status == MF_OK;
    status = mf_comm_agree(c, status, e);
    if (status != MF_OK) { /* of all ranks */
        close_parts(b, watched, shared);
        return status;
    }
    mf_comm_on_wait(c, waits_for_ranks, b);
    *out = b;
    return MF_OK;
}

void mf_board_close(mf_board *b, bool together) {
    if (b != NULL) {
        mf_comm_on_wait(b->comm, NULL, NULL);
        close_parts(b, true, together);
    }
}
