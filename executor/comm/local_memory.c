/* local_memory.c - a file in the memory of the ranks of one host. */
#include "executor/comm/local_memory.h"

#include "executor/comm/comm_wait.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* The head of the file. */
typedef struct head {
    atomic_int ranks, ended; /* ended: exit code + 1 */
    atomic_ullong taken_B;   /* end of the memory handed out so far */
} head;

enum {
    PAGE_B = 4096,
    SPINS = 200,          /* turns of busy waiting, */
    YIELDS = 20000,       /* and turns that yield, where there is a core for each rank */
    LOOK = 250,           /* sleeps between two looks at whether the peer still runs */
    GONE = -1,            /* turn: the peer has exited; read its last message, then fail */
    SLEEP_ns = 20 * 1000, /* the first; each is a quarter of that longer than the one before, */
    MOST_ns = 320 * 1000, /* up to this */
    SLACK_ns = 1000
};

static size_t pages_B(size_t size_B) {
    return (size_B + PAGE_B - 1) / PAGE_B * PAGE_B;
}

static size_t rank_B(void) {
    return pages_B(sizeof(mf_local_rank)) + (size_t)2 * MF_LOCAL_HALF_B;
}

static head *head_of(const mf_local *w) {
    return (head *)(void *)w->base;
}

mf_local_rank *mf_local_rank_of(const mf_local *w, int rank) {
    return (mf_local_rank *)(void *)(w->base + PAGE_B + (size_t)rank * rank_B());
}

char *mf_local_half(const mf_local *w, int rank, uint64_t round) {
    return (char *)mf_local_rank_of(w, rank) + pages_B(sizeof(mf_local_rank)) +
           (round % 2) * MF_LOCAL_HALF_B;
}

/* --- memory -------------------------------------------------------------------------------------
 */

static mf_status reserve(const mf_local *w, uint64_t offset, uint64_t size_B, mf_err *e) {
    int why = posix_fallocate(w->file, (off_t)offset, (off_t)size_B);
    return why == 0 ? MF_OK
                    : mf_err_set(e, MF_LIBRARY, "%llu bytes shared by the ranks of this host: %s",
                                 (unsigned long long)size_B, strerror(why));
}

mf_status mf_local_take(mf_local *w, uint64_t size_B, uint64_t *offset, mf_err *e) {
    uint64_t whole_B = pages_B(size_B);
    *offset = w->size_B + atomic_fetch_add(&head_of(w)->taken_B, whole_B);
    return whole_B == 0 ? MF_OK : reserve(w, *offset, whole_B, e);
}

mf_status mf_local_view(const mf_local *w, uint64_t offset, uint64_t size_B, void **out,
                        mf_err *e) {
    *out = mmap(NULL, size_B, PROT_READ | PROT_WRITE, MAP_SHARED, w->file, (off_t)offset);
    if (*out == MAP_FAILED) {
        *out = NULL;
        return mf_err_set(e, MF_LIBRARY, "memory shared by the ranks of this host: %s",
                          strerror(errno));
    }
    return MF_OK;
}

void mf_local_drop(void *view, uint64_t size_B) {
    if (view != NULL) {
        munmap(view, size_B);
    }
}

/* --- waiting ------------------------------------------------------------------------------------
 */

static mf_status look_after(const mf_local *w, int rank, mf_err *e) {
    int process = atomic_load(&mf_local_rank_of(w, rank)->process);
    if (process < 0) {
        return mf_err_set(e, MF_LIBRARY, "rank %d has ended while rank %d waits for it", rank,
                          w->me);
    }
    if (process > 0 && kill((pid_t)process, 0) != 0 && errno == ESRCH) {
        return mf_err_set(e, MF_LIBRARY, "rank %d (process %d) is gone", rank, process);
    }
    return MF_OK;
}

/* Sleeps longer from turn to turn: each wake-up takes microseconds of a core that working ranks
 * could use. */
static void nap(int turn) {
    const long sleep_ns = SLEEP_ns + (long)turn * SLEEP_ns / 4;
    const struct timespec t = {.tv_nsec = sleep_ns < MOST_ns ? sleep_ns : MOST_ns};
    nanosleep(&t, NULL);
}

mf_status mf_local_pause(const mf_local *w, int rank, int *turns, mf_err *e) {
    int turn = *turns, sleeps_from = w->crowded ? SPINS : YIELDS;
    if (turn == GONE) {
        return look_after(w, rank, e);
    }
    *turns = turn + 1;
    if (turn < SPINS) {
        return MF_OK;
    }
    int ended = atomic_load_explicit(&head_of(w)->ended, memory_order_relaxed);
    if (ended > 0) {
        _exit(ended - 1);
    }
    if (turn < sleeps_from) {
        mf_comm_give_way();
        return MF_OK;
    }
    nap(turn - sleeps_from);
    if (turn < sleeps_from + LOOK) {
        return MF_OK;
    }
    *turns = look_after(w, rank, NULL) == MF_OK ? sleeps_from : GONE;
    return MF_OK;
}

mf_status mf_local_wait(const mf_local *w, const atomic_ullong *counter, uint64_t value, int rank,
                        mf_err *e) {
    mf_status status = MF_OK;
    for (int turns = 0; status == MF_OK;) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= value) {
            return MF_OK;
        }
        status = mf_local_pause(w, rank, &turns, e);
    }
    return status;
}

/* --- coming and going ---------------------------------------------------------------------------
 */

static mf_status map_file(mf_local *w, const char *path, mf_err *e) {
    void *base;
    w->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (w->file < 0) {
        return mf_err_set(e, MF_LIBRARY, "%s: %s", path, strerror(errno));
    }
    w->size_B = PAGE_B + (size_t)w->ranks * rank_B();
    mf_status status = reserve(w, 0, w->size_B, e);
    status = status == MF_OK ? mf_local_view(w, 0, w->size_B, &base, e) : status;
    w->base = status == MF_OK ? base : NULL;
    return status;
}

static mf_status register_rank(mf_local *w, const char *path, mf_err *e) {
    int none = 0, process = 0;
    if (!atomic_compare_exchange_strong(&head_of(w)->ranks, &none, w->ranks) && none != w->ranks) {
        return mf_err_set(e, MF_USAGE, "%s: a run of %d ranks, not of %d", path, none, w->ranks);
    }
    if (!atomic_compare_exchange_strong(&mf_local_rank_of(w, w->me)->process, &process,
                                        (int)getpid())) {
        return mf_err_set(e, MF_USAGE, "%s: rank %d is there already (process %d)", path, w->me,
                          process);
    }
    for (int r = 0; r < w->ranks; r++) {
        mf_status status = MF_OK;
        for (int turns = 0; atomic_load(&mf_local_rank_of(w, r)->process) == 0;) {
            status = mf_local_pause(w, r, &turns, e);
            if (status != MF_OK) {
                return status;
            }
        }
    }
    return MF_OK;
}

static void clear(mf_local *w) {
    mf_local_drop(w->base, w->size_B);
    if (w->file >= 0) {
        close(w->file);
    }
    free(w->shown[0].who);
    free(w->shown[1].who);
    *w = (mf_local){.file = -1};
}

mf_status mf_local_join(mf_local *w, const char *path, int64_t rank, int64_t ranks, mf_err *e) {
    *w = (mf_local){.file = -1, .ranks = (int)ranks, .me = (int)rank};
    w->crowded = ranks > sysconf(_SC_NPROCESSORS_ONLN);
    if (w->crowded) {
        (void)prctl(PR_SET_TIMERSLACK, SLACK_ns);
    }
    mf_status status = MF_OK;
    for (int i = 0; i < 2; i++) {
        w->shown[i].who = calloc((size_t)ranks, sizeof *w->shown[i].who);
        if (w->shown[i].who == NULL) {
            status = mf_err_set(e, MF_NOMEM, "ranks: out of memory");
        }
    }
    status = status == MF_OK ? map_file(w, path, e) : status;
    status = status == MF_OK ? register_rank(w, path, e) : status;
    if (status != MF_OK) {
        clear(w);
    } else if (rank == 0) {
        (void)unlink(path); /* ranks that have it open keep it */
    }
    return status;
}

void mf_local_leave(mf_local *w) {
    if (w->base != NULL) {
        atomic_store(&mf_local_rank_of(w, w->me)->process, -1);
    }
    clear(w);
}

void mf_local_end(mf_local *w, int code) {
    atomic_store(&head_of(w)->ended, code + 1);
}
