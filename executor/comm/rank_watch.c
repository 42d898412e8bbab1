/* rank_watch.c - writes what this rank does to memory that the ranks of its host share. */
#include "executor/comm/rank_watch.h"

#include "core/base/clock.h"
#include "executor/comm/comm_status.h"
#include "executor/comm/rank_watch_hosts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static rank_watch_slot *own(mf_rank_watch *b) {
    return &b->all->of[b->me];
}

/* Counts a move: to another op, into a call that waits, or out of it. The time since the last move
 * was spent on what the slot says until now. */
static void move(mf_rank_watch *b) {
    rank_watch_slot *s = own(b);
    const double now_s = mf_clock_s(), took_s = now_s - b->moved_s;
    const mf_rank_watch_waits waits = (mf_rank_watch_waits)atomic_load(&s->waits);
    b->moved_s = now_s;
    b->waited_s += waits == MF_RANK_WATCH_FOR_RANKS ? took_s : 0.0;
    if (atomic_load(&s->stage) != MF_WATCH_BETWEEN) {
        atomic_int *longest_ms = &s->longest_ms[waits == MF_RANK_WATCH_WORKS ? 0 : 1];
        const int ms = (int)fmin(1e3 * took_s, 1e9);
        if (ms > atomic_load(longest_ms)) {
            atomic_store(longest_ms, ms);
        }
    }
    atomic_fetch_add(&s->moves, 1);
}

static void put(mf_rank_watch *b, int64_t step, int position, int pass, const char *doing) {
    rank_watch_slot *s = own(b);
    move(b);
    s->step = step;
    s->position = position;
    s->pass = pass;
    snprintf(s->doing, sizeof s->doing, "%s", doing);
}

void mf_rank_watch_set_op(mf_rank_watch *b, int64_t step, int position, const mf_op *op) {
    if (b != NULL) {
        put(b, step, position, op->pass, op->name);
    }
}

void mf_rank_watch_set_phase(mf_rank_watch *b, int64_t step, const char *phase) {
    if (b != NULL) {
        put(b, step, -1, 0, phase);
    }
}

void mf_rank_watch_set_waits(mf_rank_watch *b, mf_rank_watch_waits what) {
    if (b != NULL) {
        move(b);
        atomic_store(&own(b)->waits, (int)what);
    }
}

/* The communicator calls this before and after each call that waits. */
static void waits_for_ranks(void *user, bool waits) {
    mf_rank_watch *b = user;
    if (waits) {
        b->before = (mf_rank_watch_waits)atomic_load(&own(b)->waits);
    }
    mf_rank_watch_set_waits(b, waits ? MF_RANK_WATCH_FOR_RANKS : b->before);
}

void mf_rank_watch_enter_step(mf_rank_watch *b, bool first) {
    if (b != NULL) {
        move(b);
        atomic_store(&own(b)->stage, first ? MF_WATCH_FIRST_STEP : MF_WATCH_IN_STEP);
    }
}

void mf_rank_watch_leave_step(mf_rank_watch *b) {
    if (b != NULL) {
        move(b);
        atomic_store(&own(b)->stage, MF_WATCH_BETWEEN);
    }
}

void mf_rank_watch_heed(mf_rank_watch *b, const volatile int *asked) {
    if (b != NULL) {
        atomic_store(&b->asked, asked);
    }
}

double mf_rank_watch_waited_s(const mf_rank_watch *b) {
    return b != NULL ? b->waited_s : 0.0;
}

bool mf_rank_watch_first(mf_rank_watch *b) {
    return b == NULL || atomic_exchange(&b->all->failed, 1) == 0;
}

void mf_rank_watch_speak(mf_rank_watch *b) {
    if (b != NULL) {
        atomic_store(&b->all->reported, 1);
    }
}

void mf_rank_watch_await_lost_host(mf_rank_watch *b) {
    if (b == NULL || b->whole) {
        return;
    }
    const double since_s = mf_clock_s();
    const struct timespec look = {.tv_nsec = (long)(1e9 * MF_RANK_WATCH_PERIOD_S)};
    atomic_store(&b->all->suspects, 1);
    while (mf_clock_s() - since_s < MF_RANK_WATCH_SUSPECT_S) {
        nanosleep(&look, NULL);
    }
}

void mf_rank_watch_leave(mf_rank_watch *b) {
    if (b != NULL) {
        atomic_store(&own(b)->left, 1);
    }
}

/* --- coming and going ---------------------------------------------------------------------------
 */

static mf_status map_slots(mf_rank_watch *b, mf_err *e) {
    mf_status status = mf_comm_map_shared(b->comm, sizeof(rank_watch_shared),
                                          sizeof(rank_watch_slot), &b->memory, e);
    b->all = b->memory.data;
    b->ranks = b->memory.ranks;
    b->me = b->memory.me;
    b->whole = b->ranks == (int)mf_comm_group_size(b->comm, MF_GROUP_WORLD);
    return status;
}

static mf_status start_watch(mf_rank_watch *b, mf_err *e) {
    rank_watch_slot *s = own(b);
    b->view = calloc((size_t)b->ranks, sizeof *b->view);
    if (b->view == NULL) {
        return mf_err_set(e, MF_NOMEM, "ranks: out of memory");
    }
    s->rank = (int)mf_comm_rank(b->comm);
    mf_rank_watch_set_phase(b, 0, "start");
    atomic_store(&s->process, (int)getpid());
    return pthread_create(&b->watch, NULL, mf_rank_watch_thread, b) == 0
               ? MF_OK
               : mf_err_set(e, MF_LIBRARY, "pthread_create: no watching thread");
}

/* releases: as all ranks do. */
static void close_parts(mf_rank_watch *b, bool watched, bool releases) {
    if (watched) {
        mf_rank_watch_leave(b);
        atomic_store(&b->stop, 1);
        pthread_join(b->watch, NULL);
    }
    rank_watch_hosts_close(b->hosts);
    if (releases) {
        b->memory.release(&b->memory);
    }
    free(b->view);
    free(b);
}

mf_status mf_rank_watch_open(mf_comm *c, const mf_model *model, double hang_s,
                             mf_rank_watch_lost_fn lost, void *user, mf_rank_watch **out,
                             mf_err *e) {
    *out = NULL;
    if (mf_comm_group_size(c, MF_GROUP_WORLD) == 1) {
        return MF_OK;
    }
    mf_rank_watch *b = calloc(1, sizeof *b);
    mf_status status =
        mf_comm_agree(c, b != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "ranks: out of memory"), e);
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
    b->moved_s = mf_clock_s();
    if (gethostname(b->host, sizeof b->host - 1) != 0) {
        snprintf(b->host, sizeof b->host, "this host");
    }
    status = map_slots(b, e);
    const bool shared = status == MF_OK;
    if (status == MF_OK && !b->whole) {
        status = rank_watch_hosts_open(c, b->me, b->ranks, &b->hosts, e);
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

void mf_rank_watch_close(mf_rank_watch *b, bool together) {
    if (b != NULL) {
        mf_comm_on_wait(b->comm, NULL, NULL);
        close_parts(b, true, together);
    }
}
