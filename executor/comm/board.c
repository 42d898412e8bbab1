/* board.c - ranks of one host in shared memory, and the thread that misses them. */
#include "executor/comm/board.h"

#include "executor/comm/comm_ops.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Text is copied while others may read it: a torn name in a line about a dead rank is all that can
 * come of it. */
typedef struct slot {
    atomic_int process; /* 0: not there yet */
    atomic_int left;
    int rank;
    int position, pass;
    int64_t step;
    char doing[48];
} slot;

typedef struct shared {
    atomic_int told, failed;
    slot of[];
} shared;

struct mf_board {
    mf_comm_shared memory;
    shared *all;   /* in it */
    int ranks, me; /* on this host */
    pthread_t watch;
    atomic_int stop;
    mf_board_lost_fn lost;
    void *user;
};

static const char *pass_text(int pass) {
    return pass == MF_PASS_F   ? "forward"
           : pass == MF_PASS_R ? "recomputation"
           : pass == MF_PASS_B ? "input gradient"
           : pass == MF_PASS_W ? "weight gradient"
                               : "optimizer";
}

static void tell(const mf_board *b, const slot *s) {
    char line[256], place[64] = "";
    if (b->lost == NULL || atomic_exchange(&b->all->told, 1) != 0) {
        return;
    }
    if (s->position >= 0) {
        snprintf(place, sizeof place, " (%s) of position %d", pass_text(s->pass), s->position);
    }
    snprintf(line, sizeof line, "rank %d (process %d) is gone: step %lld, %.47s%s", s->rank,
             atomic_load(&s->process), (long long)s->step, s->doing, place);
    b->lost(b->user, line);
}

static const slot *missing(const mf_board *b) {
    for (int i = 0; i < b->ranks; i++) {
        const slot *s = &b->all->of[i];
        int process = atomic_load(&s->process);
        if (process != 0 && i != b->me && kill((pid_t)process, 0) != 0 && errno == ESRCH &&
            atomic_load(&s->left) == 0) {
            return s;
        }
    }
    return NULL;
}

static void *watch(void *arg) {
    mf_board *b = arg;
    const struct timespec period = {.tv_nsec = (long)(MF_BOARD_PERIOD_S * 1e9)};
    while (atomic_load(&b->stop) == 0) {
        const slot *s = missing(b);
        if (s != NULL) {
            tell(b, s);
            _exit(1);
        }
        nanosleep(&period, NULL);
    }
    return NULL;
}

static mf_status share(mf_board *b, mf_comm *c, mf_err *e) {
    mf_status status = mf_comm_share(c, sizeof(shared), sizeof(slot), &b->memory, e);
    b->all = b->memory.data;
    b->ranks = b->memory.ranks;
    b->me = b->memory.me;
    return status;
}

mf_status mf_board_open(mf_comm *c, mf_board_lost_fn lost, void *user, mf_board **out, mf_err *e) {
    *out = NULL;
    if (mf_comm_group_size(c, MF_GROUP_WORLD) == 1) {
        return MF_OK;
    }
    mf_board *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return mf_err_set(e, MF_NOMEM, "board: out of memory");
    }
    b->lost = lost;
    b->user = user;
    mf_status status = share(b, c, e);
    if (status == MF_OK) {
        slot *s = &b->all->of[b->me];
        s->rank = (int)mf_comm_rank(c);
        mf_board_phase(b, 0, "start");
        atomic_store(&s->process, (int)getpid());
        if (pthread_create(&b->watch, NULL, watch, b) != 0) {
            status = mf_err_set(e, MF_LIBRARY, "pthread_create: no watching thread");
        }
    }
    if (status != MF_OK) {
        free(b);
        return status;
    }
    *out = b;
    return MF_OK;
}

static void put(mf_board *b, int64_t step, int position, int pass, const char *doing) {
    slot *s = &b->all->of[b->me];
    s->step = step;
    s->position = position;
    s->pass = pass;
    snprintf(s->doing, sizeof s->doing, "%s", doing);
}

void mf_board_op(mf_board *b, int64_t step, const mf_exec_op *op) {
    if (b != NULL) {
        put(b, step, op->position, op->op->pass, op->op->name);
    }
}

void mf_board_phase(mf_board *b, int64_t step, const char *phase) {
    if (b != NULL) {
        put(b, step, -1, 0, phase);
    }
}

bool mf_board_first(mf_board *b) {
    return b == NULL || atomic_exchange(&b->all->failed, 1) == 0;
}

void mf_board_speak(mf_board *b) {
    if (b != NULL) {
        atomic_store(&b->all->told, 1);
    }
}

void mf_board_leave(mf_board *b) {
    if (b != NULL) {
        atomic_store(&b->all->of[b->me].left, 1);
    }
}

void mf_board_close(mf_board *b, bool together) {
    if (b == NULL) {
        return;
    }
    mf_board_leave(b);
    atomic_store(&b->stop, 1);
    pthread_join(b->watch, NULL);
    if (together) {
        b->memory.release(&b->memory);
    }
    free(b);
}
